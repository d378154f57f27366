//! Writes and reads the files of scripts: snapshots in Kyoto Cabinet's dump format, and copies of
//! databases.
//!
//! Invariants: unless scripts are fully trusted, they can only use one folder and its contents, and
//! no symbolic links. An existing file is replaced only if it is a dump, and only by a complete
//! dump.

use crate::context::ScriptContext;
use crate::database::DatabaseObject;
use crate::entire_database;
use crate::error::{CallResult, ScriptError};
use crate::source::DatabaseHandle;
use mlua::{LuaString, UserDataMethods};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use tempfile::NamedTempFile;
use todana::kyoto::{DumpFailure, DumpWriter, NEVER, read_dump, time_of};
use todana::{DatabaseName, Db, RecordIter};
use todana_protocol::kyoto::StoredValue;
use todana_protocol::kyoto::dump;

/// Returns the path that a script may use for this name.
fn place(context: &ScriptContext, path: &LuaString) -> CallResult<PathBuf> {
    place_in(context, &path.as_bytes())
}

/// Returns the path that a script may use for this name.
pub(crate) fn place_in(context: &ScriptContext, path: &[u8]) -> CallResult<PathBuf> {
    let path = Path::new(std::str::from_utf8(path).map_err(|_| ScriptError::OPEN_FAILED)?);
    if path.as_os_str().is_empty() {
        return Err(ScriptError::OPEN_FAILED);
    }
    if context.options.is_unsafe {
        return Ok(path.to_owned());
    }
    let folder = context.options.files.as_deref().ok_or(ScriptError::FORBIDDEN)?;
    let folder = folder.canonicalize().map_err(|_| ScriptError::OPEN_FAILED)?;
    let inner = path.strip_prefix(&folder).unwrap_or(path);
    let is_inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    let (Some(name), true) = (inner.file_name(), inner.components().all(is_inside)) else {
        return Err(ScriptError::FORBIDDEN);
    };
    let parent = folder.join(inner.parent().unwrap_or(Path::new("")));
    let parent = parent.canonicalize().map_err(|_| ScriptError::OPEN_FAILED)?;
    let place = parent.join(name);
    let is_link = fs::symlink_metadata(&place).is_ok_and(|found| !(found.is_file() || found.is_dir()));
    if !parent.starts_with(&folder) || is_link {
        return Err(ScriptError::FORBIDDEN);
    }
    Ok(place)
}

/// Returns true if a dump may be written at this path, because there is no file or the file is a
/// dump.
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

fn unwritable(_: io::Error) -> ScriptError {
    ScriptError::new(9, "stream output error")
}

/// Writes all records in the order of the scan. The time of this call does not count toward the
/// deadline. Each record is complete, but the records are of one moment only if a transaction is
/// open.
fn write(context: &ScriptContext, handle: &DatabaseHandle, path: &Path) -> mlua::Result<CallResult<()>> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let Ok(draft) = NamedTempFile::new_in(folder) else { return Ok(Err(ScriptError::OPEN_FAILED)) };
    if !may_hold_dump(path) {
        return Ok(Err(ScriptError::FORBIDDEN));
    }
    let _pause = context.deadline.pause();
    let is_persistent = handle.source().name().tuning.persistent;
    let mut writer = DumpWriter::begin(draft.as_file());
    for item in RecordIter::new(handle.clone()).records() {
        let (key, record) = match item {
            Ok(item) => item,
            Err(error) => return Ok(Err(ScriptError::of(&error))),
        };
        let stored = if is_persistent {
            StoredValue::raw(&record.value)
        } else {
            StoredValue::with_expiry(time_of(record.expiry).unwrap_or(NEVER), &record.value)
        };
        if let Err(error) = writer.put(&key, &stored) {
            return Ok(Err(unwritable(error)));
        }
        context.deadline.check()?;
    }
    let whole = writer.finish().and_then(|file| file.sync_all());
    Ok(whole.and_then(|()| draft.persist(path).map_err(|error| error.error)).map(drop).map_err(unwritable))
}

