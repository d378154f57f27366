//! The file `backup` (the manifest), which lists the files of a backup with their checksums
//! (docs/format/backup.md, section 2).

use crate::data_directory::{CHECKPOINTS, LOG, cannot, read_identity};
use crate::disk::Disk;
use crate::file_header::{HeaderFormat, eight, four, identity};
use crate::update_log::{DatabaseIdentity, LogPosition, segment_name};
use std::io;
use std::path::{Path, PathBuf};
use todana_core::{Error, ErrorKind, Result};

/// The name of the file that marks a directory as a backup.
pub const BACKUP: &str = "backup";

/// The folder in a backup that holds the segments of a hash on disk.
pub(crate) const HASH: &str = "hash";

const FORMAT: HeaderFormat<HEADER_LEN> =
    HeaderFormat { magic: *b"TODANABK", version: 1, oldest: 1, what: "list of a backup's files" };
const HEADER_LEN: usize = 72;
pub(super) const FILE_LEN: usize = 24;
/// The most files that a backup can have, because the list of files is sent as one piece.
pub(super) const FILES_MAX: usize = 40_000;
/// Bytes of a file that are read at once.
const READ_LEN: usize = 256 << 10;

/// A summary of the contents of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackedUp {
    /// The position from which the log is replayed after the checkpoint.
    pub start: LogPosition,
    /// The end of the log. The backup contains the state of the database at this position.
    pub end: LogPosition,
    /// The time of the state at `end`, Unix time in milliseconds.
    pub created_ms: u64,
    /// Records in the checkpoint.
    pub records: u64,
    /// Number of files besides the file `backup`.
    pub files: usize,
    /// Bytes of the files counted in `files`.
    pub len: u64,
    /// True for a backup of a hash on disk, which consists of the hash's files. They hold the state
    /// at one moment, so `start` and `end` have no meaning.
    pub is_hash: bool,
    /// Damages in the files of a hash that existed before the backup: file, offset and reason of
    /// each. Set only by [`BackupReceiver::finish`](super::BackupReceiver::finish).
    pub damages: Vec<String>,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BackupFileKind {
    Identity = 1,
    Checkpoint = 2,
    Segment = 3,
    /// A segment of a hash on disk. A backup with such a file contains only files of that hash.
    HashSegment = 4,
    /// A dictionary that compresses values in segments of a hash.
    HashDictionary = 5,
}

/// One file of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListedFile {
    pub(crate) kind: BackupFileKind,
    pub(crate) crc: u32,
    pub(crate) position: LogPosition,
    pub(crate) len: u64,
}

/// The file `backup`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackupManifest {
    pub(crate) identity: DatabaseIdentity,
    pub(crate) start: LogPosition,
    pub(crate) end: LogPosition,
    pub(crate) created_ms: u64,
    pub(crate) records: u64,
    pub(crate) files: Vec<ListedFile>,
}

impl ListedFile {
    pub(crate) fn path(&self, directory: &Path) -> PathBuf {
        match self.kind {
            BackupFileKind::Identity => directory.join("identity"),
            BackupFileKind::Checkpoint => {
                directory.join(CHECKPOINTS).join(format!("{:020}.checkpoint", self.position.0))
            }
            BackupFileKind::Segment => directory.join(LOG).join(segment_name(self.position)),
            BackupFileKind::HashSegment => {
                directory.join(HASH).join(format!("{:010}.segment", self.position.0))
            }
            BackupFileKind::HashDictionary => {
                directory.join(HASH).join(format!("{:03}.dictionary", self.position.0))
            }
        }
    }

