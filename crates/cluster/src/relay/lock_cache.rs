//! Lock cache: lock requests that the relay decides by itself, because the server has delegated a file's locks to it.
//!
//! # Theory
//! See `guest/delegation.rs` for the server's side. The ledger has all locks of the kernel, and while a file's locks
//! are delegated nobody else has any. So the thread that has read the request grants a lock without conflicts, and
//! frees a lock, right here. Everything else goes to the server, after the locks.
//!
//! *When the ledger is right.* It counts a lock from its answer on. So nothing is decided while a lock request of the file is on its
//! way; and of two at once of one owner, answered in whatever order, nothing is believed until the file is closed (`unsure`).
//!
//! *A recall may overtake the answer* that it recalls. Requests on their way then remember the number: a delegation up to it is
//! void.
//!
//! *A close beside a request.* A thread may be granted a lock through a descriptor that another has closed, and the kernel does not
//! tell. The server finds that out (`handles`): what an owner asks for through a file that it has flushed is not decided here.
//!
//! # Lock order
//! Called with `relay.state`; takes `relay.ledger`, and the locks of a server of this process.

use super::{InFlight, Server, Shared, State};
use crate::guest::give_back_message;
use sluice_fuse::internal::Reply;
use sluice_fuse::internal::abi::{FlushIn, InHeader, LkIn, OutHeader};
use sluice_fuse::opcode;
use std::collections::{HashMap, HashSet};
use zerocopy::{FromBytes, IntoBytes};

/// The delegated locks that a relay may decide.
#[derive(Default)]
pub(super) struct LockCache {
    /// By node: the number of the delegation, and whether anything was decided.
    delegated: HashMap<u64, (u64, bool)>,
    /// Nodes whose locks the ledger may have wrong.
    unsure: HashSet<u64>,
}

fn is_lock(code: u32) -> bool {
    matches!(code, opcode::GETLK | opcode::SETLK | opcode::SETLKW)
}

fn lock_of(message: &[u8]) -> Option<(InHeader, LkIn)> {
    let (header, body) = InHeader::read_from_prefix(message).ok()?;
    Some((header, LkIn::read_from_prefix(body).ok()?.0)).filter(|_| is_lock(header.opcode))
}

fn lock_on(nodeid: u64, message: &[u8]) -> Option<(InHeader, LkIn)> {
    lock_of(message).filter(|(header, _)| header.nodeid == nodeid)
}

impl LockCache {
    /// The server is gone: its delegations are void. Delegations on their way do not arrive.
    pub(super) fn clear(&mut self) {
        self.delegated.clear();
    }
}

impl Shared {
    /// The kernel makes a request, of which the ledger knows. Returns the answer if it is decided here.
    pub(super) fn decide_lock(
        &self,
        state: &mut State,
        header: &InHeader,
        message: &[u8],
    ) -> Option<Vec<u8>> {
        if !is_lock(header.opcode) {
            return None;
        }
        let (arg, _) = LkIn::read_from_prefix(&message[size_of::<InHeader>()..]).ok()?;
        let decided = self.decide_lock_of(state, header, &arg);
        if decided.is_none() && self.ledger.lock().take_untold(&arg) {
            let flush = FlushIn { fh: arg.fh, unused: 0, padding: 0, lock_owner: arg.owner };
            state.tell_flush(header, &flush);
        }
        decided
    }

    fn decide_lock_of(&self, state: &mut State, header: &InHeader, arg: &LkIn) -> Option<Vec<u8>> {
        let nodeid = header.nodeid;
        let mut is_busy = false;
        for (_, other) in state.in_flight.values().filter_map(|request| lock_on(nodeid, &request.message)) {
            is_busy = true;
            if other.owner == arg.owner {
                state.locks.unsure.insert(nodeid);
            }
        }
        let is_sure = !state.locks.unsure.contains(&nodeid);
        let (_, has_decided) = state.locks.delegated.get_mut(&nodeid)?;
        if is_busy {
            return None;
        }
        let decision = if is_sure { self.ledger.lock().decide(header, arg) } else { None };
        let Some(found) = decision else {
            self.give_back(state, nodeid, true);
            return None;
        };
        *has_decided = true;
        state.counts.locks_decided += 1;
        let mut reply = Reply::new();
        if let Some(found) = found {
            reply.put(&found);
        }
        Some(reply.success(header.unique).to_vec())
    }

    /// The kernel gives up a handle of `nodeid`. After the last close there are no locks left to decide.
    pub(super) fn closed(&self, state: &mut State, nodeid: u64) {
        let has_cached = state.locks.delegated.contains_key(&nodeid) || state.locks.unsure.contains(&nodeid);
        if has_cached && !self.ledger.lock().is_open(nodeid) {
            self.give_back(state, nodeid, false);
            state.locks.unsure.remove(&nodeid);
        }
    }

    /// The server wants the locks of `nodeid` back that were delegated under this number.
    pub(super) fn recall(&self, nodeid: u64, serial: u64) {
        let mut state = self.state.lock();
        state.counts.recalls += 1;
        if state.locks.delegated.get(&nodeid).is_some_and(|(number, _)| *number == serial) {
            return self.give_back(&mut state, nodeid, false);
        }
        for request in state.in_flight.values_mut() {
            if lock_on(nodeid, &request.message).is_some() {
                request.void = request.void.max(serial);
            }
        }
        state.to_server(&give_back_message(nodeid, serial, None, false));
    }

    /// Takes a delegation from the answer to a request, of which the ledger knows. Returns what is for the kernel then.
    pub(super) fn take_delegation(
        &self,
        state: &mut State,
        request: &InFlight,
        answer: &[u8],
    ) -> Option<Vec<u8>> {
        let asks = matches!(request.opcode, opcode::SETLK | opcode::SETLKW);
        let (out, body) = OutHeader::read_from_prefix(answer).ok().filter(|_| asks)?;
        let (serial, void) = (u64::read_from_bytes(body).ok()?, request.void);
        let nodeid = lock_of(&request.message)?.0.nodeid;
        if serial <= void || state.locks.unsure.contains(&nodeid) || !self.ledger.lock().is_open(nodeid) {
            state.to_server(&give_back_message(nodeid, serial, None, true));
        } else {
            state.locks.delegated.insert(nodeid, (serial, false));
        }
        Some(OutHeader { len: size_of::<OutHeader>() as u32, ..out }.as_bytes().to_vec())
    }

    fn give_back(&self, state: &mut State, nodeid: u64, cools_down: bool) {
        if let Some((serial, has_decided)) = state.locks.delegated.remove(&nodeid) {
            let locks = if has_decided { Some(self.ledger.lock().locks_of(nodeid)) } else { None };
            state.to_server(&give_back_message(nodeid, serial, locks.as_deref(), cools_down));
        }
    }
}

impl State {
    /// How many requests under way wait for a lock.
    pub(super) fn waiting_locks(&self) -> usize {
        self.in_flight.values().filter(|request| request.opcode == opcode::SETLKW).count()
    }

    /// Whether a lock of `nodeid` may be granted just now, or may have been that the ledger does not know of.
    pub(super) fn may_lock(&self, nodeid: u64) -> bool {
        let is_asked = || self.in_flight.values().any(|request| lock_on(nodeid, &request.message).is_some());
        self.locks.unsure.contains(&nodeid) || is_asked()
    }

    /// Tells the server, if there is one, in the order of the requests.
    pub(super) fn to_server(&self, message: &[u8]) {
        match &self.server {
            None => {}
            Some(Server::Local(guest)) => drop(guest.take(message)),
            Some(Server::Remote(uplink)) => uplink.request(message),
        }
    }
}
