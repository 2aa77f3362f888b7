//! Cover: what the relay of a guest may know by itself of a directory that its kernel made and no other guest has looked at.
//!
//! # Theory
//! The answer to MKDIR may *cover* the new directory: it is empty, and nobody but the guest's kernel can change it, or the files that
//! are made in it, before another guest has looked it up. So the relay knows which names are not there, what the directory's
//! attributes are after each change, and that a new file has no capability, and answers such questions itself
//! (`relay/knowledge.rs`).
//!
//! ```text
//!   free ──MKDIR: serial──> covered ──another guest finds it: RECALL, and the answer held until the relay has dropped it──> free
//! ```
//!
//! All ways in which another guest's kernel learns of a directory go through `Connection::entry`, which is where it is recalled. The
//! cover ends when the recall has been taken in, or the guest is gone: as for any change that a kernel is told of.
//!
//! # Invariants
//! - I1 While a directory is covered, no other guest has got an answer that tells of it.
//!
//! *A guest may find a directory before its maker has got the cover.* Directories that guests find during a mkdir are noted, and
//! are not covered.
//!
//! # Ordering
//! A maker counts itself, then makes the directory; a guest finds it, then looks at the count. Who finds it has seen it made.

use super::{Guest, GuestChannel};
use crate::lock_class::COVERS;
use sluice_fuse::internal::Reply;
use sluice_fuse::internal::abi::{Attr, OutHeader};
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::{Arc, Mutex};
use std::collections::{BTreeMap, HashMap, HashSet};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The code of a notice that ends a cover. No kernel gets it.
const RECALL_COVER: i32 = 0x736c_0002;
/// The most directories of a guest that are covered. The oldest is recalled for the next.
const COVERED_MAX: usize = 4096;

/// The trailer of the answer to a request that changes names, for a relay on another machine.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct ToldBesides {
    /// The new directory is covered under this number, or 0.
    pub(crate) serial: u64,
    /// The attributes of the directory with the names, afterwards.
    pub(crate) dir: Attr,
}

/// The directory `nodeid` that was covered under this number is not any more.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RecallCover {
    nodeid: u64,
    serial: u64,
}

/// The covered directories of a host.
pub(crate) struct Covers {
    state: Mutex<CoverState>,
    /// Something is covered, or about to be. *atomic (see Ordering)*
    is_used: AtomicBool,
}

#[derive(Default)]
struct CoverState {
    /// By inode number.
    covered: HashMap<u64, Covered>,
    /// Inode numbers by guest and serial number.
    by_age: BTreeMap<(u64, u64), u64>,
    last_serial: u64,
    /// Directories that are being made.
    making: usize,
    /// The inode numbers that each guest has found since.
    found: HashSet<(u64, u64)>,
}

struct Covered {
    guest: u64,
    serial: u64,
    channel: Arc<dyn GuestChannel>,
}

/// A directory is being made, and may be covered.
pub(crate) struct Making<'c>(&'c Covers);

/// The cover with this number ends when this is dropped.
pub(super) struct CoverEnds {
    pub(super) covers: Arc<Covers>,
    pub(super) ino: u64,
    pub(super) serial: u64,
}

impl Default for Covers {
    fn default() -> Self {
        Covers { state: Mutex::with_class(&COVERS, CoverState::default()), is_used: AtomicBool::new(false) }
    }
}

impl CoverState {
    fn remove(&mut self, ino: u64, serial: u64) -> Option<Covered> {
        let is_it = self.covered.get(&ino).is_some_and(|covered| covered.serial == serial);
        let gone = is_it.then(|| self.covered.remove(&ino)).flatten()?;
        self.by_age.remove(&(gone.guest, serial));
        Some(gone)
    }
}

