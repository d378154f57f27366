//! Files that scripts write and read: snapshots, in Kyoto Cabinet's format of dumps, and copies of databases.
//!
//! Always true: unless scripts are trusted with everything, they get at one folder and what is in it, by no link; a file is put in the
//! place of another only where that is a dump, too, and only once it is whole.

use crate::database::DatabaseObject;
use crate::source::Reach;
use crate::trouble::{Done, Trouble};
use crate::whole;
use crate::world::World;
use mlua::{LuaString, UserDataMethods};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use tempfile::NamedTempFile;
use todana::kyoto::{DumpFailure, DumpWriter, NEVER, read_dump, time_of};
use todana::{Db, Name, RecordIter};
use todana_protocol::kyoto::StoredValue;
use todana_protocol::kyoto::dump;

/// Where a script may write and read what it calls by this name.
fn place(world: &World, path: &LuaString) -> Done<PathBuf> {
    let path = path.as_bytes();
    let path = Path::new(std::str::from_utf8(&path).map_err(|_| Trouble::OPEN_FAILED)?);
    if path.as_os_str().is_empty() {
        return Err(Trouble::OPEN_FAILED);
    }
    if world.options.is_unsafe {
        return Ok(path.to_owned());
    }
    let folder = world.options.files.as_deref().ok_or(Trouble::FORBIDDEN)?;
    let folder = folder.canonicalize().map_err(|_| Trouble::OPEN_FAILED)?;
    let inner = path.strip_prefix(&folder).unwrap_or(path);
    let is_inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    let (Some(name), true) = (inner.file_name(), inner.components().all(is_inside)) else {
        return Err(Trouble::FORBIDDEN);
    };
    let parent = folder.join(inner.parent().unwrap_or(Path::new("")));
    let parent = parent.canonicalize().map_err(|_| Trouble::OPEN_FAILED)?;
    let place = parent.join(name);
    let is_link = fs::symlink_metadata(&place).is_ok_and(|found| !(found.is_file() || found.is_dir()));
    if !parent.starts_with(&folder) || is_link {
        return Err(Trouble::FORBIDDEN);
    }
    Ok(place)
}

/// Whether a dump may come there: where nothing is, or one already.
fn may_hold_dump(path: &Path) -> bool {
    match File::open(path) {
        Err(error) => error.kind() == io::ErrorKind::NotFound,
        Ok(file) => {
            let (mut head, mut magic) = (Vec::new(), Vec::new());
            dump::put_head(&mut magic);
            file.take(magic.len() as u64).read_to_end(&mut head).is_ok() && head == magic
        }
    }
}

fn unwritable(_: io::Error) -> Trouble {
    Trouble::new(9, "stream output error")
}

/// Writes all records as they come; the time does not count. Each is whole, but together they are of no one moment, unless a transaction is open.
fn write(world: &World, reach: &Reach, path: &Path) -> mlua::Result<Done<()>> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let Ok(draft) = NamedTempFile::new_in(folder) else { return Ok(Err(Trouble::OPEN_FAILED)) };
    if !may_hold_dump(path) {
        return Ok(Err(Trouble::FORBIDDEN));
    }
    let _pause = world.deadline.pause();
    let is_persistent = reach.source().name().tuning.persistent;
    let mut writer = DumpWriter::begin(draft.as_file());
    for item in RecordIter::new(reach.clone()).records() {
        let (key, record) = match item {
            Ok(item) => item,
            Err(error) => return Ok(Err(Trouble::of(&error))),
        };
        let stored = if is_persistent {
            StoredValue::raw(&record.value)
        } else {
            StoredValue::with_expiry(time_of(record.expiry).unwrap_or(NEVER), &record.value)
        };
        if let Err(error) = writer.put(&key, &stored) {
            return Ok(Err(unwritable(error)));
        }
        world.deadline.check()?;
    }
    let whole = writer.finish().and_then(|file| file.sync_all());
    Ok(whole.and_then(|()| draft.persist(path).map_err(|error| error.error)).map(drop).map_err(unwritable))
}

