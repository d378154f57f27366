//! Receiving a backup: any bytes for its stream, its pieces or its list are either received as a
//! complete backup, which verifies and can be restored, or refused without leaving any files.
#![no_main]

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "../../todana/tests/incoming/mod.rs"]
mod incoming;
#[path = "../../todana/tests/kept/mod.rs"]
mod kept;
#[path = "../../todana/tests/opener/mod.rs"]
mod opener;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    incoming::receive_any(bytes);
});
