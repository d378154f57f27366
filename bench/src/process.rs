//! What a server process costs, from /proc.

use std::path::PathBuf;
use std::time::Duration;

/// Linux tells user space of ticks of a hundredth of a second, whatever its own are.
const TICK: Duration = Duration::from_millis(10);

/// CPU time of a process, all its threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTime {
    /// In nanoseconds.
    pub(crate) total: Duration,
    /// In ticks; the kernel divides the total by where it met the process.
    pub(crate) user: Duration,
    /// In ticks.
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

/// The number of one process, as an option has it.
pub(crate) fn one(text: &str) -> Result<u32, String> {
    let several = text.split([' ', ',', '\n']).filter(|part| !part.is_empty()).count() > 1;
    match text.trim().parse() {
        Ok(pid) => Ok(pid),
        Err(_) if several => Err("there are several; one is measured".into()),
        Err(_) => Err("not the number of a process".into()),
    }
}

/// CPU time of a process. Fails if there is no such process.
pub(crate) fn cpu_time(pid: u32) -> Result<CpuTime, String> {
    let (user, system) =
        ticks(&read(pid, "stat")?).ok_or_else(|| format!("/proc/{pid}/stat cannot be understood"))?;
    // The finer figures lack threads that have ended, and a kernel may be built without them.
    let total = scheduled(pid).unwrap_or_default().max(user + system);
    Ok(CpuTime { total, user, system })
}

/// Returns the resident memory of a process (VmRSS) in bytes.
pub(crate) fn resident(pid: u32) -> Result<u64, String> {
    status(pid, "VmRSS")
}

/// Returns the anonymous part of its resident memory (RssAnon) in bytes.
pub(crate) fn anonymous(pid: u32) -> Result<u64, String> {
    status(pid, "RssAnon")
}

/// Returns the bytes that /proc/PID/status shows under a name.
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

/// User and system time in a line of /proc/PID/stat.
fn ticks(stat: &str) -> Option<(Duration, Duration)> {
    // The name of the program, in parentheses, may hold blanks and parentheses itself. Behind it the state is field 3.
    let mut words = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(14 - 3);
    let mut next = || Some(TICK * words.next()?.parse::<u32>().ok()?);
    Some((next()?, next()?))
}

/// The time that the threads that there are have been on a processor.
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
    fn the_times_are_found_behind_any_name() {
        let stat = "71 (a ) R) S 1 71 71 0 -1 4194560 900 0 0 0 123 45 0 0 20 0 5 0 1000 1000 50 0";
        assert_eq!(ticks(stat), Some((Duration::from_millis(1230), Duration::from_millis(450))));
        for stat in ["", "71 (x) S 1", "71 (x) S 1 71 71 0 -1 4194560 900 0 0 0 x 45"] {
            assert_eq!(ticks(stat), None, "{stat}");
        }
    }

    #[test]
    fn a_process_has_its_cost_and_no_process_has_none() {
        let pid = std::process::id();
        let before = cpu_time(pid).unwrap();
        // However fast it is and whatever other threads end meanwhile, at some time it has cost something.
        let has_cost = |_| {
            assert!((0..1_000_000u64).map(std::hint::black_box).sum::<u64>() > 0);
            cpu_time(pid).unwrap().since(before).total > 2 * TICK
        };
        assert!((0..10_000).any(has_cost));
        assert!(resident(pid).unwrap() > 100_000);
        assert!((50_000..=resident(pid).unwrap()).contains(&anonymous(pid).unwrap()));
        // No process has the number of the kernel's largest.
        let failure = cpu_time(u32::MAX).unwrap_err();
        assert!(failure.starts_with("process 4294967295: /proc/4294967295/stat: "), "{failure}");
    }
}
