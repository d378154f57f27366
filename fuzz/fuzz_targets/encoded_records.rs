//! A hash in memory with dictionaries and key shapes: after any writes, its records and those of
//! its image are those of a model.
#![no_main]

#[path = "../../engine/tests/encoded_records/mod.rs"]
mod encoded_records;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| encoded_records::change_any(bytes));
