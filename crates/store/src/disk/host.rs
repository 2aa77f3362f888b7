//! HostDisk: a directory of the host's file system.
//!
//! # Theory
//! Files are opened relative to the descriptor of the directory, which carries the lock: a directory that is moved or replaced while
//! it is used stays the one that was locked. Nobody but its owner may read a file, whatever the umask.
//!
//! Data that must be durable at once bypasses the page cache (`O_DIRECT`, `RWF_DSYNC`), where the file system can do
//! that: one system call, no page to dirty and to look for again. Nothing of such a place is written by way of the page
//! cache as well.

use super::{Disk, DiskFile};
use crate::StoreError;
use crate::spare::SpareMemory;
use rustix::fs::{
    Advice, AtFlags, Dir, FallocateFlags, FlockOperation, Mode, OFlags, Statx, StatxFlags, fadvise,
    fallocate, flock, fstatvfs, openat, statx,
};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use sluice_sync::{Arc, LockClass, Mutex, OnceLock};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

static FLUSH: LockClass = LockClass::new("store.disk.flush");

/// A store's directory has at most some hundred files of this size written at once.
const ZEROS: usize = 1 << 20;

/// The file that says that a store is being made: everything beside it is a part of that store, and may be removed.
pub const UNFINISHED: &str = "mkfs-unfinished";

/// A directory of the host, locked for one user as long as this lives.
#[derive(Debug)]
pub struct HostDisk {
    /// It carries the lock, and leads to the files.
    directory: File,
    writes: bool,
}

/// Where a buffer, and its place in the file, begin and end if it goes past the page cache: a multiple for every device.
const ALIGNED: usize = 4096;

#[derive(Debug)]
struct HostFile {
    file: File,
    /// Whether a flush has failed. Linux reports a lost write to one flush of a descriptor, so all later flushes fail, too. Held
    /// across each flush: another thread's flush may get the error of this thread's write. *Protected by its mutex.*
    has_lost: Mutex<bool>,
    /// The file once more, past the page cache; none where that cannot be. *Immutable once set.*
    direct: OnceLock<Option<File>>,
    /// Memory of earlier writes past the page cache, for the next ones.
    spare: SpareMemory,
}

impl HostFile {
    fn new(file: File) -> HostFile {
        HostFile {
            file,
            has_lost: Mutex::with_class(&FLUSH, false),
            direct: OnceLock::new(),
            spare: SpareMemory::new(),
        }
    }

    /// `buf` at an address that a device accepts, in spare memory, and where in it that begins.
    fn aligned(&self, buf: &[u8]) -> (Vec<u8>, usize) {
        let mut space = self.spare.take();
        space.reserve(buf.len() + ALIGNED);
        let start = space.as_ptr().align_offset(ALIGNED);
        space.resize(start, 0);
        space.extend_from_slice(buf);
        (space, start)
    }

    /// The attributes that are `asked` for, and no times: a file system that was asked for the times of a file gives each later write new
    /// ones (Linux 6.13 and later), and a flush then writes the inode, too.
    fn told(&self, asked: StatxFlags) -> io::Result<Statx> {
        Ok(statx(&self.file, "", AtFlags::EMPTY_PATH, asked)?)
    }

    fn direct(&self) -> Option<&File> {
        let open = || {
            let mut options = OpenOptions::new();
            options.write(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
            // That file, whatever has its name by now.
            options.open(format!("/proc/self/fd/{}", self.file.as_raw_fd())).ok()
        };
        self.direct.get_or_init(open).as_ref()
    }
}

impl HostDisk {
    /// Takes the directory `dir`, which exists, for one store.
    ///
    /// # Errors
    /// [`StoreError::InUse`] when this or another process has the directory; errors of the system.
    pub fn lock(dir: &Path) -> Result<HostDisk, StoreError> {
        HostDisk::locked(dir, FlockOperation::NonBlockingLockExclusive)
    }

    /// Takes `dir` for reading, beside other readers: the directory cannot be changed.
    ///
    /// # Errors
    /// Errors of [`lock`](Self::lock).
    pub fn lock_read_only(dir: &Path) -> Result<HostDisk, StoreError> {
        HostDisk::locked(dir, FlockOperation::NonBlockingLockShared)
    }

