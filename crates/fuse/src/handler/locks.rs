//! File locks: GETLK, SETLK, SETLKW and INTERRUPT, when this crate serves them.
//!
//! The kernel names lock owners by 64-bit numbers that it scrambles with a key of the mount, so that they do not
//! meet the small numbers of owners in process. POSIX and OFD owners cannot be told apart here; `handles` does so
//! when a file is closed.

use super::Disposition;
use crate::abi::flags::{F_RDLCK, F_UNLCK, F_WRLCK, LK_FLOCK};
use crate::abi::{self, FileLock, InHeader, LkIn};
use crate::connection::Connection;
use crate::parked::Wait;
use crate::reply::Reply;
use sluice_locks::{Kind, LockError, Owner, Range, RangeLock, RangeRequest, Submitted};
use sluice_vfs::{Errno, InodeRef};

type Done = Box<dyn FnOnce(Result<(), LockError>) + Send>;

impl Connection {
    pub(super) fn getlk(&self, header: &InHeader, arg: &LkIn, reply: &mut Reply) -> Result<(), Errno> {
        self.require_locks()?;
        let inode = self.node(header.nodeid)?;
        let (owner, range) = (Owner::Process(arg.owner), range_of(&arg.lk)?);
        let held = match arg.lk.lock_type {
            // Linux 6.13: F_OFD_GETLK with F_UNLCK asks for the owner's own locks.
            F_UNLCK => inode.locks().test_own_range(owner, range),
            other => {
                let request = RangeRequest { owner, pid: pid_of(arg), kind: kind_of(other)?, range };
                inode.locks().test_range(&request)
            }
        };
        let lk = held.map_or(FileLock { lock_type: F_UNLCK, ..arg.lk }, |lock| file_lock_of(&lock));
        reply.put(&abi::LkOut { lk });
        Ok(())
    }

    pub(super) fn setlk(self: &Connection, header: &InHeader, arg: &LkIn, wait: bool) -> Disposition {
        self.try_setlk(header, arg, wait).unwrap_or_else(|errno| Disposition::Done(Err(errno)))
    }

    fn try_setlk(&self, header: &InHeader, arg: &LkIn, wait: bool) -> Result<Disposition, Errno> {
        self.require_locks()?;
        let inode = self.node(header.nodeid)?;
        if arg.lk_flags & LK_FLOCK != 0 {
            self.handles.note_flock(arg.fh, arg.owner);
            if arg.lk.lock_type == F_UNLCK {
                inode.locks().unlock_flock(arg.owner);
                return Ok(Disposition::Done(Ok(())));
            }
            let (owner, pid, kind) = (arg.owner, pid_of(arg), kind_of(arg.lk.lock_type)?);
            if !wait {
                return Ok(Disposition::Done(inode.locks().set_flock(owner, pid, kind).map_err(Errno::from)));
            }
            return self
                .park(header.unique, &inode, |done| inode.locks().submit_flock(owner, pid, kind, done));
        }
        self.handles.note_owner(arg.fh, arg.owner);
        let (owner, range) = (Owner::Process(arg.owner), range_of(&arg.lk)?);
        if arg.lk.lock_type == F_UNLCK {
            return Ok(Disposition::Done(inode.locks().unlock_range(owner, range).map_err(Errno::from)));
        }
        let request = RangeRequest { owner, pid: pid_of(arg), kind: kind_of(arg.lk.lock_type)?, range };
        if !wait {
            return Ok(Disposition::Done(inode.locks().set_range(&request).map_err(Errno::from)));
        }
        self.park(header.unique, &inode, |done| inode.locks().submit_range(&request, done))
    }

    /// Submits a lock request that may wait; see `parked` for the protocol.
    fn park(
        &self,
        unique: u64,
        inode: &InodeRef,
        submit: impl FnOnce(Done) -> Result<Submitted, LockError>,
    ) -> Result<Disposition, Errno> {
        self.parked.begin(unique);
        let (parked, replier) = (self.parked.clone(), self.replier(unique));
        let done: Done = Box::new(move |outcome| {
            if parked.claim(unique) {
                replier.answer(outcome.map_err(Errno::from));
            }
        });
        match submit(done) {
            Ok(Submitted::Waiting(ticket)) => {
                let wait = Wait { inode: inode.clone(), ticket };
                if self.parked.arm(unique, wait.clone()) {
                    self.withdraw(unique, &wait);
                }
                Ok(Disposition::Parked)
            }
            decided => {
                self.parked.claim(unique);
                decided?;
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
    fn withdraw(&self, unique: u64, wait: &Wait) {
        if wait.inode.locks().cancel(&wait.ticket) && self.parked.claim(unique) {
            self.replier(unique).answer(Err(Errno::EINTR));
        }
    }

    /// Without negotiation the kernel never asks; ENOSYS is what it understands if it does.
    fn require_locks(&self) -> Result<(), Errno> {
        if self.serves_locks() { Ok(()) } else { Err(Errno::ENOSYS) }
    }
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
