//! Verification: reads all files of a data directory and checks every checksum. Changes nothing.

use super::{CHECKPOINTS, LOG, identity};
use crate::DatabaseKind;
use crate::backup::{BackedUp, BackupFileKind, BackupManifest, ListedFile};
use crate::checkpoint::{CheckpointFailure, CheckpointStore};
use crate::disk::Disk;
use crate::open::contents::{holds_hash, is_segment};
use crate::salvage::{damage_text, torn_tail};
use crate::update_log::{
    LogChange, LogPosition, LogReader, LogTail, SEGMENT_HEADER_LEN, segment_start, with_recent,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};
use todana_engine::{DiskHash, DiskTree, ExaminedTree, HashDamage, TreeDamage, TreeExamination};

/// The result of verifying a data directory.
#[derive(Clone, Debug, Default)]
pub struct VerificationReport {
    /// Number of intact checkpoints.
    pub checkpoints: u64,
    /// Bytes of the intact checkpoints.
    pub checkpoint_bytes: u64,
    /// The newest intact checkpoint.
    pub newest: Option<NewestCheckpoint>,
    /// Number of log segments that could be read.
    pub segments: u64,
    /// Bytes of these segments.
    pub log_bytes: u64,
    /// Number of intact log entries.
    pub entries: u64,
    /// Number of entries that are changes. The other entries record a time or a loss.
    pub changes: u64,
    /// Bytes of changes that are lost, according to entries that record a loss.
    pub lost: u64,
    /// The start of the log, and the end of its intact entries.
    pub log: (LogPosition, LogPosition),
    /// The bytes after the intact entries of the log.
    pub tail: LogTail,
    /// Number of segments of a hash on disk, or of the backup of a hash, which has neither
    /// checkpoints nor a log.
    pub hash_segments: u64,
    /// Bytes of these segments and of dictionaries.
    pub hash_bytes: u64,
    /// The intact records in the files of a tree on disk. Changes that are only in its log are not
    /// included. `None` if the pages of the tree are unreadable.
    pub tree: Option<ExaminedTree>,
    /// The summary in the manifest, if the directory is a backup.
    pub backup: Option<BackedUp>,
    /// All damages: file, offset and reason of each.
    pub damages: Vec<String>,
    /// How many of the damages are older than the backup, because the files match the manifest.
    /// They stand last in `damages`.
    pub inherited: usize,
}

/// The newest intact checkpoint of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewestCheckpoint {
    /// The path of its file.
    pub path: PathBuf,
    /// Number of its records.
    pub records: u64,
    /// When writing it began, Unix time in milliseconds.
    pub created_ms: u64,
}

