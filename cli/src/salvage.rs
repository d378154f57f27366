//! `todana salvage`: a new database of what is complete in a damaged one.

use crate::CommandFailure;
use crate::restore::{RestoreRequest, make};
use std::path::Path;
use std::sync::Arc;
use todana::disk::SystemDisk;
use todana::update_log::LogDamage;
use todana::{ErrorKind, Salvaged, salvage, verify};

pub(crate) const AFTER_HELP: &str = "\
SOURCE may also be a database on disk (./x.hash, ./x.tree). It is never changed.
What is lost is reported; `todana verify` tells beforehand what is damaged.

The new database is of the kind that TARGET names: a data directory, or NAME.hash,
NAME.tree. A hash on disk, and the backup of one, becomes a hash again. Beside TARGET
as much room is needed again, but for a hash on disk.

A torn end of the log, as a crash leaves it, is no damage: it is cut off when the
database is opened.

Examples:
  todana salvage /backup/monday saved
  todana salvage /var/lib/todana saved --until 2026-11-21T14:30:00Z
  todana salvage ./carts.hash ./saved.hash";

pub(crate) fn run(wanted: RestoreRequest) -> Result<(), CommandFailure> {
    make(wanted, "salvage", &mut |options, into, clock, progress| {
        // The list of a backup may know of more than can be seen in what is there.
        let damages = verify(Arc::new(SystemDisk), &options.from, &mut |_| ());
        let salvaged = salvage(Arc::new(SystemDisk), options, into, clock, progress);
        let salvaged = salvaged.map_err(|error| match error.kind() {
            ErrorKind::Busy => CommandFailure::trouble(format!("{error}; stop it first")),
            _ => error.into(),
        })?;
        tell(&salvaged, &damages.map_or(Vec::new(), |seen| seen.damages));
        Ok(salvaged.restored)
    })
}

fn tell(salvaged: &Salvaged, damages: &[String]) {
    for damage in &salvaged.damages {
        eprintln!("todana: {}: {}", finding(&damage.finding), damage.outcome);
    }
    let is_told = |damage: &&String| {
        let mut paths = salvaged.damages.iter().map(|damage| damage.finding.path.display().to_string());
        paths.any(|path| damage.starts_with(&path))
    };
    for damage in damages.iter().filter(|damage| !is_told(damage)) {
        eprintln!("todana: {damage}");
    }
}

/// What is damaged, with its place.
fn finding(finding: &LogDamage) -> String {
    let place = finding.path.display().to_string();
    // Some say it themselves, with a better offset.
    match finding.what.starts_with(&place) {
        true => finding.what.clone(),
        false => format!("{place} at offset {}: {}", finding.offset, finding.what),
    }
}

/// What to do about damage.
pub(crate) fn advice(path: &Path) -> String {
    format!("`todana salvage {} TARGET` makes a new database of what is complete", path.display())
}
