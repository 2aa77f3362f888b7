//! Attributes: GETATTR, STATX, SETATTR and STATFS.

use super::{FOREVER, attr_of, caller, time_of};
use crate::CheckMode;
use crate::abi::flags::STATX_BASIC_STATS_AND_BTIME;
use crate::abi::{self, Fattr, InHeader};
use crate::connection::Connection;
use crate::reply::Reply;
use sluice_vfs::{Access, Errno, Inode, OpenFlags, SetAttr, SetTime, Stat, Timestamp};
use zerocopy::FromZeros;

/// The fields of SETATTR that say what to change.
const CHANGES: Fattr = Fattr::MODE
    .union(Fattr::UID)
    .union(Fattr::GID)
    .union(Fattr::SIZE)
    .union(Fattr::ATIME)
    .union(Fattr::MTIME)
    .union(Fattr::ATIME_NOW)
    .union(Fattr::MTIME_NOW);

impl Connection {
    pub(super) fn getattr(&self, header: &InHeader, reply: &mut Reply) -> Result<(), Errno> {
        let stat = self.told_stat(header.nodeid)?;
        reply.put(&abi::AttrOut { attr_valid: FOREVER, attr_valid_nsec: 0, dummy: 0, attr: attr_of(&stat) });
        Ok(())
    }

    /// As GETATTR, with the time of creation.
    pub(super) fn statx(&self, header: &InHeader, reply: &mut Reply) -> Result<(), Errno> {
        let stat = self.told_stat(header.nodeid)?;
        let statx = abi::Statx {
            mask: STATX_BASIC_STATS_AND_BTIME,
            blksize: stat.blksize,
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            // All bits of a mode are in its low half.
            mode: stat.mode as u16,
            ino: stat.ino,
            size: stat.size,
            blocks: stat.blocks,
            atime: sx_time_of(stat.atime),
            btime: sx_time_of(stat.btime),
            ctime: sx_time_of(stat.ctime),
            mtime: sx_time_of(stat.mtime),
            rdev_major: (stat.rdev >> 8) as u32 & 0xfff,
            rdev_minor: (stat.rdev as u32 & 0xff) | ((stat.rdev >> 12) as u32 & 0xfff00),
            ..abi::Statx::new_zeroed()
        };
        reply.put(&abi::StatxOut { attr_valid: FOREVER, stat: statx, ..abi::StatxOut::new_zeroed() });
        Ok(())
    }

    pub(super) fn setattr(
        &self,
        header: &InHeader,
        arg: &abi::SetattrIn,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let inode = self.node(header.nodeid)?;
        let valid = Fattr::from_bits_retain(arg.valid);
        if valid.contains(Fattr::SIZE) {
            // The kernel asks for permission to write by the mode alone.
            inode.check_writing(OpenFlags::WRONLY)?;
            let kill = Some(valid.contains(Fattr::KILL_SUIDGID));
            self.clearing(header, &inode, kill, |cred| inode.truncate(cred, arg.size))?;
        }
        let change = SetAttr {
            mode: valid.contains(Fattr::MODE).then_some(arg.mode & 0o7777),
            uid: valid.contains(Fattr::UID).then_some(arg.uid),
            gid: valid.contains(Fattr::GID).then_some(arg.gid),
            atime: set_time(valid, Fattr::ATIME, Fattr::ATIME_NOW, arg.atime, arg.atimensec),
            mtime: set_time(valid, Fattr::MTIME, Fattr::MTIME_NOW, arg.mtime, arg.mtimensec),
            chown: !valid.intersects(CHANGES) && self.may_chown(header, &inode),
        };
        if change.chown || change.uid.is_some() || change.gid.is_some() {
            self.clearing(header, &inode, None, |cred| inode.set_attr(cred, &change))?;
        } else if change != SetAttr::default() {
            inode.set_attr(&self.cred(header), &change)?;
        }
        if self.writes_back() && valid.contains(Fattr::CTIME) {
            inode.set_ctime(timestamp(arg.ctime, arg.ctimensec))?;
        }
        self.getattr(header, reply)
    }

    /// Whether a request to set nothing is a chown that changes neither owner nor group. The kernel sends the same before it writes
    /// to a file with set-ID bits or a capability.
    ///
    /// For the owner both clear set-ID bits. The superuser's write does so only for a file with a capability, and keeps
    /// them; the kernel then looks twice for the capability, and once before a chown. For other users it must be the
    /// write, which itself states the bits to clear, or a chown without an effect.
    fn may_chown(&self, header: &InHeader, inode: &Inode) -> bool {
        let looks = self.nodes.take_looks(header.nodeid, header.pid);
        match caller::cred(header) {
            Some(caller) if caller.uid == 0 => looks < 2,
            Some(caller) => caller.uid == inode.stat().uid,
            None => true,
        }
    }

    /// With `default_permissions` the kernel checks by itself, and ENOSYS keeps it from asking again.
    pub(super) fn access(&self, header: &InHeader, arg: &abi::AccessIn) -> Result<(), Errno> {
        match self.options.checks {
            CheckMode::Kernel => Err(Errno::ENOSYS),
            CheckMode::Sluice => {
                self.node(header.nodeid)?.access(&self.cred(header), Access::from_bits_retain(arg.mask & 7))
            }
        }
    }

    pub(super) fn statfs(&self, header: &InHeader, reply: &mut Reply) -> Result<(), Errno> {
        // `df` after `rm` is to be exact, as the programs on a mount are used to.
        self.superblock.settle();
        let mut statfs =
            self.node(header.nodeid).map_or_else(|_| self.superblock.statfs(), |inode| inode.statfs());
        if statfs.files == 0 {
            // Programs that ask want a number. Without a limit of their own, files that are not empty end with the pages.
            statfs.files_free = statfs.blocks_free;
            statfs.files = self.superblock.inodes_used().saturating_add(statfs.files_free);
        }
        reply.put(&abi::Kstatfs {
            blocks: statfs.blocks,
            bfree: statfs.blocks_free,
            bavail: statfs.blocks_free,
            files: statfs.files,
            ffree: statfs.files_free,
            bsize: statfs.block_size,
            namelen: statfs.name_max,
            frsize: statfs.block_size,
            ..abi::Kstatfs::new_zeroed()
        });
        Ok(())
    }

    /// The attributes of `nodeid`, which the kernel is about to be told.
    fn told_stat(&self, nodeid: u64) -> Result<Stat, Errno> {
        let inode = self.node(nodeid)?;
        self.mark_told(nodeid);
        Ok(self.stat(&inode))
    }
}

fn set_time(valid: Fattr, given: Fattr, now: Fattr, sec: u64, nsec: u32) -> Option<SetTime> {
    if valid.contains(now) {
        Some(SetTime::Now)
    } else if valid.contains(given) {
        Some(SetTime::At(timestamp(sec, nsec)))
    } else {
        None
    }
}

fn timestamp(sec: u64, nsec: u32) -> Timestamp {
    Timestamp { sec: sec.cast_signed(), nsec: nsec.min(999_999_999) }
}

fn sx_time_of(time: Timestamp) -> abi::SxTime {
    let (_, tv_nsec) = time_of(time);
    abi::SxTime { tv_sec: time.sec, tv_nsec, reserved: 0 }
}
