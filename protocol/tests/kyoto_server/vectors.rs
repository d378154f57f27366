//! The original's answers, byte for byte: captures. `...` replaces the headers that vary. For
//! answers that need a complete database, this file tests the codec's part.

use crate::exchange::{answers, hex, send_in_pieces, show};
use todana_protocol::kyoto::{
    AnswerBanner, AnswerPairs, AnswerStatus, CallFailure, ColumnEncoding, DatabaseError, HttpForm,
    KyotoLimits, Procedure, answer, answer_failure, number,
};

const FORM: HttpForm = HttpForm::new(true, false);

fn banner() -> AnswerBanner {
    AnswerBanner::new("T", crate::exchange::NOW)
}

/// Returns the status and the body of a failed call.
fn failed(failure: CallFailure<'_>) -> String {
    let mut out = Vec::new();
    answer_failure(&FORM, &banner(), &failure, &mut out);
    let shown = show(&out);
    let body = shown.rsplit("\\r\\n").next().unwrap_or_default();
    format!("{} {body}", &shown["HTTP/1.1 ".len()..][..3])
}

/// Returns the answer of `echo` to a body of this type: the encoding in its header, and its body.
fn echoed(content_type: &str, body: &str) -> String {
    let head = format!("Content-Type: {content_type}\r\nContent-Length: {}\r\n\r\n", body.len());
    let stream = format!("POST /rpc/echo HTTP/1.1\r\n{head}{body}");
    let shown = answers(stream.as_bytes());
    let (_, shown) = shown.split_once("Content-Type: text/tab-separated-values").unwrap();
    shown.replace("\\r\\n\\r\\n", " ").replace("; ", "")
}

#[test]
fn a_record_is_set_and_got() {
    let set = b"POST /rpc/set HTTP/1.1\r\nHost: x\r\nContent-Type: text/tab-separated-values\r\nContent-Length: 22\r\n\r\n\
        key\tjapan\nvalue\ttokyo\n";
    let get = b"GET /rpc/get?key=japan HTTP/1.1\r\n\r\n";
    assert_eq!(
        answers(&[&set[..], get].concat()),
        "HTTP/1.1 200 OK\\r\\n...Content-Length: 0\\r\\nContent-Type: text/tab-separated-values\\r\\n\\r\\n\
         HTTP/1.1 200 OK\\r\\n...Content-Length: 12\\r\\nContent-Type: text/tab-separated-values\\r\\n\\r\\n\
         value\\ttokyo\\n"
    );
}

#[test]
fn failures_have_status_and_text() {
    for (failure, told) in [
        (CallFailure::Database(DatabaseError::NoRecord), "450 ERROR\\tDB: 7: no record: no record\\n"),
        (CallFailure::InvalidParameters, "400 ERROR\\tinvalid parameters\\n"),
        (CallFailure::NoSuchProcedure(b"nosuch"), "501 ERROR\\tnot implemented: nosuch\\n"),
        (CallFailure::NoSuchDatabase, "400 ERROR\\tno such database\\n"),
        (CallFailure::NoSuchCursor, "400 ERROR\\tno such cursor\\n"),
        (CallFailure::TimedOut, "503 ERROR\\tthe condition timed out\\n"),
        (
            CallFailure::Database(DatabaseError::Duplication),
            "450 ERROR\\tDB: 6: record duplication: record duplication\\n",
        ),
        (
            CallFailure::Database(DatabaseError::LogicalInconsistency),
            "450 ERROR\\tDB: 8: logical inconsistency: logical inconsistency\\n",
        ),
        (CallFailure::STATUS_CONFLICT, "450 ERROR\\tDB: 8: logical inconsistency: status conflict\\n"),
        (CallFailure::COMPILATION_FAILED, "450 ERROR\\tDB: 8: logical inconsistency: compilation failed\\n"),
        (
            CallFailure::POSTPROCESSING_FAILED,
            "500 ERROR\\tDB: 8: logical inconsistency: postprocessing failed\\n",
        ),
        (
            CallFailure::Database(DatabaseError::NotImplemented),
            "501 ERROR\\tDB: 1: not implemented: not implemented\\n",
        ),
        (
            CallFailure::Database(DatabaseError::NoPermission),
            "500 ERROR\\tDB: 4: no permission: permission denied\\n",
        ),
        (CallFailure::NO_UPDATE_LOG, "400 ERROR\\tno update log allows no replication\\n"),
        (CallFailure::NO_RTS_FILE, "501 ERROR\\tthe RTS file is not set\\n"),
        (CallFailure::SCRIPTING_DISABLED, "501 ERROR\\tthe scripting extention is disabled\\n"),
    ] {
        assert_eq!(failed(failure), told, "{failure:?}");
    }
    let miss = "HTTP/1.1 450 Logical Inconsistency\\r\\n...Content-Length: 34\\r\\n\
        Content-Type: text/tab-separated-values\\r\\n\\r\\nERROR\\tDB: 7: no record: no record\\n";
    assert_eq!(answers(b"GET /rpc/get?key=absent HTTP/1.1\r\n\r\n"), miss);
}

