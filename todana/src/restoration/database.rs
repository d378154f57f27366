//! Restores a database on disk. Its records need not fit into memory.
//!
//! ```text
//! backup of records (checkpoint, log)  --> records --> engine in TARGET.partial --> TARGET
//! backup of a hash on disk (its files) --> the same files, checked as they are copied
//! ```

use super::{RecordSource, RestorationReport, finish_planned_clear};
use crate::backup::BackupManifest;
use crate::clock::{Clock, SystemClock};
use crate::data_directory::{DataDirectory, StagedDirectory, cannot};
use crate::disk::{Disk, SystemDisk};
use crate::open::{DatabaseStorage, EngineOptions, hash_at};
use crate::table::visible_records;
use crate::update_log::{LogChange, LogPosition, LogTail};
use crate::versions::openings_of_restored;
use crate::{Database, DatabaseName, LoadProgress, RestoreOptions};
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result, UnixSeconds};
use todana_engine::DiskHash;

/// Bytes that are read at once.
const READ_LEN: usize = 256 << 10;

/// Returns the path of a database on disk. Fails with `Invalid` for a database in memory.
pub(crate) fn path_of(name: &DatabaseName) -> Result<&Path> {
    if let (Some(path), false) = (&name.path, name.kind.is_in_memory()) {
        return Ok(path);
    }
    let message =
        format!("database \"{name}\": is in memory, where the result would be lost; name a database on disk");
    Err(Error::new(ErrorKind::Invalid, message))
}

/// Fails with `Invalid` if the request cannot be fulfilled for a hash on disk or its backup: a
/// point in time, a log, or another kind of database. `what` describes the source.
pub(crate) fn expect_hash(options: &RestoreOptions, name: &DatabaseName, what: &str) -> Result<()> {
    let from = options.from.display();
    let message = if name.kind.storage() != DatabaseStorage::Files {
        format!(
            "{from}: is {what}, which can only become a hash on disk; name it NAME.hash, and `todana copy` creates another kind from it"
        )
    } else if options.until_ms.is_some() || options.log.is_some() {
        format!("{from}: is {what}, the state of one moment without a log; leave out the time and the log")
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Invalid, message))
}

