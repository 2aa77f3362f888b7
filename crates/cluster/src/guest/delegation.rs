//! Delegation: the locks of a file, left to the relay of the guest that alone has it open.
//!
//! # Theory
//! A lock request that nobody else minds costs a message there and back. So the answer to one may have the file's locks *delegated*:
//! its body is a serial number, and the relay decides by itself from then on (`relay/lock_cache.rs`). It gives the locks back
//!
//! - when it cannot decide: what conflicts, waits or is unusual is decided here, with all locks in the table;
//! - when the last open file is closed;
//! - when it is asked to, because another guest opens the file. The answer to that OPEN is held until then, as until any change has
//!   been announced: so a guest that has the file open finds the table whole.
//!
//! ```text
//!   free ──SETLK, one guest has it open: serial──> delegated ──GIVE_BACK with the serial, before what follows it──> free
//!                                                      └──another guest's OPEN: RECALL, and the answer held──┘
//! ```
//!
//! The locks that are given back replace the table's locks of that guest, if the relay has decided any request;
//! otherwise the table is right.
//!
//! *Death.* The relay's ledger has all locks of its kernel, whoever granted them. A guest that attaches again, to this host or
//! another, restores them from there, and its delegations are over. A guest that is gone holds nothing.
//!
//! *Mappings.* A process's stores through a shared mapping stay in its kernel until that writes the page back, whole. Two such
//! kernels undo each other's stores. No message tells of a mapping, but it takes a file that is open for reading and writing. So of the
//! guests that have a file open so, one has its kernel's page cache ([`claim_mapping`](Delegations::claim_mapping)); the others read
//! and write past theirs, where a shared mapping is refused (ENODEV).
//!
//! # Invariants
//! - I1 While a file is delegated, no other guest has got an answer to an OPEN of it that it could lock by.

use super::{GuestChannel, Notice};
use crate::lock_class::DELEGATIONS;
use sluice_fuse::internal::abi::{InHeader, LkIn, OutHeader};
use sluice_fuse::internal::{Handles, Reply, request_bytes};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Condvar, Mutex};
use std::collections::HashMap;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The opcode of what gives locks back. Kernels never send this opcode.
const GIVE_BACK_LOCKS: u32 = 0x736c_0001;
/// The code of a notice that wants locks back. No kernel gets it.
const RECALL_LOCKS: i32 = 0x736c_0001;

/// After a relay gave locks back because it could not decide, so many locks are granted here first.
const COOLDOWN: u32 = 64;
/// So long a guest that has a file open already waits for its locks. It comes late: the others were served before.
const PATIENCE: Duration = Duration::from_secs(5);

/// The locks of `nodeid` that were delegated under this number are wanted back.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RecallLocks {
    nodeid: u64,
    serial: u64,
}

/// Locks are given back: all that there are follow, if the relay has `decided` anything.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(super) struct LocksGivenBack {
    pub(super) serial: u64,
    pub(super) decided: u32,
    /// It could not decide.
    pub(super) cools_down: u32,
}

/// Which guests have which files open, and whose locks are delegated.
pub(crate) struct Delegations {
    state: Mutex<DelegationState>,
    changed: Condvar,
}

#[derive(Default)]
struct DelegationState {
    /// By inode number.
    files: HashMap<u64, OpenBy>,
    last_serial: u64,
    last_guest: u64,
}

#[derive(Default)]
struct OpenBy {
    /// Guests, and how often each has the file open.
    by: Vec<(u64, u32)>,
    delegated: Option<Delegated>,
    cooldown: u32,
    /// Who may map the file.
    mapped: Option<MappedBy>,
}

struct MappedBy {
    guest: u64,
    mount: u64,
    /// How often it has the file open so.
    count: u32,
}

struct Delegated {
    guest: u64,
    mount: u64,
    serial: u64,
    channel: Arc<dyn GuestChannel>,
    handles: Arc<Handles>,
}

/// A guest, as it takes part.
pub(crate) struct Delegate {
    /// No other guest of the host has it. *immutable*
    pub(super) number: u64,
    pub(super) mount: u64,
    pub(super) channel: Arc<dyn GuestChannel>,
    pub(super) handles: Arc<Handles>,
}

