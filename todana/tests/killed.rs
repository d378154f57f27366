//! The state after a process that wrote through the library was killed. Every acknowledged write
//! must exist, each transaction completely or not at all, and nothing that was never written.
//!
//! `TODANA_KILLS=200` kills this number of processes for each kind of database.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "../../tests/table_indexes/mod.rs"]
mod table_indexes;
mod writes;

use crash_disk::Dice;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{DataOptions, Db, DbOptions, Records};
use writes::{FoundRecords, SHORT};

const NAME: &str = "TODANA_TEST_KILLED_NAME";
const FOLDER: &str = "TODANA_TEST_KILLED_FOLDER";
const KNOWN: &str = "TODANA_TEST_KILLED_KNOWN";
const SYNC: &str = "TODANA_TEST_KILLED_SYNC";
/// With this interval, nothing is synced while the process runs.
const HOURLY: SyncPolicy = SyncPolicy::Every(Duration::from_secs(3600));
const WRITERS: u64 = 6;
/// A database of numbered records whose values are in an array.
const ARRAY: &str = "mem:fixed#width=64";
/// If the process is not killed, it ends after this number of writes.
const WRITES_MAX: u64 = 100_000;

fn open(name: &str, folder: &Path, sync: SyncPolicy) -> Db {
    // Segments are small, so that they are created and removed all the time.
    let log = LogOptions { sync, segment_len: 64 << 10, recent_max: 16 << 10, ..LogOptions::default() };
    let options = DbOptions::default().data_options(DataOptions { log, ..DataOptions::default() });
    match name.starts_with("mem:") {
        true => options.data_dir(folder.join("data")).open(name),
        false => options.open(folder.join(name).to_str().unwrap()),
    }
    .unwrap()
}

/// Returns the number of the first writer of a database.
fn first_writer(name: &str) -> u64 {
    if name == ARRAY { SHORT + 1 } else { 1 }
}

/// Returns the number of writes of each writer: the acknowledged ones, and possibly one more.
fn counts(name: &str, found: &FoundRecords, acknowledged: &[u64]) -> Vec<u64> {
    let mut expected = FoundRecords::new();
    let counts = acknowledged.iter().zip(first_writer(name)..).map(|(&acknowledged, writer)| {
        let own = format!("{writer}:").into_bytes();
        let differs = |expected: &FoundRecords| {
            let own = |(key, _): &(&Vec<u8>, _)| key.starts_with(&own);
            !found.iter().filter(own).eq(expected.iter().filter(own))
        };
        (1..=acknowledged).for_each(|number| writes::note(&mut expected, writer, number));
        if !differs(&expected) {
            return acknowledged;
        }
        let lacks_last = expected.clone();
        writes::note(&mut expected, writer, acknowledged + 1);
        assert!(
            !differs(&expected),
            "writer {writer}, {acknowledged} writes acknowledged: {}",
            writes::difference(found, &lacks_last)
        );
        acknowledged + 1
    });
    let counts = counts.collect();
    assert!(*found == expected, "{counts:?}: {}", writes::difference(found, &expected));
    counts
}

/// The program of the process that is killed: this test binary, started again with the name of a
/// database.
#[test]
fn writes_until_it_is_killed() {
    let (Ok(name), Some(folder), Ok(known)) =
        (std::env::var(NAME), std::env::var_os(FOLDER), std::env::var(KNOWN))
    else {
        return;
    };
    let sync = if std::env::var_os(SYNC).is_some() { SyncPolicy::Always } else { HOURLY };
    let db = open(&name, folder.as_ref(), sync);
    writes::check_indexes(&db);
    let known: Vec<u64> = known.split(',').map(|count| count.parse().unwrap()).collect();
    let counts = counts(&name, &writes::found(&db), &known);
    // Each line is one system call, so it is printed completely or not at all.
    let say = |line: String| std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
    let texts: Vec<String> = counts.iter().map(u64::to_string).collect();
    say(format!("begins {}", texts.join(",")));
    let first = first_writer(&name);
    std::thread::scope(|scope| {
        for (count, writer) in counts.into_iter().zip(first..) {
            let db = &db;
            scope.spawn(move || {
                for number in count + 1..=count + WRITES_MAX {
                    writes::make(db, writer, number).unwrap();
                    say(format!("made {writer} {number}"));
                    if writer == first && number % 61 == 0 {
                        db.checkpoint().unwrap();
                    }
                }
            });
        }
    });
}

