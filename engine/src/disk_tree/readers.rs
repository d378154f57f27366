//! Trees that this process only reads: LMDB allows a process one environment of a file, so those that read one tree share it.

use crate::raw::LmdbEnvironment;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use todana_core::{Error, ErrorKind, Result};

/// By the directory, without links: the environment, and how many read it.
static OPEN: LazyLock<Mutex<OpenTrees>> = LazyLock::new(Mutex::default);

type OpenTrees = HashMap<PathBuf, (Arc<LmdbEnvironment>, usize)>;

/// One that reads. The environment is closed when the last one is dropped; all that was had from it must be gone then.
pub(super) struct Reading(PathBuf);

/// Returns the environment of a directory, opened by `open` unless somebody reads it already.
pub(super) fn open(
    directory: &Path,
    open: impl FnOnce() -> Result<LmdbEnvironment>,
) -> Result<(Arc<LmdbEnvironment>, Reading)> {
    let directory = directory.canonicalize().map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("\"{}\": {error}", directory.display()))
    })?;
    let mut all = OPEN.lock();
    if let Some((lmdb, count)) = all.get_mut(&directory) {
        *count += 1;
        return Ok((Arc::clone(lmdb), Reading(directory)));
    }
    let lmdb = Arc::new(open()?);
    all.insert(directory.clone(), (Arc::clone(&lmdb), 1));
    Ok((lmdb, Reading(directory)))
}

impl Drop for Reading {
    fn drop(&mut self) {
        // Closed while nobody can open it anew.
        let mut all = OPEN.lock();
        if let Some((_, count)) = all.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.0);
            }
        }
    }
}
