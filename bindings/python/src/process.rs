//! Process: the class that Python's half works on, and its descriptors.

use crate::errors::{at, on};
use pyo3::prelude::*;
use sluice_vfs::{Cred, Errno, Fd, OpenFlags};
use std::path::PathBuf;
use std::sync::Arc;

/// A process on a file system: credentials, a working directory, a umask, and descriptors.
#[pyclass(frozen, name = "Process", module = "sluicefs._native")]
pub(crate) struct PyProcess(Arc<sluice_vfs::Process>);

impl PyProcess {
    /// A process of root on `fs`.
    pub(crate) fn root(fs: &sluice_vfs::Fs) -> PyProcess {
        PyProcess(Arc::new(fs.process(Cred::root())))
    }

    /// The library's process.
    pub(crate) fn calls(&self) -> &Arc<sluice_vfs::Process> {
        &self.0
    }

    /// The file system.
    pub(crate) fn fs(&self) -> &sluice_vfs::Fs {
        self.0.fs()
    }
}

#[pymethods]
impl PyProcess {
    /// Another process on the same file system.
    fn as_user(&self, uid: u32, gid: u32, groups: Vec<u32>) -> PyProcess {
        let cred = if uid == 0 { Cred { gid, ..Cred::root() } } else { Cred::with_groups(uid, gid, &groups) };
        PyProcess(Arc::new(self.fs().process(cred)))
    }

    fn umask(&self, mask: u32) -> u32 {
        self.0.umask(mask)
    }

    fn getcwd(&self, py: Python<'_>) -> PyResult<PathBuf> {
        on(py, || self.0.getcwd())
    }

    fn chdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        at(py, &path, || self.0.chdir(&path))
    }

    fn open(&self, py: Python<'_>, path: PathBuf, flags: u32, mode: u32) -> PyResult<i32> {
        let flags = OpenFlags::from_bits(flags).ok_or(Errno::EINVAL);
        at(py, &path, || Ok(self.0.open(&path, flags?, mode)?.0))
    }

    fn close(&self, py: Python<'_>, fd: i32) -> PyResult<()> {
        on(py, || self.0.close(Fd(fd)))
    }

    fn dup(&self, py: Python<'_>, fd: i32) -> PyResult<i32> {
        on(py, || Ok(self.0.dup(Fd(fd))?.0))
    }
}
