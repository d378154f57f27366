//! Adopting a block of an image: any bytes are adopted by a hash in memory, or are refused, and the
//! hash then works.
#![no_main]

#[path = "../../engine/tests/image_bytes/mod.rs"]
mod image_bytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| image_bytes::adopt_any(bytes));
