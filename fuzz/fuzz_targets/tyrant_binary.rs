//! Any bytes, cut in any way, yield the same requests of Tokyo Tyrant's binary protocol. The
//! decoder never panics, stands still or takes more than it was given. An encoded request is
//! decoded as the same one.
#![no_main]

mod kyoto_cuts;

use kyoto_cuts::{assert_cuts_do_not_matter, stream_and_cuts};
use todana_protocol::tyrant::{TyrantDecoder, TyrantLimits, TyrantRequest, TyrantStep};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((stream, cuts)) = stream_and_cuts(input) else { return };
    assert_cuts_do_not_matter(stream, &cuts, |cuts| requests(stream, cuts));
});

/// Returns the requests of a stream that arrives in pieces, and the reason why they end.
fn requests(stream: &[u8], cuts: &[usize]) -> Vec<String> {
    let limits = TyrantLimits::default();
    let (mut decoder, mut at, mut seen) = (TyrantDecoder::default(), 0, Vec::new());
    for end in cuts.iter().copied().chain([stream.len()]) {
        loop {
            match decoder.decode(&limits, &stream[at..end]) {
                TyrantStep::Request { consumed, request } => {
                    assert!(consumed > 1 && at + consumed <= end, "{consumed} bytes at {at} of {end}");
                    assert_round_trip(&request);
                    seen.push(format!("{request:?}"));
                    at += consumed;
                }
                TyrantStep::NeedMore { at_least } => {
                    assert!(at_least > 0);
                    break;
                }
                step @ (TyrantStep::Text | TyrantStep::Close) => {
                    seen.push(format!("{step:?} at {at}"));
                    return seen;
                }
            }
        }
    }
    seen
}

fn assert_round_trip(request: &TyrantRequest<'_>) {
    let mut encoded = Vec::new();
    request.encode(&mut encoded);
    let step = TyrantDecoder::default().decode(&TyrantLimits::default(), &encoded);
    let TyrantStep::Request { consumed, request: again } = step else { panic!("{step:?} of {request:?}") };
    assert_eq!(consumed, encoded.len());
    // The parts of an added number may be written in another way, and NaN equals nothing.
    let is_number = matches!(request, TyrantRequest::AddDouble { .. });
    assert!(is_number || again == *request, "{again:?} instead of {request:?}");
}
