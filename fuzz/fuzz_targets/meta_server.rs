//! Meta requests: the same as `text_server`, but every stream starts with the `m` of a meta
//! command, and with these limits blocks fit, or do not fit, by a few bytes.
#![no_main]

mod cuts;
#[path = "../../protocol/tests/memcached_server/exchange.rs"]
mod exchange;
mod lines;

libfuzzer_sys::fuzz_target!(|input: &[u8]| lines::assert_lines(input, b"m"));
