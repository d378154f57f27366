//! The pid file of `-P`. As in memcached, any server writes it, but only a daemon removes it at the
//! end.

use nix::sys::signal::kill;
use nix::unistd::Pid;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes the process ID to a temporary file, and renames that file. Errors are only printed, and
/// the server continues without the file.
pub(crate) fn write(path: &Path, trouble: &mut impl Write) {
    // A failure is ignored, because standard error may be closed.
    let mut print = |text: String| drop(writeln!(trouble, "{text}"));
    if let Some(pid) = running(path) {
        print(format!("WARNING: The pid file contained the following (running) pid: {pid}"));
    }
    let unfinished = unfinished(path);
    if let Err(error) = std::fs::write(&unfinished, format!("{}\n", std::process::id())) {
        let reason = crate::serving::reason(&error);
        return print(format!("Could not open the pid file {} for writing: {reason}", unfinished.display()));
    }
    if let Err(error) = std::fs::rename(&unfinished, path) {
        let reason = crate::serving::reason(&error);
        let (from, to) = (unfinished.display(), path.display());
        print(format!("Could not rename the pid file from {from} to {to}: {reason}"));
    }
}

/// Removes the file, unless it contains the ID of another process, which has replaced it.
pub(crate) fn remove(path: &Path) {
    if named(path) == Some(std::process::id()) {
        let _ = std::fs::remove_file(path);
    }
}

/// Returns the process ID in the file.
fn named(path: &Path) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn unfinished(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".tmp");
    name.into()
}

/// Returns the process ID in the file if it belongs to another process that is running.
fn running(path: &Path) -> Option<i32> {
    let pid = i32::try_from(named(path)?).ok().filter(|&pid| pid > 0)?;
    let ours = u32::try_from(pid) == Ok(std::process::id());
    // The error EPERM also shows that the process exists.
    let alive = !matches!(kill(Pid::from_raw(pid), None), Err(nix::errno::Errno::ESRCH));
    (alive && !ours).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_process_removes_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        // This process ID cannot be that of the test's process.
        let successor = format!("1{}\n", std::process::id());
        std::fs::write(&path, &successor).unwrap();
        remove(&path);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), successor);
        let mut trouble = Vec::new();
        write(&path, &mut trouble);
        assert!(trouble.is_empty());
        remove(&path);
        assert!(!path.exists());
    }
}
