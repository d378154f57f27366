//! What can be saved of a damaged data directory, and saving it when told.
//!
//! Nothing is thrown away: what is damaged stays, under its name and `.damaged`.

use super::{CHECKPOINTS, DataDirectory, LOG, Lock, cannot, identity};
use crate::checkpoint::{Failure, Saved, Shelf, salvage_checkpoint, write_empty};
use crate::disk::Disk;
use crate::moment;
use crate::update_log::{
    Finding, Identity, Position, Salvage, begin_anew, can_be_marked, openings_of, salvage, salvage_for,
    segment_start, with_recent,
};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{ErrorKind, Result};

/// Where the log is gone the database is taken to have been opened so often since as nobody has.
pub(super) const OPENINGS_UNKNOWN: u32 = 1 << 16;

/// Copied at once.
const PIECE: usize = 256 << 10;

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
/// otherwise. Fails with `Busy` if a server has the directory open, with `Invalid` if it is a backup or a tree on disk, and with `Corrupt` where
/// nothing can be done.
pub fn repair(disk: Arc<dyn Disk>, path: &Path, repairs: bool) -> Result<Repair> {
    // Its identity is not to be written anew either: its list has the checksum of the one it had.
    super::refuse_backup(&*disk, path)?;
    super::refuse_tree(&*disk, path)?;
    repair_held(disk, path, None, repairs)
}

/// Mends a directory of which the lock is held.
pub(crate) fn repair_locked(disk: Arc<dyn Disk>, path: &Path, lock: Lock) -> Result<Repair> {
    repair_held(disk, path, Some(lock), true)
}

