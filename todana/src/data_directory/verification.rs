//! Reading all that a data directory holds, and checking every checksum. Nothing is changed by it.

use super::{CHECKPOINTS, LOG, read_identity};
use crate::backup::{BackedUp, Manifest};
use crate::checkpoint::{Failure, Shelf};
use crate::disk::Disk;
use crate::update_log::{Position, Reader, Tail, segment_start};
use std::path::Path;
use std::sync::Arc;
use todana_core::{ErrorKind, Result};

/// What was found in a data directory.
#[derive(Clone, Debug)]
pub struct Verified {
    /// Whole checkpoints.
    pub checkpoints: u64,
    /// Records in them.
    pub records: u64,
    /// Whole entries of the log.
    pub entries: u64,
    /// Where the log begins, and where its whole entries end.
    pub log: (Position, Position),
    /// What stands behind that.
    pub tail: Tail,
    /// Bytes read.
    pub bytes: u64,
    /// What the directory is a backup of, if it is one.
    pub backup: Option<BackedUp>,
    /// What is wrong: file, offset and why, each.
    pub damages: Vec<String>,
}

/// Reads a whole data directory and checks every checksum; `progress` is told the bytes read so far, now and then. What is
/// damaged is listed, not an error; behind damage to the log nothing more of it is read. Fails with `Unavailable` if there is no
/// data directory or its files cannot be listed. The directory is not locked: while a server works on it, the end of the
/// log may look torn.
pub fn verify(disk: Arc<dyn Disk>, path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Verified> {
    let mut damages = Vec::new();
    let manifest = match Manifest::read(&*disk, path) {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            damages.push(error.to_string());
            None
        }
        manifest => manifest?,
    };
    let identity = read_identity(&*disk, path)?;
    let mut verified = Verified {
        checkpoints: 0,
        records: 0,
        entries: 0,
        log: Default::default(),
        tail: Tail::Clean,
        bytes: 0,
        backup: manifest.as_ref().map(Manifest::backed_up),
        damages,
    };
    let log = path.join(LOG);
    let shelf = Shelf::new(Arc::clone(&disk), path.join(CHECKPOINTS), log.clone(), identity);
    let mut needed = None;
    for start in shelf.list()? {
        let reader = match shelf.open(start) {
            Ok(reader) => reader,
            Err(why) => {
                verified.damages.push(why);
                continue;
            }
        };
        let before = verified.bytes;
        match reader.verify(&mut |done| progress(before + done)) {
            Ok(()) => {
                verified.checkpoints += 1;
                verified.records += reader.footer.records;
                needed = needed.max(Some((reader.footer.until, shelf.path_of(start))));
            }
            Err(Failure::Damaged(why)) => verified.damages.push(why),
            Err(Failure::Refused(error)) => return Err(error),
        }
        verified.bytes += reader.len();
    }
    let names = disk.list(&log).map_err(|error| super::cannot("read", &log, &error))?;
    let first = names.iter().filter_map(|name| segment_start(name)).min().unwrap_or_default();
    verified.log = (first, first);
    match read_log(&disk, &log, first, identity, &mut verified, progress) {
        Err(error) => verified.damages.push(error.to_string()),
        Ok(place) => {
            if let Some((Position(until), name)) = needed.filter(|(until, _)| verified.log.1 < *until) {
                let (Position(end), name) = (verified.log.1, name.display());
                let why =
                    format!("{place}: the update log ends at position {end}, but {name} needs it to {until}");
                verified.damages.push(why);
            }
        }
    }
    if let Some(manifest) = &manifest {
        check_backup(&*disk, path, manifest, &mut verified, progress);
    }
    Ok(verified)
}

/// What a backup promises beyond what any data directory does: these very bytes, and a log that ends where it says.
fn check_backup(
    disk: &dyn Disk,
    path: &Path,
    manifest: &Manifest,
    verified: &mut Verified,
    progress: &mut dyn FnMut(u64),
) {
    let before = verified.bytes;
    for (path, what) in manifest.check(disk, path, &mut |done| progress(before + done)) {
        let name = path.display().to_string();
        // What has been found already is told with a better place.
        if !verified.damages.iter().any(|damage| damage.starts_with(&name)) {
            verified.damages.push(format!("{name} {what}"));
        }
    }
    let (_, end) = verified.log;
    if verified.damages.is_empty() && (end != manifest.end || verified.tail != Tail::Clean) {
        let message = format!("{}: its log ends at {}, not at {}", path.display(), end.0, manifest.end.0);
        verified.damages.push(message);
    }
}

/// Returns where it ends: file and offset.
fn read_log(
    disk: &Arc<dyn Disk>,
    log: &Path,
    first: Position,
    identity: crate::update_log::Identity,
    verified: &mut Verified,
    progress: &mut dyn FnMut(u64),
) -> Result<String> {
    const TELL_EVERY: u64 = 1 << 12;
    let before = verified.bytes;
    let mut reader = Reader::open(Arc::clone(disk), log, identity, first)?;
    loop {
        let more = reader.next_entry().map(|entry| entry.is_some());
        verified.log.1 = reader.position();
        verified.bytes = before + reader.position().0 - first.0;
        if !more? {
            break;
        }
        verified.entries += 1;
        if verified.entries.is_multiple_of(TELL_EVERY) {
            progress(verified.bytes);
        }
    }
    verified.tail = reader.tail().clone();
    progress(verified.bytes);
    Ok(reader.place())
}
