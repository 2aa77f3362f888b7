//! Names: LOOKUP and the requests that make, move and remove names.

use super::{FOREVER, entry_of};
use crate::abi::{self, InHeader};
use crate::connection::Connection;
use crate::marks::is_marked_no_atime;
use crate::reply::Reply;
use crate::workspace;
use sluice_vfs::{Access, Errno, FileType, InodeRef, NewInode, NewKind, RenameFlags};
use zerocopy::FromZeros;

impl Connection {
    pub(super) fn lookup(&self, header: &InHeader, name: &[u8], reply: &mut Reply) -> Result<(), Errno> {
        if matches!(name, b"." | b"..") {
            return self.lookup_by_number(header, name == b"..", reply);
        }
        let dir = self.node(header.nodeid)?;
        match dir.lookup(&self.cred(header), name) {
            Ok(inode) => reply.put(&self.entry(&inode)),
            // Node 0 tells the kernel to remember that there is no such name.
            Err(Errno::ENOENT) => {
                reply.put(&abi::EntryOut { entry_valid: FOREVER, ..abi::EntryOut::new_zeroed() })
            }
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// Finds a node that the kernel does not know and a program has a handle of, or the node's parent.
    fn lookup_by_number(
        &self,
        header: &InHeader,
        wants_parent: bool,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let node = match self.nodes.get(header.nodeid) {
            Some(node) if node.has_name() => node,
            Some(_) => return Err(Errno::ENOENT),
            // A handle of before this server. The kernel understands no other error.
            None => {
                let found = self.superblock.find_inode(self.nodes.nodeid(header.nodeid));
                found.map_err(|errno| if errno == Errno::ESTALE { Errno::ENOENT } else { errno })?
            }
        };
        let found = if wants_parent { node.parent().ok_or(Errno::ENOTDIR)? } else { node };
        reply.put(&self.entry(&found));
        Ok(())
    }

    pub(super) fn mknod(
        &self,
        header: &InHeader,
        arg: &abi::MknodIn,
        name: &[u8],
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let kind = match FileType::from_mode(arg.mode).ok_or(Errno::EINVAL)? {
            FileType::Regular => NewKind::Regular,
            FileType::Fifo => NewKind::Fifo,
            FileType::Socket => NewKind::Socket,
            FileType::CharDevice => NewKind::CharDevice(arg.rdev.into()),
            FileType::BlockDevice => NewKind::BlockDevice(arg.rdev.into()),
            FileType::Directory | FileType::Symlink => return Err(Errno::EINVAL),
        };
        let regular = matches!(kind, NewKind::Regular);
        let new = NewInode { kind, mode: arg.mode & 0o7777, umask: arg.umask };
        self.make(header, name, &new, reply).map_err(|errno| match errno {
            // This may be an open with O_CREAT, and the name was made by somebody in process after the kernel saw
            // it missing. ESTALE makes the kernel look again, and decide between opening and EEXIST itself.
            Errno::EEXIST if regular => Errno::ESTALE,
            other => other,
        })?;
        self.names_changed(header, None, reply);
        Ok(())
    }

    pub(super) fn mkdir(
        &self,
        header: &InHeader,
        arg: &abi::MkdirIn,
        name: &[u8],
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        self.check_makes_no_workspace(header, name)?;
        let new = NewInode { kind: NewKind::Directory, mode: arg.mode & 0o7777, umask: arg.umask };
        let made = self.make(header, name, &new, reply)?;
        self.names_changed(header, Some(made.ino()), reply);
        Ok(())
    }

    /// Refuses with [`WANTED`](workspace::WANTED) if a new directory `name` is to be a workspace, after the checks of mkdir(2).
    fn check_makes_no_workspace(&self, header: &InHeader, name: &[u8]) -> Result<(), Errno> {
        if self.coherence.get().is_none() {
            // A mount of its own has none.
            return Ok(());
        }
        let (dir, cred) = (self.node(header.nodeid)?, self.cred(header));
        if !workspace::are_made_in(&dir) {
            return Ok(());
        }
        dir.access(&cred, Access::WRITE | Access::EXEC)?;
        match dir.lookup(&cred, name) {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => Err(workspace::WANTED),
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn symlink(
        &self,
        header: &InHeader,
        name: &[u8],
        target: &[u8],
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let new = NewInode { kind: NewKind::Symlink(target), mode: 0o777, umask: 0 };
        self.make(header, name, &new, reply)?;
        self.names_changed(header, None, reply);
        Ok(())
    }

    pub(super) fn readlink(&self, header: &InHeader, reply: &mut Reply) -> Result<(), Errno> {
        let update_atime = self.options.updates_atime() && !is_marked_no_atime(header);
        reply.put_bytes(&self.node(header.nodeid)?.read_link(update_atime)?);
        Ok(())
    }

    pub(super) fn link(
        &self,
        header: &InHeader,
        oldnodeid: u64,
        name: &[u8],
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (dir, target) = (self.node(header.nodeid)?, self.node(oldnodeid)?);
        dir.link(&self.cred(header), name, &target)?;
        reply.put(&self.entry(&target));
        self.names_changed(header, None, reply);
        Ok(())
    }

    pub(super) fn unlink(&self, header: &InHeader, name: &[u8], reply: &mut Reply) -> Result<(), Errno> {
        self.node(header.nodeid)?.unlink(&self.cred(header), name)?;
        self.names_changed(header, None, reply);
        Ok(())
    }

    pub(super) fn rmdir(&self, header: &InHeader, name: &[u8], reply: &mut Reply) -> Result<(), Errno> {
        self.node(header.nodeid)?.rmdir(&self.cred(header), name)?;
        self.names_changed(header, None, reply);
        Ok(())
    }

    pub(super) fn rename(
        &self,
        header: &InHeader,
        newdir: u64,
        flags: u32,
        old: &[u8],
        new: &[u8],
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let flags = RenameFlags::from_bits_retain(flags);
        let (dir, newdir) = (self.node(header.nodeid)?, self.node(newdir)?);
        dir.rename(&self.cred(header), old, &newdir, new, flags)?;
        self.names_changed(header, None, reply);
        Ok(())
    }

    /// Makes an inode under `name` and answers with its entry.
    fn make(
        &self,
        header: &InHeader,
        name: &[u8],
        new: &NewInode<'_>,
        reply: &mut Reply,
    ) -> Result<InodeRef, Errno> {
        let inode = self.node(header.nodeid)?.create(&self.cred(header), name, new)?;
        reply.put(&self.entry(&inode));
        Ok(inode)
    }

    /// Gives the kernel a lookup of `inode`, and tells its attributes.
    ///
    /// The order matters: once the node is in the table, every change by others is announced. A change before
    /// the attributes are read is in them, a later one is announced after them.
    pub(super) fn entry(&self, inode: &InodeRef) -> abi::EntryOut {
        let nodeid = self.nodes.remember(inode);
        self.mark_told(nodeid);
        if let Some(coherence) = self.coherence.get() {
            coherence.found(self, inode);
        }
        let mut entry = entry_of(nodeid, self.nodes.generation(inode), &self.stat(inode));
        entry.attr.rdev = workspace::told_of(inode, entry.attr.mode, entry.attr.rdev);
        entry
    }
}