fn repair_held(disk: Arc<dyn Disk>, path: &Path, held: Option<Lock>, repairs: bool) -> Result<Repair> {
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
    let lock = match held {
        None if repairs || is_there(&*disk, &path.join("lock"))? => Some(super::lock(&*disk, path)?),
        held => held,
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
    let disk = if repairs { disk } else { with_recent(disk, &log, identity)? };
    let first = first_segment(&*disk, &log)?;
    let shelf = Shelf::new(Arc::clone(&disk), path.join(CHECKPOINTS), log.clone(), identity);
    let has_checkpoints = !names(&*disk, &path.join(CHECKPOINTS))?.is_empty();
    let starts = if has_checkpoints { shelf.list()? } else { Vec::new() };
    let salvaged = match first {
        Some(first) => salvage_for(&*disk, &log, identity, first, &starts, repairs)?,
        None => Salvage::default(),
    };
    repair.add(salvaged.entries, salvaged.findings);
    let Salvage { end, between, .. } = salvaged;
    let log = Log { path: log, identity, first, end, between };
    repair.look_at_checkpoints(&*disk, &shelf, starts, path, &log, repairs)?;
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
    /// Adds what was found in the log.
    pub(super) fn add(&mut self, entries: u64, findings: Vec<Finding>) {
        self.entries = entries;
        for finding in findings {
            let remedy = match finding.lost {
                0 => "mended".to_string(),
                lost => format!("marked as lost, {lost} bytes; what stands behind it is kept"),
            };
            self.remedies.push(Remedy { finding, remedy });
        }
    }

    pub(super) fn find(&mut self, path: PathBuf, offset: u64, what: String, remedy: &str) {
        let finding = Finding { path, offset, what, lost: 0 };
        self.remedies.push(Remedy { finding, remedy: remedy.into() });
    }

    fn look_at_checkpoints(
        &mut self,
        disk: &dyn Disk,
        shelf: &Shelf,
        starts: Vec<Position>,
        path: &Path,
        log: &Log,
        repairs: bool,
    ) -> Result<()> {
        let (mut damaged, mut lacking) = (Vec::new(), Vec::new());
        // The newest one that can be used.
        let mut used = None;
        for start in starts {
            let outcome = shelf.open(start).map_err(Failure::Damaged).and_then(|reader| {
                reader.verify(&mut |_| ())?;
                let (header, footer) = (&reader.header, &reader.footer);
                let (made_ms, version) = (header.made_ms, header.version);
                Ok(Lacking { start, until: footer.until, records: footer.records, made_ms, version })
            });
            match outcome {
                Ok(one) if log.has(one.start, one.until) => {
                    self.checkpoints += 1;
                    used = used.or(Some(start));
                }
                Ok(one) => lacking.push(one),
                Err(Failure::Damaged(what)) => damaged.push((start, what)),
                Err(Failure::Refused(error)) => return Err(error),
            }
        }
        self.whole = self.checkpoints + lacking.len() as u64;
        // One that needs nothing of the log knows more than an older one and a log that ends before it.
        let alone = |one: &Lacking| {
            log.can_begin_at(one) && (used.is_none() || (one.until == one.start && used < Some(one.start)))
        };
        if let Some(at) = lacking.iter().position(alone) {
            let one = lacking.remove(at);
            self.save_alone(disk, shelf, log, &one, repairs)?;
            used = Some(one.start);
            self.checkpoints += 1;
        }
        // Where nothing else tells what there was before the log, what is left of the newest one does.
        if self.whole == 0 && log.first != Some(Position(0)) {
            used = self.save_blocks(disk, shelf, path, log, &mut damaged, repairs)?;
        }
        // What is whole is not given up for nothing.
        if used.is_some() {
            damaged.extend(lacking.drain(..).map(|one| (one.start, one.what())));
        }
        for (start, what) in damaged {
            let file = shelf.path_of(start);
            let remedy = match used {
                None => "set aside",
                Some(used) if start < used => "set aside; a newer one is whole, and nothing needs this one",
                Some(_) => "set aside; an older one and more of the log take its place",
            };
            self.find(file.clone(), 0, what, remedy);
            if repairs {
                set_aside(disk, &path.join(CHECKPOINTS), &file)?;
            }
        }
        for one in lacking {
            let remedy = "left as it is: the log has to come from another copy of the directory";
            self.find(shelf.path_of(one.start), 0, one.what(), remedy);
            self.unmended += 1;
        }
        Ok(())
    }

    /// Keeps what is whole of the newest damaged checkpoint of which anything is. Returns where that begins.
    fn save_blocks(
        &mut self,
        disk: &dyn Disk,
        shelf: &Shelf,
        path: &Path,
        log: &Log,
        damaged: &mut Vec<(Position, String)>,
        repairs: bool,
    ) -> Result<Option<Position>> {
        let (directory, partial) =
            (path.join(CHECKPOINTS), path.join(CHECKPOINTS).join("new.checkpoint.partial"));
        for at in 0..damaged.len() {
            let start = damaged[at].0;
            let file = shelf.path_of(start);
            let saved = salvage_checkpoint(disk, &file, log.identity, start, None)?;
            let Some(Saved { header, until, records, lost }) = saved.filter(|saved| saved.records > 0) else {
                continue;
            };
            let one = Lacking { start, until, records, made_ms: header.made_ms, version: header.version };
            let has_log = log.has(start, until);
            if !has_log && !log.can_begin_at(&one) {
                continue;
            }
            let (_, what) = damaged.remove(at);
            let lost = lost
                .map_or_else(|| "how many are lost is not known".into(), |lost| format!("{lost} are lost"));
            let remedy = format!("mended: {records} records that are whole are kept, {lost}");
            self.find(file.clone(), 0, what, &remedy);
            if repairs {
                salvage_checkpoint(disk, &file, log.identity, start, Some(&partial))?;
                keep_copy(disk, &directory, &file)?;
                let put = || {
                    disk.rename(&partial, &file)?;
                    disk.sync_directory(&directory)
                };
                put().map_err(|error| cannot("write", &file, &error))?;
            }
            (self.checkpoints, self.whole) = (self.checkpoints + 1, self.whole + 1);
            if !has_log {
                self.save_alone(disk, shelf, log, &one, repairs)?;
            }
            return Ok(Some(start));
        }
        Ok(None)
    }

    /// Has the log begin anew where a checkpoint needs it to.
    fn save_alone(
        &mut self,
        disk: &dyn Disk,
        shelf: &Shelf,
        log: &Log,
        one: &Lacking,
        repairs: bool,
    ) -> Result<()> {
        let next = log.next(one);
        let (file, made, from) = (shelf.path_of(one.start), moment::text(one.made_ms), one.start.0);
        let what = format!("{} at offset 0: the log from its position {from} on is missing", file.display());
        let (records, lost) = (one.records, next.0 - from);
        let rest = match (log.first == Some(next), lost) {
            (true, _) => format!(
                "and what the log tells from position {} on; {lost} bytes between are marked as lost",
                next.0
            ),
            (false, 0) => {
                "alone: nothing that it has is lost, what was changed after that is, if anything was"
                    .to_string()
            }
            (false, lost) => format!(
                "alone; {lost} bytes of changes while it was made are marked as lost, and what was changed after that is, if anything was"
            ),
        };
        let remedy = format!("saved, with {records} records as of {made}, {rest}");
        self.remedies.push(Remedy { finding: Finding { path: file, offset: 0, what, lost }, remedy });
        if !repairs {
            return Ok(());
        }
        // How often it was opened since is not known, and versions that were shown then are not to be made again.
        let known = ((one.version >> 32) as u32).max(openings_of(disk, &log.path));
        let openings = known.saturating_add(OPENINGS_UNKNOWN);
        begin_anew(disk, &log.path, log.identity, openings, (one.start, next))
            .map_err(|error| cannot("write", &log.path, &error))?;
        // What stands before it ends too early.
        let first = log.first.map_or(one.start, |first| first.min(one.start));
        salvage(disk, &log.path, log.identity, first, true)?;
        Ok(())
    }
}

/// The log of a damaged directory.
pub(super) struct Log {
    pub(super) path: PathBuf,
    pub(super) identity: Identity,
    pub(super) first: Option<Position>,
    /// Where its entries end once it is repaired, if there are any.
    pub(super) end: Position,
    /// The beginnings of checkpoints that are between two of them.
    pub(super) between: Vec<Position>,
}

impl Log {
    fn has(&self, from: Position, to: Position) -> bool {
        self.between.contains(&from) && to <= self.end
    }

    /// Whether there is nothing of it where a checkpoint begins, and all that it needs where it goes on, if it does.
    fn can_begin_at(&self, one: &Lacking) -> bool {
        let is_free = match self.first {
            Some(first) if first > one.start => one.until <= self.end,
            // What is missing in between is marked as well.
            Some(_) => one.start.0.checked_sub(self.end.0).is_some_and(can_be_marked),
            None => true,
        };
        is_free && self.can_begin(one.start, self.next(one))
    }

    /// Whether it can begin at one place and have marked as lost what is missing up to another.
    pub(super) fn can_begin(&self, start: Position, next: Position) -> bool {
        next.0.checked_sub(start.0).is_some_and(|lost| lost == 0 || can_be_marked(lost))
    }

    /// Where it goes on behind the place where a checkpoint begins.
    fn next(&self, one: &Lacking) -> Position {
        self.first.filter(|&first| first > one.start).unwrap_or(one.until)
    }
}

/// A checkpoint that is whole and lacks its log.
struct Lacking {
    start: Position,
    until: Position,
    records: u64,
    made_ms: u64,
    version: u64,
}

impl Lacking {
    fn what(&self) -> String {
        format!("it needs the log from position {} to {}, which is not there", self.start.0, self.until.0)
    }
}

pub(super) fn first_segment(disk: &dyn Disk, log: &Path) -> Result<Option<Position>> {
    Ok(names(disk, log)?.iter().filter_map(|name| segment_start(name)).min())
}

/// The names in a directory; none if it is missing, which is not made without being told to.
pub(super) fn names(disk: &dyn Disk, directory: &Path) -> Result<Vec<String>> {
    match disk.list(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        names => names.map_err(|error| cannot("read", directory, &error)),
    }
}

pub(crate) fn is_there(disk: &dyn Disk, file: &Path) -> Result<bool> {
    match disk.open(file, false) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(cannot("read", file, &error)),
    }
}

