//! Leases and delegations, and what breaks them.

use crate::{Cred, Errno, Inode, InodeRef};
use sluice_locks::{Breaker, Breaking, Cancel};

impl Inode {
    /// Breaks the leases that `breaking` is against, on behalf of `cred`. One load where there have never been any.
    ///
    /// # Errors
    /// `EAGAIN`, if there is such a lease and the caller may not wait.
    #[inline]
    pub(crate) fn break_leases(&self, cred: &Cred, breaking: Breaking, may_wait: bool) -> Result<(), Errno> {
        if !self.shared.opens.are_leases_used() {
            return Ok(());
        }
        let Some(locks) = self.locks_if_any() else { return Ok(()) };
        let breaker = Breaker { pid: cred.pid, breaking, owner: None };
        let patience = Cancel::never();
        Ok(locks.break_leases(&breaker, may_wait.then_some(&patience))?)
    }
}

impl InodeRef {
    /// The file called `name` in this directory, if there may be delegations to break.
    pub(crate) fn maybe_delegated(&self, name: &[u8]) -> Option<InodeRef> {
        let used = self.shared.opens.are_leases_used();
        used.then(|| self.look_up(name).ok()).flatten()
    }
}

/// Breaks the delegations of `changed`.
///
/// # Errors
/// `EAGAIN`, if there are delegations and the caller may not wait.
#[inline]
pub(crate) fn break_all(cred: &Cred, changed: &[&Inode], may_wait: bool) -> Result<(), Errno> {
    changed.iter().try_for_each(|inode| inode.break_leases(cred, Breaking::Change, may_wait))
}
