//! Closed output: whether standard output was closed when the program began (`sluice info st >&-`).
//!
//! Rust opens `/dev/null` for standard descriptors that are closed, before `main` and for reading and writing, so that no file gets their
//! numbers. A daemon's standard output often looks the same, so the difference can be seen only before that: the C library
//! calls the functions that `.init_array` names first.

#![allow(
    unsafe_code,
    reason = "the compiler cannot check what a section of the program is for; the comment below does"
)]

use rustix::io::Errno;
use sluice_sync::atomic::{AtomicBool, Ordering};
use std::io;

/// *Written before `main`, by the only thread.*
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: the section is an array of pointers to functions of the C ABI, which the C library calls once, with
// arguments that a function without parameters leaves alone. `look` needs nothing of Rust's runtime, and cannot panic.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let is_closed = rustix::io::fcntl_getfd(rustix::stdio::stdout()) == Err(Errno::BADF);
    // Relaxed: the threads that read this are made later.
    IS_CLOSED.store(is_closed, Ordering::Relaxed);
}

/// Fails if what is written to standard output is lost because that was closed.
///
/// # Errors
/// `EBADF`
pub(crate) fn check() -> io::Result<()> {
    // Relaxed: see `look`.
    if IS_CLOSED.load(Ordering::Relaxed) { Err(Errno::BADF.into()) } else { Ok(()) }
}
