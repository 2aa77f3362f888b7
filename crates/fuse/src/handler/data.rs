//! File data: READ, WRITE, FALLOCATE and COPY_FILE_RANGE.

use crate::abi::flags::{WRITE_CACHE, WRITE_KILL_SUIDGID};
use crate::abi::{self, InHeader};
use crate::connection::Connection;
use crate::event::Event;
use crate::marks::is_marked_no_atime;
use crate::reply::Reply;
use sluice_sync::atomic::Ordering;
use sluice_vfs::{Cred, Errno, FallocateMode, OpenFlags};

/// The most bytes that one READ may ask for. The kernel's own limit is far below.
const READ_MAX: u32 = 32 << 20;
/// The most bytes copied by one request. Callers of `copy_file_range` expect short counts and go on, and an
/// answer in bounded time leaves the worker free for others.
const COPY_MAX: u64 = 64 << 20;

impl Connection {
    /// Makes a file durable, or a directory. Memory is as durable as it gets: there ENOSYS makes the kernel answer the next
    /// ones itself, with success.
    pub(super) fn fsync(&self, header: &InHeader) -> Result<(), Errno> {
        if !self.superblock.hears_fsync() {
            // Relaxed: a flag on its own.
            self.declined_fsync.store(true, Ordering::Relaxed);
            return Err(Errno::ENOSYS);
        }
        if self.tells_loss(header) {
            return Err(Errno::EIO);
        }
        // Stores through a mapping change the times now.
        self.nodes.pay_times(header.nodeid);
        self.node(header.nodeid)?.sync()
    }

    pub(super) fn read(&self, header: &InHeader, arg: &abi::ReadIn, reply: &mut Reply) -> Result<(), Errno> {
        if arg.size > READ_MAX {
            return Err(Errno::EINVAL);
        }
        let bytes = arg.offset..arg.offset.saturating_add(arg.size.into());
        let inode = self.nodes.get_caching(header.nodeid, &bytes).ok_or(Errno::ESTALE)?;
        let noatime = OpenFlags::from_bits_retain(arg.flags).contains(OpenFlags::NOATIME);
        let update_atime = self.options.updates_atime() && !noatime && !is_marked_no_atime(header);
        reply.fill(arg.size as usize, |buffer| inode.read_at(arg.offset, buffer, update_atime))?;
        if self.options.strictatime && update_atime {
            inode.touch_atime_strictly();
        }
        // Once it has the page, a process may store into it.
        if inode.has_hole_in(bytes.clone()) {
            self.hand_out_hole(header.nodeid, &inode.stat(), &bytes);
        }
        Ok(())
    }

    pub(super) fn write(
        &self,
        header: &InHeader,
        arg: &abi::WriteIn,
        data: &[u8],
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let from_cache = arg.write_flags & WRITE_CACHE != 0;
        // A page that is written back was noted when the kernel got it.
        let cached = if from_cache { 0 } else { data.len() as u64 };
        let bytes = arg.offset..arg.offset.saturating_add(cached);
        let inode = self.nodes.get_caching(header.nodeid, &bytes).ok_or(Errno::ESTALE)?;
        let kill = Some(arg.write_flags & WRITE_KILL_SUIDGID != 0);
        let opened = OpenFlags::from_bits_retain(arg.flags);
        if !from_cache {
            // The kernel opens files without asking, and knows nothing of such flags.
            inode.check_writing(opened)?;
        }
        let append = opened.contains(OpenFlags::APPEND);
        let write = |cred: &Cred| -> Result<usize, Errno> {
            Ok(if append && !from_cache && (self.has_peers() || self.nodes.is_changed(header.nodeid)) {
                // The kernel chose the offset by the size that it knows, and somebody in process or another kernel may have
                // changed the file since. The data go to the true end, and the kernel is told to forget what it believes.
                let (offset, size) = inode.append(cred, data)?;
                if offset != arg.offset {
                    self.tell_later(Event::Data { ino: inode.ino(), offset: offset.min(arg.offset), len: 0 });
                }
                size
            } else if self.writes_back() && from_cache {
                // When the bytes were written the kernel says itself, in SETATTR.
                inode.write_back(cred, arg.offset, data)?
            } else if from_cache {
                let moves_times = !self.nodes.owe_times(header.nodeid);
                inode.write_within(cred, arg.offset, data, moves_times)?;
                data.len()
            } else {
                inode.write_at(cred, arg.offset, data)?
            })
        };
        let size = self.clearing(header, &inode, kill, write).inspect_err(|_| {
            if from_cache && inode.is_read_only() {
                // The kernel opened the file without asking, and other programs would read its page.
                self.tell_later(Event::Data { ino: inode.ino(), offset: arg.offset, len: data.len() as u64 });
            }
        })?;
        // No more than `data.len()`, which came as a u32.
        reply.put(&abi::WriteOut { size: size as u32, padding: 0 });
        Ok(())
    }

    pub(super) fn fallocate(&self, header: &InHeader, arg: &abi::FallocateIn) -> Result<(), Errno> {
        let mode = FallocateMode::from_bits_retain(arg.mode);
        let inode = self.node(header.nodeid)?;
        self.clearing(header, &inode, None, |cred| inode.fallocate(cred, mode, arg.offset, arg.length))
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
        let copied = self
            .clearing(header, &to, None, |cred| from.copy_range(cred, arg.off_in, &to, arg.off_out, len))?;
        if wide_reply {
            reply.put(&abi::CopyFileRangeOut { bytes_copied: copied });
        } else {
            reply.put(&abi::WriteOut { size: copied as u32, padding: 0 });
        }
        Ok(())
    }
}
