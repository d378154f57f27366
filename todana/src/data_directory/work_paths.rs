//! The paths beside a target at which it is created. A source must not lie there, and foreign files
//! there are never removed.
//!
//! ```text
//! TARGET.partial          until it is whole
//! TARGET.salvage.partial  the copy of damaged files that is mended
//! ```
//!
//! Beside each of them lies what an engine copies, with one more `.partial`.
//!
//! Both are checked on the machine's own file system, because foreign files exist only there.

use super::cannot;
use super::staged_directory::refuse_link;
use crate::disk::SystemDisk;
use crate::open::contents::is_ours;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use todana_core::{Error, ErrorKind, Result};

/// The suffixes of the paths that staging creates, moves or removes.
const WORK_SUFFIXES: [&str; 6] =
    ["", ".partial", ".partial.partial", ".salvage", ".salvage.partial", ".salvage.partial.partial"];

/// Fails with `Invalid` if a source equals, contains or lies within the directory to be created or
/// a path at which that is staged: staging would remove or move the source. A missing source is
/// reported when it is opened.
pub fn refuse_overlap<'a>(sources: impl IntoIterator<Item = &'a Path>, target: &Path) -> Result<()> {
    for source in sources {
        let Ok(real_source) = source.canonicalize() else { continue };
        let from = source.display();
        let message = if real(target).starts_with(&real_source) {
            format!("{} lies within {from}; make the new database elsewhere", target.display())
        } else if WORK_SUFFIXES.iter().any(|suffix| {
            let work = real(&beside(target, suffix));
            work.starts_with(&real_source) || real_source.starts_with(work)
        }) {
            format!(
                "{from}: {} would be made in its place; move it, or make the new database elsewhere",
                target.display()
            )
        } else {
            continue;
        };
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

/// Returns the path with a suffix added to its last name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let Some(name) = path.file_name() else { return path.into() };
    let mut name = name.to_os_string();
    name.push(suffix);
    path.with_file_name(name)
}

/// Returns the path without symbolic links. A part that does not exist yet is resolved by the
/// directories above it.
fn real(path: &Path) -> PathBuf {
    let mut missing = Vec::new();
    for above in path.ancestors() {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        if let Ok(mut real) = above.canonicalize() {
            for component in missing.into_iter().rev() {
                match component {
                    Component::ParentDir => drop(real.pop()),
                    other => real.push(other),
                }
            }
            return real;
        }
        missing.extend(above.components().next_back());
    }
    path.into()
}

/// Fails with `Invalid` if a staging directory contains foreign files. `is_expected` returns true
/// for the names allowed at its top.
pub(crate) fn refuse_foreign(directory: &Path, is_expected: &dyn Fn(&str) -> bool) -> Result<()> {
    refuse_link(&SystemDisk, directory)?;
    let unreadable = |error| cannot("read", directory, &error);
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(unreadable)?,
    };
    for entry in entries {
        let entry = match entry {
            // Another process, which is about to be detected, has just removed the directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entry => entry.map_err(unreadable)?,
        };
        let path = entry.path();
        if !entry.file_name().to_str().is_some_and(is_expected) {
            let message = format!(
                "{}: it is none of a database that was being made; move it elsewhere",
                path.display()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        refuse_link(&SystemDisk, &path)?;
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => refuse_foreign(&path, &is_ours)?,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unreadable(error)),
            _ => {}
        }
    }
    Ok(())
}
