//! Repairing a data directory of any files: looking changes nothing, what is told is done, what is repaired opens, and no file is lost;
//! what is whole becomes a directory elsewhere, or nothing does.
#![no_main]

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "../../todana/tests/kept/mod.rs"]
mod kept;
#[path = "../../todana/tests/opener/mod.rs"]
mod opener;
#[path = "../../todana/tests/spoiled/mod.rs"]
mod spoiled;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| spoiled::repair_any(bytes));
