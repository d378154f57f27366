//! Salvages a tree on disk whose update log is damaged or lost.
//!
//! The structure of the tree's LMDB file must be intact. The file contains all changes up to the
//! tree mark, a position of the update log, so the log is needed only from there on. This module
//! copies the tree and its log, mends the log of the copy from the mark on (or starts a new log at
//! the mark), opens the copy, and writes its records to the new database, without damaged ones.

use super::directory::{MendedLog, first_segment, of_log};
use super::{FoundDamage, PathTranslation, copy_database, copy_file, lock_source};
use crate::clock::Clock;
use crate::data_directory::{
    DataDirectory, LOG, StagedDirectory, cannot, identity, is_there, names, salvage_copy,
};
use crate::disk::{Disk, SystemDisk};
use crate::open::{engine_at, tree_at};
use crate::restoration::{RecordSource, RestoreInto, restore_records};
use crate::update_log::{
    DatabaseIdentity, LogChange, LogDamage, LogPosition, MendedSegments, append_recent, mend_segments,
    openings_of, segment_start, write_lost_segment,
};
use crate::versions::{OPENINGS_MARGIN, openings_of_restored};
use crate::{
    DataOptions, Database, DatabaseKind, LoadProgress, OpeningReport, RestorationReport, RestoreOptions,
    SalvageReport,
};
use parking_lot::Mutex;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{CheckpointedEngine, Engine, Error, ErrorKind, Result, UnixSeconds};
use todana_engine::DiskTree;

