//! Clients of all dialects on one server, each with any bytes, and with lists of the records that
//! the others have stored: the server still answers the next client.
#![no_main]

#[path = "../../tests/mixed_dialects/mod.rs"]
mod mixed_dialects;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| mixed_dialects::play(bytes));