impl Covers {
    /// A guest is about to make a directory.
    pub(crate) fn making(&self) -> Making<'_> {
        let mut state = self.state.lock();
        state.making += 1;
        // Relaxed: see Ordering. The directory becomes visible only after this store.
        self.is_used.store(true, Ordering::Relaxed);
        Making(self)
    }

    /// Covers `ino`, which `guest` has made since [`making`](Self::making), if no other has found it. Returns the serial number, and
    /// a directory that is to be recalled instead.
    pub(super) fn cover(
        &self,
        ino: u64,
        guest: u64,
        channel: &Arc<dyn GuestChannel>,
    ) -> Option<(u64, Option<(u64, u64)>)> {
        let mut state = self.state.lock();
        if state.found.iter().any(|&(found, by)| found == ino && by != guest) {
            return None;
        }
        state.last_serial += 1;
        let serial = state.last_serial;
        let mut of_guest = state.by_age.range((guest, 0)..=(guest, u64::MAX));
        let oldest = of_guest.next().map(|(&(_, serial), &ino)| (ino, serial));
        let is_full = oldest.is_some() && of_guest.count() + 1 >= COVERED_MAX;
        state.by_age.insert((guest, serial), ino);
        state.covered.insert(ino, Covered { guest, serial, channel: channel.clone() });
        Some((serial, oldest.filter(|_| is_full)))
    }

    /// `guest` has found directory `ino`. Returns the guest to ask for the directory, and the cover's number, if
    /// another guest has it covered.
    pub(super) fn found(&self, ino: u64, guest: u64) -> Option<(u64, Arc<dyn GuestChannel>)> {
        // Relaxed: see Ordering.
        if !self.is_used.load(Ordering::Relaxed) {
            return None;
        }
        let mut state = self.state.lock();
        if state.making > 0 {
            state.found.insert((ino, guest));
        }
        let covered = state.covered.get(&ino).filter(|covered| covered.guest != guest)?;
        Some((covered.serial, covered.channel.clone()))
    }

    /// `guest` is gone.
    pub(super) fn gone(&self, guest: u64) {
        let mut state = self.state.lock();
        let mut left = state.by_age.split_off(&(guest, 0));
        let mut others = left.split_off(&(guest + 1, 0));
        state.by_age.append(&mut others);
        let gone: Vec<_> = left.into_values().filter_map(|ino| state.covered.remove(&ino)).collect();
        drop(state);
        drop(gone);
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.making -= 1;
        if state.making == 0 {
            state.found.clear();
            // Relaxed: see Ordering. Both are changed with the lock held.
            self.0.is_used.store(!state.covered.is_empty(), Ordering::Relaxed);
        }
    }
}

impl Drop for CoverEnds {
    fn drop(&mut self) {
        let gone = self.covers.state.lock().remove(self.ino, self.serial);
        drop(gone);
    }
}

/// A notice that ends a cover.
pub(crate) fn cover_recall(nodeid: u64, serial: u64) -> Vec<u8> {
    let mut message = Reply::new();
    message.put(&RecallCover { nodeid, serial });
    message.notification(RECALL_COVER).to_vec()
}

/// The node and the number, if `notifications` are a notice that ends a cover.
pub(crate) fn cover_recalled(notifications: &[u8]) -> Option<(u64, u64)> {
    let (header, body) = OutHeader::read_from_prefix(notifications).ok()?;
    let (recall, _) = RecallCover::read_from_prefix(body).ok()?;
    (header.error == RECALL_COVER).then_some((recall.nodeid, recall.serial))
}

impl Guest {
    /// The number of directories covered for guests of this host: a guest has made the directory, and no other guest
    /// has found it.
    pub fn covered(&self) -> usize {
        self.coherence.covers.state.lock().covered.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::Nowhere;

    #[test]
    fn a_new_directory_is_covered_until_another_guest_finds_it_or_its_maker_is_gone() {
        let all = Arc::new(Covers::default());
        let channel: Arc<dyn GuestChannel> = Arc::new(Nowhere);
        let make = |ino: u64, guest: u64| {
            let _making = all.making();
            all.cover(ino, guest, &channel).map(|(serial, _)| serial)
        };
        let serial = make(7, 1).expect("nobody has found it");
        assert!(all.found(7, 1).is_none() && all.found(8, 2).is_none());
        for _ in 0..2 {
            // Until it has been recalled.
            assert_eq!(all.found(7, 2).map(|(serial, _)| serial), Some(serial));
        }
        drop(CoverEnds { covers: all.clone(), ino: 7, serial: serial + 1 });
        assert!(all.found(7, 2).is_some(), "another number says nothing");
        drop(CoverEnds { covers: all.clone(), ino: 7, serial });
        assert!(all.found(7, 2).is_none());
        let making = all.making();
        assert!(all.found(9, 2).is_none());
        assert!(make(9, 1).is_none(), "another has found it already");
        assert!(make(9, 2).is_some(), "it has found it itself");
        drop(making);
        assert!(make(10, 1).is_some() && make(11, 3).is_some());
        all.gone(1);
        assert!(all.found(10, 5).is_none() && all.found(9, 5).is_some() && all.found(11, 5).is_some());
        for guest in [2, 3] {
            all.gone(guest);
        }
        drop(all.making());
        let state = all.state.lock();
        assert!(state.covered.is_empty() && state.by_age.is_empty() && state.found.is_empty());
        // Relaxed: this thread's own.
        assert!(!all.is_used.load(Ordering::Relaxed));
    }

    #[test]
    fn the_oldest_is_recalled_where_too_many_are_covered() {
        let all = Covers::default();
        let channel: Arc<dyn GuestChannel> = Arc::new(Nowhere);
        let first = all.cover(1, 4, &channel).expect("free").0;
        for ino in 2..=COVERED_MAX as u64 {
            assert_eq!(all.cover(ino, 4, &channel).expect("free").1, None);
        }
        assert_eq!(all.cover(9_999_999, 4, &channel).expect("free").1, Some((1, first)));
        assert_eq!(all.cover(9_999_998, 5, &channel).expect("free").1, None, "another guest");
    }
}
