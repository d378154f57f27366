//! Salvages a tree on disk whose update log is damaged or lost. The tree itself is intact up to its
//! mark, so the log of a copy is mended from there on, or begins anew there. The copy is then
//! opened, and its records are written to the new database.

use super::directory::{MendedLog, OPENINGS_UNKNOWN, first_segment, of_log};
use super::{Damage, Renamed, copy_database, copy_file, copy_path, lock_source};
use crate::clock::Clock;
use crate::data_directory::{DataDirectory, LOG, StagedDirectory, cannot, identity, is_there, names};
use crate::disk::{Disk, SystemDisk};
use crate::open::engine::TREE;
use crate::open::tree_at;
use crate::restoration::{RecordSource, RestoreInto, restore_records};
use crate::update_log::{
    DatabaseIdentity, LogChange, LogDamage, LogPosition, MendedSegments, append_recent, mend_segments,
    openings_of, segment_start, write_lost_segment,
};
use crate::versions::openings_of_restored;
use crate::{DataOptions, Database, Opened, Progress, RestoreOptions, Restored, Salvaged};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{CheckpointedEngine, Engine, Error, ErrorKind, Result, UnixSeconds};
use todana_engine::DiskTree;

/// Creates a new database of a tree. Changes after the last checkpoint that are in the lost part of
/// the log stay lost, and the damages report this. Fails with `Busy` if the tree is open, with
/// `Corrupt` if the tree itself is damaged or the log belongs to another database, and with
/// `Invalid` if an earlier state is requested.
pub(super) fn salvage(
    disk: Arc<dyn Disk>,
    options: &RestoreOptions,
    into: RestoreInto<'_>,
    clock: Arc<dyn Clock>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Salvaged> {
    let from = &options.from;
    if options.until_ms.is_some() || options.log.is_some() {
        let message =
            format!("{} is a tree on disk: it is salvaged as it is, with its own log", from.display());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let held = lock_source(&*disk, from)?;
    let copy = StagedDirectory::create(Arc::new(SystemDisk), &copy_path(into.place(options)?))?;
    let (original, tree) = (Renamed { copy: copy.place(), original: from }, copy.place().join(TREE));
    disk.make_directory(&tree).map_err(|error| cannot("make", &tree, &error))?;
    copy_file(&*disk, &from.join(TREE).join(PAGES), &tree.join(PAGES))?;
    if is_there(&*disk, &from.join(TREE).join(UNCLEAN))? {
        copy_file(&*disk, &from.join(TREE).join(UNCLEAN), &tree.join(UNCLEAN))?;
    }
    copy_database(&*disk, from, copy.place())?;
    drop(held);
    let damages = mend_copy(&disk, copy.place()).map_err(|error| original.error(&error))?;
    let open = |progress: &mut dyn FnMut(Progress)| {
        TreeSource::open(Arc::clone(&disk), copy.place(), Arc::clone(&clock), progress)
    };
    let restored = restore_records(Arc::clone(&disk), options, open, into, Arc::clone(&clock), progress);
    let restored = restored.map_err(|error| original.error(&error))?;
    Ok(Salvaged { damages: original.damages(damages), restored })
}

/// LMDB's file.
const PAGES: &str = "data.mdb";
/// This file exists while a tree is open. If it is left, the tree's structure is checked at the
/// opening.
const UNCLEAN: &str = "unclean";

/// The copy of a tree, opened with the changes of its log.
struct TreeSource {
    database: Database,
    // Holds the lock of the copy.
    _directory: DataDirectory,
    log: PathBuf,
    disk: Arc<dyn Disk>,
    opened: Opened,
}

impl TreeSource {
    fn open(
        disk: Arc<dyn Disk>,
        path: &Path,
        clock: Arc<dyn Clock>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<TreeSource> {
        let directory = DataDirectory::open(Arc::clone(&disk), path)?;
        let database = Database::new(Box::new(tree_at(path)?), Arc::clone(&clock));
        let opened = directory.restore(&database, clock, &DataOptions::default(), progress)?;
        Ok(TreeSource { database, _directory: directory, log: path.join(LOG), disk, opened })
    }
}

impl RecordSource for TreeSource {
    fn bring_back(
        &self,
        into: &Database,
        _: Option<u64>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Restored> {
        const TELL_EVERY: u64 = 1 << 12;
        let (mut place, mut records) = (None, 0u64);
        let total = self.database.engine().status().records;
        loop {
            let mut outcome = Ok(());
            place = self.database.engine().scan(place.take(), &mut |key, record| {
                outcome = into.replay(&LogChange::Put { key, record });
                records += 1;
                if records.is_multiple_of(TELL_EVERY) {
                    progress(Progress { done: records, remaining: total.saturating_sub(records) });
                }
                if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            outcome?;
            if place.is_none() {
                break;
            }
        }
        if let Some(at) = self.database.planned_clear() {
            into.replay(&LogChange::PlanClear { at: Some(at) })?;
        }
        if let Some(log) = self.database.log() {
            log.close()?;
        }
        let Opened { entries, lost, end, tail, .. } = &self.opened;
        Ok(Restored {
            records,
            has_log: true,
            position: *end,
            time_ms: 0,
            entries: *entries,
            lost: *lost,
            refused: Vec::new(),
            ends_before: false,
            tail: tail.clone(),
            called_off: None,
        })
    }

    fn openings_of_restored(&self, database: &Database, now: UnixSeconds) -> u32 {
        let known = openings_of(&*self.disk, &self.log).max(self.database.openings_known());
        openings_of_restored(known.max(database.openings_known()), now)
    }
}

/// Mends the log of a copied tree, and returns its damages.
fn mend_copy(disk: &Arc<dyn Disk>, path: &Path) -> Result<Vec<Damage>> {
    let tree = tree_at(path)?;
    let mut damages = Vec::new();
    let identity = find_identity(&**disk, path, tree.database_id(), &mut damages)?;
    let (log, log_position) = (path.join(LOG), LogPosition(tree.log_position()));
    append_recent(disk, &log, identity)?;
    let disk = &**disk;
    let first = first_segment(disk, &log)?;
    let segments = match first {
        // Entries before the mark are not needed.
        Some(first) => mend_segments(disk, &log, identity, first.max(log_position), &[log_position])?,
        None => MendedSegments::default(),
    };
    damages.extend(segments.findings.into_iter().map(of_log));
    let is_needed = first.is_some() || log_position > LogPosition(0);
    if is_needed && !segments.between.contains(&log_position) {
        let log = MendedLog { path: log, identity, first, end: segments.end, between: segments.between };
        damages.push(begin_at_mark(disk, &log, &tree, log_position)?);
    }
    Ok(damages)
}

/// Returns the identity of the database, which the tree contains too.
fn find_identity(
    disk: &dyn Disk,
    path: &Path,
    tied: Option<[u8; 16]>,
    damages: &mut Vec<Damage>,
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
    let told = identity::by_segments(disk, path);
    if let Some(other) = told.filter(|told| !is_ours(told)) {
        let message = format!(
            "{} at offset 0: the log is the database {:032x}'s, and not this tree's: put its own in its place, or take this one away",
            path.join(LOG).display(),
            u128::from_be_bytes(other.database_id)
        );
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let server_id = || (RandomState::new().build_hasher().finish() as u32).max(1);
    let by_tree = || tied.map(|database_id| DatabaseIdentity { server_id: server_id(), database_id });
    let Some(identity) = told.or_else(by_tree) else {
        return Err(found.err().unwrap_or_else(|| identity::missing(disk, path)));
    };
    let what = match &found {
        Ok(None) => "it is missing".into(),
        Ok(Some(_)) => "it is not the tree's".into(),
        Err(error) => error.to_string(),
    };
    damages.push(Damage::new(path.join("identity"), 0, what, "told by the other files".into()));
    identity::write(disk, path, identity)?;
    Ok(identity)
}

/// Begins the log where the tree needs it. Fails with `Corrupt` if the remaining log does not match
/// the tree.
fn begin_at_mark(disk: &dyn Disk, log: &MendedLog, tree: &DiskTree, mark: LogPosition) -> Result<Damage> {
    let next = log.first.filter(|&first| first > mark).unwrap_or(mark);
    let lost = next.0 - mark.0;
    let reaches = log.first.is_some_and(|first| first <= mark) && log.end > mark;
    if reaches || !log.can_begin(mark, next) {
        let message = format!(
            "{} at offset 0: the tree needs the log from position {} on, where no entry begins; the log has to come from another copy of the directory",
            log.path.display(),
            mark.0
        );
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let what = format!("the log from position {} on, where the tree's records end, is missing", mark.0);
    let records = tree.status().records;
    let rest = match next > mark {
        true => {
            format!("and with what the log tells from position {} on: {lost} bytes between are lost", next.0)
        }
        false => "what was acknowledged behind the last checkpoint is lost, if anything was".into(),
    };
    let finding = LogDamage { path: log.path.clone(), offset: 0, what, lost };
    let outcome = format!("saved, with {records} records as of the last checkpoint; {rest}");
    // The number of openings since then is unknown, and versions that were shown must not be issued
    // again.
    let known = openings_of(disk, &log.path).max((version_max(tree)? >> 32) as u32);
    // Segments that end before the mark are in the tree, and would leave a gap.
    for name in names(disk, &log.path)? {
        if segment_start(&name).is_some_and(|start| start <= mark) {
            let path = log.path.join(name);
            disk.remove(&path).map_err(|error| cannot("remove", &path, &error))?;
        }
    }
    write_lost_segment(disk, &log.path, log.identity, known.saturating_add(OPENINGS_UNKNOWN), (mark, next))
        .map_err(|error| cannot("write", &log.path, &error))?;
    Ok(Damage { finding, outcome })
}

/// Returns the highest version of any record.
fn version_max(tree: &DiskTree) -> Result<u64> {
    let (mut highest, mut place) = (0, None);
    loop {
        place = tree.scan(place.take(), &mut |_, record| {
            highest = highest.max(record.attributes.version);
            ControlFlow::Continue(())
        })?;
        if place.is_none() {
            return Ok(highest);
        }
    }
}
