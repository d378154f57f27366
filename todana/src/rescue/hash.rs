//! What is whole of a damaged hash on disk, or of the backup of one: its entries are done again in a new one.
//!
//! ```text
//! backup, or x.hash --whole entries--> TARGET.partial --> TARGET
//! repair: x.hash --> x.hash.damaged, and what was made of it --> x.hash
//! ```

use super::Mended;
use crate::backup::{BACKUP, HASH, Manifest};
use crate::clock::Clock;
use crate::data_directory::{cannot, is_there, lock, refuse_tree, sync_above};
use crate::db::Draft;
use crate::disk::{Disk, SystemDisk};
use crate::restoration::{expect_hash, number_anew, path_of, records_into};
use crate::update_log::{Finding, Position, Tail};
use crate::versions::openings_of_restored;
use crate::{Name, Progress, Remedy, Repair, RestoreOptions, Restored};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Durable, Engine, Error, ErrorKind, Result, UnixSeconds};
use todana_engine::{DiskHash, DiskHashOptions, HashSalvage, ValueCompression};

/// Makes a database on disk of what is whole of a damaged backup, or of a damaged hash that nobody has open, as
/// [`restore_database`](crate::restore_database) does of what is undamaged. Returns what was damaged, too, with its places. A hash that was made
/// so is a new database. Fails as `restore_database` does, and with `Corrupt` where nothing can be saved.
pub fn restore_damaged_database(
    options: &RestoreOptions,
    name: &Name,
    clock: Arc<dyn Clock>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Repair, Restored)> {
    let path = path_of(name)?;
    let disk = Arc::new(SystemDisk);
    refuse_tree(&*disk, &options.from)?;
    if let Some(ruins) = Ruins::find(&*disk, &options.from) {
        expect_hash(options, name)?;
        let draft = Draft::create(path)?;
        let (repair, restored) = ruins.restore(&*disk, draft.place(), name, clock.now(), progress)?;
        draft.finish()?;
        return Ok((repair, restored));
    }
    let mended = Mended::copy(disk, &options.from, path)?;
    let draft = Draft::create(path)?;
    let restored = mended.restore(|from, lock| {
        let options = RestoreOptions { from, ..options.clone() };
        records_into(&options, Some(lock), name, draft.place(), clock, progress)
    })?;
    draft.finish()?;
    Ok((mended.repaired, restored))
}

/// Lists what is damaged of a hash on disk that nobody has open. Where it `repairs` and anything is, what is whole becomes a new hash in its
/// place, and what was there stays under the name and `.damaged`; that takes as much room again. Fails with `Invalid` if there is no
/// hash, with `Busy` if somebody has it open, with `Corrupt` where nothing can be saved. `unmended` of what is returned tells of
/// what cannot be.
pub fn repair_hash(
    path: &Path,
    repairs: bool,
    clock: &dyn Clock,
    progress: &mut dyn FnMut(Progress),
) -> Result<Repair> {
    let disk = SystemDisk;
    let Some(ruins) = Ruins::find(&disk, path).filter(|ruins| ruins.segments == path) else {
        return Err(Error::new(ErrorKind::Invalid, format!("{} is no hash on disk", path.display())));
    };
    // Held until it has its other name.
    let lock = lock(&disk, path)?;
    let found = ruins.salvage(&disk, None, progress)?;
    let mut repair = ruins.repair_of(&found);
    if found.damaged == 0 || !repairs {
        return Ok(repair);
    }
    let beside = |end: &str| {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(end);
        path.with_file_name(name)
    };
    let made = beside(".repaired");
    let draft = Draft::create(&made)?;
    let openings = openings_of_restored(found.openings, clock.now());
    ruins.make_with(&disk, draft.place(), found.is_compressed, progress, &|_| openings)?;
    draft.finish()?;
    let aside = (1..).map(|number| match number {
        1 => beside(".damaged"),
        number => beside(&format!(".damaged-{number}")),
    });
    let aside = aside.into_iter().find(|aside| aside.symlink_metadata().is_err());
    let aside = aside.expect("one of so many is not taken");
    fs::rename(path, &aside).map_err(|error| cannot("set aside", path, &error))?;
    fs::rename(&made, path).map_err(|error| {
        // Whoever opens it now must not find nothing, and begin a new one.
        let _ = fs::rename(&aside, path);
        cannot("give its name to", &made, &error)
    })?;
    sync_above(&disk, path)?;
    drop(lock);
    let remedy = format!("what is whole is in its place; what was there is {}", aside.display());
    repair.remedies.push(remedy_of(path, 0, "it was damaged".into(), 0, remedy));
    Ok(repair)
}

/// The files of a hash, damaged or not.
pub(super) struct Ruins {
    from: PathBuf,
    /// Where the segments are.
    segments: PathBuf,
    /// What the list of a backup says, or what is wrong with it; `None` of a database.
    list: Option<Result<Manifest>>,
}

impl Ruins {
    /// `None` if it is no hash's. What cannot be read shows further on.
    pub(super) fn find(disk: &dyn Disk, from: &Path) -> Option<Ruins> {
        let list = Manifest::read(disk, from).transpose();
        let has_segments = |directory: &Path| {
            let names = disk.list(directory).unwrap_or_default();
            names.iter().any(|name| name.ends_with(".segment"))
        };
        let within = from.join(HASH);
        let is_backup = match &list {
            Some(Ok(manifest)) => manifest.is_hash(),
            // The list may be what is damaged, or missing.
            _ => has_segments(&within),
        };
        let segments = if is_backup { within } else { from.to_path_buf() };
        let is_hash = is_backup || (list.is_none() && has_segments(from));
        is_hash.then(|| Ruins { from: from.into(), segments, list })
    }

