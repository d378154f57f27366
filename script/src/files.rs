//! Files that scripts write and read: snapshots, in Kyoto Cabinet's format of dumps, and copies of databases.
//!
//! Always true: unless scripts are trusted with everything, they get at one folder and what is in it, by no link; a file is put in the
//! place of another only where that is a dump, too, and only once it is whole.

use crate::database::DatabaseObject;
use crate::interpreter::World;
use crate::source::Reach;
use crate::trouble::{Done, Trouble};
use crate::whole;
use mlua::{LuaString, UserDataMethods};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Component, Path, PathBuf};
use tempfile::NamedTempFile;
use todana::kyoto::{NEVER, time_of};
use todana::{Db, Iter, Name};
use todana_protocol::kyoto::Stored;
use todana_protocol::kyoto::dump::{self, DumpReader, DumpStep};

/// What is read at once.
const PIECE: usize = 64 << 10;

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
    let mut file = BufWriter::with_capacity(PIECE, draft.as_file());
    let mut piece = Vec::new();
    dump::put_head(&mut piece);
    for item in Iter::new(reach.clone()).records() {
        let (key, record) = match item {
            Ok(item) => item,
            Err(error) => return Ok(Err(Trouble::of(&error))),
        };
        let stored = if is_persistent {
            Stored::raw(&record.value)
        } else {
            Stored::mortal(time_of(record.expiry).unwrap_or(NEVER), &record.value)
        };
        dump::put_record(&key, &stored, &mut piece);
        if let Err(error) = file.write_all(&piece) {
            return Ok(Err(unwritable(error)));
        }
        piece.clear();
        world.deadline.check()?;
    }
    dump::put_end(&mut piece);
    let whole = file.write_all(&piece).and_then(|()| file.flush()).and_then(|()| draft.as_file().sync_all());
    drop(file);
    Ok(whole.and_then(|()| draft.persist(path).map_err(|error| error.error)).map(drop).map_err(unwritable))
}

/// Stores the records of a dump over those that are there. What came before a damage stays stored.
fn read(world: &World, reach: &Reach, path: &Path) -> mlua::Result<Done<()>> {
    let Ok(mut file) = File::open(path) else { return Ok(Err(Trouble::OPEN_FAILED)) };
    let is_persistent = reach.source().name().tuning.persistent;
    let (mut reader, kyoto) = (DumpReader::default(), reach.kyoto());
    let (mut input, mut at) = (Vec::new(), 0);
    loop {
        match reader.decode(&input[at..]) {
            DumpStep::Begun { consumed } => at += consumed,
            DumpStep::Record { consumed, key, stored } => {
                let of_persistent = || stored.as_raw().map(|value| (NEVER, value));
                let Some((time, value)) = (if is_persistent { of_persistent() } else { stored.split() })
                else {
                    return Ok(Err(Trouble::new(5, "a record without its time")));
                };
                if let Err(error) = kyoto.set(key, value, time) {
                    return Ok(Err(Trouble::of(&error)));
                }
                at += consumed;
                world.deadline.check()?;
            }
            DumpStep::NeedMore { at_least } => {
                if at_least > world.options.memory_max {
                    return Err(mlua::Error::MemoryError(
                        "a record of the snapshot does not fit into memory".into(),
                    ));
                }
                input.drain(..std::mem::take(&mut at));
                // Not more at once than is there: a damaged length reserves nothing.
                let wanted = at_least.clamp(PIECE, 1 << 20) as u64;
                match (&mut file).take(wanted).read_to_end(&mut input) {
                    Ok(0) | Err(_) => return Ok(Err(Trouble::new(9, "stream input error"))),
                    Ok(_) => {}
                }
            }
            DumpStep::End => return Ok(Ok(())),
            DumpStep::Damaged { offset: 0, .. } => {
                return Ok(Err(Trouble::new(2, "invalid magic data of input stream")));
            }
            DumpStep::Damaged { .. } => return Ok(Err(Trouble::new(5, "invalid magic data of a record"))),
        }
    }
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
        for item in Iter::new(reach.clone()).records() {
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
