//! Interprets fuzz input as a backup stream, as a stored backup, and as the bytes of an update log.
//!
//!     kind(1) | rest
//!
//!     kind mod 4:
//!         0  rest is a backup stream
//!         1  rest follows the header of a stream
//!         2  damage(1) place(2) start(1), then pieces as in `stream`; all checksums are right
//!         3  form(1) len(2), `len` bytes of a segment as in `entries`, and the file `backup` as in
//!           `list`: a stored backup
//!
//! The bytes of a log have a form of their own: [`decode_any`].
#![allow(dead_code)] // Each test uses its part.

use crate::crash_disk::{CrashDisk, Op, State};
use crate::opener::{DATABASE_ID, NOW, blocks, entries, header, identity, split, with_checksum};
use std::path::Path;
use std::sync::Arc;
use todana::backup::{BACKUP, BackedUp, BackupReceiver};
use todana::update_log::{DatabaseIdentity, EntryDecoder, LogPosition, LogReader};
use todana::{Clock, DataDirectory, Database, ManualClock, RestoreOptions, restore, verify};
use todana_core::{Error, ErrorKind, Result, UnixSeconds};
use todana_engine::{MemHash, MemHashOptions};

pub(crate) const TARGET: &str = "/backup";

/// Receives a stream in pieces of any size. Either the stream is a complete backup, which can be
/// verified and restored, or it is refused and leaves no files. Returns true if it was received.
pub(crate) fn receive_any(bytes: &[u8]) -> bool {
    let Some((kind, rest)) = bytes.split_first() else { return false };
    let stream = match kind % 4 {
        0 => rest.to_vec(),
        1 => [&stream_header(0)[..], rest].concat(),
        2 => stream(rest),
        _ => {
            verify_any(rest);
            return false;
        }
    };
    let (outcome, state) = received(&stream, stream.len().max(1));
    let mut portion = 1 + usize::from(kind >> 2);
    portion = portion.max(stream.len() / 500);
    let (in_portions, the_same_state) = received(&stream, portion);
    match (outcome, in_portions) {
        (Ok(backed_up), Ok(the_same)) => {
            assert_eq!(backed_up, the_same);
            assert_eq!(state.files(), the_same_state.files());
            whole(&CrashDisk::with(state), &backed_up);
            true
        }
        (Err(error), Err(the_same)) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            // If a file has two damages, either may be reported, because several threads search for
            // them.
            let reported = |error: &Error| error.to_string().split(" at offset ").next().map(String::from);
            assert_eq!(reported(&error), reported(&the_same));
            for files in [state.files(), the_same_state.files()] {
                assert!(files.is_empty(), "{error}: {:?} is left", files.keys());
            }
            false
        }
        (one, other) => panic!("{one:?} in one piece, {other:?} in portions of {portion}"),
    }
}

/// Receives a stream in portions of this number of bytes.
fn received(stream: &[u8], portion: usize) -> (Result<BackedUp>, State) {
    let disk = CrashDisk::new();
    let mut receiver =
        BackupReceiver::create(Arc::new(disk.clone()), Path::new(TARGET)).expect("nothing is there");
    let outcome = stream.chunks(portion).try_for_each(|bytes| receiver.take(bytes));
    let outcome = match outcome {
        Ok(()) => receiver.finish(&mut |_| ()),
        Err(error) => {
            let again = receiver.take(b"x").expect_err("it has failed");
            assert_eq!(again.kind(), ErrorKind::Closed);
            drop(receiver);
            Err(error)
        }
    };
    (outcome, disk.state())
}

