//! `todana salvage`: copies the intact records of a damaged database to a new database.

use crate::CommandFailure;
use crate::restore::{RestoreRequest, create};
use std::path::Path;
use std::sync::Arc;
use todana::disk::SystemDisk;
use todana::update_log::LogDamage;
use todana::{ErrorKind, SalvageReport, salvage, verify};

pub(crate) const AFTER_HELP: &str = "\
SOURCE may also be a database on disk (./x.hash, ./x.tree). It is never changed.
Lost data is reported; `todana verify` reports the damage beforehand.

TARGET determines the kind of the new database: a data directory, or NAME.hash,
NAME.tree. A hash on disk, or a backup of one, becomes a hash again. Except for a
hash on disk, the work needs twice the space of TARGET.

A torn end of the log after a crash is not damage: opening the database cuts it
off.

Examples:
  todana salvage /backup/monday saved
  todana salvage /var/lib/todana saved --until 2026-11-21T14:30:00Z
  todana salvage ./carts.hash ./saved.hash";

pub(crate) fn run(wanted: RestoreRequest) -> Result<(), CommandFailure> {
    create(wanted, "salvage", &mut |options, into, clock, progress| {
        // The manifest of a backup may show damage that its files alone do not show.
        let damages = verify(Arc::new(SystemDisk), &options.from, &mut |_| ());
        let salvaged = salvage(Arc::new(SystemDisk), options, into, clock, progress);
        let salvaged = salvaged.map_err(|error| match error.kind() {
            ErrorKind::Busy => CommandFailure::trouble(format!("{error}; stop it first")),
            _ => error.into(),
        })?;
        report(&salvaged, &damages.map_or(Vec::new(), |seen| seen.damages));
        Ok(salvaged.restored)
    })
}

fn report(salvaged: &SalvageReport, damages: &[String]) {
    for damage in &salvaged.damages {
        eprintln!("todana: {}: {}", finding(&damage.finding), damage.outcome);
    }
    let is_reported = |damage: &&String| {
        let mut paths = salvaged.damages.iter().map(|damage| damage.finding.path.display().to_string());
        paths.any(|path| damage.starts_with(&path))
    };
    for damage in damages.iter().filter(|damage| !is_reported(damage)) {
        eprintln!("todana: {damage}");
    }
}

/// Returns a damage as a line that starts with the place.
fn finding(finding: &LogDamage) -> String {
    let place = finding.path.display().to_string();
    // Some descriptions start with the path themselves, and have a more exact offset.
    match finding.what.starts_with(&place) {
        true => finding.what.clone(),
        false => format!("{place} at offset {}: {}", finding.offset, finding.what),
    }
}

/// Returns the advice to salvage a damaged database.
pub(crate) fn advice(path: &Path) -> String {
    format!("`todana salvage {} TARGET` recovers the intact records into a new database", path.display())
}
