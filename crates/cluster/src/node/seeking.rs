//! Seeking: how a node comes to a server: it follows the membership's view, calls the owner, or opens the store as the owner.

use super::trouble::Trouble;
use super::{At, Inner, SHARD};
use crate::owner::Owner;
use crate::status::Takeover;
use rustls::ClientConfig;
use sluice_membership::{Owner as Owned, View, now};
use sluice_sync::Arc;
use sluice_sync::atomic::Ordering;
use sluice_sync::thread::Builder;
use sluice_sync::time::Duration;
use std::io;

/// The pause after the first attempt to open a store that failed.
const OPEN_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause after such an attempt.
const OPEN_PAUSE_MAX: Duration = Duration::from_secs(8);

impl Inner {
    /// Does what a view of the membership asks for.
    pub(super) fn follow(self: &Arc<Self>, view: View, calling: &Arc<ClientConfig>) -> io::Result<()> {
        let last = view.owners.first().copied().flatten();
        let living = view.living_owner(SHARD);
        let (owner, up) = {
            let mut role = self.role.lock();
            role.view = view.clone();
            (role.owner.clone(), role.link.clone())
        };
        if let Some(owner) = owner {
            match last {
                // While the store was opened here, or since its lease was over by the membership's clock.
                Some(newer) if newer.epoch > owner.epoch => self.lose(),
                _ => owner.members(|node| view.is_alive(node)),
            }
            return Ok(());
        }
        match (living, up) {
            (Some(owner), Some(up)) => {
                if (up.to, up.epoch) != (owner.node, owner.epoch) {
                    // It was an owner, and another is.
                    up.link.close();
                }
                Ok(())
            }
            (Some(owner), None) if owner.node == self.id() && self.hands_over(owner.epoch) => Ok(()),
            (Some(owner), None) if owner.node == self.id() => self.own_apart(owner),
            (Some(owner), None) => {
                let address = view.members.get(&owner.node).map(|member| member.address.clone());
                let address = address.ok_or(io::ErrorKind::NotFound)?;
                self.call_apart(owner, address, calling)
            }
            (None, None) if self.is_member() && !self.has_failed_to_own() && !self.is_held_back() => {
                let epoch = last.map_or(0, |owner| owner.epoch);
                self.membership.claim(self.id(), SHARD, epoch).map(drop)
            }
            (None, _) => Ok(()),
        }
    }

    /// Looks for a server by a thread of its own: a store, or a node, may not answer, and another node may be the owner
    /// by then, or this one leave. The result counts if it is still [sought](At::seeking).
    pub(super) fn seek(
        self: &Arc<Self>,
        owner: Owned,
        name: &str,
        find: impl FnOnce(&Arc<Inner>) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let opens = usize::from(owner.node == self.id());
        {
            let mut role = self.role.lock();
            if role.seeking.replace(owner) == Some(owner) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            role.opening += opens;
        }
        let this = self.clone();
        let end = move |role: &mut At| {
            role.seeking.take_if(|other| *other == owner);
            role.opening -= opens;
        };
        let work = move || {
            let found = find(&this);
            end(&mut this.role.lock());
            if let Err(error) = found {
                log::debug!("node {} does not serve, epoch {}: {error}", owner.node.0, owner.epoch);
            }
        };
        let thread = Builder::new().name(format!("cluster-{name}")).spawn(work);
        thread.map(drop).inspect_err(|_| end(&mut self.role.lock()))
    }

    /// Whether it has just failed to open the store: others are to try first.
    fn has_failed_to_own(&self) -> bool {
        self.role.lock().seeking.is_some_and(|sought| sought.node == self.id())
    }

    /// Becomes the owner, as the membership says.
    fn own_apart(self: &Arc<Self>, owned: Owned) -> io::Result<()> {
        // The assignment may be old: a node whose lease is over owns no store.
        if !self.is_member() {
            return Ok(());
        }
        self.seek(owned, "open", move |this| this.own(owned))
    }

    /// Opens the store, and serves.
    fn own(self: &Arc<Self>, owned: Owned) -> io::Result<()> {
        let begun = now();
        // Relaxed: see the field.
        let wait = match self.lost_at.swap(0, Ordering::Relaxed) {
            0 => 0,
            lost_at => milliseconds(lost_at, begun),
        };
        log::info!("this node is to be the owner, epoch {}, {wait} ms after it lost its server", owned.epoch);
        let opened = (self.open)(owned.epoch);
        let superblock = match opened {
            Ok(superblock) => {
                *self.failure.lock() = Trouble::default();
                superblock
            }
            Err(error) => {
                let pause = {
                    let mut failure = self.failure.lock();
                    if failure.is_new(&error.to_string()) {
                        log::warn!("this node cannot open the store: {error}");
                    }
                    failure.pause(OPEN_PAUSE, OPEN_PAUSE_MAX)
                };
                // Perhaps another node can open it. To a store an epoch is good for one attempt.
                self.membership.resign(owned.node, SHARD, owned.epoch)?;
                self.pause_until(pause, || self.is_leaving() || self.is_over());
                return Err(error);
            }
        };
        let view = self.role.lock().view.clone();
        // This node's own kernel may have done what the last owner did not execute.
        let members = view.members.keys().copied().filter(|node| view.is_alive(*node));
        let owner = Arc::new(Owner::new(
            owned.epoch,
            superblock,
            self.membership.ttl(),
            self.valid_until.clone(),
            members.collect(),
            self.mount,
        ));
        let holdings = self.holdings();
        let is_another = {
            let mut role = self.role.lock();
            // It took so long that the lease was over meanwhile, perhaps: then others may have changed what was read.
            if role.seeking != Some(owned) || owned.node != self.id() || !self.is_member() {
                drop(role);
                // Nothing was changed.
                let _ = owner.superblock().close();
                return Err(io::ErrorKind::Interrupted.into());
            }
            let is_another = role.epoch != 0;
            (role.owner, role.epoch) = (Some(owner.clone()), owned.epoch);
            is_another
        };
        let open = milliseconds(begun, now());
        log::info!("this node is the owner, epoch {}: the store was opened in {open} ms", owned.epoch);
        // From here on the node listens to the others. The keeper goes on to tell which are alive.
        let this = self.clone();
        let serve = move || {
            let opened_at = now();
            match owner.serve_own(&this.relay, &holdings, is_another, owned.node) {
                Ok(restored_at) => {
                    let (restore, grace) =
                        (milliseconds(opened_at, restored_at), milliseconds(restored_at, now()));
                    log::info!(
                        "served: found what the kernel holds in {restore} ms, others told in {grace} ms"
                    );
                    *this.takeover.lock() = Takeover {
                        takeover_wait_ms: wait,
                        takeover_open_ms: open,
                        takeover_restore_ms: restore,
                        takeover_grace_ms: grace,
                    };
                }
                Err(error) => log::error!("this node's own mount cannot be served: {error}"),
            }
        };
        Builder::new().name("cluster-grace".into()).spawn(serve)?;
        for (&dead, _) in view.members.iter().filter(|(_, member)| !member.is_alive) {
            // The store that was opened fences it. If this fails it stays in the list.
            let _ = self.membership.fenced(dead);
        }
        Ok(())
    }
}

fn milliseconds(from: u64, to: u64) -> u64 {
    to.saturating_sub(from) / 1_000_000
}