/// Creates a new database from a tree. Changes that were only in the lost part of the log cannot be
/// restored, and neither can damaged records; the returned damages state this. Fails with `Busy` if
/// the tree is open, with `Corrupt` if its structure is damaged or the log belongs to another
/// database, and with `Invalid` if an earlier state is requested.
pub(super) fn salvage(
    kind: DatabaseKind,
    disk: Arc<dyn Disk>,
    options: &RestoreOptions,
    into: RestoreInto<'_>,
    clock: Arc<dyn Clock>,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<SalvageReport> {
    let from = &options.from;
    if options.until_ms.is_some() || options.log.is_some() {
        let message = format!(
            "{}: is a tree on disk, which is salvaged with its own log; leave out the time and the log",
            from.display()
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let held = lock_source(&*disk, from)?;
    let copy = StagedDirectory::create(Arc::new(SystemDisk), &salvage_copy(into.place(options)?))?;
    let (original, tree) = (PathTranslation { copy: copy.place(), original: from }, kind.pages(copy.place()));
    disk.make_directory(&tree).map_err(|error| cannot("create", &tree, &error))?;
    let damaged = kind.pages(from);
    copy_file(&*disk, &damaged.join(PAGES), &tree.join(PAGES))?;
    if is_there(&*disk, &damaged.join(UNCLEAN))? {
        copy_file(&*disk, &damaged.join(UNCLEAN), &tree.join(UNCLEAN))?;
    }
    copy_database(&*disk, from, copy.place())?;
    drop(held);
    let mut damages = mend_copy(kind, &disk, copy.place()).map_err(|error| original.error(&error))?;
    let skipped = Mutex::new(None);
    let open = |progress: &mut dyn FnMut(LoadProgress)| {
        TreeSource::open(kind, Arc::clone(&disk), copy.place(), Arc::clone(&clock), &skipped, progress)
    };
    let restored = restore_records(Arc::clone(&disk), options, open, into, Arc::clone(&clock), progress);
    let restored = restored.map_err(|error| original.error(&error))?;
    if let Some((count, error)) = skipped.into_inner() {
        let outcome = format!("left out; damaged records or blocks of records in total: {count}");
        damages.push(FoundDamage::new(tree.join(PAGES), 0, error.to_string(), outcome));
    }
    Ok(SalvageReport { damages: original.damages(damages), restored })
}

/// The name of LMDB's file.
const PAGES: &str = "data.mdb";
/// The name of a file that exists while a tree is open. If the file still exists at the next
/// opening, the structure of the tree is checked.
const UNCLEAN: &str = "unclean";

/// The copy of a tree, opened: its log has been replayed.
struct TreeSource<'s> {
    database: Database,
    /// Receives the number of damaged records, and the error of one.
    skipped: &'s Mutex<Option<(u64, Error)>>,
    // Holds the lock of the copy.
    _directory: DataDirectory,
    log: PathBuf,
    disk: Arc<dyn Disk>,
    opened: OpeningReport,
}

impl<'s> TreeSource<'s> {
    fn open(
        kind: DatabaseKind,
        disk: Arc<dyn Disk>,
        path: &Path,
        clock: Arc<dyn Clock>,
        skipped: &'s Mutex<Option<(u64, Error)>>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<TreeSource<'s>> {
        let directory = DataDirectory::open(Arc::clone(&disk), path)?;
        let database = Database::new(engine_at(kind, path)?, Arc::clone(&clock));
        let opened = directory.restore(&database, clock, &DataOptions::default(), progress)?;
        Ok(TreeSource { database, skipped, _directory: directory, log: path.join(LOG), disk, opened })
    }
}

impl RecordSource for TreeSource<'_> {
    fn restore_into(
        &self,
        into: &Database,
        _: Option<u64>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<RestorationReport> {
        const REPORT_EVERY_RECORDS: u64 = 1 << 12;
        let (mut place, mut records) = (None, 0u64);
        let total = self.database.engine().status().records;
        loop {
            let mut outcome = Ok(());
            place = self.database.engine().scan_skipping_damaged(place.take(), &mut |key, record| {
                outcome = into.replay(&LogChange::Put { key, record });
                records += 1;
                if records.is_multiple_of(REPORT_EVERY_RECORDS) {
                    progress(LoadProgress { done: records, remaining: total.saturating_sub(records) });
                }
                if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            outcome?;
            if place.is_none() {
                break;
            }
        }
        *self.skipped.lock() =
            self.database.engine().checkpointed().and_then(CheckpointedEngine::damaged_records);
        if let Some(at) = self.database.planned_clear() {
            into.replay(&LogChange::PlanClear { at: Some(at) })?;
        }
        if let Some(log) = self.database.log() {
            log.close()?;
        }
        let OpeningReport { entries, lost, end, tail, .. } = &self.opened;
        Ok(RestorationReport {
            records,
            has_log: true,
            position: *end,
            time_ms: 0,
            entries: *entries,
            lost: *lost,
            refused: Vec::new(),
            ends_before: false,
            tail: tail.clone(),
            cancelled_clear: None,
        })
    }

    fn openings_of_restored(&self, database: &Database, now: UnixSeconds) -> u32 {
        let known = openings_of(&*self.disk, &self.log).max(self.database.openings_known());
        openings_of_restored(known.max(database.openings_known()), now)
    }
}

/// Mends the log in the copy of a tree, and returns its damages.
fn mend_copy(kind: DatabaseKind, disk: &Arc<dyn Disk>, path: &Path) -> Result<Vec<FoundDamage>> {
    let tree = tree_at(kind, path)?;
    let mut damages = Vec::new();
    let identity = find_identity(&**disk, path, tree.database_id(), &mut damages)?;
    let (log, log_position) = (path.join(LOG), LogPosition(tree.log_position()));
    append_recent(disk, &log, identity)?;
    let disk = &**disk;
    let first = first_segment(disk, &log)?;
    let segments = match first {
        // The tree contains the changes before its mark, so these entries are not needed.
        Some(first) => mend_segments(disk, &log, identity, first.max(log_position), &[log_position])?,
        None => MendedSegments::default(),
    };
    damages.extend(segments.findings.into_iter().map(of_log));
    let is_needed = first.is_some() || log_position > LogPosition(0);
    if is_needed && !segments.entry_ends.contains(&log_position) {
        let log =
            MendedLog { path: log, identity, first, end: segments.end, entry_ends: segments.entry_ends };
        damages.push(start_log_at_mark(disk, &log, &tree, log_position)?);
    }
    Ok(damages)
}

/// Returns the identity of the database. If the file `identity` is damaged or missing, takes the
/// identity from the segments of the log or from the tree, and writes the file again.
fn find_identity(
    disk: &dyn Disk,
    path: &Path,
    tied: Option<[u8; 16]>,
    damages: &mut Vec<FoundDamage>,
) -> Result<DatabaseIdentity> {
    let found = match identity::read(disk, path) {
        Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
        found => found,
    };
    let is_ours = |identity: &DatabaseIdentity| tied.is_none_or(|tied| tied == identity.database_id);
    if let Ok(Some(identity)) = &found
        && is_ours(identity)
    {
        return Ok(*identity);
    }
    let of_segments = identity::by_segments(disk, path);
    if let Some(other) = of_segments.filter(|of_segments| !is_ours(of_segments)) {
        let message = format!(
            "{} at offset 0: the log belongs to database {:032x}, not to this tree; replace it by the tree's own log, or remove it",
            path.join(LOG).display(),
            u128::from_be_bytes(other.database_id)
        );
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let server_id = || (RandomState::new().build_hasher().finish() as u32).max(1);
    let by_tree = || tied.map(|database_id| DatabaseIdentity { server_id: server_id(), database_id });
    let Some(identity) = of_segments.or_else(by_tree) else {
        return Err(found.err().unwrap_or_else(|| identity::missing(disk, path)));
    };
    let what = match &found {
        Ok(None) => "the file is missing".into(),
        Ok(Some(_)) => "the identity is not that of the tree".into(),
        Err(error) => error.to_string(),
    };
    damages.push(FoundDamage::new(
        path.join("identity"),
        0,
        what,
        "reconstructed from the other files".into(),
    ));
    identity::write(disk, path, identity)?;
    Ok(identity)
}

/// Starts a new log at the tree mark. If the old log continues after a gap, the gap is marked as
/// lost. Fails with `Corrupt` if the old log does not match the tree.
fn start_log_at_mark(
    disk: &dyn Disk,
    log: &MendedLog,
    tree: &DiskTree,
    mark: LogPosition,
) -> Result<FoundDamage> {
    let next = log.first.filter(|&first| first > mark).unwrap_or(mark);
    let lost = next.0 - mark.0;
    let reaches = log.first.is_some_and(|first| first <= mark) && log.end > mark;
    if reaches || !log.can_begin(mark, next) {
        let message = format!(
            "{} at offset 0: the tree needs the log from position {} on, where no entry begins; copy the log from another copy of the directory",
            log.path.display(),
            mark.0
        );
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let what = format!("the log from position {} on, where the tree's records end, is missing", mark.0);
    let records = tree.status().records;
    let rest = match next > mark {
        true => {
            format!(
                "and with the changes of the log from position {} on; the {lost} bytes between are lost",
                next.0
            )
        }
        false => "writes acknowledged after the last checkpoint, if there were any, are lost".into(),
    };
    let finding = LogDamage { path: log.path.clone(), offset: 0, what, lost };
    let outcome = format!("saved, with {records} records as of the last checkpoint; {rest}");
    // The number of openings since the last checkpoint is unknown, and versions that clients have
    // seen must not be assigned again.
    let known = openings_of(disk, &log.path).max((version_max(tree)? >> 32) as u32);
    // The tree contains the changes in the segments that end before the mark. If these segments
    // stayed, the log would have a gap up to the mark.
    for name in names(disk, &log.path)? {
        if segment_start(&name).is_some_and(|start| start <= mark) {
            let path = log.path.join(name);
            disk.remove(&path).map_err(|error| cannot("remove", &path, &error))?;
        }
    }
    write_lost_segment(disk, &log.path, log.identity, known.saturating_add(OPENINGS_MARGIN), (mark, next))
        .map_err(|error| cannot("write to", &log.path, &error))?;
    Ok(FoundDamage { finding, outcome })
}

/// Returns the highest version of any record.
fn version_max(tree: &DiskTree) -> Result<u64> {
    let (mut highest, mut place) = (0, None);
    loop {
        place = tree.scan_skipping_damaged(place.take(), &mut |_, record| {
            highest = highest.max(record.attributes.version);
            ControlFlow::Continue(())
        })?;
        if place.is_none() {
            return Ok(highest);
        }
    }
}
