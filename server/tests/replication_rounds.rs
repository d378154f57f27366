//! Tests that servers that follow each other have the same records after each round of writes,
//! although connections are cut, processes are killed and machines lose power.
//!
//! `cargo xtask test` runs some rounds. `cargo xtask prove replication --rounds N` runs more, in
//! many networks at the same time, because for most of a round a replica only waits before it
//! connects to its master again.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
mod replication_lab;
mod running;

use replication_lab::WAIT_MAX;
use replication_lab::site::{HASH, Records, Site};
use running::Client;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The sites that follow other sites, and the sites to which the test writes.
struct Shape {
    name: &'static str,
    sites: usize,
    links: &'static [(usize, usize)],
    writers: &'static [usize],
}

const SHAPES: [Shape; 3] = [
    Shape { name: "pair", sites: 2, links: &[(0, 1), (1, 0)], writers: &[0, 1] },
    Shape { name: "chain", sites: 3, links: &[(1, 0), (2, 1)], writers: &[0] },
    Shape { name: "two replicas", sites: 3, links: &[(1, 0), (2, 0)], writers: &[0] },
];

/// The number of rounds after which a network is replaced by a new one, so that the disks stay
/// small.
const ROUNDS_EACH: u64 = 50;
const KEYS: u8 = 24;
const LONG: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Nothing,
    LineCut,
    LineHeld,
    PowerLost,
    PowerLostWhereTouched,
    Killed,
    Restarted,
    PositionForgotten,
}

const EVENTS: [Event; 16] = [
    Event::Nothing,
    Event::Nothing,
    Event::Nothing,
    Event::Nothing,
    Event::LineCut,
    Event::LineCut,
    Event::LineHeld,
    Event::LineHeld,
    Event::PowerLost,
    Event::PowerLost,
    Event::PowerLost,
    Event::PowerLostWhereTouched,
    Event::Killed,
    Event::Killed,
    Event::Restarted,
    Event::PositionForgotten,
];

struct Network {
    shape: &'static Shape,
    sites: Vec<Site>,
    keys: Vec<Vec<u8>>,
    random: fastrand::Rng,
}

