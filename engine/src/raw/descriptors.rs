//! The limit of open files.

/// Returns the number of descriptors that this process may have open at a time, or 0 if it is
/// unknown.
pub(crate) fn descriptors_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes `limit`, which has the layout of its structure and lives until the
    // call returns.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
        0 => limit.rlim_cur,
        _ => 0,
    }
}
