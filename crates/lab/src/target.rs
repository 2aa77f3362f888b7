//! Target: where a workload runs, as one small surface of POSIX calls.
//!
//! # Theory
//! A workload is written once, against [`Calls`]. Each task of a run asks the target for calls of its own,
//! from the thread that will use them: its own descriptors and its own owner of POSIX locks, as a process
//! has. Paths are relative to a directory that the target keeps for itself. Calls go through a `dyn` pointer: a
//! nanosecond or two per call, the same for each target.

mod host_dir;
mod library;
mod open_files;
mod simulated;
mod spec;

pub use host_dir::HostDir;
pub use library::Library;
pub use simulated::{DEFAULT_OPS, simulated_run};
pub use spec::{Ready, Spec};

use sluice_console::failure::{Failure, Result};
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant};
use sluice_vfs as vfs;
use sluice_vfs::Errno;
use std::path::Path;

/// An open file of one task. It means nothing to other tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle(usize);

/// How to open a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Open {
    /// An existing file, for reading.
    Read,
    /// An existing file, for reading and writing.
    ReadWrite,
    /// A new file (`O_CREAT | O_EXCL`) with these permission bits, for reading and writing.
    New(u32),
    /// A file, made with these permission bits if it is not there (`O_CREAT`), for reading and writing.
    Create(u32),
    /// An existing file; each `write` goes to its end (`O_APPEND`).
    Append,
    /// An existing file, for reading and writing past the page cache (`O_DIRECT`), by [`Block`]s; `EOPNOTSUPP` where the
    /// file system cannot.
    Direct,
}

/// Bytes of a block.
pub const BLOCK: usize = 4096;

/// A buffer of one block that lies in memory as `O_DIRECT` wants it.
#[repr(C, align(4096))]
pub struct Block(pub [u8; BLOCK]);

/// The operation of a lock call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lock {
    /// Take the lock, or fail with `EAGAIN`.
    Exclusive,
    /// Take the lock, and wait for it if need be.
    ExclusiveWait,
    /// Give it back.
    Unlock,
}

/// The attributes that workloads check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta {
    /// Size in bytes.
    pub size: u64,
    /// Number of names.
    pub nlink: u64,
    /// Type and permission bits, as in `st_mode`.
    pub mode: u32,
}

impl Meta {
    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }
}

/// The result of a call: the error of the system call of the same name.
pub type CallResult<T> = std::result::Result<T, Errno>;

/// The calls that one task makes. Not `Send`: they belong to the thread that asked for them.
///
/// # Errors
/// Each call fails as the system call of its name does.
#[allow(missing_docs, reason = "each method is the POSIX call of its name")]
pub trait Calls {
    fn open(&mut self, path: &str, how: Open) -> CallResult<Handle>;
    fn close(&mut self, file: Handle) -> CallResult<()>;
    fn pread(&mut self, file: Handle, buf: &mut [u8], offset: u64) -> CallResult<usize>;
    fn pwrite(&mut self, file: Handle, data: &[u8], offset: u64) -> CallResult<usize>;
    /// Reads from the file's position on.
    fn read(&mut self, file: Handle, buf: &mut [u8]) -> CallResult<usize>;
    /// Writes at the file's position, or at the file's end if opened for appending.
    fn write(&mut self, file: Handle, data: &[u8]) -> CallResult<usize>;
    /// Sets the file's position, counted from its start.
    fn lseek(&mut self, file: Handle, position: u64) -> CallResult<()>;
    fn ftruncate(&mut self, file: Handle, size: u64) -> CallResult<()>;
    /// Reserves space; the size grows if need be (mode 0).
    fn fallocate(&mut self, file: Handle, offset: u64, length: u64) -> CallResult<()>;
    fn dup(&mut self, file: Handle) -> CallResult<Handle>;
    fn fsync(&mut self, file: Handle) -> CallResult<()>;
    /// Copies all `length` bytes of `from` to the empty file `to`, sharing the contents where the file system can.
    fn clone(&mut self, from: Handle, to: Handle, length: u64) -> CallResult<()>;
    fn stat(&mut self, path: &str) -> CallResult<Meta>;
    fn unlink(&mut self, path: &str) -> CallResult<()>;
    fn rename(&mut self, from: &str, to: &str) -> CallResult<()>;
    fn mkdir(&mut self, path: &str) -> CallResult<()>;
    fn rmdir(&mut self, path: &str) -> CallResult<()>;
    fn symlink(&mut self, to: &str, path: &str) -> CallResult<()>;
    fn readlink(&mut self, path: &str) -> CallResult<Vec<u8>>;
    /// Reads the whole directory; `visit` gets each name but `.` and `..`, and whether it is a directory.
    fn read_dir(&mut self, path: &str, visit: &mut dyn FnMut(&[u8], bool)) -> CallResult<()>;
    /// A POSIX lock (`fcntl`) on the first `length` bytes; 0: on the whole file, as `l_len` has it.
    fn posix_lock(&mut self, file: Handle, lock: Lock, length: u64) -> CallResult<()>;
    /// A lock of the open file (`fcntl`, OFD) on the whole file.
    fn ofd_lock(&mut self, file: Handle, lock: Lock) -> CallResult<()>;
    /// A BSD lock (`flock`).
    fn flock(&mut self, file: Handle, lock: Lock) -> CallResult<()>;
    /// Takes a shared lease on the file (`fcntl`, `F_SETLEASE`), or gives it up.
    fn lease(&mut self, file: Handle, held: bool) -> CallResult<()>;
}

