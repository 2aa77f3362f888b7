//! Directories: READDIR and READDIRPLUS.
//!
//! Offsets are the file system's own positions, which stay valid for the life of an entry.

use crate::abi::{self, Dirent, EntryOut, InHeader, RECORD_ALIGN};
use crate::connection::Connection;
use crate::marks::is_marked_no_atime;
use crate::reply::Reply;
use sluice_vfs::{Errno, InodeRef};
use zerocopy::FromZeros;

/// The most bytes of entries in one answer, whatever the kernel asks for.
const SIZE_MAX: usize = 1 << 20;

impl Connection {
    pub(super) fn readdir(
        &self,
        header: &InHeader,
        arg: &abi::ReadIn,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let dir = self.node(header.nodeid)?;
        self.nodes.mark_told(header.nodeid);
        let size = (arg.size as usize).min(SIZE_MAX);
        let mut full = false;
        let update_atime = self.options.updates_dir_atime() && !is_marked_no_atime(header);
        dir.read_dir(arg.offset, update_atime, &mut |entry| {
            let record = size_of::<Dirent>() + entry.name.len();
            if reply.len() + record.next_multiple_of(RECORD_ALIGN) > size {
                full = true;
                return false;
            }
            put_dirent(reply, entry.ino(), entry.position, entry.file_type(), entry.name);
            true
        })?;
        refuse_if_nothing_fits(full, reply)
    }

    /// As READDIR, with a lookup of each entry except ".", ".." and one that the lock file hides.
    pub(super) fn readdirplus(
        &self,
        header: &InHeader,
        arg: &abi::ReadIn,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let dir = self.node(header.nodeid)?;
        self.nodes.mark_told(header.nodeid);
        let size = (arg.size as usize).min(SIZE_MAX);
        let mut full = false;
        // The visitor must not call back into the file system, so attributes are filled in afterwards.
        let mut found: Vec<(usize, InodeRef)> = Vec::new();
        let update_atime = self.options.updates_dir_atime() && !is_marked_no_atime(header);
        dir.read_dir(arg.offset, update_atime, &mut |entry| {
            let record = size_of::<EntryOut>() + size_of::<Dirent>() + entry.name.len();
            if reply.len() + record.next_multiple_of(RECORD_ALIGN) > size {
                full = true;
                return false;
            }
            if entry.name != b"." && entry.name != b".." && !self.is_lock_file(header.nodeid, entry.name) {
                found.push((reply.len(), entry.inode.clone()));
            }
            // Node 0: no lookup is given with this entry.
            reply.put(&EntryOut::new_zeroed());
            put_dirent(reply, entry.ino(), entry.position, entry.file_type(), entry.name);
            true
        })?;
        for (at, inode) in found {
            reply.put_at(at, &self.entry(&inode));
        }
        refuse_if_nothing_fits(full, reply)
    }
}

fn put_dirent(reply: &mut Reply, ino: u64, off: u64, file_type: sluice_vfs::FileType, name: &[u8]) {
    // Names are at most NAME_MAX long; the kernel's type codes are the mode bits shifted down.
    reply.put(&Dirent { ino, off, namelen: name.len() as u32, kind: file_type.mode_bits() >> 12 });
    reply.put_bytes(name);
    reply.pad(RECORD_ALIGN);
}

/// An empty answer means the end of the directory, so a buffer too small for one entry must be an error.
fn refuse_if_nothing_fits(full: bool, reply: &Reply) -> Result<(), Errno> {
    if full && reply.len() == 0 { Err(Errno::EINVAL) } else { Ok(()) }
}
