//! The file with the positions of a replica in the logs of its master:
//!
//! ```text
//! todana replica 2
//! epoch 3
//! 0 OWN-ID MASTER-ID 513 700 3 SOURCE-ID 490
//! 1 OWN-ID copying              all records of the master were being copied
//! crc 7f0c21aa                  CRC32C of the lines before it
//! ```
//!
//! The first line of a database has its number at the master, both IDs, the position, the end of
//! the own log, and the epoch and the place in the log of the first master, if these are known.
//!
//! The file is replaced as a whole, so a crash leaves either the old positions or the new ones. A
//! position counts only for the database whose ID stands beside it: the file may have survived a
//! database that was removed or restored.

use super::reached_place::{ReachedPlace, StoredState};
use super::replica_side::FollowedDatabase;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::disk::Disk;
use todana_protocol::replication::{EpochPlace, LogPlace};

const HEAD: &str = "todana replica 2";
const COPYING: &str = "copying";
/// The maximum length of the file in bytes.
const LEN_MAX: u64 = 256 << 10;

/// The ID of a database.
pub(super) type DatabaseId = [u8; 16];

/// The positions of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoredPositions {
    /// The highest epoch that the replica knows.
    pub(super) epoch: u64,
    pub(super) places: Vec<StoredPlace>,
}

/// The position of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredPlace {
    /// The number of the database at the master.
    pub(super) number: u16,
    /// The ID of the database here.
    pub(super) own_id: DatabaseId,
    /// How much of the master the database has.
    pub(super) state: StoredState,
}

/// The IDs of a database here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnIds {
    /// The ID of the contents that the process has found. `None` if they were new.
    pub(super) found: Option<DatabaseId>,
    /// The ID of the contents that the process leaves. `None` if they do not survive it.
    pub(super) left: Option<DatabaseId>,
}

/// The file of the positions.
pub(super) struct PositionFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
}

impl PositionFile {
    pub(super) fn new(disk: Arc<dyn Disk>, path: PathBuf) -> PositionFile {
        PositionFile { disk, path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the positions, or none if there is no file. Fails if the file cannot be read or is
    /// damaged.
    pub(super) fn read(&self) -> io::Result<StoredPositions> {
        let file = match self.disk.open(&self.path, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(StoredPositions::default()),
            file => file?,
        };
        let len = file.len()?.min(LEN_MAX) as usize;
        let mut bytes = vec![0; len];
        let got = file.read_at(0, &mut bytes)?;
        bytes.truncate(got);
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "not the positions of a replica");
        std::str::from_utf8(&bytes).ok().and_then(parse).ok_or_else(wrong)
    }

    /// Stores the positions. They are on disk when this returns.
    pub(super) fn write(&self, positions: &StoredPositions) -> io::Result<()> {
        let text = format(positions);
        let mut name = self.path.clone().into_os_string();
        name.push(".partial");
        let partial = PathBuf::from(name);
        let created = match self.disk.create(&partial) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // A crash has left it.
                self.disk.remove(&partial)?;
                self.disk.create(&partial)
            }
            created => created,
        }?;
        created.write_at(0, &mut [IoSlice::new(text.as_bytes())])?;
        created.sync()?;
        self.disk.rename(&partial, &self.path)?;
        match self.path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => self.disk.sync_directory(parent),
            None => self.disk.sync_directory(Path::new(".")),
        }
    }
}

/// Stores the positions of the databases of a replica.
pub(super) struct PositionKeeper {
    file: Option<PositionFile>,
    /// The IDs of each database here.
    own_ids: Vec<OwnIds>,
    stored: StoredPositions,
    epoch: u64,
}

