//! HostDisk: a directory of the host's file system.

use super::{Disk, DiskFile};
use crate::StoreError;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, fstatvfs};
use sluice_sync::Arc;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A store's directory has at most some hundred files of this size written at once.
const ZEROS: usize = 1 << 20;

/// A directory of the host, locked for one user as long as this lives.
#[derive(Debug)]
pub struct HostDisk {
    dir: PathBuf,
    /// It carries the lock.
    directory: File,
    writes: bool,
}

#[derive(Debug)]
struct HostFile(File);

impl HostDisk {
    /// Takes the directory `dir`, which exists, for one store.
    ///
    /// # Errors
    /// [`StoreError::InUse`] when another has it, in this process or another; the system's.
    pub fn lock(dir: &Path) -> Result<HostDisk, StoreError> {
        HostDisk::locked(dir, FlockOperation::NonBlockingLockExclusive)
    }

    /// Takes `dir` to look at only, beside others who do: nothing in it can be changed.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn lock_read_only(dir: &Path) -> Result<HostDisk, StoreError> {
        HostDisk::locked(dir, FlockOperation::NonBlockingLockShared)
    }

    /// The directory `dir`, also while another process uses it, to look at what never changes.
    ///
    /// # Errors
    /// The system's.
    pub fn unlocked(dir: &Path) -> Result<HostDisk, StoreError> {
        let directory = File::open(dir).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StoreError::NotAStore,
            _ => StoreError::Io("open the store's directory", error),
        })?;
        // Its user may go to another directory before it opens a file.
        let dir = dir.canonicalize().map_err(StoreError::io("find the store's directory"))?;
        Ok(HostDisk { dir, directory, writes: false })
    }

    fn locked(dir: &Path, operation: FlockOperation) -> Result<HostDisk, StoreError> {
        let HostDisk { dir, directory, .. } = HostDisk::unlocked(dir)?;
        let writes = matches!(operation, FlockOperation::NonBlockingLockExclusive);
        let mut holders = (0..HOLDER_TRIES).map(|_| holder(&directory));
        loop {
            match flock(&directory, operation) {
                Ok(()) => return Ok(HostDisk { dir, directory, writes }),
                Err(rustix::io::Errno::WOULDBLOCK) => match holders.next() {
                    // It may have let go in between.
                    Some(None) => {}
                    held => return Err(StoreError::InUse(held.flatten())),
                },
                Err(error) => return Err(StoreError::Io("lock the store", error.into())),
            }
        }
    }

    fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(true).write(self.writes);
        options
    }
}

/// How often it is looked for: one of another pid namespace is not shown.
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

impl Disk for HostDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.options().open(self.dir.join(name))?;
        Ok(super::shared(HostFile(file)))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.options().create_new(self.writes).open(self.dir.join(name))?;
        if len > 0 {
            match fallocate(&file, FallocateFlags::empty(), 0, len) {
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
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
        Ok(super::shared(HostFile(file)))
    }

    fn unlock(&self) {
        // It goes with the file otherwise.
        let _ = flock(&self.directory, FlockOperation::Unlock);
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(&self.dir)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
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
        Ok(self.0.metadata()?.len())
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.0.set_len(size)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match fallocate(&self.0, FallocateFlags::empty(), offset, len) {
            Err(rustix::io::Errno::OPNOTSUPP) => {
                let end = offset + len;
                if self.size()? < end { self.set_size(end) } else { Ok(()) }
            }
            done => Ok(done?),
        }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(fallocate(&self.0, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)?)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
