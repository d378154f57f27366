//! Checks under which name of `stats` each operation counts.

use std::sync::Arc;
use todana::{Clock, Counters, Database, ManualClock};
use todana_core::{
    Arithmetic, ArithmeticDirection, CommandSyntax, Delete, Get, Operation, RefusalReason, RefusedStore,
    Reply, ReplyNeeds, Store, StoreMode, Touch, Ttl, UnixSeconds,
};
use todana_engine::{MemHash, MemHashOptions};

fn database() -> (Database, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(UnixSeconds(1_700_000_000)));
    let engine = MemHash::new(MemHashOptions::default()).unwrap();
    (Database::new(Box::new(engine), Arc::clone(&clock) as Arc<dyn Clock>), clock)
}

/// Returns the counts that an operation adds to the counters.
fn counted(database: &Database, command: Operation<'_>) -> Counters {
    database.reset_counters();
    let worker_counters = database.worker_counters();
    database.execute(&worker_counters, &command, &mut |_| {});
    database.counters()
}

fn get(key: &[u8]) -> Operation<'_> {
    Operation::Get(Get { key, ..Get::default() })
}

fn set<'a>(key: &'a [u8], value: &'a [u8]) -> Operation<'a> {
    Operation::Store(Store { key, value, ..Store::default() })
}

const NONE: fn() -> Counters = Counters::default;

#[test]
fn reads_and_stores_count_by_outcome() {
    let (database, clock) = database();
    assert_eq!(counted(&database, get(b"k")), Counters { cmd_get: 1, get_misses: 1, ..NONE() });
    assert_eq!(counted(&database, set(b"k", b"1")), Counters { cmd_set: 1, total_items: 1, ..NONE() });
    assert_eq!(counted(&database, get(b"k")), Counters { cmd_get: 1, get_hits: 1, ..NONE() });
    let add = Store { key: b"k", mode: StoreMode::Add, ..Store::default() };
    assert_eq!(counted(&database, Operation::Store(add)), Counters { cmd_set: 1, ..NONE() });
    let brief = Store { key: b"k", ttl: Ttl::Seconds(5), ..Store::default() };
    counted(&database, Operation::Store(brief));
    clock.advance(5);
    let expired = Counters { cmd_get: 1, get_misses: 1, get_expired: 1, reclaimed: 1, ..NONE() };
    assert_eq!(counted(&database, get(b"k")), expired);
    // The record was removed, so this is an ordinary miss.
    assert_eq!(counted(&database, get(b"k")), Counters { cmd_get: 1, get_misses: 1, ..NONE() });
}

#[test]
fn get_and_touch_counts_as_touch() {
    let (database, _) = database();
    let gat = Operation::Get(Get {
        key: b"k",
        touch: Some(Ttl::Seconds(9)),
        counts_as_touch: true,
        ..Get::default()
    });
    assert_eq!(counted(&database, gat), Counters { cmd_touch: 1, touch_misses: 1, ..NONE() });
    counted(&database, set(b"k", b"1"));
    assert_eq!(counted(&database, gat), Counters { cmd_touch: 1, touch_hits: 1, ..NONE() });
    let touch = Operation::Touch(Touch { key: b"k", ttl: Ttl::Never });
    assert_eq!(counted(&database, touch), Counters { cmd_touch: 1, touch_hits: 1, ..NONE() });
    let touch = Operation::Touch(Touch { key: b"other", ttl: Ttl::Never });
    assert_eq!(counted(&database, touch), Counters { cmd_touch: 1, touch_misses: 1, ..NONE() });
}

#[test]
fn arithmetic_and_deletes_count_by_direction_and_outcome() {
    let (database, _) = database();
    let count =
        |direction| Operation::Arithmetic(Arithmetic { key: b"n", direction, ..Arithmetic::default() });
    let up = count(ArithmeticDirection::Increment);
    let down = count(ArithmeticDirection::Decrement);
    let delete = Operation::Delete(Delete { key: b"n", ..Delete::default() });
    assert_eq!(counted(&database, up), Counters { incr_misses: 1, ..NONE() });
    assert_eq!(counted(&database, down), Counters { decr_misses: 1, ..NONE() });
    assert_eq!(counted(&database, delete), Counters { delete_misses: 1, ..NONE() });
    counted(&database, set(b"n", b"5"));
    assert_eq!(counted(&database, up), Counters { incr_hits: 1, ..NONE() });
    assert_eq!(counted(&database, down), Counters { decr_hits: 1, ..NONE() });
    assert_eq!(counted(&database, delete), Counters { delete_hits: 1, ..NONE() });
}

