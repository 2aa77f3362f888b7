//! At once: calls that never wait, and the fallback for cases that have to wait.
//!
//! # Theory
//! A call first tries what it can do in the read section of its path walk, or with an open file that is only borrowed:
//! no reference is counted. Neither may last, so such an attempt waits for no other thread. Where it would have to, it
//! changes nothing and says [`NotAtOnce::WouldWait`], and the call begins again with references ([`or_waiting`]).
//! `WouldWait` is not an error number: callers may have to see a real `EAGAIN`. A walk says it of a directory whose names are not
//! in memory: a caller loads them outside of the read section.
//!
//! Over a store a change of names begins its section of the store before the read section of the walk. In both it waits for no lock whose
//! holder may wait for a grace period.

use crate::Errno;

/// The outcome of an attempt that never waits.
pub(crate) type AtOnce<T> = Result<T, NotAtOnce>;

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAtOnce {
    /// The call fails.
    Failed(Errno),
    /// Nothing has changed: the call would have to wait for another thread.
    WouldWait,
}

pub(crate) use NotAtOnce::WouldWait;

impl From<Errno> for NotAtOnce {
    #[inline]
    fn from(errno: Errno) -> NotAtOnce {
        NotAtOnce::Failed(errno)
    }
}

/// The result of an attempt that never waits; none if it would have to wait.
#[inline]
pub(crate) fn decided<T>(at_once: AtOnce<T>) -> Option<Result<T, Errno>> {
    match at_once {
        Ok(done) => Some(Ok(done)),
        Err(NotAtOnce::Failed(errno)) => Some(Err(errno)),
        Err(WouldWait) => None,
    }
}

/// The result of the attempt that never waits, or of `waiting` if the attempt would have had to wait.
///
/// # Errors
/// Errors of both.
#[inline]
pub(crate) fn or_waiting<T>(
    at_once: AtOnce<T>,
    waiting: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    decided(at_once).unwrap_or_else(waiting)
}
