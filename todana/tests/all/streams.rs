//! Runs the fuzz targets `backup_stream` and `log_stream` on some generated inputs.

use crate::crash_disk;
use crate::fuzz_inputs;
use crate::incoming;
use crate::opener;

use crash_disk::CrashDisk;
use incoming::StreamPieces;
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;
use todana::backup::BackupReceiver;
use todana::update_log::{EntryDecoder, LogPosition};
use todana_core::ErrorKind;

#[test]
fn fuzz_inputs_are_received_or_refused() {
    let mut received = 0;
    for (name, input) in fuzz_inputs::inputs("backup_stream") {
        let is_received = incoming::receive_any(&input);
        let is_complete = [
            "checkpoint_without_a_log",
            "identity_alone",
            "identity_and_log",
            "in_two_pieces_and_portions",
            "with_a_checkpoint",
        ]
        .contains(&name.as_str());
        // Inputs that the fuzzer has found have a checksum as their name.
        assert!(is_received == is_complete || name.len() == 40, "{name}");
        received += usize::from(is_received && is_complete);
    }
    assert_eq!(received, 5);
    fuzz_inputs::play_all("backup_stream", 5, |input| {
        incoming::receive_any(input);
    });
}

/// The files of a refused backup are recognised by their names, even if these have many digits.
#[test]
fn refused_stream_leaves_no_segment_of_high_number() {
    assert!(!incoming::receive_any(&[38, 2, 0, 0, 0, 179, 0, 1, 4, 0, 0, 0, 0, 0, 0, 0, 1]));
}

#[test]
fn inputs_of_the_fuzz_target_are_taken_apart() {
    fuzz_inputs::play_all("log_stream", 20, incoming::decode_any);
}

/// Each file needs memory and an entry on the disk, even if it is small, so their number is
/// limited.
#[test]
fn stream_with_too_many_files_is_refused() {
    let disk = CrashDisk::new();
    let mut receiver = BackupReceiver::create(Arc::new(disk.clone()), Path::new(incoming::TARGET)).unwrap();
    let mut stream = StreamPieces::begin(0);
    let announce = |stream: &mut StreamPieces, kind: u8, position: u64| {
        let mut file = incoming::listed(kind, position, b"");
        file[4..8].fill(0);
        stream.put(1, &file);
    };
    announce(&mut stream, 1, 0);
    (1..40_000).for_each(|position| announce(&mut stream, 3, position));
    receiver.take(&stream.bytes).unwrap();
    assert_eq!(disk.state().files().len(), 40_000);
    let len = stream.bytes.len();
    announce(&mut stream, 3, 40_000);
    let error = receiver.take(&stream.bytes[len..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("more than 40000 files"), "{error}");
    drop(receiver);
    assert!(disk.state().files().is_empty());
}

/// The sender of the log chooses its start position, so the receiver must check it.
#[test]
fn entry_beyond_the_last_position_is_an_error() {
    for (from, entries_len) in [(u64::MAX - 9, 1), (u64::MAX - 8, 0), (u64::MAX - 18, 2)] {
        let mut entries = EntryDecoder::new(*opener::DATABASE_ID, LogPosition(from));
        entries.push(&incoming::framed(LogPosition(from), b"\x01\x04\x01\x04\x01\x04"));
        for _ in 0..entries_len {
            assert!(entries.next_entry().unwrap().is_some());
        }
        let (position, error) = (entries.position().0, entries.next_entry().unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            error.to_string().ends_with(&format!("position {position}: position out of range")),
            "{error}"
        );
    }
}

proptest! {
    #[test]
    fn any_stream_is_received_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        incoming::receive_any(&bytes);
    }

    /// Pieces that are almost valid.
    #[test]
    fn any_pieces_are_received_or_refused(
        head in (0u8..64, 0u8..9, any::<[u8; 2]>(), 0u8..2),
        pieces in proptest::collection::vec((0u8..16, proptest::collection::vec(0u8..4, 0..30)), 0..4),
    ) {
        let (kind, damage, place, start) = head;
        let mut bytes = vec![kind * 4 + 2, damage, place[0], place[1], start, 0, 0, 0];
        for (shape, content) in pieces {
            bytes.extend_from_slice(&[shape, content.len() as u8, 0]);
            bytes.extend_from_slice(&content);
        }
        incoming::receive_any(&bytes);
    }

    /// The manifest of a backup with a few wrong numbers.
    #[test]
    fn lists_are_correct_or_refused(
        form in 0u8..6,
        changes in proptest::collection::vec(any::<[u8; 2]>(), 0..6),
    ) {
        let segment = [3, 0, 0, 3, 1, 1, b'k'];
        let mut bytes = vec![3, form, segment.len() as u8, 0];
        bytes.extend_from_slice(&segment);
        bytes.extend(changes.as_flattened());
        incoming::receive_any(&bytes);
    }

    #[test]
    fn any_bytes_are_taken_apart(
        kind in any::<u8>(),
        from in prop_oneof![Just(0u64), any::<u64>(), u64::MAX - 60..=u64::MAX],
        contents in proptest::collection::vec((0u8..8, proptest::collection::vec(0u8..4, 0..12)), 0..8),
    ) {
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&from.to_le_bytes());
        for (tag, content) in contents {
            bytes.push(content.len() as u8 + 1);
            bytes.push(tag);
            bytes.extend_from_slice(&content);
        }
        incoming::decode_any(&bytes);
    }
}
