//! The general allocator, kept from keeping what nobody uses.

/// Keeps the general allocator from keeping much: blocks from 1 MiB on have mappings of their own, which are given back with them. By
/// itself it raises that border, up to 32 MiB, with each such block that is freed, and keeps twice as much in each thread's heap.
pub fn bound_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets numbers of the allocator's under its own lock; no pointer is involved.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 20);
    }
}

/// Gives back what the general allocator keeps without need. Takes the longer the more there is.
pub fn trim_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes the allocator's own locks and gives back pages that hold only free memory; no pointer is involved.
    unsafe {
        libc::malloc_trim(0);
    }
}
