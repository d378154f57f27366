//! Reads figures of this process and of its machine from the system.

use std::time::Duration;

/// Returns the resident bytes, or 0 if the system does not report them.
pub(crate) fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()));
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// Returns the anonymous resident bytes (`RssAnon`), or `None` if the system does not report them.
/// Resident pages that files back, including those of the program itself, do not count, because the
/// system can take them back.
pub(crate) fn anonymous_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split(' ').skip(1).map(|pages| pages.parse::<u64>().ok());
    let (resident, of_files) = (pages.next()??, pages.next()??);
    Some(resident.saturating_sub(of_files) * rustix::param::page_size() as u64)
}

/// Returns the bytes in the line `LABEL N kB` of a file, or `None` if there is no such line.
pub(crate) fn kibibytes(path: &str, label: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(label))?;
    Some(rest.trim().split(' ').next()?.parse::<u64>().ok()? << 10)
}

/// Returns the time since 1970 by the system's clock.
pub(crate) fn unix_time() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Returns the bytes of memory of the machine.
pub(crate) fn machine_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    // Both factors are machine words, whose width depends on the platform.
    (system.totalram as u64).saturating_mul(u64::from(system.mem_unit))
}

/// Returns the CPU time spent in user mode and in the kernel.
pub(crate) fn cpu_time() -> (Duration, Duration) {
    let ticks = std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| {
        // The name of the command, in parentheses, may contain blanks; the fields after it do not.
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

/// Returns the bytes of address space in use, or `None` if the system does not report them.
pub(crate) fn virtual_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').next()?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Returns the limit of the address space in bytes, or `None` if there is no limit.
pub(crate) fn virtual_bytes_max() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::As).current
}

/// Returns the number of open files, or `None` if the system does not report it. The time that this
/// takes grows with the number of open files.
pub(crate) fn open_files() -> Option<u64> {
    // The descriptor of the directory `/proc/self/fd` is itself in the list while the directory is
    // read.
    Some((std::fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1))
}

/// Returns the limit of open files, or `None` if there is no limit.
pub(crate) fn files_max() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// Returns the start of the process as time since 1970, or `None` if the system does not report it.
pub(crate) fn started_at() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let ticks: u64 = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
    let system = std::fs::read_to_string("/proc/stat").ok()?;
    let boot = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_secs(boot) + Duration::from_micros(ticks * 1_000_000 / per_second))
}

/// Raises the limit of open files to `wanted` if possible. Returns the limit afterwards.
pub(crate) fn allow_files(wanted: u64) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(u64::MAX);
    if current >= wanted {
        return current;
    }
    let maximum = limit.maximum.map_or(wanted, |maximum| maximum.max(wanted));
    // Root may raise the hard limit, too. Other users can raise the soft limit up to the hard
    // limit.
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
