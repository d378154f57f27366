//! The update log as a stream of bytes: split into any portions, it yields the same entries that
//! the log's own reader finds in a file.
#![no_main]

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "../../todana/tests/incoming/mod.rs"]
mod incoming;
#[path = "../../todana/tests/kept/mod.rs"]
mod kept;
#[path = "../../todana/tests/opener/mod.rs"]
mod opener;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| incoming::decode_any(bytes));
