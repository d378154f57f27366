//! The tests of this crate as one program, because each program takes seconds to link. A test has
//! its own file beside this folder if it measures its process, runs itself again, or takes long.

#[path = "../../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "../../../tests/directory_contents/mod.rs"]
mod directory_contents;
#[path = "../folder/mod.rs"]
mod folder;
#[path = "../../../tests/fuzz_inputs/mod.rs"]
mod fuzz_inputs;
#[path = "../../../tests/held_engine/mod.rs"]
mod held_engine;
#[path = "../incoming/mod.rs"]
mod incoming;
#[path = "../kept/mod.rs"]
mod kept;
#[path = "../kinds/mod.rs"]
mod kinds;
#[path = "../model/mod.rs"]
mod model;
#[path = "../opener/mod.rs"]
mod opener;
#[path = "../saved/mod.rs"]
mod saved;
#[path = "../spoiled/mod.rs"]
mod spoiled;
#[path = "../../../tests/table_indexes/mod.rs"]
mod table_indexes;
#[path = "../../../tests/table_search/mod.rs"]
mod table_search;

mod backup;
mod backup_salvage;
mod bulk;
mod checkpoint;
mod commands;
mod compressed_load;
mod concurrent;
mod contents;
mod copies;
mod counters;
mod cursors;
mod damage;
mod damaged_records;
mod data_directory;
mod examples;
mod found_damage;
mod full;
mod full_disk;
mod full_front;
mod hash_salvage;
mod keeping;
mod killed_offline;
mod kyoto_numbers;
mod kyoto_snapshots;
mod late_writer;
mod log_bytes;
mod log_salvage;
mod long_values;
mod map_reduce;
mod matching;
mod openers;
mod refused_writes;
mod replica_log;
mod replication_feed;
mod restoration;
mod restored_as_opened;
mod restored_versions;
mod salvage_source;
mod search_inputs;
mod segment_names;
mod snapshots;
mod spoils;
mod streams;
mod sweep;
mod table;
mod table_salvage;
mod targets;
mod transactions;
mod transfer;
mod tree_as_directory;
mod tree_bits;
mod tree_names;
mod tree_reopened;
mod tree_salvage;
mod trouble;
mod tuning;
