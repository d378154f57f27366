//! Tests the client side of Kyoto Tycoon's protocols against the server side, in both directions.

use todana_protocol::kyoto::client::{
    AnswerDecoder, AnswerStep, BinaryAnswer, BinaryAnswerDecoder, BinaryStep, CallOutcome, HttpAnswer,
    put_bulk, put_key, put_record, put_resource, put_script,
};
use todana_protocol::kyoto::{
    AnswerBanner, AnswerPairs, AnswerStatus, BulkOperation, BulkRecord, CallFailure, DatabaseError,
    DatabaseTarget, HttpForm, KyotoDecoder, KyotoLimits, KyotoRequest, KyotoStep, MapScratch, RestAction,
    RestAnswer, answer_failure, answer_refusal, answer_rest,
};

const FORM: HttpForm = HttpForm::new(true, false);

fn banner() -> AnswerBanner {
    AnswerBanner::new("T", 0)
}

/// Decodes the single answer in these bytes, split in several ways.
fn with_answer(bytes: &[u8], see: impl Fn(&HttpAnswer<'_>)) {
    let mut cuts: Vec<Vec<usize>> = (0..bytes.len()).map(|cut| vec![cut]).collect();
    cuts.push((1..bytes.len()).collect());
    for cuts in cuts {
        let (mut answers, mut scratch) = (AnswerDecoder::default(), MapScratch::default());
        for cut in cuts {
            let step = answers.decode(&KyotoLimits::default(), &bytes[..cut], &mut scratch, true);
            assert!(
                matches!(step, AnswerStep::NeedMore { at_least } if at_least <= bytes.len() - cut),
                "{step:?}"
            );
        }
        match answers.decode(&KyotoLimits::default(), bytes, &mut scratch, true) {
            AnswerStep::Answer { consumed, answer } => {
                assert_eq!(consumed, bytes.len());
                see(&answer);
            }
            step => panic!("{step:?}"),
        }
    }
}

#[test]
fn call_has_the_bytes_of_the_original_client() {
    let mut call = AnswerPairs::default();
    call.push(b"value", b"tokyo");
    call.push(b"key", b"japan");
    let mut out = Vec::new();
    call.write_call("set", "x", &mut out);
    assert_eq!(
        out.escape_ascii().to_string(),
        "POST /rpc/set HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 22\\r\\n\
         Content-Type: text/tab-separated-values\\r\\n\\r\\nkey\\tjapan\\nvalue\\ttokyo\\n"
    );
}

#[test]
fn server_receives_the_client_s_parameters() {
    for value in [&b"tokyo"[..], b"a\tb\nc", &[0; 100], &[b'x'; 300], b"\xFF", b""] {
        let mut call = AnswerPairs::default();
        call.push(b"key", b"\0japan");
        call.push(b"value", value);
        let mut out = Vec::new();
        call.write_call("set", "x", &mut out);
        let (mut dialect, mut scratch) = (KyotoDecoder::default(), MapScratch::default());
        let step = dialect.decode(&KyotoLimits::default(), &out, &mut scratch);
        let KyotoStep::Request { consumed, request: KyotoRequest::Call(call) } = step else {
            panic!("{step:?}")
        };
        assert_eq!(consumed, out.len());
        let pairs: Vec<_> = call.input.iter().collect();
        assert_eq!(pairs, [(&b"key"[..], &b"\0japan"[..]), (b"value", value)]);
    }
}

#[test]
fn client_receives_the_server_s_answer() {
    for value in [&b"tokyo"[..], b"a\tb\nc", &[0; 100], b"\xFF"] {
        let mut output = AnswerPairs::default();
        output.push_record(b"k", value);
        output.push_number(b"num", 1);
        let mut out = Vec::new();
        output.write(&FORM, &banner(), AnswerStatus::Ok, &mut out);
        with_answer(&out, |answer| {
            assert_eq!(
                (answer.status, answer.outcome(), answer.keeps_alive),
                (200, CallOutcome::Success, true)
            );
            assert_eq!((answer.map.get(b"_k"), answer.map.get(b"num")), (Some(value), Some(&b"1"[..])));
            assert_eq!(answer.error(), None);
        });
    }
}

#[test]
fn outcome_follows_from_the_status_range() {
    for (failure, outcome) in [
        (CallFailure::InvalidParameters, CallOutcome::Invalid),
        (CallFailure::Database(DatabaseError::NoRecord), CallOutcome::Logic),
        (CallFailure::NoSuchProcedure(b"x"), CallOutcome::NotImplemented),
        (CallFailure::TimedOut, CallOutcome::TimedOut),
        (CallFailure::Database(DatabaseError::SystemError), CallOutcome::Internal),
    ] {
        let mut out = Vec::new();
        answer_failure(&FORM, &banner(), &failure, &mut out);
        with_answer(&out, |answer| {
            assert_eq!(answer.outcome(), outcome);
            assert_eq!(answer.error(), Some(&*failure.text()));
        });
    }
    let mut out = Vec::new();
    answer_refusal(&banner(), todana_protocol::kyoto::RequestRefusal::TooLarge, &mut out);
    with_answer(&out, |answer| assert_eq!((answer.status, answer.keeps_alive), (413, false)));
}

#[test]
fn resources_travel_both_ways() {
    let mut out = Vec::new();
    let stored = Some((&b"hello"[..], Some(2_000_000_000)));
    put_resource("PUT", "x", Some(b"a b"), b"/k\xC3\xA9", &[("X-Kt-Mode", "add")], stored, &mut out);
    let (mut dialect, mut scratch) = (KyotoDecoder::default(), MapScratch::default());
    let step = dialect.decode(&KyotoLimits::default(), &out, &mut scratch);
    let KyotoStep::Request { consumed, request: KyotoRequest::Rest(rest) } = step else { panic!("{step:?}") };
    assert_eq!(consumed, out.len());
    assert_eq!((rest.target, rest.key), (DatabaseTarget::Name(b"a b"), &b"/k\xC3\xA9"[..]));
    assert!(matches!(rest.action, RestAction::Put { value: b"hello", xt: Some(2_000_000_000), .. }));

    let mut answer = Vec::new();
    let found = RestAnswer::Found { value: b"hello", xt: Some(2_000_000_000) };
    answer_rest(&rest, &banner(), &found, &mut answer);
    with_answer(&answer, |answer| {
        assert_eq!((answer.status, answer.body, answer.xt), (200, &b"hello"[..], Some(2_000_000_000)));
        assert_eq!(answer.header("SERVER"), Some(&b"KyotoTycoon/T"[..]));
    });
    answer.clear();
    answer_rest(
        &rest,
        &banner(),
        &RestAnswer::Failed(CallFailure::Database(DatabaseError::NoRecord)),
        &mut answer,
    );
    with_answer(&answer, |answer| assert_eq!(answer.error(), Some(&b"DB: 7: no record: no record"[..])));
}

#[test]
fn answer_to_head_has_only_a_length() {
    let (mut answers, mut scratch) = (AnswerDecoder::default(), MapScratch::default());
    let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP";
    let step = answers.decode(&KyotoLimits::default(), bytes, &mut scratch, false);
    assert!(matches!(step, AnswerStep::Answer { consumed: 38, .. }), "{step:?}");
}

#[test]
fn answers_may_come_in_chunks() {
    with_answer(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/tab-separated-values; colenc=U\r\n\r\n\
          3\r\na\t%\r\n3\r\n41\n\r\n0\r\n\r\n",
        |answer| assert_eq!((answer.map.get(b"a"), answer.body), (Some(&b"A"[..]), &b"a\t%41\n"[..])),
    );
}

#[test]
fn invalid_answers_are_malformed() {
    for bytes in [
        &b"HTTP/2.0 200 OK\r\n"[..],
        b"GET / HTTP/1.1\r\n",
        b"HTTP/1.1 20 OK\r\n",
        b"HTTP/1.1 2000 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
    ] {
        let (mut answers, mut scratch) = (AnswerDecoder::default(), MapScratch::default());
        let step = answers.decode(&KyotoLimits::default(), bytes, &mut scratch, true);
        assert_eq!(step, AnswerStep::Malformed, "{}", bytes.escape_ascii());
    }
}

#[test]
fn server_decodes_bulk_requests_of_the_client() {
    let mut out = Vec::new();
    let record = BulkRecord { database: 2, key: b"k", value: b"v", xt: -5 };
    put_bulk(BulkOperation::Set, 1, true, &mut out);
    put_record(&record, &mut out);
    put_bulk(BulkOperation::Get, 1, false, &mut out);
    put_key(1, b"key", &mut out);
    let mut scratches: [MapScratch; 4] = Default::default();
    let (mut dialect, mut unread, mut pieces) = (KyotoDecoder::default(), &out[..], Vec::new());
    for scratch in &mut scratches {
        let step = dialect.decode(&KyotoLimits::default(), unread, scratch);
        let KyotoStep::Request { consumed, request: KyotoRequest::Bulk(piece) } = step else {
            panic!("{step:?}")
        };
        pieces.push((piece.operation, piece.is_silent, piece.record));
        unread = &unread[consumed..];
    }
    assert!(unread.is_empty());
    let asked = BulkRecord { database: 1, key: b"key", ..BulkRecord::default() };
    assert_eq!(
        pieces,
        [
            (BulkOperation::Set, true, None),
            (BulkOperation::Set, true, Some(record)),
            (BulkOperation::Get, false, None),
            (BulkOperation::Get, false, Some(asked)),
        ]
    );
}

#[test]
fn binary_answers_are_decoded_from_any_pieces() {
    let bytes = b"\xB8\0\0\0\x02\xBA\0\0\0\x01\0\x03\0\0\0\x01\0\0\0\x01\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFFpq\
        \xB4\0\0\0\x01\0\0\0\x01\0\0\0\x02a22\xB4\0\0\0\0\xB9\0\0\0\0\xBF";
    let record = BulkRecord { database: 3, key: b"p", value: b"q", xt: i64::MAX };
    let expected = [
        BinaryAnswer::Hits { operation: BulkOperation::Set, hits: 2, remaining: 0 },
        BinaryAnswer::Hits { operation: BulkOperation::Get, hits: 1, remaining: 1 },
        BinaryAnswer::Record { record, remaining: 0 },
        BinaryAnswer::Pairs { remaining: 1 },
        BinaryAnswer::Pair { key: b"a", value: b"22", remaining: 0 },
        BinaryAnswer::Pairs { remaining: 0 },
        BinaryAnswer::Hits { operation: BulkOperation::Remove, hits: 0, remaining: 0 },
        BinaryAnswer::Failed,
    ];
    for step_len in 1..=bytes.len() {
        let (mut answers, mut done, mut found) = (BinaryAnswerDecoder::default(), 0, Vec::new());
        let mut end = 0;
        while end < bytes.len() {
            end = (end + step_len).min(bytes.len());
            while let BinaryStep::Answer { consumed, answer } = answers.decode(&bytes[done..end]) {
                done += consumed;
                found.push(answer);
            }
        }
        assert_eq!(found, expected, "{step_len} at a time");
    }
    assert_eq!(BinaryAnswerDecoder::default().decode(b"HTTP"), BinaryStep::Malformed);
}

#[test]
fn scripts_are_called_as_captured() {
    let mut out = Vec::new();
    let pairs = [(&b"a"[..], &b"1"[..]), (b"bb", b"22")];
    put_script(b"echo", pairs.into_iter(), false, &mut out);
    assert_eq!(out, b"\xB4\0\0\0\0\0\0\0\x04\0\0\0\x02echo\0\0\0\x01\0\0\0\x01a1\0\0\0\x02\0\0\0\x02bb22");
}
