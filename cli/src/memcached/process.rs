//! What a daemon settles with the system: limits, its user, its terminal, its memory.
//!
//! All of it happens on the only thread there is: forking, and a change of user, are sound only then.

use super::refusal::{Refusal, SYSTEM};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::unistd::{User, daemon, geteuid, getuid, setgid, setgroups, setuid};
use rustix::mm::{MlockAllFlags, mlockall};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

/// Descriptors besides those of connections: listeners, polls and wakers of the threads, standard streams, files.
const DESCRIPTORS_BESIDES: u64 = 256;

/// The system's words for an error, without the number that Rust adds.
pub(super) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let number = error.raw_os_error().map(|number| format!(" (os error {number})"));
    number.and_then(|number| text.strip_suffix(&number).map(String::from)).unwrap_or(text)
}

/// Lets the system keep a core file of any size.
pub(super) fn allow_core_dumps() -> Result<(), Refusal> {
    let (_, hard) = getrlimit(Resource::RLIMIT_CORE).map_err(|_| no_core_dumps())?;
    // Only root may raise the hard limit; others go as far as it lets them.
    if setrlimit(Resource::RLIMIT_CORE, RLIM_INFINITY, RLIM_INFINITY).is_err() {
        setrlimit(Resource::RLIMIT_CORE, hard, hard).map_err(|_| no_core_dumps())?;
    }
    match getrlimit(Resource::RLIMIT_CORE) {
        Ok((soft, _)) if soft > 0 => Ok(()),
        _ => Err(no_core_dumps()),
    }
}

fn no_core_dumps() -> Refusal {
    Refusal::new(SYSTEM, "failed to ensure corefile creation")
}

/// Raises limits that only root may raise, while it is root. What remains too low shows when the server starts.
pub(super) fn raise_limits(connections_max: usize, threads: usize, lock_memory: bool) {
    let wanted = connections_max as u64 + 2 * threads as u64 + DESCRIPTORS_BESIDES;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < wanted
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted));
    }
    if lock_memory {
        let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    }
}

/// Becomes another user, if it is root; others keep who they are, whatever user was asked for.
pub(super) fn assume_user(name: Option<&str>) -> Result<(), Refusal> {
    if !getuid().is_root() && !geteuid().is_root() {
        return Ok(());
    }
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return Err(Refusal::usage("must add '-u root' to start as root"));
    };
    let Ok(Some(user)) = User::from_name(name) else {
        return Err(Refusal::new(
            super::refusal::NO_USER,
            format!("can't find the user {name} to switch to"),
        ));
    };
    // EPERM: a container that took the right away has taken the groups away too.
    match setgroups(&[]) {
        Ok(()) | Err(Errno::EPERM) => {}
        Err(error) => {
            return Err(Refusal::new(
                SYSTEM,
                format!("failed to drop supplementary groups: {}", reason(&error.into())),
            ));
        }
    }
    setgid(user.gid)
        .and_then(|()| setuid(user.uid))
        .map_err(|_| Refusal::new(SYSTEM, format!("failed to assume identity of user {name}")))
}

/// A process that has changed its user leaves no core file unless it is told that it may.
pub(super) fn stay_dumpable() {
    let _ = prctl::set_dumpable(true);
}

/// Goes on in the background: in a process and session of its own, in `/` unless `stay` (core files go there), and
/// without the terminal's streams unless `keep_streams`. The process that was started ends here with exit code 0.
pub(super) fn detach(stay: bool, keep_streams: bool) -> Result<(), Refusal> {
    // A fork takes only its own thread along: with others, locks would stay locked for ever.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        return Err(Refusal::new(SYSTEM, format!("failed to daemon(): there are {threads} threads already")));
    }
    daemon(stay, keep_streams).map_err(|error| {
        Refusal::bad_value(format!("failed to daemon() in order to daemonize: {}", reason(&error.into())))
    })
}

/// Standard error as it is now, for what is to be told after the process has left its terminal.
pub(super) fn error_stream() -> Box<dyn Write> {
    match io::stderr().as_fd().try_clone_to_owned() {
        Ok(stream) => Box::new(File::from(stream)),
        // It is closed, or there are no descriptors left.
        Err(_) => Box::new(io::stderr()),
    }
}

/// Keeps all memory from being swapped out, now and later.
pub(super) fn lock_memory(trouble: &mut impl Write) {
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE;
    // Pages are locked once they are touched: mappings are made larger than what is in them, and threads' stacks
    // alone would take megabytes. Kernels before 4.4 know only all at once.
    let outcome = mlockall(all | MlockAllFlags::ONFAULT).or_else(|_| mlockall(all));
    if let Err(error) = outcome {
        // Nobody may be there to be told.
        let _ = writeln!(trouble, "warning: -k invalid, mlockall() failed: {}", reason(&error.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_the_systems_words_alone() {
        assert_eq!(reason(&Errno::EADDRINUSE.into()), "Address already in use");
        assert_eq!(reason(&io::Error::other("lost (os error 5)")), "lost (os error 5)");
    }
}
