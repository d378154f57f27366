//! What the system says of this process.

use std::time::Duration;

/// Resident bytes, 0 where the system does not tell.
pub(crate) fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()));
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// The machine's memory in bytes.
pub(crate) fn machine_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    // Both are words of the system's size.
    (system.totalram as u64).saturating_mul(u64::from(system.mem_unit))
}

/// CPU time spent: in user mode, in the kernel.
pub(crate) fn cpu_time() -> (Duration, Duration) {
    let ticks = std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| {
        // The command's name, in parentheses, may hold blanks; the fields behind it do not.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let user = fields.nth(11)?.parse::<u64>().ok()?;
        let system = fields.next()?.parse::<u64>().ok()?;
        Some((user, system))
    });
    let (user, system) = ticks.unwrap_or((0, 0));
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let duration = |ticks: u64| Duration::from_micros(ticks * 1_000_000 / per_second);
    (duration(user), duration(system))
}

/// Raises the limit of open files to hold so many connections; the limit afterwards.
pub(crate) fn allow_files(wanted: u64) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(u64::MAX);
    if current >= wanted {
        return current;
    }
    let maximum = limit.maximum.map_or(wanted, |maximum| maximum.max(wanted));
    // Root may raise the hard limit too; others go as far as it lets them.
    for raised in [
        Rlimit { current: Some(wanted), maximum: Some(maximum) },
        Rlimit {
            current: limit.maximum.map(|maximum| maximum.min(wanted)).or(Some(wanted)),
            maximum: limit.maximum,
        },
    ] {
        if setrlimit(Resource::Nofile, raised).is_ok() {
            break;
        }
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
