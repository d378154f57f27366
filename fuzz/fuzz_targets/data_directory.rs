//! Opening a data directory: any bytes for an identity, a segment or its entries, a checkpoint or
//! its blocks either open or are reported as damaged with file and offset. A directory that has
//! been opened opens again with the same contents.
#![no_main]

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "../../todana/tests/kept/mod.rs"]
mod kept;
#[path = "../../todana/tests/opener/mod.rs"]
mod opener;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| opener::open_any(bytes));
