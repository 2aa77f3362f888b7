//! Snapshots of a file system.

use crate::errors::{at, on};
use crate::process::PyProcess;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

#[pymethods]
impl PyProcess {
    /// Another file system, with the tree below `path` as it is now.
    fn snapshot(&self, py: Python<'_>, path: PathBuf) -> PyResult<PyProcess> {
        at(py, &path, || self.fs().snapshot(&path).map(|fs| PyProcess::root(&fs)))
    }

    fn take_snapshot(&self, py: Python<'_>, name: OsString) -> PyResult<()> {
        on(py, || self.fs().superblock().take_snapshot(name.as_encoded_bytes()))
    }

    fn drop_snapshot(&self, py: Python<'_>, name: OsString) -> PyResult<()> {
        on(py, || self.fs().superblock().drop_snapshot(name.as_encoded_bytes()))
    }

    fn restore_snapshot(&self, py: Python<'_>, name: OsString, path: OsString) -> PyResult<()> {
        on(py, || self.fs().superblock().restore_snapshot(name.as_encoded_bytes(), path.as_encoded_bytes()))
    }

    fn snapshots(&self, py: Python<'_>) -> PyResult<Vec<OsString>> {
        let names = on(py, || self.fs().superblock().snapshots())?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }
}
