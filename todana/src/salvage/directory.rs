//! Mends the copy of a damaged data directory until a database can be restored from it. Damaged
//! files of the copy may be replaced or removed, because the copy is deleted afterwards.

use super::FoundDamage;
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
use crate::versions::OPENINGS_MARGIN;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{ErrorKind, Result};

/// Mends the copy of a closed directory, and returns its damages. Fails with `Corrupt` if nothing
/// can be saved.
pub(super) fn mend_copy(disk: Arc<dyn Disk>, path: &Path) -> Result<Vec<FoundDamage>> {
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
            let what = error.map_or_else(|| "the file is missing".into(), ToString::to_string);
            damages.push(FoundDamage::new(
                path.join("identity"),
                0,
                what,
                "reconstructed from the other files".into(),
            ));
            identity::write(&*disk, path, known)?;
            known
        }
    };
    // Opening the directory creates missing folders, and appends the newest entries in the file
    // `recent` to the log.
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
    let log = MendedLog { path: log, identity, first, end: segments.end, entry_ends: segments.entry_ends };
    let mut mending = CheckpointRepair {
        disk: &*disk,
        path: &path.join(CHECKPOINTS),
        checkpoint_store,
        log,
        damages,
        intact: 0,
    };
    mending.mend_checkpoints(starts)?;
    mending.add_empty_checkpoint()?;
    Ok(mending.damages)
}

/// Converts a damage of a log.
pub(super) fn of_log(finding: LogDamage) -> FoundDamage {
    let outcome = match finding.lost {
        0 => "mended".to_string(),
        lost => format!("{lost} bytes are lost; everything after them is kept"),
    };
    FoundDamage { finding, outcome }
}

/// The work on the checkpoints of the copy.
struct CheckpointRepair<'a> {
    disk: &'a dyn Disk,
    path: &'a Path,
    checkpoint_store: CheckpointStore,
    log: MendedLog,
    damages: Vec<FoundDamage>,
    /// Number of intact checkpoints, even if the log that they need is missing.
    intact: u64,
}

impl CheckpointRepair<'_> {
    fn add(&mut self, path: PathBuf, what: String, outcome: &str) {
        self.damages.push(FoundDamage::new(path, 0, what, outcome.into()));
    }

    fn mend_checkpoints(&mut self, starts: Vec<LogPosition>) -> Result<()> {
        let (mut damaged, mut lacking) = (Vec::new(), Vec::new());
        // The newest checkpoint from which the database can be restored.
        let mut used = None;
        for start in starts {
            let outcome =
                self.checkpoint_store.open(start).map_err(CheckpointFailure::Damaged).and_then(|reader| {
                    reader.verify(&mut |_| ())?;
                    let (header, footer) = (&reader.header, &reader.footer);
                    let (created_ms, version) = (header.created_ms, header.version);
                    Ok(CheckpointWithoutLog {
                        start,
                        until: footer.until,
                        records: footer.records,
                        created_ms,
                        version,
                    })
                });
            self.intact += u64::from(outcome.is_ok());
            match outcome {
                Ok(one) if self.log.has(one.start, one.until) => used = used.or(Some(start)),
                Ok(one) => lacking.push(one),
                Err(CheckpointFailure::Damaged(what)) => damaged.push((start, what)),
                Err(CheckpointFailure::Refused(error)) => return Err(error),
            }
        }
        // A checkpoint whose log is missing is used if no other can be used, or if it needs no log
        // and is newer than the usable one.
        let alone = |one: &CheckpointWithoutLog| {
            self.log.can_begin_at(one)
                && (used.is_none() || (one.until == one.start && used < Some(one.start)))
        };
        if let Some(at) = lacking.iter().position(alone) {
            let one = lacking.remove(at);
            self.start_log_at_checkpoint(&one)?;
            used = Some(one.start);
        }
        // If the log does not start at position 0 and no checkpoint is intact, the intact blocks of
        // the newest damaged checkpoint are the only source for the state before the log.
        if self.intact == 0 && self.log.first != Some(LogPosition(0)) {
            used = self.save_blocks(&mut damaged)?;
        }
        // If there is nothing else, intact checkpoints stay although their log is missing. The
        // restoration then reports which log they need.
        if used.is_some() {
            damaged.extend(lacking.drain(..).map(|one| (one.start, one.what())));
        }
        for (start, what) in damaged {
            let outcome = match used {
                None => "left out",
                Some(used) if start < used => {
                    "left out; a newer checkpoint is intact, and nothing needs this one"
                }
                Some(_) => "left out; an older checkpoint and more of the log replace it",
            };
            let file = self.checkpoint_store.path_of(start);
            self.disk.remove(&file).map_err(|error| cannot("remove", &file, &error))?;
            self.add(file, what, outcome);
        }
        for one in lacking {
            let outcome = "left out; copy the log from another copy of the directory";
            self.add(self.checkpoint_store.path_of(one.start), one.what(), outcome);
        }
        Ok(())
    }

    /// Replaces the newest damaged checkpoint that has intact blocks by a checkpoint of these
    /// blocks. Returns its position.
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
            let one = CheckpointWithoutLog {
                start,
                until,
                records,
                created_ms: header.created_ms,
                version: header.version,
            };
            let has_log = self.log.has(start, until);
            if !has_log && !self.log.can_begin_at(&one) {
                continue;
            }
            let (_, what) = damaged.remove(at);
            let lost =
                lost.map_or_else(|| "an unknown number is lost".into(), |lost| format!("{lost} are lost"));
            self.add(file.clone(), what, &format!("{records} intact records are kept, {lost}"));
            salvage_checkpoint(self.disk, &file, identity, start, Some(&partial))?;
            let put = self.disk.rename(&partial, &file).and_then(|()| self.disk.sync_directory(self.path));
            put.map_err(|error| cannot("write to", &file, &error))?;
            self.intact += 1;
            if !has_log {
                self.start_log_at_checkpoint(&one)?;
            }
            return Ok(Some(start));
        }
        Ok(None)
    }

    /// Starts a new log at the position from which a checkpoint needs it.
    fn start_log_at_checkpoint(&mut self, one: &CheckpointWithoutLog) -> Result<()> {
        let log = &self.log;
        let next = log.next(one);
        let (file, made, from) =
            (self.checkpoint_store.path_of(one.start), moment::text(one.created_ms), one.start.0);
        let what = format!(
            "{} at offset 0: the log is missing from the checkpoint's position {from} on",
            file.display()
        );
        let (records, lost) = (one.records, next.0 - from);
        let rest = match (log.first == Some(next), lost) {
            (true, _) => {
                format!(
                    "and the changes of the log from position {} on; the {lost} bytes between are lost",
                    next.0
                )
            }
            (false, 0) => "alone; later changes, if there were any, are lost".to_string(),
            (false, lost) => format!(
                "alone; {lost} bytes of changes during the checkpoint are lost, and so are later changes, if there were any"
            ),
        };
        let outcome = format!("saved, with {records} records as of {made}, {rest}");
        self.damages.push(FoundDamage { finding: LogDamage { path: file, offset: 0, what, lost }, outcome });
        // The number of openings since the checkpoint is unknown, and versions that clients have
        // seen must not be assigned again.
        let known = ((one.version >> 32) as u32).max(openings_of(self.disk, &log.path));
        let openings = known.saturating_add(OPENINGS_MARGIN);
        write_lost_segment(self.disk, &log.path, log.identity, openings, (one.start, next))
            .map_err(|error| cannot("write to", &log.path, &error))?;
        // Older segments may end before the checkpoint. This marks the gap between them as lost.
        let first = log.first.map_or(one.start, |first| first.min(one.start));
        mend_segments(self.disk, &log.path, log.identity, first, &[])?;
        Ok(())
    }

    /// Creates an empty checkpoint at the start of a log that does not start at position 0, if
    /// there is no other checkpoint.
    fn add_empty_checkpoint(&mut self) -> Result<()> {
        let Some(first) = self.log.first.filter(|&first| self.intact == 0 && first > LogPosition(0)) else {
            return Ok(());
        };
        let what = "there is no intact checkpoint, and the log does not go back to the beginning".into();
        let outcome = format!("all records that were last changed before position {} are lost", first.0);
        self.add(self.path.to_path_buf(), what, &outcome);
        write_empty(self.disk, self.path, &self.checkpoint_store.path_of(first), self.log.identity, first)
    }
}

