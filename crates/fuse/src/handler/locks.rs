//! File locks: GETLK, SETLK, SETLKW and INTERRUPT, when this crate serves them.
//!
//! # Theory
//! The kernel names lock owners by 64-bit numbers that it scrambles with a key of the mount, so that they do not
//! meet the small numbers of owners in process. A number does not say whether it is a process, for POSIX locks, or an open
//! file description, for OFD locks, and requests for both look alike. So both are called processes here, and are
//! told apart where it matters: when a file is closed (`handles`), and when a request must wait, because waits of
//! descriptions are not refused as deadlocks (`blocked_call`).
//!
//! A request is refused only when a second look finds something in its way, too (`turns`). The owner of a lock that is granted may
//! have closed the file meanwhile, so that nobody would give the lock back; that is looked into before the answer
//! (`handles`). Ways to go, and what ends the lock then:
//!
//! | while the request is under way | what the kernel sends | what ends a POSIX lock | what ends OFD and flock |
//! |---|---|---|---|
//! | another thread closes or replaces the descriptor (`close`, `dup2`, `close_range`) | FLUSH | the check at the grant | RELEASE, when the call is over |
//! | another thread has a table of descriptors of its own (`unshare`) and closes there | FLUSH of another owner | nothing: the thread still has it open | nothing |
//! | `exec` or exit by another thread, a deadly signal | INTERRUPT, then FLUSH | the withdrawal, or FLUSH | the withdrawal, or RELEASE |
//! | a signal that is caught | INTERRUPT | the withdrawal | the withdrawal |
//! | the connection is aborted, or the last worker ends | nothing | `Connection::close` | likewise |

use crate::abi::flags::{F_RDLCK, F_UNLCK, F_WRLCK, LK_FLOCK};
use crate::abi::{self, FileLock, InHeader, LkIn};
use crate::blocked_call::{self, FileOfMount};
use crate::connection::Connection;
use crate::handles::{Handles, Noted};
use crate::parked::Withdrawal;
use crate::reply::{Disposition, Reply};
use crate::request::{Ask, LockRequest};
use sluice_locks::{Detection, Kind, LockError, Owner, Range, RangeLock, RangeRequest, Submitted};
use sluice_vfs::{Errno, InodeRef};

type LockCallback = Box<dyn FnOnce(Result<(), LockError>) + Send>;

/// The outcome of a look at the locks of a file.
enum LockLook {
    /// The request is served.
    Served,
    /// The answer if nothing changes. Requests that were read before may change it.
    Refused(Result<(), Errno>),
    /// The lock must be waited for.
    MustWait,
}

impl Connection {
    /// Serves a lock request, or has it answered later.
    pub(super) fn lock(&self, request: LockRequest, reply: &mut Reply) -> Disposition {
        let served = self.try_lock(&request, reply, || {
            let earlier = self.turns.earlier();
            let waits = !earlier.is_empty();
            if waits {
                self.second_looks.postpone(request, earlier);
            }
            waits
        });
        if matches!(served, Ok(Disposition::Done(Ok(()))))
            && request.takes_lock()
            && let (Some(coherence), Ok(inode)) = (self.coherence.get(), self.node(request.header.nodeid))
            && let Some(serial) = coherence.delegate(inode.ino())
        {
            // For whoever serves the kernel, who takes it off.
            reply.put(&serial);
        }
        served.unwrap_or_else(|errno| Disposition::Done(Err(errno)))
    }

    /// Serves a lock request when everything that was read before it is served.
    pub(crate) fn lock_after_others(&self, request: &LockRequest, reply: &mut Reply) -> Disposition {
        self.try_lock(request, reply, || false).unwrap_or_else(|errno| Disposition::Done(Err(errno)))
    }

    /// Before a request is refused, `postpone` may have it served again later.
    fn try_lock(
        &self,
        request: &LockRequest,
        reply: &mut Reply,
        postpone: impl FnOnce() -> bool,
    ) -> Result<Disposition, Errno> {
        self.require_locks()?;
        let inode = self.node(request.header.nodeid)?;
        let answer = match self.look(request, &inode, reply)? {
            LockLook::Served => Ok(()),
            LockLook::MustWait => return self.park(request, &inode),
            LockLook::Refused(_) if postpone() => return Ok(Disposition::Parked),
            // The conflicting lock may have gone since the look, and before the question about earlier requests.
            LockLook::Refused(_) => {
                reply.clear();
                match self.look(request, &inode, reply)? {
                    LockLook::Served => Ok(()),
                    LockLook::MustWait => return self.park(request, &inode),
                    LockLook::Refused(answer) => answer,
                }
            }
        };
        Ok(Disposition::Done(answer))
    }

