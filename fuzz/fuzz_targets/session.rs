//! Complete sessions, from decoder to engine, compared with the simple model of
//! `tests/session_model`.
#![no_main]

#[path = "../../tests/session_model/mod.rs"]
mod session_model;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| session_model::check(bytes));
