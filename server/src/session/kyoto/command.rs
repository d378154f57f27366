//! Runs the commands of the call `synchronize`, which are programs in the configured directory. No
//! other program can be run.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The time after which a running command is killed.
const TIME_MAX: Duration = Duration::from_secs(600);
/// The first and the longest interval between two checks whether the command has ended.
const CHECK_INTERVALS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Runs a command of this directory, without a shell. Its arguments are the path of a database and
/// a time stamp of 20 digits. Returns false if there is no such command, or if the command fails,
/// takes too long or is cancelled.
pub(super) fn run(directory: &Path, name: &[u8], database: &str, is_cancelled: &dyn Fn() -> bool) -> bool {
    let Some(name) = file_name(name) else { return false };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // The stamp is the time in nanoseconds, with a resolution of milliseconds.
    let stamp = format!("{:020}", now.as_millis() * 1_000_000);
    let mut command = Command::new(directory.join(name));
    command.arg(database).arg(stamp).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // The command gets its own process group, so that signals for the server do not reach it.
    match command.process_group(0).spawn().and_then(|mut child| wait(&mut child, is_cancelled)) {
        Ok(Some(status)) if status.success() => true,
        Ok(Some(status)) => {
            tracing::warn!("synchronize: command {name} failed: {status}");
            false
        }
        Ok(None) => {
            tracing::warn!("synchronize: command {name} was killed: it took too long or its client has gone");
            false
        }
        Err(error) => {
            tracing::warn!("synchronize: cannot run command {name}: {error}");
            false
        }
    }
}

/// Returns the name if it is a plain file name.
fn file_name(name: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(name).ok()?;
    let is_strange = |c: char| c == '/' || c.is_control();
    (!name.is_empty() && !name.starts_with('.') && !name.contains(is_strange)).then_some(name)
}

fn wait(child: &mut Child, is_cancelled: &dyn Fn() -> bool) -> std::io::Result<Option<ExitStatus>> {
    let (since, mut pause) = (Instant::now(), CHECK_INTERVALS.0);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if since.elapsed() > TIME_MAX || is_cancelled() {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        // This thread waits by polling.
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(CHECK_INTERVALS.1);
    }
}

#[cfg(test)]
mod tests {
    use super::file_name;

    #[test]
    fn command_is_a_name_in_the_directory() {
        assert_eq!(file_name(b"backup.sh"), Some("backup.sh"));
        for name in [&b""[..], b".", b"..", b"../x", b"/bin/sh", b"a/b", b".hidden", b"a\0b", b"\xFF", b"a\n"]
        {
            assert_eq!(file_name(name), None, "{}", name.escape_ascii());
        }
    }
}
