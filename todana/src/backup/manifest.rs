//! The file `backup`: the contents of a backup, and the checksums of its files
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
/// The most files of a backup, because its list is sent as one piece.
pub(super) const FILES_MAX: usize = 40_000;
/// Bytes read at once.
const READ: usize = 256 << 10;

/// The contents of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackedUp {
    /// The position from which the log is replayed after the checkpoint.
    pub start: LogPosition,
    /// The end of the log: the backup is the state at this position.
    pub end: LogPosition,
    /// The time of that state, Unix time in milliseconds.
    pub created_ms: u64,
    /// Records in the checkpoint.
    pub records: u64,
    /// Number of files besides the file `backup`.
    pub files: usize,
    /// Bytes of these files.
    pub len: u64,
    /// The backup is of a hash on disk, by its files. It is the state at one moment, and the
    /// positions have no meaning.
    pub is_hash: bool,
    /// Damages that existed in the files of a hash before the backup: file, offset and reason. Set
    /// only by [`Receiver::finish`](super::Receiver::finish).
    pub damages: Vec<String>,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Identity = 1,
    Checkpoint = 2,
    Segment = 3,
    /// A segment of a hash on disk. All files of the backup are then of one.
    HashSegment = 4,
    /// A dictionary that compresses values in segments of a hash.
    HashDictionary = 5,
}

/// One file of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) kind: Kind,
    pub(crate) crc: u32,
    pub(crate) position: LogPosition,
    pub(crate) len: u64,
}

/// The file `backup`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) identity: DatabaseIdentity,
    pub(crate) start: LogPosition,
    pub(crate) end: LogPosition,
    pub(crate) created_ms: u64,
    pub(crate) records: u64,
    pub(crate) files: Vec<Listed>,
}

impl Listed {
    pub(crate) fn path(&self, directory: &Path) -> PathBuf {
        match self.kind {
            Kind::Identity => directory.join("identity"),
            Kind::Checkpoint => {
                directory.join(CHECKPOINTS).join(format!("{:020}.checkpoint", self.position.0))
            }
            Kind::Segment => directory.join(LOG).join(segment_name(self.position)),
            Kind::HashSegment => directory.join(HASH).join(format!("{:010}.segment", self.position.0)),
            Kind::HashDictionary => directory.join(HASH).join(format!("{:03}.dictionary", self.position.0)),
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

    pub(super) fn decode(bytes: &[u8; FILE_LEN]) -> Option<Listed> {
        let kind = match bytes[0] {
            1 => Kind::Identity,
            2 => Kind::Checkpoint,
            3 => Kind::Segment,
            4 => Kind::HashSegment,
            5 => Kind::HashDictionary,
            _ => return None,
        };
        let position = LogPosition(eight(bytes, 8));
        let is_sound = bytes[1..4] == [0; 3] && (kind != Kind::Identity || position == LogPosition(0));
        is_sound.then(|| Listed { kind, crc: four(bytes, 4), position, len: eight(bytes, 16) })
    }

    /// Returns true if the file may follow this one.
    pub(super) fn follows(&self, before: Option<&Listed>) -> bool {
        match before {
            None => matches!(self.kind, Kind::Identity | Kind::HashSegment),
            Some(before) => match (before.kind, self.kind) {
                (Kind::Segment, Kind::Segment) | (Kind::HashSegment, Kind::HashSegment) => {
                    self.position > before.position
                }
                (Kind::HashDictionary, Kind::HashDictionary) => self.position > before.position,
                (Kind::HashSegment, Kind::HashDictionary) => true,
                (_, Kind::HashSegment | Kind::HashDictionary) => false,
                (before, kind) => kind > before,
            },
        }
    }
}

impl Manifest {
    /// Reads the manifest of a directory; `None` if it has none, so that it is no backup. Fails
    /// with `Corrupt` if the manifest is damaged.
    pub(crate) fn read(disk: &dyn Disk, directory: &Path) -> Result<Option<Manifest>> {
        let path = directory.join(BACKUP);
        let file = match disk.open(&path, false) {
            Ok(file) => file,
            // If the directory is a file, its creation reports that.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(cannot("read", &path, &error)),
        };
        let len = file.len().map_err(|error| cannot("read", &path, &error))?;
        let mut bytes = vec![0; len.min((HEADER_LEN + FILES_MAX * FILE_LEN + 5) as u64) as usize];
        let len = file.read_at(0, &mut bytes).map_err(|error| cannot("read", &path, &error))?;
        Manifest::decode(&bytes[..len])
            .map(Some)
            .map_err(|why| Error::new(ErrorKind::Corrupt, format!("{} at offset 0: {why}", path.display())))
    }

    /// Returns true if the backup is of a hash on disk.
    pub(crate) fn is_hash(&self) -> bool {
        self.files.first().is_some_and(|file| file.kind == Kind::HashSegment)
    }

    pub(crate) fn backed_up(&self) -> BackedUp {
        let Manifest { start, end, created_ms, records, .. } = *self;
        let len = self.files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.len));
        let (files, is_hash) = (self.files.len(), self.is_hash());
        BackedUp { start, end, created_ms, records, files, len, is_hash, damages: Vec::new() }
    }