/// That the locks of a file are wanted back, for whom it is to be told.
pub(crate) struct Recall {
    pub(super) channel: Arc<dyn GuestChannel>,
    pub(super) serial: u64,
}

impl Default for Delegations {
    fn default() -> Self {
        Delegations {
            state: Mutex::with_class(&DELEGATIONS, DelegationState::default()),
            changed: Condvar::new(),
        }
    }
}

impl Delegations {
    /// A number for a new guest.
    pub(super) fn next_guest(&self) -> u64 {
        let mut state = self.state.lock();
        state.last_guest += 1;
        state.last_guest
    }

    /// `guest` has opened file `ino`. Returns the guest to ask for its locks before the open is answered.
    pub(super) fn opened(&self, ino: u64, guest: u64) -> Option<Recall> {
        let mut state = self.state.lock();
        let file = state.files.entry(ino).or_default();
        match file.by.iter_mut().find(|(other, _)| *other == guest) {
            Some((_, count)) => *count += 1,
            None => file.by.push((guest, 1)),
        }
        file.delegated.as_ref().filter(|to| to.guest != guest).map(Delegated::recall)
    }

    /// `delegate`, which [has opened](Self::opened) file `ino`, wants to map it shared, for as long as it has it open so. False: another
    /// does. One of the same mount is over.
    pub(super) fn claim_mapping(&self, ino: u64, delegate: &Delegate) -> bool {
        let mut state = self.state.lock();
        let Some(file) = state.files.get_mut(&ino) else { return false };
        let (guest, mount) = (delegate.number, delegate.mount);
        let by = file.mapped.get_or_insert(MappedBy { guest, mount, count: 0 });
        if by.mount == mount && by.guest != guest {
            *by = MappedBy { guest, mount, count: 0 };
        }
        by.count += u32::from(by.guest == guest);
        by.guest == guest
    }

    /// `guest` has closed file `ino` once, after such a claim.
    pub(super) fn end_mapping(&self, ino: u64, guest: u64) {
        let mut state = self.state.lock();
        let Some(file) = state.files.get_mut(&ino) else { return };
        if let Some(by) = file.mapped.as_mut().filter(|by| by.guest == guest) {
            by.count -= 1;
        }
        file.mapped.take_if(|by| by.count == 0);
    }

    /// `guest` has closed file `ino` once.
    pub(super) fn closed(&self, ino: u64, guest: u64) {
        let mut state = self.state.lock();
        let Some(file) = state.files.get_mut(&ino) else { return };
        let Some(at) = file.by.iter().position(|(other, _)| *other == guest) else { return };
        file.by[at].1 -= 1;
        let gone = if file.by[at].1 == 0 {
            file.by.swap_remove(at);
            file.delegated.take_if(|to| to.guest == guest)
        } else {
            None
        };
        if file.by.is_empty() {
            state.files.remove(&ino);
        }
        drop(state);
        drop(gone);
    }

    /// The serial number under which the locks of `ino` are delegated to `delegate` from now on, if they can be.
    pub(super) fn delegate(&self, ino: u64, delegate: &Delegate) -> Option<u64> {
        let mut state = self.state.lock();
        let serial = state.last_serial + 1;
        let file = state.files.get_mut(&ino)?;
        let is_alone = file.by.len() == 1 && file.by[0].0 == delegate.number;
        if !is_alone || file.delegated.is_some() {
            return None;
        }
        if file.cooldown > 0 {
            file.cooldown -= 1;
            return None;
        }
        file.delegated = Some(Delegated {
            guest: delegate.number,
            mount: delegate.mount,
            serial,
            channel: delegate.channel.clone(),
            handles: delegate.handles.clone(),
        });
        state.last_serial = serial;
        Some(serial)
    }

    /// Whether the locks of `ino` are delegated to `guest` under this number.
    pub(super) fn is_delegated(&self, ino: u64, guest: u64, serial: u64) -> bool {
        let state = self.state.lock();
        let delegated = state.files.get(&ino).and_then(|file| file.delegated.as_ref());
        delegated.is_some_and(|to| (to.guest, to.serial) == (guest, serial))
    }

