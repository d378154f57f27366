//! Any bytes from a server of the proxy: sessions end, and each request has one reply.
#![no_main]

#[path = "../../tests/proxy_bytes/mod.rs"]
mod proxy_bytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| proxy_bytes::play_server(bytes));
