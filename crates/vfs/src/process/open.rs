//! Open: from a path to a descriptor.

use super::{Acted, Fd, Process, path_bytes};
use crate::at_once::{AtOnce, NotAtOnce, WouldWait};
use crate::durable::Section;
use crate::mount::{Location, LocationRef};
use crate::namei::{Last, Parent};
use crate::open_file::OpenFile;
use crate::superblock::Shared;
use crate::watch::fault::Calls;
use crate::{Access, Errno, FileType, InodeRef, NewInode, NewKind, OpenFlags};
use sluice_sync::Ref;
use sluice_sync::rcu::Guard;
use std::path::Path;

/// The file at the end of a path that `open` opens.
enum OpenTarget {
    Existing(Location),
    Created(Location),
}

impl Process {
    /// Opens the file at `path`, creating it with permissions `mode` (less the umask) if `flags` say so.
    ///
    /// # Errors
    /// As `open(2)`. Named pipes, sockets and devices can be opened as a `PATH` only (`ENXIO` otherwise): a
    /// library has no drivers behind them.
    pub fn open(&self, path: impl AsRef<Path>, flags: OpenFlags, mode: u32) -> Result<Fd, Errno> {
        self.openat(Fd::CWD, path, flags, mode)
    }

    /// Opens the file at `path`, relative to the directory `dir`; see [`open`](Self::open).
    ///
    /// # Errors
    /// Errors of [`open`](Self::open); `EBADF`, `ENOTDIR` for a `dir` that is no directory's descriptor.
    pub fn openat(&self, dir: Fd, path: impl AsRef<Path>, flags: OpenFlags, mode: u32) -> Result<Fd, Errno> {
        let file = loop {
            match self.open_file(dir, path.as_ref(), flags, mode) {
                // The mount in which the file was found has been taken away: what was below it is meant.
                Err(Errno::ESTALE) => {}
                opened => break opened?,
            }
        };
        self.install(file, flags.contains(OpenFlags::CLOEXEC))
    }

    fn open_file(&self, dir: Fd, path: &Path, flags: OpenFlags, mode: u32) -> Result<Ref<OpenFile>, Errno> {
        let flags = checked_flags(flags)?;
        if flags.contains(OpenFlags::PATH) {
            let location = self.resolve(dir, path, !flags.contains(OpenFlags::NOFOLLOW))?;
            if flags.contains(OpenFlags::DIRECTORY) && !location.inode.is_dir() {
                return Err(Errno::ENOTDIR);
            }
            return self.describe(location, flags);
        }
        if flags.contains(OpenFlags::TMPFILE) {
            return self.open_unnamed(dir, path, flags, mode);
        }
        match self.find_or_create(dir, path, flags, mode)? {
            OpenTarget::Created(location) => self.describe_ready(location, flags - OpenFlags::TRUNC),
            OpenTarget::Existing(location) => {
                location.inode.meet_faults(Calls::OPEN)?;
                self.permit_open(&location, flags)?;
                self.describe_ready(location, flags)
            }
        }
    }

    /// Opens a file that is already visible to others, after the preparations of [`make_ready`](Self::make_ready).
    fn describe_ready(&self, location: Location, flags: OpenFlags) -> Result<Ref<OpenFile>, Errno> {
        let file = self.describe(location, flags - OPENING_FLAGS)?;
        self.make_ready(&file, flags).inspect_err(|_| file.close())?;
        Ok(file)
    }

    /// Prepares a file for opening: breaks leases and truncates.
    fn make_ready(&self, file: &OpenFile, flags: OpenFlags) -> Result<(), Errno> {
        let inode = file.inode();
        self.break_for_open(file, flags)?;
        if flags.contains(OpenFlags::TRUNC) && super::is_regular(inode) {
            inode.truncate(&self.cred, 0)?;
        }
        Ok(())
    }

    fn describe(&self, location: Location, flags: OpenFlags) -> Result<Ref<OpenFile>, Errno> {
        OpenFile::new(self.fs.mounts(), location, flags, self.login)
    }

