//! Checks the limits, the memory and the clock of this machine.

use super::ServerNeeds;
use super::finding::{CheckReport, Finding};
use indicatif::BinaryBytes;
use std::process::{Command, Stdio};

/// The kernel reports memory in KiB.
const KIB: u64 = 1 << 10;
/// Descriptors that a server needs besides those of connections.
const DESCRIPTORS_BESIDES: u64 = 64;
/// The share of the machine's memory that the records may take, in percent.
const MEMORY_PERCENT_MAX: u64 = 80;

/// Checks this machine for a server.
pub(super) fn check(needs: &ServerNeeds, report: &mut CheckReport) {
    let process = needs.pid.map_or_else(|| "self".to_string(), |pid| pid.to_string());
    report.add_all(open_files(&read(&format!("/proc/{process}/limits")), needs));
    let memory = read("/proc/meminfo");
    report.add_all(memory_limit(&memory, &read("/sys/fs/cgroup/memory.max"), needs));
    report.add_all(overcommit(&read("/proc/sys/vm/overcommit_memory"), &memory, needs));
    let status = needs.pid.map(|pid| read(&format!("/proc/{pid}/status")));
    report.add_all(swap(&memory, status.as_deref()));
    report.add_all(huge_pages(&read("/sys/kernel/mm/transparent_hugepage/enabled")));
    report.add_all(clock_source(&read("/sys/devices/system/clocksource/clocksource0/current_clocksource")));
    report.add(clock(&synchronised()));
}

/// Returns the content of a file of the kernel, or an empty text.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns a size of `/proc/meminfo` or a status file in bytes.
fn size(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * KIB)
}

fn open_files(limits: &str, needs: &ServerNeeds) -> Option<Finding> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let mut words = line.split_whitespace();
    let number = |word: &str| word.parse().unwrap_or(u64::MAX);
    let (soft, hard) = (number(words.next()?), number(words.next()?));
    // A server raises the soft limit at its start.
    let allowed = if needs.pid.is_some() { soft } else { hard };
    // A running server has the descriptors that it needs besides those of connections.
    let besides = if needs.pid.is_some() { 0 } else { DESCRIPTORS_BESIDES };
    let wanted = needs.connections_max + besides;
    let connections = needs.connections_max;
    Some(match allowed >= wanted {
        true => Finding::ok("open files", format!("{allowed} suffice for {connections} connections")),
        false => Finding::problem(
            "open files",
            format!("{allowed} are too few for {connections} connections"),
            format!(
                "set LimitNOFILE={wanted} in the unit, `ulimit -n {wanted}` before the start, or lower -c"
            ),
        ),
    })
}

fn memory_limit(meminfo: &str, cgroup: &str, needs: &ServerNeeds) -> Option<Finding> {
    let machine = size(meminfo, "MemTotal")?;
    let (there, place) = match cgroup.trim().parse::<u64>() {
        Ok(limit) if limit < machine => (limit, "the control group"),
        _ => (machine, "the machine"),
    };
    let (limit, has) = (needs.memory_limit, format!("{place} has {}", BinaryBytes(there)));
    Some(match limit {
        0 => Finding::warning(
            "memory limit",
            format!("none, {has}"),
            "set -m, or the kernel may end the server when memory is used up",
        ),
        _ if limit > there => Finding::problem(
            "memory limit",
            format!("{}, but {has}", BinaryBytes(limit)),
            "lower -m, or the kernel ends the server before it evicts",
        ),
        _ if limit > there / 100 * MEMORY_PERCENT_MAX => Finding::warning(
            "memory limit",
            format!("{}, and {has}", BinaryBytes(limit)),
            format!("leave {} % to connections and other programs", 100 - MEMORY_PERCENT_MAX),
        ),
        _ => Finding::ok("memory limit", format!("{}, {has}", BinaryBytes(limit))),
    })
}

fn overcommit(mode: &str, meminfo: &str, needs: &ServerNeeds) -> Option<Finding> {
    let mode = mode.trim();
    if mode != "2" {
        let what = format!("{mode}, which suits: checkpoints need no second process");
        return (!mode.is_empty()).then(|| Finding::ok("vm.overcommit_memory", what));
    }
    let left = size(meminfo, "CommitLimit")?.saturating_sub(size(meminfo, "Committed_AS")?);
    let facts = format!("2, and {} can still be promised", BinaryBytes(left));
    Some(match left < needs.memory_limit && needs.pid.is_none() {
        true => Finding::problem("vm.overcommit_memory", facts, "set it to 0, or raise vm.overcommit_ratio"),
        false => Finding::ok("vm.overcommit_memory", facts),
    })
}

