//! Questions to `disk_hash`, each answered in one run:
//!
//! - `speed`: CPU time per load, get, miss and update (including its compaction), 8/8 and 16/400
//!   bytes, all of it in the system's cache; read through a mapping, with a block cache, and only
//!   by system calls. `mapped`: only the first of these.
//! - `batches`: the same for batches of 64 keys that are announced together, and for updates that
//!   take effect together.
//! - `cold`: CPU time per get, and gets per second, if the files are longer than the memory: one by
//!   one, and announced 64 at a time. Run it in a control group that limits the memory.
//! - `scans`: CPU time per record, and records per second, of reading all records, by hash and in
//!   the order of the files. In a control group that limits the memory, the files are read from the
//!   disk.
//! - `space`: file bytes per live byte after overwriting everything five times; bytes written per
//!   byte requested.
//! - `opening`: memory of the index, and seconds to open after a clean close and after a kill.
//! - `commits`: writes per second that are synced one by one, by threads.
//! - `packing`: the size of JSON values of some hundred bytes, plain and compressed; CPU time of a
//!   set and a get.
//!
//! Run: `cargo bench -p todana-engine --bench disk_hash -- QUESTION [RECORDS [DIRECTORY [SHAPE]]]`;
//! all questions without arguments.

#[path = "../tests/visitor/mod.rs"]
#[allow(dead_code)]
mod visitor;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use todana_core::{Action, Attributes, DurableEngine, Engine, Record, ScanPosition};
use todana_engine::{DiskHash, DiskHashOptions, ValueCompression};
use visitor::Set;

/// Returns the CPU seconds of this thread.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("a number of nanoseconds") / 1e9
}

fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).expect("a number of pages") * 4096.0
}

