//! Behind: requests whose answer the kernel has before the server has them.
//!
//! # Theory
//! For a file that was made in a *covered* directory (`knowledge.rs`) and has been open since, the relay knows the
//! answer to an ordinary WRITE or SETATTR. So it answers at once, and the request goes to the server *behind*: in its
//! place among the others, with a mark. The server executes a request with the mark before it begins what comes after
//! it.
//!
//! ```text
//!   kernel ──WRITE──> relay ──answer──> kernel          a recall of a cover waits until all that is
//!                       └──WRITE, marked──> server       behind has been answered
//!                            (answer) <──┘
//! ```
//!
//! *Nobody sees the difference.* Another node finds the file only by its directory, and that answer is held until the
//! cover has ended: the end waits for what is behind. Later requests of this kernel come after them.
//!
//! *Times are not known*: the server's clock sets some. So the kernel gets attributes that it may not keep, and asks
//! again if it needs them.
//!
//! *A failure* is told by the next FSYNC of each descriptor, or by its close, once: as of what the kernel writes back.
//! From there on every request is sent to the server, until the server has accepted one.
//!
//! *Another server* gets with the holdings what is behind, and executes it before it serves anybody. A node that the last server may
//! have given up must not: others may have changed the files since. There it counts as failed
//! ([`Relay::give_up_behind`]).
//!
//! # Lock order
//! Called with `relay.state`; takes `relay.ledger`.

use super::notices::inval_inode;
use super::{Done, InFlight, Relay, Server, Shared, State};
use sluice_fuse::internal::abi::flags::WRITE_CACHE;
use sluice_fuse::internal::abi::{
    Attr, AttrOut, Fattr, InHeader, InterruptIn, OutHeader, SetattrIn, WriteIn, WriteOut,
};
use sluice_fuse::internal::{NOT_TOLD, Reply};
use sluice_fuse::opcode;
use sluice_sync::MutexGuard;
use sluice_vfs::{Errno, OpenFlags};
use zerocopy::FromBytes;

/// So many requests, of so many bytes, may be behind. The next request goes to the server, and waits for earlier ones.
const COUNT_MAX: usize = 256;
const BYTES_MAX: usize = 8 << 20;
/// Set-ID bits and the sticky bit: which of them a change clears is the server's to say. Without them, and without a capability, there
/// is nothing to clear.
const SPECIAL: u32 = 0o7000;
/// The largest size that no file system refuses.
const SIZE_MAX: u64 = 1 << 40;

/// The requests that are behind.
#[derive(Default)]
pub(super) struct SentBehind {
    count: usize,
    bytes: usize,
    /// A request behind has failed: no more requests are sent behind.
    is_refused: bool,
    /// Recalls that wait for what was behind when they came: the order of the last request, and what is to be called.
    recalls: Vec<(u64, Done)>,
    /// Nodes whose attributes in the kernel are wrong.
    wrong: Vec<u64>,
}