/// A file system to run workloads on.
pub trait Target: Send + Sync {
    /// The calls of one more task. To be asked for on a thread of its own, which is changed by it: see
    /// [`with_task`].
    ///
    /// # Errors
    /// When the task cannot get a context of its own.
    fn task(&self) -> Result<Box<dyn Calls>>;

    /// Whether a task changes the thread that asks for it, which then can serve nothing else.
    fn changes_thread(&self) -> bool {
        true
    }

    /// The directory of the host in which other processes can be its tasks, if there is one.
    fn place(&self) -> Option<&Path> {
        None
    }
}

/// Runs `work` with the calls of a new task of `target`, on a new thread if the task changes it.
///
/// # Errors
/// The error of `work`, or of starting the task.
pub fn with_task<T: Send>(
    target: &dyn Target,
    work: impl FnOnce(&mut dyn Calls) -> Result<T> + Send,
) -> Result<T> {
    if !target.changes_thread() {
        return work(&mut *target.task()?);
    }
    thread::scope(|scope| scope.spawn(|| work(&mut *target.task()?)).join())
        .unwrap_or_else(|_| Err(Failure::Failed("the task panicked".into())))
}

/// Reads the whole file at `path`.
///
/// # Errors
/// Errors of open, pread and close.
pub fn read_file(calls: &mut dyn Calls, path: &str) -> CallResult<Vec<u8>> {
    let file = calls.open(path, Open::Read)?;
    let mut contents = Vec::new();
    let mut chunk = vec![0; 64 * 1024];
    let read = loop {
        match calls.pread(file, &mut chunk, contents.len() as u64) {
            Ok(0) => break Ok(()),
            Ok(count) => contents.extend_from_slice(&chunk[..count]),
            Err(errno) => break Err(errno),
        }
    };
    calls.close(file)?;
    read.map(|()| contents)
}

/// Creates the file `path` with the permission bits `mode` and `data` in it.
///
/// # Errors
/// Errors of open, pwrite and close; `EIO` when a write stores nothing.
pub fn write_new_file(calls: &mut dyn Calls, path: &str, mode: u32, data: &[u8]) -> CallResult<()> {
    let file = calls.open(path, Open::New(mode))?;
    let written = write_all(calls, file, data, 0);
    calls.close(file)?;
    written
}

/// Writes all of `data` from `offset` on.
///
/// # Errors
/// Errors of pwrite; `EIO` when a write stores nothing.
pub fn write_all(calls: &mut dyn Calls, file: Handle, data: &[u8], offset: u64) -> CallResult<()> {
    let mut done = 0;
    while done < data.len() {
        match calls.pwrite(file, &data[done..], offset + done as u64)? {
            0 => return Err(Errno::EIO),
            count => done += count,
        }
    }
    Ok(())
}