    /// Reads the listed files, and returns those that are not as listed. `progress` is called with
    /// the number of bytes read.
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
            // The number of bytes read counts, because a damaged list may contain any number.
            let before = done;
            let mut told = |read| {
                done = before + read;
                progress(done);
            };
            // The length is checked first: reading a sparse file may take forever.
            let len = disk.open(&path, false).and_then(|file| file.len());
            let summed = match len {
                Ok(len) if len != listed.len => Ok((len, 0)),
                _ => sum(disk, &path, &mut told),
            };
            match summed {
                Ok((len, _)) if len != listed.len => {
                    let what = format!("at offset {len}: the file ends here; the backup has {}", listed.len);
                    damages.push((path, what));
                }
                Ok((_, crc)) if crc != listed.crc => {
                    damages.push((path, "at offset 0: the checksum of the file differs".into()));
                }
                Ok(_) => {}
                Err(error) => damages.push((path, format!("at offset 0: it cannot be read: {error}"))),
            }
        }
        // An unreadable file has already been reported.
        if !self.is_hash() && read_identity(disk, directory).is_ok_and(|identity| identity != self.identity) {
            let what = "at offset 0: it is the identity of another database than the backup's";
            damages.push((directory.join("identity"), what.into()));
        }
        damages
    }

    /// Returns `None` if there are too many files.
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

    pub(super) fn decode(bytes: &[u8]) -> std::result::Result<Manifest, String> {
        if bytes.get(..8) != Some(&FORMAT.magic) {
            return Err(format!("this is no {}", FORMAT.what));
        }
        let Some((content, crc)) = bytes.split_last_chunk::<4>().filter(|(rest, _)| rest.len() >= HEADER_LEN)
        else {
            return Err("it is cut off".into());
        };
        if crc32c::crc32c(content).to_le_bytes() != *crc {
            return Err("the checksum differs".into());
        }
        FORMAT.check_version(content)?;
        let malformed = || "it is not one of version 1".to_string();
        let (header, files) = content.split_at(HEADER_LEN);
        if four(header, 12) as usize != HEADER_LEN
            || files.len() != FILE_LEN.checked_mul(four(header, 36) as usize).ok_or_else(malformed)?
        {
            return Err(malformed());
        }
        let (files, _) = files.as_chunks::<FILE_LEN>();
        let files: Option<Vec<Listed>> = files.iter().map(Listed::decode).collect();
        let files = files.ok_or_else(malformed)?;
        let befores = std::iter::once(None).chain(files.iter().map(Some));
        if !files.iter().zip(befores).all(|(file, before)| file.follows(before)) {
            return Err(malformed());
        }
        let manifest = Manifest {
            identity: identity(header),
            start: LogPosition(eight(header, 40)),
            end: LogPosition(eight(header, 48)),
            created_ms: eight(header, 56),
            records: eight(header, 64),
            files,
        };
        let checkpoint = manifest.files.iter().find(|file| file.kind == Kind::Checkpoint);
        let begins_there = manifest.start == checkpoint.map_or(LogPosition(0), |file| file.position);
        // The first file is the identity.
        let has_no_log = !manifest.is_hash() || manifest.end == LogPosition(0);
        let is_sound =
            begins_there && has_no_log && manifest.start <= manifest.end && !manifest.files.is_empty();
        is_sound.then_some(manifest).ok_or_else(malformed)
    }
}

