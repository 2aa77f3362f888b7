//! Rmdir: the removal of an empty workspace, by the call that removes its directory.
//!
//! # Theory
//! A junction is no directory to the server that has it, which refuses RMDIR with `ENOTDIR`; the kernel has seen a directory. So the relay
//! looks, and takes the workspace out in steps of which each is whole:
//! ```text
//!   the root of the workspace is listed: some name? ── yes ── ENOTEMPTY
//!   it becomes immutable                              names that come later are refused (EPERM until it is gone)
//!   ... and that durable                              names that came before are there
//!   it is listed again: some name? ── yes ── as before, ENOTEMPTY
//!   the junction is unlinked
//! ```
//! A crash in between leaves an immutable directory, which the next `rmdir` removes, or `chattr -i` makes what it was.

use super::Shared;
use sluice_fuse::internal::abi::flags::{FS_IOC_GETFLAGS, FS_IOC_SETFLAGS};
use sluice_fuse::internal::abi::{Dirent, InHeader, IoctlIn, IoctlOut, RECORD_ALIGN, ROOT_ID, ReadIn};
use sluice_fuse::internal::workspace;
use sluice_fuse::opcode;
use sluice_sync::Arc;
use sluice_vfs::{Errno, InodeFlags};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The first entries of a directory fit into so many bytes.
const LISTED: u32 = 4096;
/// Bytes of FSYNCDIR behind the header: zeros, which name no open directory.
const FSYNC: usize = 16;

impl Shared {
    /// Removes the workspace that has `name`, if it is empty. The answer has no body.
    pub(super) fn remove_workspace(
        self: &Arc<Self>,
        header: &InHeader,
        name: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let dir = header.nodeid;
        let (entry, _) = self.look_up(header, dir, name)?;
        let removed = workspace::of_junction(entry.attr.mode, entry.attr.rdev)
            .ok_or(Errno::ENOTDIR)
            .and_then(|number| self.empty(header, number))
            .and_then(|()| self.ask(header, opcode::UNLINK, dir, name).map(drop));
        self.forget_asked(header, entry.nodeid);
        removed.map(|()| Vec::new())
    }

    /// Makes the root of the workspace immutable, and refuses a workspace with names.
    fn empty(&self, header: &InHeader, number: u32) -> Result<(), Errno> {
        let root = self.workspaces.root().ok_or(Errno::EIO)?;
        let there = self.workspaces.relay(&root, number)?;
        let flags = match there.flags(header) {
            // Somebody has made a junction to nowhere, or has deleted the store.
            Err(_) if self.workspaces.is_absent(number) => return Ok(()),
            flags => flags?,
        };
        // A caller that is refused anyway disturbs nobody.
        there.check_empty(header)?;
        there.set_flags(header, flags | InodeFlags::IMMUTABLE.bits())?;
        let synced = there.ask(header, opcode::FSYNCDIR, ROOT_ID, &[0; FSYNC]);
        let emptied = synced.and_then(|_| there.check_empty(header));
        if emptied.is_err() {
            there.set_flags(header, flags)?;
        }
        emptied
    }

    fn check_empty(&self, header: &InHeader) -> Result<(), Errno> {
        let arg = ReadIn { size: LISTED, ..ReadIn::new_zeroed() };
        let listed = self.ask(header, opcode::READDIR, ROOT_ID, arg.as_bytes())?;
        if has_names(&listed) { Err(Errno::ENOTEMPTY) } else { Ok(()) }
    }

    fn flags(&self, header: &InHeader) -> Result<u32, Errno> {
        let arg = IoctlIn { cmd: FS_IOC_GETFLAGS, out_size: 4, ..IoctlIn::new_zeroed() };
        let told = self.ask(header, opcode::IOCTL, ROOT_ID, arg.as_bytes())?;
        let flags = told.get(size_of::<IoctlOut>()..).unwrap_or_default();
        u32::read_from_prefix(flags).map(|(flags, _)| flags).map_err(|_| Errno::EIO)
    }

    fn set_flags(&self, header: &InHeader, flags: u32) -> Result<(), Errno> {
        let arg = IoctlIn { cmd: FS_IOC_SETFLAGS, in_size: 4, ..IoctlIn::new_zeroed() };
        let body = [arg.as_bytes(), &flags.to_ne_bytes()].concat();
        self.ask(header, opcode::IOCTL, ROOT_ID, &body).map(drop)
    }
}

/// Whether a listing has more than the directory itself and the one above.
fn has_names(mut listed: &[u8]) -> bool {
    while let Ok((dirent, rest)) = Dirent::read_from_prefix(listed) {
        let name = rest.get(..dirent.namelen as usize).unwrap_or_default();
        if !matches!(name, b"." | b"..") {
            return true;
        }
        let len = (size_of::<Dirent>() + dirent.namelen as usize).next_multiple_of(RECORD_ALIGN);
        listed = listed.get(len..).unwrap_or_default();
    }
    false
}
