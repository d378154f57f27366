//! Opening a hash on disk: any bytes in a segment, a checkpoint of the index, or an entry whose checksum is right, open or are
//! damaged, which is said with file and offset; what has been opened opens again, to the same.
#![no_main]

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "../../engine/tests/disk_hash/crash_session.rs"]
#[allow(dead_code)]
mod crash_session;
#[path = "../../engine/tests/disk_hash/opener.rs"]
mod opener;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| opener::open_any(bytes));
