//! Requests with and without a valid login.

use crate::exchange::{Outcome, send_in_pieces, show};
use todana_protocol::kyoto::{
    BasicCredentials, HttpForm, KyotoDecoder, KyotoLimits, KyotoRequest, KyotoStep, MapScratch,
};

/// `alice:secret` and `alice:wrong`.
const RIGHT: &str = "Authorization: Basic YWxpY2U6c2VjcmV0\r\n";
const WRONG: &str = "Authorization: Basic YWxpY2U6d3Jvbmc=\r\n";

/// A bulk request of the binary protocol without records.
const BINARY: &[u8] = b"\xBA\0\0\0\0\0\0\0\0";

fn limits() -> KyotoLimits<'static> {
    KyotoLimits { login_required: true, ..KyotoLimits::default() }
}

fn send(stream: &[u8]) -> Outcome {
    send_in_pieces(&limits(), stream, &[])
}

fn get(headers: &str) -> Vec<u8> {
    format!("GET /k HTTP/1.1\r\n{headers}\r\n").into_bytes()
}

fn put(headers: &str, value: &str) -> Vec<u8> {
    let len = value.len();
    format!("PUT /k HTTP/1.1\r\n{headers}Content-Length: {len}\r\n\r\n{value}").into_bytes()
}

/// Returns the status of each answer.
fn statuses(outcome: &Outcome) -> Vec<String> {
    let answers = String::from_utf8_lossy(&outcome.answers);
    answers.split("HTTP/1.1 ").skip(1).map(|answer| answer[..3].to_owned()).collect()
}

#[test]
fn request_without_login_gets_401_and_is_skipped() {
    // The skipped body is not decoded as a request.
    let inner = String::from_utf8(get(RIGHT)).unwrap();
    let outcome = send(&[put("", &inner), put(WRONG, &inner), put(RIGHT, "v"), get(RIGHT)].concat());
    assert_eq!(statuses(&outcome), ["401", "401", "201", "200"]);
    assert!(!outcome.is_closed);
    assert!(outcome.requests[0].starts_with("stranger"), "{outcome:?}");
    let shown = show(&outcome.answers);
    let told = r#"HTTP/1.1 401 Unauthorized\r\n...Content-Length: 70\r\nContent-Type: text/plain\r\nWWW-Authenticate: Basic realm=\"todana\"\r\n\r\n401 Unauthorized (each request needs the name and password of a user)\n"#;
    assert!(shown.starts_with(&told.repeat(2)), "{shown}");
    assert!(shown.ends_with(r"\r\n\r\nv"), "{shown}");
}

#[test]
fn unauthenticated_body_of_unknown_length_closes_the_connection() {
    let chunked = b"POST /rpc/void HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    let endless = b"PUT /k HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n";
    for stream in [&chunked[..], endless, b"GET /k HTTP/1.0\r\n\r\n"] {
        let outcome = send(&[stream, &get(RIGHT)].concat());
        assert_eq!(statuses(&outcome), ["401"]);
        assert!(outcome.is_closed);
        assert!(show(&outcome.answers).contains(r"Connection: close\r\n"));
    }
    let chunked = [b"POST /rpc/void HTTP/1.1\r\n", RIGHT.as_bytes(), &chunked[25..], &get(RIGHT)].concat();
    assert_eq!(statuses(&send(&chunked)), ["200", "404"]);
}

#[test]
fn head_request_without_login_gets_no_body() {
    let outcome = send(b"HEAD /k HTTP/1.1\r\n\r\n");
    assert!(outcome.answers.ends_with(b"WWW-Authenticate: Basic realm=\"todana\"\r\n\r\n"));
}

#[test]
fn unauthenticated_body_is_not_awaited() {
    let (mut dialect, mut scratch) = (KyotoDecoder::default(), MapScratch::default());
    let head = format!("PUT /k HTTP/1.1\r\n{WRONG}Content-Length: 1000000\r\n\r\n");
    for _ in 0..2 {
        let step = dialect.decode(&limits(), head.as_bytes(), &mut scratch);
        assert_eq!(step, KyotoStep::Login { consumed: 0, authorization: Some(b"Basic YWxpY2U6d3Jvbmc=") });
    }
    assert_eq!(dialect.refuse_login(&limits()), HttpForm::new(true, false));
    let step = dialect.decode(&limits(), head.as_bytes(), &mut scratch);
    assert_eq!(step, KyotoStep::NeedMore { consumed: head.len(), at_least: 1 });
    for _ in 0..10 {
        let step = dialect.decode(&limits(), &[b'v'; 100_000], &mut scratch);
        assert_eq!(step, KyotoStep::NeedMore { consumed: 100_000, at_least: 1 });
    }
    let next = get("");
    let step = dialect.decode(&limits(), &next, &mut scratch);
    assert_eq!(step, KyotoStep::Login { consumed: 0, authorization: None });
    dialect.accept_login();
    let step = dialect.decode(&limits(), &next, &mut scratch);
    let KyotoStep::Request { consumed, request: KyotoRequest::Rest(_) } = step else { panic!("{step:?}") };
    assert_eq!(consumed, next.len());
}