/// Returns the n-th number of a fixed pseudo-random stream (splitmix64).
fn arbitrary(n: u64) -> u64 {
    let mut x = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// Returns a key with this number of digits; all n below 10^8 give different keys.
fn key(n: u64, digits: usize) -> Vec<u8> {
    format!("{:0digits$}", n * 61_803_399 % 100_000_000).into_bytes()
}

struct Shape {
    name: &'static str,
    records: u64,
    digits: usize,
    value: Vec<u8>,
}

fn shapes(records: Option<u64>) -> Vec<Shape> {
    let mut shapes = vec![
        Shape { name: "8/8", records: records.unwrap_or(2_000_000), digits: 8, value: b"12345678".to_vec() },
        Shape {
            name: "16/400",
            records: records.unwrap_or(2_000_000) / 4,
            digits: 16,
            value: vec![b'v'; 400],
        },
    ];
    if let Some(wanted) = std::env::args().skip(1).filter(|word| !word.starts_with("--")).nth(3) {
        shapes.retain(|shape| shape.name == wanted);
    }
    shapes
}

fn fresh(directory: &Path) -> PathBuf {
    let path = directory.join("disk-hash-bench");
    let _ = std::fs::remove_dir_all(&path);
    path
}

/// Runs maintenance as the owner of a database does, as long as there is something to do.
/// Returns the CPU seconds that it took.
fn run_maintenance(hash: &DiskHash, written: u64) -> f64 {
    if !written.is_multiple_of(256) {
        return 0.0;
    }
    let start = cpu();
    while hash.maintain() {}
    cpu() - start
}

/// Stores this number of records with the same value.
fn load(hash: &DiskHash, records: u64, digits: usize, value: &[u8]) {
    for n in 0..records {
        hash.visit(&key(n, digits), &mut Set(value)).expect("it is stored");
        run_maintenance(hash, n);
    }
}

fn each(records: u64, work: impl FnOnce()) -> f64 {
    let start = cpu();
    work();
    (cpu() - start) / records as f64 * 1e6
}

fn speed(records: Option<u64>, directory: &Path) {
    speed_by(&[(true, 0), (false, 64 << 20), (false, 0)], records, directory);
}

fn mapped(records: Option<u64>, directory: &Path) {
    speed_by(&[(true, 0)], records, directory);
}

/// `ways` lists configurations: whether files are mapped, and the size of the block cache.
fn speed_by(ways: &[(bool, u64)], records: Option<u64>, directory: &Path) {
    println!("# speed: CPU microseconds each");
    for Shape { name, records, digits, value } in shapes(records) {
        // Contiguous in memory, so that the keys themselves cost nothing.
        let list = |which: &dyn Fn(u64) -> u64| -> Vec<u8> {
            (0..records).flat_map(|n| key(which(n), digits)).collect()
        };
        let keys = list(&|n| n);
        let order = list(&|n| arbitrary(n) % records);
        let misses = list(&|n| records + arbitrary(n) % records);
        for &(is_mapped, cache_bytes) in ways {
            let path = fresh(directory);
            let options = DiskHashOptions { is_mapped, cache_bytes, ..DiskHashOptions::default() };
            let hash = DiskHash::open(&path, options).expect("it opens");
            let load = each(records, || {
                for (written, key) in (0..).zip(keys.chunks_exact(digits)) {
                    hash.visit(key, &mut Set(&value)).expect("it is stored");
                    run_maintenance(&hash, written);
                }
            });
            let mut sum = 0;
            let mut get = |keys: &[u8]| {
                for key in keys.chunks_exact(digits) {
                    hash.view(key, &mut |record| sum += record.value.len()).expect("it is read");
                }
            };
            get(&order);
            let hit = each(records, || get(&order));
            let miss = each(records, || get(&misses));
            assert_eq!(sum, 2 * records as usize * value.len());
            let mut value = value.clone();
            let mut housekeeping = 0.0;
            let update = each(records, || {
                for (written, key) in (0..).zip(order.chunks_exact(digits)) {
                    value[0] = value[0].wrapping_add(1);
                    hash.visit(key, &mut Set(&value)).expect("it is stored");
                    housekeeping += run_maintenance(&hash, written);
                }
            });
            let housekeeping = housekeeping / records as f64 * 1e6;
            let usage = hash.disk_usage();
            println!(
                "{name:7} {}: load {load:.3} get {hit:.3} miss {miss:.3} update {update:.3} (of which maintenance {housekeeping:.3}); files / live {:.2}",
                match cache_bytes >> 20 {
                    _ if is_mapped => "mapped".to_owned(),
                    mib => format!("cache {mib} MiB"),
                },
                usage.bytes as f64 / usage.live_bytes as f64
            );
            drop(hash);
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

fn batches(records: Option<u64>, directory: &Path) {
    println!("# batches of 64: CPU microseconds each");
    for Shape { name, records, digits, mut value } in shapes(records) {
        let path = fresh(directory);
        let hash = DiskHash::open(&path, DiskHashOptions::default()).expect("it opens");
        let order: Vec<u8> = (0..records).flat_map(|n| key(arbitrary(n) % records, digits)).collect();
        let order: Vec<&[u8]> = order.chunks_exact(digits).collect();
        load(&hash, records, digits, &value);
        let mut sum = 0;
        let get = each(records, || {
            for keys in order.chunks(64) {
                hash.prefetch_all(keys);
                for key in keys {
                    hash.view(key, &mut |record| sum += record.value.len()).expect("it is read");
                }
            }
        });
        assert_eq!(sum, records as usize * value.len());
        let update = each(records, || {
            for (written, keys) in (0..).zip(order.chunks(64)) {
                value[0] = value[0].wrapping_add(1);
                hash.prefetch_all(keys);
                for key in keys {
                    hash.visit(key, &mut Set(&value)).expect("it is stored");
                }
                run_maintenance(&hash, written * 64);
            }
        });
        let apply = each(records, || {
            for (written, keys) in (0..).zip(order.chunks(64)) {
                value[0] = value[0].wrapping_add(1);
                let put = Action::Put(Record::new(&value, Attributes::default()));
                let changes: Vec<_> = keys.iter().map(|key| (*key, put)).collect();
                hash.apply(&changes).expect("they are stored");
                run_maintenance(&hash, written * 64);
            }
        });
        println!("{name:7}: get {get:.3} update {update:.3} update together {apply:.3}");
        drop(hash);
        let _ = std::fs::remove_dir_all(&path);
    }
}

fn cold(records: Option<u64>, directory: &Path) {
    println!("# cold: CPU microseconds per get, and gets per second");
    for Shape { name, records, digits, value } in shapes(records) {
        let path = fresh(directory);
        let hash = DiskHash::open(&path, DiskHashOptions::default()).expect("it opens");
        load(&hash, records, digits, &value);
        hash.sync().expect("it is synced");
        for depth in [1, 16, 64] {
            let gets = if depth == 1 { 20_000 } else { 200_000 };
            let order: Vec<Vec<u8>> =
                (0..gets).map(|n| key(arbitrary(n ^ depth << 40) % records, digits)).collect();
            let order: Vec<&[u8]> = order.iter().map(Vec::as_slice).collect();
            let (start, mut sum) = (Instant::now(), 0);
            let announce = |keys: &[&[u8]]| {
                if depth > 1 {
                    hash.prefetch_all(keys);
                }
            };
            let took = each(gets, || {
                let mut groups = order.chunks(depth.div_ceil(2) as usize).peekable();
                // While half of the keys are read, the next half is announced.
                groups.peek().inspect(|keys| announce(keys));
                while let Some(keys) = groups.next() {
                    groups.peek().inspect(|keys| announce(keys));
                    for key in keys {
                        hash.view(key, &mut |record| sum += record.value.len()).expect("it is read");
                    }
                }
            });
            assert_eq!(sum, gets as usize * value.len());
            let rate = gets as f64 / start.elapsed().as_secs_f64();
            println!("{name:7} {depth:2} at once: {took:.2} us; {rate:.0} per second");
        }
        drop(hash);
    }
}

type Scan = dyn Fn(
    &DiskHash,
    Option<ScanPosition>,
    &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
) -> todana_core::Result<Option<ScanPosition>>;

fn scans(records: Option<u64>, directory: &Path) {
    println!("# scans: CPU microseconds per record, and records per second");
    for Shape { name, records, digits, value } in shapes(records) {
        let path = fresh(directory);
        let hash = DiskHash::open(&path, DiskHashOptions::default()).expect("it opens");
        load(&hash, records, digits, &value);
        hash.sync().expect("it is synced");
        let by_hash: &Scan = &|hash, place, see| hash.scan(place, see);
        let by_file: &Scan = &|hash, place, see| hash.read_all(place, see);
        for (way, scan) in
            [("by hash", by_hash), ("by file", by_file), ("by hash", by_hash), ("by file", by_file)]
        {
            // Like the callers, the read pauses after 256 records. Scans by hash end early.
            let (start, mut seen, mut sum, mut place) = (Instant::now(), 0u64, 0, None);
            let took = each(1, || {
                loop {
                    let until = seen + 256;
                    let next = scan(&hash, place.take(), &mut |_, record| {
                        (seen, sum) = (seen + 1, sum + record.value.len());
                        if seen < until { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                    });
                    place = next.expect("they are read");
                    if place.is_none() || way == "by hash" && start.elapsed() > Duration::from_secs(20) {
                        break;
                    }
                }
            });
            let rate = seen as f64 / start.elapsed().as_secs_f64();
            println!("{name:7} {way}: {:.3} us; {rate:.0} per second; {seen} records", took / seen as f64);
            assert!(sum == seen as usize * value.len() && (seen == records || way == "by hash"));
        }
        drop(hash);
        let _ = std::fs::remove_dir_all(&path);
    }
}

fn space(records: Option<u64>, directory: &Path) {
    println!("# space: files / live bytes, and CPU microseconds an update, as everything is overwritten");
    for Shape { name, records, digits, mut value } in shapes(records) {
        let path = fresh(directory);
        let hash = DiskHash::open(&path, DiskHashOptions::default()).expect("it opens");
        let mut written = 0;
        for round in 0..6u64 {
            let mut worst = 0.0f64;
            let took = each(records, || {
                for n in 0..records {
                    value[0] = value[0].wrapping_add(1);
                    let n = if round == 0 { n } else { arbitrary(round << 40 | n) % records };
                    hash.visit(&key(n, digits), &mut Set(&value)).expect("it is stored");
                    written += 1;
                    run_maintenance(&hash, written);
                    if written.is_multiple_of(4096) && round > 0 {
                        let usage = hash.disk_usage();
                        worst = worst.max(usage.bytes as f64 / usage.live_bytes as f64);
                    }
                }
            });
            let usage = hash.disk_usage();
            println!(
                "{name:7} round {round}: {took:.3} us; {:.3} now, {worst:.3} at worst; {} files of {:.1} MB",
                usage.bytes as f64 / usage.live_bytes as f64,
                usage.files,
                usage.bytes as f64 / 1e6
            );
        }
        drop(hash);
        let _ = std::fs::remove_dir_all(&path);
    }
}

fn opening(records: Option<u64>, directory: &Path) {
    let records = records.unwrap_or(10_000_000);
    println!("# opening: {records} records of 8/8 bytes");
    let path = fresh(directory);
    let options = || DiskHashOptions { cache_bytes: 0, ..DiskHashOptions::default() };
    let before = resident();
    let hash = DiskHash::open(&path, options()).expect("it opens");
    for n in 0..records {
        hash.visit(&key(n, 8), &mut Set(b"12345678")).expect("it is stored");
        run_maintenance(&hash, n);
    }
    println!(
        "index {:.2} bytes a record; resident {:.2} bytes a record",
        hash.status().index.bytes as f64 / records as f64,
        (resident() - before) / records as f64
    );
    hash.sync().expect("it is synced");
    let killed = path.with_extension("killed");
    let _ = std::fs::remove_dir_all(&killed);
    std::fs::create_dir(&killed).expect("a directory");
    let without = path.with_extension("without");
    let _ = std::fs::remove_dir_all(&without);
    std::fs::create_dir(&without).expect("a directory");
    for entry in std::fs::read_dir(&path).expect("it is there") {
        let from = entry.expect("an entry").path();
        std::fs::copy(&from, killed.join(from.file_name().expect("a name"))).expect("it is copied");
        if from.extension().is_some_and(|ending| ending == "segment") {
            std::fs::hard_link(&from, without.join(from.file_name().expect("a name"))).expect("a link");
        }
    }
    let start = Instant::now();
    hash.close().expect("it closes");
    drop(hash);
    println!("closed in {:.2} s", start.elapsed().as_secs_f64());
    for (name, path) in [("after a close", &path), ("after a kill", &killed), ("no index", &without)] {
        let before = resident();
        let start = Instant::now();
        let hash = DiskHash::open(path, options()).expect("it opens");
        let took = start.elapsed().as_secs_f64();
        assert_eq!(hash.status().records, records);
        println!(
            "{name}: opened in {took:.2} s; index {:.2}, resident {:.2} bytes a record",
            hash.status().index.bytes as f64 / records as f64,
            (resident() - before) / records as f64
        );
        drop(hash);
    }
    for path in [path, killed, without] {
        let _ = std::fs::remove_dir_all(&path);
    }
}

/// Returns a record like those of applications: a user, a cart, or a session.
fn json(n: u64) -> Vec<u8> {
    let x = arbitrary(n);
    let (one, two) = (arbitrary(x), arbitrary(x ^ 1));
    let names = ["Ada", "Grace", "Linus", "Barbara", "Edsger", "Donald", "Margaret", "Ken"];
    let cities = ["Amsterdam", "Berlin", "Cairo", "Dublin", "Kyoto", "Lisbon", "Oslo", "Prague"];
    match n % 3 {
        0 => format!(
            "{{\"id\":{n},\"name\":\"{}\",\"email\":\"{:x}@example.com\",\"city\":\"{}\",\"created_at\":\"2026-{:02}-{:02}T{:02}:{:02}:00Z\",\"active\":{},\"score\":{}}}",
            names[x as usize % 8],
            one >> 40,
            cities[two as usize % 8],
            x % 12 + 1,
            one % 28 + 1,
            two % 24,
            x % 60,
            one.is_multiple_of(2),
            two % 1000
        ),
        1 => {
            let item = |m: u64| {
                let y = arbitrary(x ^ m);
                format!("{{\"sku\":\"{:08x}\",\"quantity\":{},\"price_cents\":{}}}", y >> 32, y % 9 + 1, y % 65_536)
            };
            let items: Vec<String> = (0..x % 4 + 1).map(item).collect();
            let items = items.join(",");
            format!("{{\"cart\":{n},\"currency\":\"EUR\",\"items\":[{items}],\"coupon\":null,\"updated\":{}}}", 1_700_000_000 + one % 90_000_000)
        }
        _ => format!(
            "{{\"session\":\"{one:016x}{two:016x}\",\"user_id\":{},\"ip\":\"10.{}.{}.{}\",\"user_agent\":\"Mozilla/5.0 (X11; Linux x86_64; rv:{}.0) Gecko/20100101 Firefox/{}.0\"}}",
            x % 90_000_000,
            x % 256,
            one % 256,
            two % 256,
            90 + x % 50,
            90 + x % 50
        ),
    }
    .into_bytes()
}

fn packing(records: Option<u64>, directory: &Path) {
    let records = records.unwrap_or(500_000);
    let values: Vec<Vec<u8>> = (0..records).map(json).collect();
    let plain: usize = values.iter().map(Vec::len).sum();
    println!("# packing: {records} records of 16/{} bytes; CPU microseconds each", plain as u64 / records);
    for (name, compression) in [("plain", None), ("zstd", Some(ValueCompression::default()))] {
        let path = fresh(directory);
        let options = DiskHashOptions { compression, ..DiskHashOptions::default() };
        let hash = DiskHash::open(&path, options).expect("it opens");
        let mut longest = Duration::ZERO;
        let mut write = |from: u64| {
            each(records, || {
                for n in 0..records {
                    let value = &values[((n + from) % records) as usize];
                    hash.visit(&key(n, 16), &mut Set(value)).expect("it is stored");
                    if n.is_multiple_of(256) {
                        let start = Instant::now();
                        while hash.maintain() {}
                        longest = longest.max(start.elapsed());
                    }
                }
            })
        };
        let load = write(0);
        let update = write(1);
        let mut sum = 0;
        let get = each(records, || {
            for n in 0..records {
                let key = key(arbitrary(n) % records, 16);
                hash.view(&key, &mut |record| sum += record.value.len()).expect("it is read");
            }
        });
        let usage = hash.disk_usage();
        println!(
            "{name:5}: load {load:.3} update {update:.3} get {get:.3}; live bytes / bytes of values {:.3}, files {:.3}; the longest step of housekeeping {:.0} ms",
            usage.live_bytes as f64 / plain as f64,
            usage.bytes as f64 / plain as f64,
            longest.as_secs_f64() * 1e3
        );
        assert!(sum > 0);
        drop(hash);
        let _ = std::fs::remove_dir_all(&path);
    }
}

fn commits(_: Option<u64>, directory: &Path) {
    println!("# commits: writes a second, each on disk before the next one of its thread");
    for threads in [1, 2, 4, 8, 16] {
        let path = fresh(directory);
        let hash = DiskHash::open(&path, DiskHashOptions::default()).expect("it opens");
        let (done, start) = (AtomicU64::new(0), Instant::now());
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (hash, done) = (&hash, &done);
                scope.spawn(move || {
                    let mut n = 0;
                    while start.elapsed() < Duration::from_secs(2) {
                        hash.visit(&key(thread << 20 | n, 16), &mut Set(&[b'v'; 100])).expect("it is stored");
                        hash.sync().expect("it is synced");
                        n += 1;
                    }
                    done.fetch_add(n, Ordering::Relaxed);
                });
            }
        });
        println!("{threads:2} threads: {:.0}", done.into_inner() as f64 / start.elapsed().as_secs_f64());
        drop(hash);
        let _ = std::fs::remove_dir_all(&path);
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let question = words.first().map_or("all", String::as_str);
    let records: Option<u64> = words.get(1).map(|n| n.parse().expect("a number of records"));
    let directory = words.get(2).map_or_else(std::env::temp_dir, PathBuf::from);
    for (name, ask) in [
        ("speed", speed as fn(Option<u64>, &Path)),
        ("mapped", mapped),
        ("batches", batches),
        ("cold", cold),
        ("scans", scans),
        ("space", space),
        ("opening", opening),
        ("commits", commits),
        ("packing", packing),
    ] {
        if question == name || question == "all" && !["mapped", "cold"].contains(&name) {
            ask(records, &directory);
        }
    }
}
