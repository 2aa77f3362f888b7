//! File data: READ, WRITE, FALLOCATE, LSEEK and COPY_FILE_RANGE.

use crate::abi::flags::{WRITE_CACHE, WRITE_KILL_SUIDGID};
use crate::abi::{self, InHeader};
use crate::connection::Connection;
use crate::notify;
use crate::reply::Reply;
use sluice_vfs::{Errno, FILE_SIZE_MAX, FallocateMode, OpenFlags};

/// The most bytes that one READ may ask for. The kernel's own limit is far below.
const READ_MAX: u32 = 32 << 20;
/// The most bytes copied by one request. Callers of `copy_file_range` expect short counts and go on, and an
/// answer in bounded time leaves the worker free for others.
const COPY_MAX: u64 = 64 << 20;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Connection {
    pub(super) fn read(&self, header: &InHeader, arg: &abi::ReadIn, reply: &mut Reply) -> Result<(), Errno> {
        let inode = self.node(header.nodeid)?;
        if arg.size > READ_MAX {
            return Err(Errno::EINVAL);
        }
        reply.fill(arg.size as usize, |buffer| inode.read_at(arg.offset, buffer, !self.options.noatime))
    }

    pub(super) fn write(
        &self,
        header: &InHeader,
        arg: &abi::WriteIn,
        data: &[u8],
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let inode = self.node(header.nodeid)?;
        let cred = self.cred_killing(header, arg.write_flags & WRITE_KILL_SUIDGID != 0);
        let append = OpenFlags::from_bits_retain(arg.flags).contains(OpenFlags::APPEND);
        let size = if append && arg.write_flags & WRITE_CACHE == 0 && self.nodes.is_changed(header.nodeid) {
            // The kernel chose the offset by the size that it knows, and somebody in process changed the file
            // since. The data go to the true end, and the kernel is told to forget what it believes.
            let (offset, size) = inode.append(&cred, data)?;
            if offset != arg.offset {
                self.tell_later(notify::Event::Data {
                    ino: inode.ino(),
                    offset: offset.min(arg.offset),
                    len: 0,
                });
            }
            size
        } else if self.writes_back() && arg.write_flags & WRITE_CACHE != 0 {
            // When the bytes were written the kernel says itself, in SETATTR.
            inode.write_back(&cred, arg.offset, data)?
        } else {
            inode.write_at(&cred, arg.offset, data)?
        };
        // No more than `data.len()`, which came as a u32.
        reply.put(&abi::WriteOut { size: size as u32, padding: 0 });
        Ok(())
    }

    pub(super) fn fallocate(&self, header: &InHeader, arg: &abi::FallocateIn) -> Result<(), Errno> {
        let mode = FallocateMode::from_bits_retain(arg.mode);
        self.node(header.nodeid)?.fallocate(
            &self.cred_killing(header, kills_unasked(header)),
            mode,
            arg.offset,
            arg.length,
        )
    }

    pub(super) fn lseek(
        &self,
        header: &InHeader,
        arg: &abi::LseekIn,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        if self.writes_back() {
            // What the kernel has not written back yet would be a hole. It takes the whole file for data then.
            return Err(Errno::ENOSYS);
        }
        let inode = self.node(header.nodeid)?;
        let offset = match arg.whence {
            _ if arg.offset > FILE_SIZE_MAX => return Err(Errno::ENXIO),
            SEEK_DATA => inode.seek_data(arg.offset)?,
            SEEK_HOLE => inode.seek_hole(arg.offset)?,
            _ => return Err(Errno::EINVAL),
        };
        reply.put(&abi::LseekOut { offset });
        Ok(())
    }

    pub(super) fn copy_file_range(
        &self,
        header: &InHeader,
        arg: &abi::CopyFileRangeIn,
        wide_reply: bool,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (from, to) = (self.node(header.nodeid)?, self.node(arg.nodeid_out)?);
        let len = arg.len.min(COPY_MAX);
        let copied = from.copy_range(
            &self.cred_killing(header, kills_unasked(header)),
            arg.off_in,
            &to,
            arg.off_out,
            len,
        )?;
        if wide_reply {
            reply.put(&abi::CopyFileRangeOut { bytes_copied: copied });
        } else {
            reply.put(&abi::WriteOut { size: copied as u32, padding: 0 });
        }
        Ok(())
    }
}

/// Whether a call clears set-ID bits where the kernel does not say: all callers do but the superuser, who has the
/// capability to keep them.
fn kills_unasked(header: &InHeader) -> bool {
    header.uid != 0
}