#[test]
fn binary_protocol_requires_an_authenticated_http_request() {
    for stream in [BINARY.to_vec(), [get(""), BINARY.to_vec()].concat(), b"\xB1".to_vec(), b"\xB4".to_vec()] {
        let outcome = send(&stream);
        assert!(outcome.is_closed && outcome.answers.ends_with(b"\xBF"), "{outcome:?}");
    }
    let outcome = send(&[&get(RIGHT), BINARY, BINARY, &get(RIGHT), BINARY].concat());
    assert!(!outcome.is_closed && outcome.answers.ends_with(b"\xBA\0\0\0\0"));
    for stranger in [get(""), get(WRONG)] {
        let outcome = send(&[&get(RIGHT), BINARY, &stranger, BINARY, BINARY].concat());
        assert_eq!(statuses(&outcome), ["404", "401"]);
        assert!(outcome.is_closed && outcome.answers.ends_with(b")\n\xBF"), "{outcome:?}");
    }
}

#[test]
fn an_authorization_counts_only_as_one_whole_line() {
    let long = "A".repeat(9000);
    let cr = RIGHT.replace("YWxp", "YW\rxp");
    let twice = format!("{RIGHT}{RIGHT}");
    let thrice = format!("{RIGHT}{RIGHT}{RIGHT}");
    let of_long = format!("Authorization: Basic {long}\r\n");
    for headers in [&cr, &twice, &thrice, &of_long, "authorization:\r\n", "Authorization: Basic\r\n"] {
        assert_eq!(statuses(&send(&get(headers))), ["401"], "{headers}");
    }
    for headers in [
        "aUTHORIZATION:bAsIc   YWxpY2U6c2VjcmV0  \r\n",
        "Accept: */*\r\nAuthorization: Basic YWxpY2U6c2VjcmV0\nx: y\r\n",
    ] {
        assert_eq!(statuses(&send(&get(headers))), ["404"], "{headers}");
    }
    // If no login is required, the header is ignored.
    let outcome = send_in_pieces(&KyotoLimits::default(), &get(WRONG), &[]);
    assert_eq!(statuses(&outcome), ["404"]);
}

#[test]
fn head_without_login_has_a_lower_limit() {
    let head = |len: usize| get(&format!("{RIGHT}{}", "X: yyyyyyyy\r\n".repeat(len / 13)));
    assert_eq!(statuses(&send(&head(15_000))), ["404"]);
    let outcome = send(&head(20_000));
    assert_eq!((statuses(&outcome), outcome.is_closed), (vec!["431".into()], true));
    let outcome = send(&[get(RIGHT), head(20_000)].concat());
    assert_eq!(statuses(&outcome), ["404", "404"]);
}

#[test]
fn foreign_page_is_refused_before_the_login() {
    let outcome = send(&get(&format!("{RIGHT}Origin: http://other.example\r\n")));
    assert_eq!(statuses(&outcome), ["403"]);
}

#[test]
fn streams_with_logins_may_be_split_anywhere() {
    let stream = [
        &get(""),
        &put(WRONG, "vvvvvvvvvv"),
        &put(RIGHT, "value"),
        BINARY,
        &get(RIGHT),
        b"POST /rpc/echo HTTP/1.1\r\nAuthorization: Basic YWxpY2U6c2VjcmV0\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\tb\r\n0\r\n\r\n",
        &put("", ""),
        BINARY,
    ]
    .concat();
    let whole = send(&stream);
    assert_eq!(statuses(&whole), ["401", "401", "201", "200", "200", "401"]);
    for cut in 0..stream.len() {
        assert_eq!(send_in_pieces(&limits(), &stream, &[cut]), whole, "{cut}");
    }
    let each: Vec<usize> = (0..stream.len()).collect();
    assert_eq!(send_in_pieces(&limits(), &stream, &each), whole);
}

#[test]
fn credentials_are_base64_of_name_colon_password() {
    let read = |text: &str| {
        let said = BasicCredentials::read(text.as_bytes())?;
        Some((said.user().to_vec(), said.password().to_vec()))
    };
    for (text, user, password) in [
        ("Basic YWxpY2U6c2VjcmV0", "alice", "secret"),
        ("BASIC  YWxpY2U6YTpi ", "alice", "a:b"),
        ("Basic Og==", "", ""),
        ("Basic OnA=", "", "p"),
        ("Basic dTo=", "u", ""),
    ] {
        assert_eq!(read(text), Some((user.into(), password.into())), "{text}");
    }
    for text in [
        "",
        "Basic",
        "Basic ",
        "Basic YWxpY2U=",
        "Basic Og",
        "Basic Og=",
        "Basic O:",
        "Basic Og== Og==",
        "Bearer Og==",
        "BasicOg==",
    ] {
        assert_eq!(read(text), None, "{text}");
    }
}
