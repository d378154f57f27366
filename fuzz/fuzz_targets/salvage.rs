//! Salvaging a data directory of any files: what is whole becomes a directory elsewhere, or nothing does; the files stay as they are.
#![no_main]

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "../../todana/tests/kept/mod.rs"]
mod kept;
#[path = "../../todana/tests/opener/mod.rs"]
mod opener;
#[path = "../../todana/tests/spoiled/mod.rs"]
mod spoiled;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| spoiled::salvage_any(bytes));
