//! Owner: what the node does that has the store: it serves its own kernel and the mounts of the others.
//!
//! # Theory
//! *Grace.* A new owner serves nothing until each member that was alive when it took over has told what its kernel holds, or has
//! died, or has had time enough. So no lock is granted that a survivor holds, and no file is deleted that one has open.
//!
//! *Gone or not.* A node whose connection breaks may come back: its locks stay, and changes that its kernel would have to be told of
//! are not answered, until it attaches again or its lease is over. It may come back even then: what it asked for last, and whether
//! that was executed, is remembered for some leases more.
//!
//! *Standing.* A mount that is served *stands*: the store says so. Before locks of a mount are freed because it was not
//! heard of, it falls, durably. So this owner and each later one know of a mount that comes back whether others may
//! have had its locks. Then its programs are told that these locks are lost, except for locks of files that no other
//! mount has locked meanwhile, to the knowledge of this owner.

use crate::guest::{Guest, Holdings, Host, Lost};
use crate::link::Link;
use crate::lock_class::{SEATS, STANDING};
use crate::relay::Relay;
use crate::seat::{Channel, Seat};
use crate::wire::Frame;
use sluice_membership::{NodeId, now};
use sluice_sync::atomic::AtomicU64;
use sluice_sync::thread::Builder;
use sluice_sync::time::{Duration, nanoseconds};
use sluice_sync::{Arc, Condvar, Mutex, OnceLock};
use sluice_vfs::{Errno, InodeRef, Superblock};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// So many leases after a mount was last heard of, what was executed for it is forgotten.
const REMEMBERED: u32 = 8;

/// The owner's side of a cluster.
pub(crate) struct Owner {
    /// *immutable*
    pub(crate) epoch: u64,
    host: Host,
    /// The mounts of which something was executed before. *immutable*
    requesting: BTreeSet<u64>,
    ttl: Duration,
    /// The time until which the owner may answer. *atomic (stands alone)*
    valid_until: Arc<AtomicU64>,
    state: Mutex<State>,
    changed: Condvar,
    /// The number of this node's own mount. *immutable*
    mount: u64,
    /// Held while it is decided whether a mount still stands, and while one falls.
    standing: Mutex<()>,
    /// Whether numbers of inodes can be given out. *set once*
    reserved: OnceLock<Result<(), Errno>>,
}

struct State {
    /// By the number of the mount.
    seats: BTreeMap<u64, Arc<Seat>>,
    /// Mounts that were not heard of for a lease, and since when.
    silent: BTreeMap<u64, u64>,
    /// The members that are waited for.
    grace: BTreeSet<NodeId>,
    grace_ends: u64,
    /// The guest of this node's own kernel.
    local: Option<Arc<Guest>>,
    is_over: bool,
}

impl Owner {
    /// The owner in `epoch`, with the file system opened, after `members` were told of.
    pub(crate) fn new(
        epoch: u64,
        superblock: Arc<Superblock>,
        ttl: Duration,
        valid_until: Arc<AtomicU64>,
        members: BTreeSet<NodeId>,
        mount: u64,
    ) -> Owner {
        let state = State {
            seats: BTreeMap::new(),
            silent: BTreeMap::new(),
            grace: members,
            grace_ends: now() + nanoseconds(ttl * 2),
            local: None,
            is_over: false,
        };
        Owner {
            epoch,
            requesting: superblock.requesting_mounts(),
            host: Host::new(superblock),
            ttl,
            valid_until,
            state: Mutex::with_class(&SEATS, state),
            changed: Condvar::new(),
            mount,
            standing: Mutex::with_class(&STANDING, ()),
            reserved: OnceLock::new(),
        }
    }

    /// Serves this node's own kernel, which has `holdings`, when the grace period is over. Returns
    /// the time from which it only waited.
    ///
    /// # Errors
    /// If the file system has a mount that must be alone.
    pub(crate) fn serve_own(
        &self,
        relay: &Relay,
        holdings: &Holdings,
        is_another: bool,
        node: NodeId,
    ) -> io::Result<u64> {
        let mount = self.mount;
        // Before others change anything, and with nothing locked: others attach meanwhile.
        let mut restored = relay.restore_host(&self.host, holdings, &self.find(holdings), mount)?;
        if !self.stands(mount) {
            restored.void_locks(&self.host, holdings);
        }
        let restored_at = now();
        self.end_grace(node)?;
        self.stand(mount)?;
        let mut state = self.state.lock();
        if state.is_over {
            return Ok(restored_at);
        }
        state.local = Some(relay.attach_restored(restored, is_another));
        let is_absent = |other: &u64| *other != mount && !state.seats.contains_key(other);
        let absent: Vec<_> = self.requesting.iter().copied().filter(is_absent).collect();
        state.silent.extend(absent.into_iter().map(|mount| (mount, now())));
        Ok(restored_at)
    }