/// Creates a database at `place` from the records of a source.
pub(super) fn records_into<S: RecordSource>(
    open: impl FnOnce(&mut dyn FnMut(LoadProgress)) -> Result<S>,
    until_ms: Option<u64>,
    name: &DatabaseName,
    place: &Path,
    clock: Arc<dyn Clock>,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<RestorationReport> {
    let options = EngineOptions { spills: true, ..EngineOptions::default() };
    let engine = name.open_engine_at(place, Arc::new(SystemDisk), options)?;
    let now = clock.now();
    let database = Database::new(engine, clock).with_limits_of(name);
    let source = open(progress)?;
    // Compression learns a dictionary from the first values, and uses it for the later ones.
    let mut maintain_and_report = |now: LoadProgress| {
        database.maintain();
        progress(now);
    };
    let mut restored = source.restore_into(&database, until_ms, &mut maintain_and_report)?;
    let planned = database.planned_clear();
    restored.cancelled_clear = finish_planned_clear(&database, planned, until_ms)?;
    if let Some(at) = database.planned_clear() {
        // The planned clear is removed, because no log exists yet that could store it.
        database.replay(&LogChange::PlanClear { at: None })?;
        restored.cancelled_clear = Some(at);
    }
    let openings = source.openings_of_restored(&database, now);
    database.meet_limits(&database.worker_counters())?;
    let engine = database.engine();
    restored.records = visible_records(&database);
    if let Some(tree) = engine.checkpointed() {
        tree.checkpoint(0)?;
        drop(database);
        // A tree computes its versions from the number of openings in its log.
        DataDirectory::open(Arc::new(SystemDisk), place)?.begin_log(openings)?;
        return Ok(restored);
    }
    if let Some(files) = engine.durable() {
        files.sync()?;
        files.close()?;
    }
    drop(database);
    set_openings(name, place, openings)?;
    Ok(restored)
}

/// Opens a new hash, sets its number of openings, applies the limits of its name, and closes it.
/// Returns the number of its records. A successful opening proves that the hash is valid.
pub(crate) fn set_openings(name: &DatabaseName, place: &Path, openings: u32) -> Result<u64> {
    let opened = Box::new(hash_at(place, false, openings)?);
    let database = Database::new(opened, Arc::new(SystemClock)).with_limits_of(name);
    database.meet_limits(&database.worker_counters())?;
    database.engine().durable().map_or(Ok(()), |files| files.close())?;
    Ok(database.engine().status().records)
}

/// Creates a hash on disk from the backup of a hash. It keeps its database ID, because the
/// checksums of its entries depend on this ID.
pub(super) fn restore_hash(
    disk: &dyn Disk,
    manifest: &BackupManifest,
    options: &RestoreOptions,
    name: &DatabaseName,
    now: UnixSeconds,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<RestorationReport> {
    expect_hash(options, name, "a backup of a hash on disk")?;
    let staged = StagedDirectory::create(Arc::new(SystemDisk), path_of(name)?)?;
    let openings = copy_files(disk, manifest, &options.from, staged.place(), progress)?;
    // A successful opening proves that the files are a database.
    let records = set_openings(name, staged.place(), openings_of_restored(openings, now))?;
    staged.finish()?;
    Ok(RestorationReport {
        records,
        has_log: false,
        position: LogPosition(0),
        time_ms: manifest.created_ms,
        entries: 0,
        lost: 0,
        refused: Vec::new(),
        ends_before: false,
        tail: LogTail::Clean,
        cancelled_clear: None,
    })
}

/// Copies the files that a manifest lists, and checks them. Returns the number of openings of the
/// database.
fn copy_files(
    disk: &dyn Disk,
    manifest: &BackupManifest,
    from: &Path,
    to: &Path,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<u32> {
    disk.make_directory(to).map_err(|error| cannot("create", to, &error))?;
    let len = manifest.backed_up().len;
    let (mut done, mut bytes) = (0, vec![0; READ_LEN]);
    let mut openings = 0;
    for listed in &manifest.files {
        let path = listed.path(from);
        let source = disk.open(&path, false).map_err(|error| cannot("read", &path, &error))?;
        // The length is checked first, because reading a huge sparse file would take very long.
        let there = source.len().map_err(|error| cannot("read", &path, &error))?;
        if there != listed.len {
            let message =
                format!("{}: has {there} bytes; the list of the backup says {}", path.display(), listed.len);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let copy_path = to.join(path.file_name().unwrap_or_default());
        let copy = disk.create(&copy_path).map_err(|error| cannot("create", &copy_path, &error))?;
        let unwritable = |error| cannot("write to", &copy_path, &error);
        let (mut at, mut crc) = (0, crc32c::crc32c(&[]));
        while at < listed.len {
            let wanted = READ_LEN.min((listed.len - at) as usize);
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
            progress(LoadProgress { done, remaining: len.saturating_sub(done) });
        }
        if (at, crc) != (listed.len, listed.crc) {
            let message = format!(
                "{} at offset 0: the checksum of the file differs, or the file is cut off",
                path.display()
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        copy.sync().map_err(unwritable)?;
        if listed.kind == crate::backup::BackupFileKind::HashDictionary {
            // Dictionaries are checked when the hash is opened.
            continue;
        }
        // Each segment is checked here. Otherwise the opening would take a damaged segment for one
        // that a crash has torn, and would silently lose all entries after the damage.
        DiskHash::examine_segment(disk, &path, listed.position.0).map_err(|error| {
            let why = match error.kind() {
                // The file matches the manifest, so its damage is older than the backup.
                ErrorKind::Corrupt => "; the file was damaged before the backup",
                _ => "",
            };
            Error::new(error.kind(), format!("{error}{why}"))
        })?;
    }
    disk.sync_directory(to).map_err(|error| cannot("sync", to, &error))?;
    Ok(openings)
}