    /// The table has the locks of `ino` that were delegated under this number.
    pub(super) fn given_back(&self, ino: u64, serial: u64, cools_down: bool) {
        let mut state = self.state.lock();
        let Some(file) = state.files.get_mut(&ino) else { return };
        let gone = file.delegated.take_if(|to| to.serial == serial);
        if gone.is_some() && cools_down {
            file.cooldown = COOLDOWN;
        }
        drop(state);
        drop(gone);
        self.changed.notify_all();
    }

    /// `delegate` has file `ino` open, which its kernel calls `nodeid`, since before it was admitted. Waits until the
    /// locks are delegated to nobody; false if that takes too long. The table's locks of its mount are removed: the
    /// delegate reports its own holdings.
    pub(super) fn take_back(&self, ino: u64, nodeid: u64, delegate: &Delegate) -> bool {
        let Some(Recall { channel, serial }) = self.opened(ino, delegate.number) else { return true };
        let own = {
            let mut state = self.state.lock();
            let delegated = state.files.get_mut(&ino).map(|file| &mut file.delegated);
            delegated.and_then(|to| to.take_if(|to| to.mount == delegate.mount))
        };
        if let Some(own) = own {
            own.handles.unlock_file(ino);
            return true;
        }
        channel.announce(Notice::silent(recall_message(nodeid, serial)));
        let end = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        let is_delegated = |state: &DelegationState| {
            let delegated = state.files.get(&ino).and_then(|file| file.delegated.as_ref());
            delegated.is_some_and(|to| to.serial == serial)
        };
        while is_delegated(&state) && Instant::now() < end {
            state = self.changed.wait_timeout(state, end.saturating_duration_since(Instant::now())).0;
        }
        // The delegate has it open now: so the locks are not delegated again.
        !is_delegated(&state)
    }

    /// `guest` is gone, and its locks are free.
    pub(super) fn gone(&self, guest: u64) {
        let mut gone = Vec::new();
        self.state.lock().files.retain(|_, file| {
            file.by.retain(|(other, _)| *other != guest);
            file.mapped.take_if(|by| by.guest == guest);
            gone.extend(file.delegated.take_if(|to| to.guest == guest));
            !file.by.is_empty()
        });
        drop(gone);
        self.changed.notify_all();
    }
}

impl Delegated {
    fn recall(&self) -> Recall {
        Recall { channel: self.channel.clone(), serial: self.serial }
    }
}

/// Asks a relay for the locks of `nodeid` that were delegated under this number.
pub(super) fn recall_message(nodeid: u64, serial: u64) -> Vec<u8> {
    let mut message = Reply::new();
    message.put(&RecallLocks { nodeid, serial });
    message.notification(RECALL_LOCKS).to_vec()
}

/// The node and the serial number, if `notifications` are such a notice.
pub(crate) fn recalled(notifications: &[u8]) -> Option<(u64, u64)> {
    let (header, body) = OutHeader::read_from_prefix(notifications).ok()?;
    let (recall, _) = RecallLocks::read_from_prefix(body).ok()?;
    (header.error == RECALL_LOCKS).then_some((recall.nodeid, recall.serial))
}

/// Gives the locks of `nodeid` back: all there are, if the relay has decided anything. `cools_down`: it could not decide.
pub(crate) fn give_back_message(
    nodeid: u64,
    serial: u64,
    decided: Option<&[LkIn]>,
    cools_down: bool,
) -> Vec<u8> {
    let locks = decided.unwrap_or_default();
    let header = InHeader { opcode: GIVE_BACK_LOCKS, nodeid, ..InHeader::new_zeroed() };
    let arg = LocksGivenBack { serial, decided: decided.is_some().into(), cools_down: cools_down.into() };
    request_bytes(header, &[arg.as_bytes(), locks.as_bytes()])
}

/// Whether `message` gives locks back.
pub(super) fn gives_back(message: &[u8]) -> bool {
    InHeader::read_from_prefix(message).is_ok_and(|(header, _)| header.opcode == GIVE_BACK_LOCKS)
}