    pub(super) fn encode(&self) -> [u8; FILE_LEN] {
        let mut bytes = [0; FILE_LEN];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.crc.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.position.0.to_le_bytes());
        bytes[16..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; FILE_LEN]) -> Option<ListedFile> {
        let kind = match bytes[0] {
            1 => BackupFileKind::Identity,
            2 => BackupFileKind::Checkpoint,
            3 => BackupFileKind::Segment,
            4 => BackupFileKind::HashSegment,
            5 => BackupFileKind::HashDictionary,
            _ => return None,
        };
        let position = LogPosition(eight(bytes, 8));
        let is_sound =
            bytes[1..4] == [0; 3] && (kind != BackupFileKind::Identity || position == LogPosition(0));
        is_sound.then(|| ListedFile { kind, crc: four(bytes, 4), position, len: eight(bytes, 16) })
    }

    /// Returns true if `before` may stand directly before this file in the list.
    pub(super) fn follows(&self, before: Option<&ListedFile>) -> bool {
        match before {
            None => matches!(self.kind, BackupFileKind::Identity | BackupFileKind::HashSegment),
            Some(before) => match (before.kind, self.kind) {
                (BackupFileKind::Segment, BackupFileKind::Segment)
                | (BackupFileKind::HashSegment, BackupFileKind::HashSegment) => {
                    self.position > before.position
                }
                (BackupFileKind::HashDictionary, BackupFileKind::HashDictionary) => {
                    self.position > before.position
                }
                (BackupFileKind::HashSegment, BackupFileKind::HashDictionary) => true,
                (_, BackupFileKind::HashSegment | BackupFileKind::HashDictionary) => false,
                (before, kind) => kind > before,
            },
        }
    }
}

impl BackupManifest {
    /// Reads the manifest of a directory. Returns `None` if the directory has no manifest and so is
    /// not a backup. Fails with `Corrupt` if the manifest is damaged.
    pub(crate) fn read(disk: &dyn Disk, directory: &Path) -> Result<Option<BackupManifest>> {
        let path = directory.join(BACKUP);
        let file = match disk.open(&path, false) {
            Ok(file) => file,
            // If a file has the path of the directory, the later attempt to create the directory
            // reports that.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(cannot("read", &path, &error)),
        };
        let len = file.len().map_err(|error| cannot("read", &path, &error))?;
        let mut bytes = vec![0; len.min((HEADER_LEN + FILES_MAX * FILE_LEN + 5) as u64) as usize];
        let len = file.read_at(0, &mut bytes).map_err(|error| cannot("read", &path, &error))?;
        BackupManifest::decode(&bytes[..len])
            .map(Some)
            .map_err(|why| Error::new(ErrorKind::Corrupt, format!("{} at offset 0: {why}", path.display())))
    }

    /// Returns true if the backup is of a hash on disk.
    pub(crate) fn is_hash(&self) -> bool {
        self.files.first().is_some_and(|file| file.kind == BackupFileKind::HashSegment)
    }

