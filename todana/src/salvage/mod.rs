//! Salvage: creates a new database of the complete records in damaged files of a data directory, a
//! backup, or a database on disk.
//!
//! ```text
//! data directory, backup  --copied--> TARGET.salvage.partial, mended --records--> TARGET
//! tree on disk            --copied--> TARGET.salvage.partial, mended --records--> TARGET
//! hash on disk            --complete entries----------------------------------> TARGET
//! ```
//!
//! Invariants: damaged files are never changed. A copy of them takes as much of the disk, and is
//! removed at the end, also after a failure.

mod directory;
mod hash;
mod tree;

pub(crate) use hash::torn_tail;

use crate::backup::BACKUP;
use crate::clock::Clock;
use crate::data_directory::{
    CHECKPOINTS, LOG, Lock, StagedDirectory, beside, cannot, is_there, is_tree, lock, refuse_overlap,
};
use crate::disk::Disk;
use crate::restoration::{RestoreInto, Source, restore_records};
use crate::update_log::{LogDamage, LogTail, position_of, segment_start};
use crate::{Progress, RestoreOptions, Restored};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, Result};
use todana_engine::recent::RECENT;

/// Bytes read at once.
const PIECE: usize = 256 << 10;

/// A damaged place, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The place: file, offset, reason, and bytes of changes that are lost.
    pub finding: LogDamage,
    /// The part that was kept, and the part that was lost.
    pub outcome: String,
}

impl Damage {
    fn new(path: PathBuf, offset: u64, what: String, outcome: String) -> Damage {
        Damage { finding: LogDamage { path, offset, what, lost: 0 }, outcome }
    }
}

/// The result of a salvage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvaged {
    /// The damages found, without those that only the list of a backup shows, such as a missing
    /// last file of its log. [`verify`](crate::verify) finds these.
    pub damages: Vec<Damage>,
    /// The new database.
    pub restored: Restored,
}

/// Creates a new database of the complete records in a damaged data directory, backup, hash or tree
/// on disk that is not open, as [`restore`](crate::restore) does for intact data. Reports the
/// losses. Damaged files are not changed. Fails as `restore` does, with `Corrupt` if nothing can be
/// saved, and with `Invalid` for a hash on disk that is to become another kind.
pub fn salvage<'a>(
    disk: Arc<dyn Disk>,
    options: &RestoreOptions,
    into: impl Into<RestoreInto<'a>>,
    clock: Arc<dyn Clock>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Salvaged> {
    let into = into.into();
    refuse_overlap(options.sources(), into.place(options)?)?;
    if let Some(damaged) = hash::DamagedHash::find(&*disk, &options.from) {
        return damaged.salvage(&*disk, options, into, &*clock, progress);
    }
    if is_tree(&*disk, &options.from) {
        return tree::salvage(disk, options, into, clock, progress);
    }
    let mended = MendedCopy::create(Arc::clone(&disk), &options.from, into.place(options)?)?;
    let copied = RestoreOptions { from: mended.copy.place().into(), ..options.clone() };
    let open = |progress: &mut dyn FnMut(Progress)| Source::open(Arc::clone(&disk), &copied, progress);
    let restored = restore_records(Arc::clone(&disk), options, open, into, clock, progress);
    let original = Renamed { copy: mended.copy.place(), original: &options.from };
    let mut restored = restored.map_err(|error| original.error(&error))?;
    if let LogTail::Torn { path, .. } = &mut restored.tail {
        *path = original.path(path);
    }
    restored.refused.iter_mut().for_each(|why| *why = original.text(why));
    Ok(Salvaged { damages: mended.damages, restored })
}

/// Returns the final path of the copy beside a new database.
fn copy_path(target: &Path) -> PathBuf {
    beside(target, ".salvage")
}

/// Locks damaged files while they are copied. A backup is not locked: it is never written, and may
/// be on a read-only disk.
fn lock_source(disk: &dyn Disk, from: &Path) -> Result<Option<Lock>> {
    let is_locked = !is_there(disk, &from.join(BACKUP))? && is_there(disk, &from.join("lock"))?;
    if is_locked { lock(disk, from).map(Some) } else { Ok(None) }
}

/// Replaces the paths of the copy in messages by those of the damaged files, because the copy is
/// removed before a user reads them.
struct Renamed<'a> {
    copy: &'a Path,
    original: &'a Path,
}

impl Renamed<'_> {
    fn text(&self, of: &str) -> String {
        of.replace(&self.copy.display().to_string(), &self.original.display().to_string())
    }

    fn path(&self, path: &Path) -> PathBuf {
        path.strip_prefix(self.copy).map_or_else(|_| path.into(), |rest| self.original.join(rest))
    }

    fn error(&self, error: &Error) -> Error {
        Error::new(error.kind(), self.text(&error.to_string()))
    }

    fn damages(&self, mut damages: Vec<Damage>) -> Vec<Damage> {
        for Damage { finding, .. } in &mut damages {
            finding.path = self.path(&finding.path);
            finding.what = self.text(&finding.what);
        }
        damages
    }
}

/// A copy of a data directory or backup, mended until a database can be restored from it.
struct MendedCopy {
    copy: StagedDirectory,
    damages: Vec<Damage>,
}

impl MendedCopy {
    fn create(disk: Arc<dyn Disk>, from: &Path, target: &Path) -> Result<MendedCopy> {
        let held = lock_source(&*disk, from)?;
        let copy = StagedDirectory::create(Arc::clone(&disk), &copy_path(target))?;
        copy_database(&*disk, from, copy.place())?;
        drop(held);
        let original = Renamed { copy: copy.place(), original: from };
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
        disk.make_directory(&target).map_err(|error| cannot("make", &target, &error))?;
        let names = match disk.list(&source) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names.map_err(|error| cannot("read", &source, &error))?,
        };
        let is_ours = |name: &&String| {
            // The recent entries that a killed process left beside its log belong to the log.
            segment_start(name).or(position_of(name, ".checkpoint")).is_some() || *name == RECENT
        };
        files.extend(names.iter().filter(is_ours).map(|name| Path::new(part).join(name)));
    }
    files.iter().try_for_each(|file| copy_file(disk, &from.join(file), &to.join(file)))
}

fn copy_file(disk: &dyn Disk, source: &Path, target: &Path) -> Result<()> {
    let mut bytes = vec![0; PIECE];
    let read = disk.open(source, false).map_err(|error| cannot("read", source, &error))?;
    let written = disk.create(target).map_err(|error| cannot("write", target, &error))?;
    let mut offset = 0;
    loop {
        let len = read.read_at(offset, &mut bytes).map_err(|error| cannot("read", source, &error))?;
        if len == 0 {
            return Ok(());
        }
        let wrote = written.write_at(offset, &mut [IoSlice::new(&bytes[..len])]);
        wrote.map_err(|error| cannot("write", target, &error))?;
        offset += len as u64;
    }
}