    /// The directory `dir`, also while another process uses it, to look at what never changes.
    ///
    /// # Errors
    /// The system's.
    pub fn unlocked(dir: &Path) -> Result<HostDisk, StoreError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(dir, flags, Mode::empty()).map(File::from).map_err(io::Error::from);
        let directory = opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StoreError::NotAStore,
            _ => StoreError::Io("open the store's directory", error),
        })?;
        Ok(HostDisk { directory, writes: false })
    }

    fn locked(dir: &Path, operation: FlockOperation) -> Result<HostDisk, StoreError> {
        let HostDisk { directory, .. } = HostDisk::unlocked(dir)?;
        let writes = matches!(operation, FlockOperation::NonBlockingLockExclusive);
        let mut holders = (0..HOLDER_TRIES).map(|_| holder(&directory));
        loop {
            match flock(&directory, operation) {
                Ok(()) => return Ok(HostDisk { directory, writes }),
                Err(Errno::WOULDBLOCK) => match holders.next() {
                    // It may have let go in between.
                    Some(None) => {}
                    held => return Err(StoreError::InUse(held.flatten())),
                },
                Err(error) => return Err(StoreError::Io("lock the store", error.into())),
            }
        }
    }

    fn open_at(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let access = if self.writes { OFlags::RDWR } else { OFlags::RDONLY };
        let mode = Mode::RUSR | Mode::WUSR;
        // Nonblocking: a fifo in the file's place would wait for its other end.
        let flags = access | flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let irregular =
            || io::Error::new(io::ErrorKind::InvalidData, format!("`{name}` is not a regular file"));
        match openat(&self.directory, name, flags, mode).map(File::from) {
            Ok(file) if file.metadata()?.is_file() => Ok(file),
            Ok(_) | Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => Err(irregular()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether users other than the owner of the directory `dir` have any right to it.
    pub fn is_loose(dir: &Path) -> bool {
        std::fs::metadata(dir).is_ok_and(|about| about.mode() & 0o077 != 0)
    }

    /// Lets nobody but the directory's owner use the directory.
    ///
    /// # Errors
    /// The system's.
    pub fn make_private(&self) -> io::Result<()> {
        self.directory.set_permissions(Permissions::from_mode(0o700))
    }

    /// Refuses a directory in which the making of a store did not end.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`].
    pub fn refuse_unfinished(&self) -> Result<(), StoreError> {
        if self.open(UNFINISHED).is_ok() { Err(StoreError::NotAStore) } else { Ok(()) }
    }
}

/// How often the holder is looked for: a holder in another pid namespace is not shown.
const HOLDER_TRIES: usize = 3;

/// The process that has locked `file`, as far as the system tells.
fn holder(file: &File) -> Option<u32> {
    // "1: FLOCK  ADVISORY  WRITE 1234 fe:01:5678 0 EOF"
    let inode = file.metadata().ok()?.ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let mut holders = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ours = words.get(1) == Some(&"FLOCK") && words.get(5)?.rsplit(':').next() == Some(&*inode);
        if ours { words.get(4)?.parse().ok() } else { None }
    });
    holders.next()
}

/// Does `flush`, unless one has failed before.
fn flush_once(has_lost: &Mutex<bool>, flush: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let mut has_lost = has_lost.lock();
    if *has_lost {
        return Err(io::Error::other(
            "an earlier flush of this file failed, and a retry cannot tell what was lost",
        ));
    }
    flush().inspect_err(|_| *has_lost = true)
}

