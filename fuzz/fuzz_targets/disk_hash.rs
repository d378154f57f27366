//! Opening a hash on disk: any bytes in a segment, a checkpoint of the index, or an entry with a
//! valid checksum either open or are reported as damaged with file and offset. A hash that has been
//! opened opens again with the same contents.
#![no_main]

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "../../engine/tests/disk_hash/crash_session.rs"]
#[allow(dead_code)]
mod crash_session;
#[path = "../../engine/tests/disk_hash/opener.rs"]
mod opener;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| opener::open_any(bytes));