#[test]
fn all_encodings_are_accepted_and_one_is_chosen() {
    let tsv = "text/tab-separated-values";
    let form = "application/x-www-form-urlencoded";
    for (content_type, body, answer) in [
        (&*format!("{tsv}; colenc=B"), "YQ==\tYgBj\n", "colenc=U a\\tb%00c\\n"),
        (&*format!("{tsv}; colenc=U"), "a%00\tb%20+c\n", "colenc=U a%00\\tb%20%20c\\n"),
        (&*format!("{tsv}; colenc=Q"), "a=09b\tc=3Dd\n", "colenc=U a%09b\\tc%3dd\\n"),
        (form, "k=a%09b&e=&n;z=1", "colenc=U e\\t\\nk\\ta%09b\\nn\\t\\nz\\t1\\n"),
        (
            tsv,
            "a\tb\tc\nnotab\nk\t\n\tv\r\nlast\tno-newline",
            "colenc=U \\tv\\na\\tb%09c\\nk\\t\\nlast\\tno-newline\\n",
        ),
    ] {
        assert_eq!(echoed(content_type, body), answer, "{content_type} {body}");
    }
}

#[test]
fn increments_are_shown_and_stored_as_whole_numbers() {
    for (number, shown) in [(5, "6e756d 09 35 0a"), (-7, "6e756d 09 2d37 0a")] {
        let mut output = AnswerPairs::default();
        output.push_number(b"num", number);
        let mut out = Vec::new();
        output.write(&FORM, &banner(), AnswerStatus::Ok, &mut out);
        assert!(out.ends_with(&[b"\r\n\r\n", &hex(shown)[..]].concat()));
    }
    // 5, then -7, as stored: raw, because bytes from 0x80 on need no encoding.
    let mut out = Vec::new();
    answer(&FORM, &banner(), AnswerStatus::Ok, &[("value", &(-2i64).to_be_bytes())], &mut out);
    assert!(out.ends_with(&[b"\r\n\r\n", &hex("76616c7565 09 fffffffffffffffe 0a")[..]].concat()));
}

#[test]
fn real_increments_have_six_decimals_and_two_parts() {
    for (number, shown, stored, told) in [
        (1.5, "1.500000", "0000000000000001 0001c6bf52634000", "AAAAAAAAAAEAAca/UmNAAA=="),
        (-1.75, "-1.750000", "fffffffffffffffe 0000e35fa931a000", "//////////4AAONfqTGgAA=="),
    ] {
        assert_eq!(number::format_real(number), shown);
        let mut out = Vec::new();
        answer(&FORM, &banner(), AnswerStatus::Ok, &[("value", &hex(stored))], &mut out);
        let told = format!("colenc=B\\r\\n\\r\\ndmFsdWU=\\t{told}\\n");
        assert!(show(&out).ends_with(&told), "{}", show(&out));
    }
}

#[test]
fn matches_are_listed_by_name_and_position() {
    let mut output = AnswerPairs::default();
    output.push_record(b"apricot", b"0");
    output.push_record(b"apple", b"1");
    output.push_number(b"num", 2);
    let mut out = Vec::new();
    output.write(&FORM, &banner(), AnswerStatus::Ok, &mut out);
    assert!(out.ends_with(b"\r\n\r\n_apple\t1\n_apricot\t0\nnum\t2\n"));
}