    pub(crate) fn backed_up(&self) -> BackedUp {
        let BackupManifest { start, end, created_ms, records, .. } = *self;
        let len = self.files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.len));
        let (files, is_hash) = (self.files.len(), self.is_hash());
        BackedUp { start, end, created_ms, records, files, len, is_hash, damages: Vec::new() }
    }

    /// Reads the listed files, and returns the damages: the files that differ from the list.
    /// `progress` is called with the number of bytes read.
    pub(crate) fn check(
        &self,
        disk: &dyn Disk,
        directory: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Vec<(PathBuf, String)> {
        let mut done = 0;
        let mut damages = Vec::new();
        for listed in &self.files {
            let path = listed.path(directory);
            // Counts the bytes that were read, because a damaged list may contain any length.
            let before = done;
            let mut told = |read| {
                done = before + read;
                progress(done);
            };
            // The length is checked first, because reading a huge sparse file would take very long.
            let len = disk.open(&path, false).and_then(|file| file.len());
            let summed = match len {
                Ok(len) if len != listed.len => Ok((len, 0)),
                _ => sum(disk, &path, &mut told),
            };
            match summed {
                Ok((len, _)) if len != listed.len => {
                    let what = format!("has {len} bytes; the list of the backup says {}", listed.len);
                    damages.push((path, what));
                }
                Ok((_, crc)) if crc != listed.crc => {
                    damages.push((path, "at offset 0: the checksum of the file differs".into()));
                }
                Ok(_) => {}
                Err(error) => damages.push((path, format!("at offset 0: cannot read it: {error}"))),
            }
        }
        // If the identity file is unreadable, the check above has already reported that.
        if !self.is_hash() && read_identity(disk, directory).is_ok_and(|identity| identity != self.identity) {
            let what = "at offset 0: the identity is not that of the backup";
            damages.push((directory.join("identity"), what.into()));
        }
        damages
    }

    /// Encodes the manifest. Returns `None` if it lists too many files.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        if self.files.len() > FILES_MAX {
            return None;
        }
        let mut bytes = FORMAT.begin(&self.identity).to_vec();
        bytes[36..40].copy_from_slice(&(self.files.len() as u32).to_le_bytes());
        let numbers = [self.start.0, self.end.0, self.created_ms, self.records];
        for (number, into) in numbers.into_iter().zip(bytes[40..].chunks_exact_mut(8)) {
            into.copy_from_slice(&number.to_le_bytes());
        }
        self.files.iter().for_each(|file| bytes.extend_from_slice(&file.encode()));
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        Some(bytes)
    }

    pub(super) fn decode(bytes: &[u8]) -> std::result::Result<BackupManifest, String> {
        if bytes.get(..8) != Some(&FORMAT.magic) {
            return Err(format!("not a {}", FORMAT.what));
        }
        let Some((content, crc)) = bytes.split_last_chunk::<4>().filter(|(rest, _)| rest.len() >= HEADER_LEN)
        else {
            return Err("the list is cut off".into());
        };
        if crc32c::crc32c(content).to_le_bytes() != *crc {
            return Err("the checksum differs".into());
        }
        FORMAT.check_version(content)?;
        let malformed = || "the list is not a valid one of version 1".to_string();
        let (header, files) = content.split_at(HEADER_LEN);
        if four(header, 12) as usize != HEADER_LEN
            || files.len() != FILE_LEN.checked_mul(four(header, 36) as usize).ok_or_else(malformed)?
        {
            return Err(malformed());
        }
        let (files, _) = files.as_chunks::<FILE_LEN>();
        let files: Option<Vec<ListedFile>> = files.iter().map(ListedFile::decode).collect();
        let files = files.ok_or_else(malformed)?;
        let befores = std::iter::once(None).chain(files.iter().map(Some));
        if !files.iter().zip(befores).all(|(file, before)| file.follows(before)) {
            return Err(malformed());
        }
        let manifest = BackupManifest {
            identity: identity(header),
            start: LogPosition(eight(header, 40)),
            end: LogPosition(eight(header, 48)),
            created_ms: eight(header, 56),
            records: eight(header, 64),
            files,
        };
        let checkpoint = manifest.files.iter().find(|file| file.kind == BackupFileKind::Checkpoint);
        let begins_there = manifest.start == checkpoint.map_or(LogPosition(0), |file| file.position);
        // The first listed file must be the identity.
        let has_no_log = !manifest.is_hash() || manifest.end == LogPosition(0);
        let is_sound =
            begins_there && has_no_log && manifest.start <= manifest.end && !manifest.files.is_empty();
        is_sound.then_some(manifest).ok_or_else(malformed)
    }
}

