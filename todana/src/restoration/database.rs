//! Restores to a database on disk, whose records need not fit into memory.
//!
//! ```text
//! backup of records (checkpoint, log)  --> records --> engine in TARGET.partial --> TARGET
//! backup of a hash on disk (its files) --> the same files, checked as they are copied
//! ```

use super::{RecordSource, Restored, settle_clear};
use crate::backup::Manifest;
use crate::clock::{Clock, SystemClock};
use crate::data_directory::{DataDirectory, StagedDirectory, cannot};
use crate::disk::{Disk, SystemDisk};
use crate::open::{EngineOptions, Storage, hash_at};
use crate::update_log::{LogChange, LogPosition, LogTail};
use crate::versions::openings_of_restored;
use crate::{Database, Name, Progress, RestoreOptions};
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result, UnixSeconds};
use todana_engine::DiskHash;

/// Bytes read at once.
const PIECE: usize = 256 << 10;

/// Returns the path of a database on disk. Fails with `Invalid` for a database in memory.
pub(crate) fn path_of(name: &Name) -> Result<&Path> {
    if let (Some(path), false) = (&name.path, name.kind.is_in_memory()) {
        return Ok(path);
    }
    let message = format!("database \"{name}\" is in memory, where it would be gone at once");
    Err(Error::new(ErrorKind::Invalid, message))
}

/// Fails with `Invalid` if the request exceeds what a hash, or the backup of one, can provide.
/// `what` describes the source.
pub(crate) fn expect_hash(options: &RestoreOptions, name: &Name, what: &str) -> Result<()> {
    let from = options.from.display();
    let message = if name.kind.storage() != Storage::Files {
        format!(
            "{from} is {what} and becomes one again, as NAME.hash; `todana copy` makes another kind of that"
        )
    } else if options.until_ms.is_some() || options.log.is_some() {
        format!("{from} is {what}, as of one moment: it has no log")
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Invalid, message))
}

