//! The native half of the Python package `sluicefs`: file systems, and the calls of one process on them.
//!
//! The package's Python half makes of it files, paths, and what `os` and `shutil` have. Each call releases the interpreter's
//! lock while it works. Errors are `OSError` with Linux's number, so Python raises `FileNotFoundError` and its like.

mod contents;
mod errors;
mod lab;
mod locks;
mod make;
mod names;
mod process;
mod snapshots;
mod trees;

use pyo3::prelude::*;

/// The module as Python sees it.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<process::PyProcess>()
}
