//! Kyoto Tycoon's HTTP requests: any bytes, split in any way, yield the same requests and answers,
//! and keep the decoder's promises.
//!
//! The input is a byte that selects the limits, a byte with the number of cuts, the cuts (two bytes
//! each), and the stream.
#![no_main]

#[path = "../../protocol/tests/kyoto_server/exchange.rs"]
#[allow(dead_code)]
mod exchange;
mod kyoto_cuts;
mod kyoto_requests;

libfuzzer_sys::fuzz_target!(|input: &[u8]| kyoto_requests::assert_requests(input, &[]));
