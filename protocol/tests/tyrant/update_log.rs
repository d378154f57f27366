//! The update log, its text, and the stream to replicas.

use super::pieces::{Read, hex as bytes, read_in_any_pieces};
use todana_protocol::tyrant::log_text::{DAMAGED, LogLine, parse_line, put_line};
use todana_protocol::tyrant::replication::{
    self, MasterDecoder, MasterStep, TyrantMasterMessage, put_idle, put_record_head, put_server_id,
};
use todana_protocol::tyrant::update_log::{
    self, HEAD_LEN, LogRecord, LoggedCommand, RecordStep, decode_record,
};
use todana_protocol::tyrant::{FieldBuffer, TyrantPutMode, TyrantRequest};

/// The records of a file of server 7, their text, and one that a replica has logged.
const RECORDS: [(&str, &str); 12] = [
    (
        "c9 000660b96cdbb14f 0007 0000 00000010 c810 00000003 00000002 616263 3132 00",
        "1795199371817295\t7:0\tput\tC8 10 00 00 00 03 00 00 00 02 61 62 63 31 32 00\n",
    ),
    (
        "c9 000660b96cdceb5e 0007 0000 0000000f c811 00000003 00000001 616263 58 01",
        "1795199371897694\t7:0\tputkeep\tC8 11 00 00 00 03 00 00 00 01 61 62 63 58 01\n",
    ),
    (
        "c9 000660b96ce09899 0007 0000 00000013 c813 00000003 00000001 00000002 616263 51 00",
        "1795199372138649\t7:0\tputshl\tC8 13 00 00 00 03 00 00 00 01 00 00 00 02 61 62 63 51 00\n",
    ),
    (
        "c9 000660b96ce5a49f 0007 0000 00000009 c820 00000002 6e72 00",
        "1795199372469407\t7:0\tout\tC8 20 00 00 00 02 6E 72 00\n",
    ),
    (
        "c9 000660b96ce81844 0007 0000 0000000c c860 00000001 00000005 69 00",
        "1795199372630084\t7:0\taddint\tC8 60 00 00 00 01 00 00 00 05 69 00\n",
    ),
    (
        "c9 000660b96cea8be8 0007 0000 00000018 c861 00000001 ffffffffffffffff ffffff8b95ad7800 64 00",
        "1795199372790760\t7:0\tadddouble\tC8 61 00 00 00 01 FF FF FF FF FF FF FF FF FF FF FF 8B 95 AD 78 00 \
         64 00\n",
    ),
    ("c9 000660b96cebc564 0007 0000 00000003 c870 00", "1795199372871012\t7:0\tsync\tC8 70 00\n"),
    (
        "c9 000660b96cecff0f 0007 0000 0000000f c871 00000008 6361706e756d3d39 00",
        "1795199372951311\t7:0\toptimize\tC8 71 00 00 00 08 63 61 70 6E 75 6D 3D 39 00\n",
    ),
    (
        "c9 000660b96cee38ba 0007 0000 0000001a c890 00000003 00000002 707574 00000002 6d6b 00000002 6d76 00",
        "1795199373031610\t7:0\tmisc\tC8 90 00 00 00 03 00 00 00 02 70 75 74 00 00 00 02 6D 6B 00 00 00 02 6D \
         76 00\n",
    ),
    (
        "c9 000660b96cf1ea64 0007 0000 0000000e c890 00000003 00000000 666f6f 01",
        "1795199373273700\t7:0\tmisc\tC8 90 00 00 00 03 00 00 00 00 66 6F 6F 01\n",
    ),
    ("c9 000660b96cfc1859 0007 0000 00000003 c872 00", "1795199373940825\t7:0\tvanish\tC8 72 00\n"),
    (
        "c9 000660b96e7acf30 002c 012c 0000000d c810 00000001 00000001 62 32 00",
        "1795199399022384\t44:300\tput\tC8 10 00 00 00 01 00 00 00 01 62 32 00\n",
    ),
];

