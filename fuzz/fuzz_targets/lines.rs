//! A stream of lines, from a fuzzer's bytes.

use super::cuts::assert_cuts_do_not_matter;
use super::exchange::Outcome;
use todana_protocol::memcached::{DialectChoice, MemcachedLimits};

/// Asserts that the results of the stream do not depend on how it is split, and that the replies
/// are lines.
pub(crate) fn assert_lines(input: &[u8], start: &[u8]) {
    // The binary dialect has its own target; its replies are not lines.
    let text = MemcachedLimits { choice: DialectChoice::Text, ..MemcachedLimits::default() };
    let limits = [
        text,
        MemcachedLimits { item_size_max: 70, ..text },
        MemcachedLimits { line_len_max: 0, get_line_len_max: 200, ..text },
        MemcachedLimits { item_size_max: u64::MAX, flush_allowed: false, long_block_len: 4, ..text },
        MemcachedLimits { text_login: true, ..text },
        MemcachedLimits { text_login: true, line_len_max: 40, long_block_len: 8, ..text },
    ];
    if let Some((_, whole)) = assert_cuts_do_not_matter(input, start, &limits) {
        assert_replies_are_whole_lines(&whole);
    }
}

/// Asserts that the replies to any requests end with a line end.
fn assert_replies_are_whole_lines(outcome: &Outcome) {
    assert!(outcome.replies.is_empty() || outcome.replies.ends_with(b"\r\n"));
    if outcome.requests.is_empty() {
        assert!(outcome.replies.is_empty(), "an answer to nothing");
    }
}