/// Checks that a received backup is complete, and that damage of its source is reported as before.
fn whole(disk: &CrashDisk, backed_up: &BackedUp) {
    let verified = verify(Arc::new(disk.clone()), Path::new(TARGET), &mut |_| ()).expect("it was received");
    assert!(backed_up.is_hash || backed_up.damages.is_empty());
    assert_eq!((verified.inherited, &verified.damages), (backed_up.damages.len(), &backed_up.damages));
    let listed = BackedUp { damages: vec![], ..backed_up.clone() };
    assert_eq!(verified.backup, Some(listed));
    assert_eq!(verified.log.1, backed_up.end);
    not_served(disk);
    match restored(disk) {
        Ok(_) => assert!(disk.state().files().contains_key(Path::new("/restored/identity"))),
        // A hash can only be restored as a hash. A stream may lack the log that its checkpoint
        // needs.
        Err(error) => {
            let kind = if backed_up.is_hash { ErrorKind::Invalid } else { ErrorKind::Corrupt };
            assert_eq!(error.kind(), kind, "{error}");
            assert!(!disk.state().files().keys().any(|path| path.starts_with("/restored")), "{error}");
        }
    }
}

fn not_served(disk: &CrashDisk) {
    let refused =
        DataDirectory::open(Arc::new(disk.clone()), Path::new(TARGET)).err().expect("it is a backup");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

fn restored(disk: &CrashDisk) -> Result<u64> {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(UnixSeconds(NOW)));
    let options = MemHashOptions { shards: Some(1), seed: Some(1), ..MemHashOptions::default() };
    let engine = MemHash::new(options).expect("there is room");
    let database = Database::new(Box::new(engine), Arc::clone(&clock));
    let options =
        RestoreOptions { from: TARGET.into(), target: "/restored".into(), ..RestoreOptions::default() };
    Ok(restore(Arc::new(disk.clone()), &options, &database, clock, &mut |_| ())?.records)
}

/// Verifies a stored backup with an arbitrary manifest. Either it is intact, or the problem is
/// reported.
fn verify_any(bytes: &[u8]) {
    let Some((form, rest)) = bytes.split_first() else { return };
    let (segment, rest) = split(rest);
    let mut state = State::default();
    for directory in ["log", "checkpoints"] {
        let path = Path::new(TARGET).join(directory);
        state.apply(&Op::MakeDirectory { path }).expect("nothing is in its way");
    }
    let segment = entries(segment);
    state.put(&Path::new(TARGET).join(BACKUP), list(*form, rest, &segment));
    state.put(&Path::new(TARGET).join("identity"), identity());
    state.put(&Path::new(TARGET).join("log/00000000000000000000.log"), segment);
    let disk = CrashDisk::with(state);
    let verified =
        verify(Arc::new(disk.clone()), Path::new(TARGET), &mut |_| ()).expect("it has an identity");
    not_served(&disk);
    let damages = &verified.damages;
    assert!(damages.iter().all(|damage| damage.contains(TARGET)), "{damages:?}");
    // If the manifest cannot be read, the directory is not a backup.
    assert!(verified.backup.is_some() || !damages.is_empty());
    match restored(&disk) {
        // Files that the manifest does not list are ignored, and so is the end of the log that it
        // states.
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
    }
}

/// Returns the file `backup`. form: 0 unchanged, 1 after a right beginning, 2 with a right checksum
/// as well; otherwise header and file list are right, and so are the numbers that `place(1)
/// byte(1)` pairs do not change.
fn list(form: u8, bytes: &[u8], segment: &[u8]) -> Vec<u8> {
    if form == 0 {
        return bytes.to_vec();
    }
    let mut list = beginning(b"TODANABK", 72);
    match form {
        1 => return [&list[..], bytes].concat(),
        2 => list.extend_from_slice(bytes),
        _ => {
            list.extend_from_slice(&[2, 0, 0, 0]);
            for number in [0, (segment.len() as u64).saturating_sub(64), NOW * 1000, 0] {
                list.extend_from_slice(&number.to_le_bytes());
            }
            list.extend_from_slice(&listed(1, 0, &identity()));
            list.extend_from_slice(&listed(3, 0, segment));
            for change in bytes.chunks_exact(2) {
                let place = usize::from(change[0]) % list.len();
                list[place] = change[1];
            }
        }
    }
    with_checksum(list)
}

