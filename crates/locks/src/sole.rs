//! Sole: a lock space in short: that it has one lock, or none, and nobody waits.
//!
//! Most files never have two locks at once. Theirs come and go here, without the mutex of their space
//! ([`Inflatable`](sluice_sync::Inflatable)). All other states are left to the [`LockSpace`].

use crate::file_state::FileState;
use crate::quota::Quota;
use crate::space::LockSpace;
use crate::{Owner, Range, RangeLock, RangeRequest};
use sluice_sync::Inflate;

/// The short form of most spaces. *Protected by the [`Inflatable`](sluice_sync::Inflatable).*
#[derive(Default)]
pub(crate) struct Sole {
    lock: Option<RangeLock>,
    /// Requests granted so far.
    grants: u64,
}

impl Inflate for LockSpace {
    type Short = Sole;

    fn inflate(&mut self, sole: &Sole) {
        if let Some(lock) = sole.lock {
            self.granted.put_sole(lock);
        }
        self.statistics.grants = sole.grants;
    }

    fn deflate(&mut self) -> Option<Sole> {
        if self.waiters().is_some() || !(self.granted.is_empty() || self.granted.has_sole()) {
            return None;
        }
        if self.unrest > 0 {
            self.unrest -= 1;
            return None;
        }
        Some(Sole { lock: self.granted.take_sole(), grants: self.statistics.grants })
    }
}

impl FileState {
    /// Grants `request` if there is no lock in its space, and then calls `note`. Returns false, and changes
    /// nothing, if the space may have a lock.
    #[inline]
    pub(crate) fn grant_sole(
        &self,
        request: &RangeRequest,
        is_flock: bool,
        quota: &Quota,
        note: impl FnOnce(),
    ) -> bool {
        let &RangeRequest { owner, pid, kind, range } = request;
        let space = self.space(is_flock);
        // Counted before: the counts have locks of their own. Contended locks skip the count.
        if !space.seems_short() || quota.reserve(owner, 1).is_err() {
            return false;
        }
        match space.take_short() {
            Some(mut sole) if sole.lock.is_none() => {
                sole.lock = Some(RangeLock { owner, pid, kind, range });
                sole.grants += 1;
                note();
                true
            }
            _ => {
                quota.release(owner, 1);
                false
            }
        }
    }

    /// Takes `range` away from `owner`, and then calls `note`, if there is one lock or none in the space. False if that is
    /// not for certain, or if a part of the lock stays: then nothing is changed.
    #[inline]
    pub(crate) fn take_sole(
        &self,
        owner: Owner,
        range: Range,
        is_flock: bool,
        quota: &Quota,
        note: impl FnOnce(),
    ) -> bool {
        let Some(mut sole) = self.space(is_flock).try_short() else { return false };
        let own = sole.lock.filter(|lock| lock.owner == owner && lock.range.overlaps(range));
        if own.is_some_and(|lock| !range.contains(lock.range)) {
            return false;
        }
        if own.is_some() {
            sole.lock = None;
        }
        note();
        drop(sole);
        quota.release(owner, usize::from(own.is_some()));
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::space::UNREST;
    use crate::{DomainOptions, FileLocks, Kind, LockDomain, LockError};

    #[test]
    fn a_space_is_whole_from_its_first_conflict_until_some_changes_after_the_last() {
        let domain = LockDomain::new(DomainOptions { max_locks: Some(2), ..Default::default() });
        let file = FileLocks::new(&domain, 0, 1);
        let is_short = || file.state.flocks.try_short().is_some();
        let pair = |owner| {
            file.set_flock(owner, 1, Kind::Exclusive).expect("nobody has one");
            file.unlock_flock(owner);
        };
        pair(1);
        assert_eq!(file.set_flock(1, 1, Kind::Exclusive), Ok(()));
        assert!(is_short(), "one lock");
        assert_eq!(domain.list().len(), 1, "a listing sees it");
        assert!(is_short(), "and leaves it as it is");
        assert_eq!(file.set_flock(2, 1, Kind::Shared), Err(LockError::WouldBlock));
        assert!(!is_short(), "a conflict");
        file.unlock_flock(1);
        let pairs = (0..).take_while(|_| !is_short()).map(|_| pair(2)).count();
        assert!(pairs <= UNREST as usize, "{pairs}");
        assert_eq!(domain.statistics()[0].grants, 2 + pairs as u64, "no form forgets what the other counted");
        assert!(domain.is_idle());
    }
}