fn commands(see: &mut dyn FnMut(usize, LoggedCommand<'_>)) {
    use TyrantRequest::*;
    let arguments = FieldBuffer::from_iter([&b"mk"[..], b"mv"]);
    let (empty, put) = (FieldBuffer::default(), |mode, key, value| Put { mode, key, value });
    for (index, (request, is_done)) in [
        (put(TyrantPutMode::Put, b"abc", b"12"), true),
        (put(TyrantPutMode::Keep, b"abc", b"X"), false),
        (PutShl { key: b"abc", value: b"Q", width: 2 }, true),
        (Out { key: b"nr" }, true),
        (AddInt { key: b"i", delta: 5 }, true),
        (AddDouble { key: b"d", delta: -1.5 }, true),
        (Sync, true),
        (Optimize { tuning: b"capnum=9" }, true),
        (Misc { name: b"put", options: 0, arguments: arguments.list() }, true),
        (Misc { name: b"foo", options: 0, arguments: empty.list() }, false),
        (Vanish, true),
        (put(TyrantPutMode::Put, b"b", b"2"), true),
    ]
    .into_iter()
    .enumerate()
    {
        see(index, LoggedCommand { request, is_done });
    }
}

#[test]
fn log_is_read_and_written_as_captured() {
    let file: Vec<u8> = RECORDS.iter().flat_map(|(hex, _)| bytes(hex)).collect();
    let read = read_in_any_pieces(&file, (), |(), input| match decode_record(input) {
        RecordStep::Record { consumed, record } => {
            let mut written = Vec::new();
            record.put(&mut written);
            assert_eq!(written, input[..consumed]);
            let mut line = Vec::new();
            put_line(&record, &mut line);
            Read::Item(consumed, String::from_utf8(line).unwrap())
        }
        RecordStep::NeedMore { at_least } => Read::More(at_least),
        RecordStep::Malformed => Read::Last("malformed".into()),
    });
    assert_eq!(read[..12], RECORDS.map(|(_, line)| line));
    assert_eq!(read[12..], ["... 0"]);
}

#[test]
fn body_is_a_command_with_its_outcome() {
    commands(&mut |index, command| {
        let record = bytes(RECORDS[index].0);
        let body = &record[HEAD_LEN..];
        assert_eq!(LoggedCommand::parse(body), Some(command));
        let mut written = Vec::new();
        command.put(&mut written);
        assert_eq!(written, body);
    });
}

#[test]
fn body_of_no_logged_command_is_refused() {
    for hex in [
        "",
        "00",
        "c8",
        "c870",
        // Requests that are not logged: putnr, get, rnum, copy; and an unknown one.
        "c818 00000001 00000001 62 32 00",
        "c830 00000001 62 00",
        "c880 00",
        "c873 00000001 61 00",
        "c8ff 00",
        // Cut off, and with a byte too many.
        "c810 00000001 00000001 62 00",
        "c810 00000001 00000001 62 32 33 00",
        "c820 ffffffff 62 00",
        "c890 00000001 00000001 61 00",
        "c890 00000001 00000000 61 62 00",
        "c890 00000001 ffffffff 61 00",
        "c990 00000001 00000000 61 00",
    ] {
        assert_eq!(LoggedCommand::parse(&bytes(hex)), None, "{hex}");
    }
}

#[test]
fn log_ends_where_no_record_begins() {
    let end = |hex: &str| match decode_record(&bytes(hex)) {
        RecordStep::NeedMore { at_least } => Some(at_least),
        RecordStep::Malformed => None,
        RecordStep::Record { .. } => panic!("{hex} is no record"),
    };
    assert_eq!(end(""), Some(17));
    assert_eq!(end("c9 0006"), Some(14));
    assert_eq!(end("c9 000660b96cebc564 0007 0000 00000003 c8"), Some(2));
    assert_eq!(end("c8"), None);
    assert_eq!(end("c9 000660b96cebc564 0007 0000 20000041"), None, "a body that is too long");
}

#[test]
fn text_is_read_back_as_the_record() {
    let mut body = Vec::new();
    for (hex, line) in RECORDS {
        let record = bytes(hex);
        let RecordStep::Record { record, .. } = decode_record(&record) else { panic!("{hex}") };
        assert_eq!(parse_line(line.trim_end().as_bytes(), &mut body), LogLine::Record(record));
    }
    let record = LogRecord { stamp_micros: 5, server_id: 7, master_id: 1, body: &[0xc8, 0x10, 0] };
    for line in ["5\t7:1\tput\tC8 10 00", "5\t7:1\tput\tc81000", "05\t07:1\t\t C8  10 00\r"] {
        assert_eq!(parse_line(line.as_bytes(), &mut body), LogLine::Record(record), "{line}");
    }
}

#[test]
fn damaged_record_has_a_line_of_its_own() {
    let mut line = Vec::new();
    let record = LogRecord { stamp_micros: 5, server_id: 7, master_id: 2, body: &[0xc8] };
    put_line(&record, &mut line);
    assert_eq!(line, b"5\t7:2\t[broken entry]\n");
    assert!(line.ends_with(format!("{DAMAGED}\n").as_bytes()));
    assert_eq!(parse_line(line.trim_ascii_end(), &mut Vec::new()), LogLine::Damaged);
    line.clear();
    put_line(&LogRecord { body: &[0xc8, 0xff, 1, 2], ..record }, &mut line);
    assert_eq!(line, b"5\t7:2\t(unknown)\tC8 FF 01 02\n");
}

#[test]
fn line_without_its_columns_is_malformed() {
    for line in [
        "",
        "abc",
        "5",
        "5\tput",
        "-3\t9:9\tput\tC8",
        "5\t7\tput\tC8 10 00",
        "5\t70000:1\tput\tC8 10 00",
        "5\t7:1\tput",
        "5\t7:1\tput\tC8 1",
        "5\t7:1\tput\tC8 zz",
        "5\t7:1:1\tput\tC8",
        "99999999999999999999\t7:1\tput\tC8",
    ] {
        assert_eq!(parse_line(line.as_bytes(), &mut Vec::new()), LogLine::Malformed, "{line}");
    }
}

#[test]
fn master_sends_its_id_records_and_idle_bytes() {
    let body = bytes("c810 00000003 00000002 616263 3132 00");
    let mut sent = Vec::new();
    put_server_id(7, &mut sent);
    put_idle(&mut sent);
    put_record_head(0x0006_60b9_6cdb_b14f, 7, 16, &mut sent);
    sent.extend_from_slice(&body);
    put_idle(&mut sent);
    let captured = "00000007 ca c9 000660b96cdbb14f 00000007 00000010
        c810 00000003 00000002 616263 3132 00 ca";
    assert_eq!(sent, bytes(captured));
    let read =
        read_in_any_pieces(&sent, MasterDecoder::default(), |decoder, input| match decoder.decode(input) {
            MasterStep::Message { consumed, message } => Read::Item(consumed, format!("{message:?}")),
            MasterStep::NeedMore { at_least } => Read::More(at_least),
            MasterStep::Malformed => Read::Last("malformed".into()),
        });
    let record =
        TyrantMasterMessage::Record { stamp_micros: 1_795_199_371_817_295, server_id: 7, body: &body };
    let idle = TyrantMasterMessage::Idle;
    let expected = [TyrantMasterMessage::ServerId(7), idle, record, idle].map(|one| format!("{one:?}"));
    assert_eq!(read[..4], expected);
    assert_eq!(read[4..], ["... 0"]);
}

#[test]
fn bytes_of_no_master_are_malformed() {
    let mut decoder = MasterDecoder::default();
    assert_eq!(decoder.decode(b""), MasterStep::NeedMore { at_least: 4 });
    assert!(matches!(decoder.decode(&[0, 0, 0, 0]), MasterStep::Message { consumed: 4, .. }));
    assert_eq!(decoder.decode(b""), MasterStep::NeedMore { at_least: 1 });
    assert_eq!(decoder.decode(&[0xc8]), MasterStep::Malformed);
    let too_long = bytes("c9 000660b96cdbb14f 00000007 ffffffff");
    assert_eq!(decoder.decode(&too_long), MasterStep::Malformed);
}

#[test]
fn files_and_positions_are_named_as_originally() {
    assert_eq!(update_log::file_name(1), "00000001.ulog");
    for (name, number) in [
        ("00000001.ulog", Some(1)),
        ("12345678.ulog", Some(12_345_678)),
        ("0000000001.ulog", None),
        ("1.ulog", None),
        ("0000000a.ulog", None),
        ("00000001.log", None),
    ] {
        assert_eq!(update_log::file_number(name), number, "{name}");
    }
    assert_eq!(replication::format_position(1_700_000_000_000_003), "1700000000000003\n");
    assert_eq!(replication::format_position(5), "0000000000000005\n");
}
