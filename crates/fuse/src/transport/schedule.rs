//! Schedule: puts the calling thread behind all others.

#![allow(unsafe_code, reason = "rustix has no safe call for this; the block argues below")]

use std::io;

/// From now on the calling thread runs when nothing of another class wants to (SCHED_IDLE), so that the scheduler takes its
/// CPU for idle when it places another. See `policy` for where that is good.
///
/// # Errors
/// The operating system's.
pub(super) fn behind_all_others() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads one `sched_param`, which lives until it returns. 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
