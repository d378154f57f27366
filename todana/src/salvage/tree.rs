//! Salvages a tree or a table on disk whose records or update log are damaged or lost.
//!
//! The pages of the tree's LMDB file must be readable. The file contains all changes up to the tree
//! mark, a position of the update log, so the log is needed only from there on. This module copies
//! the tree and its log, mends the log of the copy from the mark on (or starts a new log at the
//! mark), writes the intact records to the new database, and replays the log there. Nothing is
//! written to the damaged tree, because a change of a damaged block is impossible.
//!
//! Of a table, only rows are written. The new table builds its indexes from their definitions, the
//! row with the empty key. If that row is lost, the states of the indexes define them.

use super::directory::{MendedLog, first_segment, of_log};
use super::{FoundDamage, PathTranslation, copy_database, copy_file, lock_source};
use crate::clock::Clock;
use crate::data_directory::{
    LOG, ReplaySummary, StagedDirectory, cannot, identity, names, replay, salvage_copy,
};
use crate::disk::{Disk, SystemDisk};
use crate::restoration::{RecordSource, RestoreInto, restore_records};
use crate::update_log::{
    DatabaseIdentity, LogChange, LogDamage, LogPosition, LogReader, MendedSegments, append_recent,
    mend_segments, openings_of, segment_start, write_lost_segment,
};
use crate::versions::{OPENINGS_MARGIN, openings_of_restored};
use crate::{Database, DatabaseKind, LoadProgress, RestorationReport, RestoreOptions, SalvageReport};
use parking_lot::Mutex;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Attributes, Error, ErrorKind, Record, Result, UnixSeconds, key_of_number};
use todana_engine::table::{Definition, InnerRecord, put_definition};
use todana_engine::{DamagedPlace, TreeDamage, TreeSalvage};

/// Creates a new database from a tree. Changes that were only in the lost part of the log cannot be
/// restored, and neither can damaged records; the returned damages state this. Fails with `Busy` if
/// the tree is open, with `Corrupt` if its pages are unreadable or the log belongs to another
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
    copy_file(&*disk, &kind.pages(from).join(PAGES), &tree.join(PAGES))?;
    copy_database(&*disk, from, copy.place())?;
    drop(held);
    let pages = TreeSalvage::open(&tree).map_err(|error| original.error(&error))?;
    let mut damages = Vec::new();
    let identity =
        mend_copy(&pages, &disk, copy.place(), &mut damages).map_err(|error| original.error(&error))?;
    let found = Mutex::default();
    let source = TreeSource {
        kind,
        tree: &pages,
        file: tree.join(PAGES),
        log: copy.place().join(LOG),
        identity,
        disk: Arc::clone(&disk),
        found: &found,
    };
    let restored = restore_records(Arc::clone(&disk), options, |_| Ok(source), into, clock, progress);
    let restored = restored.map_err(|error| original.error(&error))?;
    damages.append(&mut found.into_inner());
    Ok(SalvageReport { damages: original.damages(damages), restored })
}

/// The name of LMDB's file.
const PAGES: &str = "data.mdb";

/// Describes a damaged place of a tree.
pub(crate) fn damage_text(kind: DatabaseKind, place: &DamagedPlace) -> String {
    match kind.is_table() {
        true => format!("{}; it begins with {}", place.error, InnerRecord::describe(&place.key)),
        false => place.error.to_string(),
    }
}

/// The copy of a tree and its mended log.
struct TreeSource<'s> {
    kind: DatabaseKind,
    tree: &'s TreeSalvage,
    /// The file of the tree.
    file: PathBuf,
    log: PathBuf,
    identity: DatabaseIdentity,
    disk: Arc<dyn Disk>,
    /// Receives the damages of the tree.
    found: &'s Mutex<Vec<FoundDamage>>,
}

