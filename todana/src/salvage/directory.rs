//! Mends the copy of a damaged data directory until a database can be restored from it. Damaged
//! files in the copy are replaced or removed, because the copy is deleted afterwards.

use super::Damage;
use crate::checkpoint::{
    CheckpointFailure, CheckpointStore, SalvagedCheckpoint, salvage_checkpoint, write_empty,
};
use crate::data_directory::{CHECKPOINTS, DataDirectory, LOG, cannot, identity, names};
use crate::disk::Disk;
use crate::moment;
use crate::update_log::{
    DatabaseIdentity, LogDamage, LogPosition, MendedSegments, can_mark_lost, mend_segments, openings_of,
    segment_start, write_lost_segment,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{ErrorKind, Result};

/// Number of openings assumed since the log was lost: more than any database has had.
pub(super) const OPENINGS_UNKNOWN: u32 = 1 << 16;

/// Mends a closed directory, and returns its damages. Fails with `Corrupt` if nothing can be saved.
pub(super) fn mend_copy(disk: Arc<dyn Disk>, path: &Path) -> Result<Vec<Damage>> {
    let mut damages = Vec::new();
    let found = match identity::read(&*disk, path) {
        Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
        found => found,
    };
    let identity = match &found {
        Ok(Some(identity)) => *identity,
        found => {
            let error = found.as_ref().err();
            let known = identity::by_segments(&*disk, path);
            let known =
                known.ok_or_else(|| error.cloned().unwrap_or_else(|| identity::missing(&*disk, path)))?;
            let what = error.map_or_else(|| "it is missing".into(), ToString::to_string);
            damages.push(Damage::new(path.join("identity"), 0, what, "told by the other files".into()));
            identity::write(&*disk, path, known)?;
            known
        }
    };
    // Opening the directory creates missing folders, and adds the entries that a killed process
    // left beside the log.
    let _directory = DataDirectory::open(Arc::clone(&disk), path)?;
    let log = path.join(LOG);
    let first = first_segment(&*disk, &log)?;
    let checkpoint_store =
        CheckpointStore::new(Arc::clone(&disk), path.join(CHECKPOINTS), log.clone(), identity);
    let starts = checkpoint_store.list()?;
    let segments = match first {
        Some(first) => mend_segments(&*disk, &log, identity, first, &starts)?,
        None => MendedSegments::default(),
    };
    damages.extend(segments.findings.into_iter().map(of_log));
    let log = MendedLog { path: log, identity, first, end: segments.end, between: segments.between };
    let mut mending =
        Mending { disk: &*disk, path: &path.join(CHECKPOINTS), checkpoint_store, log, damages, whole: 0 };
    mending.mend_checkpoints(starts)?;
    mending.begin_with_nothing()?;
    Ok(mending.damages)
}

/// Returns the damage of a log.
pub(super) fn of_log(finding: LogDamage) -> Damage {
    let outcome = match finding.lost {
        0 => "mended".to_string(),
        lost => format!("{lost} bytes are lost; what stands behind it is kept"),
    };
    Damage { finding, outcome }
}

/// The checkpoints of the copy while they are mended.
struct Mending<'a> {
    disk: &'a dyn Disk,
    path: &'a Path,
    checkpoint_store: CheckpointStore,
    log: MendedLog,
    damages: Vec<Damage>,
    /// Number of intact checkpoints, with or without the log that they need.
    whole: u64,
}

