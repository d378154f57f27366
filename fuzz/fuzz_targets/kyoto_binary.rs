//! The same as `kyoto_http`, for streams that begin with a request of the binary protocol, which a
//! byte selects.
#![no_main]

#[path = "../../protocol/tests/kyoto_server/exchange.rs"]
#[allow(dead_code)]
mod exchange;
mod kyoto_cuts;
mod kyoto_requests;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((choice, input)) = input.split_first() else { return };
    let magic = [0xB1, 0xB4, 0xB8, 0xB9, 0xBA][usize::from(choice % 5)];
    kyoto_requests::assert_requests(input, &[magic]);
});
