//! Tests both sides of Todana's own protocol over a simulated network, clock and disk. A seed
//! decides on every write, cut, loss and death.
//!
//! The servers of a simulation are databases with their logs, without sockets and threads of their
//! own. `TODANA_SEEDS` sets the number of simulations, `TODANA_SEED` the first seed.

#[path = "../../../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "failover_simulation.rs"]
mod failover;

use super::master_side::{HeartbeatTimes, LoggedDatabase, MasterSide};
use super::positions::{OwnIds, PositionFile, PositionKeeper};
use super::replica_side::{EMPTY_ONE, FollowedDatabase, ReplicaSide, StreamError, StreamEvent};
use crash_disk::CrashDisk;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use todana::checkpoint::CheckpointOptions;
use todana::update_log::{Epoch, EpochPlace, EpochStart, LogOptions, SyncPolicy};
use todana::{
    Clock, DataDirectory, DataOptions, Database, EpochHistory, ManualClock, UnixSeconds, WorkerCounters,
};
use todana_core::{
    Arithmetic, Attributes, Delete, Engine, Get, MemoryLimit, Operation, ReplyNeeds, Store, StoreMode, Touch,
    Ttl, WhenFull,
};
use todana_engine::{MemHash, MemHashOptions, MemTree, MemTreeOptions};
use todana_protocol::replication::{
    FrameDecoder, GREETING, LogEnd, LogPlace, MasterMessage, ReplicaHello, ReplicaMessage,
};

const KEYS: u64 = 12;
const STEPS: u32 = 120;
/// The most bytes that a connection holds in one direction.
const NETWORK_MAX: usize = 64 << 10;

/// The masters of each server, and the servers with clients.
struct ReplicationShape {
    masters: &'static [Option<usize>],
    writers: &'static [usize],
}

const SHAPES: [ReplicationShape; 4] = [
    ReplicationShape { masters: &[None, Some(0)], writers: &[0] },
    ReplicationShape { masters: &[None, Some(0), Some(1)], writers: &[0] },
    ReplicationShape { masters: &[None, Some(0), Some(0)], writers: &[0] },
    ReplicationShape { masters: &[Some(1), Some(0)], writers: &[0, 1] },
];

struct SimulatedServer {
    index: usize,
    is_tree: bool,
    is_pair: bool,
    /// True if checkpoints remove no log.
    keeps_log: bool,
    master: Option<usize>,
    disk: CrashDisk,
    clock: Arc<ManualClock>,
    was_emptied: bool,
    running: Option<RunningNode>,
}

struct RunningNode {
    database: Arc<Database>,
    directory: Arc<DataDirectory>,
    counters: Arc<WorkerCounters>,
    side: Option<ReplicaSide>,
    keeper: PositionKeeper,
}

/// A connection of a replica to its master.
#[derive(Default)]
struct SimulatedLink {
    master: Option<MasterSide>,
    to_master: Vec<u8>,
    to_replica: Vec<u8>,
    has_greeted: bool,
    is_accepted: bool,
}

type RecordsByKey = BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>;

impl SimulatedServer {
    fn start(&mut self) {
        let engine: Box<dyn Engine> = match self.is_tree {
            true => Box::new(MemTree::new(MemTreeOptions::default()).unwrap()),
            false => {
                // A replica takes over the seed of an image, and its buckets if it has as many
                // shards.
                let (seed, shards) = (Some(self.index as u64), Some(1 << (self.index / 2)));
                let options = MemHashOptions { seed, shards, ..MemHashOptions::default() };
                Box::new(MemHash::new(options).unwrap())
            }
        };
        let clock: Arc<dyn Clock> = Arc::clone(&self.clock) as _;
        let database = Arc::new(Database::new(engine, Arc::clone(&clock)));
        let disk = Arc::new(self.disk.clone());
        let directory = Arc::new(DataDirectory::open(disk.clone(), Path::new("/data")).unwrap());
        let log = LogOptions {
            sync: SyncPolicy::Every(std::time::Duration::from_secs(3600)),
            segment_len: 4 << 10,
            recent_max: 64 << 10,
            reserve_bytes: 0,
            ..LogOptions::default()
        };
        // A pair must not lose log, because its servers have changes of their own clients.
        let log_kept_len = if self.is_pair || self.keeps_log { 1 << 30 } else { 0 };
        let checkpoints = CheckpointOptions { rests: 0, log_kept_len, ..CheckpointOptions::default() };
        directory.restore(&database, clock, &DataOptions { log, checkpoints }, &mut |_| ()).unwrap();
        let file = PositionFile::new(disk, "/data/replica-position".into());
        let own_id = Some(directory.identity().database_id);
        let (keeper, outcome) =
            PositionKeeper::open(Some(file), vec![OwnIds { found: own_id, left: own_id }]);
        outcome.unwrap();
        let counters = database.worker_counters();
        let side = self.master.map(|_| {
            let stored = keeper.state(0, 0);
            let followed = FollowedDatabase::new(0, &database, &counters, stored, self.is_pair);
            let followed = followed.in_directory(Arc::clone(&directory), stored);
            ReplicaSide::new(self.id(), 0, vec![followed])
        });
        self.running = Some(RunningNode { database, directory, counters, side, keeper });
    }

