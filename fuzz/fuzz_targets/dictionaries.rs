//! Dictionaries and key shapes: any bytes are decoded or refused, and are the same after they were
//! encoded and decoded.
#![no_main]

#[path = "../../engine/tests/encoded_bytes/mod.rs"]
mod encoded_bytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| encoded_bytes::code_any(bytes));
