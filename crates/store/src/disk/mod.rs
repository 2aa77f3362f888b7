//! Disk: the files that a store is made of, as far as the store needs them.
//!
//! # Theory
//! A store lives in one directory of a host file system. All its I/O goes through these two traits, so that tests can record
//! each write and flush ([`crash`]), or let the n-th one fail ([`fault`]).
//!
//! # Clients must
//! Expect that a write that was not followed by [`DiskFile::sync`] may survive a crash whole, in part, or not at all, in any
//! order; that a name is durable only after [`Disk::sync_names`].

pub mod crash;
pub mod fault;
#[cfg(all(test, not(feature = "sim")))]
pub(crate) mod gate;
mod host;
mod none;
mod overlay;
mod volatile;

pub use host::{HostDisk, UNFINISHED};
pub(crate) use none::NoDisk;
pub use overlay::OverlayDisk;
pub(crate) use volatile::VolatileDisk;

use crate::encryption::Cipher;
use sluice_sync::Arc;
use std::{fmt, io};

/// A directory with the files of one store.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Opens the file `name`.
    ///
    /// # Errors
    /// `NotFound`, and the system's.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Makes the file `name`, which is not there yet, of `len` bytes with storage behind them, all zero.
    ///
    /// # Errors
    /// `AlreadyExists`, and the system's.
    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn DiskFile>>;

    /// The names of all files.
    ///
    /// # Errors
    /// The system's.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Bytes that files could still take.
    ///
    /// # Errors
    /// The system's.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Gives the file `from` the name `to`, in the place of a file that has it. The files stay open.
    ///
    /// # Errors
    /// The system's; `Unsupported` on disks without such files.
    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes the file `name`.
    ///
    /// # Errors
    /// The system's; `Unsupported` on disks without such files.
    fn remove(&self, _name: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Releases the directory, which gets no more requests.
    fn unlock(&self) {}

    /// The cipher of the encrypted store here, on a disk that was [unlocked](crate::Store::unlock). A disk on top of another disk
    /// passes its cipher on.
    fn cipher(&self) -> Option<Arc<Cipher>> {
        None
    }

    /// Makes names that were created, renamed or removed durable.
    ///
    /// # Errors
    /// The system's.
    fn sync_names(&self) -> io::Result<()>;
}

/// An open file of a [`Disk`].
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Size in bytes.
    ///
    /// # Errors
    /// The system's.
    fn size(&self) -> io::Result<u64>;

    /// Changes the size; bytes that are new are zero.
    ///
    /// # Errors
    /// The system's.
    fn set_size(&self, size: u64) -> io::Result<()>;

    /// Gives `len` bytes from `offset` on storage of their own, and the file at least that size. Present bytes stay.
    ///
    /// # Errors
    /// The system's.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Gives the storage of `len` bytes from `offset` on back. Later reads of the range are unspecified.
    ///
    /// # Errors
    /// The system's: then they keep it.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Fills `buf` from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` at the end of the file, and the system's.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Like [`read_at`](Self::read_at), but bypasses nearer copies, such as those of the host's page cache, which may hide damage
    /// or be damaged themselves.
    ///
    /// # Errors
    /// Errors of [`read_at`](Self::read_at).
    fn read_anew(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(buf, offset)
    }

    /// Writes all of `buf` at `offset`.
    ///
    /// # Errors
    /// The system's; a part may have been written.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Makes what was written durable. After an error nothing is known of what was written since the last one.
    ///
    /// # Errors
    /// The system's.
    fn sync(&self) -> io::Result<()>;

    /// Like [`write_at`](Self::write_at) and then [`sync`](Self::sync), perhaps in one step: `buf` is durable when it
    /// returns, and so are earlier writes by this method. Bytes that `write_at` wrote need not be.
    ///
    /// # Errors
    /// Errors of both.
    fn write_through(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(buf, offset)?;
        self.sync()
    }
}

/// A file that several may use. By way of a box, since only the standard library's `Arc` changes its type by itself.
pub(crate) fn shared(file: impl DiskFile + 'static) -> Arc<dyn DiskFile> {
    Arc::from(Box::new(file) as Box<dyn DiskFile>)
}