impl Network {
    fn new(shape: &'static Shape, seed: u64) -> Network {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut site = |number: usize| {
            // After a crash of a hash, its replicas read all records again. If two servers follow
            // each other, a replica may itself have newer records.
            let can_be_hash = shape.links.iter().all(|&(replica, _)| replica != number);
            let kinds = ["mem:hash", "mem:tree", if can_be_hash { HASH } else { "mem:hash" }];
            Site::new(number as u16 + 1, random.choice(kinds).unwrap())
        };
        let mut sites: Vec<Site> = (0..shape.sites).map(&mut site).collect();
        for &(replica, master) in shape.links {
            sites[replica].master = Some(sites[master].line.address);
        }
        sites.iter_mut().for_each(Site::start);
        let keys = shape.writers.iter().flat_map(|&writer| (0..=KEYS).map(move |number| key(writer, number)));
        let network = Network { shape, sites, keys: keys.collect(), random };
        network.settle();
        network
    }

    /// Waits until all sites have a first record, and a later position on disk. If a crash removes
    /// the first records of a log, the log no longer reaches back to its start. A replica without a
    /// position then receives all records, but in a pair or a chain no clear, so records that were
    /// removed would stay there (docs/replication-with-kyoto.md).
    fn settle(&self) {
        for &writer in self.shape.writers {
            self.sites[writer].client().set(&key(writer, 0), b"first");
        }
        assert!(self.converges().is_ok(), "{}: the first record does not come", self.shape.name);
        let since = Instant::now();
        while !self.shape.links.iter().all(|&(replica, _)| self.sites[replica].has_position()) {
            assert!(since.elapsed() < WAIT_MAX, "{}: no position is kept", self.shape.name);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns true if no master of this site follows another one. Only such a master sends a clear
    /// if necessary.
    fn may_forget(&self, at: usize) -> bool {
        let links = self.shape.links;
        let follows = |site: usize| links.iter().any(|&(replica, _)| replica == site);
        links.iter().all(|&(replica, master)| replica != at || !follows(master))
    }

    fn round(&mut self) -> Event {
        let event = EVENTS[self.random.usize(..EVENTS.len())];
        self.write_some();
        let at = self.random.usize(..self.sites.len());
        match event {
            Event::Nothing => {}
            Event::LineCut => self.sites[at].line.cut(),
            Event::LineHeld => {
                self.sites[at].line.hold();
                self.write_some();
                self.sites[at].line.cut();
                self.sites[at].line.release();
            }
            Event::PowerLost | Event::Killed => self.crash(at, event == Event::PowerLost),
            Event::PowerLostWhereTouched => self.lose_what_was_touched(),
            Event::Restarted => self.sites[at].stop(),
            Event::PositionForgotten => {
                self.sites[at].stop();
                if self.may_forget(at) {
                    self.sites[at].forget_position();
                }
            }
        }
        if matches!(event, Event::Restarted | Event::PositionForgotten) {
            // The other sites go on.
            self.write_some();
            self.sites[at].start();
        }
        self.write_some();
        event
    }

    /// Crashes a site at an arbitrary moment of the others' work.
    fn crash(&mut self, at: usize, power_is_lost: bool) {
        std::thread::sleep(Duration::from_millis(self.random.u64(..150)));
        let seed = self.random.u64(..);
        self.sites[at].crash(power_is_lost.then_some(seed));
        self.write_some();
        self.sites[at].start();
    }

    /// Touches records that a replica reads over a slow connection when it returns. The values of
    /// these records change before they are sent, and the master loses power before the change is
    /// on disk.
    fn lose_what_was_touched(&mut self) {
        let (replica, master) = self.shape.links[self.random.usize(..self.shape.links.len())];
        if !self.shape.writers.contains(&master) {
            return;
        }
        self.sites[replica].stop();
        let mut client = self.sites[master].client();
        let (touched, filler) = (key(master, 0), key(master, KEYS));
        client.set(&touched, b"before");
        (0..16).for_each(|number| client.set(&filler, &vec![number; LONG]));
        client.send(&[b"touch ", &touched[..], b" 100000\r\n"].concat());
        client.expect(b"TOUCHED\r\n");
        client.set(&filler, b"");
        self.sites[master].line.hold();
        self.sites[replica].start();
        // The limit ends the loop if the replica does not connect at all.
        let since = Instant::now();
        while !self.sites[master].line.keeps_something_back() && since.elapsed() < WAIT_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
        client.set(&touched, b"after");
        self.sites[master].line.release();
        let mut reader = self.sites[replica].client();
        let gets = [b"get ", &touched[..], b"\r\n"].concat();
        let since = Instant::now();
        loop {
            reader.send(&gets);
            let line = reader.line();
            let has_come = line != "END\r\n" && reader.line() == "after\r\n";
            if line != "END\r\n" {
                reader.expect(b"END\r\n");
            }
            if has_come || since.elapsed() > WAIT_MAX {
                break;
            }
        }
        let seed = self.random.u64(..);
        self.sites[master].crash(Some(seed));
        self.sites[master].start();
    }

    fn write_some(&mut self) {
        for &writer in self.shape.writers {
            if !self.sites[writer].runs() {
                continue;
            }
            let mut client = self.sites[writer].client();
            for _ in 0..self.random.usize(..12) {
                write(&mut client, writer, &mut self.random);
            }
        }
    }

    /// Waits until all sites have the same records. Fails with the records of each site.
    fn converges(&self) -> Result<(), Vec<Records>> {
        let since = Instant::now();
        loop {
            let all: Vec<Records> = self.sites.iter().map(|site| site.records(&self.keys)).collect();
            if all.iter().all(|records| *records == all[0]) {
                return Ok(());
            }
            if since.elapsed() > WAIT_MAX {
                return Err(all);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn key(writer: usize, number: u8) -> Vec<u8> {
    format!("site{writer}-{number}").into_bytes()
}

/// Sends one write, of one of many kinds. Each site writes to keys of its own, because writes of
/// several sites to the same key have no common order.
fn write(client: &mut Client, writer: usize, random: &mut fastrand::Rng) {
    let key = key(writer, random.u8(..KEYS));
    let value: Vec<u8> = (0..random.usize(1..200)).map(|_| random.u8(b'0'..=b'9')).collect();
    let store = |verb: &str, time: u32| {
        let head = format!("{verb} {} 0 {time} {}\r\n", String::from_utf8_lossy(&key), value.len());
        [head.as_bytes(), &value, b"\r\n"].concat()
    };
    let words = |line: &str| line.replace("KEY", std::str::from_utf8(&key).unwrap()).into_bytes();
    let request = match random.u8(..12) {
        0..3 => store("set", 0),
        3 => store("set", 200_000),
        4 => store("append", 0),
        5 => store("add", 0),
        6 | 7 => words("touch KEY 100000\r\n"),
        8 => words("touch KEY 0\r\n"),
        9 => words("delete KEY\r\n"),
        10 => words("mg KEY T300000\r\n"),
        _ => store("replace", 300_000),
    };
    client.send(&request);
    let answer = client.line();
    assert!(!answer.contains("ERROR"), "{answer}");
}

/// Runs rounds in networks of different kinds until `rounds` are done.
fn run(seed: u64, done: &AtomicU64, rounds: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    while done.load(Ordering::SeqCst) < rounds {
        let shape = &SHAPES[random.usize(..SHAPES.len())];
        let mut network = Network::new(shape, random.u64(..));
        let mut events = Vec::new();
        for _ in 0..ROUNDS_EACH {
            if done.fetch_add(1, Ordering::SeqCst) >= rounds {
                return;
            }
            events.push(network.round());
            if let Err(all) = network.converges() {
                let differs =
                    |key: &&Vec<u8>| all.iter().any(|records| records.get(*key) != all[0].get(*key));
                for key in network.keys.iter().filter(differs) {
                    let shown = |records: &Records| {
                        let (time, value) = records.get(key)?;
                        Some((*time, String::from_utf8_lossy(&value[..value.len().min(20)]).into_owned()))
                    };
                    let shown = all.iter().map(shown).collect::<Vec<_>>();
                    eprintln!("{}: {shown:?}", String::from_utf8_lossy(key));
                }
                panic!("{}: they differ for ever after {events:?}", shape.name);
            }
        }
    }
}

#[test]
fn servers_converge_after_each_round_of_faults() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let rounds = number("TODANA_ROUNDS").unwrap_or(64);
    let seed = number("TODANA_SEED").unwrap_or_else(|| fastrand::u64(..));
    let networks = if rounds > 1_000 { 32 } else { 8 };
    println!("{rounds} rounds in {networks} networks at a time, TODANA_SEED={seed}");
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..networks {
            let done = &done;
            scope.spawn(move || run(seed.wrapping_add(number), done, rounds));
        }
    });
}