fn kill_again_and_again(name: &str, sync: SyncPolicy) {
    let folder = tempfile::tempdir().unwrap();
    let kills: u64 = std::env::var("TODANA_KILLS").map_or(10, |kills| kills.parse().unwrap());
    let seed = std::env::var("TODANA_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut dice = Dice::new(seed);
    let mut acknowledged = vec![0; WRITERS as usize];
    let (mut unacknowledged, mut unbegun) = (0, 0);
    for kill in 1..=kills {
        let texts: Vec<String> = acknowledged.iter().map(u64::to_string).collect();
        let mut command = Command::new(std::env::current_exe().unwrap());
        if sync == SyncPolicy::Always {
            command.env(SYNC, "always");
        }
        let mut child = command
            .args(["--exact", "writes_until_it_is_killed", "--nocapture", "--quiet"])
            .env(NAME, name)
            .env(FOLDER, folder.path())
            .env(KNOWN, texts.join(","))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut begun = false;
        let mut hear = |line: String| {
            if let Some(counts) = line.strip_prefix("begins ") {
                let counts = counts.split(',').map(|count| count.parse::<u64>().unwrap());
                let counts: Vec<u64> = counts.collect();
                unacknowledged += counts.iter().sum::<u64>() - acknowledged.iter().sum::<u64>();
                acknowledged = counts;
                begun = true;
            } else if let Some(made) = line.strip_prefix("made ") {
                let (writer, number) = made.split_once(' ').unwrap();
                acknowledged[(writer.parse::<u64>().unwrap() - first_writer(name)) as usize] =
                    number.parse().unwrap();
            } else {
                return false;
            }
            true
        };
        // Most processes are killed while they write, some while they open the database of the
        // process before.
        let wanted = if dice.roll(5) == 0 { 0 } else { 1 + dice.roll(400) };
        let mut heard = 0;
        while heard < wanted {
            let line = lines.next().expect("it writes on until it is killed");
            heard += u64::from(hear(line));
        }
        let moment_us = if wanted == 0 { 25_000 } else { 2_000 };
        std::thread::sleep(Duration::from_micros(dice.roll(moment_us)));
        child.kill().unwrap();
        // These lines were printed before the kill.
        for line in lines {
            hear(line);
        }
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "kill {kill}: it ended by itself, with {status}");
        unbegun += u64::from(!begun);
    }
    let db = open(name, folder.path(), sync);
    writes::check_indexes(&db);
    let counts = counts(name, &writes::found(&db), &acknowledged);
    let writes: u64 = counts.iter().sum();
    eprintln!(
        "{name}, {sync:?}: {kills} kills, {unbegun} of them while it opened; {writes} writes there, {unacknowledged} of them unacknowledged"
    );
    assert!(writes > kills);
    // The database accepts writes.
    db.set(b"after:9", b"1").unwrap();
    drop(db);
    assert_eq!(open(name, folder.path(), sync).get(b"after:9").unwrap().as_deref(), Some(&b"1"[..]));
    fs::remove_dir_all(folder.path()).unwrap();
}

#[test]
fn killed_logged_mem_hash_keeps_acknowledged_writes() {
    kill_again_and_again("mem:hash", SyncPolicy::Always);
}

#[test]
fn killed_logged_mem_tree_keeps_acknowledged_writes() {
    kill_again_and_again("mem:tree", SyncPolicy::Always);
}

#[test]
fn killed_hash_on_disk_has_what_was_acknowledged() {
    kill_again_and_again("x.hash", SyncPolicy::Always);
}

#[test]
fn killed_tree_on_disk_has_what_was_acknowledged() {
    kill_again_and_again("x.tree", SyncPolicy::Always);
}

// With `--sync` and any time, a killed process once lost the acknowledged writes that it had not
// passed to the system: those of up to the last second. Kyoto Cabinet and Kyoto Tycoon lose none.

#[test]
fn killed_unsynced_mem_hash_keeps_acknowledged_writes() {
    kill_again_and_again("mem:hash", HOURLY);
}

#[test]
fn killed_unsynced_mem_tree_keeps_acknowledged_writes() {
    kill_again_and_again("mem:tree", HOURLY);
}

#[test]
fn killed_unsynced_disk_hash_keeps_acknowledged_writes() {
    kill_again_and_again("x.hash", HOURLY);
}

#[test]
fn killed_unsynced_disk_tree_keeps_acknowledged_writes() {
    kill_again_and_again("x.tree", HOURLY);
}

#[test]
fn killed_logged_mem_table_keeps_writes_and_indexes() {
    kill_again_and_again("mem:table", HOURLY);
}

#[test]
fn killed_table_on_disk_keeps_writes_and_indexes() {
    kill_again_and_again("x.table", SyncPolicy::Always);
}

#[test]
fn killed_logged_mem_fixed_keeps_acknowledged_writes() {
    kill_again_and_again(ARRAY, HOURLY);
    kill_again_and_again("mem:fixed#width=200k#limsiz=1t", SyncPolicy::Always);
}

#[test]
fn killed_fixed_on_disk_keeps_acknowledged_writes() {
    kill_again_and_again("x.fixed#width=200k#limsiz=1t", SyncPolicy::Always);
    kill_again_and_again("x.fixed#width=200k#limsiz=1t", HOURLY);
}
