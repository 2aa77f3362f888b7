//! Facts: what is known of a file beside its name and its contents.

use sluice_vfs::{Cred, Errno, FileType, InodeFlags, InodeRef, Stat, Timestamp};
use std::collections::BTreeMap;

/// Times and flags of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InodeTimes {
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) flags: InodeFlags,
}

/// The attributes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InodeFacts {
    pub(crate) file_type: FileType,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The number of a device.
    pub(crate) rdev: u64,
    /// The target of a symbolic link.
    pub(crate) target: Vec<u8>,
    pub(crate) times: InodeTimes,
    /// Extended attributes and access control lists.
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl InodeFacts {
    pub(crate) fn of(inode: &InodeRef) -> Result<InodeFacts, Errno> {
        let stat: Stat = inode.stat();
        let cred = Cred::root();
        let file_type = stat.file_type();
        let mut xattrs = BTreeMap::new();
        for key in inode.list_xattr(&cred) {
            match inode.get_xattr(&cred, &key) {
                Ok(value) => drop(xattrs.insert(key, value)),
                // It is gone since.
                Err(Errno::ENODATA) => {}
                Err(errno) => return Err(errno),
            }
        }
        let is_device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
        let Stat { uid, gid, atime, mtime, ctime, .. } = stat;
        Ok(InodeFacts {
            file_type,
            mode: stat.permissions(),
            uid,
            gid,
            rdev: if is_device { stat.rdev } else { 0 },
            target: if file_type == FileType::Symlink { inode.read_link(false)? } else { Vec::new() },
            times: InodeTimes { atime, mtime, ctime, flags: inode.flags() },
            xattrs,
        })
    }

    /// Whether a file can become the other by a change of its attributes and contents.
    pub(crate) fn is_like(&self, other: &InodeFacts) -> bool {
        (self.file_type, self.rdev, &self.target) == (other.file_type, other.rdev, &other.target)
    }

    /// Whether nothing differs but access times.
    pub(crate) fn is_same(&self, other: &InodeFacts) -> bool {
        let times = InodeTimes { atime: self.times.atime, ..other.times };
        self.is_like(other) && self.has_attributes_of(other) && self.times == times
    }

    /// Whether owner, mode, and extended attributes are the same.
    pub(crate) fn has_attributes_of(&self, other: &InodeFacts) -> bool {
        (self.mode, self.uid, self.gid) == (other.mode, other.uid, other.gid) && self.xattrs == other.xattrs
    }
}
