//! FileState: the lock state of one file, as its domain and its waiting requests see it.

use crate::lease::Leases;
use crate::space::LockSpace;
use crate::wait::Ticket;
use sluice_sync::{Arc, CachePadded, Inflatable};

/// The part of a file that the domain's list and its wait table see.
pub(crate) struct FileState {
    /// *immutable*
    pub(crate) dev: u64,
    /// *immutable*
    pub(crate) ino: u64,
    /// Locks of byte ranges. See the crate's lock order.
    pub(crate) ranges: CachePadded<Inflatable<LockSpace>>,
    /// Leases and delegations.
    pub(crate) leases: CachePadded<Leases>,
    /// Locks of the whole file, owned by descriptions. Neither space knows of the other.
    pub(crate) flocks: CachePadded<Inflatable<LockSpace>>,
}

impl FileState {
    /// Both spaces, one after the other.
    pub(crate) fn spaces(&self) -> [&Inflatable<LockSpace>; 2] {
        [&self.ranges, &self.flocks]
    }

    /// The space that `ticket` is of.
    pub(crate) fn of(&self, ticket: Ticket) -> &Inflatable<LockSpace> {
        self.space(ticket.is_flock)
    }

    /// The space of flock, or that of byte ranges.
    pub(crate) fn space(&self, is_flock: bool) -> &Inflatable<LockSpace> {
        if is_flock { &self.flocks } else { &self.ranges }
    }
}

/// A waiting request of any file.
#[derive(Clone)]
pub(crate) struct Wait {
    pub(crate) file: Arc<FileState>,
    pub(crate) ticket: Ticket,
}
