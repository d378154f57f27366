//! One conformance suite for all engines, by the traits they offer, against a `BTreeMap`.
//!
//! Each engine is one entry below: its name, whether its records survive it, and how to open it in
//! an empty directory or in one that it has used before. Engines that keep their records are also
//! reopened between the operations.

#[path = "../model/mod.rs"]
#[allow(dead_code)]
mod model;
#[path = "../visitor/mod.rs"]
mod visitor;

mod clear;
mod extremes;
mod limit;
mod numbered;
mod operations;
mod order;
mod subject;
mod sweep;
mod threads;

use numbered::{LAYOUT, Numbered};
use subject::Subject;
use todana_engine::{
    Compression, DiskHash, DiskHashOptions, DiskTree, DiskTreeOptions, FixedArray, FixedArrayOptions,
    FixedTree, MemHash, MemHashOptions, MemTree, MemTreeOptions, TableEngine, ValueCompression,
};

/// Defines a module with the tests of one engine.
macro_rules! engine {
    ($name:ident, $subject:expr) => {
        mod $name {
            use super::*;

            engine! { @tests $subject;
                operations: random_operations_agree_with_the_model;
                operations: growth_and_shrinkage_lose_no_record;
                operations: visitor_is_applied_only_after_a_change;
                order: walks_start_at_every_kind_of_bound;
                order: a_walk_ends_where_it_is_told_to;
                order: walk_shows_stable_records_once_during_writes;
                extremes: keys_of_any_length_are_distinct_or_refused;
                extremes: values_of_any_length_are_returned_unchanged;
                extremes: a_value_can_change_between_all_lengths;
                extremes: a_buffer_becomes_the_value;
                extremes: too_long_keys_and_values_are_refused;
                limit: a_limit_holds_whatever_the_sizes_do;
                limit: a_limit_that_refuses_forgets_nothing;
                sweep: sweep_removes_exactly_the_expired_records;
                sweep: a_sweep_that_removes_nothing_changes_nothing;
                clear: cleared_engine_is_empty_and_writable;
                clear: clearing_calls_back_once_while_nobody_can_write;
                threads: every_key_has_a_serial_history;
                threads: scan_shows_every_record_that_stays;
            }
        }
    };
    (@tests $subject:expr; $($area:ident: $promise:ident;)*) => {
        $(#[test] fn $promise() { $area::$promise(&$subject); })*
    };
}

engine!(mem_hash, Subject { keeps: false, open: |_| Ok(Box::new(MemHash::new(MemHashOptions::default())?)) });
engine!(
    mem_hash_of_one_shard,
    Subject {
        keeps: false,
        open: |_| {
            Ok(Box::new(MemHash::new(MemHashOptions {
                seed: Some(7),
                shards: Some(1),
                ..Default::default()
            })?))
        },
    }
);
engine!(
    mem_tree_of_two_partitions,
    Subject {
        keeps: false,
        open: |_| {
            Ok(Box::new(MemTree::new(MemTreeOptions { partitions: Some(2), ..Default::default() })?))
        },
    }
);
engine!(
    mem_tree_compressed,
    Subject {
        keeps: false,
        open: |_| {
            let compression = Some(Compression { open_bytes: 0 });
            Ok(Box::new(MemTree::new(MemTreeOptions { compression, ..Default::default() })?))
        },
    }
);
engine!(
    disk_tree,
    Subject {
        keeps: true,
        open: |directory| Ok(Box::new(DiskTree::open(directory, DiskTreeOptions::default())?)),
    }
);
// Most records are on their way to disk or have just arrived there, and the file outgrows its map
// again and again.
engine!(
    disk_tree_of_small_steps,
    Subject {
        keeps: true,
        open: |directory| {
            let options =
                DiskTreeOptions { front_bytes: 16 << 10, map_bytes: 256 << 10, ..Default::default() };
            Ok(Box::new(DiskTree::open(directory, options)?))
        },
    }
);
engine!(
    disk_tree_of_blocks,
    Subject {
        keeps: true,
        open: |directory| {
            let options = DiskTreeOptions {
                front_bytes: 16 << 10,
                map_bytes: 256 << 10,
                in_blocks: true,
                ..Default::default()
            };
            Ok(Box::new(DiskTree::open(directory, options)?))
        },
    }
);
engine!(
    mem_table,
    Subject {
        keeps: false,
        open: |_| {
            let tree = MemTree::new(MemTreeOptions::default())?;
            Ok(Box::new(TableEngine::new(Box::new(tree))?))
        },
    }
);
engine!(
    disk_table,
    Subject {
        keeps: true,
        open: |directory| {
            let options = DiskTreeOptions { in_blocks: true, ..DiskTreeOptions::default() };
            let tree = DiskTree::open(directory, options)?;
            Ok(Box::new(TableEngine::new(Box::new(tree))?))
        },
    }
);
engine!(
    fixed_array,
    Subject {
        keeps: false,
        open: |directory| {
            let options = FixedArrayOptions { width: 64, number_max: LAYOUT.number_max, bytes_max: None };
            Ok(Numbered::over(FixedArray::new(options)?, directory))
        },
    }
);
engine!(
    mem_fixed_tree,
    Subject {
        keeps: false,
        open: |directory| {
            let tree = MemTree::new(MemTreeOptions::default())?;
            Ok(Numbered::over(FixedTree::new(Box::new(tree), LAYOUT)?, directory))
        },
    }
);
engine!(
    disk_fixed_tree,
    Subject {
        keeps: true,
        open: |directory| {
            let tree = DiskTree::open(directory, DiskTreeOptions::default())?;
            Ok(Numbered::over(FixedTree::new(Box::new(tree), LAYOUT)?, directory))
        },
    }
);
engine!(mem_tree, Subject { keeps: false, open: |_| Ok(Box::new(MemTree::new(MemTreeOptions::default())?)) });
engine!(
    disk_hash,
    Subject {
        keeps: true,
        open: |directory| Ok(Box::new(DiskHash::open(directory, DiskHashOptions::default())?)),
    }
);
// Segments of a few records, with continuous compaction and checkpoints of the index, and hardly
// any memory.
engine!(
    disk_hash_of_small_steps,
    Subject {
        keeps: true,
        open: |directory| {
            let options = DiskHashOptions {
                seed: Some(7),
                memory_bytes: Some(0),
                cache_bytes: 1,
                buffer_bytes: 4 << 10,
                segment_bytes_min: 4 << 10,
                space_factor: 1.1,
                checkpoint_bytes: 1,
                ..Default::default()
            };
            Ok(Box::new(DiskHash::open(directory, options)?))
        },
    }
);
// Values are compressed, and dictionaries are trained continuously.
engine!(
    disk_hash_compressed,
    Subject {
        keeps: true,
        open: |directory| {
            let options = DiskHashOptions {
                segment_bytes_min: 16 << 10,
                buffer_bytes: 4 << 10,
                compression: Some(ValueCompression { trained_at_bytes: 32 << 10 }),
                ..Default::default()
            };
            Ok(Box::new(DiskHash::open(directory, options)?))
        },
    }
);
