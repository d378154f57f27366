//! Salvages a damaged hash on disk, or the backup of a hash: replays its complete entries into a
//! new hash.
//!
//! ```text
//! backup, or x.hash --complete entries--> TARGET.partial --> TARGET
//! ```

use super::FoundDamage;
use crate::backup::{BACKUP, BackupManifest, HASH};
use crate::clock::Clock;
use crate::data_directory::{StagedDirectory, is_there, lock};
use crate::disk::{Disk, SystemDisk};
use crate::open::contents::{holds_hash, is_segment};
use crate::open::hash_at;
use crate::restoration::{RestoreInto, expect_hash, path_of, set_openings};
use crate::update_log::{LogDamage, LogPosition, LogTail};
use crate::versions::openings_of_restored;
use crate::{DatabaseName, LoadProgress, RestorationReport, RestoreOptions, SalvageReport};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{DurableEngine, Engine, Error, ErrorKind, Result, UnixSeconds};
use todana_engine::{DiskHash, HashDamage, HashSalvage};

/// Converts the torn end of a hash's last segment.
pub(crate) fn torn_tail(torn: HashDamage) -> LogTail {
    LogTail::Torn { path: torn.path, offset: torn.offset, len: torn.len }
}

/// The files of a hash, damaged or not.
pub(super) struct DamagedHash {
    from: PathBuf,
    /// The directory of the segments.
    segments: PathBuf,
    /// The manifest of a backup, or the reason why it is unreadable. `None` if the hash is not a
    /// backup.
    list: Option<Result<BackupManifest>>,
}

impl DamagedHash {
    /// Finds a hash or its backup in a directory. Returns `None` if the directory holds neither.
    /// Unreadable files are reported later.
    pub(super) fn find(disk: &dyn Disk, from: &Path) -> Option<DamagedHash> {
        let list = BackupManifest::read(disk, from).transpose();
        let has_segments = |directory: &Path| {
            let names = disk.list(directory).unwrap_or_default();
            names.iter().any(|name| is_segment(name))
        };
        let within = from.join(HASH);
        let is_backup = match &list {
            Some(Ok(manifest)) => manifest.is_hash(),
            // The manifest may be damaged or missing, so the segments decide.
            _ => has_segments(&within),
        };
        let segments = if is_backup { within } else { from.to_path_buf() };
        let is_hash = is_backup || (list.is_none() && holds_hash(disk, from));
        is_hash.then(|| DamagedHash { from: from.into(), segments, list })
    }

    /// Creates a new hash from the complete entries.
    pub(super) fn salvage(
        &self,
        disk: &dyn Disk,
        options: &RestoreOptions,
        into: RestoreInto<'_>,
        clock: &dyn Clock,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<SalvageReport> {
        let RestoreInto::Disk(name) = into else {
            let from = self.from.display();
            let message = format!(
                "{from}: is a hash on disk or a backup of one, which can only become a hash on disk; name it NAME.hash"
            );
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
        name: &DatabaseName,
        now: UnixSeconds,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<SalvageReport> {
        let is_locked = self.list.is_none() && is_there(disk, &self.from.join("lock"))?;
        let _held = if is_locked { Some(lock(disk, &self.from)?) } else { None };
        let hash = hash_at(to, name.tuning.compress, 0)?;
        let found = self.read_into(disk, &hash, progress)?;
        hash.sync()?;
        let saved = hash.status().records;
        hash.close()?;
        drop(hash);
        let records = set_openings(name, to, openings_of_restored(found.openings, now))?;
        let mut damages = self.damages_of(&found);
        let mut time_ms = 0;
        match &self.list {
            Some(Ok(manifest)) => {
                time_ms = manifest.created_ms;
                self.check_list(disk, manifest, saved, &mut damages);
            }
            Some(Err(error)) => {
                let outcome = "left out; the files are read without the list".into();
                damages.insert(0, FoundDamage::new(self.from.join(BACKUP), 0, error.to_string(), outcome));
            }
            None => {}
        }
        let restored = RestorationReport {
            records,
            has_log: false,
            position: LogPosition(0),
            time_ms,
            entries: found.entries,
            lost: 0,
            refused: Vec::new(),
            ends_before: false,
            tail: found.torn.map_or(LogTail::Clean, torn_tail),
            cancelled_clear: None,
        };
        Ok(SalvageReport { damages, restored })
    }

    /// Adds the findings of the manifest: files that differ from it, and the number of missing
    /// records.
    fn check_list(
        &self,
        disk: &dyn Disk,
        manifest: &BackupManifest,
        records: u64,
        damages: &mut Vec<FoundDamage>,
    ) {
        for (path, what) in manifest.check(disk, &self.from, &mut |_| ()) {
            if !damages.iter().any(|damage| damage.finding.path == path) {
                let outcome = "left out; the intact part is kept".into();
                let what = format!("{} {what}", path.display());
                damages.push(FoundDamage::new(path, 0, what, outcome));
            }
        }
        let missing = manifest.records.saturating_sub(records);
        if missing > 0 {
            let what =
                format!("there were {} records, according to the list of the backup", manifest.records);
            let outcome = format!("{records} of them are saved, {missing} are lost");
            damages.push(FoundDamage::new(self.from.clone(), 0, what, outcome));
        }
    }

    fn read_into(
        &self,
        disk: &dyn Disk,
        into: &dyn Engine,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<HashSalvage> {
        let len = |name: &String| disk.open(&self.segments.join(name), false).and_then(|file| file.len());
        let names = disk.list(&self.segments).unwrap_or_default();
        let total: u64 = names.iter().filter(|name| is_segment(name)).flat_map(len).sum();
        // A file of a backup cannot end in a torn write: it matches the manifest or is damaged.
        let may_be_torn = self.list.is_none();
        DiskHash::salvage(disk, &self.segments, may_be_torn, Some(into), &mut |done| {
            progress(LoadProgress { done, remaining: total.saturating_sub(done) });
        })
    }

    fn damages_of(&self, found: &HashSalvage) -> Vec<FoundDamage> {
        let of_each = found.damages.iter().map(|damage| {
            let (lost, outcome) = match damage.is_mended {
                true => (0, "mended".into()),
                false => (damage.len, format!("left out, {} bytes", damage.len)),
            };
            let (path, offset, what) = (damage.path.clone(), damage.offset, damage.what.clone());
            FoundDamage { finding: LogDamage { path, offset, what, lost }, outcome }
        });
        let mut damages: Vec<FoundDamage> = of_each.collect();
        let mut add =
            |what| damages.push(FoundDamage::new(self.segments.clone(), 0, what, "left out".into()));
        let listed = found.damages.len() as u64;
        if found.damaged > listed {
            add(format!("{} more damages are not listed", found.damaged - listed));
        }
        if found.damaged > found.mended {
            let records = match found.lost_records {
                1 => "1 record is lost".into(),
                count => format!("{count} records are lost"),
            };
            let unclear = match found.unclear {
                0 => String::new(),
                places => format!(
                    "; the contents of {places} of these places are unknown, so more may be lost, and values replaced or removed there may have returned"
                ),
            };
            add(format!("{} bytes are unusable; as far as is known, {records}{unclear}", found.lost_bytes));
        }
        damages
    }
}
