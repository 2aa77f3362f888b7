//! File systems: in memory, and in a directory of the host.

use crate::errors::{on, store_error};
use crate::process::PyProcess;
use pyo3::prelude::*;
use sluice_vfs::{Fs, Options, StoreError, StoreKey, StoreOptions};
use std::path::{Path, PathBuf};

/// Limits that Python gives, each by its name.
fn options(size: Option<u64>, inodes: Option<u64>, owner: (u32, u32), mode: u32) -> Options {
    let mut options = Fs::builder().root_owner(owner.0, owner.1).root_mode(mode & 0o7777);
    (options.size_limit, options.inode_limit) = (size, inodes);
    options
}

fn key(passphrase: Option<String>) -> Result<StoreOptions, StoreError> {
    Ok(match passphrase {
        Some(words) => StoreOptions::default().key(StoreKey::passphrase(words.into_bytes())?),
        None => StoreOptions::default(),
    })
}

fn opened(
    py: Python<'_>,
    dir: &Path,
    open: impl FnOnce() -> Result<Fs, StoreError> + Send,
) -> PyResult<PyProcess> {
    py.detach(open).map(|fs| PyProcess::root(&fs)).map_err(|error| store_error(&error, dir))
}

#[pymethods]
impl PyProcess {
    /// An empty file system in memory.
    #[staticmethod]
    fn in_memory(size: Option<u64>, inodes: Option<u64>, owner: (u32, u32), mode: u32) -> PyProcess {
        PyProcess::root(&options(size, inodes, owner, mode).build())
    }

    /// An empty file system in the directory `dir` of the host.
    #[staticmethod]
    fn create_store(
        py: Python<'_>,
        dir: PathBuf,
        size: Option<u64>,
        inodes: Option<u64>,
        memory: Option<u64>,
        compress: bool,
        passphrase: Option<String>,
    ) -> PyResult<PyProcess> {
        opened(py, &dir, || {
            let mut options = options(size, inodes, (0, 0), 0o755).store(key(passphrase)?.compress(compress));
            options.memory_limit = memory;
            options.create_store(&dir)
        })
    }

    /// The file system in the directory `dir` of the host.
    #[staticmethod]
    fn open_store(
        py: Python<'_>,
        dir: PathBuf,
        size: Option<u64>,
        memory: Option<u64>,
        passphrase: Option<String>,
    ) -> PyResult<PyProcess> {
        opened(py, &dir, || {
            let mut options = options(size, None, (0, 0), 0o755).store(key(passphrase)?);
            options.memory_limit = memory;
            options.open_store(&dir)
        })
    }

    /// Makes everything durable, and ends the use of the store. Calls fail from then on.
    fn close_store(&self, py: Python<'_>) -> PyResult<()> {
        on(py, || self.fs().superblock().close())
    }
}
