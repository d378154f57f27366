//! The instructions of a search in a table: any bytes find the same rows with indexes as without.
#![no_main]

#[path = "../../tests/table_search/mod.rs"]
mod table_search;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| table_search::play(bytes));
