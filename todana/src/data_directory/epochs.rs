//! The epochs of a database: which server was the master when, in the file `epochs`
//! (docs/format/data-directory.md, section 3).
//!
//! ```text
//! todana epochs 1
//! state promoted
//! logged yes
//! superseded 0
//! epoch 65538 NEW 0 OLD 513   this epoch and its master's log; the epoch and the log before it,
//!                             and the branch: the position at which that log ended
//! crc 7f0c21aa                CRC32C of the lines before it
//! ```
//!
//! A server whose copy of the old log goes beyond the branch has changes that the new master does
//! not have. `superseded` is the later epoch that the server has met but does not follow yet.

use super::{EPOCHS, cannot};
use crate::disk::Disk;
use crate::file_header::write_atomically;
use crate::update_log::{Epoch, EpochPlace, EpochStart, LogId, LogPosition};
use std::fmt::Write;
use std::io;
use std::path::Path;
use todana_core::{Error, ErrorKind, Result};

const HEAD: &str = "todana epochs 1";
/// The maximum length of the file in bytes.
const LEN_MAX: u64 = 1 << 20;
/// The number of epochs that are known. A server that has been away for more of them has no log in
/// common with the others.
pub const EPOCHS_MAX: usize = 1000;

/// The role of a server in the last epoch that it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EpochRole {
    /// The server was never promoted, or it follows another one. Its options decide whether it is a
    /// master.
    #[default]
    Unchanged,
    /// The server was promoted in this epoch.
    Promoted,
    /// The server had changes that the master of this epoch does not have. They are salvaged, and
    /// all records must be copied from the master.
    Copying,
}

/// The epochs of a database, and the role of its server in the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochHistory {
    /// The epochs in their order.
    pub starts: Vec<EpochStart>,
    /// The role of this server in the last epoch.
    pub role: EpochRole,
    /// The later epoch of another master that this server has met, but does not follow yet. Until
    /// it does, it refuses changes. 0 if there is none.
    pub superseded_by: Epoch,
    /// True if the last epoch is not known to be in the update log.
    pub is_unlogged: bool,
}

impl EpochHistory {
    /// Returns the last epoch, or 0 if no server was promoted.
    pub fn epoch(&self) -> Epoch {
        self.starts.last().map_or(Epoch::default(), |start| start.epoch)
    }

    /// Returns the ends of the logs that ended, in their order, and then the place in the log of
    /// the current master, if it is known.
    pub fn path(&self, current: Option<EpochPlace>) -> Vec<EpochPlace> {
        self.starts.iter().filter_map(|start| start.ended).chain(current).collect()
    }

    /// Adds an epoch. Removes the epochs after the one that it ends, and the first ones if there
    /// are more than [`EPOCHS_MAX`].
    pub fn add(&mut self, start: EpochStart) {
        let ended = start.ended.map_or(Epoch::default(), |ended| ended.epoch);
        self.starts.retain(|earlier| earlier.epoch <= ended);
        self.starts.push(start);
        self.starts.drain(..self.starts.len().saturating_sub(EPOCHS_MAX));
    }

    /// Reads the file. Returns the default if there is none. Fails with `Corrupt` if it is damaged.
    pub(super) fn read(disk: &dyn Disk, directory: &Path) -> Result<EpochHistory> {
        let path = directory.join(EPOCHS);
        let read = || -> io::Result<Vec<u8>> {
            let file = disk.open(&path, false)?;
            let mut bytes = vec![0; file.len()?.min(LEN_MAX) as usize];
            let len = file.read_at(0, &mut bytes)?;
            bytes.truncate(len);
            Ok(bytes)
        };
        let bytes = match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(EpochHistory::default()),
            read => read.map_err(|error| cannot("read", &path, &error))?,
        };
        std::str::from_utf8(&bytes).ok().and_then(parse).ok_or_else(|| {
            let message = format!("{}: not the epochs of a database", path.display());
            Error::new(ErrorKind::Corrupt, message)
        })
    }

    /// Stores the file. It is on disk when this returns.
    pub(super) fn write(&self, disk: &dyn Disk, directory: &Path) -> Result<()> {
        write_atomically(disk, directory, EPOCHS, format(self).as_bytes())
            .map_err(|error| cannot("write to", &directory.join(EPOCHS), &error))
    }
}

/// Returns the last place that the paths of a replica and of its master have in common. Returns
/// `None` if they have no log in common.
pub fn common_place(replica: &[EpochPlace], master: &[EpochPlace]) -> Option<EpochPlace> {
    replica.iter().rev().find_map(|&place| {
        let is_same = |other: &&EpochPlace| (other.epoch, other.log_id) == (place.epoch, place.log_id);
        let same = master.iter().find(is_same)?;
        Some(EpochPlace { position: place.position.min(same.position), ..place })
    })
}

fn format(history: &EpochHistory) -> String {
    let state = match history.role {
        EpochRole::Unchanged => "unchanged",
        EpochRole::Copying => "copying",
        EpochRole::Promoted => "promoted",
    };
    let logged = if history.is_unlogged { "no" } else { "yes" };
    let superseded = history.superseded_by.0;
    let mut text = format!("{HEAD}\nstate {state}\nlogged {logged}\nsuperseded {superseded}\n");
    for EpochStart { epoch, log_id, ended } in &history.starts {
        let _ = write!(text, "epoch {} {}", epoch.0, hex(log_id));
        if let Some(EpochPlace { epoch, log_id, position }) = ended {
            let _ = write!(text, " {} {} {}", epoch.0, hex(log_id), position.0);
        }
        text.push('\n');
    }
    let crc = crc32c::crc32c(text.as_bytes());
    let _ = writeln!(text, "crc {crc:08x}");
    text
}

