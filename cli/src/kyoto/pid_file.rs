//! The pid file: written once the server listens, removed at its end.

use std::path::{Path, PathBuf};

/// A file that holds this process's id for as long as this lives.
pub(super) struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file. The error names it.
    pub(super) fn write(path: &Path) -> Result<PidFile, String> {
        std::fs::write(path, content())
            .map_err(|error| format!("-pid {}: cannot write it: {error}", path.display()))?;
        Ok(PidFile(path.to_path_buf()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A successor has written its own id, which must stay.
        if std::fs::read_to_string(&self.0).is_ok_and(|found| found == content()) {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

fn content() -> String {
    format!("{}\n", std::process::id())
}