/// The log of a damaged database.
pub(super) struct MendedLog {
    pub(super) path: PathBuf,
    pub(super) identity: DatabaseIdentity,
    pub(super) first: Option<LogPosition>,
    /// The end of its entries, if it has entries.
    pub(super) end: LogPosition,
    /// Those positions of checkpoints at which an entry of the log ends.
    pub(super) entry_ends: Vec<LogPosition>,
}

impl MendedLog {
    fn has(&self, from: LogPosition, to: LogPosition) -> bool {
        self.entry_ends.contains(&from) && to <= self.end
    }

    /// Returns true if a new log can be started for this checkpoint: the log contains nothing at
    /// the checkpoint's position, but everything that the checkpoint needs after a gap, if there is
    /// more log after it.
    fn can_begin_at(&self, one: &CheckpointWithoutLog) -> bool {
        let is_free = match self.first {
            Some(first) if first > one.start => one.until <= self.end,
            // The entries that mark the gap as lost must fit, too.
            Some(_) => one.start.0.checked_sub(self.end.0).is_some_and(can_mark_lost),
            None => true,
        };
        is_free && self.can_begin(one.start, self.next(one))
    }

    /// Returns true if the log can start at `start` and mark everything before `next` as lost.
    pub(super) fn can_begin(&self, start: LogPosition, next: LogPosition) -> bool {
        next.0.checked_sub(start.0).is_some_and(|lost| lost == 0 || can_mark_lost(lost))
    }

    /// Returns the position at which the existing log continues after the start of a checkpoint.
    fn next(&self, one: &CheckpointWithoutLog) -> LogPosition {
        self.first.filter(|&first| first > one.start).unwrap_or(one.until)
    }
}

/// An intact checkpoint whose log is missing.
struct CheckpointWithoutLog {
    start: LogPosition,
    until: LogPosition,
    records: u64,
    created_ms: u64,
    version: u64,
}

impl CheckpointWithoutLog {
    fn what(&self) -> String {
        format!(
            "the checkpoint needs the log from position {} to {}, which is missing",
            self.start.0, self.until.0
        )
    }
}

pub(super) fn first_segment(disk: &dyn Disk, log: &Path) -> Result<Option<LogPosition>> {
    Ok(names(disk, log)?.iter().filter_map(|name| segment_start(name)).min())
}
