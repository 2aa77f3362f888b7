//! Errors: why a lock was not got.

use std::fmt;

/// Why a lock was not got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockError {
    /// The lock is in use, and the request was not to wait.
    Busy,
    /// The time was over.
    TimedOut,
    /// The request was cancelled.
    Cancelled,
    /// Holders wait for each other in a circle, and this request was the youngest: its caller keeps the locks that it
    /// holds. Two that convert their locks, or those that belong to a [`LockParty`](crate::LockParty).
    Deadlock,
    /// This node is not a member of the cluster: its lease is over, or it has left.
    NotMember,
    /// The name is too long.
    NameTooLong,
    /// The value is too long.
    ValueTooLong,
    /// A value can be changed only under a lock that writes.
    ReadOnly,
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LockError::Busy => "the lock is in use",
            LockError::TimedOut => "the time for the lock is over",
            LockError::Cancelled => "the request for the lock was cancelled",
            LockError::Deadlock => "holders of locks wait for each other: unlock, and lock again",
            LockError::NotMember => {
                "this node is no member of the cluster: join again, and take the locks anew"
            }
            LockError::NameTooLong => "the name of the lock is too long",
            LockError::ValueTooLong => "the value is too long",
            LockError::ReadOnly => "a value is changed only under CW, PW or EX",
        })
    }
}

impl std::error::Error for LockError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_says_what_is_wrong() {
        for (error, words) in [
            (LockError::Busy, "the lock is in use"),
            (LockError::TimedOut, "the time for the lock is over"),
            (LockError::Cancelled, "the request for the lock was cancelled"),
            (LockError::Deadlock, "holders of locks wait for each other: unlock, and lock again"),
            (LockError::NotMember, "this node is no member of the cluster: join again"),
            (LockError::NameTooLong, "the name of the lock is too long"),
            (LockError::ValueTooLong, "the value is too long"),
            (LockError::ReadOnly, "a value is changed only under CW, PW or EX"),
        ] {
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
