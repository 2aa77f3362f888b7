//! Inode flags: what `chattr` sets on one file, with the meaning that Linux's tmpfs gives it.
//!
//! # Theory
//! Flags hang on the part of an inode that few inodes have, beside extended attributes, so a file without flags takes no
//! memory for them, and a call finds that by one load. They are kept by one word of their own, which is looked at with
//! nothing locked, as on Linux: a call that has passed the check goes on although the flag is set meanwhile.
//!
//! Where Linux looks at them: a write (and so a change of a directory's names) is refused by `IMMUTABLE`; names of
//! and in what is `IMMUTABLE` or `APPEND` are not removed, it gets no further names, attributes and extended attributes;
//! `APPEND` is opened for appending only, and not cut. A file that is open for writing already stays writable.

use crate::attributes::Attr;
use crate::inode::flag;
use crate::{Caps, Cred, Errno, FileType, Inode, InodeRef, OpenFlags};
use bitflags::bitflags;
use sluice_sync::atomic::Ordering;

bitflags! {
    /// Flags of one file, with the numbers of `FS_IOC_SETFLAGS`. No capability overrides these.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
    pub struct InodeFlags: u32 {
        /// Contents, attributes and names do not change.
        const IMMUTABLE = 0x10;
        /// Contents only grow, and in a directory names are only added.
        const APPEND = 0x20;
        /// For backup programs: leave it out. New files in a directory inherit it.
        const NODUMP = 0x40;
        /// Reading does not change the access time. New files in a directory inherit it.
        const NOATIME = 0x80;
    }
}

impl InodeFlags {
    /// The flags that new files inherit from their directory.
    pub(crate) const INHERITED: InodeFlags = InodeFlags::NODUMP.union(InodeFlags::NOATIME);
    /// The flags that keep attributes and names as they are.
    pub(crate) const FIXED: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);
}

impl Inode {
    /// The flags that are set.
    #[inline]
    pub fn flags(&self) -> InodeFlags {
        // Relaxed: a flag publishes nothing.
        self.extra_if_any().map_or(InodeFlags::empty(), |extra| {
            InodeFlags::from_bits_truncate(extra.flags.load(Ordering::Relaxed))
        })
    }

    fn set_flags_of(&self, attr: &Attr, cred: &Cred, flags: InodeFlags) -> Result<(), Errno> {
        let changed = self.flags().symmetric_difference(flags);
        let may_fix = cred.has(Caps::LINUX_IMMUTABLE) || !changed.intersects(InodeFlags::FIXED);
        if !attr.owned_by(cred) || !may_fix {
            return Err(Errno::EPERM);
        }
        self.put_flags(flags);
        Ok(())
    }

    /// Sets the flags of an inode that nobody else knows yet.
    pub(crate) fn put_flags(&self, flags: InodeFlags) {
        if flags != self.flags() {
            // Relaxed: a flag publishes nothing.
            self.extra().flags.store(flags.bits(), Ordering::Relaxed);
        }
    }

    /// Refuses to write by a file that is open as `opened` says, where the flags forbid that to all.
    ///
    /// # Errors
    /// `EROFS`: it is in a snapshot. `EPERM`: it is immutable; or append-only, and not opened for appending alone.
    pub fn check_writing(&self, opened: OpenFlags) -> Result<(), Errno> {
        if !opened.writable() && !opened.contains(OpenFlags::TRUNC) {
            return Ok(());
        }
        let only_appends = opened.contains(OpenFlags::APPEND) && !opened.contains(OpenFlags::TRUNC);
        self.check_not(if only_appends { InodeFlags::IMMUTABLE } else { InodeFlags::FIXED })
    }