/// Returns the length and CRC of a file.
fn sum(disk: &dyn Disk, path: &Path, progress: &mut dyn FnMut(u64)) -> io::Result<(u64, u32)> {
    let file = disk.open(path, false)?;
    let mut bytes = vec![0; READ_LEN];
    let (mut len, mut crc) = (0, 0);
    loop {
        let got = file.read_at(len, &mut bytes)?;
        if got == 0 {
            return Ok((len, crc));
        }
        crc = crc32c::crc32c_append(crc, &bytes[..got]);
        len += got as u64;
        progress(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> BackupManifest {
        let listed =
            |kind, crc, position, len| ListedFile { kind, crc, position: LogPosition(position), len };
        BackupManifest {
            identity: DatabaseIdentity { server_id: 7, database_id: *b"0123456789abcdef" },
            start: LogPosition(0x0102),
            end: LogPosition(0x0304),
            created_ms: 1_800_000_000_123,
            records: 5,
            files: vec![
                listed(BackupFileKind::Identity, 1, 0, 36),
                listed(BackupFileKind::Checkpoint, 2, 0x0102, 500),
                listed(BackupFileKind::Segment, 3, 0x0100, 600),
                listed(BackupFileKind::Segment, 4, 0x0200, 700),
            ],
        }
    }

    #[test]
    fn manifest_round_trips_and_detects_damage() {
        let bytes = manifest().encode().unwrap();
        assert_eq!(BackupManifest::decode(&bytes), Ok(manifest()));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(BackupManifest::decode(&damaged).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(BackupManifest::decode(&bytes[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn layout_matches_the_format_page() {
        let bytes = manifest().encode().unwrap();
        assert_eq!(&bytes[..16], b"TODANABK\x01\0\0\0\x48\0\0\0");
        assert_eq!(&bytes[16..40], b"0123456789abcdef\x07\0\0\0\x04\0\0\0");
        assert_eq!(&bytes[40..56], b"\x02\x01\0\0\0\0\0\0\x04\x03\0\0\0\0\0\0");
        assert_eq!(bytes[56..64], 1_800_000_000_123u64.to_le_bytes());
        assert_eq!(&bytes[64..72], b"\x05\0\0\0\0\0\0\0");
        assert_eq!(&bytes[96..104], b"\x02\0\0\0\x02\0\0\0");
        assert_eq!(&bytes[104..120], b"\x02\x01\0\0\0\0\0\0\xf4\x01\0\0\0\0\0\0");
        assert_eq!(bytes.len(), 72 + 4 * 24 + 4);
    }

    #[test]
    fn impossible_file_lengths_are_reported_as_damage() {
        let folder = tempfile::tempdir().unwrap();
        let mut manifest = manifest();
        manifest.files.iter_mut().for_each(|file| file.len = u64::MAX);
        std::fs::write(folder.path().join("identity"), [7; 36]).unwrap();
        let mut read = Vec::new();
        let damages = manifest.check(&crate::disk::SystemDisk, folder.path(), &mut |done| read.push(done));
        // A file whose length differs from the listed length is not read.
        assert_eq!((damages.len(), read), (4, Vec::<u64>::new()));
        assert!(damages[0].1.contains("has 36 bytes; the list of the backup says"), "{damages:?}");
        assert_eq!(manifest.backed_up().len, u64::MAX);
    }

    #[test]
    fn files_stand_in_one_order_only() {
        for (first, second) in [(0, 1), (1, 2), (2, 3)] {
            let mut swapped = manifest();
            swapped.files.swap(first, second);
            assert!(BackupManifest::decode(&swapped.encode().unwrap()).is_err(), "{first} {second}");
        }
        let mut twice = manifest();
        twice.files[2] = twice.files[1];
        assert!(BackupManifest::decode(&twice.encode().unwrap()).is_err());
    }

    #[test]
    fn manifest_starts_at_its_checkpoint_before_its_end() {
        let refused = |manifest: BackupManifest| BackupManifest::decode(&manifest.encode().unwrap()).is_err();
        assert!(refused(BackupManifest { start: LogPosition(0), ..manifest() }));
        assert!(refused(BackupManifest { end: LogPosition(0x0101), ..manifest() }));
        let mut without = manifest();
        without.files.remove(1);
        assert!(refused(without.clone()));
        assert!(!refused(BackupManifest { start: LogPosition(0), ..without }));
        assert!(refused(BackupManifest { start: LogPosition(0), files: Vec::new(), ..manifest() }));
    }
}