/// Reads all files of a data directory, a backup, or a hash or tree on disk, and checks every
/// checksum. Changes nothing. `progress` is called with the number of bytes read.
///
/// Damage is listed in the result and is not an error. The log is read only up to its first damage.
/// Fails with `Unavailable` if there is no database or its files cannot be listed, with `Busy` if a
/// hash or tree is open, and with `Corrupt` if a hash is unreadable. A data directory is not
/// locked, so the end of the log may appear torn while a server uses it.
pub fn verify(disk: Arc<dyn Disk>, path: &Path, progress: &mut dyn FnMut(u64)) -> Result<VerificationReport> {
    let mut damages = Vec::new();
    let kind = DatabaseKind::at(&*disk, path);
    let pages = kind.map(|kind| kind.pages(path));
    let mut tree = kind.map_or(Ok(None), |kind| examine_tree(kind, &kind.pages(path), &mut damages))?;
    if let (Some(DatabaseKind::DiskFixed), Some(tree)) = (kind, &mut tree) {
        // One of them is the layout of the numbered records.
        tree.records = tree.records.saturating_sub(1);
    }
    let manifest = match BackupManifest::read(&*disk, path) {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            damages.push(error.to_string());
            None
        }
        manifest => manifest?,
    };
    if let Some(manifest) = manifest.as_ref().filter(|manifest| manifest.is_hash()) {
        let mut verified =
            VerificationReport { backup: Some(manifest.backed_up()), ..VerificationReport::default() };
        check_files(&*disk, path, manifest, &mut verified, progress);
        check_hash(&*disk, path, manifest, &mut verified, progress)?;
        return Ok(verified);
    }
    if manifest.is_none() && holds_hash(&*disk, path) {
        return verify_hash(&*disk, path, progress);
    }
    let found = identity::read(&*disk, path);
    let identity = match found.and_then(|found| found.ok_or_else(|| identity::missing(&*disk, path))) {
        // Files that contain the identity themselves are still checked.
        Err(error) if pages.is_some() || error.kind() == ErrorKind::Corrupt => {
            let known = identity::by_segments(&*disk, path);
            if let (None, Some(tree)) = (known, tree) {
                damages.push(needs_log(path, tree.mark));
                return Ok(VerificationReport { damages, tree: Some(tree), ..VerificationReport::default() });
            }
            let known = known.ok_or_else(|| error.clone())?;
            damages.push(error.to_string());
            known
        }
        found => found?,
    };
    let backup = manifest.as_ref().map(BackupManifest::backed_up);
    let mut verified = VerificationReport { backup, damages, tree, ..VerificationReport::default() };
    let mut done = 0;
    let log = path.join(LOG);
    // The file `recent` contains the newest entries of a process that was killed. They belong to
    // the log.
    let disk = with_recent(disk, &log, identity)?;
    let checkpoint_store =
        CheckpointStore::new(Arc::clone(&disk), path.join(CHECKPOINTS), log.clone(), identity);
    let mut needed = tree.zip(pages).map(|(tree, pages)| (LogPosition(tree.mark), pages));
    for start in checkpoint_store.list()? {
        let reader = match checkpoint_store.open(start) {
            Ok(reader) => reader,
            Err(why) => {
                verified.damages.push(why);
                continue;
            }
        };
        match reader.verify(&mut |read| progress(done + read)) {
            Ok(()) => {
                verified.checkpoints += 1;
                verified.checkpoint_bytes += reader.len();
                verified.newest.get_or_insert_with(|| NewestCheckpoint {
                    path: checkpoint_store.path_of(start),
                    records: reader.footer.records,
                    created_ms: reader.header.created_ms,
                });
                needed = needed.max(Some((reader.footer.until, checkpoint_store.path_of(start))));
            }
            Err(CheckpointFailure::Damaged(why)) => verified.damages.push(why),
            Err(CheckpointFailure::Refused(error)) => return Err(error),
        }
        done += reader.len();
    }
    let starts = || segment_starts(&*disk, &log);
    let mut first = starts()?.first().copied().unwrap_or_default();
    let mut opened = LogReader::open(Arc::clone(&disk), &log, identity, first);
    // A server may have removed the segment in the meantime. Servers remove the oldest segment
    // first, so the check continues with the next segment.
    while opened.is_err()
        && let Some(now) = starts()?.first().copied().filter(|&now| now > first)
    {
        first = now;
        opened = LogReader::open(Arc::clone(&disk), &log, identity, first);
    }
    verified.log = (first, first);
    if let Some(tree) = tree.filter(|tree| tree.mark < first.0) {
        verified.damages.push(needs_log(path, tree.mark));
    }
    let read = opened.and_then(|reader| read_log(reader, &mut verified, &mut |read| progress(done + read)));
    let (first, end) = verified.log;
    let torn = if let LogTail::Torn { len, .. } = verified.tail { len } else { 0 };
    verified.segments = starts()?.iter().filter(|&&start| first <= start && start <= end).count() as u64;
    verified.log_bytes = verified.segments * SEGMENT_HEADER_LEN as u64 + (end.0 - first.0) + torn;
    done += verified.log_bytes;
    match read {
        Err(error) => verified.damages.push(error.to_string()),
        Ok(place) => {
            if let Some((LogPosition(until), name)) = needed.filter(|(until, _)| verified.log.1 < *until) {
                let (LogPosition(end), name) = (verified.log.1, name.display());
                let why = format!(
                    "{place}: the update log ends at position {end}, but {name} needs it up to {until}"
                );
                verified.damages.push(why);
            }
        }
    }
    if let Some(manifest) = &manifest {
        check_backup(&*disk, path, manifest, &mut verified, &mut |read| progress(done + read));
    }
    Ok(verified)
}

/// Verifies a hash on disk. All its entries are read, including those that later entries replaced
/// or removed.
fn verify_hash(disk: &dyn Disk, path: &Path, progress: &mut dyn FnMut(u64)) -> Result<VerificationReport> {
    let _lock =
        if super::is_there(disk, &path.join("lock"))? { Some(super::lock(disk, path)?) } else { None };
    let found = DiskHash::salvage(disk, path, true, None, progress)?;
    let unlisted = found.damaged - found.damages.len() as u64;
    let mut verified = VerificationReport { entries: found.entries, ..VerificationReport::default() };
    for name in disk.list(path).unwrap_or_default().iter().filter(|name| is_segment(name)) {
        verified.hash_segments += 1;
        verified.hash_bytes += disk.open(&path.join(name), false).and_then(|file| file.len()).unwrap_or(0);
    }
    let texts = found.damages.iter().map(|damage| {
        let HashDamage { path, offset, what, .. } = damage;
        format!("{} at offset {offset}: {what}", path.display())
    });
    verified.damages = texts.collect();
    if unlisted > 0 {
        verified.damages.push(format!("{}: {unlisted} more damages are not listed", path.display()));
    }
    verified.tail = found.torn.map_or(LogTail::Clean, torn_tail);
    Ok(verified)
}

