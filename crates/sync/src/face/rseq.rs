//! The CPU number by restartable sequences: one load from memory that the kernel keeps current.
//!
//! # Theory
//! Linux can keep the number of the CPU a thread runs on in a `struct rseq` that the thread registers.
//! glibc 2.35 and later registers one per thread at a fixed offset from the thread pointer and publishes
//! the offset as `__rseq_offset`. Where it does not (another C library, `GLIBC_TUNABLES=glibc.pthread.rseq=0`,
//! another architecture), [`cpu`] says so and the caller asks the kernel's vDSO instead.
//!
//! # Sources
//! rseq(2); glibc manual, "Restartable Sequences"; the kernel's include/uapi/linux/rseq.h.

/// The number of the CPU the calling thread runs on now, if the C library registered restartable sequences.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#[inline]
pub(super) fn cpu() -> Option<usize> {
    let offset = area::offset()?;
    let cpu: u32;
    // SAFETY: `offset` comes from `__rseq_offset` while `__rseq_size` is large enough, so the C library
    // keeps a `struct rseq` at that distance from the thread pointer for as long as the thread lives. The
    // asm reads four aligned bytes of it, `cpu_id` at offset 4, and writes nothing.
    unsafe {
        std::arch::asm!(
            "mov {cpu:e}, fs:[{offset} + 4]",
            offset = in(reg) offset,
            cpu = lateout(reg) cpu,
            options(nostack, preserves_flags, readonly)
        );
    }
    // The kernel writes -1 (not registered) and -2 (registration failed) here.
    (cpu.cast_signed() >= 0).then_some(cpu as usize)
}

/// Elsewhere the caller asks the kernel.
#[cfg(not(any(all(target_arch = "x86_64", target_os = "linux"), miri)))]
#[inline]
pub(super) fn cpu() -> Option<usize> {
    None
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod area {
    use std::ffi::{CStr, c_char, c_void};
    use std::sync::atomic::{AtomicIsize, Ordering};

    /// No C library places its area here: the slot is the thread control block's own pointer.
    const UNKNOWN: isize = 0;
    const ABSENT: isize = 1;

    /// `UNKNOWN`, `ABSENT`, or the area's distance from the thread pointer.
    static OFFSET: AtomicIsize = AtomicIsize::new(UNKNOWN);

    unsafe extern "C" {
        fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
    }

    #[inline]
    pub(super) fn offset() -> Option<isize> {
        // Relaxed: the value stands for itself; two threads may both look it up and store the same.
        match OFFSET.load(Ordering::Relaxed) {
            UNKNOWN => look_up(),
            ABSENT => None,
            offset => Some(offset),
        }
    }

    #[cold]
    fn look_up() -> Option<isize> {
        let found = (symbol::<u32>(c"__rseq_size"))
            .filter(|size| *size >= 8)
            .and_then(|_| symbol::<isize>(c"__rseq_offset"))
            .filter(|offset| *offset != UNKNOWN && *offset != ABSENT);
        // Relaxed: as in `offset`.
        OFFSET.store(found.unwrap_or(ABSENT), Ordering::Relaxed);
        found
    }

    /// The value of a constant that the C library exports under `name`.
    fn symbol<T: Copy>(name: &CStr) -> Option<T> {
        // SAFETY: a null handle is RTLD_DEFAULT on Linux, `name` ends with a zero byte.
        let address = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) }.cast::<T>();
        // SAFETY: when the C library exports these names, they are constants of the types that its
        // manual gives (`unsigned int`, `ptrdiff_t`), set before `main`.
        (!address.is_null()).then(|| unsafe { address.read() })
    }
}
