//! Tests that the results do not depend on how a stream is split.

use crate::exchange::{Outcome, hex, send_in_pieces};
use todana_protocol::kyoto::KyotoLimits;

/// Sends the stream in one piece, in all splits into two, in many splits into three, and byte by
/// byte.
fn assert_cuts_do_not_matter(stream: &[u8]) -> Outcome {
    let limits = KyotoLimits::default();
    let whole = send_in_pieces(&limits, stream, &[]);
    for cut in 0..=stream.len() {
        assert_eq!(send_in_pieces(&limits, stream, &[cut]), whole, "cut at {cut}");
        let other = (cut * 7 + 3) % (stream.len() + 1);
        let cuts = [cut.min(other), cut.max(other)];
        assert_eq!(send_in_pieces(&limits, stream, &cuts), whole, "cut at {cuts:?}");
    }
    let every_byte: Vec<usize> = (1..stream.len()).collect();
    assert_eq!(send_in_pieces(&limits, stream, &every_byte), whole, "byte by byte");
    whole
}

#[test]
fn calls_resources_and_binary_requests_follow_one_another() {
    let mut stream = b"POST /rpc/set HTTP/1.1\r\nHost: x\r\nContent-Type: text/tab-separated-values\r\nContent-Length: 22\r\n\r\n\
        key\tjapan\nvalue\ttokyo\n\
        GET /rpc/get?key=japan HTTP/1.1\r\n\r\n\
        PUT /k HTTP/1.1\r\nX-Kt-Xt: 2000000000\r\nContent-Length: 5\r\n\r\nhello\
        HEAD /k HTTP/1.1\n\n"
        .to_vec();
    stream.extend(hex("b8 00000000 00000002 0000 00000005 00000005 7fffffffffffffff 6a6170616e 746f6b796f \
                       0000 00000002 00000001 ffffffff88ca6c00 6b32 76"));
    stream.extend(hex("ba 00000000 00000002 0000 00000005 6a6170616e 0000 00000002 6b32"));
    stream.extend(hex(
        "b4 00000000 00000004 00000002 6563686f 00000001 00000001 61 31 00000002 00000002 6262 3232",
    ));
    stream.extend(b"GET k HTTP/1.0\r\n\r\nGET k HTTP/1.1\r\n\r\n");
    let outcome = assert_cuts_do_not_matter(&stream);
    assert_eq!(outcome.requests.len(), 4 + 3 + 3 + 1 + 1);
    assert!(outcome.is_closed, "by the request of HTTP/1.0");
}

#[test]
fn chunks_are_put_together() {
    let outcome = assert_cuts_do_not_matter(
        b"POST /rpc/echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Type: text/tab-separated-values\r\n\r\n\
          3\r\na\tb\r\n1\r\n\n\r\n0005;x\r\nc\td\n\n\r\n0\r\n\r\n\
          PUT /k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n\
          GET /k HTTP/1.1\r\n\r\n",
    );
    assert_eq!(outcome.requests.len(), 3, "{:?}", outcome.requests);
    assert!(outcome.requests[0].contains(r#"{"a": "b", "c": "d"}"#), "{:?}", outcome.requests);
    assert!(outcome.answers.ends_with(b"\r\n\r\nhello"));
}

#[test]
fn forms_and_encoded_columns_are_decoded() {
    let outcome = assert_cuts_do_not_matter(
        b"POST /rpc/echo?q=%41&b=1+2 HTTP/1.1\r\nContent-Length: 14\r\n\
          Content-Type: application/x-www-form-urlencoded\r\n\r\nx=%2f&y=&b=two\
          POST /rpc/ec%68o?q=JTQx HTTP/1.1\r\nContent-Type: text/tab-separated-values; colenc=\"b\"\r\n\
          content-length: 10\r\n\r\nYQ==\tYgBj\n",
    );
    assert!(
        outcome.requests[0].contains(r#"{"b": "two", "q": "A", "x": "/", "y": ""}"#),
        "{:?}",
        outcome.requests
    );
    assert!(outcome.requests[1].contains("procedure: Some(Echo)"), "{:?}", outcome.requests);
}

#[test]
fn refused_requests_end_the_stream() {
    for stream in [
        &b"PUT /k HTTP/1.1\r\nContent-Length: 268435457\r\n\r\nabc"[..],
        b"PUT /k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n10000001\r\nabc",
        b"PUT /k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        b"\xB8\0\0\0\0\0\0\0\x01\0\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0GET",
        b"\xB4\0\0\0\0\xFF\0\0\0\0\0\0\x01\0\0",
        b"\x81abc",
        b"\0abc",
        b"GET /k HTTP/2.0\r\n\r\n",
        b"garbage\r\n",
        b"\r\n\r\n",
    ] {
        let outcome = assert_cuts_do_not_matter(stream);
        assert!(outcome.is_closed, "{}", stream.escape_ascii());
        assert!(outcome.requests.len() <= 2, "{:?}", outcome.requests);
    }
}
