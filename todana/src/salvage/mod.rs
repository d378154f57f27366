//! Salvage: creates a new database from the complete records in damaged files. The source is a data
//! directory, a backup, or a database on disk.
//!
//! ```text
//! data directory, backup  --copied--> TARGET.salvage.partial, mended --records--> TARGET
//! tree on disk            --copied--> TARGET.salvage.partial, mended --records--> TARGET
//! hash on disk            --complete entries----------------------------------> TARGET
//! ```
//!
//! Invariants: the damaged files are never changed. The copy needs as much disk space as they do,
//! and is removed at the end, even after a failure.

mod directory;
mod hash;
mod tree;

pub(crate) use hash::torn_tail;
pub(crate) use tree::damage_text;

use crate::backup::BACKUP;
use crate::clock::Clock;
use crate::data_directory::{
    CHECKPOINTS, DirectoryLock, LOG, StagedDirectory, cannot, is_there, lock, refuse_overlap, salvage_copy,
};
use crate::disk::Disk;
use crate::restoration::{RestorationSource, RestoreInto, restore_records};
use crate::update_log::{LogDamage, LogTail, position_of, segment_start};
use crate::{DatabaseKind, LoadProgress, RestorationReport, RestoreOptions};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, Result};
use todana_engine::recent::RECENT;

/// Bytes that are copied at once.
const READ_LEN: usize = 256 << 10;

/// A damaged place, and the result of salvaging it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDamage {
    /// The place: file, offset, reason, and bytes of changes that are lost.
    pub finding: LogDamage,
    /// States which part was kept and which part was lost.
    pub outcome: String,
}

impl FoundDamage {
    fn new(path: PathBuf, offset: u64, what: String, outcome: String) -> FoundDamage {
        FoundDamage { finding: LogDamage { path, offset, what, lost: 0 }, outcome }
    }
}

/// The result of a salvage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SalvageReport {
    /// The damages found. Damage that only the manifest of a backup shows, such as a missing last
    /// file of its log, is not included; [`verify`](crate::verify) finds it.
    pub damages: Vec<FoundDamage>,
    /// The new database.
    pub restored: RestorationReport,
}

/// Creates a new database from the complete records of a damaged data directory, backup, hash or
/// tree on disk that is not open, as [`restore`](crate::restore) does from intact files. Reports
/// the losses. Does not change the damaged files. Fails as `restore` does, with `Corrupt` if
/// nothing can be saved, and with `Invalid` if a hash on disk should become another kind.
pub fn salvage<'a>(
    disk: Arc<dyn Disk>,
    options: &RestoreOptions,
    into: impl Into<RestoreInto<'a>>,
    clock: Arc<dyn Clock>,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<SalvageReport> {
    let into = into.into();
    refuse_overlap(options.sources(), into.place(options)?)?;
    if let Some(damaged) = hash::DamagedHash::find(&*disk, &options.from) {
        return damaged.salvage(&*disk, options, into, &*clock, progress);
    }
    if let Some(kind) = DatabaseKind::at(&*disk, &options.from) {
        return tree::salvage(kind, disk, options, into, clock, progress);
    }
    let mended = MendedCopy::create(Arc::clone(&disk), &options.from, into.place(options)?)?;
    let copied = RestoreOptions { from: mended.copy.place().into(), ..options.clone() };
    let open = |progress: &mut dyn FnMut(LoadProgress)| {
        RestorationSource::open(Arc::clone(&disk), &copied, progress)
    };
    let restored = restore_records(Arc::clone(&disk), options, open, into, clock, progress);
    let original = PathTranslation { copy: mended.copy.place(), original: &options.from };
    let mut restored = restored.map_err(|error| original.error(&error))?;
    if let LogTail::Torn { path, .. } = &mut restored.tail {
        *path = original.path(path);
    }
    restored.refused.iter_mut().for_each(|why| *why = original.text(why));
    Ok(SalvageReport { damages: mended.damages, restored })
}

