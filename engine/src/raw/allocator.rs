//! Configures the general allocator so that it does not retain unused memory.

/// Limits the memory that the general allocator retains. Blocks of 1 MiB and more get mappings of
/// their own, which are returned to the system when they are freed. By default the allocator raises
/// that threshold with each such block that is freed, up to 32 MiB, and retains twice as much in
/// each thread's heap.
pub fn bound_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call sets numbers of the allocator under the allocator's own lock; no pointer is
    // involved.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 20);
    }
}

/// Returns unused memory of the general allocator to the system. The call takes longer the more
/// unused memory there is.
pub fn trim_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes the allocator's own locks and returns pages that contain only free
    // memory; no pointer is involved.
    unsafe {
        libc::malloc_trim(0);
    }
}
