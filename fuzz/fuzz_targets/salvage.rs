//! Salvaging a data directory of any files: the intact parts become a new directory, or none is
//! created; the files stay unchanged.
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
