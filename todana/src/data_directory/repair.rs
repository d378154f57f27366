//! What can be saved of a damaged data directory, and saving it when told.
//!
//! Nothing is thrown away: what is damaged stays, under its name and `.damaged`.

use super::{CHECKPOINTS, DataDirectory, LOG, cannot, identity};
use crate::checkpoint::{Failure, Shelf, write_empty};
use crate::disk::Disk;
use crate::update_log::{Finding, Identity, Position, Reader, Salvage, salvage, segment_start};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{ErrorKind, Result};

/// Something damaged, and what is done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// What is damaged: file, offset, what, bytes of changes that are lost.
    pub finding: Finding,
    /// What is done about it.
    pub remedy: String,
}

/// What looking through a damaged directory has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// In the order in which it is mended.
    pub remedies: Vec<Remedy>,
    /// Checkpoints that are whole and can be used.
    pub checkpoints: u64,
    /// Checkpoints that are whole, whether they can be used or not.
    pub whole: u64,
    /// Entries of the log that can be read.
    pub entries: u64,
    /// Findings that nothing can be done about here.
    pub unmended: u64,
}

/// Lists what is damaged in a data directory and what is to be done about it; does so where it `repairs`, and changes nothing on disk
/// otherwise. Fails with `Busy` if a server has the directory open, with `Invalid` if it is a backup, and with `Corrupt` where
/// nothing can be done.
pub fn repair(disk: Arc<dyn Disk>, path: &Path, repairs: bool) -> Result<Repair> {
    // Its identity is not to be written anew either: its list has the checksum of the one it had.
    super::refuse_backup(&*disk, path)?;
    let mut repair = Repair::default();
    let log = path.join(LOG);
    let file = path.join("identity");
    let found = match identity::read(&*disk, path) {
        Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
        found => found,
    };
    let (identity, is_lost) = match &found {
        Ok(Some(identity)) => (*identity, false),
        found => {
            let error = found.as_ref().err();
            let known = identity::by_segments(&*disk, path);
            let known =
                known.ok_or_else(|| error.cloned().unwrap_or_else(|| identity::missing(&*disk, path)))?;
            let what = error.map_or_else(|| "it is missing".into(), ToString::to_string);
            repair.find(file.clone(), 0, what, "written anew, as the other files tell it");
            (known, true)
        }
    };
    // Held to the end. A server makes the file that it locks, so where there is none nobody has the directory open.
    let lock = match repairs || is_there(&*disk, &path.join("lock"))? {
        true => Some(super::lock(&*disk, path)?),
        false => None,
    };
    if repairs && is_lost {
        if found.is_err() {
            set_aside(&*disk, path, &file)?;
        }
        identity::write(&*disk, path, identity)?;
    }
    // Opening it makes what is missing and removes what was begun and not finished.
    let _directory = match &lock {
        Some(lock) if repairs => Some(DataDirectory::open_locked(Arc::clone(&disk), path, Arc::clone(lock))?),
        _ => None,
    };
    let first = first_segment(&*disk, &log)?;
    let salvaged = match first {
        Some(first) => salvage(&*disk, &log, identity, first, repairs)?,
        None => Salvage::default(),
    };
    repair.entries = salvaged.entries;
    for finding in salvaged.findings {
        let remedy = match finding.lost {
            0 => "mended".to_string(),
            lost => format!("marked as lost, {lost} bytes; what stands behind it is kept"),
        };
        repair.remedies.push(Remedy { finding, remedy });
    }
    // Where the log would end: as it is if it can be read, to its last entry otherwise.
    let end = log_end(&disk, &log, identity, first);
    let shelf = Shelf::new(Arc::clone(&disk), path.join(CHECKPOINTS), log, identity);
    repair.look_at_checkpoints(&*disk, &shelf, path, end, first, repairs)?;
    if repair.whole == 0
        && let Some(first) = first.filter(|&first| first > Position(0))
    {
        let what = "there is no whole checkpoint, and the log does not go back to the beginning".into();
        let remedy = format!(
            "an empty one takes its place: of the records that were last changed before position {} nothing is left",
            first.0
        );
        repair.find(path.join(CHECKPOINTS), 0, what, &remedy);
        if repairs {
            write_empty(&*disk, &path.join(CHECKPOINTS), &shelf.path_of(first), identity, first)?;
        }
    }
    Ok(repair)
}