/// The answer to a request about an open file with these attributes, if it is certain. Notes what it changes.
fn foresee(
    attr: &mut Attr,
    header: &InHeader,
    body: &[u8],
    is_open: impl Fn(u64) -> bool,
) -> Option<Vec<u8>> {
    let mut reply = Reply::new();
    let mut changed = *attr;
    match header.opcode {
        opcode::WRITE => {
            let (arg, data) = WriteIn::read_from_prefix(body).ok()?;
            let is_plain = arg.write_flags & WRITE_CACHE == 0
                && !OpenFlags::from_bits_retain(arg.flags).intersects(OpenFlags::APPEND | OpenFlags::SYNC);
            let end = arg.offset.checked_add(arg.size.into()).filter(|end| *end <= SIZE_MAX)?;
            if !is_plain || data.len() != arg.size as usize || !is_open(arg.fh) {
                return None;
            }
            changed.size = changed.size.max(end);
            reply.put(&WriteOut { size: arg.size, padding: 0 });
        }
        opcode::SETATTR => {
            let (arg, _) = SetattrIn::read_from_prefix(body).ok()?;
            let valid = Fattr::from_bits_retain(arg.valid);
            let owner = Fattr::UID | Fattr::GID;
            let changes = owner | Fattr::MODE | Fattr::SIZE | Fattr::ATIME | Fattr::MTIME;
            let how = Fattr::ATIME_NOW | Fattr::MTIME_NOW | Fattr::LOCKOWNER | Fattr::KILL_SUIDGID;
            let usual = changes | how | Fattr::FH;
            // If the user is unknown, the kernel has checked the permission.
            let may =
                matches!(header.uid, 0 | NOT_TOLD) || header.uid == attr.uid && !valid.intersects(owner);
            let by_handle = valid.contains(Fattr::FH);
            if !may || !valid.intersects(changes) || !usual.contains(valid) || by_handle && !is_open(arg.fh) {
                return None;
            }
            if valid.contains(Fattr::SIZE) {
                changed.size = Some(arg.size).filter(|size| by_handle && *size <= SIZE_MAX)?;
            }
            if valid.contains(Fattr::MODE) {
                let mode = Some(arg.mode).filter(|mode| mode & SPECIAL == 0)?;
                changed.mode = changed.mode & !0o777 | mode & 0o777;
            }
            changed.uid = if valid.contains(Fattr::UID) { arg.uid } else { changed.uid };
            changed.gid = if valid.contains(Fattr::GID) { arg.gid } else { changed.gid };
            if valid.contains(Fattr::ATIME) && !valid.contains(Fattr::ATIME_NOW) {
                (changed.atime, changed.atimensec) = (arg.atime, arg.atimensec);
            }
            if valid.contains(Fattr::MTIME) && !valid.contains(Fattr::MTIME_NOW) {
                (changed.mtime, changed.mtimensec) = (arg.mtime, arg.mtimensec);
            }
            reply.put(&AttrOut { attr_valid: 0, attr_valid_nsec: 0, dummy: 0, attr: changed });
        }
        _ => return None,
    }
    if attr.mode & SPECIAL != 0 {
        return None;
    }
    *attr = changed;
    Some(reply.success(header.unique).to_vec())
}

/// The error of the answer to a request that was behind: a part that was written is one.
pub(super) fn error_of(request: &[u8], answer: &[u8]) -> i32 {
    let Ok((out, body)) = OutHeader::read_from_prefix(answer) else { return Errno::EIO.raw() };
    let asked = InHeader::read_from_prefix(request).ok().filter(|(header, _)| header.opcode == opcode::WRITE);
    let asked = asked.and_then(|(_, body)| WriteIn::read_from_prefix(body).ok());
    let written = WriteOut::read_from_prefix(body).map_or(0, |(out, _)| out.size);
    match asked {
        Some((arg, _)) if out.error == 0 && written != arg.size => Errno::ENOSPC.raw(),
        _ => -out.error,
    }
}

/// Whether requests of this kind may be sent behind.
pub(super) fn is_of_behind(code: u32) -> bool {
    matches!(code, opcode::WRITE | opcode::SETATTR)
}

impl SentBehind {
    /// How many bytes are behind.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// There is another server, or this one has said yes to a request of a kind that is sent behind.
    pub(super) fn agreed(&mut self) {
        self.is_refused = false;
    }

    /// Recalls count for nothing: the server is gone. To be dropped with nothing locked.
    pub(super) fn take_recalls(&mut self) -> Vec<(u64, Done)> {
        std::mem::take(&mut self.recalls)
    }
}

impl State {
    /// Has `done` called when all requests that are behind now have been answered, or by the caller at once.
    pub(super) fn after_behind(&mut self, done: Done) -> Option<Done> {
        if self.behind.count == 0 {
            return Some(done);
        }
        self.behind.recalls.push((self.last, done));
        None
    }

    /// Whether `message` interrupts what has its answer already.
    pub(super) fn interrupts_behind(&self, header: &InHeader, message: &[u8]) -> bool {
        let arg = InterruptIn::read_from_prefix(&message[size_of::<InHeader>()..]);
        header.opcode == opcode::INTERRUPT
            && arg.is_ok_and(|(arg, _)| {
                self.in_flight.get(&arg.unique).is_some_and(|request| request.is_behind)
            })
    }

    /// The requests that are behind, in their order.
    pub(super) fn behind_in_order(&self) -> Vec<Vec<u8>> {
        let mut all: Vec<_> = self.in_flight.values().filter(|request| request.is_behind).collect();
        all.sort_unstable_by_key(|request| request.order);
        all.into_iter().map(|request| request.message.clone()).collect()
    }
}

