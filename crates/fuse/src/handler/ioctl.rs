//! IOCTL: the flags of a file, as `chattr` and `lsattr` ask for them.
//!
//! The kernel translates the calls (`FS_IOC_GETFLAGS`, `FS_IOC_FSGETXATTR` and their setters, `file_getattr`) and
//! checks who may make them. Flags that tmpfs lacks are refused as on tmpfs.

use crate::abi::flags::{FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR, FS_IOC_GETFLAGS, FS_IOC_SETFLAGS};
use crate::abi::{self, InHeader};
use crate::connection::Connection;
use crate::event::Event;
use crate::reply::Reply;
use sluice_vfs::{Errno, FileType, InodeFlags};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Each flag by its number in `struct fsxattr`.
const EXTENDED: [(InodeFlags, u32); 4] = [
    (InodeFlags::IMMUTABLE, 0x08),
    (InodeFlags::APPEND, 0x10),
    (InodeFlags::NOATIME, 0x40),
    (InodeFlags::NODUMP, 0x80),
];

impl Connection {
    pub(super) fn ioctl(
        &self,
        header: &InHeader,
        arg: &abi::IoctlIn,
        data: &[u8],
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        match arg.cmd {
            FS_IOC_GETFLAGS => {
                let flags = self.flags_of(header)?.bits();
                answer(arg, flags.as_bytes(), reply)
            }
            FS_IOC_SETFLAGS => {
                let flags = u32::read_from_bytes(data).map_err(|_| Errno::EINVAL)?;
                self.set_flags(header, InodeFlags::from_bits(flags))?;
                answer(arg, &[], reply)
            }
            FS_IOC_FSGETXATTR => {
                let flags = self.flags_of(header)?;
                let set = EXTENDED.iter().filter(|(flag, _)| flags.contains(*flag));
                let xflags = set.map(|(_, bit)| bit).sum();
                answer(arg, abi::FsXattr { xflags, ..abi::FsXattr::new_zeroed() }.as_bytes(), reply)
            }
            FS_IOC_FSSETXATTR => {
                let asked = abi::FsXattr::read_from_bytes(data).map_err(|_| Errno::EINVAL)?;
                let mut flags = InodeFlags::empty();
                let mut rest = asked.xflags;
                for (flag, bit) in EXTENDED {
                    flags.set(flag, asked.xflags & bit != 0);
                    rest &= !bit;
                }
                let only_flags = [rest, asked.extsize, asked.projid, asked.cowextsize] == [0; 4];
                self.set_flags(header, only_flags.then_some(flags))?;
                answer(arg, &[], reply)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn flags_of(&self, header: &InHeader) -> Result<InodeFlags, Errno> {
        let inode = self.node(header.nodeid)?;
        match inode.file_type() {
            FileType::Regular | FileType::Directory => Ok(inode.flags()),
            _ => Err(Errno::ENOTTY),
        }
    }

    /// Sets `flags`; None: some that there are not.
    fn set_flags(&self, header: &InHeader, flags: Option<InodeFlags>) -> Result<(), Errno> {
        let inode = self.node(header.nodeid)?;
        inode.set_flags(&self.cred(header), flags.ok_or(Errno::EOPNOTSUPP)?)?;
        // The kernel does not expect that the time of change moves.
        self.tell_later(Event::Attributes { ino: inode.ino() });
        Ok(())
    }
}

/// Answers with `data`, for which the kernel must have made room.
fn answer(arg: &abi::IoctlIn, data: &[u8], reply: &mut Reply) -> Result<(), Errno> {
    if data.len() > arg.out_size as usize {
        return Err(Errno::EINVAL);
    }
    reply.put(&abi::IoctlOut::new_zeroed());
    reply.put_bytes(data);
    Ok(())
}
