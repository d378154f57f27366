//! A new database of what is whole in a damaged backup, or in a damaged directory that is to stay as it is.
//!
//! ```text
//! files --copied--> TARGET.salvage.partial --mended--> restored from --> TARGET
//! ```
//!
//! What is damaged is not touched. The copy is mended as a directory is (`data_directory::repair`) and removed at the end,
//! whatever comes; it takes as much of the disk as the files do.

use crate::backup::{BACKUP, Manifest};
use crate::clock::Clock;
use crate::data_directory::{CHECKPOINTS, LOG, Target, cannot, is_there, lock, refuse_tree, repair_locked};
use crate::disk::Disk;
use crate::restoration::restore_from;
use crate::update_log::{Tail, position_of, segment_start};
use crate::{Database, Progress, Remedy, Repair, RestoreOptions, Restored};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// Read at once.
const PIECE: usize = 256 << 10;

/// Makes a data directory of what is whole, as [`restore`](crate::restore) does of what is undamaged. Returns what was
/// damaged, too; the paths are those of what it was made of. What a backup's list alone tells is not seen: that a file is
/// missing behind the others, for one, which [`verify`](crate::verify) finds. Fails as `restore` does, and with `Corrupt`
/// where nothing can be saved; with `Invalid` for a backup of a hash on disk, which is restored as a whole or not at all.
pub fn restore_damaged(
    disk: Arc<dyn Disk>,
    options: &RestoreOptions,
    database: &Database,
    clock: Arc<dyn Clock>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Repair, Restored)> {
    refuse_tree(&*disk, &options.from)?;
    // A list that is damaged itself is for the repair to tell of.
    if Manifest::read(&*disk, &options.from).is_ok_and(|found| found.is_some_and(|found| found.is_hash())) {
        let from = options.from.display();
        let what = "a backup of a hash on disk, which is restored as a whole or not at all";
        return Err(Error::new(ErrorKind::Invalid, format!("{from} is {what}")));
    }
    // Nobody writes to it while it is copied. A backup is written to by nobody, and may lie where nothing can be locked.
    let is_locked =
        !is_there(&*disk, &options.from.join(BACKUP))? && is_there(&*disk, &options.from.join("lock"))?;
    let held = if is_locked { Some(lock(&*disk, &options.from)?) } else { None };
    let mut name = options.target.file_name().unwrap_or_default().to_os_string();
    name.push(".salvage");
    let copy = Target::create(Arc::clone(&disk), &options.target.with_file_name(name))?;
    copy_database(&*disk, &options.from, copy.partial())?;
    drop(held);
    // Whoever is told of it knows nothing of the copy.
    let (made, from) = (copy.partial().display().to_string(), options.from.display().to_string());
    let told = |error: Error| Error::new(error.kind(), error.to_string().replace(&made, &from));
    let mut repaired = repair_locked(Arc::clone(&disk), copy.partial(), copy.lock()).map_err(told)?;
    for Remedy { finding, .. } in &mut repaired.remedies {
        if let Ok(rest) = finding.path.strip_prefix(copy.partial()) {
            finding.path = options.from.join(rest);
        }
        finding.what = finding.what.replace(&made, &from);
    }
    let mended = RestoreOptions { from: copy.partial().to_path_buf(), ..options.clone() };
    let mut restored =
        restore_from(disk, &mended, Some(copy.lock()), database, clock, progress).map_err(told)?;
    if let Tail::Torn { path, .. } = &mut restored.tail
        && let Ok(rest) = path.strip_prefix(copy.partial())
    {
        *path = options.from.join(rest);
    }
    restored.refused.iter_mut().for_each(|why| *why = why.replace(&made, &from));
    Ok((repaired, restored))
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
        let is_ours = |name: &&String| segment_start(name).or(position_of(name, ".checkpoint")).is_some();
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