#[test]
fn compare_and_set_counts_by_outcome() {
    let (database, _) = database();
    let cas = |version| {
        Operation::Store(Store { key: b"k", compare: Some(version), value: b"2", ..Store::default() })
    };
    assert_eq!(counted(&database, cas(1)), Counters { cmd_set: 1, cas_misses: 1, ..NONE() });
    let needs = ReplyNeeds { version: true, access: false };
    let mut version = 0;
    let worker_counters = database.worker_counters();
    let store = Store { key: b"k", value: b"1", needs, ..Store::default() };
    database.execute(&worker_counters, &Operation::Store(store), &mut |reply| match reply {
        Reply::Stored(stored) => version = stored.version,
        other => panic!("{other:?}"),
    });
    let wrong = counted(&database, cas(version + 1000));
    assert_eq!(wrong, Counters { cmd_set: 1, cas_badval: 1, ..NONE() });
    let right = counted(&database, cas(version));
    assert_eq!(right, Counters { cmd_set: 1, cas_hits: 1, total_items: 1, ..NONE() });
    assert_eq!(counted(&database, cas(version)).cas_badval, 1);
}

#[test]
fn refused_store_counts_only_as_refused() {
    let (database, _) = database();
    let refused = |discards, refusal| {
        let (value_len, flags, mode, compares) = (5_000_000, 0, StoreMode::Set, false);
        Operation::RefusedStore(RefusedStore {
            key: b"k",
            value_len,
            flags,
            mode,
            compares,
            discards,
            refusal,
        })
    };
    counted(&database, set(b"k", b"1"));
    for (discards, misses) in [(false, 0), (true, 1)] {
        let too_large = counted(&database, refused(discards, RefusalReason::TooLarge));
        assert_eq!(too_large, Counters { store_too_large: 1, ..NONE() });
        let no_memory = counted(&database, refused(discards, RefusalReason::OutOfMemory));
        assert_eq!(no_memory, Counters { store_no_memory: 1, ..NONE() });
        assert_eq!(counted(&database, get(b"k")).get_misses, misses);
    }
}

#[test]
fn meta_commands_and_flushes_count_too() {
    let (database, _) = database();
    let meta = Operation::Get(Get { key: b"k", syntax: CommandSyntax::Meta, ..Get::default() });
    assert_eq!(counted(&database, meta), Counters { cmd_meta: 1, cmd_get: 1, get_misses: 1, ..NONE() });
    let flush = Operation::Flush { at: Ttl::Never };
    assert_eq!(counted(&database, flush), Counters { cmd_flush: 1, ..NONE() });
}

#[test]
fn meta_reads_with_ttl_count_as_touches() {
    let (database, _) = database();
    let mg = |key, touch, vivify| {
        Operation::Get(Get { key, touch, vivify, syntax: CommandSyntax::Meta, ..Get::default() })
    };
    let ttl = Some(Ttl::Seconds(9));
    let miss = Counters { cmd_meta: 1, cmd_get: 1, get_misses: 1, ..NONE() };
    let touched = Counters { cmd_meta: 1, cmd_touch: 1, touch_hits: 1, ..NONE() };
    assert_eq!(counted(&database, mg(b"k", ttl, None)), miss);
    // A record that was created for the caller to fill counts as found.
    let made = Counters { cmd_meta: 1, cmd_get: 1, get_hits: 1, total_items: 1, ..NONE() };
    assert_eq!(counted(&database, mg(b"k", None, ttl)), made);
    assert_eq!(counted(&database, mg(b"k", ttl, None)), touched);
    assert_eq!(counted(&database, mg(b"l", ttl, ttl)), Counters { total_items: 1, ..touched });
}

#[test]
fn vivified_counter_is_no_miss() {
    let (database, _) = database();
    let meta = Counters { cmd_meta: 1, ..NONE() };
    let syntax = CommandSyntax::Meta;
    let count = Arithmetic { key: b"n", vivify: Some(Ttl::Never), syntax, ..Arithmetic::default() };
    let count = Operation::Arithmetic(count);
    assert_eq!(counted(&database, count), Counters { total_items: 1, ..meta });
    assert_eq!(counted(&database, count), Counters { incr_hits: 1, ..meta });
    let delete = Delete { key: b"n", syntax, ..Delete::default() };
    for stays in [Delete { mark_stale: true, ..delete }, Delete { drop_value: true, ..delete }] {
        assert_eq!(counted(&database, Operation::Delete(stays)), meta);
    }
    assert_eq!(counted(&database, Operation::Delete(delete)), Counters { delete_hits: 1, ..meta });
}

#[test]
fn expired_record_is_counted_by_any_command() {
    let (database, clock) = database();
    let brief = Operation::Store(Store { key: b"k", ttl: Ttl::Seconds(5), ..Store::default() });
    for command in [
        get(b"k"),
        set(b"k", b"1"),
        Operation::Touch(Touch { key: b"k", ttl: Ttl::Never }),
        Operation::Delete(Delete { key: b"k", ..Delete::default() }),
        Operation::Arithmetic(Arithmetic { key: b"k", ..Arithmetic::default() }),
    ] {
        counted(&database, brief);
        clock.advance(5);
        let counted = counted(&database, command);
        assert_eq!((counted.get_expired, counted.reclaimed), (1, 1), "{command:?}");
    }
}

#[test]
fn worker_counters_are_summed_after_their_end() {
    let (database, _) = database();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let worker_counters = database.worker_counters();
                for _ in 0..100 {
                    database.execute(&worker_counters, &get(b"k"), &mut |_| {});
                }
            });
        }
    });
    let counters = database.counters();
    assert_eq!((counters.cmd_get, counters.get_misses), (300, 300));
}