/// Returns the entry of a file in the manifest.
pub(crate) fn listed(kind: u8, position: u64, bytes: &[u8]) -> [u8; 24] {
    let mut listed = [0; 24];
    listed[0] = kind;
    listed[4..8].copy_from_slice(&crc32c::crc32c(bytes).to_le_bytes());
    listed[8..16].copy_from_slice(&position.to_le_bytes());
    listed[16..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    listed
}

/// Returns the first 36 bytes of a file with a header.
fn beginning(magic: &[u8; 8], len: u32) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend_from_slice(&1u32.to_le_bytes());
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(DATABASE_ID);
    bytes.extend_from_slice(&7u32.to_le_bytes());
    bytes
}

fn stream_header(start: u64) -> Vec<u8> {
    let mut bytes = beginning(b"TODANABS", 64);
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&start.to_le_bytes());
    bytes.extend_from_slice(&[0; 12]);
    with_checksum(bytes)
}

/// Returns a stream of pieces: `shape(1) len(2) content`, each.
///
/// shape mod 8: 0 the right identity; 1 the segment at 0 with these entries; 2 a checkpoint at 0
/// with these blocks; 3 a file: kind(1) position(8) and its bytes; 4 the announcement of a file, as
/// these 24 bytes state; 5 bytes; 6 a piece: kind(1), content; 7 the end, as these bytes state. Bit
/// 3: the bytes after the announcement of a file come in two pieces. A right end follows if there
/// was none. damage: 0 truncated at `place`, 1 a bit flipped there, 2 no end, 3 an end with another
/// number at `place`, 4 bytes after the end; otherwise none.
fn stream(bytes: &[u8]) -> Vec<u8> {
    let Some(([damage, place @ .., start], mut rest)) = bytes.split_first_chunk::<4>() else {
        return Vec::new();
    };
    let place = usize::from(u16::from_le_bytes(*place));
    let mut stream = StreamPieces::begin((*start).into());
    let (mut files, mut end) = (Vec::new(), u64::from(*start));
    while let Some(([shape, len @ ..], behind)) = rest.split_first_chunk::<3>() {
        let (content, behind) = behind.split_at(behind.len().min(u16::from_le_bytes(*len).into()));
        rest = behind;
        let mut file = |kind: u8, position: u64, bytes: &[u8]| {
            let mut file = listed(kind, position, bytes);
            files.push(file);
            file[4..8].fill(0);
            stream.put(1, &file);
            let middle = if shape & 8 != 0 { bytes.len() / 2 } else { 0 };
            for part in [&bytes[..middle], &bytes[middle..]] {
                part.chunks(1 << 20).for_each(|part| stream.put(2, part));
            }
        };
        match shape % 8 {
            0 => file(1, 0, &identity()),
            1 => {
                let segment = entries(content);
                end = (segment.len() as u64).saturating_sub(header().len() as u64);
                file(3, 0, &segment);
            }
            2 => file(2, 0, &blocks(content)),
            3 => {
                let Some(([kind, position @ ..], bytes)) = content.split_first_chunk::<9>() else { continue };
                file(*kind, u64::from_le_bytes(*position), bytes);
            }
            4 => stream.put(1, content),
            5 => stream.put(2, content),
            6 => {
                let Some((kind, content)) = content.split_first() else { continue };
                stream.put(*kind, content);
            }
            _ => stream.put(3, content),
        }
    }
    let mut list = beginning(b"TODANABK", 72);
    list.extend_from_slice(&(files.len() as u32).to_le_bytes());
    for number in [u64::from(*start), end, NOW * 1000, 0] {
        list.extend_from_slice(&number.to_le_bytes());
    }
    files.iter().for_each(|file| list.extend_from_slice(file));
    if *damage == 3 {
        let place = place % list.len();
        list[place] ^= 1;
    }
    if *damage != 2 {
        stream.put(3, &with_checksum(list));
    }
    let mut stream = stream.bytes;
    match damage {
        0 => stream.truncate(place % stream.len()),
        1 => {
            let bit = place % (stream.len() * 8);
            stream[bit / 8] ^= 1 << (bit % 8);
        }
        4 => stream.push(place as u8),
        _ => {}
    }
    stream
}

/// A stream with right checksums.
pub(crate) struct StreamPieces {
    pub(crate) bytes: Vec<u8>,
    crc: [u8; 4],
}