/// The content of such a message.
pub(super) fn given_back(message: &[u8]) -> Option<(InHeader, LocksGivenBack, Vec<LkIn>)> {
    let (header, body) = InHeader::read_from_prefix(message).ok()?;
    let (arg, locks) = LocksGivenBack::read_from_prefix(body).ok()?;
    let locks = locks.chunks_exact(size_of::<LkIn>()).filter_map(|bytes| LkIn::read_from_bytes(bytes).ok());
    Some((header, arg, locks.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::Nowhere;

    fn delegate(delegations: &Delegations) -> Delegate {
        let number = delegations.next_guest();
        Delegate { number, mount: 100 + number, channel: Arc::new(Nowhere), handles: Arc::default() }
    }

    #[test]
    fn locks_are_delegated_to_the_guest_that_alone_has_the_file_open_and_recalled_for_another() {
        let all = Delegations::default();
        let (one, other) = (delegate(&all), delegate(&all));
        assert_eq!(all.delegate(7, &one), None, "it is not open");
        assert!(all.opened(7, one.number).is_none() && all.opened(7, one.number).is_none());
        let serial = all.delegate(7, &one).expect("it is alone");
        assert_eq!(all.delegate(7, &one), None, "once");
        assert_eq!(all.opened(7, other.number).map(|recall| recall.serial), Some(serial));
        assert!(all.is_delegated(7, one.number, serial) && !all.is_delegated(7, other.number, serial));
        all.given_back(7, serial + 1, false);
        assert!(all.is_delegated(7, one.number, serial), "another number says nothing");
        all.given_back(7, serial, false);
        assert!(all.delegate(7, &one).is_none() && all.delegate(7, &other).is_none(), "both have it open");
        all.closed(7, other.number);
        let again = all.delegate(7, &one).expect("it is alone");
        assert!(again > serial);
        all.given_back(7, again, true);
        assert!((0..COOLDOWN).all(|_| all.delegate(7, &one).is_none()), "it could not decide");
        assert!(all.delegate(7, &one).is_some());
        all.closed(7, one.number);
        assert!(all.opened(7, other.number).is_some(), "it is still open there");
        all.gone(one.number);
        assert!(all.delegate(7, &other).is_some());
        // The mount is attached again, and its former delegations are over.
        let again = Delegate { mount: other.mount, ..delegate(&all) };
        assert!(all.take_back(7, 7, &again));
        assert!(all.delegate(7, &again).is_none());
        all.gone(other.number);
        assert!(all.delegate(7, &again).is_some());
        all.closed(7, again.number);
        assert!(all.state.lock().files.is_empty());
    }

    #[test]
    fn one_guest_at_a_time_maps_a_file() {
        let all = Delegations::default();
        let (one, two, three) = (delegate(&all), delegate(&all), delegate(&all));
        assert!(!all.claim_mapping(7, &one), "it is not open");
        [&one, &two, &three].into_iter().for_each(|guest| drop(all.opened(7, guest.number)));
        assert!(all.claim_mapping(7, &one) && all.claim_mapping(7, &one) && !all.claim_mapping(7, &two));
        all.end_mapping(7, two.number);
        all.end_mapping(7, one.number);
        assert!(!all.claim_mapping(7, &two), "once more");
        all.end_mapping(7, one.number);
        assert!(all.claim_mapping(7, &two) && !all.claim_mapping(7, &one));
        // It is attached again.
        let again = Delegate { mount: two.mount, ..delegate(&all) };
        assert!(all.claim_mapping(7, &again));
        all.gone(two.number);
        assert!(!all.claim_mapping(7, &three));
        all.gone(again.number);
        assert!(all.claim_mapping(7, &three));
    }

    #[test]
    fn what_is_given_back_is_read_as_it_was_and_noise_is_refused_or_read() {
        let lock = LkIn { fh: 3, owner: 4, ..LkIn::new_zeroed() };
        let message = give_back_message(9, 8, Some(&[lock, lock]), true);
        let (header, arg, locks) = given_back(&message).expect("whole");
        assert_eq!((header.nodeid, arg.serial, arg.decided, arg.cools_down, locks.len()), (9, 8, 1, 1, 2));
        let (_, arg, locks) = given_back(&give_back_message(9, 8, None, false)).expect("whole");
        assert_eq!((arg.decided, arg.cools_down, locks.len()), (0, 0, 0));
        // Whatever it is then: no panic.
        (0..message.len()).for_each(|len| drop(given_back(&message[..len])));
    }
}