    fn id(&self) -> u16 {
        self.index as u16 + 1
    }

    /// Ends the process, and perhaps the power of the machine.
    fn end(&mut self, power_lost: Option<u64>) {
        self.disk.stop();
        let left = self.disk.state();
        self.running = None;
        self.disk = CrashDisk::with(power_lost.map_or_else(|| left.clone(), |seed| left.reboot(seed)));
    }

    fn end_of_log(&self) -> LogPlace {
        let RunningNode { database, directory, .. } = self.running();
        let position = database.log().map_or(0, |log| log.end().0);
        LogPlace { database_id: directory.identity().database_id, position }
    }

    /// Replaces the disk by an empty one.
    fn lose_disk(&mut self) {
        self.disk = CrashDisk::new();
        self.was_emptied = true;
    }

    /// Returns false until a server whose disk was replaced has copied the records of the other:
    /// its clients must wait for that (docs/replication.md).
    fn may_write(&self) -> bool {
        !self.was_emptied || self.is_whole()
    }

    /// Returns true if it is not in the middle of a copy.
    fn is_whole(&self) -> bool {
        let side = self.running().side.as_ref();
        side.is_none_or(|side| side.databases.iter().all(|one| one.place.is_some()))
    }

    fn running(&self) -> &RunningNode {
        self.running.as_ref().expect("it runs between steps")
    }

    /// Notes that a master of this epoch exists.
    fn supersede(&self, epoch: Epoch) {
        let directory = &self.running().directory;
        let history = EpochHistory { superseded_by: epoch, ..directory.epochs() };
        directory.store_epochs(history).unwrap();
    }

    /// Returns the records that have not expired.
    fn records(&self) -> RecordsByKey {
        let now = self.clock.now();
        let mut records = RecordsByKey::new();
        let mut place = None;
        loop {
            place = self
                .running()
                .database
                .engine()
                .scan(place, &mut |key, record| {
                    if record.attributes.expiry.is_live(now) {
                        let attributes = Attributes { access: None, ..record.attributes };
                        records.insert(key.to_vec(), (record.value.to_vec(), attributes));
                    }
                    ControlFlow::Continue(())
                })
                .unwrap();
            if place.is_none() {
                return records;
            }
        }
    }

