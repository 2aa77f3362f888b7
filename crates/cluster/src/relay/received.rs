//! Received: the steps of a request of the kernel. All steps of one request come before those of the next: `relay.reading` is held.
//!
//! ```text
//!   read ──> answered here? ──yes──> kernel
//!                 └──no──> numbered, marked, kept ──> handed on to the server
//!                                     └──if it is behind: answered, too ──> kernel
//! ```

use super::{InFlight, RelayParking, Server, Shared, State, Uplink};
use crate::guest::{Guest, Ticket, mark, set_slot};
use sluice_fuse::internal::abi::{InHeader, InterruptIn};
use sluice_fuse::internal::{NO_ATIME, Reply, SYNCHRONOUS, is_noted};
use sluice_fuse::opcode;
use sluice_sync::time::Instant;
use sluice_sync::{Arc, MutexGuard};
use sluice_vfs::Errno;
use zerocopy::FromBytes;

/// So many requests under way have a number: a kernel makes fewer. For further requests, a server that takes over
/// cannot tell whether they were executed.
const SLOTS: u16 = 1024;

/// The remaining work for a request that was handed on, to be done without a lock.
pub(super) enum Left {
    /// The calling thread serves it.
    Serve(Arc<Guest>, Ticket),
    /// The uplink must be flushed.
    Flush(Arc<dyn Uplink>),
}

impl Left {
    /// Does it, for the request `message`. Called with nothing locked.
    pub(super) fn perform(self, message: &mut [u8]) {
        match self {
            Left::Serve(guest, ticket) => guest.serve(ticket, message),
            Left::Flush(uplink) => uplink.flush(),
        }
    }
}

/// The outcome of a request before the server has it.
enum Received {
    /// The kernel gets this answer, and the server does not hear of it.
    Answered(Vec<u8>),
    /// Nobody hears of it.
    Dropped,
    /// It is for the server. So many changes were answered before it was made.
    ForServer { changes: u64 },
}

impl State {
    /// The lowest number that no request under way has; none if there are very many.
    fn free_slot(&self) -> Option<u16> {
        let mut used = [0_u64; SLOTS as usize / 64];
        for slot in self.in_flight.values().filter_map(|request| request.slot) {
            used[usize::from(slot / 64)] |= 1 << (slot % 64);
        }
        (0..SLOTS).find(|slot| used[usize::from(slot / 64)] & 1 << (slot % 64) == 0)
    }
}

impl Shared {
    /// The kernel has made a request.
    pub(super) fn received(&self, message: &mut [u8]) -> Option<Left> {
        let (header, _) = InHeader::read_from_prefix(message).ok()?;
        self.counters.count(header.opcode);
        let mut state = self.state.lock();
        if state.parked == RelayParking::Ended {
            drop(state);
            return self.received_elsewhere(&header, message);
        }
        state.counts.requests += 1;
        match self.answer_here(&mut state, &header, message) {
            Received::ForServer { changes } => {
                let early = self.keep(&mut state, &header, message, changes);
                self.hand_on(state, &header, message, early)
            }
            Received::Answered(answer) => {
                drop(state);
                self.tell(header.opcode, &answer);
                None
            }
            Received::Dropped => None,
        }
    }

