//! Trimming: the allocator's free memory goes back to the system, in time or from the first.

/// Gives memory that the allocator has free back to the system, as far as it can be asked to. Threads that allocate meanwhile
/// wait.
pub(crate) fn trim() {
    #[cfg(all(target_env = "gnu", not(miri)))]
    // SAFETY: it may be called by any thread at any time, and touches free memory alone.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets the allocator keep little of what is freed, as far as it can be asked to: for a process whose memory has a limit, before it
/// starts threads. Large buffers go back to the system at once, which takes some time; and what threads allocate lies side by side.
pub fn keep_little() {
    #[cfg(all(target_env = "gnu", not(miri)))]
    for (parameter, value) in
        [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, 128 << 10), (libc::M_TRIM_THRESHOLD, 1 << 20)]
    {
        // SAFETY: it may be called at any time, and changes what later calls of the allocator do.
        unsafe {
            libc::mallopt(parameter, value);
        }
    }
}