    fn write(&self, random: &mut fastrand::Rng) {
        let RunningNode { database, counters, .. } = self.running();
        let key = format!("{}-{}", self.index, random.u64(..KEYS)).into_bytes();
        let key = &key[..];
        let len_max = if random.u8(..20) == 0 { 9000 } else { 60 };
        let value = vec![random.u8(b'0'..=b'9'); random.usize(..len_max)];
        let ttl = match random.u8(..5) {
            // A server of a pair removes expired records by its own clock, so a touch may come too
            // late (docs/replication.md).
            0 | 1 if self.is_pair => Ttl::Seconds(200_000),
            0 => Ttl::Seconds(random.u32(1..30)),
            1 => Ttl::Sliding(random.u32(1..30)),
            2 => Ttl::Seconds(100_000),
            _ => Ttl::Never,
        };
        let flags = if random.bool() { 0 } else { random.u32(..) };
        let needs = ReplyNeeds { version: random.bool(), access: false };
        let store = Store { key, value: &value, flags, ttl, needs, ..Store::default() };
        let operation = match random.u8(..16) {
            0..6 => Operation::Store(store),
            6 => Operation::Store(Store { mode: StoreMode::Append, ..store }),
            7 => Operation::Store(Store { compare: Some(1), stale_if_older: true, ..store }),
            8 => Operation::Delete(Delete { key, ..Delete::default() }),
            9 => Operation::Delete(Delete { key, mark_stale: true, ..Delete::default() }),
            10 => Operation::Touch(Touch { key, ttl }),
            11 => Operation::Get(Get { key, touch: Some(ttl), needs, ..Get::default() }),
            12 => Operation::Get(Get { key, needs, recache_below_s: Some(9), ..Get::default() }),
            13 => Operation::Arithmetic(Arithmetic { key, vivify: Some(ttl), ..Arithmetic::default() }),
            14 if !self.is_pair && random.u8(..4) == 0 => {
                Operation::Flush { at: if random.bool() { Ttl::Never } else { Ttl::Seconds(5) } }
            }
            14 => {
                let transaction = database.begin(counters).unwrap();
                transaction.run(&Operation::Store(store), &mut |_| ());
                let other = format!("{}-{}", self.index, random.u64(..KEYS)).into_bytes();
                transaction.run(&Operation::Delete(Delete { key: &other, ..Delete::default() }), &mut |_| ());
                transaction.commit_without_wait().unwrap();
                return;
            }
            _ => Operation::Get(Get { key, ..Get::default() }),
        };
        database.execute(counters, &operation, &mut |_| ());
        if let Some(limit) = database.log().filter(|log| log.is_backlogged()) {
            limit.wait(limit.end()).unwrap();
        }
    }
}

struct NetworkSimulation {
    nodes: Vec<SimulatedServer>,
    shape: &'static ReplicationShape,
    /// The connection of each replica.
    connections: Vec<Option<SimulatedLink>>,
    clock: Arc<ManualClock>,
    random: fastrand::Rng,
    copies: u32,
    has_lost_disk: bool,
    /// The number of steps, which is the clock of the replicas.
    steps: u64,
    /// For each step, the place at which the log of each server ended after it.
    ends: Vec<Vec<LogPlace>>,
    /// The last reason for which each replica has closed its connection.
    errors: Vec<Option<StreamError>>,
}

impl NetworkSimulation {
    fn new(seed: u64) -> NetworkSimulation {
        let mut random = fastrand::Rng::with_seed(seed);
        let shape = &SHAPES[random.usize(..SHAPES.len())];
        NetworkSimulation::of_shape(shape, random)
    }

    fn of_shape(shape: &'static ReplicationShape, mut random: fastrand::Rng) -> NetworkSimulation {
        let clock = Arc::new(ManualClock::new(UnixSeconds(1_800_000_000)));
        let is_pair = shape.writers.len() > 1;
        let mut nodes = Vec::new();
        for (index, &master) in shape.masters.iter().enumerate() {
            let (disk, clock) = (CrashDisk::new(), Arc::clone(&clock));
            let is_tree = random.bool();
            let (was_emptied, running) = (false, None);
            let mut node = SimulatedServer {
                index,
                is_tree,
                is_pair,
                keeps_log: false,
                master,
                disk,
                clock,
                was_emptied,
                running,
            };
            node.start();
            nodes.push(node);
        }
        let connections = nodes.iter().map(|_| None).collect();
        let errors = nodes.iter().map(|_| None).collect();
        NetworkSimulation {
            nodes,
            shape,
            connections,
            clock,
            random,
            copies: 0,
            has_lost_disk: false,
            steps: 0,
            ends: Vec::new(),
            errors,
        }
    }

    fn begin_step(&mut self) {
        self.ends.push(self.nodes.iter().map(SimulatedServer::end_of_log).collect());
        self.steps += 1;
    }