/// Gives a file the name that damaged ones have, one that is not taken.
pub(super) fn set_aside(disk: &dyn Disk, directory: &Path, path: &Path) -> Result<()> {
    let aside = || -> io::Result<()> {
        disk.rename(path, &unused(disk, directory, path)?)?;
        disk.sync_directory(directory)
    };
    aside().map_err(|error| cannot("set aside", path, &error))
}

/// Copies a file to a name that damaged ones have; it is to be replaced in one step.
fn keep_copy(disk: &dyn Disk, directory: &Path, path: &Path) -> Result<()> {
    let keep = || -> io::Result<()> {
        let (from, to) = (disk.open(path, false)?, disk.create(&unused(disk, directory, path)?)?);
        let mut bytes = vec![0; PIECE];
        let mut offset = 0;
        loop {
            let len = from.read_at(offset, &mut bytes)?;
            if len == 0 {
                break;
            }
            to.write_at(offset, &mut [IoSlice::new(&bytes[..len])])?;
            offset += len as u64;
        }
        to.sync()?;
        disk.sync_directory(directory)
    };
    keep().map_err(|error| cannot("copy", path, &error))
}

/// A name for what was damaged, one that is not taken.
fn unused(disk: &dyn Disk, directory: &Path, path: &Path) -> io::Result<PathBuf> {
    let names = disk.list(directory)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut aside = format!("{name}.damaged");
    let mut number = 2u32;
    while names.contains(&aside) {
        aside = format!("{name}.damaged-{number}");
        number += 1;
    }
    Ok(directory.join(aside))
}