    fn open_unnamed(
        &self,
        dir: Fd,
        path: &Path,
        flags: OpenFlags,
        mode: u32,
    ) -> Result<Ref<OpenFile>, Errno> {
        let location = self.resolve(dir, path, !flags.contains(OpenFlags::NOFOLLOW))?;
        if !location.inode.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        location.mount.check_writable()?;
        let new = NewInode { kind: NewKind::Regular, mode, umask: self.current_umask() };
        let inode = location.inode.create_unnamed(&self.cred, &new)?;
        if flags.contains(OpenFlags::EXCL) {
            inode.links.set_unnamed(false);
        }
        self.describe(Location { inode, ..location }, flags - OPENING_FLAGS)
    }

    fn find_or_create(&self, dir: Fd, path: &Path, flags: OpenFlags, mode: u32) -> Result<OpenTarget, Errno> {
        let create = flags.contains(OpenFlags::CREAT);
        let exclusive = create && flags.contains(OpenFlags::EXCL);
        let follow = !flags.contains(OpenFlags::NOFOLLOW) && !exclusive;
        if !create {
            return self.resolve(dir, path, follow).map(OpenTarget::Existing);
        }
        let namei = self.namei();
        // Names leave memory outside of a section.
        let mut put_down = self.begin_at_once(Shared::should_let_names_leave);
        let at_once = |parent: &Parent<'_, LocationRef<'_>>, section: &Guard<'_>, put_down: &Section<'_>| {
            self.find_or_create_at_once(parent, exclusive, follow, mode, (section, put_down))
        };
        let mut parent = match self.act_or_parent(&namei, (dir, path_bytes(path)), &mut put_down, at_once)? {
            Acted::Done(found) => return Ok(found),
            Acted::Not(parent) => parent,
        };
        drop(put_down);
        loop {
            let Last::Name(name) = &parent.last else {
                return Err(if exclusive { Errno::EEXIST } else { Errno::EISDIR });
            };
            if parent.trailing_slash {
                return Err(Errno::EISDIR);
            }
            let found = match namei.last_of(&parent) {
                Ok(found) => found,
                Err(Errno::ENOENT) => match self.create_regular(&parent, name, mode) {
                    // Somebody else created the name since it was looked up.
                    Err(Errno::EEXIST) if !exclusive => continue,
                    created => {
                        let mount = parent.dir.mount;
                        return created.map(|inode| OpenTarget::Created(Location { mount, inode }));
                    }
                },
                Err(error) => return Err(error),
            };
            if exclusive {
                return Err(Errno::EEXIST);
            }
            if found.inode.file_type() != FileType::Symlink || !follow {
                return Ok(OpenTarget::Existing(found));
            }
            parent = namei.follow(&parent, &found)?;
        }
    }

    /// Finds or creates the file to which `parent` leads in the section in which it was walked to, if nobody is waited for; the other
    /// one puts down what changes.
    #[inline]
    fn find_or_create_at_once(
        &self,
        parent: &Parent<'_, LocationRef<'_>>,
        exclusive: bool,
        follow: bool,
        mode: u32,
        (section, put_down): (&Guard<'_>, &Section<'_>),
    ) -> AtOnce<OpenTarget> {
        let Parent { dir, last: Last::Name(name), trailing_slash: false } = parent else {
            return Err(WouldWait);
        };
        match dir.inode.lookup_in(name, section) {
            Ok(_) if exclusive => Err(Errno::EEXIST.into()),
            Ok(found) if found.is_symlink() && follow => Err(WouldWait),
            Ok(inode) => {
                let found = LocationRef { inode, ..*dir }.enter(section);
                Ok(OpenTarget::Existing(found.to_location()))
            }
            Err(NotAtOnce::Failed(Errno::ENOENT)) if dir.mount.check_writable().is_ok() => {
                let new = NewInode { kind: NewKind::Regular, mode, umask: self.current_umask() };
                match dir.inode.create_at_once(&self.cred, name, &new, put_down) {
                    // Somebody else created the name since it was looked up.
                    Err(NotAtOnce::Failed(Errno::EEXIST)) if !exclusive => Err(WouldWait),
                    created => Ok(OpenTarget::Created(Location::new(dir.mount, created?))),
                }
            }
            // Errors are reported in the order of Linux.
            Err(_) => Err(WouldWait),
        }
    }