    fn step(&mut self) {
        self.begin_step();
        let random = &mut self.random;
        let at = random.usize(..self.nodes.len());
        match random.u8(..32) {
            0..12 => {
                let writer = self.shape.writers[random.usize(..self.shape.writers.len())];
                let count = if self.nodes[writer].may_write() { random.u8(1..6) } else { 0 };
                for _ in 0..count {
                    self.nodes[writer].write(random);
                }
            }
            12..24 => self.run_link(at, false),
            24 => self.connections[at] = None,
            25 => self.corrupt(at),
            26 => self.store(at),
            27 => self.clock.advance(random.u64(1..6)),
            28 => drop(self.nodes[at].running().database.maintain()),
            29 => {
                let RunningNode { directory, database, .. } = self.nodes[at].running();
                directory.checkpoint(database).unwrap();
            }
            _ => {
                let power_lost = random.bool().then(|| random.u64(..));
                self.nodes[at].end(power_lost);
                // A copy that is cut by the loss of its source cannot be completed.
                let other_is_whole = self.nodes.iter().all(|node| node.index == at || node.is_whole());
                if self.nodes[at].is_pair && other_is_whole && !self.has_lost_disk && random.u8(..4) == 0 {
                    self.nodes[at].lose_disk();
                    self.has_lost_disk = true;
                }
                self.nodes[at].start();
                self.connections[at] = None;
                self.cut_replicas(at);
            }
        }
    }

    /// Closes the connections of the replicas of a server.
    fn cut_replicas(&mut self, at: usize) {
        for (node, connection) in self.nodes.iter().zip(&mut self.connections) {
            if node.master == Some(at) {
                *connection = None;
            }
        }
    }

    fn corrupt(&mut self, at: usize) {
        if let Some(connection) = &mut self.connections[at]
            && !connection.to_replica.is_empty()
        {
            let byte = self.random.usize(..connection.to_replica.len());
            connection.to_replica[byte] ^= 1 << self.random.u8(..8);
        }
    }

    fn store(&mut self, at: usize) {
        let running = self.nodes[at].running.as_mut().expect("it runs between steps");
        if let Some(side) = &mut running.side {
            running.keeper.store(&mut side.databases).unwrap();
        }
    }

    /// Moves some bytes between a replica and its master, or all of them.
    fn run_link(&mut self, at: usize, moves_all: bool) {
        let Some(master) = self.nodes[at].master else { return };
        if self.connections[at].is_none() {
            let side = self.nodes[at].running.as_mut().and_then(|running| running.side.as_mut());
            let side = side.expect("it follows a master");
            side.reset();
            let mut connection = SimulatedLink::default();
            side.put_greeting(b"", b"", &mut connection.to_master);
            self.connections[at] = Some(connection);
        }
        let mut connection = self.connections[at].take().expect("it was made above");
        self.run_master(master, &mut connection);
        if self.run_replica(at, &mut connection, moves_all) {
            self.connections[at] = Some(connection);
        }
    }

    fn run_master(&mut self, master: usize, connection: &mut SimulatedLink) {
        let node = &self.nodes[master];
        if !connection.has_greeted {
            let mut frames = FrameDecoder::default();
            frames.push(&connection.to_master[GREETING.len()..]);
            let hello = ReplicaHello::read(frames.next_content().unwrap().unwrap()).unwrap();
            let RunningNode { database, directory, .. } = node.running();
            let (database, directory) = (Arc::clone(database), Arc::clone(directory));
            let source = LoggedDatabase { database, directory };
            let epoch = source.directory.epochs().epoch().0;
            let is_related = hello.databases.iter().any(|request| source.shares_log(&request.path));
            if hello.epoch > epoch && node.master.is_none() && is_related {
                node.supersede(Epoch(hello.epoch));
            }
            let find = |_| Ok(source.clone());
            let side = MasterSide::accept(&hello, node.id(), epoch, &find, &mut connection.to_replica);
            connection.master = side.ok();
            connection.to_master.clear();
            connection.has_greeted = true;
            return;
        }
        let Some(side) = &mut connection.master else { return };
        let mut frames = FrameDecoder::default();
        frames.push(&std::mem::take(&mut connection.to_master));
        while let Some(content) = frames.next_content().unwrap() {
            side.note(ReplicaMessage::read(content).unwrap()).unwrap();
        }
        let to_replica = &mut connection.to_replica;
        if to_replica.len() < NETWORK_MAX {
            let now = self.clock.now();
            let removal_s = side.removal_s(now);
            let times = HeartbeatTimes { time_ms: now.0 * 1000, removal_s, age_us: 0 };
            side.send_due(&mut |bytes| {
                to_replica.extend_from_slice(bytes);
                Ok(())
            })
            .unwrap();
            side.put_heartbeat(&times, to_replica);
        }
    }

