//! Faults and crashes, for tests of programs.

use crate::errors::on;
use crate::process::PyProcess;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sluice_vfs::{Fault, FaultId};
use std::path::PathBuf;

#[pymethods]
impl PyProcess {
    fn track_crashes(&self, py: Python<'_>) -> PyResult<()> {
        on(py, || self.fs().track_crashes())
    }

    fn crash_clone(&self, py: Python<'_>, seed: u64) -> PyResult<PyProcess> {
        on(py, || self.fs().crash_clone(seed).map(|fs| PyProcess::root(&fs)))
    }

    /// Path, bytes of contents, whether its name, and whether attributes may be lost.
    fn unsynced(&self, py: Python<'_>) -> PyResult<Vec<(PathBuf, u64, bool, bool)>> {
        let unsynced = on(py, || self.fs().unsynced())?;
        Ok(unsynced.into_iter().map(|lost| (lost.path, lost.bytes, lost.name, lost.attributes)).collect())
    }

    fn inject(&self, py: Python<'_>, rule: &str) -> PyResult<u64> {
        let fault: Fault = rule.parse().map_err(PyValueError::new_err::<String>)?;
        on(py, || self.fs().inject(fault).map(|id| id.0))
    }

    fn clear_fault(&self, id: u64) -> bool {
        self.fs().superblock().clear_fault(FaultId(id))
    }

    fn clear_faults(&self) {
        self.fs().superblock().clear_faults();
    }

    /// The inconsistencies of the file system, a line each.
    fn check(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.fs().check().findings.iter().map(ToString::to_string).collect())
    }
}