    /// Whether the inode is in a snapshot, which nobody changes.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.has(flag::READ_ONLY)
    }

    /// Refuses to change an inode of a snapshot.
    ///
    /// # Errors
    /// `EROFS`.
    #[inline]
    pub(crate) fn check_changes(&self) -> Result<(), Errno> {
        if self.is_read_only() { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Refuses to change an inode of a snapshot, and what the flags `fixed` keep as it is.
    ///
    /// # Errors
    /// `EROFS`; `EPERM` when one of the flags is set.
    #[inline]
    pub(crate) fn check_not(&self, fixed: InodeFlags) -> Result<(), Errno> {
        self.check_changes()?;
        if self.flags().intersects(fixed) { Err(Errno::EPERM) } else { Ok(()) }
    }
}

impl InodeRef {
    /// Sets these flags and clears all others.
    ///
    /// # Errors
    /// `EPERM` when `cred` does not own the file, or lacks `LINUX_IMMUTABLE` and would change `IMMUTABLE` or `APPEND`;
    /// `ENOTTY` when this is neither a regular file nor a directory; the store's, of a durable file system.
    pub fn set_flags(&self, cred: &Cred, flags: InodeFlags) -> Result<(), Errno> {
        if !matches!(self.file_type(), FileType::Regular | FileType::Directory) {
            return Err(Errno::ENOTTY);
        }
        self.check_changes()?;
        self.change_attributes(cred, |section| {
            // The lock of the attributes also serializes changes of flags.
            self.attr.change(|attr| self.set_flags_of(attr, cred, flags))?;
            self.touch_ctime();
            section.inode(self);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FallocateMode, Fs, Process};

    fn process_of(uid: u32) -> (Fs, Process) {
        let fs = Fs::new();
        fs.process(Cred::root()).chmod("/", 0o777).expect("root may");
        let process = fs.process(Cred::user(uid, uid));
        (fs, process)
    }

    #[test]
    fn an_owner_sets_what_forbids_nothing_and_the_capability_the_rest() {
        let (fs, owner) = process_of(1000);
        let fd = owner.open("/f", OpenFlags::RDWR | OpenFlags::CREAT, 0o644).expect("a fresh name");
        assert_eq!(owner.ioctl_setflags(fd, InodeFlags::NODUMP), Ok(()));
        assert_eq!(owner.ioctl_setflags(fd, InodeFlags::APPEND), Err(Errno::EPERM));
        let (root, other) = (fs.process(Cred::root()), fs.process(Cred::user(5, 5)));
        let theirs = other.open("/f", OpenFlags::RDONLY, 0).expect("readable");
        assert_eq!(other.ioctl_setflags(theirs, InodeFlags::empty()), Err(Errno::EPERM));
        let roots = root.open("/f", OpenFlags::RDONLY, 0).expect("readable");
        assert_eq!(root.ioctl_setflags(roots, InodeFlags::IMMUTABLE), Ok(()));
        assert_eq!(owner.ioctl_getflags(fd), Ok(InodeFlags::IMMUTABLE));
        // The owner may repeat a flag that is set, but may not clear it.
        assert_eq!(owner.ioctl_setflags(fd, InodeFlags::IMMUTABLE | InodeFlags::NOATIME), Ok(()));
        assert_eq!(owner.ioctl_setflags(fd, InodeFlags::NOATIME), Err(Errno::EPERM));
        let dir = root.open("/", OpenFlags::RDONLY, 0).expect("a directory");
        assert_eq!(root.ioctl_setflags(dir, InodeFlags::NODUMP), Ok(()));
    }

    #[test]
    fn a_file_that_was_open_before_stays_writable_and_its_size_does_not_shrink_when_it_is_append_only() {
        let (fs, process) = process_of(0);
        let fd = process.open("/f", OpenFlags::RDWR | OpenFlags::CREAT, 0o644).expect("a fresh name");
        process.write(fd, b"abc").expect("there is room");
        process.ioctl_setflags(fd, InodeFlags::APPEND).expect("root may");
        assert_eq!(process.pwrite(fd, b"x", 0), Ok(1));
        assert_eq!(process.ftruncate(fd, 1), Err(Errno::EPERM));
        assert_eq!(process.truncate("/f", 1), Err(Errno::EPERM));
        assert_eq!(process.open("/f", OpenFlags::WRONLY, 0), Err(Errno::EPERM));
        let only_end = OpenFlags::WRONLY | OpenFlags::APPEND;
        assert_eq!(process.open("/f", only_end | OpenFlags::TRUNC, 0), Err(Errno::EPERM));
        let end = process.open("/f", only_end, 0).expect("it only appends");
        assert_eq!(process.fcntl_setfl(end, OpenFlags::empty()), Err(Errno::EPERM));
        let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        assert_eq!(process.fallocate(fd, punch, 0, 4096), Err(Errno::EPERM));
        assert_eq!(process.fallocate(fd, FallocateMode::empty(), 0, 4096), Ok(()));
        process.ioctl_setflags(fd, InodeFlags::IMMUTABLE).expect("root may");
        assert_eq!(process.pwrite(fd, b"y", 0), Ok(1));
        assert_eq!(process.fallocate(fd, FallocateMode::empty(), 0, 4096), Err(Errno::EPERM));
        assert_eq!(process.ftruncate(fd, 2), Ok(()));
        assert_eq!(process.truncate("/f", 1), Err(Errno::EPERM));
        let copy = fs.superblock().root().snapshot().expect("there is room");
        assert_eq!(
            copy.root().lookup(&Cred::root(), b"f").map(|file| file.flags()),
            Ok(InodeFlags::IMMUTABLE)
        );
    }
}