    /// Delivers bytes of the master. Returns false if the replica closes the connection.
    fn run_replica(&mut self, at: usize, connection: &mut SimulatedLink, moves_all: bool) -> bool {
        let master = self.nodes[at].master.expect("it follows a master");
        let running = self.nodes[at].running.as_mut().expect("it runs between steps");
        let side = running.side.as_mut().expect("it follows a master");
        let waiting = connection.to_replica.len();
        let len = if moves_all { waiting } else { self.random.usize(..=waiting) };
        side.push(&connection.to_replica[..len]);
        connection.to_replica.drain(..len);
        loop {
            match side.next_event() {
                Ok(None) => break,
                Ok(Some(StreamEvent::Received | StreamEvent::Applied | StreamEvent::Heartbeat)) => {}
                Ok(Some(event)) => {
                    connection.is_accepted |= matches!(event, StreamEvent::Accepted { .. });
                    self.copies += u32::from(matches!(event, StreamEvent::Copied { .. }));
                    running.keeper.store(&mut side.databases).unwrap();
                }
                Err(error) => {
                    if std::env::var("TODANA_TRACE").is_ok() {
                        eprintln!("{at}: {error:?}");
                    }
                    self.errors[at] = Some(error);
                    return false;
                }
            }
        }
        for followed in &side.databases {
            let Some(step) = followed.fresh_at_us.checked_sub(1) else { continue };
            let ended = self.ends[step as usize][master];
            let place = followed.place.expect("its records are known");
            let is_fresh = place.database_id != ended.database_id || place.position >= ended.position;
            assert!(is_fresh, "{place:?} at step {step}, not {ended:?}");
        }
        if connection.to_master.len() < NETWORK_MAX && connection.is_accepted {
            let positions = side.positions();
            side.put_positions(self.steps, positions, &mut connection.to_master);
        }
        true
    }

    /// Lets all replicas receive everything, and compares the records.
    fn expect_equal(&mut self, seed: u64) {
        let has_all = |node: &SimulatedServer| {
            let side = node.running().side.as_ref();
            side.is_none_or(|side| side.databases.iter().all(FollowedDatabase::has_all))
        };
        // A changed length can make a replica wait for bytes that never come, until its time limit.
        self.connections.iter_mut().for_each(|connection| *connection = None);
        // A change passes one link after another, and a pair sends it back.
        for round in 0.. {
            self.begin_step();
            (0..self.nodes.len()).for_each(|at| self.run_link(at, true));
            if round > 8 && self.nodes.iter().all(has_all) {
                break;
            }
            assert!(round < 100, "seed {seed}: a replica does not catch up");
        }
        let all: Vec<RecordsByKey> = self.nodes.iter().map(SimulatedServer::records).collect();
        for (node, records) in self.nodes.iter().zip(&all) {
            let differs = |key: &&Vec<u8>| records.get(*key) != all[0].get(*key);
            let mut keys = records.keys().chain(all[0].keys());
            if let Some(key) = keys.find(differs) {
                panic!(
                    "seed {seed}: server {} has {:?} for {}, not {:?}",
                    node.index,
                    records.get(key),
                    key.escape_ascii(),
                    all[0].get(key)
                );
            }
        }
    }
}

fn pair() -> NetworkSimulation {
    NetworkSimulation::of_shape(&SHAPES[3], fastrand::Rng::with_seed(1))
}

fn execute(node: &SimulatedServer, operation: &Operation<'_>) {
    let RunningNode { database, counters, .. } = node.running();
    database.execute(counters, operation, &mut |_| ());
}

fn set(node: &SimulatedServer, key: &[u8]) {
    execute(node, &Operation::Store(Store { key, value: b"1", ..Store::default() }));
}

