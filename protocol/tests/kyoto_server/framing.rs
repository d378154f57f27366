//! HTTP as the original implements it.

use crate::exchange::{Outcome, answers, send_in_pieces};
use todana_protocol::kyoto::{
    DatabaseTarget, KyotoDecoder, KyotoLimits, KyotoRequest, KyotoStep, MapScratch, ProtocolGuess,
    RequestRefusal, begins, parse_date,
};

fn send(stream: &[u8]) -> Outcome {
    send_in_pieces(&KyotoLimits::default(), stream, &[])
}

/// Passes the single request of a stream to a function.
fn with_request(stream: &[u8], see: impl FnOnce(KyotoRequest<'_>)) {
    let (mut dialect, mut scratch) = (KyotoDecoder::default(), MapScratch::default());
    match dialect.decode(&KyotoLimits::default(), stream, &mut scratch) {
        KyotoStep::Request { consumed, request } => {
            assert_eq!(consumed, stream.len());
            see(request);
        }
        step => panic!("{step:?}"),
    }
}

fn keeps_alive(stream: &str) -> bool {
    let outcome = send(stream.as_bytes());
    assert_eq!(outcome.requests.len(), 1);
    let is_told = outcome.answers.windows(19).any(|window| window == b"Connection: close\r\n");
    assert_eq!(is_told, outcome.is_closed);
    !outcome.is_closed
}

#[test]
fn only_the_exact_request_line_is_one() {
    for line in [
        "GET /k HTTP/2.0",
        "GET /k HTTP/0.9",
        "GET /k http/1.1",
        "GET /k HTTP/1.1 ",
        "GET /k  HTTP/1.1",
        "GET  HTTP/1.1",
        "GET ?a=b HTTP/1.1",
        "GET /k",
        "GET",
        "",
        "  ",
    ] {
        let outcome = send(format!("{line}\r\n\r\n").as_bytes());
        assert!(outcome.is_closed && outcome.requests.is_empty(), "{line:?}: {outcome:?}");
        assert!(outcome.answers.is_empty());
    }
}

#[test]
fn slash_and_cr_are_optional() {
    let stream = b"PUT key HTTP/1.1\nContent-Length: 1\n\nvGET /key HTTP/1.1\r\r\n\r\n";
    let outcome = send(stream);
    assert_eq!(outcome.requests.len(), 2, "{outcome:?}");
    assert!(outcome.answers.ends_with(b"\r\n\r\nv"));
}

#[test]
fn every_cr_is_dropped() {
    with_request(b"P\rUT /a\rb HT\rTP/1.1\r\nContent-\rLength\r: 1\r\r\n\r\r\nv", |request| {
        let KyotoRequest::Rest(rest) = request else { panic!("{request:?}") };
        assert_eq!(rest.key, b"ab");
    });
}

#[test]
fn version_and_header_decide_about_keep_alive() {
    assert!(keeps_alive("GET /rpc/void HTTP/1.1\r\n\r\n"));
    assert!(!keeps_alive("GET /rpc/void HTTP/1.0\r\n\r\n"));
    assert!(!keeps_alive("GET /rpc/void HTTP/1.1\r\nConnection: Close\r\n\r\n"));
    assert!(keeps_alive("GET /rpc/void HTTP/1.0\r\nCONNECTION:Keep-Alive\r\n\r\n"));
    // The complete value is compared, and trailing blanks belong to it.
    assert!(keeps_alive("GET /rpc/void HTTP/1.1\r\nConnection: close \r\n\r\n"));
    assert!(keeps_alive("GET /rpc/void HTTP/1.1\r\nConnection: close, te\r\n\r\n"));
}

#[test]
fn closing_answer_has_a_connection_header() {
    assert_eq!(
        answers(b"GET /rpc/void HTTP/1.0\r\n\r\n"),
        "HTTP/1.1 200 OK\\r\\n...Connection: close\\r\\nContent-Length: 0\\r\\n\
         Content-Type: text/tab-separated-values\\r\\n\\r\\n"
    );
}

#[test]
fn bodies_of_requests_that_have_none_are_dropped() {
    for method in ["GET", "HEAD", "DELETE"] {
        let stream = format!(
            "{method} /rpc/void HTTP/1.1\r\nContent-Length: 20\r\n\r\nGET /a HTTP/1.1\r\n\r\n\nGET /rpc/echo?b HTTP/1.1\r\n\r\n"
        );
        for cut in 0..stream.len() {
            let outcome = send_in_pieces(&KyotoLimits::default(), stream.as_bytes(), &[cut]);
            assert_eq!(outcome.requests.len(), 2, "{outcome:?}");
            assert!(outcome.requests[1].contains("Echo"), "{outcome:?}");
            assert!(!outcome.is_closed);
        }
    }
    // Chunks cannot be distinguished from requests without parsing them.
    let outcome = send(b"GET /rpc/void HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    assert_eq!(outcome.requests.len(), 1);
    assert!(outcome.is_closed);
}

#[test]
fn head_answer_has_no_body() {
    assert_eq!(
        answers(b"HEAD /rpc/echo?a=b HTTP/1.1\r\n\r\n"),
        "HTTP/1.1 200 OK\\r\\n...Content-Type: text/tab-separated-values\\r\\n\\r\\n"
    );
    let answers = answers(b"PUT /k HTTP/1.1\r\nContent-Length: 5\r\n\r\nhelloHEAD /k HTTP/1.1\r\n\r\nHEAD /none HTTP/1.1\r\n\r\n");
    assert!(
        answers.ends_with(
            "HTTP/1.1 200 OK\\r\\n...Content-Length: 5\\r\\n\\r\\n\
             HTTP/1.1 404 Not Found\\r\\n...Content-Length: 0\\r\\nX-Kt-Error: DB: 7: no record: no record\\r\\n\\r\\n"
        ),
        "{answers}"
    );
}

#[test]
fn resources_are_stored_by_mode_and_deleted() {
    let put = |mode: &str| format!("PUT /k HTTP/1.1\r\nX-KT-Mode: {mode}\r\nContent-Length: 1\r\n\r\nv");
    let stream = [&put("REPLACE"), &put("add"), &put("Add"), &put("other")].map(String::as_str).concat()
        + "DELETE /k HTTP/1.1\r\n\r\nDELETE /k HTTP/1.1\r\n\r\nPOST /k HTTP/1.1\r\n\r\nBREW /k HTTP/1.1\r\n\r\nGET /x/k HTTP/1.1\r\n\r\n";
    let shown = answers(stream.as_bytes());
    let codes: Vec<&str> = shown.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
    assert_eq!(codes, ["450", "201", "450", "201", "204", "404", "501", "501", "400"]);
    assert!(
        shown.ends_with("400 Bad Request\\r\\n...Content-Length: 17\\r\\n\\r\\nno such database\\n"),
        "{shown}"
    );
    assert!(shown.contains("204 No Content\\r\\n...Content-Length: 0\\r\\n\\r\\n"));
    assert!(shown.contains("X-Kt-Error: DB: 6: record duplication: record duplication\\r\\n"));
}

#[test]
fn paths_name_a_database_and_a_key() {
    for (target, database, key) in [
        ("/k", DatabaseTarget::Index(0), &b"k"[..]),
        ("/", DatabaseTarget::Index(0), b""),
        ("/db.kct/a/b?q=1", DatabaseTarget::Name(b"db.kct"), b"a/b"),
        ("/1//x", DatabaseTarget::Index(1), b"x"),
        ("/%31/%2Fx+y", DatabaseTarget::Index(1), b"/x y"),
        ("/d%62/caf\u{e9}%00", DatabaseTarget::Name(b"db"), b"caf\xC3\xA9\0"),
        ("k", DatabaseTarget::Index(0), b"k"),
        ("rpc/get", DatabaseTarget::Name(b"rpc"), b"get"),
    ] {
        with_request(format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes(), |request| {
            let KyotoRequest::Rest(rest) = request else { panic!("{request:?}") };
            assert_eq!((rest.target, rest.key), (database, key), "{target}");
            assert_eq!(rest.location, target.as_bytes());
        });
    }
}

#[test]
fn times_of_resources_are_absolute() {
    for (text, xt) in [("2000000000", Some(2_000_000_000)), ("-5", None), ("5", Some(5)), ("soon", None)] {
        assert_eq!(parse_date(text.as_bytes()), xt);
        let stream = format!("PUT /k HTTP/1.1\r\nX-Kt-Xt: {text}\r\nContent-Length: 0\r\n\r\n");
        with_request(stream.as_bytes(), |request| {
            assert!(format!("{request:?}").contains(&format!("xt: {xt:?}")), "{request:?}");
        });
    }
}

#[test]
fn long_line_is_split_at_the_limit() {
    // A header of 8191 bytes is complete; byte 8192 begins the next line, which is another header.
    let filler = "a".repeat(8191 - 3);
    let stream = format!("PUT /k HTTP/1.1\r\nx: {filler}Content-Length: 1\r\n\r\nv");
    with_request(stream.as_bytes(), |request| assert!(format!("{request:?}").contains("value: [118]")));
    // Bytes before that limit belong to the long header.
    let stream = format!("PUT /k HTTP/1.1\r\nx: {}Content-Length: 1\r\n\r\n", &filler[1..]);
    with_request(stream.as_bytes(), |request| assert!(format!("{request:?}").contains("value: []")));
    // A request line that is split has no version.
    let stream = format!("GET /{} HTTP/1.1\r\n\r\n", "k".repeat(8191));
    assert!(send(stream.as_bytes()).is_closed);
    let longest = 8191 - "GET / HTTP/1.1".len();
    let stream = format!("GET /{} HTTP/1.1\r\n\r\n", "k".repeat(longest));
    with_request(stream.as_bytes(), |_| {});
}

#[test]
fn endless_head_closes_the_connection() {
    let limits = KyotoLimits { head_len_max: 1000, ..KyotoLimits::default() };
    let head = format!("GET /k HTTP/1.1\r\n{}", "x: y\r\n".repeat(163));
    assert_eq!(head.len(), 995);
    assert!(!send_in_pieces(&limits, head.as_bytes(), &[]).is_closed);
    let whole = send_in_pieces(&limits, format!("{head}\r\n").as_bytes(), &[]);
    assert_eq!((whole.requests.len(), whole.is_closed), (1, false));
    for longer in [format!("{head}x: y\r\n"), format!("{head}xxxxxxxxxxxx")] {
        let outcome = send_in_pieces(&limits, longer.as_bytes(), &[]);
        assert_eq!(outcome.requests, ["Refused(HeadTooLarge)"]);
        assert!(outcome.is_closed);
    }
}

#[test]
fn body_over_the_limit_is_answered_and_closes() {
    let told = "HTTP/1.1 413 Request Entity Too Large\\r\\n...Connection: close\\r\\nContent-Length: 59\\r\\n\
        Content-Type: text/plain\\r\\n\\r\\n413 Request Entity Too Large (request entity too large)\\n";
    let told =
        told.replace("59", &"413 Request Entity Too Large (request entity too large)\n".len().to_string());
    for stream in [
        &b"POST /rpc/void HTTP/1.1\r\nContent-Length: 268435457\r\n\r\n"[..],
        b"POST /rpc/void HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /rpc/void HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n10000000\r\n",
        b"POST /rpc/void HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
    ] {
        assert_eq!(answers(stream), told, "{}", stream.escape_ascii());
        assert!(send(stream).is_closed);
    }
    // The largest allowed body is awaited.
    let outcome = send(b"POST /rpc/void HTTP/1.1\r\nContent-Length: 268435456\r\n\r\n");
    assert!(outcome.requests.is_empty() && !outcome.is_closed);
}

#[test]
fn body_beyond_the_available_memory_is_too_large() {
    let limits = KyotoLimits { unfinished_len_max: 100, ..KyotoLimits::default() };
    let head = "PUT /k HTTP/1.1\r\nContent-Length: 200\r\n\r\n";
    let stream = format!("{head}{}", "v".repeat(100));
    let outcome = send_in_pieces(&limits, stream.as_bytes(), &[100]);
    assert_eq!(outcome.requests, ["Refused(TooLarge)"]);
    // A body that has arrived completely is not refused.
    let stream = format!("{head}{}", "v".repeat(200));
    assert_eq!(send_in_pieces(&limits, stream.as_bytes(), &[]).requests.len(), 1);
}

#[test]
fn invalid_chunks_are_answered_and_close() {
    for chunks in ["3\r\nabcd\r\n0\r\n\r\n", "zz\r\nab", "1\r\na\n\n"] {
        let stream = format!("PUT /k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        let shown = answers(stream.as_bytes());
        assert!(shown.ends_with("\\r\\n\\r\\n400 Bad Request (invalid chunk)\\n"), "{chunks:?}: {shown}");
    }
}

#[test]
fn a_length_wins_over_chunks() {
    let stream = b"PUT /k HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\n";
    with_request(stream, |request| assert!(format!("{request:?}").contains("value: [51, 13, 10]")));
}

#[test]
fn interrupted_request_is_answered_by_its_position() {
    for (input, refusal) in [
        (&b""[..], None),
        (b"GET /k HT", None),
        (b"PUT /k HTTP/1.1\r\nContent-Length: 3\r\n", None),
        (b"PUT /k HTTP/1.1\r\nContent-Length: 3\r\n\r\nab", Some(RequestRefusal::Interrupted)),
        (b"PUT /k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2", Some(RequestRefusal::Interrupted)),
        (b"\xB8\0\0\0\0\0\0\0\x01\0", Some(RequestRefusal::Binary)),
        (b"\xB8\0\0\0\x01\0\0\0\x01\0", None),
        (b"\xB8\0\0\0", None),
    ] {
        let (mut dialect, mut scratch) = (KyotoDecoder::default(), MapScratch::default());
        let mut unread = input;
        while let KyotoStep::Request { consumed, .. } =
            dialect.decode(&KyotoLimits::default(), unread, &mut scratch)
        {
            unread = &unread[consumed..];
        }
        assert_eq!(dialect.interrupted(), refusal, "{}", input.escape_ascii());
    }
}

#[test]
fn first_bytes_identify_the_protocol_on_shared_ports() {
    for (input, beginning) in [
        (&b""[..], ProtocolGuess::Unsure),
        (b"\xB1", ProtocolGuess::Kyoto),
        (b"\xB4", ProtocolGuess::Kyoto),
        (b"\xB8", ProtocolGuess::Kyoto),
        (b"\xB9", ProtocolGuess::Kyoto),
        (b"\xBA", ProtocolGuess::Kyoto),
        (b"\x80", ProtocolGuess::Other),
        (b"\xC8", ProtocolGuess::Other),
        (b"G", ProtocolGuess::Unsure),
        (b"GET", ProtocolGuess::Unsure),
        (b"GET ", ProtocolGuess::Kyoto),
        (b"GETX ", ProtocolGuess::Kyoto),
        (b"get k\r\n", ProtocolGuess::Other),
        (b" GET", ProtocolGuess::Other),
        (b"GET\r", ProtocolGuess::Other),
        (b"AAAAAAAAAAAAAAAAA", ProtocolGuess::Other),
    ] {
        assert_eq!(begins(input), beginning, "{}", input.escape_ascii());
    }
}