    fn look(&self, request: &LockRequest, inode: &InodeRef, reply: &mut Reply) -> Result<LockLook, Errno> {
        let LockRequest { ask, arg, .. } = request;
        let (locks, unlocks) = (inode.locks(), arg.lk.lock_type == F_UNLCK);
        let taken = match ask {
            Ask::Test => {
                let held = match request.range()? {
                    // Linux 6.13: F_OFD_GETLK with F_UNLCK asks for the owner's own locks.
                    RangeRequest { owner, range, .. } if unlocks => locks.test_own_range(owner, range),
                    range => locks.test_range(&range),
                };
                let lk = held.map_or(FileLock { lock_type: F_UNLCK, ..arg.lk }, |lock| file_lock_of(&lock));
                reply.put(&abi::LkOut { lk });
                return Ok(if held.is_some() && !unlocks {
                    LockLook::Refused(Ok(()))
                } else {
                    LockLook::Served
                });
            }
            _ if request.is_flock() && unlocks => {
                locks.unlock_flock(arg.owner);
                return Ok(LockLook::Served);
            }
            _ if unlocks => {
                let RangeRequest { owner, range, .. } = request.range()?;
                locks.unlock_range(owner, range)?;
                return Ok(LockLook::Served);
            }
            Ask::Wait if request.is_flock() => return Ok(LockLook::MustWait),
            _ if request.is_flock() => locks.set_flock(arg.owner, pid_of(arg), kind_of(arg.lk.lock_type)?),
            _ => locks.set_range(&request.range()?),
        };
        match taken {
            Ok(()) => keep(&self.handles, self.dev, inode, request).map(|()| LockLook::Served),
            Err(LockError::WouldBlock) if *ask == Ask::Wait => Ok(LockLook::MustWait),
            Err(error) => Ok(LockLook::Refused(Err(error.into()))),
        }
    }

    /// Submits a lock request that may wait; see `parked` for the protocol.
    fn park(&self, request: &LockRequest, inode: &InodeRef) -> Result<Disposition, Errno> {
        let LockRequest { header, arg, .. } = *request;
        let unique = header.unique;
        self.parked.begin(unique);
        let (parked, replier) = (self.parked.clone(), self.replier(unique));
        let (handles, dev, file, asked) = (self.handles.clone(), self.dev, inode.clone(), *request);
        let waiting = self.handles.wait(arg.fh, arg.owner);
        let done: LockCallback = Box::new(move |outcome| {
            let kept = outcome.map_err(Errno::from).and_then(|()| keep(&handles, dev, &file, &asked));
            drop(waiting);
            if parked.claim(unique) {
                replier.answer(kept);
            }
        });
        let submitted = if request.is_flock() {
            kind_of(arg.lk.lock_type)
                .map(|kind| inode.locks().submit_flock(arg.owner, pid_of(&arg), kind, done))
        } else {
            request.range().map(|range| inode.locks().submit_range_with(&range, detection(&header), done))
        };
        match submitted {
            Ok(Ok(Submitted::Waiting(ticket))) => {
                let wait = Withdrawal { inode: inode.clone(), ticket };
                if self.parked.arm(unique, wait.clone()) {
                    self.withdraw(unique, &wait);
                }
                Ok(Disposition::Parked)
            }
            decided => {
                self.parked.claim(unique);
                decided??;
                keep(&self.handles, self.dev, inode, request)?;
                Ok(Disposition::Done(Ok(())))
            }
        }
    }

    /// A signal came for the client of request `unique`.
    pub(super) fn interrupt(&self, unique: u64) {
        if let Some(wait) = self.parked.interrupt(unique) {
            self.withdraw(unique, &wait);
        }
    }

    /// Takes a waiting request back and answers EINTR, unless it was decided meanwhile.
    fn withdraw(&self, unique: u64, wait: &Withdrawal) {
        if wait.inode.locks().cancel(&wait.ticket) && self.parked.claim(unique) {
            self.replier(unique).answer(Err(Errno::EINTR));
        }
    }

