//! The settings of the process itself: limits, user, memory locks.
//!
//! Invariant: these functions run while the process has a single thread. Forking and changing the
//! user are sound only then.

use super::server_failure::{SYSTEM, ServerFailure};
use crate::serving::reason;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::unistd::{User, geteuid, getuid, setgid, setgroups, setuid};
use rustix::mm::{MlockAllFlags, mlockall};
use std::io::Write;

/// The number of file descriptors that are needed for other purposes than connections: listeners,
/// polls and wakers of the threads, standard streams, files.
const DESCRIPTORS_BESIDES: u64 = 256;

/// Allows core files of any size.
pub(crate) fn allow_core_dumps() -> Result<(), ServerFailure> {
    let (_, hard) = getrlimit(Resource::RLIMIT_CORE).map_err(|_| no_core_dumps())?;
    // Only root may raise the hard limit. For other users, the soft limit is raised to the current
    // hard limit.
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

/// Raises the limits that only root may raise. If a limit stays too low, the start of the server
/// reports that.
pub(crate) fn raise_limits(connections_max: usize, threads: usize, lock_memory: bool) {
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

/// Changes to another user if the process runs as root. Otherwise does nothing, as memcached.
pub(crate) fn assume_user(name: Option<&str>) -> Result<(), ServerFailure> {
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
    // EPERM is ignored: a container that has removed the right to change groups has also removed
    // the groups.
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

/// Allows core files again. The kernel forbids them when a process changes its user.
pub(crate) fn stay_dumpable() {
    let _ = prctl::set_dumpable(true);
}

/// Locks all current and future memory, so that it is never swapped out.
pub(crate) fn lock_memory(trouble: &mut impl Write) {
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE;
    // With ONFAULT, a page is locked only when it is first used. Mappings are larger than their
    // contents, and the stacks of the threads alone would lock megabytes. Kernels before 4.4 can
    // only lock everything.
    let outcome = mlockall(all | MlockAllFlags::ONFAULT).or_else(|_| mlockall(all));
    if let Err(error) = outcome {
        // A failure is ignored, because standard error may be closed.
        let _ = writeln!(trouble, "warning: -k invalid, mlockall() failed: {}", reason(&error.into()));
    }
}
