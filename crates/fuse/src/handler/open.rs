//! Open files: OPEN, OPENDIR, CREATE, TMPFILE, FLUSH and RELEASE.
//!
//! With the kernel's own locks nothing here needs to know what is open: OPEN, OPENDIR, CREATE and FLUSH are
//! answered with ENOSYS once, and the kernel opens and closes without a message from then on (it makes files with
//! MKNOD). When this crate serves the locks, it must see every open and close, because locks end there.

use crate::abi::flags::{FOPEN_CACHE_DIR, FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE};
use crate::abi::{self, InHeader};
use crate::connection::Connection;
use crate::handles::may_map;
use crate::reply::Reply;
use sluice_locks::Owner;
use sluice_vfs::{Errno, FileType, InodeRef, NewInode, NewKind, OpenFlags};

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
        let inode = loop {
            match dir.create(&self.cred(header), name, &new) {
                // Made by somebody else since the kernel looked.
                Err(Errno::EEXIST) if !is_exclusive => match self.open_made(header, &dir, name, arg.flags) {
                    // And removed again.
                    Err(Errno::ENOENT) => {}
                    opened => break opened?,
                },
                made => break made?,
            }
        };
        reply.put(&self.entry(&inode));
        reply.put(&self.open_out(inode, arg.flags));
        self.names_changed(header, None, reply);
        Ok(())
    }

    /// The file that has the name now, opened with `flags` for a caller who owns it and may open it so. The kernel takes it for new, and
    /// checks and truncates nothing.
    ///
    /// # Errors
    /// `ESTALE` for another caller: the kernel looks again, once, and checks permissions.
    fn open_made(
        &self,
        header: &InHeader,
        dir: &InodeRef,
        name: &[u8],
        flags: u32,
    ) -> Result<InodeRef, Errno> {
        const OWNER_READS: u32 = 0o400;
        const OWNER_WRITES: u32 = 0o200;
        let flags = OpenFlags::from_bits_retain(flags);
        let cred = self.cred(header);
        let inode = dir.lookup(&cred, name)?;
        let stat = inode.stat();
        let wants = match flags & OpenFlags::ACCMODE {
            OpenFlags::WRONLY => OWNER_WRITES,
            OpenFlags::RDWR => OWNER_READS | OWNER_WRITES,
            _ => OWNER_READS,
        };
        let may = stat.file_type() == FileType::Regular
            && stat.uid == header.uid
            && stat.permissions() & wants == wants;
        if !may {
            return Err(Errno::ESTALE);
        }
        inode.check_writing(flags)?;
        if flags.contains(OpenFlags::TRUNC) {
            inode.truncate(&cred, 0)?;
        }
        Ok(inode)
    }

    /// Answers for a name that the same request has given to an inode before: as MKNOD, MKDIR, SYMLINK and LINK do, and with the `flags` of
    /// an open file as CREATE does. The inode may have another name now. An inode of number 0 is the one that has the name.
    ///
    /// # Errors
    /// The inode is gone: `ESTALE` if any will do, as the kernel tries again then; else `EIO`, as one was made.
    pub fn made_before(
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
        let inode = self.handles.flush(arg.fh, arg.lock_owner).ok_or(Errno::EIO)?;
        if let Some(locks) = inode.locks_if_any() {
            locks.release_owner(Owner::Process(arg.lock_owner));
        }
        Ok(())
    }

    pub(super) fn release(&self, arg: &abi::ReleaseIn) -> Result<(), Errno> {
        let closed = self.handles.release(arg.fh);
        if let (Some(ino), Some(coherence)) = (closed, self.coherence.get()) {
            coherence.closed(ino, may_map(arg.fh));
        }
        Ok(())
    }

    /// Whether this kernel may map a file that it has opened. Only one of several kernels may.
    pub fn may_map(&self, inode: &InodeRef) -> bool {
        self.coherence.get().is_none_or(|coherence| coherence.claim_mapping(inode.ino()))
    }

    fn opens_without_message(&self) -> bool {
        !self.serves_locks() && self.negotiated.get().is_some_and(|negotiated| negotiated.no_open)
    }

    fn open_out(&self, inode: InodeRef, flags: u32) -> abi::OpenOut {
        let Some(coherence) = self.coherence.get() else {
            let fh = if self.serves_locks() { self.handles.open(inode) } else { 0 };
            return abi::OpenOut { fh, open_flags: FOPEN_KEEP_CACHE, padding: 0 };
        };
        let flags = OpenFlags::from_bits_retain(flags);
        coherence.opened(self, inode.ino());
        // An append goes to the true end, which one of several kernels may not know: it must not put the bytes into
        // a page.
        let appends = flags.contains(OpenFlags::APPEND);
        // For a shared mapping that can be stored into.
        let may_store = flags & OpenFlags::ACCMODE == OpenFlags::RDWR && !appends;
        let maps = may_store && self.may_map(&inode);
        let is_direct = appends || may_store && !maps;
        let fh = if maps { self.handles.open_to_map(inode) } else { self.handles.open(inode) };
        abi::OpenOut {
            fh,
            open_flags: if is_direct { FOPEN_DIRECT_IO } else { FOPEN_KEEP_CACHE },
            padding: 0,
        }
    }
}
