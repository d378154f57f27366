//! `_stat`, `_glob`, `_remove` and `_mkdir`, within the directory that the operator names. Without
//! one they fail. Links are not followed.

use super::records::Bytes;
use crate::context::ScriptContext;
use crate::files::place_in;
use mlua::{Lua, Table, Value};
use regex::bytes::Regex;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The largest number of entries that `_glob` reads.
const ENTRIES_MAX: usize = 100_000;

pub(super) fn define(lua: &Lua, context: &Arc<ScriptContext>) -> mlua::Result<()> {
    let globals = lua.globals();
    let of = Arc::clone(context);
    let stat = move |lua: &Lua, path: Bytes| {
        let found = place(&of, &path.0).and_then(|path| fs::symlink_metadata(path).ok());
        found.map(|found| facts(lua, &found)).transpose()
    };
    globals.set("_stat", lua.create_function(stat)?)?;
    let of = Arc::clone(context);
    let remove = move |_: &Lua, path: Bytes| {
        let Some(path) = place(&of, &path.0) else { return Ok(false) };
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        Ok(removed.is_ok())
    };
    globals.set("_remove", lua.create_function(remove)?)?;
    let of = Arc::clone(context);
    let mkdir =
        move |_: &Lua, path: Bytes| Ok(place(&of, &path.0).is_some_and(|path| fs::create_dir(path).is_ok()));
    globals.set("_mkdir", lua.create_function(mkdir)?)?;
    let of = Arc::clone(context);
    let glob = move |lua: &Lua, pattern: Bytes| {
        let found = lua.create_table()?;
        for path in matching(&of, &pattern.0) {
            found.push(path)?;
        }
        Ok(found)
    };
    globals.set("_glob", lua.create_function(glob)?)
}

fn place(context: &ScriptContext, path: &[u8]) -> Option<PathBuf> {
    place_in(context, path).ok()
}

fn facts(lua: &Lua, found: &fs::Metadata) -> mlua::Result<Table> {
    let facts = lua.create_table()?;
    for (name, value) in [
        ("dev", found.dev()),
        ("ino", found.ino()),
        ("mode", u64::from(found.mode())),
        ("nlink", found.nlink()),
        ("uid", u64::from(found.uid())),
        ("gid", u64::from(found.gid())),
        ("rdev", found.rdev()),
        ("size", found.size()),
        ("blksize", found.blksize()),
        ("blocks", found.blocks()),
        ("atime", found.atime().cast_unsigned()),
        ("mtime", found.mtime().cast_unsigned()),
        ("ctime", found.ctime().cast_unsigned()),
    ] {
        facts.set(name, value as f64)?;
    }
    facts.set("_regular", found.is_file())?;
    facts.set("_directory", found.is_dir())?;
    facts.set("_readable", Value::Boolean(found.mode() & 0o444 != 0))?;
    facts.set("_writable", Value::Boolean(found.mode() & 0o222 != 0))?;
    facts.set("_executable", Value::Boolean(found.mode() & 0o111 != 0))?;
    Ok(facts)
}

/// Returns the paths whose last part matches a pattern with `*`, `?` and `[...]`, in order.
fn matching(context: &ScriptContext, pattern: &[u8]) -> Vec<String> {
    let Ok(pattern) = std::str::from_utf8(pattern) else { return Vec::new() };
    let (folder, name) = pattern.rsplit_once('/').unwrap_or((".", pattern));
    let inside = if folder == "." { "*".into() } else { format!("{folder}/*") };
    let (Some(place), Some(regex)) = (place(context, inside.as_bytes()), regex(name)) else {
        return Vec::new();
    };
    let entries = place.parent().and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let names = entries.take(ENTRIES_MAX).filter_map(|entry| entry.file_name().into_string().ok());
    let mut paths: Vec<String> =
        names
            .filter(|entry| {
                regex.is_match(entry.as_bytes()) && (name.starts_with('.') || !entry.starts_with('.'))
            })
            .map(|entry| {
                if pattern.contains('/') {
                    Path::new(folder).join(entry).display().to_string()
                } else {
                    entry
                }
            })
            .collect();
    paths.sort_unstable();
    paths
}

fn regex(pattern: &str) -> Option<Regex> {
    let mut expression = String::from("^");
    let mut symbols = pattern.chars().peekable();
    while let Some(symbol) = symbols.next() {
        match symbol {
            '*' => expression.push_str(".*"),
            '?' => expression.push('.'),
            '[' => {
                expression.push('[');
                if symbols.next_if_eq(&'!').is_some() {
                    expression.push('^');
                }
                for symbol in symbols.by_ref() {
                    if matches!(symbol, '[' | '\\' | '&' | '~') {
                        expression.push('\\');
                    }
                    expression.push(symbol);
                    if symbol == ']' {
                        break;
                    }
                }
            }
            other => expression.push_str(&regex::escape(other.encode_utf8(&mut [0; 4]))),
        }
    }
    expression.push('$');
    Regex::new(&expression).ok()
}

#[cfg(test)]
mod tests {
    use super::regex;

    #[test]
    fn patterns_match_names() {
        for (pattern, name, is_match) in [
            ("*.tch", "a.tch", true),
            ("*.tch", "a.tcb", false),
            ("a?[0-9]", "ab7", true),
            ("a?[!0-9]", "ab7", false),
            ("a+b", "a+b", true),
        ] {
            assert_eq!(regex(pattern).unwrap().is_match(name.as_bytes()), is_match, "{pattern}");
        }
        assert!(regex("[").is_none());
    }
}
