//! Simulations in which replicas are promoted, former masters accept changes for a while, and all
//! servers follow the last master at the end. Every change must then be at the last master or in a
//! salvaged log, and never in both.

use super::super::promotion;
use super::*;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use todana::update_log::{EpochPlace, LogChange, LogFollower, LogId};

const STEPS: u32 = 160;
/// Seeds that have shown faults, which concerned:
///
/// - sources of an earlier epoch in the log of a replica that applied changes again
/// - changes without sources after changes with sources
/// - a place in a part of the log that had ended before it
/// - an epoch whose beginning was in a part of the log that was not read
/// - a place in the log of another master without a promotion
/// - an epoch that a replica logged after changes of this epoch
/// - a promotion while changes were applied again
/// - own changes of a server that did not know its place
/// - a place that was stored while changes were applied again
/// - a former master that did not know its own place
/// - changes without sources before the beginning of an epoch
/// - an epoch that began before the records were copied
/// - an epoch in a log whose server was not the one that was promoted next
/// - an epoch that was noted again, among changes that were applied again
const FORMER_FAULTS: [u64; 14] = [
    511311296187,
    511311296234,
    511311297398,
    234260346304833,
    63903613400792,
    280216857610655,
    229076716030185,
    229076716053788,
    50455215778680,
    96046232034835,
    46015331698580,
    13904435408407,
    212485488231426,
    243766760916685,
];
const SHAPES: [ReplicationShape; 3] = [
    ReplicationShape { masters: &[None, Some(0)], writers: &[0] },
    ReplicationShape { masters: &[None, Some(0), Some(0)], writers: &[0] },
    ReplicationShape { masters: &[None, Some(0), Some(1)], writers: &[0] },
];

/// A change of a client: the key, and the value, which no other change has.
type ClientChange = (Vec<u8>, Vec<u8>);

/// The changes that the clients of one server have made, with the positions after them.
#[derive(Default)]
struct ClientLog(Vec<(u64, ClientChange)>);

struct FailoverSimulation {
    seed: u64,
    network: NetworkSimulation,
    /// The server that was promoted last, or the first master.
    leader: usize,
    /// The changes of clients, by the epoch and the log of the master that received them.
    logs: HashMap<(Epoch, LogId), ClientLog>,
    /// The number of changes, which is also the value of the last one.
    changes: u64,
    promotions: usize,
    /// True if a server was promoted that had never followed the last master. It may have changes
    /// that the last master did not have and that another server salvages.
    has_passed_over: bool,
    /// The changes in the salvaged logs.
    salvaged: BTreeSet<ClientChange>,
    /// The changes in the copies of data directories that an operator has kept.
    kept_copies: BTreeSet<ClientChange>,
}

impl FailoverSimulation {
    fn new(seed: u64) -> FailoverSimulation {
        let mut random = fastrand::Rng::with_seed(seed);
        let shape = &SHAPES[random.usize(..SHAPES.len())];
        let mut network = NetworkSimulation::of_shape(shape, random);
        for node in &mut network.nodes {
            node.keeps_log = true;
            node.end(None);
            node.start();
        }
        let (logs, salvaged, kept_copies) = Default::default();
        FailoverSimulation {
            seed,
            network,
            leader: 0,
            logs,
            changes: 0,
            promotions: 0,
            has_passed_over: false,
            salvaged,
            kept_copies,
        }
    }

    fn random(&mut self, below: usize) -> usize {
        self.network.random.usize(..below)
    }

    fn step(&mut self) {
        self.network.begin_step();
        let at = self.random(self.network.nodes.len());
        match self.random(32) {
            0..10 => {
                let writer = if self.random(4) == 0 { at } else { self.leader };
                (0..=self.random(4)).for_each(|_| self.write(writer));
            }
            10..22 => self.network.run_link(at, false),
            22 => self.network.connections[at] = None,
            23 => self.network.corrupt(at),
            24 => self.network.store(at),
            25 => {
                let RunningNode { directory, database, .. } = self.network.nodes[at].running();
                directory.checkpoint(database).unwrap();
            }
            26 => self.promote(at),
            27 | 28 => self.point_to_leader(at),
            29 => self.announce(),
            _ => {
                let power_lost = (self.random(2) == 0).then(|| self.network.random.u64(..));
                self.restart(at, power_lost);
            }
        }
    }

