//! Process: a user of a file system: credentials, umask, working directory, descriptors, and an
//! identity that owns locks. The POSIX calls are its methods.
//!
//! Each file of this module holds the calls of one kind. Every call takes `&self`: threads may share a
//! process as the threads of an operating system's process share theirs.

mod attributes;
mod descriptors;
mod directories;
mod dirents;
mod io;
mod leases;
mod lock_notes;
mod locks;
mod mounts;
mod names;
mod open;
mod xattrs;

pub use descriptors::Fd;
pub(crate) use descriptors::{DescriptorOwner, FdTable};
pub use dirents::{Dirent, Dirents};
pub use locks::{FileLock, FlockOperation, LockType};

use crate::at_once::{AtOnce, WouldWait, decided, or_waiting};
use crate::durable::Section;
use crate::lock_class::PROCESS_MOVING;
use crate::mount::{Location, LocationRef};
use crate::namei::{Namei, Parent, check_path};
use crate::open_file::OpenFile;
use crate::superblock::Shared;
use crate::{AtFlags, Cred, Errno, FileType, Fs, Inode};
use lock_notes::LockNotes;
use sluice_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sluice_sync::percpu::list::Handle;
use sluice_sync::rcu::{self, Guard, RcuCell};
use sluice_sync::{Arc, Mutex, Ref};
use std::convert::Infallible;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A user of an [`Fs`]. Dropping it closes its descriptors.
pub struct Process {
    fs: Fs,
    /// Identity as an owner of POSIX locks. *Immutable.*
    id: u64,
    cred: Cred,
    /// Distinguishes the credentials of one login from equal credentials of another. *Immutable.*
    login: u64,
    /// Permission bits that new files do not get. *Atomic (stands alone).*
    umask: AtomicU32,
    /// Where relative paths start, a place in a mount that counts us as a user. *Replaced under `moving`.*
    cwd: RcuCell<Location>,
    /// Held by a call that changes the working directory.
    moving: Mutex<()>,
    descriptors: Arc<FdTable>,
    /// Where its descriptors are listed. *Immutable.*
    listed: Handle,
    /// Where it may hold POSIX locks.
    lock_notes: LockNotes,
}

/// Where a path starts.
enum Start {
    /// At "/", as the path itself says.
    Root,
    WorkingDirectory,
    /// At a directory that is open.
    Open(Ref<OpenFile>),
}

/// The outcome of an attempt to act at the end of a path.
enum Acted<'p, R> {
    Done(R),
    /// Nothing: where that is.
    Not(Parent<'p>),
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cred { uid, gid, .. } = self.cred;
        f.debug_struct("Process")
            .field("pid", &self.pid())
            .field("uid", &uid)
            .field("gid", &gid)
            .finish_non_exhaustive()
    }
}

impl Process {
    pub(crate) fn new(fs: Fs, cred: Cred) -> Process {
        let root = fs.mounts().root(&rcu::domain().read()).to_location();
        root.mount.join();
        Process::assemble(fs, cred, 0o022, root, FdTable::new)
    }

    fn assemble(
        fs: Fs,
        cred: Cred,
        umask: u32,
        cwd: Location,
        descriptors: impl FnOnce(DescriptorOwner) -> FdTable,
    ) -> Process {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only uniqueness matters.
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let cred = Cred { pid: pid_of(id), ..cred };
        let owner = DescriptorOwner { pid: cred.pid, uid: cred.uid, gid: cred.gid };
        let descriptors = Arc::new(descriptors(owner));
        let listed = fs.mounts().processes().add(&descriptors);
        let (umask, cwd) = (AtomicU32::new(umask), RcuCell::new(rcu::domain(), cwd));
        let moving = Mutex::with_class(&PROCESS_MOVING, ());
        let lock_notes = LockNotes::default();
        Process { fs, id, cred, login: id, umask, cwd, moving, descriptors, listed, lock_notes }
    }

    /// A child: same credentials, umask and working directory; its descriptors point to the same open files;
    /// it owns none of the parent's POSIX locks.
    pub fn fork(&self) -> Process {
        let mut child = self.child(self.cred.clone());
        child.login = self.login;
        child
    }

    /// Forks a process with other credentials; see [`fork`](Self::fork).
    pub fn fork_as(&self, cred: Cred) -> Process {
        self.child(cred)
    }

    /// A child with these credentials, as a login of its own; see [`fork`](Self::fork).
    fn child(&self, cred: Cred) -> Process {
        let cwd = {
            // While we hold this the parent stays where it is, so its mount is not taken away.
            let _still = self.moving.lock();
            let cwd = self.working_directory();
            cwd.mount.join();
            cwd
        };
        let descriptors = |owner| self.descriptors.fork(owner);
        Process::assemble(self.fs.clone(), cred, self.current_umask(), cwd, descriptors)
    }

