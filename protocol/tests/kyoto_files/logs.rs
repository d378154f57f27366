use crate::pieces::{Read, hex, read_in_any_pieces, text};
use todana_protocol::kyoto::update_log::{
    LogFileHead, LogFileReader, LogFileStep, file_name, file_number, put_record,
};
use todana_protocol::kyoto::{StoredValue, UpdateChange, UpdateMessage, expiry};

/// The log of server 17 after: set japan=tokyo; set in persistent database 1; remove; clear of
/// database 1. The head says 648 bytes, as other records were between those that were captured.
const RECORDS: &str = "a1 18e9d46749a31d80 00000016 0011 0000 a1 05 0a 6a6170616e ffffffffff 746f6b796f a2
    a1 18e9d4675ba34500 00000009 0011 0001 a1 01 01 70 71 a2
    a1 18e9d46764a358c0 0000000b 0011 0000 a2 05 6a6170616e a2
    a1 18e9d4679aff5cc0 00000005 0011 0001 a5 a2";

fn file() -> Vec<u8> {
    let records = hex(RECORDS);
    let head = LogFileHead { size: 17 + records.len() as u64, newest: 0x18e9_d467_9aff_5cc0 };
    [&head.to_bytes()[..], &records].concat()
}

fn read(file: &[u8]) -> Vec<String> {
    read_in_any_pieces(file, LogFileReader::default(), |reader, input| match reader.decode(input) {
        LogFileStep::Head { consumed, head } => {
            Read::Item(consumed, format!("{} {:x}", head.size, head.newest))
        }
        LogFileStep::Record { consumed, timestamp, message } => {
            Read::Item(consumed, format!("{timestamp:x} {}", show(&message)))
        }
        LogFileStep::NeedMore { at_least } => Read::More(at_least),
        LogFileStep::End => Read::Last("end".into()),
        LogFileStep::Damaged { offset, what } => Read::Last(format!("{offset}: {what}")),
    })
}

pub(crate) fn show(message: &UpdateMessage<'_>) -> String {
    let change = match message.change {
        UpdateChange::Set { key, stored } => {
            format!("set {} {}", text(key), text(stored.as_raw().unwrap()))
        }
        UpdateChange::SetList { key, stored } => {
            format!("list {} {}", text(key), text(stored.as_raw().unwrap()))
        }
        UpdateChange::Remove { key } => format!("remove {}", text(key)),
        UpdateChange::Clear => "clear".into(),
        UpdateChange::Other { operation, body } => format!("{operation:x} {}", text(body)),
    };
    format!("{} {} {change}", message.server_id, message.database)
}

#[test]
fn the_captured_head_is_read_and_written() {
    let bytes = hex("a0 0000000000000288 18e9d4679aff5cc0");
    let head = LogFileHead::parse(bytes[..].try_into().unwrap()).unwrap();
    assert_eq!(head, LogFileHead { size: 0x288, newest: 0x18e9_d467_9aff_5cc0 });
    assert_eq!(head.to_bytes()[..], bytes);
}

#[test]
fn captured_records_are_decoded_from_any_pieces() {
    assert_eq!(
        read(&file()),
        [
            "120 18e9d4679aff5cc0",
            "18e9d46749a31d80 17 0 set japan \\xff\\xff\\xff\\xff\\xfftokyo",
            "18e9d4675ba34500 17 1 set p q",
            "18e9d46764a358c0 17 0 remove japan",
            "18e9d4679aff5cc0 17 1 clear",
            "end"
        ]
    );
}

#[test]
fn the_captured_records_are_written() {
    let mut out = Vec::new();
    let of = |database, change| UpdateMessage { server_id: 17, database, change };
    let set = UpdateChange::Set { key: b"japan", stored: StoredValue::with_expiry(expiry::NEVER, b"tokyo") };
    put_record(0x18e9_d467_49a3_1d80, &of(0, set), &mut out);
    let set = UpdateChange::Set { key: b"p", stored: StoredValue::raw(b"q") };
    put_record(0x18e9_d467_5ba3_4500, &of(1, set), &mut out);
    put_record(0x18e9_d467_64a3_58c0, &of(0, UpdateChange::Remove { key: b"japan" }), &mut out);
    put_record(0x18e9_d467_9aff_5cc0, &of(1, UpdateChange::Clear), &mut out);
    assert_eq!(out, hex(RECORDS));
}

#[test]
fn bytes_after_the_head_s_size_are_ignored() {
    let whole = file();
    let torn = [&whole[..], b"\xA1torn"].concat();
    assert_eq!(read(&torn), read(&whole));
}

#[test]
fn file_shorter_than_its_head_wants_more() {
    let whole = file();
    assert_eq!(read(&whole[..whole.len() - 1]).last().unwrap(), "... 18");
    assert_eq!(read(&whole[..16]), ["... 16"]);
}

#[test]
fn damage_is_reported_with_its_offset() {
    let whole = file();
    let mut other = whole.clone();
    other[0] = 0xA1;
    assert_eq!(read(&other), ["0: not an update log of Kyoto Tycoon"]);
    let mut cut = whole.clone();
    cut[17 + 36 - 1] = 0;
    assert_eq!(read(&cut)[1..], ["17: a record does not end after the length that it gives"]);
    let mut beyond = whole.clone();
    beyond[8] -= 1;
    assert_eq!(read(&beyond).last().unwrap(), "101: a record reaches beyond the end that the head gives");
    let mut no_record = whole.clone();
    no_record[17] = 0;
    assert_eq!(read(&no_record)[1..], ["17: no record begins here"]);
    let mut long = whole;
    long[17 + 9] = 0xFF;
    assert_eq!(read(&long)[1..], ["17: a record is too long"]);
}

#[test]
fn error_of_a_short_rest_ignores_pieces() {
    let head = LogFileHead { size: 20, newest: 0 }.to_bytes();
    let read_behind = |rest: &[u8]| read(&[&head[..], rest].concat())[1..].to_vec();
    assert_eq!(read_behind(b"\x18345678901234567890"), ["17: no record begins here"]);
    let beyond = "17: a record reaches beyond the end that the head gives";
    assert_eq!(read_behind(b"\xA1345678901234567890"), [beyond]);
}

#[test]
fn unknown_updates_are_kept_and_truncated_ones_refused() {
    let message = UpdateMessage::parse(b"\x00\x11\x00\x00\xA3abc").unwrap();
    assert_eq!(message.change, UpdateChange::Other { operation: 0xA3, body: b"abc" });
    let mut out = Vec::new();
    message.put(&mut out);
    assert_eq!(out, b"\x00\x11\x00\x00\xA3abc");
    for cut in ["", "0011", "00110000", "00110000a1", "00110000a101", "00110000a1010170", "00110000a20561"] {
        assert_eq!(UpdateMessage::parse(&hex(cut)), None, "{cut}");
    }
}

#[test]
fn files_are_named_by_ten_digits() {
    assert_eq!(file_name(1), "0000000001.ulog");
    for (name, number) in [
        ("0000000001.ulog", Some(1)),
        ("12345678901.ulog", Some(12_345_678_901)),
        ("1.ulog", None),
        ("000000000x.ulog", None),
        ("+000000001.ulog", None),
        ("0000000001.log", None),
    ] {
        assert_eq!(file_number(name), number, "{name}");
    }
}
