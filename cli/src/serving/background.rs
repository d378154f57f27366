//! Moves a server into the background, and keeps a stream for its messages from there.

use super::ServingProblem;
use nix::unistd::daemon;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

/// How a server continues in the background.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackgroundStart {
    /// Stays in the current directory, where the kernel writes core files, instead of changing to
    /// `/`.
    pub(crate) stays: bool,
    /// Keeps the standard streams open.
    pub(crate) keeps_streams: bool,
}

impl BackgroundStart {
    /// Continues in a new process with a session of its own. The calling process ends with exit
    /// code 0.
    pub(super) fn enter(self) -> Result<(), ServingProblem<'static>> {
        // A fork copies only the calling thread, so locks that other threads hold would never be
        // released.
        let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
        if threads > 1 {
            return Err(ServingProblem::Threads(threads));
        }
        daemon(self.stays, self.keeps_streams).map_err(ServingProblem::Background)
    }
}

/// Returns a copy of standard error, which stays open after the process has left its terminal.
pub(crate) fn error_stream() -> Box<dyn Write> {
    match io::stderr().as_fd().try_clone_to_owned() {
        Ok(stream) => Box::new(File::from(stream)),
        // Standard error is closed, or no file descriptor is free.
        Err(_) => Box::new(io::stderr()),
    }
}

/// Returns the system's message without the number that Rust appends.
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
