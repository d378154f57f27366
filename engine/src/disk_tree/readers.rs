//! Read-only trees of this process. LMDB allows only one environment per file in a process, so the
//! readers of a tree share it.

use crate::raw::LmdbEnvironment;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use todana_core::{Error, ErrorKind, Result};

/// The environments and the number of their readers, by canonical directory.
static OPEN: LazyLock<Mutex<OpenTrees>> = LazyLock::new(Mutex::default);

type OpenTrees = HashMap<PathBuf, (Arc<LmdbEnvironment>, usize)>;

/// A reader. The environment is closed when its last reader is dropped; everything that uses the
/// environment must have been dropped before.
pub(super) struct SharedReader(PathBuf);

/// Returns the environment of a directory. `open` opens it if it has no reader yet.
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
        // Closed under the lock, so that no thread can reopen it meanwhile.
        let mut all = OPEN.lock();
        if let Some((_, count)) = all.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.0);
            }
        }
    }
}
