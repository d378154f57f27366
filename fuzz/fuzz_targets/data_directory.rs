//! Opening a data directory: any bytes for an identity, a segment or its entries, a checkpoint or its blocks open or are damaged,
//! which is said with file and offset; what has been opened opens again, to the same.
#![no_main]

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "../../todana/tests/kept/mod.rs"]
mod kept;
#[path = "../../todana/tests/opener/mod.rs"]
mod opener;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| opener::open_any(bytes));
