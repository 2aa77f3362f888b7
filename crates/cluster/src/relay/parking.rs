//! Parking: how the relay of a workspace that nobody uses is left without a server, and goes on with the next request.
//!
//! # Theory
//! A kernel with no file open and no lock in a workspace has nothing of it that matters: inodes in its cache, a working directory perhaps. It
//! is told to forget the inodes that nobody uses, and the relay's server goes away as it does when another takes its place.
//! ```text
//!   no request for a while ── SYNCFS ── prune ── detach ── the node leaves the members ──┬─ the kernel has nothing: the relay ends
//!                                                                                        └─ else it stays, and its next request
//!                                                                                           finds it a server, by its holdings
//! ```
//! A request that meets the ended relay goes to the workspace's new one.

use super::received::Left;
use super::{Relay, RelayParking, Shared, State};
use sluice_fuse::internal::abi::{AttrOut, InHeader, ROOT_ID};
use sluice_fuse::internal::{Reply, prune_messages};
use sluice_fuse::opcode;
use sluice_vfs::Errno;
use zerocopy::{FromBytes, FromZeros};

/// The length of the argument of SYNCFS, and of GETATTR.
const SYNCFS_LEN: usize = 8;
const GETATTR_LEN: usize = 16;

impl Relay {
    /// The number of requests so far, if none is under way and the kernel has no file open, no lock, and no failure to be told of.
    pub(crate) fn requests_if_idle(&self) -> Option<u64> {
        let state = self.0.state.lock();
        self.is_idle(&state).then_some(state.counts.requests)
    }

    /// Takes the server away if the relay is idle since it had so many `requests`, and says whether it was. The kernel's holdings stay.
    pub(crate) fn detach_unused(&self, requests: u64) -> bool {
        {
            let mut state = self.0.state.lock();
            if !self.is_idle(&state) || state.counts.requests != requests {
                return false;
            }
            state.server = None;
        }
        self.detach();
        true
    }

    fn is_idle(&self, state: &State) -> bool {
        state.server.is_some() && state.in_flight.is_empty() && self.0.ledger.lock().is_at_rest()
    }

    /// Whether a server is attached.
    pub(crate) fn has_server(&self) -> bool {
        self.0.state.lock().server.is_some()
    }

    /// Makes all changes of the workspace durable, and returns whether they are; false, too, once `gives_up` is true.
    pub(crate) fn sync(&self, gives_up: &dyn Fn() -> bool) -> bool {
        self.0.ask_until(&InHeader::new_zeroed(), opcode::SYNCFS, ROOT_ID, &[0; SYNCFS_LEN], gives_up).is_ok()
    }

    /// Has the kernel forget the inodes that nobody uses, and returns how many it knew. It says so by FORGET. A kernel before Linux 6.18 forgets
    /// none.
    pub(crate) fn prune(&self) -> usize {
        let nodes = self.0.ledger.lock().nodes();
        for message in prune_messages(&nodes) {
            // An older kernel refuses.
            if self.0.device.send(&message).is_err() {
                break;
            }
        }
        nodes.len()
    }

    /// Whether each inode that the kernel knows has a name, so that it is there after a time without a server.
    pub(crate) fn are_all_named(&self, gives_up: &dyn Fn() -> bool) -> bool {
        let nodes = self.0.ledger.lock().nodes();
        nodes.into_iter().all(|node| {
            let (header, body) = (InHeader::new_zeroed(), [0; GETATTR_LEN]);
            let told = self.0.ask_until(&header, opcode::GETATTR, node, &body, gives_up);
            told.is_ok_and(|told| AttrOut::read_from_prefix(&told).is_ok_and(|(out, _)| out.attr.nlink > 0))
        })
    }

    /// Parks the detached relay until its next request: `No` if there is one already.
    pub(crate) fn park(&self) -> RelayParking {
        let mut state = self.0.state.lock();
        if state.in_flight.is_empty() && self.0.workspace != 0 {
            let is_bare = self.0.ledger.lock().is_bare();
            state.parked = if is_bare { RelayParking::Ended } else { RelayParking::Waits };
            if is_bare {
                self.0.workspaces.remove(self.0.workspace);
            }
        }
        state.parked
    }
}

impl Shared {
    /// The request `message` has come after the relay had ended: the workspace's relay of now gets it.
    pub(super) fn received_elsewhere(&self, header: &InHeader, message: &mut [u8]) -> Option<Left> {
        if matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT) {
            return None;
        }
        let root = self.workspaces.root().ok_or(Errno::EIO);
        match root.and_then(|root| self.workspaces.relay(&root, self.workspace)) {
            Ok(relay) => relay.received(message),
            Err(errno) => {
                self.tell(header.opcode, Reply::new().failure(header.unique, errno));
                None
            }
        }
    }
}
