//! Contents: what a descriptor reads, writes and keeps.

use crate::errors::{at, on};
use crate::process::PyProcess;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sluice_vfs::{Errno, FallocateMode, Fd, Whence};
use std::path::PathBuf;

/// The most bytes that one read or write carries, as Linux has it. A caller with more calls again.
const MOST: usize = 0x7fff_f000;

#[pymethods]
impl PyProcess {
    /// At most `size` bytes from the position, or from `offset`.
    #[pyo3(signature = (fd, size, offset=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        fd: i32,
        size: usize,
        offset: Option<i64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        // Room for what the file has, not for what the caller would take.
        let room = on(py, || self.calls().fstat(Fd(fd)))?.size.min(size.min(MOST) as u64) as usize;
        let mut bytes = vec![0; room.max(size.min(4096))];
        let read = on(py, || self.read_some(Fd(fd), &mut bytes, offset))?;
        Ok(PyBytes::new(py, &bytes[..read]))
    }

    /// Writes at the position, or at `offset`; how many bytes.
    #[pyo3(signature = (fd, data, offset=None))]
    fn write(
        &self,
        py: Python<'_>,
        fd: i32,
        data: &Bound<'_, PyAny>,
        offset: Option<i64>,
    ) -> PyResult<usize> {
        let copied;
        let bytes = match data.cast::<PyBytes>() {
            // Nobody changes them meanwhile.
            Ok(bytes) => bytes.as_bytes(),
            Err(_) => {
                copied = PyBuffer::<u8>::get(data)?.to_vec(py)?;
                &copied
            }
        };
        on(py, || match offset {
            Some(offset) => self.calls().pwrite(Fd(fd), bytes, offset),
            None => self.calls().write(Fd(fd), bytes),
        })
    }

    fn lseek(&self, py: Python<'_>, fd: i32, offset: i64, whence: i32) -> PyResult<u64> {
        let whence = match whence {
            0 => Ok(Whence::Set),
            1 => Ok(Whence::Cur),
            2 => Ok(Whence::End),
            3 => Ok(Whence::Data),
            4 => Ok(Whence::Hole),
            _ => Err(Errno::EINVAL),
        };
        on(py, || self.calls().lseek(Fd(fd), offset, whence?))
    }

    fn ftruncate(&self, py: Python<'_>, fd: i32, size: i64) -> PyResult<()> {
        on(py, || self.calls().ftruncate(Fd(fd), size))
    }

    fn truncate(&self, py: Python<'_>, path: PathBuf, size: i64) -> PyResult<()> {
        at(py, &path, || self.calls().truncate(&path, size))
    }

    fn fallocate(&self, py: Python<'_>, fd: i32, mode: u32, offset: i64, len: i64) -> PyResult<()> {
        let mode = FallocateMode::from_bits(mode).ok_or(Errno::EOPNOTSUPP);
        on(py, || self.calls().fallocate(Fd(fd), mode?, offset, len))
    }

    fn fsync(&self, py: Python<'_>, fd: i32) -> PyResult<()> {
        on(py, || self.calls().fsync(Fd(fd)))
    }

    fn fdatasync(&self, py: Python<'_>, fd: i32) -> PyResult<()> {
        on(py, || self.calls().fdatasync(Fd(fd)))
    }

    /// Makes everything durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        on(py, || self.fs().sync())
    }

    /// Copies from position to position; the copy shares its pages with the original. How many bytes.
    fn copy_file_range(&self, py: Python<'_>, from: i32, to: i32, len: usize) -> PyResult<usize> {
        on(py, || self.calls().copy_file_range(Fd(from), None, Fd(to), None, len.min(MOST)))
    }
}

impl PyProcess {
    fn read_some(&self, fd: Fd, bytes: &mut [u8], offset: Option<i64>) -> Result<usize, Errno> {
        match offset {
            Some(offset) => self.calls().pread(fd, bytes, offset),
            None => self.calls().read(fd, bytes),
        }
    }
}
