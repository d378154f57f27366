//! Shares the LMDB environments of read-only trees within the process. LMDB allows only one
//! environment per file in a process, so all readers of a tree use the same one.

use crate::raw::LmdbEnvironment;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use todana_core::{Error, ErrorKind, Result};

/// The open environments and the number of their readers, by the canonical path of the directory.
static OPEN: LazyLock<Mutex<OpenTrees>> = LazyLock::new(Mutex::default);

type OpenTrees = HashMap<PathBuf, (Arc<LmdbEnvironment>, usize)>;

/// One reader of an environment. When the last reader is dropped, the environment is closed.
/// Everything else that uses the environment must have been dropped before.
pub(super) struct SharedReader(PathBuf);

/// Returns the environment of a directory. If the directory has no reader yet, `open` opens the
/// environment.
pub(super) fn open(
    directory: &Path,
    open: impl FnOnce() -> Result<LmdbEnvironment>,
) -> Result<(Arc<LmdbEnvironment>, SharedReader)> {
    let directory = directory.canonicalize().map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("\"{}\": {error}", directory.display()))
    })?;
    let mut all = OPEN.lock();
    if let Some((lmdb, count)) = all.get_mut(&directory) {
        *count += 1;
        return Ok((Arc::clone(lmdb), SharedReader(directory)));
    }
    let lmdb = Arc::new(open()?);
    all.insert(directory.clone(), (Arc::clone(&lmdb), 1));
    Ok((lmdb, SharedReader(directory)))
}

impl Drop for SharedReader {
    fn drop(&mut self) {
        // The environment is closed under the lock, so that no thread can reopen it meanwhile.
        let mut all = OPEN.lock();
        if let Some((_, count)) = all.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.0);
            }
        }
    }
}
