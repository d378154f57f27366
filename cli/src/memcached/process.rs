//! What a daemon settles with the system: limits, its user, its terminal, its memory.
//!
//! All of it happens on the only thread there is: forking, and a change of user, are sound only then.

use super::server_failure::{SYSTEM, ServerFailure};
use crate::serving::reason;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::unistd::{User, geteuid, getuid, setgid, setgroups, setuid};
use rustix::mm::{MlockAllFlags, mlockall};
use std::io::Write;

/// Descriptors besides those of connections: listeners, polls and wakers of the threads, standard streams, files.
const DESCRIPTORS_BESIDES: u64 = 256;

/// Lets the system keep a core file of any size.
pub(super) fn allow_core_dumps() -> Result<(), ServerFailure> {
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

fn no_core_dumps() -> ServerFailure {
    ServerFailure::new(SYSTEM, "failed to ensure corefile creation")
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
pub(super) fn assume_user(name: Option<&str>) -> Result<(), ServerFailure> {
    if !getuid().is_root() && !geteuid().is_root() {
        return Ok(());
    }
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return Err(ServerFailure::usage("must add '-u root' to start as root"));
    };
    let Ok(Some(user)) = User::from_name(name) else {
        return Err(ServerFailure::new(
            super::server_failure::NO_USER,
            format!("can't find the user {name} to switch to"),
        ));
    };
    // EPERM: a container that took the right away has taken the groups away too.
    match setgroups(&[]) {
        Ok(()) | Err(Errno::EPERM) => {}
        Err(error) => {
            return Err(ServerFailure::new(
                SYSTEM,
                format!("failed to drop supplementary groups: {}", reason(&error.into())),
            ));
        }
    }
    setgid(user.gid)
        .and_then(|()| setuid(user.uid))
        .map_err(|_| ServerFailure::new(SYSTEM, format!("failed to assume identity of user {name}")))
}

/// A process that has changed its user leaves no core file unless it is told that it may.
pub(super) fn stay_dumpable() {
    let _ = prctl::set_dumpable(true);
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