    fn create_regular(&self, parent: &Parent<'_>, name: &[u8], mode: u32) -> Result<InodeRef, Errno> {
        parent.dir.mount.check_writable()?;
        let new = NewInode { kind: NewKind::Regular, mode, umask: self.current_umask() };
        let dir = &parent.dir.inode;
        dir.create(&self.cred, name, &new)
    }

    /// May this process open the existing file at `location` as `flags` say?
    fn permit_open(&self, location: &Location, flags: OpenFlags) -> Result<(), Errno> {
        let inode = &location.inode;
        let is_dir = inode.is_dir();
        if flags.contains(OpenFlags::CREAT) && is_dir {
            return Err(Errno::EISDIR);
        }
        if flags.contains(OpenFlags::DIRECTORY) && !is_dir {
            return Err(Errno::ENOTDIR);
        }
        let wants = wanted_access(flags);
        match inode.file_type() {
            FileType::Symlink => return Err(Errno::ELOOP),
            FileType::Directory if wants.contains(Access::WRITE) => return Err(Errno::EISDIR),
            FileType::Regular if wants.contains(Access::WRITE) => location.mount.check_writable()?,
            _ => {}
        }
        inode.access(&self.cred, wants)?;
        inode.check_writing(flags)?;
        if flags.contains(OpenFlags::NOATIME) && !inode.attr.read().owned_by(&self.cred) {
            return Err(Errno::EPERM);
        }
        match inode.file_type() {
            FileType::Directory if flags.contains(OpenFlags::DIRECT) => Err(Errno::EINVAL),
            FileType::Regular | FileType::Directory => Ok(()),
            _ => Err(Errno::ENXIO),
        }
    }
}

/// The permissions that an access mode needs; `TRUNC` writes.
fn wanted_access(flags: OpenFlags) -> Access {
    let mut wants = Access::empty();
    let mode = flags & OpenFlags::ACCMODE;
    if mode != OpenFlags::WRONLY {
        wants |= Access::READ;
    }
    if mode != OpenFlags::RDONLY || flags.contains(OpenFlags::TRUNC) {
        wants |= Access::WRITE;
    }
    wants
}

/// The flags that only matter while a file is being opened.
const OPENING_FLAGS: OpenFlags =
    OpenFlags::CREAT.union(OpenFlags::EXCL).union(OpenFlags::NOCTTY).union(OpenFlags::TRUNC);

/// The bits that mean something, `O_ASYNC` included.
const KNOWN_FLAGS: OpenFlags = OpenFlags::from_bits_retain(0o37_777_703);

/// Refuses flags that do not go together and drops unknown ones, those that `PATH` ignores, and `CLOEXEC`,
/// which belongs to the descriptor.
fn checked_flags(flags: OpenFlags) -> Result<OpenFlags, Errno> {
    let mut flags = (flags & KNOWN_FLAGS) - OpenFlags::CLOEXEC;
    if flags.intersects(OpenFlags::SYNC - OpenFlags::DSYNC) {
        flags |= OpenFlags::DSYNC;
    }
    if flags.contains(OpenFlags::PATH) {
        let kept = OpenFlags::PATH | OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW;
        return Ok(flags & kept);
    }
    let tmpfile_bit = OpenFlags::TMPFILE - OpenFlags::DIRECTORY;
    if flags.contains(tmpfile_bit) {
        let whole = flags.contains(OpenFlags::TMPFILE) && !flags.contains(OpenFlags::CREAT);
        let writes = flags & OpenFlags::ACCMODE != OpenFlags::RDONLY;
        return if whole && writes { Ok(flags) } else { Err(Errno::EINVAL) };
    }
    if flags.contains(OpenFlags::DIRECTORY | OpenFlags::CREAT) {
        return Err(Errno::EINVAL);
    }
    Ok(flags)
}
