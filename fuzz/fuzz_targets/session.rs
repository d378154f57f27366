//! Whole sessions, decoder to engine, against the naive model of `tests/session_model`.
#![no_main]

#[path = "../../tests/session_model/mod.rs"]
mod session_model;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| session_model::check(bytes));
