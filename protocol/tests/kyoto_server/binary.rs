//! The binary protocol.

use crate::exchange::{hex, send_in_pieces};
use todana_protocol::kyoto::{KyotoDecoder, KyotoLimits, KyotoRequest, KyotoStep, MapScratch};

fn send(text: &str) -> crate::exchange::Outcome {
    send_in_pieces(&KyotoLimits::default(), &hex(text), &[])
}

#[test]
fn records_come_out_as_they_come_in() {
    let (mut dialect, mut scratch) = (KyotoDecoder::default(), MapScratch::default());
    // The second record has not arrived yet.
    let input = hex("b8 00000000 00000002 0000 00000001 00000001 7fffffffffffffff 61 62 0000");
    let step = dialect.decode(&KyotoLimits::default(), &input, &mut scratch);
    let KyotoStep::Request { consumed: 9, request: KyotoRequest::Bulk(begin) } = step else {
        panic!("{step:?}")
    };
    assert_eq!((begin.record, begin.remaining), (None, 2));
    let step = dialect.decode(&KyotoLimits::default(), &input[9..], &mut scratch);
    let KyotoStep::Request { consumed: 20, request: KyotoRequest::Bulk(piece) } = step else {
        panic!("{step:?}")
    };
    assert_eq!(piece.record.map(|record| (record.key, record.value)), Some((&b"a"[..], &b"b"[..])));
    assert_eq!(piece.remaining, 1);
    let step = dialect.decode(&KyotoLimits::default(), &input[29..], &mut scratch);
    assert_eq!(step, KyotoStep::NeedMore { consumed: 0, at_least: 16 });
}

#[test]
fn silent_requests_are_not_answered_but_reading_is() {
    let silent_set = "b8 00000001 00000001 0000 00000001 00000001 7fffffffffffffff 61 62";
    let silent_remove = "b9 00000001 00000001 0000 00000001 78";
    let silent_get = "ba 00000001 00000001 0000 00000001 61";
    let outcome = send(&[silent_set, silent_remove, silent_get].concat());
    assert_eq!(outcome.answers, hex("ba 00000001 0000 00000001 00000001 000000ffffffffff 61 62"));
}

#[test]
fn requests_of_no_records_are_answered() {
    let outcome = send("b8 00000000 00000000 b9 00000000 00000000 ba 00000000 00000000");
    assert_eq!(outcome.answers, hex("b8 00000000 b9 00000000 ba 00000000"));
    assert_eq!(outcome.requests.len(), 3);
}

#[test]
fn silent_request_over_the_limit_closes_silently() {
    for text in [
        "b8 00000001 00000001 0000 10000001 00000000 7fffffffffffffff",
        "b9 00000001 00000001 0000 10000001",
        "b4 00000001 10000001 00000000",
        "b4 00000001 00000000 00000001 00000000 10000001",
    ] {
        let outcome = send(text);
        assert!(outcome.is_closed && outcome.answers.is_empty(), "{text}: {outcome:?}");
        let aloud = text.replacen("00000001", "00000000", 1);
        let outcome = send(&aloud);
        assert!(outcome.is_closed, "{aloud}");
        assert_eq!(outcome.answers, hex("bf"), "{aloud}");
    }
}

#[test]
fn unknown_first_byte_closes_silently() {
    for first in (0x80..=0xFFu8).chain([0]).filter(|byte| ![0xB1, 0xB4, 0xB8, 0xB9, 0xBA].contains(byte)) {
        let outcome = send_in_pieces(&KyotoLimits::default(), &[first, 0, 0, 0], &[]);
        assert!(outcome.is_closed && outcome.answers.is_empty() && outcome.requests.is_empty(), "{first:x}");
    }
}

#[test]
fn script_of_many_empty_pairs_is_refused_quickly() {
    let limits = KyotoLimits { body_len_max: 1000, ..KyotoLimits::default() };
    let mut stream = hex("b4 00000000 00000000 ffffffff");
    stream.resize(100_000, 0);
    let outcome = send_in_pieces(&limits, &stream, &[]);
    assert_eq!(outcome.requests, ["Refused(Binary)"]);
}

#[test]
fn last_of_equal_script_parameters_counts() {
    let outcome = send(
        "b4 00000000 00000004 00000003 6563686f 00000001 00000001 62 31 00000001 00000001 61 32 00000001 00000001 62 33",
    );
    assert_eq!(outcome.answers, hex("b4 00000002 00000001 00000001 61 32 00000001 00000001 62 33"));
}

#[test]
fn missing_bytes_of_a_record_are_exact() {
    let (mut dialect, mut scratch) = (KyotoDecoder::default(), MapScratch::default());
    let mut input = hex("b8 00000000 00000001");
    let step = dialect.decode(&KyotoLimits::default(), &input, &mut scratch);
    assert!(matches!(step, KyotoStep::Request { consumed: 9, .. }));
    input = hex("0000 00000003 0f000000 0000000000000000 61");
    let step = dialect.decode(&KyotoLimits::default(), &input, &mut scratch);
    assert_eq!(step, KyotoStep::NeedMore { consumed: 0, at_least: 0x0f00_0002 });
}
