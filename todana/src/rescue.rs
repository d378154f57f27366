//! A new database of what is whole in a damaged backup, or in a damaged directory that is to stay as it is.
//!
//! ```text
//! files --copied--> TARGET.salvage.partial --mended--> restored from --> TARGET
//! ```
//!
//! What is damaged is not touched. The copy is mended as a directory is (`data_directory::repair`) and removed at the end,
//! whatever comes; it takes as much of the disk as the files do. Of a hash on disk no copy is needed: see `hash`.

mod hash;

use crate::backup::BACKUP;
use crate::clock::Clock;
use crate::data_directory::{
    CHECKPOINTS, LOG, Lock, Target, cannot, is_there, lock, refuse_tree, repair_locked,
};
use crate::disk::Disk;
use crate::restoration::restore_from;
use crate::update_log::{Tail, position_of, segment_start};
use crate::{Database, Progress, Remedy, Repair, RestoreOptions, Restored};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};
use todana_engine::recent::RECENT;

use hash::Ruins;
pub use hash::{repair_hash, restore_damaged_database};

/// Read at once.
const PIECE: usize = 256 << 10;

/// Makes a data directory of what is whole, as [`restore`](crate::restore) does of what is undamaged. Returns what was
/// damaged, too; the paths are those of what it was made of. What a backup's list alone tells is not seen: that a file is
/// missing behind the others, for one, which [`verify`](crate::verify) finds. Fails as `restore` does, and with `Corrupt`
/// where nothing can be saved; with `Invalid` for a backup of a hash on disk, of which [`restore_damaged_database`] makes one.
pub fn restore_damaged(
    disk: Arc<dyn Disk>,
    options: &RestoreOptions,
    database: &Database,
    clock: Arc<dyn Clock>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Repair, Restored)> {
    refuse_tree(&*disk, &options.from)?;
    if let Some(Ruins { .. }) = Ruins::find(&*disk, &options.from) {
        let from = options.from.display();
        let message = format!("{from} is of a hash on disk and becomes one again: name it NAME.hash");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let mended = Mended::copy(Arc::clone(&disk), &options.from, &options.target)?;
    let restored = mended.restore(|from, lock| {
        let options = RestoreOptions { from, ..options.clone() };
        restore_from(disk, &options, Some(lock), database, clock, progress)
    })?;
    Ok((mended.repaired, restored))
}

/// What is whole of the records of a database in memory or of a tree, beside what is to be made of it.
struct Mended {
    from: PathBuf,
    copy: Target,
    repaired: Repair,
}

impl Mended {
    fn copy(disk: Arc<dyn Disk>, from: &Path, target: &Path) -> Result<Mended> {
        // Nobody writes to it while it is copied. A backup is written to by nobody, and may lie where nothing can be locked.
        let is_locked = !is_there(&*disk, &from.join(BACKUP))? && is_there(&*disk, &from.join("lock"))?;
        let held = if is_locked { Some(lock(&*disk, from)?) } else { None };
        let mut name = target.file_name().unwrap_or_default().to_os_string();
        name.push(".salvage");
        let copy = Target::create(Arc::clone(&disk), &target.with_file_name(name))?;
        copy_database(&*disk, from, copy.partial())?;
        drop(held);
        let mut mended = Mended { from: from.to_path_buf(), copy, repaired: Repair::default() };
        let repaired = repair_locked(Arc::clone(&disk), mended.copy.partial(), mended.copy.lock());
        let mut repaired = repaired.map_err(|error| mended.told(&error))?;
        for Remedy { finding, .. } in &mut repaired.remedies {
            finding.path = mended.original(&finding.path);
            finding.what = mended.text(&finding.what);
        }
        mended.repaired = repaired;
        Ok(mended)
    }

    /// Restores from the copy, whose lock is held.
    fn restore(&self, restore: impl FnOnce(PathBuf, Lock) -> Result<Restored>) -> Result<Restored> {
        let restored = restore(self.copy.partial().to_path_buf(), self.copy.lock());
        let mut restored = restored.map_err(|error| self.told(&error))?;
        if let Tail::Torn { path, .. } = &mut restored.tail {
            *path = self.original(path);
        }
        restored.refused.iter_mut().for_each(|why| *why = self.text(why));
        Ok(restored)
    }

    /// Whoever is told of it knows nothing of the copy.
    fn text(&self, of: &str) -> String {
        of.replace(&self.copy.partial().display().to_string(), &self.from.display().to_string())
    }

    fn told(&self, error: &Error) -> Error {
        Error::new(error.kind(), self.text(&error.to_string()))
    }

    fn original(&self, path: &Path) -> PathBuf {
        path.strip_prefix(self.copy.partial()).map_or_else(|_| path.into(), |rest| self.from.join(rest))
    }
}

/// Copies the files of a database, and nothing else.
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
            // Writes that a killed process has left beside its log belong to it.
            segment_start(name).or(position_of(name, ".checkpoint")).is_some() || *name == RECENT
        };
        files.extend(names.iter().filter(is_ours).map(|name| Path::new(part).join(name)));
    }
    let mut bytes = vec![0; PIECE];
    for file in files {
        let (source, target) = (from.join(&file), to.join(&file));
        let read = disk.open(&source, false).map_err(|error| cannot("read", &source, &error))?;
        let written = disk.create(&target).map_err(|error| cannot("write", &target, &error))?;
        let mut offset = 0;
        loop {
            let len = read.read_at(offset, &mut bytes).map_err(|error| cannot("read", &source, &error))?;
            if len == 0 {
                break;
            }
            let wrote = written.write_at(offset, &mut [IoSlice::new(&bytes[..len])]);
            wrote.map_err(|error| cannot("write", &target, &error))?;
            offset += len as u64;
        }
    }
    Ok(())
}