impl Shared {
    /// The answer to a request that can be sent behind. `may_repeat`: another server can tell whether it was executed.
    pub(super) fn answer_behind(
        &self,
        state: &mut State,
        header: &InHeader,
        message: &[u8],
        may_repeat: bool,
    ) -> Option<Vec<u8>> {
        let State { server, behind, knowledge, .. } = state;
        if !is_of_behind(header.opcode) {
            return None;
        }
        let known = knowledge.attr_of_file(header.nodeid)?;
        let attr = known.as_mut()?;
        let mut ledger = self.ledger.lock();
        let body = &message[size_of::<InHeader>()..];
        let Some(answer) = foresee(attr, header, body, |fh| ledger.is_handle_of(fh, header.nodeid)) else {
            *known = None;
            return None;
        };
        let has_room = behind.count < COUNT_MAX && behind.bytes + message.len() <= BYTES_MAX;
        if behind.is_refused || !has_room || !may_repeat || !matches!(server, Some(Server::Remote(_))) {
            return None;
        }
        let changes = ledger.changes.count();
        ledger.answered(message, &answer, changes);
        behind.count += 1;
        behind.bytes += message.len();
        Some(answer)
    }

    /// A request that was behind is answered with `error`, or given up. To be followed by [`settle_behind`](Self::settle_behind).
    pub(super) fn end_behind(&self, state: &mut State, request: &InFlight, error: i32) {
        state.behind.count -= 1;
        state.behind.bytes -= request.message.len();
        let Ok((header, _)) = InHeader::read_from_prefix(&request.message) else { return };
        if error != 0 {
            log::warn!(
                "a write or change of file {} failed after it was answered: error {error}",
                header.nodeid
            );
            state.behind.is_refused = true;
            state.behind.wrong.push(header.nodeid);
            self.ledger.lock().failed_behind(header.nodeid);
        }
    }

    /// The server must not say of what is lost that it is durable, nor find another file in its place.
    pub(super) fn fail_what_is_lost(&self, state: &mut State) {
        let mut failed = Vec::new();
        let mut ledger = self.ledger.lock();
        for (&unique, request) in &state.in_flight {
            let Ok((header, _)) = InHeader::read_from_prefix(&request.message) else { continue };
            failed.extend(ledger.asked(&header, &request.message).map(|error| (unique, error)));
        }
        drop(ledger);
        for (unique, error) in failed {
            let Some(request) = state.in_flight.remove(&unique) else { continue };
            if request.is_behind {
                self.end_behind(state, &request, error);
            } else {
                // An error means that the request is gone.
                let _ = self.device.send(Reply::new().failure(unique, Errno::from_raw(error)));
            }
        }
    }

    /// The error that replaces success for the kernel, if a request has failed that was behind at that time.
    pub(super) fn take_failure(&self, request: &InFlight, out: &OutHeader) -> Option<Vec<u8>> {
        let is_sync = matches!(request.opcode, opcode::FSYNC | opcode::SYNCFS);
        let (header, _) = InHeader::read_from_prefix(&request.message).ok().filter(|_| is_sync)?;
        let error = self.ledger.lock().asked(&header, &request.message)?;
        Some(Reply::new().failure(out.unique, Errno::from_raw(error)).to_vec())
    }

    /// Does what is due after requests that were behind have [ended](Self::end_behind).
    pub(super) fn settle_behind(&self, mut state: MutexGuard<'_, State>) {
        let wrong = std::mem::take(&mut state.behind.wrong);
        let mut due = state.behind.take_recalls();
        if !due.is_empty() {
            let left = state.in_flight.values().filter(|request| request.is_behind);
            let first = left.map(|request| request.order).min().unwrap_or(u64::MAX);
            state.behind.recalls = due.extract_if(.., |(order, _)| first <= *order).collect();
        }
        drop(state);
        for nodeid in wrong {
            self.announcer.announce(&inval_inode(nodeid, 0, 0), Box::new(|| {}));
        }
        due.into_iter().for_each(|(_, done)| done());
    }
}

impl Relay {
    /// Requests that are behind count as failed. Called without a server, if the last one may have given up this mount:
    /// the next server may not execute changes that other mounts have missed for so long.
    pub fn give_up_behind(&self) {
        let mut state = self.0.state.lock();
        let all: Vec<_> = state.in_flight.extract_if(|_, request| request.is_behind).collect();
        all.iter().for_each(|(_, request)| self.0.end_behind(&mut state, request, Errno::EIO.raw()));
        self.0.settle_behind(state);
    }
}