impl Mending<'_> {
    fn add(&mut self, path: PathBuf, what: String, outcome: &str) {
        self.damages.push(Damage::new(path, 0, what, outcome.into()));
    }

    fn mend_checkpoints(&mut self, starts: Vec<LogPosition>) -> Result<()> {
        let (mut damaged, mut lacking) = (Vec::new(), Vec::new());
        // The newest usable checkpoint.
        let mut used = None;
        for start in starts {
            let outcome =
                self.checkpoint_store.open(start).map_err(CheckpointFailure::Damaged).and_then(|reader| {
                    reader.verify(&mut |_| ())?;
                    let (header, footer) = (&reader.header, &reader.footer);
                    let (created_ms, version) = (header.created_ms, header.version);
                    Ok(Lacking { start, until: footer.until, records: footer.records, created_ms, version })
                });
            self.whole += u64::from(outcome.is_ok());
            match outcome {
                Ok(one) if self.log.has(one.start, one.until) => used = used.or(Some(start)),
                Ok(one) => lacking.push(one),
                Err(CheckpointFailure::Damaged(what)) => damaged.push((start, what)),
                Err(CheckpointFailure::Refused(error)) => return Err(error),
            }
        }
        // A checkpoint that needs no log is newer than an older one whose log ends before it.
        let alone = |one: &Lacking| {
            self.log.can_begin_at(one)
                && (used.is_none() || (one.until == one.start && used < Some(one.start)))
        };
        if let Some(at) = lacking.iter().position(alone) {
            let one = lacking.remove(at);
            self.save_alone(&one)?;
            used = Some(one.start);
        }
        // If nothing else shows the state before the log, the remainder of the newest checkpoint
        // does.
        if self.whole == 0 && self.log.first != Some(LogPosition(0)) {
            used = self.save_blocks(&mut damaged)?;
        }
        // Intact checkpoints without their log stay if nothing else is left: the restoration
        // reports what they need.
        if used.is_some() {
            damaged.extend(lacking.drain(..).map(|one| (one.start, one.what())));
        }
        for (start, what) in damaged {
            let outcome = match used {
                None => "left out",
                Some(used) if start < used => "left out; a newer one is whole, and nothing needs this one",
                Some(_) => "left out; an older one and more of the log take its place",
            };
            let file = self.checkpoint_store.path_of(start);
            self.disk.remove(&file).map_err(|error| cannot("remove", &file, &error))?;
            self.add(file, what, outcome);
        }
        for one in lacking {
            let outcome = "left out: the log has to come from another copy of the directory";
            self.add(self.checkpoint_store.path_of(one.start), one.what(), outcome);
        }
        Ok(())
    }

    /// Keeps the intact part of the newest damaged checkpoint that has one. Returns its position.
    fn save_blocks(&mut self, damaged: &mut Vec<(LogPosition, String)>) -> Result<Option<LogPosition>> {
        let partial = self.path.join("new.checkpoint.partial");
        for at in 0..damaged.len() {
            let start = damaged[at].0;
            let file = self.checkpoint_store.path_of(start);
            let identity = self.log.identity;
            let saved = salvage_checkpoint(self.disk, &file, identity, start, None)?;
            let Some(SalvagedCheckpoint { header, until, records, lost }) =
                saved.filter(|saved| saved.records > 0)
            else {
                continue;
            };
            let one =
                Lacking { start, until, records, created_ms: header.created_ms, version: header.version };
            let has_log = self.log.has(start, until);
            if !has_log && !self.log.can_begin_at(&one) {
                continue;
            }
            let (_, what) = damaged.remove(at);
            let lost = lost
                .map_or_else(|| "how many are lost is not known".into(), |lost| format!("{lost} are lost"));
            self.add(file.clone(), what, &format!("{records} records that are whole are kept, {lost}"));
            salvage_checkpoint(self.disk, &file, identity, start, Some(&partial))?;
            let put = self.disk.rename(&partial, &file).and_then(|()| self.disk.sync_directory(self.path));
            put.map_err(|error| cannot("write", &file, &error))?;
            self.whole += 1;
            if !has_log {
                self.save_alone(&one)?;
            }
            return Ok(Some(start));
        }
        Ok(None)
    }

    /// Begins the log anew where a checkpoint needs it.
    fn save_alone(&mut self, one: &Lacking) -> Result<()> {
        let log = &self.log;
        let next = log.next(one);
        let (file, made, from) =
            (self.checkpoint_store.path_of(one.start), moment::text(one.created_ms), one.start.0);
        let what = format!("{} at offset 0: the log from its position {from} on is missing", file.display());
        let (records, lost) = (one.records, next.0 - from);
        let rest = match (log.first == Some(next), lost) {
            (true, _) => {
                format!("and what the log tells from position {} on; {lost} bytes between are lost", next.0)
            }
            (false, 0) => {
                "alone: nothing that it has is lost, what was changed after that is, if anything was"
                    .to_string()
            }
            (false, lost) => format!(
                "alone; {lost} bytes of changes while it was made are lost, and what was changed after that is, if anything was"
            ),
        };
        let outcome = format!("saved, with {records} records as of {made}, {rest}");
        self.damages.push(Damage { finding: LogDamage { path: file, offset: 0, what, lost }, outcome });
        // The number of openings since then is unknown, and versions that were shown must not be
        // issued again.
        let known = ((one.version >> 32) as u32).max(openings_of(self.disk, &log.path));
        let openings = known.saturating_add(OPENINGS_UNKNOWN);
        write_lost_segment(self.disk, &log.path, log.identity, openings, (one.start, next))
            .map_err(|error| cannot("write", &log.path, &error))?;
        // The older segments end too early.
        let first = log.first.map_or(one.start, |first| first.min(one.start));
        mend_segments(self.disk, &log.path, log.identity, first, &[])?;
        Ok(())
    }

    /// Creates an empty checkpoint before a log that does not reach back to the beginning, if there
    /// is no other.
    fn begin_with_nothing(&mut self) -> Result<()> {
        let Some(first) = self.log.first.filter(|&first| self.whole == 0 && first > LogPosition(0)) else {
            return Ok(());
        };
        let what = "there is no whole checkpoint, and the log does not go back to the beginning".into();
        let outcome =
            format!("of the records that were last changed before position {} nothing is left", first.0);
        self.add(self.path.to_path_buf(), what, &outcome);
        write_empty(self.disk, self.path, &self.checkpoint_store.path_of(first), self.log.identity, first)
    }
}