    /// Changes a record at a server, if it is a master and does not know of a later one.
    fn write(&mut self, at: usize) {
        let node = &self.network.nodes[at];
        let RunningNode { database, directory, counters, .. } = node.running();
        let history = directory.epochs();
        let own = directory.identity().database_id;
        let is_former = history.starts.last().is_some_and(|last| last.log_id != own);
        if node.master.is_some() || is_former || history.superseded_by > history.epoch() {
            return;
        }
        self.changes += 1;
        let key = format!("k{}", self.network.random.u64(..KEYS)).into_bytes();
        let value = self.changes.to_string().into_bytes();
        let store = Store { key: &key, value: &value, ..Store::default() };
        database.execute(counters, &Operation::Store(store), &mut |_| ());
        let end = database.log().unwrap().end().0;
        self.logs.entry((history.epoch(), own)).or_default().0.push((end, (key.clone(), value.clone())));
    }

    fn restart(&mut self, at: usize, power_lost: Option<u64>) {
        let network = &mut self.network;
        network.nodes[at].end(power_lost);
        network.nodes[at].start();
        network.connections[at] = None;
        network.cut_replicas(at);
        let RunningNode { database, directory, .. } = network.nodes[at].running();
        let end = database.log().unwrap().end().0;
        // A power failure may have lost the last changes of clients, which no replica has.
        let own = directory.identity().database_id;
        for (_, log) in self.logs.iter_mut().filter(|((_, id), _)| *id == own) {
            log.0.retain(|(position, _)| *position <= end);
        }
    }

    /// Makes a replica the master. The former masters and the other replicas do not know that.
    fn promote(&mut self, at: usize) {
        let epochs = self.network.nodes.iter().map(|node| node.running().directory.epochs().epoch());
        let epoch = epochs.max().unwrap();
        let node = &mut self.network.nodes[at];
        let (id, running) = (node.id(), node.running.as_mut().unwrap());
        let Some(side) = &mut running.side else { return };
        let place = side.databases[0].source;
        if place.is_none() || promotion::begin_all(&side.databases, epoch.next(id), false).is_err() {
            return;
        }
        self.has_passed_over |= place.is_some_and(|place| place.epoch != epoch.0);
        side.databases.clear();
        running.keeper.store(&mut []).unwrap();
        running.side = None;
        node.master = None;
        self.network.connections[at] = None;
        self.leader = at;
        self.promotions += 1;
        let expected = self.records_after(&self.expected_changes(at));
        assert_eq!(values(&self.network.nodes[at]), expected, "seed {}: server {at} at {place:?}", self.seed);
    }

    /// Restarts a server as a replica of the last master.
    fn point_to_leader(&mut self, at: usize) {
        if at == self.leader {
            return;
        }
        self.network.nodes[at].master = Some(self.leader);
        self.restart(at, None);
    }

    /// Lets the last master state its epoch to the servers that still act as masters.
    fn announce(&mut self) {
        let epoch = self.network.nodes[self.leader].running().directory.epochs().epoch();
        for node in self.network.nodes.iter().filter(|node| node.master.is_none()) {
            if epoch > node.running().directory.epochs().epoch() {
                node.supersede(epoch);
            }
        }
    }

    /// Returns the changes that a master must have according to its epochs, in their order.
    fn expected_changes(&self, at: usize) -> Vec<ClientChange> {
        let RunningNode { database, directory, .. } = self.network.nodes[at].running();
        let (log_id, position) = (directory.identity().database_id, database.log().unwrap().end());
        let history = directory.epochs();
        let path = history.path(Some(EpochPlace { epoch: history.epoch(), log_id, position }));
        let mut changes = Vec::new();
        for place in path {
            let Some(log) = self.logs.get(&(place.epoch, place.log_id)) else { continue };
            let has = log.0.iter().filter(|(end, _)| *end <= place.position.0);
            changes.extend(has.map(|(_, change)| change.clone()));
        }
        changes
    }

    fn records_after(&self, changes: &[ClientChange]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        changes.iter().cloned().collect()
    }