/// Locks the damaged files while they are copied. A backup is not locked, because nothing writes to
/// it and it may be on a read-only disk.
fn lock_source(disk: &dyn Disk, from: &Path) -> Result<Option<DirectoryLock>> {
    let is_locked = !is_there(disk, &from.join(BACKUP))? && is_there(disk, &from.join("lock"))?;
    if is_locked { lock(disk, from).map(Some) } else { Ok(None) }
}

/// Replaces the paths of the copy in messages by the paths of the damaged files. The copy no longer
/// exists when a user reads the messages.
struct PathTranslation<'a> {
    copy: &'a Path,
    original: &'a Path,
}

impl PathTranslation<'_> {
    fn text(&self, of: &str) -> String {
        of.replace(&self.copy.display().to_string(), &self.original.display().to_string())
    }

    fn path(&self, path: &Path) -> PathBuf {
        path.strip_prefix(self.copy).map_or_else(|_| path.into(), |rest| self.original.join(rest))
    }

    fn error(&self, error: &Error) -> Error {
        Error::new(error.kind(), self.text(&error.to_string()))
    }

    fn damages(&self, mut damages: Vec<FoundDamage>) -> Vec<FoundDamage> {
        for FoundDamage { finding, .. } in &mut damages {
            finding.path = self.path(&finding.path);
            finding.what = self.text(&finding.what);
        }
        damages
    }
}

/// The mended copy of a data directory or backup, from which a database can be restored.
struct MendedCopy {
    copy: StagedDirectory,
    damages: Vec<FoundDamage>,
}

impl MendedCopy {
    fn create(disk: Arc<dyn Disk>, from: &Path, target: &Path) -> Result<MendedCopy> {
        let held = lock_source(&*disk, from)?;
        let copy = StagedDirectory::create(Arc::clone(&disk), &salvage_copy(target))?;
        copy_database(&*disk, from, copy.place())?;
        drop(held);
        let original = PathTranslation { copy: copy.place(), original: from };
        let damages = directory::mend_copy(disk, copy.place());
        let damages = original.damages(damages.map_err(|error| original.error(&error))?);
        Ok(MendedCopy { copy, damages })
    }
}

/// Copies the identity, log and checkpoints of a database, and nothing else.
fn copy_database(disk: &dyn Disk, from: &Path, to: &Path) -> Result<()> {
    let mut files = Vec::new();
    if is_there(disk, &from.join("identity"))? {
        files.push(PathBuf::from("identity"));
    }
    for part in [LOG, CHECKPOINTS] {
        let (source, target) = (from.join(part), to.join(part));
        disk.make_directory(&target).map_err(|error| cannot("create", &target, &error))?;
        let names = match disk.list(&source) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names.map_err(|error| cannot("read", &source, &error))?,
        };
        let is_ours = |name: &&String| {
            // The file `recent` contains the newest entries of a process that was killed. They
            // belong to the log.
            segment_start(name).or(position_of(name, ".checkpoint")).is_some() || *name == RECENT
        };
        files.extend(names.iter().filter(is_ours).map(|name| Path::new(part).join(name)));
    }
    files.iter().try_for_each(|file| copy_file(disk, &from.join(file), &to.join(file)))
}

fn copy_file(disk: &dyn Disk, source: &Path, target: &Path) -> Result<()> {
    let mut bytes = vec![0; READ_LEN];
    let read = disk.open(source, false).map_err(|error| cannot("read", source, &error))?;
    let written = disk.create(target).map_err(|error| cannot("write to", target, &error))?;
    let mut offset = 0;
    loop {
        let len = read.read_at(offset, &mut bytes).map_err(|error| cannot("read", source, &error))?;
        if len == 0 {
            return Ok(());
        }
        let wrote = written.write_at(offset, &mut [IoSlice::new(&bytes[..len])]);
        wrote.map_err(|error| cannot("write to", target, &error))?;
        offset += len as u64;
    }
}
