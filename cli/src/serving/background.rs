//! The move of a server into the background, and its messages from there.

use super::ServingProblem;
use nix::unistd::daemon;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

/// Settings of a daemon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackgroundStart {
    /// Stay in the current directory, for core files, instead of changing to `/`.
    pub(crate) stays: bool,
    /// Keep the standard streams open.
    pub(crate) keeps_streams: bool,
}

impl BackgroundStart {
    /// Continues in a process and session of its own. The calling process ends here with exit code
    /// 0.
    pub(super) fn enter(self) -> Result<(), ServingProblem<'static>> {
        // A fork copies only the calling thread. The locks of other threads would never be
        // released.
        let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
        if threads > 1 {
            return Err(ServingProblem::Threads(threads));
        }
        daemon(self.stays, self.keeps_streams).map_err(ServingProblem::Background)
    }
}

/// Returns a copy of standard error, for messages after the process has left its terminal.
pub(crate) fn error_stream() -> Box<dyn Write> {
    match io::stderr().as_fd().try_clone_to_owned() {
        Ok(stream) => Box::new(File::from(stream)),
        // Standard error is closed, or no descriptor is free.
        Err(_) => Box::new(io::stderr()),
    }
}

/// Returns the message of the system without the number that Rust adds.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let number = error.raw_os_error().map(|number| format!(" (os error {number})"));
    number.and_then(|number| text.strip_suffix(&number).map(String::from)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;

    #[test]
    fn reason_has_no_error_number() {
        assert_eq!(reason(&Errno::EADDRINUSE.into()), "Address already in use");
        assert_eq!(reason(&io::Error::other("lost (os error 5)")), "lost (os error 5)");
    }
}
