//! Closing: how a node lets a store go, by itself or because it lost the store, and what is lost with that.

use super::{Inner, SHARD};
use sluice_membership::{NodeId, now};
use sluice_sync::Arc;
use sluice_sync::atomic::Ordering;
use sluice_sync::thread::{self, Builder, JoinHandle};
use sluice_sync::time::{Duration, nanoseconds};
use sluice_vfs::Superblock;
use std::io;

/// So many leases a store that is handed over may take to be closed here and claimed there.
const HAND_OVER_LEASES: u32 = 4;

/// A store that is let go.
pub(super) struct Closing {
    superblock: Arc<Superblock>,
    since: u64,
    /// Another node may have the store by now: changes that are not durable soon are lost.
    is_lost: bool,
    /// The node that it is let go for waits for it.
    is_handed_over: bool,
    thread: JoinHandle<io::Result<()>>,
}

impl Inner {
    /// The lease is over, or the store takes no more changes.
    pub(super) fn lose(&self) {
        if let Err(error) = self.stop_owning(true, false) {
            log::error!("the store stays open: {error}");
        }
    }

    /// Stops serving, and has the store closed, so that other nodes can open it. `is_lost`: one may have it already; `is_handed_over`: this node
    /// stays, and is no owner when the store is closed.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn stop_owning(&self, is_lost: bool, is_handed_over: bool) -> io::Result<()> {
        let Some(owner) = self.role.lock().owner.clone().filter(|owner| owner.end()) else { return Ok(()) };
        if is_lost {
            log::warn!("this node is not the owner any more");
        }
        // Before the answers that are held are let go: they do not reach the kernel then. Before there can be another server, too.
        self.relay.detach();
        let superblock = owner.superblock().clone();
        // With a lease it is the store that has failed.
        let resigns = is_lost && self.is_member();
        let (membership, id) = (self.membership.clone(), self.id());
        let close = move || {
            owner.stop();
            // If this fails the keeper opens the store again.
            let resign = |resigns: bool| resigns && membership.resign(id, SHARD, owner.epoch).is_ok();
            resign(resigns);
            let closed = owner.superblock().close();
            resign(is_handed_over);
            Ok(closed?)
        };
        let thread = Builder::new().name("cluster-close".into()).spawn(close);
        let closing =
            thread.map(|thread| Closing { superblock, since: now(), is_lost, is_handed_over, thread });
        self.role.lock().owner = None;
        self.closing.lock().push(closing?);
        Ok(())
    }

    /// Hands the store over to the member `to`, and waits until that has it. This node is a guest then. Nothing is lost.
    ///
    /// # Errors
    /// If this node is not the owner, or `to` no member; if another node has it in the end.
    pub(super) fn hand_over(&self, to: NodeId) -> io::Result<()> {
        let refused = |why: &str| Err(io::Error::other(why.to_owned()));
        let owner = {
            let mut role = self.role.lock();
            let Some(owner) = role.owner.clone().filter(|owner| owner.local().is_some()) else {
                return refused("this node is not the owner of the workspace now: try again");
            };
            if to == self.id() {
                return Ok(());
            }
            if !role.view.is_alive(to) && !self.knows(to) {
                return refused("the node does not use the workspace");
            }
            role.handed_over = owner.epoch;
            owner
        };
        self.hold_back(to);
        owner.tell_of_hand_over(to);
        self.stop_owning(false, true)?;
        let end = now() + nanoseconds(self.membership.ttl() * HAND_OVER_LEASES);
        while now() < end && !self.is_over() {
            let view = self.membership.view(0, Duration::ZERO)?;
            match view.living_owner(SHARD) {
                Some(other) if other.epoch == owner.epoch => {}
                Some(other) if other.node == to => return Ok(()),
                Some(_) => return refused("another node has taken the workspace: try again"),
                None => {}
            }
            thread::sleep(Duration::from_millis(2));
        }
        // The keeper finds out what is the case.
        self.role.lock().handed_over = 0;
        refused("the node has not taken the workspace yet")
    }

    /// The store is let go for `to`: until that must have claimed it this node does not, if it is another.
    pub(super) fn hold_back(&self, to: NodeId) {
        if to != self.id() {
            self.role.lock().held_back_until = now() + nanoseconds(self.membership.ttl() / 2);
        }
    }

    pub(super) fn is_held_back(&self) -> bool {
        now() < self.role.lock().held_back_until
    }

    /// Whether this node, the owner in `epoch`, lets the store go.
    pub(super) fn hands_over(&self, epoch: u64) -> bool {
        self.role.lock().handed_over == epoch
    }

    /// Abandons stores that are slow to close. Forgets closed stores whose outcome has no reader.
    pub(super) fn hasten_closing(&self) {
        let limit = now().saturating_sub(nanoseconds(self.membership.ttl()));
        let (over, late): (Vec<_>, Vec<_>) = {
            let mut closing = self.closing.lock();
            let over = closing
                .extract_if(.., |one| (one.is_lost || one.is_handed_over) && one.thread.is_finished())
                .collect();
            let late = closing.iter().filter(|one| one.since < limit && (one.is_lost || !self.is_member()));
            (over, late.map(|one| one.superblock.clone()).collect())
        };
        // With nothing locked: what is dropped last frees a tree.
        over.into_iter().for_each(|one| self.note_loss(one.thread.join().ok()));
        late.iter().for_each(|superblock| superblock.abandon());
    }

    /// A store that this node lost was `closed`: notes whether something is lost with it.
    fn note_loss(&self, closed: Option<io::Result<()>>) {
        if !matches!(closed, Some(Ok(()))) {
            // Relaxed: see the field.
            self.has_lost.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until what was opened too late is closed, but for a store that does not answer not longer than a lease.
    pub(super) fn await_opening(&self) {
        let end = now() + nanoseconds(self.membership.ttl());
        while self.role.lock().opening > 0 && now() < end {
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until all stores are closed.
    ///
    /// # Errors
    /// The first error of a store, except stores that another node may have opened before they were closed.
    pub(super) fn await_closing(&self) -> io::Result<()> {
        let mut outcome = Ok(());
        loop {
            self.hasten_closing();
            let mut closing = self.closing.lock();
            if closing.is_empty() {
                return outcome;
            }
            if let Some(at) = closing.iter().position(|one| one.thread.is_finished()) {
                let one = closing.swap_remove(at);
                drop(closing);
                // A panic of its own was reported where it happened.
                let closed = one.thread.join().ok();
                if one.is_lost {
                    self.note_loss(closed);
                } else {
                    outcome = outcome.and(closed.unwrap_or(Ok(())));
                }
                continue;
            }
            drop(closing);
            thread::sleep(Duration::from_millis(2));
        }
    }
}
