//! Update logs of Tokyo Tyrant, streams to its replicas, and exported logs: any bytes, cut in any
//! way, yield the same records. A record that has been read is written as the same bytes, and its
//! line of text as the same record.
//!
//! The input is a byte that selects the reader, a byte with the number of cuts, the cuts (two bytes
//! each), and the stream.
#![no_main]

mod kyoto_cuts;
#[path = "../../protocol/tests/kyoto_files/pieces.rs"]
#[allow(dead_code)]
mod pieces;

use kyoto_cuts::{assert_cuts_do_not_matter, stream_and_cuts};
use pieces::{Read, read_in_pieces};
use todana_protocol::tyrant::log_text::{LogLine, parse_line, put_line};
use todana_protocol::tyrant::replication::{MasterDecoder, MasterStep, TyrantMasterMessage};
use todana_protocol::tyrant::update_log::{LogRecord, LoggedCommand, RecordStep, decode_record};
use todana_protocol::tyrant::TyrantRequest;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((reader, rest)) = input.split_first() else { return };
    let Some((stream, cuts)) = stream_and_cuts(rest) else { return };
    match reader % 3 {
        0 => drop(assert_cuts_do_not_matter(stream, &cuts, |cuts| log(stream, cuts))),
        1 => drop(assert_cuts_do_not_matter(stream, &cuts, |cuts| replica(stream, cuts))),
        _ => stream.split(|&byte| byte == b'\n').for_each(line),
    }
});

fn log(stream: &[u8], cuts: &[usize]) -> Vec<String> {
    read_in_pieces(stream, cuts, |input| match decode_record(input) {
        RecordStep::Record { consumed, record } => {
            let mut written = Vec::new();
            record.put(&mut written);
            assert_eq!(written, input[..consumed]);
            assert_line_is_read_back(&record);
            assert_command_is_written_as_read(record.body);
            Read::Item(consumed, format!("{record:?}"))
        }
        RecordStep::NeedMore { at_least } => Read::More(at_least),
        RecordStep::Malformed => Read::Last("malformed".into()),
    })
}

fn replica(stream: &[u8], cuts: &[usize]) -> Vec<String> {
    let mut decoder = MasterDecoder::default();
    read_in_pieces(stream, cuts, |input| match decoder.decode(input) {
        MasterStep::Message { consumed, message } => {
            if let TyrantMasterMessage::Record { body, .. } = message {
                assert_command_is_written_as_read(body);
            }
            Read::Item(consumed, format!("{message:?}"))
        }
        MasterStep::NeedMore { at_least } => Read::More(at_least),
        MasterStep::Malformed => Read::Last("malformed".into()),
    })
}

fn line(line: &[u8]) {
    let mut body = Vec::new();
    if let LogLine::Record(record) = parse_line(line, &mut body) {
        assert_line_is_read_back(&record);
    }
}

fn assert_line_is_read_back(record: &LogRecord<'_>) {
    let (mut text, mut body) = (Vec::new(), Vec::new());
    put_line(record, &mut text);
    match parse_line(text.strip_suffix(b"\n").expect("a line"), &mut body) {
        LogLine::Record(again) => assert_eq!(again, *record),
        LogLine::Damaged => assert_eq!(LoggedCommand::parse(record.body), None),
        LogLine::Malformed => panic!("{record:?}"),
    }
}

fn assert_command_is_written_as_read(body: &[u8]) {
    let Some(command) = LoggedCommand::parse(body) else { return };
    let mut written = Vec::new();
    command.put(&mut written);
    assert_eq!(written.len(), body.len());
    // The parts of an added number may be written in another way, and so may a failure.
    if !matches!(command.request, TyrantRequest::AddDouble { .. }) {
        assert_eq!(written[..body.len() - 1], body[..body.len() - 1]);
    }
}