fn swap(meminfo: &str, status: Option<&str>) -> Option<Finding> {
    let (total, free) = (size(meminfo, "SwapTotal")?, size(meminfo, "SwapFree")?);
    let own = status.and_then(|status| size(status, "VmSwap")).unwrap_or(0);
    const CHANGE: &str = "give the server more memory, lower -m, or set vm.swappiness=1";
    Some(match (total, total - free.min(total)) {
        (0, _) => Finding::ok("swap", "none"),
        _ if own > 0 => Finding::warning(
            "swap",
            format!("{} of the server are swapped out; reads of them wait for the disk", BinaryBytes(own)),
            CHANGE,
        ),
        (_, used) if status.is_none() && used > total / 2 => {
            Finding::warning("swap", format!("{} of {} used", BinaryBytes(used), BinaryBytes(total)), CHANGE)
        }
        (_, used) => Finding::ok("swap", format!("{} of {} used", BinaryBytes(used), BinaryBytes(total))),
    })
}

fn huge_pages(enabled: &str) -> Option<Finding> {
    let chosen = enabled.split('[').nth(1)?.split(']').next()?;
    Some(match chosen {
        "never" => Finding::warning(
            "transparent huge pages",
            "never; reads of a large index miss the TLB",
            "write madvise to /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        _ => Finding::ok("transparent huge pages", chosen),
    })
}

fn clock_source(name: &str) -> Option<Finding> {
    let name = name.trim();
    Some(match name {
        "" => return None,
        "hpet" | "acpi_pm" | "jiffies" | "pit" => Finding::warning(
            "clock source",
            format!("{name}; each reading of the time is slow"),
            "see dmesg for the reason why the kernel has left tsc",
        ),
        _ => Finding::ok("clock source", name),
    })
}

/// Returns the answer of systemd to the question if the clock is synchronised.
fn synchronised() -> String {
    let mut command = Command::new("timedatectl");
    command.args(["show", "-p", "NTPSynchronized", "--value"]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_string()
}

fn clock(synchronised: &str) -> Finding {
    match synchronised {
        "yes" => Finding::ok("clock", "synchronised"),
        "no" => Finding::warning(
            "clock",
            "not synchronised; records expire at wrong times, and differ between replicas",
            "run chronyd or systemd-timesyncd",
        ),
        _ => Finding::ok("clock", "systemd does not say if it is synchronised"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::FindingLevel::{Ok, Problem, Warning};

    fn needs(memory_limit: u64, pid: Option<u32>) -> ServerNeeds {
        ServerNeeds { memory_limit, connections_max: 1024, pid, ..ServerNeeds::default() }
    }

    const MEMINFO: &str =
        "MemTotal: 1000 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\nCommitLimit: 500 kB\nCommitted_AS: 400 kB\n";

    #[test]
    fn limits_of_open_files_are_compared() {
        let limits = "Max processes 1 1\nMax open files            1024                 4096     files\n";
        assert_eq!(open_files(limits, &needs(0, None)).unwrap().level, Ok);
        assert_eq!(open_files(limits, &needs(0, Some(1))).unwrap().level, Ok);
        let found = open_files("Max open files 1024 1024 files", &needs(0, None)).unwrap();
        assert_eq!(found.level, Problem);
        assert!(found.text.contains("set LimitNOFILE=1088 in the unit"), "{}", found.text);
        assert_eq!(open_files("", &needs(0, None)), None);
    }

    #[test]
    fn memory_of_the_machine_is_compared() {
        for (limit, cgroup, level) in [
            (700 * KIB, "max\n", Ok),
            (0, "max\n", Warning),
            (900 * KIB, "", Warning),
            (1001 * KIB, "", Problem),
            (700 * KIB, "512000\n", Problem),
        ] {
            assert_eq!(memory_limit(MEMINFO, cgroup, &needs(limit, None)).unwrap().level, level, "{limit}");
        }
        assert_eq!(overcommit("0\n", MEMINFO, &needs(1 << 40, None)).unwrap().level, Ok);
        assert_eq!(overcommit("2\n", MEMINFO, &needs(101 * KIB, None)).unwrap().level, Problem);
        assert_eq!(overcommit("2\n", MEMINFO, &needs(100 * KIB, None)).unwrap().level, Ok);
        assert_eq!(swap(MEMINFO, None).unwrap().level, Warning);
        assert_eq!(swap(MEMINFO, Some("VmSwap: 0 kB")).unwrap().level, Ok);
        assert_eq!(swap(MEMINFO, Some("VmSwap: 4 kB")).unwrap().level, Warning);
        assert_eq!(swap("SwapTotal: 0 kB\nSwapFree: 0 kB", None).unwrap().level, Ok);
    }

    #[test]
    fn kernel_settings_are_read() {
        assert_eq!(huge_pages("always [madvise] never\n").unwrap().level, Ok);
        assert_eq!(huge_pages("always madvise [never]\n").unwrap().level, Warning);
        assert_eq!(huge_pages(""), None);
        assert_eq!(clock_source("tsc\n").unwrap().level, Ok);
        assert_eq!(clock_source("hpet\n").unwrap().level, Warning);
        assert_eq!(["yes", "no", ""].map(|answer| clock(answer).level), [Ok, Warning, Ok]);
    }
}