impl Disk for HostDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(super::shared(HostFile::new(self.open_at(name, OFlags::empty())?)))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.open_at(name, OFlags::CREATE | OFlags::EXCL)?;
        // Whatever the umask took away.
        file.set_permissions(Permissions::from_mode(0o600))?;
        if len > 0 {
            match fallocate(&file, FallocateFlags::empty(), 0, len) {
                Ok(()) | Err(Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
            // A flush of blocks that were never written has to record that they now are: write them once here.
            let zeros = vec![0; ZEROS.min(len as usize)];
            let mut at = 0;
            while at < len {
                let part = &zeros[..zeros.len().min((len - at) as usize)];
                file.write_all_at(part, at)?;
                at += part.len() as u64;
            }
            file.sync_all()?;
        }
        Ok(super::shared(HostFile::new(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.directory, from, &self.directory, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())?)
    }

    fn unlock(&self) {
        // It goes with the file otherwise.
        let _ = flock(&self.directory, FlockOperation::Unlock);
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let names = Dir::read_from(&self.directory)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<Vec<String>>>()?;
        Ok(names.into_iter().filter(|name| name != "." && name != "..").collect())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let told = fstatvfs(&self.directory)?;
        Ok(told.f_bavail.saturating_mul(told.f_frsize))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.directory.sync_all()
    }
}

impl DiskFile for HostFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.told(StatxFlags::SIZE)?.stx_size)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match fallocate(&self.file, FallocateFlags::empty(), offset, len) {
            Err(Errno::OPNOTSUPP) => {
                let end = offset + len;
                if self.size()? < end { self.set_size(end) } else { Ok(()) }
            }
            done => Ok(done?),
        }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)?)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn read_anew(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        // Pages that are dirty stay, and so do all if the host does not know the advice: then its copies are read.
        let _ = fadvise(&self.file, offset, NonZeroU64::new(buf.len() as u64), Advice::DontNeed);
        self.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        flush_once(&self.has_lost, || self.file.sync_data())
    }

    fn write_through(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if self.told(StatxFlags::NLINK)?.stx_nlink == 0 {
            return Err(io::Error::other("the file was deleted while the store was used"));
        }
        let through_the_cache = || {
            self.write_at(buf, offset)?;
            self.sync()
        };
        let fits = buf.len().is_multiple_of(ALIGNED) && offset.is_multiple_of(ALIGNED as u64);
        let Some(direct) = self.direct().filter(|_| fits) else { return through_the_cache() };
        let (space, start) = self.aligned(buf);
        let aligned = &space[start..];
        let mut written = 0;
        while written < aligned.len() {
            let rest = [IoSlice::new(&aligned[written..])];
            match pwritev2(direct, &rest, offset + written as u64, ReadWriteFlags::DSYNC) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                // The device wants a larger alignment, or has no direct I/O.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => return through_the_cache(),
                Err(error) => return Err(error.into()),
            }
        }
        self.spare.keep(space);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_write_is_reported_to_every_flush_and_not_to_one_alone() {
        // The kernel's rule: an error is told once for each descriptor.
        let mut told = vec![Ok(()), Err(io::ErrorKind::StorageFull.into())];
        let mut flush = || told.pop().unwrap_or(Ok(()));
        let has_lost = Mutex::new(false);
        assert!(flush_once(&has_lost, &mut flush).is_err());
        let again = flush_once(&has_lost, &mut flush).expect_err("the device has it, or not").to_string();
        assert_eq!(again, "an earlier flush of this file failed, and a retry cannot tell what was lost");
    }

    #[test]
    fn a_directory_that_somebody_replaced_by_a_link_is_made_private_itself() {
        use std::os::unix::fs::symlink;
        let base = std::env::temp_dir().join(format!("sluice-swapped-{}", std::process::id()));
        let path = |name: &str| base.join(name);
        let mode = |name: &str| std::fs::metadata(path(name)).expect("it is there").mode() & 0o777;
        for name in ["victim", "store"] {
            std::fs::create_dir_all(path(name)).expect("a fresh directory");
            std::fs::set_permissions(path(name), Permissions::from_mode(0o755)).expect("it is ours");
        }
        let disk = HostDisk::lock(&path("store")).expect("nobody has it");
        std::fs::rename(path("store"), path("moved")).expect("it is ours");
        symlink(path("victim"), path("store")).expect("the name is free");
        disk.make_private().expect("it is ours");
        assert_eq!((mode("victim"), mode("moved")), (0o755, 0o700));
        std::fs::remove_dir_all(&base).expect("it is ours");
    }

    #[test]
    fn what_is_written_through_is_there_wherever_it_begins_and_ends() {
        let dir = std::env::temp_dir().join(format!("sluice-host-disk-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a fresh directory");
        let disk = HostDisk::lock(&dir).expect("nobody has it");
        let file = disk.create("log", 8 * ALIGNED as u64).expect("room");
        let mut expected = vec![0; 8 * ALIGNED];
        let places = [(0, ALIGNED), (2 * ALIGNED, 3 * ALIGNED), (5, 7), (ALIGNED - 1, 2), (ALIGNED, ALIGNED)];
        for (byte, (at, len)) in (1..).zip(places) {
            file.write_through(&vec![byte; len], at as u64).expect("room");
            expected[at..at + len].fill(byte);
            let mut found = vec![0; expected.len()];
            file.read_at(&mut found, 0).expect("it is as long");
            assert!(found == expected, "{len} bytes at {at}");
        }
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
