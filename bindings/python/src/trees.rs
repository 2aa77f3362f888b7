//! Trees of the host and tar archives, in and out.

use crate::errors::{at, io_error};
use crate::process::PyProcess;
use pyo3::prelude::*;
use sluice_trees::Transfer;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

fn carried(py: Python<'_>, carry: impl FnOnce() -> io::Result<Transfer> + Send) -> PyResult<(u64, u64)> {
    py.detach(carry).map(|transfer| (transfer.files, transfer.bytes)).map_err(io_error)
}

/// Each call gives the number of files, and of bytes.
#[pymethods]
impl PyProcess {
    fn import_dir(&self, py: Python<'_>, host: PathBuf, to: PathBuf) -> PyResult<(u64, u64)> {
        carried(py, || sluice_trees::import(self.fs(), &host, &to))
    }

    fn export_dir(&self, py: Python<'_>, from: PathBuf, host: PathBuf) -> PyResult<(u64, u64)> {
        carried(py, || sluice_trees::export(self.fs(), &from, &host))
    }

    fn import_tar(&self, py: Python<'_>, host: PathBuf, to: PathBuf) -> PyResult<(u64, u64)> {
        carried(py, || sluice_trees::import_tar(self.fs(), File::open(&host)?, &to))
    }

    fn export_tar(&self, py: Python<'_>, from: PathBuf, host: PathBuf) -> PyResult<(u64, u64)> {
        // A missing path leaves no archive behind.
        at(py, &from, || self.fs().metadata(&from))?;
        carried(py, || {
            let mut archive = BufWriter::new(File::create_new(&host)?);
            let transfer = sluice_trees::export_tar(self.fs(), &from, &mut archive)?;
            archive.flush()?;
            Ok(transfer)
        })
    }
}
