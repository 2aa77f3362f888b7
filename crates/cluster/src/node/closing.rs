//! Closing: how a node lets a store go, by itself or because it lost the store, and what is lost with that.

use super::{Inner, SHARD};
use sluice_membership::now;
use sluice_sync::Arc;
use sluice_sync::atomic::Ordering;
use sluice_sync::thread::{self, Builder, JoinHandle};
use sluice_sync::time::{Duration, nanoseconds};
use sluice_vfs::Superblock;
use std::io;

/// A store that is let go.
pub(super) struct Closing {
    superblock: Arc<Superblock>,
    since: u64,
    /// Another node may have the store by now: changes that are not durable soon are lost.
    is_lost: bool,
    thread: JoinHandle<io::Result<()>>,
}

impl Inner {
    /// The lease is over, or the store takes no more changes.
    pub(super) fn lose(&self) {
        if let Err(error) = self.stop_owning(true) {
            log::error!("the store stays open: {error}");
        }
    }

    /// Stops serving, and has the store closed, so that other nodes can open it. `is_lost`: one may have it already.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn stop_owning(&self, is_lost: bool) -> io::Result<()> {
        let Some(owner) = self.role.lock().owner.clone().filter(|owner| owner.end()) else { return Ok(()) };
        if is_lost {
            log::warn!("this node is not the owner any more");
        }
        // Before the answers that are held are let go: they do not reach the kernel then. Before there can be another server, too.
        self.relay.detach();
        let superblock = owner.superblock().clone();
        // With a lease it is the store that has failed.
        let resigns = (is_lost && self.is_member()).then(|| (self.membership.clone(), self.id()));
        let close = move || {
            owner.stop();
            if let Some((membership, id)) = resigns {
                // If this fails the keeper opens the store again.
                let _ = membership.resign(id, SHARD, owner.epoch);
            }
            Ok(owner.superblock().close()?)
        };
        let thread = Builder::new().name("cluster-close".into()).spawn(close);
        let closing = thread.map(|thread| Closing { superblock, since: now(), is_lost, thread });
        self.role.lock().owner = None;
        self.closing.lock().push(closing?);
        Ok(())
    }

    /// Abandons stores that are slow to close. Forgets closed stores whose outcome has no reader.
    pub(super) fn hasten_closing(&self) {
        let limit = now().saturating_sub(nanoseconds(self.membership.ttl()));
        let (over, late): (Vec<_>, Vec<_>) = {
            let mut closing = self.closing.lock();
            let over = closing.extract_if(.., |one| one.is_lost && one.thread.is_finished()).collect();
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