#[test]
fn resources_are_stored_read_and_missed() {
    let put = b"PUT /xt1 HTTP/1.1\r\nX-Kt-Xt: 2000000000\r\nContent-Length: 5\r\n\r\nhello";
    let get = b"GET /xt1 HTTP/1.1\r\n\r\n";
    let none = b"GET /none HTTP/1.1\r\n\r\n";
    assert_eq!(
        answers(&[&put[..], get, none].concat()),
        "HTTP/1.1 201 Created\\r\\n...Content-Length: 0\\r\\nLocation: http://localhost:19780/xt1\\r\\n\\r\\n\
         HTTP/1.1 200 OK\\r\\n...Content-Length: 5\\r\\nX-Kt-Xt: Wed, 18 May 2033 03:33:20 GMT\\r\\n\\r\\nhello\
         HTTP/1.1 404 Not Found\\r\\n...Content-Length: 0\\r\\nX-Kt-Error: DB: 7: no record: no record\\r\\n\\r\\n"
    );
}

#[test]
fn records_travel_in_binary() {
    let set = "b8 00000000 00000002 0000 00000005 00000005 7fffffffffffffff 6a6170616e 746f6b796f \
               0000 00000002 00000001 ffffffff88ca6c00 6b32 76";
    let get = "ba 00000000 00000003 0000 00000005 6a6170616e 0000 00000004 6e6f7065 0000 00000002 6b32";
    let remove = "b9 00000000 00000002 0000 00000005 6a6170616e 0000 00000004 6e6f7065";
    let outcome = send_in_pieces(&KyotoLimits::default(), &hex(&[set, get, remove].concat()), &[]);
    let answers = "b8 00000002 \
                   ba 00000002 0000 00000005 00000005 000000ffffffffff 6a6170616e 746f6b796f \
                   0000 00000002 00000001 0000000077359400 6b32 76 \
                   b9 00000001";
    assert_eq!(outcome.answers, hex(answers));
    assert!(!outcome.is_closed);
}

#[test]
fn persistent_database_reports_endless_expiry() {
    let stream = "ba 00000000 00000001 0003 00000001 70 ba 00000000 00000001 0063 00000001 70";
    let outcome = send_in_pieces(&KyotoLimits::default(), &hex(stream), &[]);
    assert_eq!(outcome.answers, hex("ba 00000001 0003 00000001 00000001 7fffffffffffffff 70 71 ba 00000000"));
}

#[test]
fn key_over_the_limit_closes_the_connection() {
    let stream = "b8 00000000 00000001 0000 10000001 00000000 7fffffffffffffff";
    let outcome = send_in_pieces(&KyotoLimits::default(), &hex(stream), &[]);
    assert_eq!(outcome.answers, hex("bf"));
    assert!(outcome.is_closed);
}

#[test]
fn scripts_take_and_return_a_map() {
    let echo = "b4 00000000 00000004 00000002 6563686f 00000001 00000001 61 31 00000002 00000002 6262 3232";
    let unknown = "b4 00000000 00000006 00000000 6e6f73756368";
    let outcome = send_in_pieces(&KyotoLimits::default(), &hex(&[echo, unknown, echo].concat()), &[]);
    let answer = "b4 00000002 00000001 00000001 61 31 00000002 00000002 6262 3232";
    assert_eq!(outcome.answers, hex(&[answer, "bf", answer].concat()));
    assert!(!outcome.is_closed, "a script that fails does not end the connection");
}

#[test]
fn names_are_sorted_as_they_are_encoded() {
    // The order in base64 differs from the order of the bytes: "~" is fg==, 0xFF is /w==.
    let mut output = AnswerPairs::default();
    let long = [0u8; 64];
    for name in [&b"a"[..], b"~", b"\xFF"] {
        output.push(name, &long);
    }
    assert_eq!(ColumnEncoding::choose([&long[..]].into_iter()), ColumnEncoding::Base64);
    let mut out = Vec::new();
    output.write(&FORM, &banner(), AnswerStatus::Ok, &mut out);
    let body = String::from_utf8(out).unwrap().split_once("\r\n\r\n").unwrap().1.to_owned();
    let names: Vec<&str> = body.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(names, ["/w==", "YQ==", "fg=="]);
}

#[test]
fn every_procedure_of_the_original_is_known() {
    let names = "void echo report play_script tune_replication ulog_list ulog_remove status clear synchronize set add \
        replace append increment increment_double cas remove get check seize set_bulk remove_bulk get_bulk vacuum \
        match_prefix match_regex match_similar cur_jump cur_jump_back cur_step cur_step_back cur_set_value cur_remove \
        cur_get_key cur_get_value cur_get cur_seize cur_delete";
    for name in names.split_whitespace() {
        assert!(Procedure::from_name(name.as_bytes()).is_some(), "{name}");
    }
    assert_eq!(names.split_whitespace().count(), Procedure::ALL.len());
}
