//! Settings of the general allocator that keep it from retaining unused memory.

/// Limits what the general allocator retains: blocks of 1 MiB and more get mappings of their own,
/// which are returned when they are freed. By default the allocator raises that threshold with each
/// such block that is freed, up to 32 MiB, and retains twice as much in each thread's heap.
pub fn bound_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets numbers of the allocator under its own lock; no pointer is involved.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 20);
    }
}

/// Returns unused memory of the general allocator to the system. Takes longer the more there is.
pub fn trim_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes the allocator's own locks and returns pages that contain only free memory; no
    // pointer is involved.
    unsafe {
        libc::malloc_trim(0);
    }
}
