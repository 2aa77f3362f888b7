//! Flocks: the granted flock locks of one file; at most one for each open file description.

use crate::LockError;
use crate::domain::Quota;
use crate::queue::Granted;
use crate::request::Flock;

/// All granted flocks of a file. *Protected by the file state.*
#[derive(Default)]
pub(crate) struct Flocks {
    /// Oldest first.
    held: Vec<Flock>,
}

impl Flocks {
    /// The locks of other descriptions that conflict with `request`, oldest first.
    pub(crate) fn conflicts(&self, request: &Flock) -> impl Iterator<Item = &Flock> {
        let Flock { owner, kind, .. } = *request;
        self.held.iter().filter(move |held| held.owner != owner && held.kind.conflicts(kind))
    }

    /// What `owner` holds.
    pub(crate) fn of(&self, owner: u64) -> Option<&Flock> {
        self.held.iter().find(|held| held.owner == owner)
    }

    /// All locks, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Flock> {
        self.held.iter()
    }

    /// True if nobody holds a flock.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes away what `owner` holds. True if it held something.
    pub(crate) fn unlock(&mut self, owner: u64, quota: &Quota) -> bool {
        let Some(at) = self.held.iter().position(|held| held.owner == owner) else { return false };
        self.held.remove(at);
        quota.release(1);
        true
    }
}

impl Granted for Flocks {
    type Request = Flock;

    fn admits(&self, request: &Flock) -> bool {
        self.conflicts(request).next().is_none()
    }

    fn take(&mut self, request: &Flock, quota: &Quota) -> Result<bool, LockError> {
        if self.of(request.owner).is_some_and(|held| held.kind == request.kind) {
            return Ok(false);
        }
        let gave_up = self.unlock(request.owner, quota);
        quota.reserve(1)?;
        self.held.push(*request);
        Ok(gave_up)
    }

    fn process(_: &Flock) -> Option<u64> {
        None
    }

    fn blockers(&self, _: &Flock) -> Vec<u64> {
        Vec::new()
    }

    fn clear(&mut self) -> usize {
        self.held.drain(..).count()
    }
}
