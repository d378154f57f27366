//! Checks the directories of databases, and their file systems.

use super::ServerNeeds;
use super::finding::{CheckReport, Finding};
use indicatif::BinaryBytes;
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Checks a directory, or the nearest one above it if it does not exist yet.
pub(super) fn check(directory: &Path, needs: &ServerNeeds, report: &mut CheckReport) {
    let subject = format!("directory {}", directory.display());
    let Some(existing) = existing(directory) else { return };
    if existing != directory && !existing.is_dir() {
        let what = format!("{} is a file", existing.display());
        report.add(Finding::problem(&subject, what, "name another directory"));
        return;
    }
    report.add(permissions(&subject, directory, &existing, needs));
    report.add(file_system(&subject, &kind(&existing)));
    if let Ok(disk) = statvfs(&existing) {
        let is_read_only = disk.f_flag.contains(StatVfsMountFlags::RDONLY);
        let used = crate::database::size_of(directory).unwrap_or(0);
        let (free, total) = (disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize);
        report.add(space(&subject, free, total, used, needs, is_read_only));
    }
}

/// Returns the path, or the nearest one above it that exists.
fn existing(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find(|above| above.exists()).map(Path::to_path_buf)
}

fn permissions(subject: &str, directory: &Path, existing: &Path, needs: &ServerNeeds) -> Finding {
    let name = directory.display();
    // Another user may run the server that uses the directory now.
    if needs.pid.is_none() && access(existing, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        let change = format!("run this as the server's user, or chown {} to it", existing.display());
        return Finding::problem(
            subject,
            format!("this user cannot write to {}", existing.display()),
            change,
        );
    }
    let mode = existing.metadata().map_or(0, |metadata| metadata.permissions().mode());
    match directory.exists() {
        false => Finding::ok(subject, "does not exist yet, and can be created"),
        true if mode & 0o002 != 0 => {
            Finding::problem(subject, "all users can change the records", format!("chmod o-rwx {name}"))
        }
        true if mode & 0o005 == 0o005 => {
            Finding::warning(subject, "all users can list its files", format!("chmod o-rwx {name}"))
        }
        true => Finding::ok(subject, format!("mode {:o}", mode & 0o7777)),
    }
}

/// Returns the kind of the file system of a path.
fn kind(path: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    kind_in(&mounts, &path).unwrap_or_default()
}

fn kind_in(mounts: &str, path: &Path) -> Option<String> {
    let mount = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        // The kernel writes a space as \040.
        let point = left.split(' ').nth(4)?.replace("\\040", " ");
        let kind = right.split(' ').next()?.to_string();
        path.starts_with(&point).then_some((point.len(), kind))
    };
    // Of two file systems at the same place, the last is visible.
    mounts.lines().filter_map(mount).max_by_key(|(len, _)| *len).map(|(_, kind)| kind)
}

fn file_system(subject: &str, kind: &str) -> Finding {
    match kind {
        "tmpfs" | "ramfs" => Finding::problem(
            subject,
            format!("{kind} is memory, and lost when the machine stops"),
            "use a directory on a disk",
        ),
        "overlay" => Finding::warning(
            subject,
            "overlay is the layer of a container, and lost with it",
            "mount a volume there",
        ),
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "ceph" => Finding::warning(
            subject,
            format!("{kind} is a network; locks and syncs depend on its server"),
            "use a local disk",
        ),
        kind if kind.starts_with("fuse") => Finding::warning(
            subject,
            format!("{kind} may report a sync before data is on disk"),
            "use ext4, xfs, btrfs or zfs",
        ),
        "" => Finding::ok(subject, "its file system is not known"),
        kind => Finding::ok(subject, format!("on {kind}")),
    }
}

/// Checks the free space. A checkpoint is written beside the one before it, and as large as the
/// records at most.
fn space(
    subject: &str,
    free: u64,
    total: u64,
    used: u64,
    needs: &ServerNeeds,
    is_read_only: bool,
) -> Finding {
    let facts =
        format!("{} of {} free, {} used here", BinaryBytes(free), BinaryBytes(total), BinaryBytes(used));
    let wanted = needs.memory_limit.max(used);
    match free {
        _ if is_read_only => Finding::problem(subject, "mounted read-only", "mount it read-write"),
        _ if free < wanted && free < total / 20 => Finding::problem(
            subject,
            facts,
            format!("a checkpoint and its log can need {}: free space, or lower -m", BinaryBytes(wanted)),
        ),
        _ if free < wanted * 2 => Finding::warning(
            subject,
            facts,
            format!("two checkpoints and their log can need {}", BinaryBytes(wanted * 2)),
        ),
        _ => Finding::ok(subject, facts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::FindingLevel::{Ok, Problem, Warning};

    #[test]
    fn file_systems_are_found_by_their_mounts() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:5 / /var/my\\040data rw shared:1 - tmpfs tmpfs rw\n\
                      3 1 8:2 / /var rw - xfs /dev/sdb rw\n";
        for (path, kind) in
            [("/home", "ext4"), ("/var/lib", "xfs"), ("/var/my data/x", "tmpfs"), ("/various", "ext4")]
        {
            assert_eq!(kind_in(mounts, Path::new(path)).as_deref(), Some(kind), "{path}");
        }
        let levels =
            ["ext4", "tmpfs", "overlay", "nfs4", "fuse.sshfs", ""].map(|kind| file_system("d", kind).level);
        assert_eq!(levels, [Ok, Problem, Warning, Warning, Warning, Ok]);
    }

    #[test]
    fn space_must_suffice_for_checkpoints() {
        let needs = ServerNeeds { memory_limit: 100, ..ServerNeeds::default() };
        let level = |free, used, is_read_only| space("d", free, 10_000, used, &needs, is_read_only).level;
        assert_eq!(level(200, 0, false), Ok);
        assert_eq!(level(199, 0, false), Warning);
        assert_eq!(level(99, 0, false), Problem);
        assert_eq!(level(300, 151, false), Warning);
        assert_eq!(level(9_000, 0, true), Problem);
    }
}