/// Returns the length and CRC of a file.
fn sum(disk: &dyn Disk, path: &Path, progress: &mut dyn FnMut(u64)) -> io::Result<(u64, u32)> {
    let file = disk.open(path, false)?;
    let mut bytes = vec![0; READ];
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

    fn manifest() -> Manifest {
        let listed = |kind, crc, position, len| Listed { kind, crc, position: LogPosition(position), len };
        Manifest {
            identity: DatabaseIdentity { server_id: 7, database_id: *b"0123456789abcdef" },
            start: LogPosition(0x0102),
            end: LogPosition(0x0304),
            created_ms: 1_800_000_000_123,
            records: 5,
            files: vec![
                listed(Kind::Identity, 1, 0, 36),
                listed(Kind::Checkpoint, 2, 0x0102, 500),
                listed(Kind::Segment, 3, 0x0100, 600),
                listed(Kind::Segment, 4, 0x0200, 700),
            ],
        }
    }

    #[test]
    fn it_comes_back_and_no_flipped_bit_and_no_cut_goes_unseen() {
        let bytes = manifest().encode().unwrap();
        assert_eq!(Manifest::decode(&bytes), Ok(manifest()));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&damaged).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn it_lies_as_the_format_page_says() {
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
    fn lengths_that_no_files_have_are_told_as_damage() {
        let folder = tempfile::tempdir().unwrap();
        let mut manifest = manifest();
        manifest.files.iter_mut().for_each(|file| file.len = u64::MAX);
        std::fs::write(folder.path().join("identity"), [7; 36]).unwrap();
        let mut read = Vec::new();
        let damages = manifest.check(&crate::disk::SystemDisk, folder.path(), &mut |done| read.push(done));
        // A file of another length than listed is not read.
        assert_eq!((damages.len(), read), (4, Vec::<u64>::new()));
        assert!(damages[0].1.contains("at offset 36: the file ends here"), "{damages:?}");
        assert_eq!(manifest.backed_up().len, u64::MAX);
    }

    #[test]
    fn files_stand_in_one_order_only() {
        for (first, second) in [(0, 1), (1, 2), (2, 3)] {
            let mut swapped = manifest();
            swapped.files.swap(first, second);
            assert!(Manifest::decode(&swapped.encode().unwrap()).is_err(), "{first} {second}");
        }
        let mut twice = manifest();
        twice.files[2] = twice.files[1];
        assert!(Manifest::decode(&twice.encode().unwrap()).is_err());
    }

    #[test]
    fn it_starts_where_its_checkpoint_does_and_not_behind_its_end() {
        let refused = |manifest: Manifest| Manifest::decode(&manifest.encode().unwrap()).is_err();
        assert!(refused(Manifest { start: LogPosition(0), ..manifest() }));
        assert!(refused(Manifest { end: LogPosition(0x0101), ..manifest() }));
        let mut without = manifest();
        without.files.remove(1);
        assert!(refused(without.clone()));
        assert!(!refused(Manifest { start: LogPosition(0), ..without }));
        assert!(refused(Manifest { start: LogPosition(0), files: Vec::new(), ..manifest() }));
    }
}
