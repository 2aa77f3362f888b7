//! LockError: why a lock request was not granted.

use std::{error, fmt};

/// Why a lock request was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockError {
    /// Another owner holds a conflicting lock, and the request may not wait (`EAGAIN`).
    WouldBlock,
    /// Waiting would close a cycle of owners that wait for each other (`EDEADLK`).
    Deadlock,
    /// The wait was cancelled, or the file went away (`EINTR`).
    Interrupted,
    /// The domain, or the owner, has as many locks as it may (`ENOLCK`).
    NoLocks,
    /// The deadline passed before the lock was granted (`ETIMEDOUT`).
    TimedOut,
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LockError::WouldBlock => "another owner holds a conflicting lock",
            LockError::Deadlock => "waiting for this lock would deadlock",
            LockError::Interrupted => "the wait for the lock was interrupted",
            LockError::NoLocks => "no more locks are available",
            LockError::TimedOut => "the lock was not granted in time",
        })
    }
}

impl error::Error for LockError {}
