//! The paths at which a target directory is created, beside its final path. A source must not lie
//! at one of them, and foreign files there are never removed.
//!
//! ```text
//! TARGET.partial           the directory, until it is complete
//! TARGET.partial.partial   files that an engine copies, until they are complete
//! TARGET.salvage           a copy of damaged files, created in the same way
//! ```
//!
//! Both rules are checked on the real file system, because foreign files exist only there.

use super::cannot;
use super::staged_directory::refuse_link;
use crate::disk::SystemDisk;
use crate::open::contents::is_ours;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use todana_core::{Error, ErrorKind, Result};

/// Returns the paths at which a directory is created: its temporary path, and the path of the files
/// that an engine copies.
pub(super) fn staging_paths(directory: &Path) -> [PathBuf; 2] {
    [beside(directory, ".partial"), beside(directory, ".partial.partial")]
}

/// Returns the path at which the copy of damaged files is mended for a target.
pub(crate) fn salvage_copy(target: &Path) -> PathBuf {
    beside(target, ".salvage")
}

/// Returns every path at which the creation of a target creates, moves or removes files.
fn work_paths(target: &Path) -> impl Iterator<Item = PathBuf> {
    let directories = [target.to_path_buf(), salvage_copy(target)];
    directories.into_iter().flat_map(|directory| {
        let [staged, copies] = staging_paths(&directory);
        [directory, staged, copies]
    })
}

/// Fails with `Invalid` if a source equals, contains or lies within the target or one of the paths
/// at which the target is created, because the creation would remove or move the source. A missing
/// source is reported when it is opened.
pub fn refuse_overlap<'a>(sources: impl IntoIterator<Item = &'a Path>, target: &Path) -> Result<()> {
    for source in sources {
        let Ok(real_source) = source.canonicalize() else { continue };
        let from = source.display();
        let message = if real(target).starts_with(&real_source) {
            format!("{}: lies within {from}; choose another target", target.display())
        } else if work_paths(target).any(|work| {
            let work = real(&work);
            work.starts_with(&real_source) || real_source.starts_with(work)
        }) {
            format!(
                "{from}: {} would be created in its place; move it, or choose another target",
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

/// Returns the path without symbolic links. The parts that do not exist yet are appended to the
/// resolved path of the deepest directory that exists.
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

/// Fails with `Invalid` if the temporary directory contains foreign files. `is_expected` returns
/// true for the names that may stand directly in the directory.
pub(crate) fn refuse_foreign(directory: &Path, is_expected: &dyn Fn(&str) -> bool) -> Result<()> {
    refuse_link(&SystemDisk, directory)?;
    let unreadable = |error| cannot("read", directory, &error);
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(unreadable)?,
    };
    for entry in entries {
        let entry = match entry {
            // Another process has just removed the directory. The lock will show that process.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entry => entry.map_err(unreadable)?,
        };
        let path = entry.path();
        if !entry.file_name().to_str().is_some_and(is_expected) {
            let message =
                format!("{}: not a file of an unfinished new database; move it elsewhere", path.display());
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