impl TreeSource<'_> {
    /// Stores the definitions of a table's indexes, before its rows. Returns the damage if the
    /// definitions are lost and nothing else states them.
    fn restore_definitions(&self, into: &Database) -> Result<Option<FoundDamage>> {
        let (mut has_definitions, mut value) = (false, Vec::new());
        let damage = self.tree.for_each(&mut |key, record| {
            match InnerRecord::read(key, record.value) {
                InnerRecord::Row([]) => has_definitions = true,
                InnerRecord::Index(column, kind) => {
                    value = put_definition(&value, Definition::Index(column, Some(kind)));
                }
                _ => {}
            }
            Ok(())
        })?;
        if has_definitions || damage.count == 0 {
            return Ok(None);
        }
        if !value.is_empty() {
            let record = Record::new(&value, Attributes::default());
            into.replay(&LogChange::Put { key: b"", record })?;
            let outcome = "reconstructed from the states of the indexes";
            let what = "the definitions of the indexes are lost".into();
            self.found.lock().push(FoundDamage::new(self.file.clone(), 0, what, outcome.into()));
            return Ok(None);
        }
        let what = "the definitions of the indexes, if there were any, are lost".into();
        let outcome = "the new table has no indexes; define them again".into();
        let lost = || FoundDamage::new(self.file.clone(), 0, what, outcome);
        Ok(damage.is_at_start.then(lost))
    }

    fn restore_records(&self, into: &Database, progress: &mut dyn FnMut(LoadProgress)) -> Result<TreeDamage> {
        const REPORT_EVERY_RECORDS: u64 = 1 << 12;
        let (mut records, total, mut text) = (0u64, self.tree.records(), [0; 20]);
        self.tree.for_each(&mut |key, record| {
            records += 1;
            if records.is_multiple_of(REPORT_EVERY_RECORDS) {
                progress(LoadProgress { done: records, remaining: total.saturating_sub(records) });
            }
            let key = match self.kind {
                DatabaseKind::DiskTable => match InnerRecord::read(key, record.value) {
                    InnerRecord::Row(key) => key,
                    _ => return Ok(()),
                },
                DatabaseKind::DiskFixed => match key.try_into() {
                    Ok(number) => key_of_number(u64::from_be_bytes(number), &mut text),
                    // This is the layout of the records.
                    Err(_) => return Ok(()),
                },
                _ => key,
            };
            into.replay(&LogChange::Put { key, record })
        })
    }

    fn note(&self, damage: &TreeDamage) {
        let mut found = self.found.lock();
        for (number, place) in damage.places.iter().enumerate() {
            let mut outcome = "left out".to_string();
            if number + 1 == damage.places.len() {
                outcome = format!(
                    "left out; damaged records or blocks in total: {}, with {} bytes",
                    damage.count, damage.bytes
                );
            }
            found.push(FoundDamage::new(self.file.clone(), 0, damage_text(self.kind, place), outcome));
        }
    }
}

impl RecordSource for TreeSource<'_> {
    fn restore_into(
        &self,
        into: &Database,
        _: Option<u64>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<RestorationReport> {
        let lost_definitions = if self.kind.is_table() { self.restore_definitions(into)? } else { None };
        let damage = self.restore_records(into, progress)?;
        let mark = LogPosition(self.tree.mark());
        let mut reader = LogReader::open(Arc::clone(&self.disk), &self.log, self.identity, mark)?;
        let ReplaySummary { entries, lost, .. } = replay(into, &mut reader, &mut |reader| {
            let done = reader.position().0 - mark.0;
            progress(LoadProgress { done, remaining: reader.remaining() });
            ControlFlow::Continue(())
        })?;
        // The log may contain newer definitions.
        if let Some(lost) = lost_definitions
            && !into.peek(b"", &mut |_| ())?
        {
            self.found.lock().push(lost);
        }
        self.note(&damage);
        Ok(RestorationReport {
            records: 0,
            has_log: true,
            position: reader.position(),
            time_ms: 0,
            entries,
            lost,
            refused: Vec::new(),
            ends_before: false,
            tail: reader.tail().clone(),
            cancelled_clear: None,
        })
    }

    fn openings_of_restored(&self, database: &Database, now: UnixSeconds) -> u32 {
        openings_of_restored(openings_of(&*self.disk, &self.log).max(database.openings_known()), now)
    }
}

/// Mends the log in the copy of a tree, and adds its damages. Returns the identity of the database.
fn mend_copy(
    tree: &TreeSalvage,
    disk: &Arc<dyn Disk>,
    path: &Path,
    damages: &mut Vec<FoundDamage>,
) -> Result<DatabaseIdentity> {
    let identity = find_identity(&**disk, path, tree.database_id(), damages)?;
    let (log, log_position) = (path.join(LOG), LogPosition(tree.mark()));
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
        damages.push(start_log_at_mark(disk, &log, tree, log_position)?);
    }
    Ok(identity)
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
    tree: &TreeSalvage,
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
    let records = tree.records();
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
fn version_max(tree: &TreeSalvage) -> Result<u64> {
    let mut highest = 0;
    tree.for_each(&mut |_, record| {
        highest = highest.max(record.attributes.version);
        Ok(())
    })?;
    Ok(highest)
}