/// The records of a server that wrote alone at first must not be removed by a flush in the history
/// of the other.
#[test]
fn flush_in_a_log_removes_no_own_records() {
    let mut simulation = pair();
    set(&simulation.nodes[0], b"before");
    execute(&simulation.nodes[0], &Operation::Flush { at: Ttl::Never });
    set(&simulation.nodes[0], b"after");
    set(&simulation.nodes[1], b"own");
    for restarts in [false, true] {
        (0..4).for_each(|_| {
            simulation.begin_step();
            simulation.run_link(1, true);
        });
        let records = simulation.nodes[1].records();
        assert!(records.contains_key(&b"own"[..]) && !records.contains_key(&b"after"[..]), "{records:?}");
        if !restarts {
            simulation.nodes[1].end(None);
            simulation.nodes[1].start();
            simulation.connections[1] = None;
        }
    }
}

/// A first copy that is cut off is continued by another one, also after the death of the server.
#[test]
fn cut_copy_is_repeated_in_a_pair() {
    for dies in [false, true] {
        let mut simulation = pair();
        let (mut random, mut value) = (fastrand::Rng::with_seed(2), [0; 500]);
        for n in 0..2000 {
            random.fill(&mut value);
            let key = format!("key{n}").into_bytes();
            let store = Store { key: &key, value: &value, ..Store::default() };
            execute(&simulation.nodes[0], &Operation::Store(store));
        }
        // The greeting, its answer, and a part of the checkpoint.
        simulation.run_link(1, true);
        let mut link = simulation.connections[1].take().unwrap();
        simulation.run_master(0, &mut link);
        link.to_replica.truncate(link.to_replica.len() / 2);
        simulation.run_replica(1, &mut link, true);
        let copied = simulation.nodes[1].records().len();
        assert!((1..2000).contains(&copied), "{copied}");
        set(&simulation.nodes[1], b"refused");
        if dies {
            simulation.nodes[1].end(None);
            simulation.nodes[1].start();
        }
        simulation.expect_equal(0);
        assert_eq!((simulation.nodes[1].records().len(), simulation.copies), (2000, 1));
        set(&simulation.nodes[1], b"accepted");
        simulation.expect_equal(0);
        assert_eq!(simulation.nodes[0].records().len(), 2001);
    }
}

/// Each greeting and each answer contains all epochs.
#[test]
fn replica_follows_a_master_of_many_epochs() {
    let mut simulation = NetworkSimulation::of_shape(&SHAPES[0], fastrand::Rng::with_seed(1));
    let RunningNode { database, directory, .. } = simulation.nodes[0].running();
    let (log_id, position) = (directory.identity().database_id, database.log().unwrap().end());
    let mut history = directory.epochs();
    for count in 0..3000 {
        let ended = EpochPlace { epoch: history.epoch(), log_id, position };
        history.add(EpochStart { epoch: Epoch((count + 1) << 16 | 1), log_id, ended: Some(ended) });
    }
    directory.store_epochs(history).unwrap();
    for number in 0..3u8 {
        set(&simulation.nodes[0], &[b'a' + number]);
        simulation.connections[1] = None;
        simulation.expect_equal(0);
        assert_eq!(simulation.nodes[1].records().len(), usize::from(number) + 1);
    }
}

