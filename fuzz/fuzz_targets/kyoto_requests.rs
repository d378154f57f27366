//! Streams of requests, from a fuzzer's bytes.

use super::exchange::send_in_pieces;
use super::kyoto_cuts::{assert_cuts_do_not_matter, stream_and_cuts};
use todana_protocol::kyoto::KyotoLimits;

/// Asserts that the results of the stream, which begins with `start`, do not depend on how it is
/// split.
pub(crate) fn assert_requests(input: &[u8], start: &[u8]) {
    let Some((limit, rest)) = input.split_first() else { return };
    let Some((stream, cuts)) = stream_and_cuts(rest) else { return };
    let stream = [start, stream].concat();
    let limits = match limit % 5 {
        0 | 1 => KyotoLimits::default(),
        2 => KyotoLimits { body_len_max: 20, ..KyotoLimits::default() },
        3 => KyotoLimits { body_len_max: 100, login_required: true, ..KyotoLimits::default() },
        _ => KyotoLimits { head_len_max: 80, ..KyotoLimits::default() },
    };
    let outcome = assert_cuts_do_not_matter(&stream, &cuts, |cuts| send_in_pieces(&limits, &stream, cuts));
    if outcome.requests.is_empty() {
        assert!(outcome.answers.is_empty(), "an answer to nothing");
    }
}
