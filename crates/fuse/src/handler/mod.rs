//! Handler: executes each request, independent of its transport.
//!
//! # Theory
//! [`Connection::handle`] serves one request synchronously on the calling thread. It puts the answer's body
//! into a [`Reply`]; the caller sends it. Only a lock request that must wait is *parked*: it is answered by
//! the thread that decides it, and occupies none before.
//!
//! Permissions are the kernel's business (`default_permissions`, POSIX ACLs included), so requests run with
//! [`Cred::checked_elsewhere`]: `uid` and `gid` only say to whom new files belong. With
//! [`CheckMode::Sluice`](crate::CheckMode::Sluice) all callers are the superuser, which may do everything but run a file that
//! no user may: ACCESS is answered here then, and everything else is allowed.
//!
//! # Cache policy
//! Names, attributes and the absence of names are valid for ever: every change is known here, and changes made
//! by others are announced (see `notify`). Changes made by the kernel itself need no announcement, because it
//! invalidates what they touch.

pub(crate) mod again;
mod attr;
pub(crate) mod caller;
mod data;
mod dir;
mod init;
mod ioctl;
mod lock_file;
pub(crate) mod locks;
mod lookup;
mod open;
mod second_look;
#[cfg(test)]
mod tests;
pub(crate) mod turns;
pub(crate) mod write_back;
mod xattr;

use crate::abi::flags::WRITE_CACHE;
use crate::abi::{self, InHeader};
use crate::connection::Connection;
use crate::marks::{is_marked_synchronous, is_noted};
use crate::reply::{Disposition, Reply};
use crate::request::{Ask, LockRequest, Operation, Request};
use sluice_vfs::{Caps, Cred, Errno, FileType, Inode, InodeRef, OpenFlags, Stat, Timestamp};
use zerocopy::FromZeros;

pub(crate) use second_look::SecondLooks;
pub(crate) use turns::{Releasing, Turns, pause};
pub(crate) use write_back::start as start_seeks;

/// How long the kernel may keep names and attributes, in seconds: for ever, as far as it can count.
pub const FOREVER: u64 = i64::MAX.cast_unsigned();

impl Connection {
    /// Serves `request`, and makes durable what the caller may rely on when it has the answer.
    pub(crate) fn handle(&self, request: &Request<'_>, reply: &mut Reply) -> Disposition {
        let _called = self.superblock.called_by(request.header.pid);
        let disposition = self.perform(request, reply);
        if disposition == Disposition::Done(Ok(())) && self.is_synchronous(request) {
            return Disposition::Done(match request.operation {
                Operation::Write { .. } => self.fsync(&request.header),
                _ => self.superblock.sync(),
            });
        }
        disposition
    }

    /// Whether a request is to be durable when it is answered: any change of a synchronous mount; a write with `O_DSYNC`. Where the page
    /// cache is in use the kernel asks for that itself. One of several kernels goes past it when a file is opened to append.
    fn is_synchronous(&self, request: &Request<'_>) -> bool {
        match request.operation {
            Operation::Write { arg, .. } => {
                self.has_peers()
                    && arg.write_flags & WRITE_CACHE == 0
                    && OpenFlags::from_bits_retain(arg.flags).contains(OpenFlags::DSYNC)
            }
            _ => {
                (self.options.synchronous || is_marked_synchronous(&request.header))
                    && (is_noted(request.header.opcode)
                        || matches!(request.operation, Operation::CopyFileRange { .. }))
            }
        }
    }

    fn perform(&self, request: &Request<'_>, reply: &mut Reply) -> Disposition {
        let header = &request.header;
        if let Some(outcome) = self.serve_lock_file(request, reply) {
            return Disposition::Done(outcome);
        }
        Disposition::Done(match request.operation {
            Operation::Lookup { name } => self.lookup(header, name, reply),
            Operation::Forget(arg) => {
                self.nodes.forget(header.nodeid, arg.nlookup);
                self.superblock.forgotten(1);
                return Disposition::NoReply;
            }
            Operation::BatchForget(forgets) => {
                forgets.iter().for_each(|one| self.nodes.forget(one.nodeid, one.nlookup));
                self.superblock.forgotten(forgets.iter().count() as u64);
                return Disposition::NoReply;
            }
            Operation::Getattr => self.getattr(header, reply),
            Operation::Setattr(arg) => self.setattr(header, &arg, reply),
            Operation::Statx => self.statx(header, reply),
            Operation::Readlink => self.readlink(header, reply),
            Operation::Symlink { name, target } => self.symlink(header, name, target, reply),
            Operation::Mknod { arg, name } => self.mknod(header, &arg, name, reply),
            Operation::Mkdir { arg, name } => self.mkdir(header, &arg, name, reply),
            Operation::Unlink { name } => self.unlink(header, name, reply),
            Operation::Rmdir { name } => self.rmdir(header, name, reply),
            Operation::Rename { newdir, flags, old, new } => {
                self.rename(header, newdir, flags, old, new, reply)
            }
            Operation::Link { oldnodeid, name } => self.link(header, oldnodeid, name, reply),
            Operation::Open(arg) => self.open(header, &arg, reply),
            Operation::Opendir => self.opendir(reply),
            Operation::Create { arg, name } => self.create(header, &arg, name, reply),
            Operation::Tmpfile(arg) => self.tmpfile(header, &arg, reply),
            Operation::Read(arg) => self.read(header, &arg, reply),
            Operation::Write { arg, data } => self.write(header, &arg, data, reply),
            Operation::Readdir(arg) => self.readdir(header, &arg, reply),
            Operation::Readdirplus(arg) => self.readdirplus(header, &arg, reply),
            Operation::Release(arg) => self.release(&arg),
            Operation::Flush(arg) => self.flush(&arg),
            Operation::Fsync | Operation::Fsyncdir => self.fsync(header),
            Operation::Syncfs => self.superblock.sync(),
            Operation::Releasedir | Operation::Destroy => Ok(()),
            Operation::Statfs => self.statfs(header, reply),
            Operation::Setxattr { arg, name, value } => self.setxattr(header, &arg, name, value),
            Operation::Getxattr { size, name } => self.getxattr(header, size, name, reply),
            Operation::Listxattr { size } => self.listxattr(header, size, reply),
            Operation::Removexattr { name } => self.removexattr(header, name),
            Operation::Getlk(arg) => {
                return self.lock(LockRequest { header: *header, ask: Ask::Test, arg }, reply);
            }
            Operation::Setlk { arg, wait } => {
                let ask = if wait { Ask::Wait } else { Ask::Try };
                return self.lock(LockRequest { header: *header, ask, arg }, reply);
            }
            Operation::Interrupt(arg) => {
                self.interrupt(arg.unique);
                return Disposition::NoReply;
            }
            Operation::Fallocate(arg) => self.fallocate(header, &arg),
            Operation::Lseek(arg) => return self.lseek(header, &arg, reply),
            Operation::CopyFileRange { arg, wide_reply } => {
                self.copy_file_range(header, &arg, wide_reply, reply)
            }
            Operation::Init(arg) => self.init(&arg, reply),
            Operation::Access(arg) => self.access(header, &arg),
            Operation::Ioctl { arg, data } => self.ioctl(header, &arg, data, reply),
            Operation::Unserved => Err(Errno::ENOSYS),
        })
    }

