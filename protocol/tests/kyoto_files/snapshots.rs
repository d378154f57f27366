use crate::pieces::{Read, hex, read_in_any_pieces, text};
use todana_protocol::kyoto::compression::SNAPSHOT_DEFLATE;
use todana_protocol::kyoto::dump::{self, DumpReader, DumpStep};
use todana_protocol::kyoto::snapshot::{self, SnapshotHead, SnapshotReader, SnapshotStep, file_name};
use todana_protocol::kyoto::{StoredValue, expiry};

/// japan=tokyo without expiry, k2=v until 2000000000.
const PLAIN: &str = "4b5453530a00 00000000 18e9d47e9bfefb00 0000000000000002 0000000000002ff8
    cc 05 0a 6a6170616e ffffffffff 746f6b796f cc 02 06 6b32 0077359400 76";

/// The same, compressed by zlib.
const PACKED: &str = "4b5453530a00 87454510 18e9d47f1596e900 0000000000000002 0000000000002ff8
    0000001e 3bc3ca9595589098f71f044af2b32bf3cf30b1651b31949b4e6128030000";

/// The same two records in Kyoto Cabinet's dump format.
const DUMP: &str = "4b4353530a00 00 05 0a 6a6170616e ffffffffff 746f6b796f 00 02 06 6b32 0077359400 76 ff";

const HEAD: SnapshotHead =
    SnapshotHead { check: 0, timestamp: 0x18e9_d47e_9bfe_fb00, count: 2, size: 0x2ff8 };

fn read_snapshot(file: &[u8], reader: SnapshotReader) -> Vec<String> {
    read_in_any_pieces(file, reader, |reader, input| match reader.decode(input) {
        SnapshotStep::Head { consumed, head } => Read::Item(consumed, format!("{head:x?}")),
        SnapshotStep::Record { consumed, key, stored } => Read::Item(consumed, show(key, &stored)),
        SnapshotStep::Chunk { consumed, packed } => {
            Read::Item(consumed, format!("chunk of {}", packed.len()))
        }
        SnapshotStep::NeedMore { at_least } => Read::More(at_least),
        SnapshotStep::Damaged { offset, what } => Read::Last(format!("{offset}: {what}")),
    })
}

fn read_dump(file: &[u8]) -> Vec<String> {
    read_in_any_pieces(file, DumpReader::default(), |reader, input| match reader.decode(input) {
        DumpStep::Begun { consumed } => Read::Item(consumed, "begun".into()),
        DumpStep::Record { consumed, key, stored } => Read::Item(consumed, show(key, &stored)),
        DumpStep::NeedMore { at_least } => Read::More(at_least),
        DumpStep::End => Read::Last("end".into()),
        DumpStep::Damaged { offset, what } => Read::Last(format!("{offset}: {what}")),
    })
}

fn show(key: &[u8], stored: &StoredValue<'_>) -> String {
    match stored.split() {
        Some((expiry::NEVER, value)) => format!("{}={}", text(key), text(value)),
        Some((time, value)) => format!("{}={} until {time}", text(key), text(value)),
        None => format!("{}: short", text(key)),
    }
}

fn put_both(out: &mut Vec<u8>, put: fn(&[u8], &StoredValue<'_>, &mut Vec<u8>)) {
    put(b"japan", &StoredValue::with_expiry(expiry::NEVER, b"tokyo"), out);
    put(b"k2", &StoredValue::with_expiry(2_000_000_000, b"v"), out);
}

#[test]
fn captured_snapshot_is_decoded_from_any_pieces() {
    let items = read_snapshot(&hex(PLAIN), SnapshotReader::default());
    assert_eq!(items[0], format!("{HEAD:x?}"));
    assert_eq!(items[1..], ["japan=tokyo", "k2=v until 2000000000", "... 0"]);
}

#[test]
fn the_captured_snapshot_is_written() {
    let mut out = HEAD.to_bytes().to_vec();
    put_both(&mut out, snapshot::put_record);
    assert_eq!(out, hex(PLAIN));
}

#[test]
fn compressed_snapshot_is_read_and_written_by_chunks() {
    let file = hex(PACKED);
    let head = SnapshotHead { check: SNAPSHOT_DEFLATE, timestamp: 0x18e9_d47f_1596_e900, ..HEAD };
    let items = read_snapshot(&file, SnapshotReader::default());
    assert_eq!(items, [format!("{head:x?}"), "chunk of 30".into(), "... 0".into()]);
    let mut out = head.to_bytes().to_vec();
    snapshot::put_chunk(&file[38..], &mut out);
    assert_eq!(out, file);
}

#[test]
fn an_unpacked_chunk_is_read_as_records() {
    let records = &hex(PLAIN)[snapshot::HEAD_LEN..];
    let items = read_snapshot(records, SnapshotReader::of_chunk());
    assert_eq!(items, ["japan=tokyo", "k2=v until 2000000000", "... 0"]);
}

#[test]
fn snapshot_may_end_only_after_a_record() {
    let file = hex(PLAIN);
    let ends: Vec<usize> = (0..=file.len())
        .filter(|&end| {
            let (mut reader, mut done) = (SnapshotReader::default(), 0);
            loop {
                match reader.decode(&file[done..end]) {
                    SnapshotStep::Head { consumed, .. } | SnapshotStep::Record { consumed, .. } => {
                        done += consumed;
                    }
                    _ => return reader.may_end(&file[done..end]),
                }
            }
        })
        .collect();
    assert_eq!(ends, [34, 34 + 18, file.len()]);
}

#[test]
fn damaged_snapshot_reports_the_offset() {
    let mut file = hex(PLAIN);
    file[34 + 18] = 0xCD;
    let items = read_snapshot(&file, SnapshotReader::default());
    assert_eq!(items.last().unwrap(), "52: no record begins here");
    file[0] = b'k';
    assert_eq!(read_snapshot(&file, SnapshotReader::default()), ["0: not a snapshot of Kyoto Tycoon"]);
    let long = [&HEAD.to_bytes()[..], b"\xCC\xFF\xFF\xFF\xFF\x7F"].concat();
    assert_eq!(read_snapshot(&long, SnapshotReader::default())[1..], ["34: a record is too long"]);
    let endless = [&HEAD.to_bytes()[..], b"\xCC\x05", &[0xFF; 12]].concat();
    assert_eq!(read_snapshot(&endless, SnapshotReader::default())[1..], ["34: a length is too long"]);
}

#[test]
fn the_captured_dump_is_read_and_written() {
    assert_eq!(read_dump(&hex(DUMP)), ["begun", "japan=tokyo", "k2=v until 2000000000", "end"]);
    let mut out = Vec::new();
    dump::put_head(&mut out);
    put_both(&mut out, dump::put_record);
    dump::put_end(&mut out);
    assert_eq!(out, hex(DUMP));
}

#[test]
fn truncated_or_damaged_dump_is_reported() {
    let file = hex(DUMP);
    assert_eq!(read_dump(&file[..file.len() - 1]).last().unwrap(), "... 0");
    let mut damaged = file.clone();
    damaged[6 + 18] = 7;
    assert_eq!(read_dump(&damaged).last().unwrap(), "24: no record begins here");
    assert_eq!(read_dump(b"KTSS\n\0"), ["0: not a dump of Kyoto Cabinet"]);
}

#[test]
fn snapshot_names_contain_the_database_number() {
    assert_eq!(file_name(3), "00000003.ktss");
}
