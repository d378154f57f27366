//! Finds out how much memory this process can use, which bounds what the system caches for it.

use std::path::Path;

/// Returns the memory of the machine, or of a control group of this process if that is less.
pub(crate) fn cacheable_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let machine = machine_bytes(&read("/proc/meminfo")).unwrap_or(u64::MAX);
    group_limits(&read("/proc/self/cgroup"), &|path| std::fs::read_to_string(path).ok())
        .fold(machine, u64::min)
}

fn machine_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// Returns the limits of the control groups of a process, and of the groups that contain them.
/// `groups` is the content of `/proc/self/cgroup`.
fn group_limits<'g>(
    groups: &'g str,
    read: &'g dyn Fn(&Path) -> Option<String>,
) -> impl Iterator<Item = u64> + 'g {
    let places = groups.lines().filter_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        match controllers {
            "" => Some(("/sys/fs/cgroup", "memory.max", group)),
            _ if controllers.split(',').any(|name| name == "memory") => {
                Some(("/sys/fs/cgroup/memory", "memory.limit_in_bytes", group))
            }
            _ => None,
        }
    });
    places.flat_map(move |(root, file, group)| {
        let groups = Path::new(group).ancestors();
        groups.filter_map(move |group| {
            let group = Path::new(root).join(group.strip_prefix("/").ok()?);
            // A group without a limit has the text `max`, or a very large number.
            read(&group.join(file))?.trim().parse().ok()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_machine_is_found() {
        assert_eq!(machine_bytes("Buffers: 7 kB\nMemTotal:       24683332 kB\n"), Some(24_683_332 << 10));
        assert_eq!(machine_bytes("MemFree: 7 kB\n"), None);
        assert!(cacheable_bytes() > 1 << 20);
    }

    #[test]
    fn limits_of_all_containing_groups_count() {
        let read = |path: &Path| {
            let text = match path.to_str()? {
                "/sys/fs/cgroup/memory.max" => "900\n",
                "/sys/fs/cgroup/a/memory.max" => "700\n",
                "/sys/fs/cgroup/a/b/memory.max" => "max\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes" => "9223372036854771712\n",
                "/sys/fs/cgroup/memory/c/memory.limit_in_bytes" => "500\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let limits = |groups: &str| group_limits(groups, &read).collect::<Vec<_>>();
        assert_eq!(limits("0::/a/b\n"), [700, 900]);
        assert_eq!(limits("0::/\n"), [900]);
        assert_eq!(limits("5:cpu,cpuacct:/c\n4:memory:/c/d\nnonsense\n"), [500, 9_223_372_036_854_771_712]);
        assert_eq!(limits(""), []);
    }
}
