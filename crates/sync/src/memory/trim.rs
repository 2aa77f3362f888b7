//! Trimming: the allocator's free memory goes back to the system.

/// Gives memory that the allocator has free back to the system, as far as it can be asked to. Threads that allocate meanwhile
/// wait.
pub(crate) fn trim() {
    #[cfg(all(target_env = "gnu", not(miri)))]
    // SAFETY: it may be called by any thread at any time, and touches free memory alone.
    unsafe {
        libc::malloc_trim(0);
    }
}