impl Repair {
    fn find(&mut self, path: PathBuf, offset: u64, what: String, remedy: &str) {
        let finding = Finding { path, offset, what, lost: 0 };
        self.remedies.push(Remedy { finding, remedy: remedy.into() });
    }

    fn look_at_checkpoints(
        &mut self,
        disk: &dyn Disk,
        shelf: &Shelf,
        path: &Path,
        end: Option<Position>,
        first: Option<Position>,
        repairs: bool,
    ) -> Result<()> {
        let (mut damaged, mut lacking) = (Vec::new(), Vec::new());
        let has_any = !names(disk, &path.join(CHECKPOINTS))?.is_empty();
        for start in if has_any { shelf.list()? } else { Vec::new() } {
            let outcome = shelf.open(start).map_err(Failure::Damaged).and_then(|reader| {
                reader.verify(&mut |_| ())?;
                Ok(reader.footer.until)
            });
            // A log that cannot be read to its end before it is repaired is taken to go far enough.
            let is_reached = |until: Position| end.map_or(first.is_some(), |end| until <= end);
            match outcome {
                Ok(until) if is_reached(until) && first.is_some_and(|first| first <= start) => {
                    self.checkpoints += 1;
                }
                Ok(until) => {
                    let (from, to) = (start.0, until.0);
                    lacking.push((
                        start,
                        format!("it needs the log from position {from} to {to}, which is not there"),
                    ));
                }
                Err(Failure::Damaged(what)) => damaged.push((start, what)),
                Err(Failure::Refused(error)) => return Err(error),
            }
        }
        self.whole = self.checkpoints + lacking.len() as u64;
        // What is whole is not given up for nothing.
        let has_older = self.checkpoints > 0 || lacking.is_empty();
        for (start, what) in
            damaged.into_iter().chain(if has_older { lacking.split_off(0) } else { Vec::new() })
        {
            let file = shelf.path_of(start);
            let remedy = match self.whole {
                0 => "set aside",
                _ => "set aside; another one and more of the log take its place",
            };
            self.find(file.clone(), 0, what, remedy);
            if repairs {
                set_aside(disk, &path.join(CHECKPOINTS), &file)?;
            }
        }
        for (start, what) in lacking {
            let remedy = "left as it is: the log has to come from another copy of the directory";
            self.find(shelf.path_of(start), 0, what, remedy);
            self.unmended += 1;
        }
        Ok(())
    }
}

fn first_segment(disk: &dyn Disk, log: &Path) -> Result<Option<Position>> {
    Ok(names(disk, log)?.iter().filter_map(|name| segment_start(name)).min())
}

/// The names in a directory; none if it is missing, which is not made without being told to.
fn names(disk: &dyn Disk, directory: &Path) -> Result<Vec<String>> {
    match disk.list(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        names => names.map_err(|error| cannot("read", directory, &error)),
    }
}

fn is_there(disk: &dyn Disk, file: &Path) -> Result<bool> {
    match disk.open(file, false) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(cannot("read", file, &error)),
    }
}

/// `None` if that is not known before it is repaired.
fn log_end(
    disk: &Arc<dyn Disk>,
    log: &Path,
    identity: Identity,
    first: Option<Position>,
) -> Option<Position> {
    let mut reader = Reader::open(Arc::clone(disk), log, identity, first?).ok()?;
    loop {
        match reader.next_entry() {
            Ok(Some(_)) => {}
            Ok(None) => return Some(reader.position()),
            Err(_) => return None,
        }
    }
}

/// Gives a file the name that damaged ones have, one that is not taken.
fn set_aside(disk: &dyn Disk, directory: &Path, path: &Path) -> Result<()> {
    let aside = || -> io::Result<()> {
        let names = disk.list(directory)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut aside = format!("{name}.damaged");
        let mut number = 2u32;
        while names.contains(&aside) {
            aside = format!("{name}.damaged-{number}");
            number += 1;
        }
        disk.rename(path, &directory.join(aside))?;
        disk.sync_directory(directory)
    };
    aside().map_err(|error| cannot("set aside", path, &error))
}
