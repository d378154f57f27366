//! Changes are refused, and reads are not, while too many changes wait in memory for a checkpoint.

use std::sync::Arc;
use todana::{CachedClock, Database};
use todana_core::{Get, Operation, Ttl};
use todana_engine::{MemHash, MemHashOptions};

fn answer(database: &Database, command: &Operation<'_>) -> String {
    let mut answer = String::new();
    database.execute(&database.worker_counters(), command, &mut |reply| answer = format!("{reply:?}"));
    answer
}

#[test]
fn full_front_refuses_changes_until_a_checkpoint() {
    let engine = Box::new(MemHash::new(MemHashOptions::default()).unwrap());
    let database = Database::new(engine, Arc::new(CachedClock::default()));
    let flush = Operation::Flush { at: Ttl::Never };
    database.refuse_changes(true);
    assert_eq!(answer(&database, &flush), "Refused(FilesUnwritable)");
    assert_eq!(answer(&database, &Operation::Get(Get { key: b"a", ..Get::default() })), "Miss");
    assert_eq!(database.counters().log_refusals, 1);
    database.refuse_changes(false);
    assert_eq!(answer(&database, &flush), "Done");
}
