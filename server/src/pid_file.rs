//! Writes the pid file once the server listens, and removes it when the server ends.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file that holds the ID of this process. Dropping the value removes the file.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file. The error is that of the system and does not name the file.
    pub fn write(path: &Path) -> io::Result<PidFile> {
        // If the path is a symbolic link, an ordinary open would create the file at the target of
        // the link.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).custom_flags(no_follow());
        options.open(path)?.write_all(content().as_bytes())?;
        Ok(PidFile(path.to_path_buf()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Another server may have started before this one ended, and have written its own ID to the
        // file. Its file must stay.
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
    fn pid_file_is_removed_with_its_server() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        let file = PidFile::write(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn pid_file_of_a_successor_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        let file = PidFile::write(&path).unwrap();
        // The 1 before the ID makes this the ID of another process.
        let successor = format!("1{}\n", std::process::id());
        std::fs::write(&path, &successor).unwrap();
        drop(file);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), successor);
    }
}