    /// Without negotiation the kernel never asks; ENOSYS is what it understands if it does.
    fn require_locks(&self) -> Result<(), Errno> {
        if self.serves_locks() { Ok(()) } else { Err(Errno::ENOSYS) }
    }
}

impl LockRequest {
    /// Whether a lock is asked for.
    fn takes_lock(&self) -> bool {
        self.ask != Ask::Test && self.arg.lk.lock_type != F_UNLCK
    }

    fn is_flock(&self) -> bool {
        self.arg.lk_flags & LK_FLOCK != 0
    }

    /// The request for a byte range that it is.
    fn range(&self) -> Result<RangeRequest, Errno> {
        range_request(&self.arg)
    }
}

/// To be called when a lock was granted, and before that is answered: takes it back if its owner has closed the file.
fn keep(handles: &Handles, dev: u64, inode: &InodeRef, request: &LockRequest) -> Result<(), Errno> {
    let file = FileOfMount { dev, ino: inode.ino() };
    if note(handles, inode, &request.arg)? == Noted::Open
        || request.is_flock()
        // The processes of a mount elsewhere are not visible here. The owner may still have another descriptor.
        || dev == 0
        || blocked_call::still_has_open(request.header.pid, file)
    {
        return Ok(());
    }
    inode.locks().release_owner(Owner::Process(request.arg.owner));
    Err(Errno::EBADF)
}

/// Takes a lock that a kernel holds already: an earlier server granted it.
///
/// # Errors
/// Another owner has it, or the handle is unknown.
pub fn set_again(handles: &Handles, inode: &InodeRef, arg: &LkIn) -> Result<(), Errno> {
    if arg.lk_flags & LK_FLOCK != 0 {
        inode.locks().set_flock(arg.owner, pid_of(arg), kind_of(arg.lk.lock_type)?)?;
    } else {
        inode.locks().set_range(&range_request(arg)?)?;
    }
    note(handles, inode, arg).map(drop)
}

/// Notes the owner of a lock that was granted. Takes the lock back if the handle is not known.
fn note(handles: &Handles, inode: &InodeRef, arg: &LkIn) -> Result<Noted, Errno> {
    let LkIn { fh, owner, .. } = *arg;
    if arg.lk_flags & LK_FLOCK != 0 {
        let noted = handles.note_flock(fh, inode, owner);
        if noted == Noted::Unknown {
            inode.locks().release_flock(owner);
            return Err(Errno::EBADF);
        }
        return Ok(noted);
    }
    let noted = handles.note_owner(fh, inode, owner);
    if noted == Noted::Unknown {
        inode.locks().release_owner(Owner::Process(owner));
        return Err(Errno::EBADF);
    }
    Ok(noted)
}

/// The request for a byte range of `arg`; its kind does not matter where it unlocks.
fn range_request(arg: &LkIn) -> Result<RangeRequest, Errno> {
    let LkIn { owner, lk, .. } = *arg;
    let kind = if lk.lock_type == F_UNLCK { Kind::Shared } else { kind_of(lk.lock_type)? };
    Ok(RangeRequest { owner: Owner::Process(owner), pid: pid_of(arg), kind, range: range_of(&lk)? })
}

/// Whether the wait of the thread of `header` for a byte range may be refused as a deadlock.
fn detection(header: &InHeader) -> Detection {
    if blocked_call::asks_for_ofd(header.pid) { Detection::Off } else { Detection::ByOwner }
}

fn range_of(lk: &FileLock) -> Result<Range, Errno> {
    Range::new(lk.start, lk.end).map_err(|_| Errno::EINVAL)
}

fn kind_of(lock_type: u32) -> Result<Kind, Errno> {
    match lock_type {
        F_RDLCK => Ok(Kind::Shared),
        F_WRLCK => Ok(Kind::Exclusive),
        _ => Err(Errno::EINVAL),
    }
}

fn pid_of(arg: &LkIn) -> i32 {
    arg.lk.pid.cast_signed()
}

fn file_lock_of(lock: &RangeLock) -> FileLock {
    let lock_type = match lock.kind {
        Kind::Shared => F_RDLCK,
        Kind::Exclusive => F_WRLCK,
    };
    // The kernel takes no negative process numbers; 0 is how it shows a process that it cannot name.
    let pid = u32::try_from(lock.pid).unwrap_or(0);
    FileLock { start: lock.range.start(), end: lock.range.end(), lock_type, pid }
}