    /// Makes a hash of what is whole.
    fn restore(
        &self,
        disk: &dyn Disk,
        to: &Path,
        name: &Name,
        now: UnixSeconds,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Repair, Restored)> {
        let is_locked = self.list.is_none() && is_there(disk, &self.from.join("lock"))?;
        let _held = if is_locked { Some(lock(disk, &self.from)?) } else { None };
        let compresses = name.tuning.compress;
        let (records, found) = self.make_with(disk, to, compresses, progress, &|found: &HashSalvage| {
            openings_of_restored(found.openings, now)
        })?;
        let mut repair = self.repair_of(&found);
        let mut time_ms = 0;
        match &self.list {
            Some(Ok(manifest)) => {
                time_ms = manifest.made_ms;
                self.look_at_list(disk, manifest, records, &mut repair);
            }
            Some(Err(error)) => {
                let remedy = "left out: the files are taken as they lie there".into();
                let path = self.from.join(BACKUP);
                repair.remedies.insert(0, remedy_of(&path, 0, error.to_string(), 0, remedy));
            }
            None => {}
        }
        let restored = Restored {
            records,
            has_log: false,
            position: Position(0),
            time_ms,
            entries: found.entries,
            lost: 0,
            refused: Vec::new(),
            ends_before: false,
            tail: found.torn.map_or(Tail::Clean, |torn| Tail::Torn {
                path: torn.path,
                offset: torn.offset,
                len: torn.len,
            }),
            called_off: None,
        };
        Ok((repair, restored))
    }

    /// What the list tells besides: files that are not as it says, and how many records there were.
    fn look_at_list(&self, disk: &dyn Disk, manifest: &Manifest, records: u64, repair: &mut Repair) {
        for (path, what) in manifest.check(disk, &self.from, &mut |_| ()) {
            if !repair.remedies.iter().any(|remedy| remedy.finding.path == path) {
                let remedy = "left out: what can be told of it is kept".into();
                repair.remedies.push(remedy_of(&path, 0, format!("{} {what}", path.display()), 0, remedy));
            }
        }
        let missing = manifest.records.saturating_sub(records);
        if missing > 0 {
            let what = format!("there were {} records, by the list of the backup", manifest.records);
            let remedy = format!("{records} of them are saved, {missing} are lost");
            repair.remedies.push(remedy_of(&self.from, 0, what, 0, remedy));
        }
    }

    /// Makes a hash whose values are compressed or not; returns how many records it has, and what was found.
    fn make_with(
        &self,
        disk: &dyn Disk,
        to: &Path,
        compresses: bool,
        progress: &mut dyn FnMut(Progress),
        openings: &dyn Fn(&HashSalvage) -> u32,
    ) -> Result<(u64, HashSalvage)> {
        let compression = compresses.then(ValueCompression::default);
        let options = DiskHashOptions { compression, ..DiskHashOptions::default() };
        let hash = DiskHash::open(to, options)?;
        let found = self.salvage(disk, Some(&hash), progress)?;
        hash.sync()?;
        hash.close()?;
        drop(hash);
        Ok((number_anew(to, openings(&found))?, found))
    }

    fn salvage(
        &self,
        disk: &dyn Disk,
        into: Option<&dyn Engine>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<HashSalvage> {
        let len = |name: &String| disk.open(&self.segments.join(name), false).and_then(|file| file.len());
        let names = disk.list(&self.segments).unwrap_or_default();
        let total: u64 = names.iter().filter(|name| name.ends_with(".segment")).flat_map(len).sum();
        // A backup is as its list says, or damaged.
        let may_be_torn = self.list.is_none();
        DiskHash::salvage(disk, &self.segments, may_be_torn, into, &mut |done| {
            progress(Progress { done, remaining: total.saturating_sub(done) });
        })
    }

    /// What was found, and what is done about it.
    fn repair_of(&self, found: &HashSalvage) -> Repair {
        let mut repair = Repair { entries: found.entries, ..Repair::default() };
        for damage in &found.damages {
            let (lost, remedy) = match damage.is_mended {
                true => (0, "mended".into()),
                false => (damage.len, format!("left out, {} bytes", damage.len)),
            };
            repair.remedies.push(remedy_of(&damage.path, damage.offset, damage.what.clone(), lost, remedy));
        }
        let listed = found.damages.len() as u64;
        if found.damaged > listed {
            let what = format!("there are {} more damages", found.damaged - listed);
            repair.remedies.push(remedy_of(&self.segments, 0, what, 0, "left out".into()));
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
            let what = format!(
                "{} bytes cannot be used; by what can be told of them {records}{unclear}",
                found.lost_bytes
            );
            let remedy = "left out".into();
            repair.remedies.push(remedy_of(&self.segments, 0, what, 0, remedy));
        }
        repair
    }
}

fn remedy_of(path: &Path, offset: u64, what: String, lost: u64, remedy: String) -> Remedy {
    Remedy { finding: Finding { path: path.into(), offset, what, lost }, remedy }
}
