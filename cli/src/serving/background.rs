//! Going on in the background, and what is said from there.

use super::ServingProblem;
use nix::unistd::daemon;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

/// How to go on in the background.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackgroundStart {
    /// Stay in the directory, where core files go, instead of changing to `/`.
    pub(crate) stays: bool,
    /// Keep the terminal's streams.
    pub(crate) keeps_streams: bool,
}

impl BackgroundStart {
    /// Goes on in a process and session of its own. The process that was started ends here with exit code 0.
    pub(super) fn enter(self) -> Result<(), ServingProblem<'static>> {
        // A fork takes only its own thread along: with others, locks would stay locked for ever.
        let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
        if threads > 1 {
            return Err(ServingProblem::Threads(threads));
        }
        daemon(self.stays, self.keeps_streams).map_err(ServingProblem::Background)
    }
}

/// Returns standard error as it is now, for messages after the process has left its terminal.
pub(crate) fn error_stream() -> Box<dyn Write> {
    match io::stderr().as_fd().try_clone_to_owned() {
        Ok(stream) => Box::new(File::from(stream)),
        // It is closed, or there are no descriptors left.
        Err(_) => Box::new(io::stderr()),
    }
}

/// Returns the system's words for an error, without the number that Rust adds.
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
    fn reasons_are_the_systems_words_alone() {
        assert_eq!(reason(&Errno::EADDRINUSE.into()), "Address already in use");
        assert_eq!(reason(&io::Error::other("lost (os error 5)")), "lost (os error 5)");
    }
}
