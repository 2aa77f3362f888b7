//! Open files: OPEN, OPENDIR, CREATE, TMPFILE, FLUSH and RELEASE.
//!
//! With the kernel's own locks nothing here needs to know what is open: OPEN, OPENDIR, CREATE and FLUSH are
//! answered with ENOSYS once, and the kernel opens and closes without a message from then on (it makes files with
//! MKNOD). When this crate serves the locks, it must see every open and close, because locks end there.

use crate::abi::flags::{FOPEN_CACHE_DIR, FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE};
use crate::abi::{self, InHeader};
use crate::connection::Connection;
use crate::reply::Reply;
use sluice_locks::Owner;
use sluice_vfs::{Errno, InodeRef, NewInode, NewKind, OpenFlags};

impl Connection {
    pub(super) fn open(&self, header: &InHeader, arg: &abi::OpenIn, reply: &mut Reply) -> Result<(), Errno> {
        if self.opens_without_message() {
            return Err(Errno::ENOSYS);
        }
        let inode = self.node(header.nodeid)?;
        inode.check_writing(OpenFlags::from_bits_retain(arg.flags))?;
        reply.put(&self.open_out(inode, arg.flags));
        Ok(())
    }

    /// Directories are not locked here (the kernel keeps flock on them to itself), so they open without a
    /// message in every mode.
    pub(super) fn opendir(&self, reply: &mut Reply) -> Result<(), Errno> {
        if self.negotiated.get().is_some_and(|negotiated| negotiated.no_opendir) {
            return Err(Errno::ENOSYS);
        }
        reply.put(&abi::OpenOut { fh: 0, open_flags: FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR, padding: 0 });
        Ok(())
    }

    pub(super) fn create(
        &self,
        header: &InHeader,
        arg: &abi::CreateIn,
        name: &[u8],
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        if self.opens_without_message() {
            return Err(Errno::ENOSYS);
        }
        let new = NewInode { kind: NewKind::Regular, mode: arg.mode & 0o7777, umask: arg.umask };
        let is_exclusive = OpenFlags::from_bits_retain(arg.flags).contains(OpenFlags::EXCL);
        let dir = self.node(header.nodeid)?;
        let inode = dir.create(&self.cred(header), name, &new).map_err(|errno| match errno {
            // Made by somebody else meanwhile: have the kernel look again, and check permissions. It does so once, so a caller that wants
            // to make the file or nothing is told at once.
            Errno::EEXIST if !is_exclusive => Errno::ESTALE,
            other => other,
        })?;
        reply.put(&self.entry(&inode));
        reply.put(&self.open_out(inode, arg.flags));
        self.put_told(header, None, reply);
        Ok(())
    }

    /// Answers for a name that the same request has given to an inode before: as MKNOD, MKDIR, SYMLINK and LINK do, and with the `flags` of
    /// an open file as CREATE does. The inode may have another name now. An inode of number 0 is the one that has the name.
    ///
    /// # Errors
    /// The inode is gone: `ESTALE` if any will do, as the kernel tries again then; else `EIO`, as one was made.
    pub(crate) fn made_before(
        &self,
        header: &InHeader,
        name: &[u8],
        ino: u64,
        flags: Option<u32>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let by_name = || self.node(header.nodeid)?.lookup(&self.cred(header), name);
        let is_exclusive =
            flags.is_none_or(|flags| OpenFlags::from_bits_retain(flags).contains(OpenFlags::EXCL));
        let found = match (ino, by_name()) {
            (0, found) => found,
            (_, Ok(inode)) if inode.ino() == ino => Ok(inode),
            _ => self.superblock.find_inode(ino),
        };
        let inode = found.map_err(|errno| match errno {
            Errno::ENOENT | Errno::ESTALE if is_exclusive && ino != 0 => Errno::EIO,
            Errno::ENOENT => Errno::ESTALE,
            other => other,
        })?;
        reply.put(&self.entry(&inode));
        if let Some(flags) = flags {
            reply.put(&self.open_out(inode, flags));
        }
        Ok(())
    }

    pub(super) fn tmpfile(
        &self,
        header: &InHeader,
        arg: &abi::CreateIn,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let new = NewInode { kind: NewKind::Regular, mode: arg.mode & 0o7777, umask: arg.umask };
        let inode = self.node(header.nodeid)?.create_unnamed(&self.cred(header), &new)?;
        reply.put(&self.entry(&inode));
        reply.put(&self.open_out(inode, arg.flags));
        Ok(())
    }

    pub(super) fn flush(&self, arg: &abi::FlushIn) -> Result<(), Errno> {
        if !self.serves_locks() {
            return Err(Errno::ENOSYS);
        }
        let inode = self.handles.flush(arg.fh, arg.lock_owner).ok_or(Errno::EBADF)?;
        if let Some(locks) = inode.locks_if_any() {
            locks.release_owner(Owner::Process(arg.lock_owner));
        }
        Ok(())
    }

    pub(super) fn release(&self, arg: &abi::ReleaseIn) -> Result<(), Errno> {
        let closed = self.handles.release(arg.fh);
        if let (Some(ino), Some(seat)) = (closed, self.seat.get()) {
            seat.closed(ino);
        }
        Ok(())
    }

    fn opens_without_message(&self) -> bool {
        !self.serves_locks() && self.negotiated.get().is_some_and(|negotiated| negotiated.no_open)
    }

    fn open_out(&self, inode: InodeRef, flags: u32) -> abi::OpenOut {
        if let Some(seat) = self.seat.get() {
            seat.opened(self, inode.ino());
        }
        let fh = if self.serves_locks() { self.handles.open(inode) } else { 0 };
        // What a guest appends goes to the true end, which its kernel may not know: that must not put the bytes into a page.
        let appends = self.is_guest() && OpenFlags::from_bits_retain(flags).contains(OpenFlags::APPEND);
        let open_flags = if appends { FOPEN_DIRECT_IO } else { FOPEN_KEEP_CACHE };
        abi::OpenOut { fh, open_flags, padding: 0 }
    }
}