    /// The number that shows as the owner of this process's locks. Positive; not an operating system's pid.
    pub fn pid(&self) -> i32 {
        pid_of(self.id)
    }

    /// On whose behalf calls are made.
    pub fn cred(&self) -> &Cred {
        &self.cred
    }

    /// The tree of file systems that paths lead through.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Sets the permission bits that new files do not get; returns the old ones.
    pub fn umask(&self, mask: u32) -> u32 {
        // Relaxed: the mask stands alone.
        self.umask.swap(mask & 0o777, Ordering::Relaxed)
    }

    fn current_umask(&self) -> u32 {
        self.umask.load(Ordering::Relaxed)
    }

    fn namei(&self) -> Namei<'_> {
        Namei::new(self.fs.mounts(), &self.cred)
    }

    fn working_directory(&self) -> Location {
        self.cwd.load(&self.cwd.read()).clone()
    }

    /// Where a path given with `dir` starts. An absolute path needs no descriptor.
    fn start(&self, dir: Fd, path: &[u8]) -> Result<Start, Errno> {
        check_path(path)?;
        if path.first() == Some(&b'/') {
            return Ok(Start::Root);
        }
        if dir == Fd::CWD {
            return Ok(Start::WorkingDirectory);
        }
        let file = self.file(dir)?;
        if file.inode().is_dir() { Ok(Start::Open(file)) } else { Err(Errno::ENOTDIR) }
    }

    fn place_of<'g>(&'g self, start: &'g Start, section: &'g Guard<'_>) -> Option<LocationRef<'g>> {
        match start {
            Start::Root => None,
            Start::WorkingDirectory => Some(self.cwd.load(section).place()),
            Start::Open(file) => Some(file.location.place()),
        }
    }

    /// The file at `path`, following a symbolic link at the end if `follow`.
    fn resolve(&self, dir: Fd, path: &Path, follow: bool) -> Result<Location, Errno> {
        self.look(dir, path, follow, |found| Ok(found.to_location()))
    }

    /// Calls `look` with the file at `path`, without a reference of it; see [`resolve`](Self::resolve).
    fn look<R>(
        &self,
        dir: Fd,
        path: &Path,
        follow: bool,
        look: impl FnOnce(LocationRef<'_>) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let (path, namei) = (path_bytes(path), self.namei());
        if dir == Fd::CWD || path.first() == Some(&b'/') {
            let section = rcu::domain().read();
            let start = self.cwd.load(&section).place();
            if let Some(found) = namei.recall(Some(start), path, follow, &section)
                && !found.inode.must_load()
            {
                return look(found);
            }
        }
        let start = self.start(dir, path)?;
        loop {
            {
                let section = rcu::domain().read();
                let start = self.place_of(&start, &section);
                match decided(namei.find(start, path, follow, &section)).transpose()? {
                    // Names must be loaded before the section, because `look` runs inside it.
                    Some(found) if found.inode.must_load() => namei.want(found.inode),
                    Some(found) => return look(found),
                    None => {}
                }
            }
            namei.load_and_go_back(0)?;
        }
    }

    /// [`look`](Self::look) with the flags of the `*at` calls.
    fn look_at<R>(
        &self,
        dir: Fd,
        path: &Path,
        flags: AtFlags,
        look: impl FnOnce(LocationRef<'_>) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        if path.as_os_str().is_empty() && flags.contains(AtFlags::EMPTY_PATH) {
            return look(self.resolve_at(dir, path, flags)?.place());
        }
        self.look(dir, path, !flags.contains(AtFlags::SYMLINK_NOFOLLOW), look)
    }

    /// [`resolve`](Self::resolve) with the flags of the `*at` calls. An empty path with `EMPTY_PATH` names the file that `dir` is
    /// open on.
    fn resolve_at(&self, dir: Fd, path: &Path, flags: AtFlags) -> Result<Location, Errno> {
        if path.as_os_str().is_empty() && flags.contains(AtFlags::EMPTY_PATH) {
            if dir == Fd::CWD {
                return Ok(self.working_directory());
            }
            return self.borrow(dir, |file| Ok(file.location.clone()));
        }
        self.resolve(dir, path, !flags.contains(AtFlags::SYMLINK_NOFOLLOW))
    }

    /// Walks up to the last component of `path`.
    fn parent_of<'p>(&self, dir: Fd, path: &'p Path) -> Result<Parent<'p>, Errno> {
        let path = path_bytes(path);
        let waits = |_: &Parent<'_, LocationRef<'_>>, _: &Guard<'_>, _: &Section<'_>| Err(WouldWait);
        match self.act_or_parent::<Infallible>(&self.namei(), (dir, path), &mut Section::none(), waits)? {
            Acted::Done(nothing) => match nothing {},
            Acted::Not(parent) => Ok(parent),
        }
    }

    /// Walks up to the last component of `path` and does `act` there, in the section of the walk and without a
    /// reference. It never waits: if `act` would have to wait, nothing changes, and the caller continues with
    /// references from the directory that the walk reached.
    ///
    /// Changes of `act` are recorded in `put_down`, which [began](Self::begin_at_once) before the walk, or in no
    /// section if that had to end.
    #[inline]
    fn act_or_parent<'p, R>(
        &self,
        namei: &Namei<'_>,
        (dir, path): (Fd, &'p [u8]),
        put_down: &mut Section<'_>,
        act: impl FnOnce(&Parent<'p, LocationRef<'_>>, &Guard<'_>, &Section<'_>) -> AtOnce<R>,
    ) -> Result<Acted<'p, R>, Errno> {
        let start = self.start(dir, path)?;
        loop {
            {
                let section = rcu::domain().read();
                let parent = namei.to_parent(self.place_of(&start, &section), path, &section);
                if let Some(parent) = decided(parent).transpose()? {
                    let done = act(&parent, &section, put_down).map(Acted::Done);
                    return or_waiting(done, || Ok(Acted::Not(parent.into_owned())));
                }
            }
            // In no section.
            *put_down = Section::none();
            namei.load_and_go_back(0)?;
        }
    }

    /// Begins a section for a change of names and attributes in the file system at "/", if that is over a store, before the section of
    /// the walk. None is begun if the change is to wait for something else or `has_to_wait`.
    #[inline]
    fn begin_at_once(&self, has_to_wait: impl FnOnce(&Shared) -> bool) -> Section<'_> {
        match self.fs.mounts().root_over_store() {
            Some(shared) if shared.is_quiet_over_store() && !has_to_wait(shared) => {
                shared.begin(0).unwrap_or_else(|_| Section::none())
            }
            _ => Section::none(),
        }
    }

    /// The open file of descriptor `fd`.
    pub(crate) fn file(&self, fd: Fd) -> Result<Ref<OpenFile>, Errno> {
        self.descriptors.get(fd)
    }

    /// The result of `look` at the open file of `fd`, for a look that is over soon and waits for nobody.
    ///
    /// # Errors
    /// `EBADF`, and errors of `look`.
    #[inline]
    fn borrow<R>(&self, fd: Fd, look: impl FnOnce(&OpenFile) -> Result<R, Errno>) -> Result<R, Errno> {
        self.descriptors.borrow(fd, look)
    }

    /// Runs `at_once` on the open file of `fd`, borrowed as for [`borrow`](Self::borrow); if that would have to wait,
    /// runs `waiting` with a reference.
    ///
    /// # Errors
    /// `EBADF`, and those of both.
    #[inline]
    fn use_file<R>(
        &self,
        fd: Fd,
        at_once: impl FnOnce(&OpenFile) -> AtOnce<R>,
        waiting: impl FnOnce(&OpenFile) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        or_waiting(self.descriptors.borrow(fd, at_once), || self.use_file_waiting(fd, waiting))
    }

    #[cold]
    #[inline(never)]
    fn use_file_waiting<R>(
        &self,
        fd: Fd,
        waiting: impl FnOnce(&OpenFile) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        waiting(&*self.file(fd)?)
    }

    /// The location of the file that descriptor `fd` is open on.
    ///
    /// # Errors
    /// `EBADF`, also for a descriptor that only names a place.
    fn opened_location(&self, fd: Fd) -> Result<Location, Errno> {
        self.borrow(fd, |file| {
            file.check_opened()?;
            Ok(file.location.clone())
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let open: Vec<_> = self.descriptors.take_all().collect();
        open.iter().for_each(|file| self.let_go(file));
        self.fs.mounts().processes().remove(self.listed);
        self.working_directory().mount.leave();
    }
}

/// The pid that the process `id` shows.
fn pid_of(id: u64) -> i32 {
    i32::try_from(id & 0x7fff_ffff).unwrap_or(i32::MAX)
}

/// True when `inode` may be read and written by position.
fn is_regular(inode: &Inode) -> bool {
    inode.file_type() == FileType::Regular
}

/// The bytes of a path, as they are.
fn path_bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