/// Records that fit into the memory of a replica only in their compressed form were once evicted
/// when it read them from the log.
#[test]
fn replica_compresses_what_it_reads_from_the_log() {
    const LIMIT: u64 = 8 << 20;
    const RECORDS: u32 = 50_000;
    let with_seed = |seed| NetworkSimulation::of_shape(&SHAPES[0], fastrand::Rng::with_seed(seed));
    let are_hashes = |simulation: &NetworkSimulation| simulation.nodes.iter().all(|node| !node.is_tree);
    let mut simulation = (0..).map(with_seed).find(are_hashes).unwrap();
    simulation.expect_equal(0);
    let mut plain_bytes = 0;
    for n in 0..RECORDS {
        let (key, name) = (format!("user:{n}:profile"), ["Amara", "Olga", "Pedro", "Li"][n as usize % 4]);
        let order = |at: u32| {
            let price = (n + at).wrapping_mul(7_919) % 1000;
            format!(r#"{{"item":{at},"currency":"EUR","price":{price},"status":"delivered"}}"#)
        };
        let orders = [order(0), order(1), order(2)].join(",");
        let value = format!(r#"{{"id":{n},"name":"{name}","language":"en","orders":[{orders}]}}"#);
        plain_bytes += key.len() + value.len();
        let store = Store { key: key.as_bytes(), value: value.as_bytes(), ..Store::default() };
        execute(&simulation.nodes[0], &Operation::Store(store));
    }
    assert!(plain_bytes as u64 > LIMIT * 5 / 4, "{plain_bytes}");
    let database = Arc::clone(&simulation.nodes[1].running().database);
    let limit = MemoryLimit { bytes: Some(LIMIT), when_full: WhenFull::Evict };
    database.engine().bounded().unwrap().set_limit(limit);
    let applied = |simulation: &NetworkSimulation| {
        simulation.nodes[1].running().side.as_ref().map(|side| side.databases[0].applied())
    };
    let end = simulation.nodes[0].end_of_log().position;
    while applied(&simulation) < Some(end) {
        simulation.begin_step();
        simulation.run_link(1, true);
        assert!(simulation.errors[1].is_none(), "{:?}", simulation.errors[1]);
    }
    let status = database.engine().status();
    assert_eq!((status.records, status.evictions, simulation.copies), (RECORDS.into(), 0, 1));
    assert!(simulation.nodes[0].records() == simulation.nodes[1].records());
}

/// A damaged log must neither be skipped nor remove the position of a pair.
#[test]
fn damaged_log_keeps_the_position_of_a_pair() {
    let mut simulation = pair();
    set(&simulation.nodes[0], b"key");
    simulation.expect_equal(0);
    set(&simulation.nodes[1], b"own");
    simulation.connections[1] = None;
    simulation.run_link(1, true);
    let running = simulation.nodes[1].running.as_mut().unwrap();
    let side = running.side.as_mut().unwrap();
    let place = side.databases[0].place.unwrap();
    let (mut bytes, log) = (Vec::new(), [b'x'; 40]);
    MasterMessage::Log { number: 0, position: place.position, bytes: &log }.put(&mut bytes);
    side.push(&bytes);
    assert_eq!(side.next_event().unwrap(), Some(StreamEvent::Received));
    let error = side.next_event().unwrap_err();
    assert!(matches!(&error, StreamError::Refused(why) if why.ends_with(EMPTY_ONE)), "{error:?}");
    assert_eq!(side.databases[0].place, Some(place));
}

/// A master cannot state that it has answered a later message than the last one.
#[test]
fn master_cannot_feign_fresh_records() {
    let mut simulation = NetworkSimulation::of_shape(&SHAPES[0], fastrand::Rng::with_seed(1));
    set(&simulation.nodes[0], b"key");
    simulation.expect_equal(0);
    let steps = simulation.steps;
    let side = simulation.nodes[1].running.as_mut().unwrap().side.as_mut().unwrap();
    let ends = vec![LogEnd { number: 0, end: side.databases[0].applied(), source: None }];
    let mut bytes = Vec::new();
    MasterMessage::Heartbeat { time_ms: 1, clock_s: 1, asked_us: u64::MAX, age_us: 0, ends }.put(&mut bytes);
    side.push(&bytes);
    assert_eq!(side.next_event().unwrap(), Some(StreamEvent::Heartbeat));
    let fresh_at = side.databases[0].fresh_at_us;
    assert!((1..=steps).contains(&fresh_at), "{fresh_at}");
}

/// The second server of a chain once stated its own clock. The third one then removed a record
/// whose expiry the first one had extended in time, before the second one had received that.
#[test]
fn third_server_keeps_a_record_extended_in_time() {
    let mut simulation = NetworkSimulation::of_shape(&SHAPES[1], fastrand::Rng::with_seed(1));
    let (key, ttl) = (&b"key"[..], Ttl::Seconds(10));
    let store = Store { key, value: b"1", ttl, ..Store::default() };
    execute(&simulation.nodes[0], &Operation::Store(store));
    simulation.expect_equal(0);
    let ttl = Ttl::Seconds(1000);
    execute(&simulation.nodes[0], &Operation::Touch(Touch { key, ttl }));
    // The second server has no connection meanwhile.
    simulation.clock.advance(20);
    let sweep = |simulation: &NetworkSimulation| {
        let database = &simulation.nodes[2].running().database;
        database.request_sweep();
        for _ in 0..100 {
            database.maintain();
        }
    };
    for _ in 0..3 {
        simulation.begin_step();
        simulation.run_link(2, true);
        sweep(&simulation);
    }
    // The second server receives the change, and logs its own time before it.
    simulation.begin_step();
    let mut link = simulation.connections[1].take().unwrap();
    simulation.run_master(0, &mut link);
    let (end, mut sent) =
        (simulation.nodes[1].end_of_log(), std::mem::take(&mut link.to_replica).into_iter());
    while simulation.nodes[1].end_of_log() == end {
        link.to_replica.push(sent.next().unwrap());
        assert!(simulation.run_replica(1, &mut link, true));
    }
    simulation.run_link(2, true);
    sweep(&simulation);
    let now = simulation.clock.now();
    let [second, third] = [1, 2].map(|at: usize| simulation.nodes[at].running().database.removal_time(now));
    assert!(third <= second, "{third:?}, {second:?}");
    let records = simulation.nodes[0].records();
    assert_eq!(records.len(), 1);
    assert!(simulation.nodes[2].records() == records);
    // The third server removes the record once the first one would.
    simulation.clock.advance(2000);
    simulation.expect_equal(0);
    sweep(&simulation);
    assert_eq!(simulation.nodes[2].running().database.status().records, 0);
}

/// A log of records that had expired once stopped the third server of a chain for good: there was
/// no room for them, and it removes none before it has the time of its master.
#[test]
fn third_server_without_room_for_expired_records_copies() {
    let with_seed = |seed| NetworkSimulation::of_shape(&SHAPES[1], fastrand::Rng::with_seed(seed));
    let are_hashes = |simulation: &NetworkSimulation| simulation.nodes.iter().all(|node| !node.is_tree);
    let mut simulation = (0..).map(with_seed).find(are_hashes).unwrap();
    set(&simulation.nodes[0], b"key");
    simulation.expect_equal(0);
    let RunningNode { directory, database, .. } = simulation.nodes[2].running();
    directory.checkpoint(database).unwrap();
    simulation.store(2);
    let mut random = fastrand::Rng::with_seed(1);
    let value: Vec<u8> = (0..50_000).map(|_| random.u8(..)).collect();
    for n in 0..200u32 {
        let (key, ttl) = (&n.to_be_bytes()[..], Ttl::Seconds(60));
        execute(
            &simulation.nodes[0],
            &Operation::Store(Store { key, value: &value, ttl, ..Store::default() }),
        );
        simulation.clock.advance(60);
        simulation.begin_step();
        simulation.run_link(1, true);
    }
    simulation.nodes[2].end(None);
    simulation.nodes[2].start();
    simulation.connections[2] = None;
    let limit = MemoryLimit { bytes: Some(4 << 20), when_full: WhenFull::Refuse };
    simulation.nodes[2].running().database.engine().bounded().unwrap().set_limit(limit);
    let copies = simulation.copies;
    simulation.expect_equal(0);
    assert!(matches!(&simulation.errors[2], Some(StreamError::MustCopy(_))), "{:?}", simulation.errors[2]);
    assert_eq!(simulation.copies, copies + 1);
}

/// Simulates with seeds that have shown faults, and with as many further ones as the environment
/// asks for, on all processors.
fn simulate_all(former_faults: &[u64], simulate: impl Fn(u64) + Sync) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = number("TODANA_SEEDS").unwrap_or(500);
    let first = number("TODANA_SEED").unwrap_or_else(|| fastrand::u64(..1 << 48));
    println!("{seeds} simulations, TODANA_SEED={first}");
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let own = former_faults.iter().copied().chain(first..first + seeds).skip(thread).step_by(threads);
            scope.spawn(|| own.for_each(&simulate));
        }
    });
}

#[test]
fn simulated_servers_have_equal_records() {
    simulate_all(&[], |seed| {
        let mut simulation = NetworkSimulation::new(seed);
        (0..STEPS).for_each(|_| simulation.step());
        simulation.expect_equal(seed);
    });
}