/// Reads the pages and records of a tree.
fn examine_tree(kind: DatabaseKind, pages: &Path, damages: &mut Vec<String>) -> Result<Option<ExaminedTree>> {
    let TreeExamination { tree, damage, disorder } = match DiskTree::examine(pages) {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            damages.push(error.to_string());
            return Ok(None);
        }
        examined => examined?,
    };
    damages.extend(disorder.map(|disorder| disorder.to_string()));
    damages.extend(damage.places.iter().map(|place| damage_text(kind, place)));
    if damage.count > damage.places.len() as u64 {
        let TreeDamage { count, bytes, .. } = damage;
        let pages = pages.display();
        damages.push(format!("{pages}: damaged records or blocks in total: {count}, with {bytes} bytes"));
    }
    Ok(Some(tree))
}

fn needs_log(path: &Path, mark: u64) -> String {
    format!("{}: the tree needs the update log from position {mark} on, which is missing", path.display())
}

/// Checks that the files and the end of the log are as the backup's manifest lists them.
fn check_backup(
    disk: &dyn Disk,
    path: &Path,
    manifest: &BackupManifest,
    verified: &mut VerificationReport,
    progress: &mut dyn FnMut(u64),
) {
    check_files(disk, path, manifest, verified, progress);
    let (_, end) = verified.log;
    if verified.damages.is_empty() && (end != manifest.end || verified.tail != LogTail::Clean) {
        let message =
            format!("{}: the log of the backup ends at {}, not at {}", path.display(), end.0, manifest.end.0);
        verified.damages.push(message);
    }
}

fn check_files(
    disk: &dyn Disk,
    path: &Path,
    manifest: &BackupManifest,
    verified: &mut VerificationReport,
    progress: &mut dyn FnMut(u64),
) {
    for (path, what) in manifest.check(disk, path, progress) {
        let name = path.display().to_string();
        // If a damage of this file is already in the list, that entry states the place more
        // exactly.
        if !verified.damages.iter().any(|damage| damage.starts_with(&name)) {
            verified.damages.push(format!("{name} {what}"));
        }
    }
}

/// Checks the entries in the segments of a hash's backup. Only files that match the manifest are
/// read here, so any damage in them existed before the backup.
fn check_hash(
    disk: &dyn Disk,
    path: &Path,
    manifest: &BackupManifest,
    verified: &mut VerificationReport,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let mut done = manifest.backed_up().len;
    let of_files = verified.damages.len();
    for listed in &manifest.files {
        let path = listed.path(path);
        let name = path.display().to_string();
        if verified.damages.iter().any(|damage| damage.starts_with(&name)) {
            continue;
        }
        match examine(disk, &path, listed, manifest) {
            Ok(()) => {
                verified.hash_segments += u64::from(listed.kind == BackupFileKind::HashSegment);
                verified.hash_bytes += listed.len;
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => verified.damages.push(error.to_string()),
            Err(error) => return Err(error),
        }
        done = done.saturating_add(listed.len);
        progress(done);
    }
    verified.inherited = verified.damages.len() - of_files;
    Ok(())
}

/// Checks one file of a hash's backup.
fn examine(disk: &dyn Disk, path: &Path, listed: &ListedFile, manifest: &BackupManifest) -> Result<()> {
    if listed.kind != BackupFileKind::HashDictionary {
        return DiskHash::examine_segment(disk, path, listed.position.0).map(drop);
    }
    if DiskHash::examine_dictionary(disk, path, listed.position.0)? != manifest.identity.database_id {
        let message = format!("{} at offset 0: belongs to another database", path.display());
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    Ok(())
}

/// Returns the positions at which the segments start, in order.
fn segment_starts(disk: &dyn Disk, log: &Path) -> Result<Vec<LogPosition>> {
    let names = super::names(disk, log)?;
    let mut starts: Vec<LogPosition> = names.iter().filter_map(|name| segment_start(name)).collect();
    starts.sort_unstable();
    Ok(starts)
}

/// Reads the log from its oldest entry. Returns the file and the offset at which it ends.
fn read_log(
    mut reader: LogReader,
    verified: &mut VerificationReport,
    progress: &mut dyn FnMut(u64),
) -> Result<String> {
    const REPORT_EVERY_ENTRIES: u64 = 1 << 12;
    let (first, _) = verified.log;
    loop {
        let found = reader.next_entry().map(|entry| {
            entry.map(|(_, entry)| match entry.change {
                LogChange::Mark { .. } | LogChange::Epoch(_) => (0, 0),
                LogChange::Lost { len } => (0, len),
                _ => (1, 0),
            })
        });
        verified.log.1 = reader.position();
        let Some((changes, lost)) = found? else { break };
        verified.entries += 1;
        verified.changes += changes;
        verified.lost += lost;
        if verified.entries.is_multiple_of(REPORT_EVERY_ENTRIES) {
            progress(reader.position().0 - first.0);
        }
    }
    verified.tail = reader.tail().clone();
    Ok(reader.location())
}
