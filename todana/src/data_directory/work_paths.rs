//! The paths beside a target at which it is made: nothing of what it is made from lies there, and nothing that others have put there is
//! removed.
//!
//! ```text
//! TARGET.partial          until it is whole
//! TARGET.salvage.partial  the copy of damaged files that is mended
//! ```
//!
//! Both are judged on the machine's own file system: on any other disk nothing lies there that others have made.

use super::cannot;
use super::staged_directory::refuse_link;
use crate::disk::SystemDisk;
use crate::open::contents::is_ours;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use todana_core::{Error, ErrorKind, Result};

/// Fails with `Invalid` if a source is, holds or lies within a directory that is to be made, or a path at which that is made: making it
/// would remove or move the source. A source that does not exist shows where it is opened.
pub fn refuse_overlap<'a>(sources: impl IntoIterator<Item = &'a Path>, target: &Path) -> Result<()> {
    for source in sources {
        let Ok(real_source) = source.canonicalize() else { continue };
        let from = source.display();
        let message = if real(target).starts_with(&real_source) {
            format!("{} lies within {from}; make the new database elsewhere", target.display())
        } else if ["", ".partial", ".salvage", ".salvage.partial"].iter().any(|suffix| {
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

/// Returns the path with more behind its last name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let Some(name) = path.file_name() else { return path.into() };
    let mut name = name.to_os_string();
    name.push(suffix);
    path.with_file_name(name)
}

/// Returns the path without links; what does not exist yet is judged by the directories above it.
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

/// Fails with `Invalid` if a directory in which a target is made holds anything that we have not made; `is_expected` tells which names
/// there may be at its top.
pub(crate) fn refuse_foreign(directory: &Path, is_expected: &dyn Fn(&str) -> bool) -> Result<()> {
    refuse_link(&SystemDisk, directory)?;
    let unreadable = |error| cannot("read", directory, &error);
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(unreadable)?,
    };
    for entry in entries {
        let entry = match entry {
            // Another process, which is about to be noticed, has just removed the directory.
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