    /// Serves a mount of `node`, until its connection breaks.
    ///
    /// # Errors
    /// Errors of the connection; a message that no honest node sends.
    pub(crate) fn serve(&self, node: NodeId, link: &Arc<Link>) -> io::Result<()> {
        let Frame::Attach { mount, epoch, holdings } = link.read(true)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let holdings = Holdings::decode(&holdings)?;
        let old = self.state.lock().seats.get(&mount).cloned();
        if let Some(old) = &old {
            old.quiesce();
        }
        let found = match &old {
            Some(old) if epoch == self.epoch => old.guest.known_inodes(&holdings),
            _ => self.find(&holdings),
        };
        let channel = Channel::new(link.clone(), self.valid_until.clone());
        let guest = Arc::new(self.host.admit(channel.clone(), true, mount)?);
        let mut lost = guest.restore(&holdings, &found);
        // A mount of this owner's own epoch that has no seat any more was given up, so its old requests fail.
        guest.catch_up(&holdings, epoch != self.epoch || old.is_some());
        drop(found);
        let seat = Arc::new(Seat::new(node, guest, channel));
        {
            let standing = self.standing.lock();
            // After its locks are restored, and before the mount counts as standing.
            if !self.stands(mount) {
                self.host.void_locks(&seat.guest, &holdings, &mut lost);
            }
            let mut state = self.state.lock();
            if state.is_over {
                return Ok(());
            }
            state.silent.remove(&mount);
            state.seats.insert(mount, seat.clone());
            drop(standing);
        }
        if let Some(old) = old {
            // Its kernel has dropped all caches with outstanding notices.
            old.guest.give_way(&seat.guest);
            old.release_notices();
        }
        self.end_grace(node)?;
        self.stand(mount)?;
        let Lost { handles, nameless, executed } = lost;
        link.send(&Frame::Attached {
            handles: handles.into_iter().collect(),
            nameless: nameless.into_iter().collect(),
            executed: executed.into_iter().collect(),
        });
        let served = seat.serve();
        seat.quiesce();
        if matches!(served, Ok(true)) {
            self.remove(mount, &seat);
            // The owner deletes the remaining records at the next change of owner.
            let _ = self.superblock().forget_requests(&[mount].into());
        }
        served.map(drop)
    }

    fn find(&self, holdings: &Holdings) -> BTreeMap<u64, InodeRef> {
        self.host.adopt(holdings)
    }

    /// `node` has told what it holds. Returns when all nodes have.
    ///
    /// # Errors
    /// The store's.
    fn end_grace(&self, node: NodeId) -> io::Result<()> {
        self.await_grace(node);
        // Not earlier: this deletes nameless files that no node has reported as open.
        let reserve = || {
            self.fall_absent()?;
            self.superblock().reserve_numbers()
        };
        (*self.reserved.get_or_init(reserve))?;
        Ok(())
    }

    /// Whether nobody can have had the locks of `mount` since it had them.
    fn stands(&self, mount: u64) -> bool {
        self.superblock().standing_mounts().contains(&mount)
    }

    /// Records that a served mount stands, unless it was given up meanwhile.
    fn stand(&self, mount: u64) -> io::Result<()> {
        let _standing = self.standing.lock();
        let is_served = mount == self.mount || self.state.lock().seats.contains_key(&mount);
        if is_served {
            self.superblock().stand(mount)?;
        }
        Ok(())
    }

    /// The grace period is over: mounts that have not come fall, before others can have their locks.
    fn fall_absent(&self) -> Result<(), Errno> {
        let _standing = self.standing.lock();
        let mut absent = self.superblock().standing_mounts();
        {
            let state = self.state.lock();
            absent.retain(|mount| *mount != self.mount && !state.seats.contains_key(mount));
        }
        self.superblock().fall(&absent)
    }

    /// A mount was not heard of for a lease: its locks are freed.
    fn give_up(&self, mount: u64, seat: &Arc<Seat>) -> Result<(), Errno> {
        let _standing = self.standing.lock();
        let is_same = |other: &Arc<Seat>| Arc::ptr_eq(other, seat);
        if !self.state.lock().seats.get(&mount).is_some_and(is_same) {
            return Ok(());
        }
        self.superblock().fall(&[mount].into())?;
        self.superblock().sync()?;
        self.host.give_up(&seat.guest);
        self.state.lock().silent.insert(mount, now());
        self.remove(mount, seat);
        Ok(())
    }

    fn await_grace(&self, node: NodeId) {
        let mut state = self.state.lock();
        state.grace.remove(&node);
        self.changed.notify_all();
        while !state.grace.is_empty() && !state.is_over {
            let left = state.grace_ends.saturating_sub(now());
            if left == 0 {
                log::warn!("members that are alive did not come within the grace period: {:?}", state.grace);
                state.grace.clear();
            } else {
                state = self.changed.wait_timeout(state, Duration::from_nanos(left)).0;
            }
        }
    }