/// Stores the records of a dump over those that are there. What came before a damage stays stored.
fn read(world: &World, reach: &Reach, path: &Path) -> mlua::Result<Done<()>> {
    let Ok(file) = File::open(path) else { return Ok(Err(Trouble::OPEN_FAILED)) };
    let is_persistent = reach.source().name().tuning.persistent;
    let kyoto = reach.kyoto();
    let mut see = |_, key: &[u8], stored: &StoredValue<'_>| {
        let of_persistent = || stored.as_raw().map(|value| (NEVER, value));
        let timed = if is_persistent { of_persistent() } else { stored.split() };
        let Some((time, value)) = timed else {
            return Err(ReadEnd::Refused(Trouble::new(5, "a record without its time")));
        };
        kyoto.set(key, value, time).map_err(|error| ReadEnd::Refused(Trouble::of(&error)))?;
        world.deadline.check().map_err(ReadEnd::Ended)
    };
    let trouble = match read_dump(file, world.options.memory_max, &mut see) {
        Ok(_) => return Ok(Ok(())),
        Err(DumpFailure::Ended(ReadEnd::Ended(error))) => return Err(error),
        Err(DumpFailure::Ended(ReadEnd::Refused(trouble))) => trouble,
        Err(DumpFailure::TooLong { .. }) => {
            let message = "a record of the snapshot does not fit into memory";
            return Err(mlua::Error::MemoryError(message.into()));
        }
        Err(DumpFailure::Unreadable(_) | DumpFailure::Cut { .. }) => Trouble::new(9, "stream input error"),
        Err(DumpFailure::Damaged { offset: 0, .. }) => Trouble::new(2, "invalid magic data of input stream"),
        Err(DumpFailure::Damaged { .. }) => Trouble::new(5, "invalid magic data of a record"),
    };
    Ok(Err(trouble))
}

/// The reason why a record of a dump was the last one read.
enum ReadEnd {
    /// The record was refused.
    Refused(Trouble),
    /// The script's time is over.
    Ended(mlua::Error),
}

/// A copy of a database in files, as another one, of records as they come, unless a transaction is open; the time does not count. As in the original there is none of one in memory.
fn copy(world: &World, reach: &Reach, path: &Path) -> mlua::Result<Done<()>> {
    if reach.source().name().path.is_none() {
        return Ok(Err(Trouble::POSTPROCESSING));
    }
    let text = path.to_string_lossy();
    let name = Name::parse(&text).ok().filter(|name| name.path.as_deref() == Some(path));
    let Some(name) = name else { return Ok(Err(Trouble::new(2, "unknown database type"))) };
    let _pause = world.deadline.pause();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.exists() || !folder.is_dir() {
        return Ok(Err(Trouble::POSTPROCESSING));
    }
    let db = match Db::open(&name.to_string()) {
        Ok(db) => Reach::new(std::sync::Arc::new(db), world),
        Err(error) => return Ok(Err(Trouble::of(&error))),
    };
    let fill = || {
        for item in RecordIter::new(reach.clone()).records() {
            let brought = item.and_then(|(key, record)| whole::bring(&db, &key, &record, whole::MERGE_SET));
            if let Err(error) = brought {
                return Ok(Err(Trouble::of(&error)));
            }
            world.deadline.check()?;
        }
        Ok(db.source().database().sync().map_err(|error| Trouble::of(&error)))
    };
    let outcome: mlua::Result<Done<()>> = fill();
    drop(db);
    if !matches!(outcome, Ok(Ok(()))) {
        // It was not there before.
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        if let Err(error) = removed {
            tracing::warn!(
                "{}: what has been copied is not whole, and cannot be removed: {error}",
                path.display()
            );
        }
    }
    outcome
}

type Act = fn(&World, &Reach, &Path) -> mlua::Result<Done<()>>;

pub(crate) fn add_methods<M: UserDataMethods<DatabaseObject>>(methods: &mut M) {
    for (name, act) in [("dump_snapshot", write as Act), ("load_snapshot", read), ("copy", copy)] {
        methods.add_method(name, move |_, this, path: LuaString| {
            let done = this.attempt_calling(|reach| match place(&this.world, &path) {
                Ok(path) => act(&this.world, reach, &path),
                Err(trouble) => Ok(Err(trouble)),
            })?;
            Ok(done.is_some())
        });
    }
}
