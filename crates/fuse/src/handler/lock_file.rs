//! Lock file: all locks of a mount as a file in its root, in the form of `/proc/locks`, where `-o lockfile=NAME` asks
//! for it.
//!
//! # Theory
//! The file has an inode that stands in no directory: a program opens it by its name, and one that lists, copies or
//! removes the tree does not meet it. Each OPEN writes the table down, and READ gives out what was written then: a reader sees
//! one text, in however small pieces it reads. Nothing about the file can be changed through the mount: each operation is named
//! here, so that the compiler asks what a new one may do.

use crate::abi::flags::FOPEN_DIRECT_IO;
use crate::abi::{self, ROOT_ID};
use crate::connection::{Connection, LockFile};
use crate::reply::Reply;
use crate::request::{Operation, Request};
use crate::{MountError, MountOptions};
use sluice_locks::{LockEntry, proc_locks};
use sluice_sync::Arc;
use sluice_vfs::{Cred, Errno, NewInode, NewKind};

impl Connection {
    /// Makes the lock file, if the options name one.
    ///
    /// # Errors
    /// When the kernel serves the locks, or the root has a file of that name, or no inode can be made.
    pub(crate) fn make_lock_file(&self) -> Result<(), MountError> {
        let MountOptions { lock_file: Some(name), .. } = &self.options else { return Ok(()) };
        if !self.serves_locks() {
            return Err(MountError::LockFile("the kernel serves the locks: add locks=sluice".into()));
        }
        let (root, name) = (self.superblock.root(), name.as_bytes().to_vec());
        if root.lookup(&Cred::root(), &name).is_ok() {
            return Err(MountError::LockFile("there is a file of that name: choose another".into()));
        }
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        let server = Cred::checked_elsewhere(user.as_raw(), group.as_raw(), None);
        let inode = root
            .create_unnamed(&server, &NewInode { kind: NewKind::Regular, mode: 0o444, umask: 0 })
            .map_err(|errno| MountError::LockFile(errno.to_string()))?;
        // A lookup that the kernel does not know of, and so does not give back, keeps it until the mount is gone.
        let nodeid = self.nodes.remember(&inode);
        // Nobody else sets it.
        let _ = self.lock_file.set(LockFile { name, nodeid });
        Ok(())
    }

    /// Serves `request` if the lock file is concerned in a way of its own. `None`: it is a request as any other.
    pub(super) fn serve_lock_file(
        &self,
        request: &Request<'_>,
        reply: &mut Reply,
    ) -> Option<Result<(), Errno>> {
        let file = self.lock_file.get()?;
        let node = request.header.nodeid;
        Some(match &request.operation {
            Operation::Lookup { name } if file.is(node, name) => {
                self.node(file.nodeid).map(|inode| reply.put(&self.entry(&inode)))
            }
            Operation::Unlink { name } if file.is(node, name) => Err(Errno::EPERM),
            Operation::Rmdir { name } if file.is(node, name) => Err(Errno::ENOTDIR),
            Operation::Rename { newdir, old, new, .. } if file.is(node, old) || file.is(*newdir, new) => {
                Err(Errno::EPERM)
            }
            Operation::Mknod { name, .. }
            | Operation::Mkdir { name, .. }
            | Operation::Symlink { name, .. }
            | Operation::Create { name, .. }
            | Operation::Link { name, .. }
                if file.is(node, name) =>
            {
                Err(Errno::EEXIST)
            }
            Operation::Link { oldnodeid: target, .. }
            | Operation::CopyFileRange { arg: abi::CopyFileRangeIn { nodeid_out: target, .. }, .. }
                if *target == file.nodeid =>
            {
                Err(Errno::EPERM)
            }
            _ if node != file.nodeid => return None,
            Operation::Open(_) => self.open_lock_file(file, reply),
            Operation::Read(arg) => self.read_lock_file(arg, reply),
            // They say what the file is, lock it, or are not about a file.
            Operation::Lookup { .. }
            | Operation::Forget(_)
            | Operation::BatchForget(_)
            | Operation::Access(_)
            | Operation::Getattr
            | Operation::Statx
            | Operation::Release(_)
            | Operation::Flush(_)
            | Operation::Fsync
            | Operation::Syncfs
            | Operation::Statfs
            | Operation::Getxattr { .. }
            | Operation::Listxattr { .. }
            | Operation::Getlk(_)
            | Operation::Setlk { .. }
            | Operation::Interrupt(_)
            | Operation::Lseek(_)
            | Operation::Init(_)
            | Operation::Destroy
            | Operation::Unserved => return None,
            Operation::Ioctl { .. } => Err(Errno::ENOTTY),
            Operation::Readlink => Err(Errno::EINVAL),
            Operation::Symlink { .. }
            | Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::Create { .. }
            | Operation::Tmpfile(_)
            | Operation::Opendir
            | Operation::Readdir(_)
            | Operation::Readdirplus(_)
            | Operation::Releasedir
            | Operation::Fsyncdir => Err(Errno::ENOTDIR),
            Operation::Setattr(_)
            | Operation::Write { .. }
            | Operation::Fallocate(_)
            | Operation::CopyFileRange { .. }
            | Operation::Setxattr { .. }
            | Operation::Removexattr { .. } => Err(Errno::EPERM),
        })
    }

    /// True if `name` in the directory `nodeid` is the lock file's.
    pub(super) fn is_lock_file(&self, nodeid: u64, name: &[u8]) -> bool {
        self.lock_file.get().is_some_and(|file| file.is(nodeid, name))
    }

    /// All locks in the form of `/proc/locks`, under the device number by which users of the mount know its files.
    pub(crate) fn lock_table(&self) -> String {
        let entries = self.superblock.lock_domain().list();
        let entries: Vec<_> = entries.into_iter().map(|entry| LockEntry { dev: self.dev, ..entry }).collect();
        proc_locks(&entries)
    }

    fn open_lock_file(&self, file: &LockFile, reply: &mut Reply) -> Result<(), Errno> {
        let text = Arc::new(self.lock_table().into_bytes());
        let fh = self.handles.open_text(self.node(file.nodeid)?, text);
        // Its size is 0, as that of /proc/locks: the kernel must not look at it, nor keep what was read.
        reply.put(&abi::OpenOut { fh, open_flags: FOPEN_DIRECT_IO, padding: 0 });
        Ok(())
    }

    fn read_lock_file(&self, arg: &abi::ReadIn, reply: &mut Reply) -> Result<(), Errno> {
        let text = self.handles.text(arg.fh).ok_or(Errno::EBADF)?;
        let rest = usize::try_from(arg.offset).ok().and_then(|at| text.get(at..)).unwrap_or_default();
        reply.put_bytes(&rest[..rest.len().min(arg.size as usize)]);
        Ok(())
    }
}

impl LockFile {
    fn is(&self, dir: u64, name: &[u8]) -> bool {
        dir == ROOT_ID && name == self.name
    }
}
