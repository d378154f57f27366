//! Restoring to a database on disk: its records need not fit into memory.
//!
//! ```text
//! backup of records (checkpoint, log)  --> records --> engine in TARGET.partial --> TARGET
//! backup of a hash on disk (its files) --> the same files, checked as they are copied
//! ```

use super::{Restored, Source, settle_clear};
use crate::backup::Manifest;
use crate::clock::Clock;
use crate::data_directory::cannot;
use crate::db::{Draft, TREE};
use crate::disk::{Disk, SystemDisk};
use crate::update_log::{Change, Position, Tail};
use crate::{Database, Kind, Name, Progress, RestoreOptions};
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use todana_core::{Engine, Error, ErrorKind, Result};
use todana_engine::{DiskHash, DiskHashOptions, DiskTree, DiskTreeOptions};

/// Read at once.
const PIECE: usize = 256 << 10;

/// Makes a database on disk, of the kind that its name says, of a backup or of a data directory that no server has open. `options.target`
/// has no meaning: the name says where. It is a new one, as with [`restore`](crate::restore), with which it shares what it refuses, but that a hash made of the backup of one keeps its
/// database id, and that versions are numbered by its own openings (docs/format/backup.md); nothing stays of one that fails.
/// Fails with `Invalid` for a name in memory, and for a backup of a hash on disk where the name is not one: such a backup
/// holds the hash's files. Such a backup is restored as a whole or not at all: fails with `Corrupt` if one entry of it is damaged.
pub fn restore_database(
    options: &RestoreOptions,
    name: &Name,
    clock: Arc<dyn Clock>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Restored> {
    let invalid = |message: String| Error::new(ErrorKind::Invalid, message);
    let (Some(path), Kind::DiskHash | Kind::DiskTree) = (&name.path, name.kind) else {
        return Err(invalid(format!("database \"{name}\" is in memory, where it would be gone at once")));
    };
    let disk = Arc::new(SystemDisk);
    let from = options.from.display();
    let manifest = Manifest::read(&*disk, &options.from)?.filter(Manifest::is_hash);
    if manifest.is_some() && name.kind != Kind::DiskHash {
        return Err(invalid(format!(
            "{from} is a backup of a hash on disk and becomes one again, as NAME.hash; `todana copy` makes another kind of that"
        )));
    }
    if manifest.is_some() && (options.until_ms.is_some() || options.log.is_some()) {
        return Err(invalid(format!(
            "{from} is a backup of a hash on disk, as of one moment: it has no log"
        )));
    }
    let draft = Draft::create(path)?;
    let restored = match manifest {
        Some(manifest) => files(&*disk, &manifest, &options.from, draft.place(), progress)?,
        None => {
            let engine: Box<dyn Engine> = match name.kind {
                Kind::DiskHash => Box::new(DiskHash::open(draft.place(), DiskHashOptions::default())?),
                _ => Box::new(DiskTree::open(&draft.place().join(TREE), DiskTreeOptions::default())?),
            };
            records(options, Database::new(engine, clock), progress)?
        }
    };
    draft.finish()?;
    Ok(restored)
}

fn records(
    options: &RestoreOptions,
    database: Database,
    progress: &mut dyn FnMut(Progress),
) -> Result<Restored> {
    let source = Source::open(Arc::new(SystemDisk), options, None, progress)?;
    let mut restored = source.bring_back(&database, options.until_ms, progress)?;
    let planned = database.planned_clear();
    restored.called_off = settle_clear(&database, planned, options.until_ms)?;
    if let Some(at) = database.planned_clear() {
        // There is no log yet that could keep the plan.
        database.replay(&Change::PlanClear { at: None })?;
        restored.called_off = Some(at);
    }
    let engine = database.engine();
    restored.records = engine.status().records;
    if let Some(tree) = engine.checkpointed() {
        tree.checkpoint(0)?;
    }
    if let Some(files) = engine.durable() {
        files.sync()?;
        files.close()?;
    }
    Ok(restored)
}

/// Copies the files that a manifest lists, and opens what has been made: then it is known to be a database. It keeps the database id, which the
/// checksum of every entry depends on.
fn files(
    disk: &dyn Disk,
    manifest: &Manifest,
    from: &Path,
    to: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Restored> {
    disk.make_directory(to).map_err(|error| cannot("make", to, &error))?;
    let len = manifest.backed_up().len;
    let (mut done, mut bytes) = (0, vec![0; PIECE]);
    for listed in &manifest.files {
        let path = listed.path(from);
        let source = disk.open(&path, false).map_err(|error| cannot("read", &path, &error))?;
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
        // Opened as what a crash has left, it would pass for whole without all that stands behind the damage.
        DiskHash::examine_segment(disk, &path, listed.position.0).map_err(|error| {
            let why = match error.kind() {
                // The file is as the list says.
                ErrorKind::Corrupt => {
                    "; it was damaged before it was backed up, and is restored as a whole or not at all"
                }
                _ => "",
            };
            Error::new(error.kind(), format!("{error}{why}"))
        })?;
    }
    disk.sync_directory(to).map_err(|error| cannot("sync", to, &error))?;
    let opened = DiskHash::open(to, DiskHashOptions::default())?;
    let records = opened.status().records;
    todana_core::Durable::close(&opened)?;
    Ok(Restored {
        records,
        has_log: false,
        position: Position(0),
        time_ms: manifest.made_ms,
        entries: 0,
        lost: 0,
        refused: Vec::new(),
        ends_before: false,
        tail: Tail::Clean,
        called_off: None,
    })
}