/// Removes the directory `path` and everything below it; one that is not there is fine.
///
/// # Errors
/// Errors of reading and removing.
pub fn remove_tree(calls: &mut dyn Calls, path: &str) -> CallResult<()> {
    let mut names = Vec::new();
    match calls.read_dir(path, &mut |name, is_dir| names.push((name.to_vec(), is_dir))) {
        Err(Errno::ENOENT) => return Ok(()),
        other => other?,
    }
    for (name, is_dir) in names {
        let child = format!("{path}/{}", String::from_utf8_lossy(&name));
        match if is_dir { remove_tree(calls, &child) } else { calls.unlink(&child) } {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    remove_emptied(|| calls.rmdir(path))
}

/// How long a directory may take to become empty, and how long to wait between looks.
const EMPTY_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Removes a directory by `rmdir`, of which all names have been removed. FUSE servers and NFS clients give an
/// unlinked file that is open a hidden name instead, and may hear of its close after the program went on: so a
/// directory that is not empty yet is asked again for a while.
///
/// # Errors
/// Errors of `rmdir`.
pub fn remove_emptied(mut rmdir: impl FnMut() -> CallResult<()>) -> CallResult<()> {
    let start = Instant::now();
    loop {
        match rmdir() {
            Err(Errno::ENOTEMPTY) if start.elapsed() < EMPTY_WITHIN => thread::sleep(LOOK_EVERY),
            other => return other,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use sluice_console::private_dir::PrivateDir;

    /// Runs `body` on every target that needs no mount.
    pub(crate) fn on_every_target(body: impl Fn(&dyn Target)) {
        body(&Library::new());
        let dir = PrivateDir::below(&std::env::temp_dir()).unwrap();
        body(&HostDir::below(dir.path()).unwrap());
    }

    /// Runs `body` on every target, but leaves out host directories where their tasks cannot own POSIX locks.
    pub(crate) fn on_every_target_with_lock_owners(body: impl Fn(&dyn Target)) {
        use nix::sched::{CloneFlags, unshare};
        let allowed = thread::scope(|scope| scope.spawn(|| unshare(CloneFlags::CLONE_FILES).is_ok()).join());
        if allowed.unwrap_or(false) {
            return on_every_target(body);
        }
        // Past the test harness, so that it is seen.
        let text =
            "SKIPPED: POSIX locks on a host directory: unshare is forbidden (container: --cap-add SYS_ADMIN)";
        let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{text}\n").as_bytes());
        body(&Library::new());
    }

    #[test]
    fn every_target_answers_the_calls_alike() {
        on_every_target(|target| {
            with_task(target, |calls| {
                calls.mkdir("d")?;
                assert_eq!(calls.mkdir("d"), Err(Errno::EEXIST));
                write_new_file(calls, "d/f", 0o600, b"hello")?;
                assert_eq!(calls.open("d/f", Open::New(0o600)), Err(Errno::EEXIST));
                let meta = calls.stat("d/f")?;
                assert_eq!((meta.size, meta.nlink, meta.mode, meta.is_dir()), (5, 1, 0o100_600, false));
                assert!(calls.stat("d")?.is_dir());
                calls.rename("d/f", "d/g")?;
                assert_eq!(calls.stat("d/f"), Err(Errno::ENOENT));
                calls.symlink("g", "d/s")?;
                assert_eq!(calls.readlink("d/s")?, b"g");
                assert_eq!(read_file(calls, "d/s")?, b"hello");
                let file = calls.open("d/g", Open::ReadWrite)?;
                assert_eq!(calls.pwrite(file, b"J", 0)?, 1);
                calls.fsync(file)?;
                let same = calls.dup(file)?;
                calls.lseek(same, 4)?;
                assert_eq!(calls.write(file, b"y")?, 1, "a duplicate shares the position");
                calls.lseek(file, 0)?;
                let mut two = [0; 2];
                assert_eq!((calls.read(same, &mut two)?, &two), (2, b"Je"));
                calls.close(same)?;
                calls.close(file)?;
                assert_eq!(calls.close(file), Err(Errno::EBADF));
                assert_eq!(read_file(calls, "d/g")?, b"Jelly");
                assert_eq!(calls.open("d/new", Open::Append), Err(Errno::ENOENT));
                let (first, end) =
                    (calls.open("d/g", Open::Create(0o600))?, calls.open("d/g", Open::Append)?);
                calls.ftruncate(first, 4)?;
                assert_eq!(calls.write(end, b"o")?, 1);
                calls.fallocate(first, 0, 6)?;
                assert_eq!(read_file(calls, "d/g")?, b"Jello\0");
                calls.close(first)?;
                calls.close(end)?;
                calls.mkdir("d/sub")?;
                let mut names = Vec::new();
                calls.read_dir("d", &mut |name, is_dir| names.push((name.to_vec(), is_dir)))?;
                names.sort();
                assert_eq!(names, [(b"g".to_vec(), false), (b"s".to_vec(), false), (b"sub".to_vec(), true)]);
                assert_eq!(calls.rmdir("d"), Err(Errno::ENOTEMPTY));
                remove_tree(calls, "d")?;
                assert_eq!(calls.stat("d"), Err(Errno::ENOENT));
                Ok(())
            })
            .unwrap();
        });
    }

    #[test]
    fn a_directory_that_a_late_close_keeps_full_is_removed_when_it_is_empty() {
        let mut answers = [Err(Errno::ENOTEMPTY), Err(Errno::ENOTEMPTY), Ok(())].into_iter();
        assert_eq!(remove_emptied(|| answers.next().unwrap()), Ok(()));
        assert_eq!(remove_emptied(|| Err(Errno::EBUSY)), Err(Errno::EBUSY));
    }

    #[test]
    fn tasks_own_their_locks() {
        on_every_target_with_lock_owners(|target| {
            with_task(target, |calls| {
                write_new_file(calls, "locked", 0o600, b"")?;
                let file = calls.open("locked", Open::ReadWrite)?;
                calls.posix_lock(file, Lock::Exclusive, 0)?;
                calls.flock(file, Lock::Exclusive)?;
                with_task(target, |other| {
                    let file = other.open("locked", Open::ReadWrite)?;
                    assert_eq!(other.posix_lock(file, Lock::Exclusive, 0), Err(Errno::EAGAIN));
                    assert_eq!(other.flock(file, Lock::Exclusive), Err(Errno::EAGAIN));
                    other.close(file)?;
                    Ok(())
                })?;
                calls.posix_lock(file, Lock::Unlock, 0)?;
                calls.flock(file, Lock::Unlock)?;
                with_task(target, |other| {
                    let file = other.open("locked", Open::ReadWrite)?;
                    other.posix_lock(file, Lock::Exclusive, 0)?;
                    other.flock(file, Lock::Exclusive)?;
                    other.close(file)?;
                    Ok(())
                })?;
                calls.close(file)?;
                calls.unlink("locked")?;
                Ok(())
            })
            .unwrap();
        });
    }
}
