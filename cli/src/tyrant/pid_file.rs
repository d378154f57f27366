//! The process that the pid file names. If another server is running, it must be ended first
//! (`-kl`), or this server does not start.

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::time::Duration;

/// The time between two checks whether the other process has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The number of checks before the other process is killed.
const CHECKS_MAX: usize = 100;

/// Returns the process ID in the file if it belongs to another process that is running.
pub(super) fn other_process(path: &Path) -> Option<i32> {
    let pid = std::fs::read_to_string(path).ok()?.trim().parse().ok().filter(|&pid: &i32| pid > 0)?;
    let is_own = u32::try_from(pid) == Ok(std::process::id());
    (!is_own && is_alive(pid)).then_some(pid)
}

/// Ends the process with SIGTERM, and with SIGKILL if it does not end in time. `warn` receives a
/// line for each signal.
pub(super) fn end(pid: i32, warn: &mut dyn FnMut(String)) {
    warn(format!("killing the process {pid} with SIGTERM"));
    let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    for _ in 0..CHECKS_MAX {
        if !is_alive(pid) {
            return;
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
    warn(format!("killing the process {pid} with SIGKILL"));
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    while is_alive(pid) {
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// Returns true if the process exists. The error EPERM also shows that it exists.
fn is_alive(pid: i32) -> bool {
    !matches!(kill(Pid::from_raw(pid), None), Err(Errno::ESRCH)) && !is_zombie(pid)
}

/// Returns true if the process has ended but its parent has not been notified yet.
fn is_zombie(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}