fn parse(text: &str) -> Option<EpochHistory> {
    let (lines, crc) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let counted = text.get(..lines.len() + 1)?;
    if crc.strip_prefix("crc ")? != format!("{:08x}", crc32c::crc32c(counted.as_bytes())) {
        return None;
    }
    let mut lines = lines.lines();
    if lines.next()? != HEAD {
        return None;
    }
    let role = match lines.next()? {
        "state unchanged" => EpochRole::Unchanged,
        "state copying" => EpochRole::Copying,
        "state promoted" => EpochRole::Promoted,
        _ => return None,
    };
    let is_unlogged = match lines.next()? {
        "logged yes" => false,
        "logged no" => true,
        _ => return None,
    };
    let superseded_by = Epoch(lines.next()?.strip_prefix("superseded ")?.parse().ok()?);
    let start = |line: &str| {
        let mut words = line.strip_prefix("epoch ")?.split(' ');
        let (epoch, log_id) = (Epoch(words.next()?.parse().ok()?), log_id_of(words.next()?)?);
        let ended = match words.next() {
            None => None,
            Some(epoch) => Some(EpochPlace {
                epoch: Epoch(epoch.parse().ok()?),
                log_id: log_id_of(words.next()?)?,
                position: LogPosition(words.next()?.parse().ok()?),
            }),
        };
        words.next().is_none().then_some(EpochStart { epoch, log_id, ended })
    };
    let starts = lines.map(start).collect::<Option<_>>()?;
    Some(EpochHistory { starts, role, superseded_by, is_unlogged })
}

fn hex(id: &LogId) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn log_id_of(hex: &str) -> Option<LogId> {
    let number = u128::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 32)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;

    const FIRST: LogId = *b"fedcba9876543210";
    const SECOND: LogId = [0xa; 16];

    fn start(count: u64, log_id: LogId, ended: Option<EpochPlace>) -> EpochStart {
        EpochStart { epoch: Epoch(count << 16 | 2), log_id, ended }
    }

    fn place(count: u64, log_id: LogId, position: u64) -> EpochPlace {
        let epoch = if count == 0 { Epoch::default() } else { Epoch(count << 16 | 2) };
        EpochPlace { epoch, log_id, position: LogPosition(position) }
    }

    /// The text is the example of docs/format/data-directory.md, section 3.
    #[test]
    fn file_has_the_documented_text() {
        let mut history = EpochHistory { role: EpochRole::Promoted, ..EpochHistory::default() };
        history.add(start(1, SECOND, Some(place(0, FIRST, 513))));
        let text = format(&history);
        assert_eq!(
            text,
            "todana epochs 1\nstate promoted\nlogged yes\nsuperseded 0\n\
             epoch 65538 0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a 0 66656463626139383736353433323130 513\n\
             crc 52d532fb\n"
        );
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(EpochHistory::read(&SystemDisk, folder.path()).unwrap(), EpochHistory::default());
        history.write(&SystemDisk, folder.path()).unwrap();
        assert_eq!(EpochHistory::read(&SystemDisk, folder.path()).unwrap(), history);
        for at in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[at] ^= 1;
            assert_eq!(parse(std::str::from_utf8(&damaged).unwrap()), None, "byte {at}");
            assert_eq!(parse(&text[..at]), None, "{at} bytes");
        }
    }

    #[test]
    fn epoch_of_an_earlier_branch_replaces_later_ones() {
        let mut history = EpochHistory::default();
        let first = start(1, SECOND, Some(place(0, FIRST, 100)));
        let third = start(3, [4; 16], Some(place(1, SECOND, 40)));
        let fourth = start(4, [5; 16], Some(place(0, FIRST, 10)));
        history.add(first);
        history.add(start(2, [3; 16], Some(place(1, SECOND, 50))));
        history.add(third);
        assert_eq!(history.starts, [first, third]);
        history.add(fourth);
        assert_eq!(history.starts, [fourth]);
        assert_eq!(history.epoch(), Epoch(4 << 16 | 2));
    }

    #[test]
    fn oldest_epochs_are_forgotten() {
        let mut history = EpochHistory::default();
        for count in 1..=3000 {
            let ended = place(count - 1, SECOND, count);
            history.add(start(count, SECOND, Some(ended)));
        }
        let counts: Vec<u64> = history.starts.iter().map(|start| start.epoch.count()).collect();
        assert_eq!(counts, (2001..=3000).collect::<Vec<_>>());
        let text = format(&history);
        assert!(text.len() < LEN_MAX as usize, "{}", text.len());
        assert_eq!(parse(&text), Some(history));
    }

    #[test]
    fn common_place_is_the_earlier_end() {
        let master = [place(0, FIRST, 100), place(1, SECOND, 50), place(2, FIRST, 700)];
        assert_eq!(common_place(&[place(0, FIRST, 130)], &master), Some(place(0, FIRST, 100)));
        assert_eq!(common_place(&[place(0, FIRST, 70)], &master), Some(place(0, FIRST, 70)));
        let promoted_too = [place(0, FIRST, 90), place(3, [3; 16], 20)];
        assert_eq!(common_place(&promoted_too, &master), Some(place(0, FIRST, 90)));
        assert_eq!(common_place(&[place(0, [3; 16], 20)], &master), None);
    }
}
