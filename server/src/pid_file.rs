//! The pid file: written when the server listens, removed with it.

use std::io;
use std::path::{Path, PathBuf};

/// A file that holds this process's id for as long as this lives.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file. Fails with the system's error, which does not name it.
    pub fn write(path: &Path) -> io::Result<PidFile> {
        std::fs::write(path, content())?;
        Ok(PidFile(path.to_path_buf()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A successor that started before this one ended has written its own id, which must stay.
        if std::fs::read_to_string(&self.0).is_ok_and(|found| found == content()) {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

fn content() -> String {
    format!("{}\n", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_goes_with_its_server() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        let file = PidFile::write(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn a_successor_keeps_its_pid_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        let file = PidFile::write(&path).unwrap();
        // Not this process: nobody has two ids.
        let successor = format!("1{}\n", std::process::id());
        std::fs::write(&path, &successor).unwrap();
        drop(file);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), successor);
    }
}