impl StreamPieces {
    pub(crate) fn begin(start: u64) -> StreamPieces {
        let bytes = stream_header(start);
        let crc = *bytes.last_chunk().expect("it ends in four bytes");
        StreamPieces { bytes, crc }
    }

    pub(crate) fn put(&mut self, kind: u8, content: &[u8]) {
        let mut piece = vec![kind, 0, 0, 0];
        piece.extend_from_slice(&(content.len() as u32).to_le_bytes());
        piece.extend_from_slice(content);
        self.crc = crc32c::crc32c(&[&self.crc[..], &piece].concat()).to_le_bytes();
        self.bytes.extend_from_slice(&self.crc);
        self.bytes.extend_from_slice(&piece);
    }
}

/// An entry as it was shown: position and contents.
type ShownEntry = (LogPosition, String);

/// Decodes the bytes of a log from elsewhere: `kind(1) position(8) | rest`. kind mod 2: 0 rest is
/// those bytes; 1 rest is contents of entries, each after its length(1), all checksums are right.
/// The entries shown do not depend on the portions, and are those that the log's own reader shows
/// of a file.
pub(crate) fn decode_any(bytes: &[u8]) {
    let Some(([kind, from @ ..], rest)) = bytes.split_first_chunk::<9>() else { return };
    let from = LogPosition(u64::from_le_bytes(*from));
    let bytes = if kind % 2 == 0 { rest.to_vec() } else { framed(from, rest) };
    let (shown, end) = decoded(from, &bytes, bytes.len().max(1));
    let portion = (1 + usize::from(kind >> 1)).max(bytes.len() / 500);
    assert_eq!(decoded(from, &bytes, portion), (shown.clone(), end.clone()));
    // The reader accepts no file that ends, with its header, after the last possible position.
    if from.0.checked_add((header().len() + bytes.len()) as u64).is_none() {
        return;
    }
    let mut state = State::default();
    state.apply(&Op::MakeDirectory { path: "/log".into() }).expect("nothing is in its way");
    let mut segment = header();
    segment[40..48].copy_from_slice(&from.0.to_le_bytes());
    segment.truncate(60);
    state.put(
        &Path::new("/log").join(format!("{:020}.log", from.0)),
        [with_checksum(segment), bytes].concat(),
    );
    let identity = DatabaseIdentity { server_id: 7, database_id: *DATABASE_ID };
    let disk = Arc::new(CrashDisk::with(state));
    let mut reader =
        LogReader::open(disk, Path::new("/log"), identity, from).expect("its segment begins there");
    let mut read = Vec::new();
    while let Ok(Some((position, entry))) = reader.next_entry() {
        read.push((position, format!("{entry:?}")));
    }
    assert_eq!(shown, read, "{end}");
}

/// Returns the entries, and how they end.
fn decoded(from: LogPosition, bytes: &[u8], portion: usize) -> (Vec<ShownEntry>, String) {
    let mut entries = EntryDecoder::new(*DATABASE_ID, from);
    let mut shown = Vec::new();
    for bytes in bytes.chunks(portion) {
        entries.push(bytes);
        loop {
            let before = entries.position();
            match entries.next_entry() {
                Ok(Some((position, entry))) => {
                    assert_eq!(position, before);
                    shown.push((position, format!("{entry:?}")));
                }
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt);
                    assert!(error.to_string().contains(&format!("position {}", before.0)), "{error}");
                    assert_eq!(entries.next_entry().map(|_| ()), Err(error.clone()));
                    return (shown, error.to_string());
                }
            }
            assert!(entries.position() > before);
        }
    }
    (shown, format!("{:?}, {}", entries.position(), entries.is_empty()))
}

/// Returns entries with these contents, from a position on.
pub(crate) fn framed(from: LogPosition, mut contents: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some((len, behind)) = contents.split_first() {
        let (content, behind) = behind.split_at(behind.len().min((*len).into()));
        contents = behind;
        let size = (content.len() as u32).to_le_bytes();
        let position = from.0.wrapping_add(bytes.len() as u64).to_le_bytes();
        let crc = crc32c::crc32c(&[&DATABASE_ID[..], &position, &size, content].concat());
        bytes.extend_from_slice(&size);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(content);
    }
    bytes
}