/// Stores the records of a dump and replaces existing records. If the dump is damaged, the records
/// before the damage stay stored.
fn read(context: &ScriptContext, handle: &DatabaseHandle, path: &Path) -> mlua::Result<CallResult<()>> {
    let Ok(file) = File::open(path) else { return Ok(Err(ScriptError::OPEN_FAILED)) };
    let is_persistent = handle.source().name().tuning.persistent;
    let kyoto = handle.kyoto();
    let mut see = |_, key: &[u8], stored: &StoredValue<'_>| {
        let of_persistent = || stored.as_raw().map(|value| (NEVER, value));
        let timed = if is_persistent { of_persistent() } else { stored.split() };
        let Some((time, value)) = timed else {
            return Err(ReadEnd::Refused(ScriptError::new(5, "a record without its time")));
        };
        kyoto.set(key, value, time).map_err(|error| ReadEnd::Refused(ScriptError::of(&error)))?;
        context.deadline.check().map_err(ReadEnd::Ended)
    };
    let error = match read_dump(file, context.options.memory_max, &mut see) {
        Ok(_) => return Ok(Ok(())),
        Err(DumpFailure::Stopped(ReadEnd::Ended(error))) => return Err(error),
        Err(DumpFailure::Stopped(ReadEnd::Refused(error))) => error,
        Err(DumpFailure::TooLong { .. }) => {
            let message = "a record of the snapshot does not fit into memory";
            return Err(mlua::Error::MemoryError(message.into()));
        }
        Err(DumpFailure::Unreadable(_) | DumpFailure::Cut { .. }) => {
            ScriptError::new(9, "stream input error")
        }
        Err(DumpFailure::Damaged { offset: 0, .. }) => {
            ScriptError::new(2, "invalid magic data of input stream")
        }
        Err(DumpFailure::Damaged { .. }) => ScriptError::new(5, "invalid magic data of a record"),
    };
    Ok(Err(error))
}

/// The reason why the reading of a dump ended at a record.
enum ReadEnd {
    /// The database refused the record.
    Refused(ScriptError),
    /// The script has exceeded its time.
    Ended(mlua::Error),
}

/// Copies a database on disk to another database, record by record. The time of this call does not
/// count toward the deadline. The copy is of one moment only if a transaction is open. As in the
/// original, a database in memory cannot be copied.
fn copy(context: &ScriptContext, handle: &DatabaseHandle, path: &Path) -> mlua::Result<CallResult<()>> {
    if handle.source().name().path.is_none() {
        return Ok(Err(ScriptError::POSTPROCESSING));
    }
    let text = path.to_string_lossy();
    let name = DatabaseName::parse(&text).ok().filter(|name| name.path.as_deref() == Some(path));
    let Some(name) = name else { return Ok(Err(ScriptError::new(2, "unknown database type"))) };
    let _pause = context.deadline.pause();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.exists() || !folder.is_dir() {
        return Ok(Err(ScriptError::POSTPROCESSING));
    }
    let db = match Db::open(&name.to_string()) {
        Ok(db) => DatabaseHandle::new(std::sync::Arc::new(db), context),
        Err(error) => return Ok(Err(ScriptError::of(&error))),
    };
    let fill = || {
        for item in RecordIter::new(handle.clone()).records() {
            let brought = item.and_then(|(key, record)| {
                entire_database::merge_record(&db, &key, &record, entire_database::MERGE_SET)
            });
            if let Err(error) = brought {
                return Ok(Err(ScriptError::of(&error)));
            }
            context.deadline.check()?;
        }
        Ok(db.source().database().sync().map_err(|error| ScriptError::of(&error)))
    };
    let outcome: mlua::Result<CallResult<()>> = fill();
    drop(db);
    if !matches!(outcome, Ok(Ok(()))) {
        // The destination may be removed, because it did not exist before.
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        if let Err(error) = removed {
            tracing::warn!("{}: the incomplete copy cannot be removed: {error}", path.display());
        }
    }
    outcome
}

type FileOperation = fn(&ScriptContext, &DatabaseHandle, &Path) -> mlua::Result<CallResult<()>>;

pub(crate) fn add_methods<M: UserDataMethods<DatabaseObject>>(methods: &mut M) {
    for (name, act) in [("dump_snapshot", write as FileOperation), ("load_snapshot", read), ("copy", copy)] {
        methods.add_method(name, move |_, this, path: LuaString| {
            let done = this.attempt_calling(|handle| match place(&this.context, &path) {
                Ok(path) => act(&this.context, handle, &path),
                Err(error) => Ok(Err(error)),
            })?;
            Ok(done.is_some())
        });
    }
}
