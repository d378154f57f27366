//! Reads the CPU time and the memory of a server process from /proc.

use std::path::PathBuf;
use std::time::Duration;

/// Linux reports times to programs in ticks of 10 ms, regardless of the kernel's own timer
/// frequency.
const TICK: Duration = Duration::from_millis(10);

/// The CPU time of all threads of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTime {
    /// The total, with a resolution of nanoseconds.
    pub(crate) total: Duration,
    /// The user time, in ticks. The kernel divides the total by sampling, so user and system time
    /// are estimates.
    pub(crate) user: Duration,
    /// The system time, in ticks.
    pub(crate) system: Duration,
}

impl CpuTime {
    pub(crate) fn since(self, before: CpuTime) -> CpuTime {
        CpuTime {
            total: self.total.saturating_sub(before.total),
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
        }
    }
}

/// Parses the process ID of an option.
pub(crate) fn one(text: &str) -> Result<u32, String> {
    let several = text.split([' ', ',', '\n']).filter(|part| !part.is_empty()).count() > 1;
    match text.trim().parse() {
        Ok(pid) => Ok(pid),
        Err(_) if several => Err("there are several; one is measured".into()),
        Err(_) => Err("not the number of a process".into()),
    }
}

/// Returns the CPU time of a process. Fails if the process does not exist.
pub(crate) fn cpu_time(pid: u32) -> Result<CpuTime, String> {
    let (user, system) =
        ticks(&read(pid, "stat")?).ok_or_else(|| format!("/proc/{pid}/stat cannot be understood"))?;
    // schedstat has a finer resolution, but does not count ended threads, and some kernels are
    // built without it.
    let total = scheduled(pid).unwrap_or_default().max(user + system);
    Ok(CpuTime { total, user, system })
}

/// Returns the resident memory of a process (VmRSS) in bytes.
pub(crate) fn resident(pid: u32) -> Result<u64, String> {
    status(pid, "VmRSS")
}

/// Returns the anonymous part of a process's resident memory (RssAnon) in bytes.
pub(crate) fn anonymous(pid: u32) -> Result<u64, String> {
    status(pid, "RssAnon")
}

/// Returns the bytes that /proc/PID/status reports under `name`.
fn status(pid: u32, name: &str) -> Result<u64, String> {
    let status = read(pid, "status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes = line.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok(kilobytes.ok_or_else(|| format!("/proc/{pid}/status has no {name}"))? * 1024)
}

fn read(pid: u32, name: &str) -> Result<String, String> {
    let path = PathBuf::from(format!("/proc/{pid}/{name}"));
    std::fs::read_to_string(&path).map_err(|error| format!("process {pid}: {}: {error}", path.display()))
}

/// Returns user and system time from a line of /proc/PID/stat.
fn ticks(stat: &str) -> Option<(Duration, Duration)> {
    // The name of the program is in parentheses and may itself contain blanks and parentheses.
    // Field 3, the state, follows the last parenthesis.
    let mut words = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(14 - 3);
    let mut next = || Some(TICK * words.next()?.parse::<u32>().ok()?);
    Some((next()?, next()?))
}

/// Returns the time that the current threads of a process have spent on a processor.
fn scheduled(pid: u32) -> Option<Duration> {
    let mut total = 0u64;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        total += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_follow_any_program_name() {
        let stat = "71 (a ) R) S 1 71 71 0 -1 4194560 900 0 0 0 123 45 0 0 20 0 5 0 1000 1000 50 0";
        assert_eq!(ticks(stat), Some((Duration::from_millis(1230), Duration::from_millis(450))));
        for stat in ["", "71 (x) S 1", "71 (x) S 1 71 71 0 -1 4194560 900 0 0 0 x 45"] {
            assert_eq!(ticks(stat), None, "{stat}");
        }
    }

    #[test]
    fn missing_process_has_no_cpu_time() {
        let pid = std::process::id();
        let before = cpu_time(pid).unwrap();
        // The process runs until it has used measurable CPU time, however fast the machine is.
        let has_cost = |_| {
            assert!((0..1_000_000u64).map(std::hint::black_box).sum::<u64>() > 0);
            cpu_time(pid).unwrap().since(before).total > 2 * TICK
        };
        assert!((0..10_000).any(has_cost));
        assert!(resident(pid).unwrap() > 100_000);
        assert!((50_000..=resident(pid).unwrap()).contains(&anonymous(pid).unwrap()));
        // The largest number is greater than the kernel's limit of process IDs.
        let failure = cpu_time(u32::MAX).unwrap_err();
        assert!(failure.starts_with("process 4294967295: /proc/4294967295/stat: "), "{failure}");
    }
}
