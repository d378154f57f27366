//! Salvages a damaged hash on disk, or the backup of one: its complete entries are replayed into a
//! new hash.
//!
//! ```text
//! backup, or x.hash --complete entries--> TARGET.partial --> TARGET
//! ```

use super::Damage;
use crate::backup::{BACKUP, HASH, Manifest};
use crate::clock::Clock;
use crate::data_directory::{StagedDirectory, is_there, lock};
use crate::disk::{Disk, SystemDisk};
use crate::open::contents::{holds_hash, is_segment};
use crate::open::hash_at;
use crate::restoration::{RestoreInto, expect_hash, number_anew, path_of};
use crate::update_log::{LogDamage, LogPosition, LogTail};
use crate::versions::openings_of_restored;
use crate::{Name, Progress, RestoreOptions, Restored, Salvaged};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{DurableEngine, Engine, Error, ErrorKind, Result, UnixSeconds};
use todana_engine::{DiskHash, HashDamage, HashSalvage};

/// Returns the tail that a crash left at the end of a hash.
pub(crate) fn torn_tail(torn: HashDamage) -> LogTail {
    LogTail::Torn { path: torn.path, offset: torn.offset, len: torn.len }
}

/// The files of a hash, damaged or not.
pub(super) struct DamagedHash {
    from: PathBuf,
    /// The directory of the segments.
    segments: PathBuf,
    /// The list of a backup, or the reason why it is unreadable; `None` for a database.
    list: Option<Result<Manifest>>,
}

impl DamagedHash {
    /// Returns `None` if the directory holds no hash. Unreadable files are reported later.
    pub(super) fn find(disk: &dyn Disk, from: &Path) -> Option<DamagedHash> {
        let list = Manifest::read(disk, from).transpose();
        let has_segments = |directory: &Path| {
            let names = disk.list(directory).unwrap_or_default();
            names.iter().any(|name| is_segment(name))
        };
        let within = from.join(HASH);
        let is_backup = match &list {
            Some(Ok(manifest)) => manifest.is_hash(),
            // The list itself may be damaged or missing.
            _ => has_segments(&within),
        };
        let segments = if is_backup { within } else { from.to_path_buf() };
        let is_hash = is_backup || (list.is_none() && holds_hash(disk, from));
        is_hash.then(|| DamagedHash { from: from.into(), segments, list })
    }

    /// Creates a new hash of the complete entries.
    pub(super) fn salvage(
        &self,
        disk: &dyn Disk,
        options: &RestoreOptions,
        into: RestoreInto<'_>,
        clock: &dyn Clock,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Salvaged> {
        let RestoreInto::Disk(name) = into else {
            let from = self.from.display();
            let message = format!("{from} is of a hash on disk and becomes one again: name it NAME.hash");
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        let what = if self.list.is_none() { "a hash on disk" } else { "a backup of a hash on disk" };
        expect_hash(options, name, what)?;
        let staged = StagedDirectory::create(Arc::new(SystemDisk), path_of(name)?)?;
        let salvaged = self.salvage_to(disk, staged.place(), name, clock.now(), progress)?;
        staged.finish()?;
        Ok(salvaged)
    }

    fn salvage_to(
        &self,
        disk: &dyn Disk,
        to: &Path,
        name: &Name,
        now: UnixSeconds,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Salvaged> {
        let is_locked = self.list.is_none() && is_there(disk, &self.from.join("lock"))?;
        let _held = if is_locked { Some(lock(disk, &self.from)?) } else { None };
        let hash = hash_at(to, name.tuning.compress, 0)?;
        let found = self.read_into(disk, &hash, progress)?;
        hash.sync()?;
        let saved = hash.status().records;
        hash.close()?;
        drop(hash);
        let records = number_anew(name, to, openings_of_restored(found.openings, now))?;
        let mut damages = self.damages_of(&found);
        let mut time_ms = 0;
        match &self.list {
            Some(Ok(manifest)) => {
                time_ms = manifest.created_ms;
                self.check_list(disk, manifest, saved, &mut damages);
            }
            Some(Err(error)) => {
                let outcome = "left out: the files are taken as they lie there".into();
                damages.insert(0, Damage::new(self.from.join(BACKUP), 0, error.to_string(), outcome));
            }
            None => {}
        }
        let restored = Restored {
            records,
            has_log: false,
            position: LogPosition(0),
            time_ms,
            entries: found.entries,
            lost: 0,
            refused: Vec::new(),
            ends_before: false,
            tail: found.torn.map_or(LogTail::Clean, torn_tail),
            called_off: None,
        };
        Ok(Salvaged { damages, restored })
    }

    /// Adds the findings of the list: files that differ from it, and the number of missing records.
    fn check_list(&self, disk: &dyn Disk, manifest: &Manifest, records: u64, damages: &mut Vec<Damage>) {
        for (path, what) in manifest.check(disk, &self.from, &mut |_| ()) {
            if !damages.iter().any(|damage| damage.finding.path == path) {
                let outcome = "left out: what can be told of it is kept".into();
                let what = format!("{} {what}", path.display());
                damages.push(Damage::new(path, 0, what, outcome));
            }
        }
        let missing = manifest.records.saturating_sub(records);
        if missing > 0 {
            let what = format!("there were {} records, by the list of the backup", manifest.records);
            let outcome = format!("{records} of them are saved, {missing} are lost");
            damages.push(Damage::new(self.from.clone(), 0, what, outcome));
        }
    }

    fn read_into(
        &self,
        disk: &dyn Disk,
        into: &dyn Engine,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<HashSalvage> {
        let len = |name: &String| disk.open(&self.segments.join(name), false).and_then(|file| file.len());
        let names = disk.list(&self.segments).unwrap_or_default();
        let total: u64 = names.iter().filter(|name| is_segment(name)).flat_map(len).sum();
        // A file of a backup is as listed, or damaged.
        let may_be_torn = self.list.is_none();
        DiskHash::salvage(disk, &self.segments, may_be_torn, Some(into), &mut |done| {
            progress(Progress { done, remaining: total.saturating_sub(done) });
        })
    }

    fn damages_of(&self, found: &HashSalvage) -> Vec<Damage> {
        let of_each = found.damages.iter().map(|damage| {
            let (lost, outcome) = match damage.is_mended {
                true => (0, "mended".into()),
                false => (damage.len, format!("left out, {} bytes", damage.len)),
            };
            let (path, offset, what) = (damage.path.clone(), damage.offset, damage.what.clone());
            Damage { finding: LogDamage { path, offset, what, lost }, outcome }
        });
        let mut damages: Vec<Damage> = of_each.collect();
        let mut add = |what| damages.push(Damage::new(self.segments.clone(), 0, what, "left out".into()));
        let listed = found.damages.len() as u64;
        if found.damaged > listed {
            add(format!("there are {} more damages", found.damaged - listed));
        }
        if found.damaged > found.mended {
            let records = match found.lost_records {
                1 => "1 record is lost".into(),
                count => format!("{count} records are lost"),
            };
            let unclear = match found.unclear {
                0 => String::new(),
                places => format!(
                    "; of {places} of these places it cannot be told what was in them: more may be lost, and what was replaced or removed there may be back"
                ),
            };
            add(format!(
                "{} bytes cannot be used; by what can be told of them {records}{unclear}",
                found.lost_bytes
            ));
        }
        damages
    }
}