/// The log of a damaged database.
pub(super) struct MendedLog {
    pub(super) path: PathBuf,
    pub(super) identity: DatabaseIdentity,
    pub(super) first: Option<LogPosition>,
    /// The end of its entries, if there are any.
    pub(super) end: LogPosition,
    /// The positions of checkpoints that lie between two entries.
    pub(super) between: Vec<LogPosition>,
}

impl MendedLog {
    fn has(&self, from: LogPosition, to: LogPosition) -> bool {
        self.between.contains(&from) && to <= self.end
    }

    /// Returns true if the log has no part where a checkpoint begins, but has everything that it
    /// needs after a gap, if there is one.
    fn can_begin_at(&self, one: &Lacking) -> bool {
        let is_free = match self.first {
            Some(first) if first > one.start => one.until <= self.end,
            // The gap is marked as lost, too.
            Some(_) => one.start.0.checked_sub(self.end.0).is_some_and(can_mark_lost),
            None => true,
        };
        is_free && self.can_begin(one.start, self.next(one))
    }

    /// Returns true if the log can begin at one position and mark everything up to another as lost.
    pub(super) fn can_begin(&self, start: LogPosition, next: LogPosition) -> bool {
        next.0.checked_sub(start.0).is_some_and(|lost| lost == 0 || can_mark_lost(lost))
    }

    /// Returns the position at which the log continues after a checkpoint's beginning.
    fn next(&self, one: &Lacking) -> LogPosition {
        self.first.filter(|&first| first > one.start).unwrap_or(one.until)
    }
}

/// An intact checkpoint without its log.
struct Lacking {
    start: LogPosition,
    until: LogPosition,
    records: u64,
    created_ms: u64,
    version: u64,
}

impl Lacking {
    fn what(&self) -> String {
        format!("it needs the log from position {} to {}, which is not there", self.start.0, self.until.0)
    }
}

pub(super) fn first_segment(disk: &dyn Disk, log: &Path) -> Result<Option<LogPosition>> {
    Ok(names(disk, log)?.iter().filter_map(|name| segment_start(name)).min())
}