    /// True when the kernel collects writes, so that it knows more of a file than we do: its size, its times, its data.
    fn writes_back(&self) -> bool {
        self.negotiated.get().is_some_and(|negotiated| negotiated.writeback)
    }

    /// True when this is one of several kernels, each of which caches without asking.
    fn has_peers(&self) -> bool {
        self.coherence.get().is_some()
    }

    /// The attributes of `inode`, as the kernel is told them.
    fn stat(&self, inode: &InodeRef) -> Stat {
        let mut stat = inode.stat();
        // A file of some size and no blocks is one hole to programs that copy it, and the kernel may have bytes for it. While
        // it collects writes, it keeps what it is told here.
        let may_have_more =
            |stat: &Stat| stat.size > 0 && self.nodes.has_hole(self.nodes.nodeid(stat.ino), &(0..stat.size));
        if stat.blocks == 0
            && stat.file_type() == FileType::Regular
            && (self.writes_back() || may_have_more(&stat))
        {
            stat.blocks = 1;
        }
        stat
    }

    /// The caller: the kernel has checked its permissions, or it may do everything.
    fn cred(&self, header: &InHeader) -> Cred {
        let cred = Cred::checked_elsewhere(header.uid, header.gid, self.observer.get().copied());
        Cred { pid: header.pid.cast_signed(), ..cred }
    }

    /// Makes `call`, which clears set-ID bits of `inode` for a caller without the capability to keep them, as the
    /// kernel says with `kill`. Without that flag, the superuser has that capability. The kernel would go on believing
    /// in bits that are cleared, so it is told before it gets the reply.
    fn clearing<R>(
        &self,
        header: &InHeader,
        inode: &Inode,
        kill: Option<bool>,
        call: impl FnOnce(&Cred) -> R,
    ) -> R {
        const SET_ID: u32 = 0o6000;
        let mut cred = self.cred(header);
        if kill == Some(false) {
            return call(&cred);
        }
        let before = inode.stat().permissions();
        if before & SET_ID == 0 {
            return call(&cred);
        }
        if kill.unwrap_or_else(|| !caller::is_superuser(header)) {
            cred.caps.remove(Caps::FSETID);
            if let Some(caller) = caller::cred(header) {
                (cred.gid, cred.groups) = (caller.gid, caller.groups);
            }
        }
        let result = call(&cred);
        if inode.stat().permissions() != before {
            self.forget_attributes(inode.ino());
        }
        result
    }
}

/// The attributes of an inode as the kernel wants them.
pub fn attr_of(stat: &Stat) -> abi::Attr {
    let (atime, atimensec) = time_of(stat.atime);
    let (mtime, mtimensec) = time_of(stat.mtime);
    let (ctime, ctimensec) = time_of(stat.ctime);
    abi::Attr {
        ino: stat.ino,
        size: stat.size,
        blocks: stat.blocks,
        atime,
        mtime,
        ctime,
        atimensec,
        mtimensec,
        ctimensec,
        mode: stat.mode,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        // The kernel's 32-bit form is the low half of `dev_t`: 12 bits of major, 20 of minor number.
        rdev: stat.rdev as u32,
        blksize: stat.blksize,
        flags: 0,
    }
}

fn time_of(time: Timestamp) -> (u64, u32) {
    (time.sec.cast_unsigned(), time.nsec)
}

/// A node, its generation and its attributes, valid for ever.
fn entry_of(nodeid: u64, generation: u64, stat: &Stat) -> abi::EntryOut {
    abi::EntryOut {
        nodeid,
        generation,
        entry_valid: FOREVER,
        attr_valid: FOREVER,
        attr: attr_of(stat),
        ..abi::EntryOut::new_zeroed()
    }
}
