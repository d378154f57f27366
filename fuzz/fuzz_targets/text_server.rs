//! Text requests: any bytes, split in any way, yield the same commands and replies, and keep the
//! decoder's promises.
//!
//! The input is a byte that selects the limits, a byte with the number of cuts, the cuts (two bytes
//! each), and the stream.
#![no_main]

mod cuts;
#[path = "../../protocol/tests/memcached_server/exchange.rs"]
mod exchange;
mod lines;

libfuzzer_sys::fuzz_target!(|input: &[u8]| lines::assert_lines(input, b""));