    /// Lets all servers follow the last master, and compares all changes.
    fn expect_nothing_lost(&mut self, seed: u64) {
        for at in 0..self.network.nodes.len() {
            self.point_to_leader(at);
        }
        self.network.errors.iter_mut().for_each(|error| *error = None);
        for _ in 0..8 {
            self.network.begin_step();
            (0..self.network.nodes.len()).for_each(|at| self.network.run_link(at, true));
        }
        (0..self.network.nodes.len()).for_each(|at| self.empty_refused(at));
        self.network.begin_step();
        self.network.expect_equal(seed);
        let changes = self.expected_changes(self.leader);
        let expected = self.records_after(&changes);
        assert_eq!(values(&self.network.nodes[self.leader]), expected, "seed {seed}");
        for at in 0..self.network.nodes.len() {
            self.read_salvaged(at);
        }
        let kept: BTreeSet<ClientChange> = changes.into_iter().collect();
        let is_there = |change: &ClientChange| {
            kept.contains(change) || self.salvaged.contains(change) || self.kept_copies.contains(change)
        };
        // A copy of all records, in a salvaged log or in the directory of a server that was
        // emptied, lacks changes that were overwritten before. Only a server that was passed over
        // needs one.
        let is_overwritten = |change: &ClientChange| {
            let number = |change: &ClientChange| String::from_utf8_lossy(&change.1).parse::<u64>().ok();
            let all = self.logs.values().flat_map(|log| &log.0).map(|(_, change)| change);
            self.has_passed_over
                && all
                    .filter(|later| later.0 == change.0 && is_there(later))
                    .any(|later| number(later) > number(change))
        };
        for (_, change) in self.logs.values().flat_map(|log| &log.0) {
            let text = change.1.escape_ascii();
            assert!(is_there(change) || is_overwritten(change), "seed {seed}: {text} is lost");
            let is_merged = kept.contains(change) && self.salvaged.contains(change);
            assert!(self.has_passed_over || !is_merged, "seed {seed}: {text} is salvaged");
        }
        let all: BTreeSet<&ClientChange> =
            self.logs.values().flat_map(|log| log.0.iter().map(|(_, change)| change)).collect();
        assert!(self.salvaged.iter().all(|change| all.contains(change)), "seed {seed}: no client made it");
    }

    /// Empties a server that cannot separate its own changes from those of the master, because it
    /// has copied all records at a place after the branch.
    fn empty_refused(&mut self, at: usize) {
        let Some(StreamError::Refused(why)) = self.network.errors[at].take() else { return };
        if !why.ends_with("empty it") {
            return;
        }
        for directory in ["/data/log", "/data/salvage"] {
            self.kept_copies.extend(self.changes_in(at, Path::new(directory)));
        }
        self.read_salvaged(at);
        let records = self.network.nodes[at].records();
        self.kept_copies.extend(records.into_iter().map(|(key, (value, _))| (key, value)));
        self.network.nodes[at].end(None);
        self.network.nodes[at].disk = CrashDisk::new();
        self.network.nodes[at].start();
        self.network.connections[at] = None;
        self.network.cut_replicas(at);
    }

    fn changes_in(&self, at: usize, directory: &Path) -> Vec<ClientChange> {
        let disk: Arc<dyn todana::disk::Disk> = Arc::new(self.network.nodes[at].disk.clone());
        let mut changes = Vec::new();
        if let Ok(mut log) = LogFollower::open(disk, directory, None, None) {
            log.read_new(&mut |_, _, entry| {
                if let LogChange::Put { key, record } = entry.change {
                    changes.push((key.to_vec(), record.value.to_vec()));
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        }
        changes
    }

    fn read_salvaged(&mut self, at: usize) {
        let disk: Arc<dyn todana::disk::Disk> = Arc::new(self.network.nodes[at].disk.clone());
        let folder = Path::new("/data/salvage");
        for name in disk.list(folder).unwrap_or_default() {
            let changes = self.changes_in(at, &folder.join(&name));
            self.salvaged.extend(changes);
        }
    }
}

fn values(node: &SimulatedServer) -> BTreeMap<Vec<u8>, Vec<u8>> {
    node.records().into_iter().map(|(key, (value, _))| (key, value)).collect()
}

#[test]
fn promotions_lose_no_change() {
    let [promotions, salvaged] = [const { AtomicUsize::new(0) }; 2];
    simulate_all(&FORMER_FAULTS, |seed| {
        let mut simulation = FailoverSimulation::new(seed);
        (0..STEPS).for_each(|_| simulation.step());
        simulation.expect_nothing_lost(seed);
        promotions.fetch_add(simulation.promotions, Ordering::Relaxed);
        salvaged.fetch_add(simulation.salvaged.len(), Ordering::Relaxed);
    });
    let all = (promotions.into_inner(), salvaged.into_inner());
    println!("{} promotions, {} salvaged changes", all.0, all.1);
    assert!(all.0 > 0 && all.1 > 0, "{all:?}");
}
