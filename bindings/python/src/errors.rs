//! Errors: an `Errno` as the `OSError` that Python has for it.

use pyo3::exceptions::PyOSError;
use pyo3::{PyErr, PyResult, Python};
use sluice_vfs::{Errno, StoreError};
use std::io;
use std::path::Path;

/// Runs `call` without the interpreter's lock. Its error names `path`.
pub(crate) fn at<T: Send>(
    py: Python<'_>,
    path: &Path,
    call: impl FnOnce() -> Result<T, Errno> + Send,
) -> PyResult<T> {
    py.detach(call)
        .map_err(|errno| PyOSError::new_err((errno.raw(), errno.text(), path.as_os_str().to_owned())))
}

/// Runs `call`, which has two paths, without the interpreter's lock. Its error names both.
pub(crate) fn between<T: Send>(
    py: Python<'_>,
    from: &Path,
    to: &Path,
    call: impl FnOnce() -> Result<T, Errno> + Send,
) -> PyResult<T> {
    py.detach(call).map_err(|errno| {
        let [from, to] = [from, to].map(|path| path.as_os_str().to_owned());
        PyOSError::new_err((errno.raw(), errno.text(), from, None::<i32>, to))
    })
}

/// Runs `call` on a descriptor, or on the file system, without the interpreter's lock.
pub(crate) fn on<T: Send>(py: Python<'_>, call: impl FnOnce() -> Result<T, Errno> + Send) -> PyResult<T> {
    py.detach(call).map_err(os_error)
}

/// The `OSError` of an error without a path.
pub(crate) fn os_error(errno: Errno) -> PyErr {
    PyOSError::new_err((errno.raw(), errno.text()))
}

/// The `OSError` of a store in `dir` that cannot be made or opened.
pub(crate) fn store_error(error: &StoreError, dir: &Path) -> PyErr {
    PyOSError::new_err((error.errno(), error.to_string(), dir.as_os_str().to_owned()))
}

/// The `OSError` of an import or export. The text of such an error names the file.
pub(crate) fn io_error(error: io::Error) -> PyErr {
    let text = error.to_string();
    PyOSError::new_err((Errno::from(error).raw(), text))
}