/// Creates a database at `place` of the records of a source.
pub(super) fn records_into<S: RecordSource>(
    open: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<S>,
    until_ms: Option<u64>,
    name: &Name,
    place: &Path,
    clock: Arc<dyn Clock>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Restored> {
    let options = EngineOptions { spills: true, ..EngineOptions::default() };
    let engine = name.open_engine_at(place, Arc::new(SystemDisk), options)?;
    let now = clock.now();
    let database = Database::new(engine, clock).limited_as(name);
    let source = open(progress)?;
    // Compression learns from the first values for the later ones.
    let mut told = |now: Progress| {
        database.maintain();
        progress(now);
    };
    let mut restored = source.bring_back(&database, until_ms, &mut told)?;
    let planned = database.planned_clear();
    restored.called_off = settle_clear(&database, planned, until_ms)?;
    if let Some(at) = database.planned_clear() {
        // No log exists yet that could keep the plan.
        database.replay(&LogChange::PlanClear { at: None })?;
        restored.called_off = Some(at);
    }
    let openings = source.openings_of_restored(&database, now);
    database.meet_limits(&database.worker_counters())?;
    let engine = database.engine();
    restored.records = engine.status().records;
    if let Some(tree) = engine.checkpointed() {
        tree.checkpoint(0)?;
        drop(database);
        // A tree numbers versions by the number of openings in its log.
        DataDirectory::open(Arc::new(SystemDisk), place)?.begin_log(openings)?;
        return Ok(restored);
    }
    if let Some(files) = engine.durable() {
        files.sync()?;
        files.close()?;
    }
    drop(database);
    number_anew(name, place, openings)?;
    Ok(restored)
}

/// Opens a new hash with this number of openings, applies the limits of its name, and closes it.
/// Returns the number of its records. The opening proves that the hash is valid.
pub(crate) fn number_anew(name: &Name, place: &Path, openings: u32) -> Result<u64> {
    let opened = Box::new(hash_at(place, false, openings)?);
    let database = Database::new(opened, Arc::new(SystemClock)).limited_as(name);
    database.meet_limits(&database.worker_counters())?;
    database.engine().durable().map_or(Ok(()), |files| files.close())?;
    Ok(database.engine().status().records)
}

/// Creates a hash on disk of a backup of one. The hash keeps its database ID, on which the checksum
/// of every entry depends.
pub(super) fn restore_hash(
    disk: &dyn Disk,
    manifest: &Manifest,
    options: &RestoreOptions,
    name: &Name,
    now: UnixSeconds,
    progress: &mut dyn FnMut(Progress),
) -> Result<Restored> {
    expect_hash(options, name, "a backup of a hash on disk")?;
    let staged = StagedDirectory::create(Arc::new(SystemDisk), path_of(name)?)?;
    let openings = copy_files(disk, manifest, &options.from, staged.place(), progress)?;
    // The opening proves that the files are a database.
    let records = number_anew(name, staged.place(), openings_of_restored(openings, now))?;
    staged.finish()?;
    Ok(Restored {
        records,
        has_log: false,
        position: LogPosition(0),
        time_ms: manifest.created_ms,
        entries: 0,
        lost: 0,
        refused: Vec::new(),
        ends_before: false,
        tail: LogTail::Clean,
        called_off: None,
    })
}

/// Copies and checks the files of a manifest. Returns the number of openings of the database.
fn copy_files(
    disk: &dyn Disk,
    manifest: &Manifest,
    from: &Path,
    to: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<u32> {
    disk.make_directory(to).map_err(|error| cannot("make", to, &error))?;
    let len = manifest.backed_up().len;
    let (mut done, mut bytes) = (0, vec![0; PIECE]);
    let mut openings = 0;
    for listed in &manifest.files {
        let path = listed.path(from);
        let source = disk.open(&path, false).map_err(|error| cannot("read", &path, &error))?;
        // Reading a sparse file may take forever.
        let there = source.len().map_err(|error| cannot("read", &path, &error))?;
        if there != listed.len {
            let message = format!("{}: it has {there} bytes; the backup has {}", path.display(), listed.len);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let copy_path = to.join(path.file_name().unwrap_or_default());
        let copy = disk.create(&copy_path).map_err(|error| cannot("make", &copy_path, &error))?;
        let unwritable = |error| cannot("write", &copy_path, &error);
        let (mut at, mut crc) = (0, crc32c::crc32c(&[]));
        while at < listed.len {
            let wanted = PIECE.min((listed.len - at) as usize);
            let got =
                source.read_at(at, &mut bytes[..wanted]).map_err(|error| cannot("read", &path, &error))?;
            if got == 0 {
                break;
            }
            if at == 0 {
                openings = openings.max(DiskHash::openings_of(&bytes[..got]).unwrap_or_default());
            }
            copy.write_at(at, &mut [IoSlice::new(&bytes[..got])]).map_err(unwritable)?;
            crc = crc32c::crc32c_append(crc, &bytes[..got]);
            at += got as u64;
            done += got as u64;
            progress(Progress { done, remaining: len.saturating_sub(done) });
        }
        if (at, crc) != (listed.len, listed.crc) {
            let message =
                format!("{} at offset 0: the checksum of the file differs, or it is cut off", path.display());
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        copy.sync().map_err(unwritable)?;
        // Opened normally, a damaged segment would count as torn by a crash, and all entries after
        // the damage would be lost silently.
        if listed.kind == crate::backup::Kind::HashDictionary {
            // Opening the hash reads its dictionaries.
            continue;
        }
        DiskHash::examine_segment(disk, &path, listed.position.0).map_err(|error| {
            let why = match error.kind() {
                // The file is as listed.
                ErrorKind::Corrupt => "; it was damaged before it was backed up",
                _ => "",
            };
            Error::new(error.kind(), format!("{error}{why}"))
        })?;
    }
    disk.sync_directory(to).map_err(|error| cannot("sync", to, &error))?;
    Ok(openings)
}