    /// Has the ledger note the request, and answers it if the answer is certain here.
    fn answer_here(&self, state: &mut State, header: &InHeader, message: &[u8]) -> Received {
        if state.interrupts_behind(header, message) {
            return Received::Dropped;
        }
        if let Some(errno) = state.ended {
            let is_answered =
                !matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT);
            let answer = || Received::Answered(Reply::new().failure(header.unique, errno).to_vec());
            return if is_answered { answer() } else { Received::Dropped };
        }
        let silent = self.flush_in_silence(state, header, message);
        let (error, changes) = {
            let mut ledger = self.ledger.lock();
            (ledger.asked(header, message), ledger.changes.count())
        };
        self.forget(state, header, message);
        if let Some(error) = error {
            return Received::Answered(Reply::new().failure(header.unique, Errno::from_raw(error)).to_vec());
        }
        silent
            .or_else(|| self.decide_lock(state, header, message))
            .or_else(|| self.answer_by_knowledge(state, header, message))
            .map_or(Received::ForServer { changes }, Received::Answered)
    }

    /// Keeps a request that is for the server until it is answered, and marks it. Returns the answer if the kernel need not wait.
    fn keep(
        &self,
        state: &mut State,
        header: &InHeader,
        message: &mut [u8],
        changes: u64,
    ) -> Option<Vec<u8>> {
        if header.opcode == opcode::RELEASE {
            self.closed(state, header.nodeid);
        }
        let slot = is_noted(header.opcode).then(|| state.free_slot()).flatten();
        let early = self.answer_behind(state, header, message, slot.is_some() && !self.is_synchronous);
        let is_behind = early.is_some();
        let number_in_dir = if is_behind { 0 } else { state.note_asked(header, message) };
        if let Some(slot) = slot {
            set_slot(message, slot, is_behind);
        }
        if self.is_synchronous {
            mark(message, SYNCHRONOUS);
        }
        if !self.moves_atime(header.opcode) {
            mark(message, NO_ATIME);
        }
        let is_answered = !matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT);
        let is_awaited = is_answered && !matches!(header.opcode, opcode::RELEASE | opcode::RELEASEDIR);
        state.counts.awaited += u64::from(is_awaited && !is_behind);
        state.counts.behind += u64::from(is_behind);
        if is_answered {
            state.last += 1;
            let request = InFlight {
                order: state.last,
                is_behind,
                is_told: false,
                message: message.to_vec(),
                slot,
                changes,
                opcode: header.opcode,
                arrival: Instant::now(),
                void: 0,
                number_in_dir,
                xattr_changes: state.knowledge.xattr_changes(),
                is_old: false,
            };
            state.in_flight.insert(header.unique, request);
        }
        early
    }

    /// Whether a request of this kind may move an access time.
    fn moves_atime(&self, code: u32) -> bool {
        match code {
            opcode::READ | opcode::READLINK => self.updates_atime[0],
            opcode::READDIR | opcode::READDIRPLUS => self.updates_atime[1],
            _ => true,
        }
    }

    /// Gives a request to the server, if there is one, and `early` to the kernel.
    fn hand_on(
        &self,
        mut state: MutexGuard<'_, State>,
        header: &InHeader,
        message: &[u8],
        early: Option<Vec<u8>>,
    ) -> Option<Left> {
        match state.server.clone() {
            None => {
                match header.opcode {
                    opcode::INTERRUPT => self.interrupt(&mut state, message),
                    opcode::FORGET | opcode::BATCH_FORGET => state.forgets.push(message.to_vec()),
                    _ if state.parked == RelayParking::Waits => {
                        state.parked = RelayParking::No;
                        drop(state);
                        self.workspaces.wake(self.workspace);
                    }
                    _ => {}
                }
                None
            }
            Some(Server::Local(guest)) => {
                let ticket = guest.take(message);
                Some(Left::Serve(guest, ticket))
            }
            Some(Server::Remote(uplink)) => {
                uplink.request(message);
                drop(state);
                if let Some(early) = early {
                    self.tell(header.opcode, &early);
                }
                Some(Left::Flush(uplink))
            }
        }
    }

    /// A signal came for a request that waits for a server: it is withdrawn.
    fn interrupt(&self, state: &mut State, message: &[u8]) {
        let Ok((arg, _)) = InterruptIn::read_from_prefix(&message[size_of::<InHeader>()..]) else { return };
        if state.in_flight.remove(&arg.unique).is_some() {
            // An error means that the request is gone.
            let _ = self.device.send(Reply::new().failure(arg.unique, Errno::EINTR));
        }
    }
}