impl PositionKeeper {
    /// Reads the stored positions. Without a file, no position survives the process. Also returns
    /// the error if the file cannot be read; there are no positions then.
    pub(super) fn open(file: Option<PositionFile>, own_ids: Vec<OwnIds>) -> (PositionKeeper, io::Result<()>) {
        let stored = file.as_ref().map_or_else(|| Ok(StoredPositions::default()), PositionFile::read);
        let (stored, outcome) = match stored {
            Ok(stored) => (stored, Ok(())),
            Err(error) => (StoredPositions::default(), Err(error)),
        };
        let epoch = stored.epoch;
        (PositionKeeper { file, own_ids, stored, epoch }, outcome)
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(PositionFile::path)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Notes an epoch, which is stored with the next positions.
    pub(super) fn note_epoch(&mut self, epoch: u64) {
        self.epoch = self.epoch.max(epoch);
    }

    /// Returns the stored state of the database with this index and this number at the master.
    pub(super) fn state(&self, index: usize, number: u16) -> Option<StoredState> {
        let own_id = self.own_ids[index].found?;
        let places = self.stored.places.iter();
        let mut places = places.filter(|place| place.number == number && place.own_id == own_id);
        places.next().map(|place| place.state)
    }

    /// Syncs the changes before the positions, and then stores the positions. Fails if either is
    /// not possible; the old positions then stay.
    pub(super) fn store(&mut self, databases: &mut [FollowedDatabase]) -> io::Result<()> {
        let places = databases.iter().zip(&self.own_ids).filter_map(|(followed, own_ids)| {
            Some(StoredPlace { number: followed.number, own_id: own_ids.left?, state: followed.state()? })
        });
        let positions = StoredPositions { epoch: self.epoch, places: places.collect() };
        if let Some(file) = self.file.as_ref().filter(|_| positions != self.stored) {
            databases.iter().try_for_each(|followed| followed.database.sync()).map_err(io::Error::other)?;
            file.write(&positions)?;
            self.stored = positions;
            for followed in databases.iter_mut() {
                followed.stored = followed.applied();
            }
        }
        databases.iter_mut().try_for_each(FollowedDatabase::note_stored).map_err(io::Error::other)
    }
}

fn format(positions: &StoredPositions) -> String {
    use std::fmt::Write;
    let mut text = format!("{HEAD}\nepoch {}\n", positions.epoch);
    let hex = |id: &DatabaseId| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for StoredPlace { number, own_id, state } in &positions.places {
        let own = hex(own_id);
        let _ = match state {
            StoredState::Place(ReachedPlace { place, own_end, source }) => {
                let source = source.map(|EpochPlace { epoch, place }| {
                    format!(" {epoch} {} {}", hex(&place.database_id), place.position)
                });
                let (masters, source) = (hex(&place.database_id), source.unwrap_or_default());
                writeln!(text, "{number} {own} {masters} {} {own_end}{source}", place.position)
            }
            StoredState::Copying => writeln!(text, "{number} {own} {COPYING}"),
        };
    }
    let crc = crc32c::crc32c(text.as_bytes());
    let _ = writeln!(text, "crc {crc:08x}");
    text
}

fn parse(text: &str) -> Option<StoredPositions> {
    let (lines, crc) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let counted = text.get(..lines.len() + 1)?;
    if u32::from_str_radix(crc.strip_prefix("crc ")?, 16).ok()? != crc32c::crc32c(counted.as_bytes()) {
        return None;
    }
    let mut lines = lines.lines();
    if lines.next()? != HEAD {
        return None;
    }
    let epoch = lines.next()?.strip_prefix("epoch ")?.parse().ok()?;
    let place = |line: &str| {
        let mut words = line.split(' ');
        let number = words.next()?.parse().ok()?;
        let own_id = id(words.next()?)?;
        let state = match words.next()? {
            COPYING => StoredState::Copying,
            masters => {
                let (database_id, position) = (id(masters)?, words.next()?.parse().ok()?);
                let own_end = words.next()?.parse().ok()?;
                let source = match words.next() {
                    None => None,
                    Some(epoch) => {
                        let database_id = id(words.next()?)?;
                        let place = LogPlace { database_id, position: words.next()?.parse().ok()? };
                        Some(EpochPlace { epoch: epoch.parse().ok()?, place })
                    }
                };
                StoredState::Place(ReachedPlace {
                    place: LogPlace { database_id, position },
                    own_end,
                    source,
                })
            }
        };
        words.next().is_none().then_some(StoredPlace { number, own_id, state })
    };
    Some(StoredPositions { epoch, places: lines.map(place).collect::<Option<_>>()? })
}

fn id(hex: &str) -> Option<DatabaseId> {
    let number = u128::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 32)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana::disk::SystemDisk;

    fn positions() -> StoredPositions {
        let place = LogPlace { database_id: *b"fedcba9876543210", position: 513 };
        let source = LogPlace { database_id: *b"0123456789abcdef", position: 490 };
        let source = Some(EpochPlace { epoch: 3, place: source });
        let reached = |source| StoredState::Place(ReachedPlace { place, own_end: 700, source });
        let places = vec![
            StoredPlace { number: 0, own_id: [0xa; 16], state: reached(source) },
            StoredPlace { number: 2, own_id: [0xa; 16], state: reached(None) },
            StoredPlace { number: 1, own_id: [0xb; 16], state: StoredState::Copying },
        ];
        StoredPositions { epoch: 3, places }
    }

    /// The text is the example of docs/protocol/replication.md, section 5.
    #[test]
    fn position_file_has_the_documented_text() {
        let folder = tempfile::tempdir().unwrap();
        let file = PositionFile::new(Arc::new(SystemDisk), folder.path().join("position"));
        assert_eq!(file.read().unwrap(), StoredPositions::default());
        for _ in 0..2 {
            file.write(&positions()).unwrap();
            assert_eq!(file.read().unwrap(), positions());
        }
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(
            text,
            "todana replica 2\nepoch 3\n\
             0 0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a 66656463626139383736353433323130 513 700 \
             3 30313233343536373839616263646566 490\n\
             2 0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a 66656463626139383736353433323130 513 700\n\
             1 0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b copying\n\
             crc 01c616dd\n"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn damaged_positions_are_refused() {
        let text = format(&positions());
        assert_eq!(parse(&text), Some(positions()));
        for at in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[at] ^= 1;
            assert_eq!(parse(std::str::from_utf8(&damaged).unwrap()), None, "byte {at}");
            assert_eq!(parse(&text[..at]), None, "{at} bytes");
        }
    }
}
