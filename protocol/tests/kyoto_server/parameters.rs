//! The parameters of calls.

use todana_protocol::kyoto::{
    DatabaseTarget, IncrementOrigin, KyotoDecoder, KyotoLimits, KyotoRequest, KyotoStep, MapScratch,
    ProcedureCall, SignalSend, SignalWait, TimestampParameter,
};

/// Passes the call with this query to a function.
fn with_call(query: &str, see: impl FnOnce(ProcedureCall<'_>)) {
    let stream = format!("GET /rpc/x?{query} HTTP/1.1\r\n\r\n");
    let (mut dialect, mut scratch) = (KyotoDecoder::default(), MapScratch::default());
    match dialect.decode(&KyotoLimits::default(), stream.as_bytes(), &mut scratch) {
        KyotoStep::Request { request: KyotoRequest::Call(call), .. } => see(call),
        step => panic!("{step:?}"),
    }
}

/// Returns the pairs of a call that is posted with this body.
fn posted(query: &str, content_type: &str, body: &[u8]) -> Vec<(String, String)> {
    let head = format!(
        "POST /rpc/x{query} HTTP/1.1\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let stream = [head.as_bytes(), body].concat();
    let (mut dialect, mut scratch) = (KyotoDecoder::default(), MapScratch::default());
    match dialect.decode(&KyotoLimits::default(), &stream, &mut scratch) {
        KyotoStep::Request { request: KyotoRequest::Call(call), .. } => {
            let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
            call.input.iter().map(|(name, value)| (text(name), text(value))).collect()
        }
        step => panic!("{step:?}"),
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|&(name, value)| (name.into(), value.into())).collect()
}

#[test]
fn parameters_are_read_by_their_types() {
    with_call("DB=casket&CUR=7&xt=-5&max=-1&range=x&orig=try&ts=now&hard&num=1e2", |call| {
        assert_eq!(call.procedure, None);
        assert_eq!(call.name, b"x");
        assert_eq!(call.target(), DatabaseTarget::Name(b"casket"));
        assert_eq!(call.cursor(), Some(7));
        assert_eq!(call.xt(), Some(-5));
        assert_eq!(call.max(), None);
        assert_eq!(call.integer(b"range"), Some(0));
        assert_eq!(call.integer_origin(), IncrementOrigin::Try);
        assert_eq!(call.moment(b"ts"), Some(TimestampParameter::Now));
        assert!(call.flag(b"hard") && !call.flag(b"step"));
        assert_eq!(call.real(b"num"), Some(100.0));
        assert!(call.required(b"key").is_err());
        assert!(call.wait().is_none() && call.signal().is_none() && !call.has_signals());
    });
    with_call("CUR=x&max=0&orig=1.5", |call| {
        assert_eq!((call.cursor(), call.max(), call.xt()), (None, Some(0), None));
        assert_eq!(
            (call.integer_origin(), call.real_origin()),
            (IncrementOrigin::From(1), IncrementOrigin::From(1.5))
        );
    });
    with_call("orig=set", |call| assert_eq!(call.real_origin(), IncrementOrigin::Set));
    with_call("", |call| {
        assert!(call.input.is_empty());
        assert_eq!(
            (call.target(), call.integer_origin()),
            (DatabaseTarget::Index(0), IncrementOrigin::From(0))
        );
    });
}

#[test]
fn waits_have_a_name_and_an_end() {
    for (query, seconds) in [
        ("WAIT", 30.0),
        ("WAIT=&WAITTIME=0", 30.0),
        ("WAIT&WAITTIME=-1", 30.0),
        ("WAIT&WAITTIME=nan", 30.0),
        ("WAIT&WAITTIME=0.5", 0.5),
    ] {
        with_call(query, |call| {
            assert_eq!(call.wait(), Some(SignalWait { name: b"", seconds }), "{query}");
            assert!(call.has_signals());
        });
    }
    with_call("SIGNAL=s&SIGNALBROAD=", |call| {
        assert_eq!(call.signal(), Some(SignalSend { name: b"s", is_broadcast: true }));
    });
}

#[test]
fn bulk_records_have_an_underscore_before_their_names() {
    with_call("_b=2&_=0&atomic&_a=1&_b=3&__=x", |call| {
        let records: Vec<_> = call.records().collect();
        assert_eq!(records, [(&b""[..], &b"0"[..]), (b"_", b"x"), (b"a", b"1"), (b"b", b"3")]);
    });
}

#[test]
fn body_overrides_query_and_later_lines_override_earlier() {
    let found = posted("?a=1&b=2", "text/tab-separated-values", b"b\t3\nc\t4\nb\t5\n");
    assert_eq!(found, pairs(&[("a", "1"), ("b", "5"), ("c", "4")]));
}

#[test]
fn query_of_an_encoded_map_is_decoded_twice() {
    let found = posted("?a=%2541&b=1%252b", "TEXT/Tab-Separated-Values;  ColEnc=u", b"c\t%42\n");
    assert_eq!(found, pairs(&[("a", "A"), ("b", "1+"), ("c", "B")]));
}

#[test]
fn a_body_of_another_type_is_ignored() {
    assert_eq!(posted("?a=1", "text/plain", b"b\t3\n"), pairs(&[("a", "1")]));
    assert_eq!(
        posted("", "application/x-www-form-urlencoded; charset=x", b" b=3;\0c=4"),
        pairs(&[("b", "3")])
    );
}

#[test]
fn names_that_become_equal_by_decoding_are_one() {
    let found = posted("", "text/tab-separated-values; colenc=U", b"%61\t1\na\t2\n%61\t3\n");
    // Of two names that become equal by decoding, the one that was greater before counts.
    assert_eq!(found, pairs(&[("a", "2")]));
}

#[test]
fn many_pairs_are_sorted_and_found() {
    let mut body = Vec::new();
    for index in 0..10_000u32 {
        body.extend_from_slice(format!("_{:05}\t{index}\n", index.wrapping_mul(7919) % 5000).as_bytes());
    }
    let head = format!(
        "POST /rpc/set_bulk HTTP/1.1\r\nContent-Type: text/tab-separated-values\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let stream = [head.as_bytes(), &body].concat();
    let (mut dialect, mut scratch) = (KyotoDecoder::default(), MapScratch::default());
    let step = dialect.decode(&KyotoLimits::default(), &stream, &mut scratch);
    let KyotoStep::Request { request: KyotoRequest::Call(call), .. } = step else { panic!("{step:?}") };
    assert_eq!(call.input.len(), 5000);
    assert!(call.records().map(|(key, _)| key).is_sorted_by(|one, next| one < next));
    for (key, value) in call.records() {
        let index: u32 = std::str::from_utf8(value).unwrap().parse().unwrap();
        assert!(index >= 5000, "the last of equal names counts");
        assert_eq!(call.input.get(&[b"_", key].concat()), Some(value));
    }
    assert_eq!(call.input.get(b"_05000"), None);
}
