//! The pid file: written when the server listens, removed with it.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file that holds this process's id for as long as this lives.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file. Fails with the system's error, which does not name it.
    pub fn write(path: &Path) -> io::Result<PidFile> {
        // A link would have the file made wherever it leads.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).custom_flags(no_follow());
        options.open(path)?.write_all(content().as_bytes())?;
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

fn no_follow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
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