    /// Ends the wait for members that are not alive any more.
    pub(crate) fn members(&self, is_alive: impl Fn(NodeId) -> bool) {
        self.state.lock().grace.retain(|node| is_alive(*node));
        self.changed.notify_all();
    }

    /// Gives up mounts whose nodes have not been heard of for a whole lease, and has kernels forget what there is no memory for.
    pub(crate) fn tick(self: &Arc<Self>) {
        let unwanted: Vec<_> = {
            let state = self.state.lock();
            let guests = state.seats.values().map(|seat| &seat.guest).chain(&state.local);
            let unwanted =
                guests.map(|guest| (guest, guest.take_unwanted())).filter(|(_, inos)| !inos.is_empty());
            unwanted.map(|(guest, inos)| (guest.clone(), inos)).collect()
        };
        if !unwanted.is_empty() {
            self.apart(move |_| unwanted.iter().for_each(|(guest, inos)| guest.tell_unwanted(inos)));
        }
        let limit = now().saturating_sub(nanoseconds(self.ttl * REMEMBERED));
        let mut forgotten = BTreeSet::new();
        self.state.lock().silent.retain(|mount, since| *since >= limit || !forgotten.insert(*mount));
        forgotten.iter().for_each(|mount| self.host.forget(*mount));
        if !forgotten.is_empty() {
            // The owner deletes the remaining records at the next change of owner.
            self.apart(move |this| {
                let _ = this.superblock().forget_requests(&forgotten);
            });
        }
        let limit = now().saturating_sub(nanoseconds(self.ttl));
        let silent: Vec<_> = {
            let state = self.state.lock();
            let silent = state.seats.iter().filter(|(_, seat)| seat.heard() < limit);
            silent.map(|(mount, seat)| (*mount, seat.clone())).collect()
        };
        for (mount, seat) in silent {
            if !seat.give_up() {
                continue;
            }
            log::warn!("a mount was not heard of for {:?}: its locks are free", self.ttl);
            self.apart(move |this| {
                seat.quiesce();
                if let Err(error) = this.give_up(mount, &seat) {
                    // The store has failed, and this owner ends.
                    log::error!("what a dead mount had stays: {error}");
                }
            });
        }
    }

    /// Runs `work`, which may wait for the store, on a thread of its own.
    fn apart(self: &Arc<Self>, work: impl FnOnce(&Owner) + Send + 'static) {
        let this = self.clone();
        if let Err(error) = Builder::new().name("cluster-remove".into()).spawn(move || work(&this)) {
            log::error!("what a dead mount had stays: {error}");
        }
    }

    fn remove(&self, mount: u64, seat: &Arc<Seat>) {
        let removed = {
            let mut state = self.state.lock();
            let is_same = state.seats.get(&mount).is_some_and(|other| Arc::ptr_eq(other, seat));
            is_same.then(|| state.seats.remove(&mount)).flatten()
        };
        if let Some(removed) = removed {
            removed.release_notices();
        }
    }

    /// The mounts that are served, this node's own left out.
    pub(crate) fn seats(&self) -> usize {
        self.state.lock().seats.len()
    }

    /// The requests of each other node so far.
    pub(crate) fn requests_by_node(&self) -> BTreeMap<NodeId, u64> {
        self.state.lock().seats.values().map(|seat| (seat.node, seat.requests())).collect()
    }

    /// Tells the other nodes that the store is about to be let go, for `to`.
    pub(crate) fn tell_of_hand_over(&self, to: NodeId) {
        let seats: Vec<_> = self.state.lock().seats.values().cloned().collect();
        seats.iter().for_each(|seat| seat.channel.tell_of_hand_over(to));
    }

    /// The file system.
    pub(crate) fn superblock(&self) -> &Arc<Superblock> {
        self.host.superblock()
    }

    /// The guest of this node's own kernel.
    pub(crate) fn local(&self) -> Option<Arc<Guest>> {
        let state = self.state.lock();
        state.local.clone().filter(|_| !state.is_over)
    }

    /// Admits no more mounts. True for the one that ends it.
    pub(crate) fn end(&self) -> bool {
        let was_over = std::mem::replace(&mut self.state.lock().is_over, true);
        self.changed.notify_all();
        !was_over
    }

    /// Serves requests that have begun, without answering them. For an owner that was [ended](Self::end), and whose own
    /// kernel has been detached.
    pub(crate) fn stop(&self) {
        let (seats, local) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.seats), state.local.take())
        };
        seats.values().for_each(|seat| seat.hang_up());
        // Held answers go to nobody from here on.
        for seat in seats.values() {
            seat.quiesce();
            seat.release_notices();
        }
        drop((seats, local));
    }
}
