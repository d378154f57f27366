//! Files of Kyoto Tycoon and Kyoto Cabinet: any bytes, split in any way, yield the same records or
//! damage at the same offset. Records that have been read are the same after being written and read
//! again.
//!
//! The input is a byte that selects the kind of file, a byte with the number of cuts, the cuts (two
//! bytes each), and the bytes after the file's magic.
#![no_main]

mod kyoto_cuts;
#[path = "../../protocol/tests/kyoto_files/pieces.rs"]
#[allow(dead_code)]
mod pieces;

use kyoto_cuts::{assert_cuts_do_not_matter, stream_and_cuts};
use pieces::{Read, read_in_pieces};
use todana_protocol::kyoto::dump::{self, DumpReader, DumpStep};
use todana_protocol::kyoto::snapshot::{self, SnapshotReader, SnapshotStep};
use todana_protocol::kyoto::update_log::{self, LogFileReader, LogFileStep};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else { return };
    let Some((content, cuts)) = stream_and_cuts(rest) else { return };
    let magic: &[u8] = match kind % 4 {
        0 => b"\xA0",
        1 => b"KTSS\n\0",
        2 => b"KCSS\n\0",
        _ => b"",
    };
    let file = [magic, content].concat();
    assert_cuts_do_not_matter(&file, &cuts, |cuts| match kind % 4 {
        0 => log(&file, cuts),
        1 => snapshot(&file, cuts, SnapshotReader::default()),
        2 => dumped(&file, cuts),
        _ => snapshot(&file, cuts, SnapshotReader::of_chunk()),
    });
});

fn log(file: &[u8], cuts: &[usize]) -> Vec<String> {
    let mut reader = LogFileReader::default();
    read_in_pieces(file, cuts, |input| match reader.decode(input) {
        LogFileStep::Head { consumed, head } => {
            assert_eq!(head.to_bytes()[..], input[..consumed]);
            Read::Item(consumed, format!("{head:?}"))
        }
        LogFileStep::Record { consumed, timestamp, message } => {
            let mut written = Vec::new();
            update_log::put_record(timestamp, &message, &mut written);
            assert_eq!(written.len(), message.len() + update_log::RECORD_OVERHEAD);
            assert!(written.len() <= consumed, "lengths may be written longer than need be");
            Read::Item(consumed, format!("{timestamp} {message:?}"))
        }
        LogFileStep::NeedMore { at_least } => Read::More(at_least),
        LogFileStep::End => Read::Last("end".into()),
        LogFileStep::Damaged { offset, what } => Read::Last(format!("{offset} {what}")),
    })
}

fn snapshot(file: &[u8], cuts: &[usize], mut reader: SnapshotReader) -> Vec<String> {
    read_in_pieces(file, cuts, |input| match reader.decode(input) {
        SnapshotStep::Head { consumed, head } => {
            assert_eq!(head.to_bytes()[..], input[..consumed]);
            Read::Item(consumed, format!("{head:?}"))
        }
        SnapshotStep::Record { consumed, key, stored } => {
            let mut written = Vec::new();
            snapshot::put_record(key, &stored, &mut written);
            assert!(written.len() <= consumed);
            let again = SnapshotReader::of_chunk().decode(&written);
            assert_eq!(again, SnapshotStep::Record { consumed: written.len(), key, stored });
            Read::Item(consumed, format!("{key:?} {stored:?} {:?}", stored.split()))
        }
        SnapshotStep::Chunk { consumed, packed } => Read::Item(consumed, format!("{packed:?}")),
        SnapshotStep::NeedMore { at_least } => Read::More(at_least),
        SnapshotStep::Damaged { offset, what } => Read::Last(format!("{offset} {what}")),
    })
}

fn dumped(file: &[u8], cuts: &[usize]) -> Vec<String> {
    let mut reader = DumpReader::default();
    read_in_pieces(file, cuts, |input| match reader.decode(input) {
        DumpStep::Begun { consumed } => Read::Item(consumed, "begun".into()),
        DumpStep::Record { consumed, key, stored } => {
            let mut written = Vec::new();
            dump::put_record(key, &stored, &mut written);
            assert!(written.len() <= consumed);
            Read::Item(consumed, format!("{key:?} {stored:?}"))
        }
        DumpStep::NeedMore { at_least } => Read::More(at_least),
        DumpStep::End => Read::Last("end".into()),
        DumpStep::Damaged { offset, what } => Read::Last(format!("{offset} {what}")),
    })
}
