//! Pointers of callers in C, as Rust reads them. `unsafe` code stands here because a raw pointer can only be believed.
//!
//! No Rust code makes a value of these types but `options.rs`: a function that C calls has them as parameters. So the caller has promised what `lib.rs`
//! says of each pointer, for as long as the call lasts; and the values do not outlive the call.

use crate::dirs::SluiceDirent;
use crate::results::EFAULT;
use sluice_vfs::Errno;
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;

/// TextIn that ends with NUL, or NULL.
#[repr(transparent)]
pub struct TextIn(*const c_char);

/// Bytes that are read, or NULL.
#[repr(transparent)]
pub struct BytesIn(*const c_void);

/// Bytes that are written, or NULL.
#[repr(transparent)]
pub struct RoomOut(*mut c_void);

/// An array of directory entries that is written, or NULL.
#[repr(transparent)]
pub struct EntriesOut(*mut SluiceDirent);

/// Numbers of users or groups, or NULL.
#[repr(transparent)]
pub struct NumbersIn(*const u32);

/// Whether a slice of `count` values of `T` at `pointer` may exist.
fn check<T>(pointer: *const T, count: usize) -> Result<(), Errno> {
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= isize::MAX as usize && pointer.is_aligned() => {}
        _ => return Err(Errno::EINVAL),
    }
    if pointer.is_null() { Err(EFAULT) } else { Ok(()) }
}

impl TextIn {
    /// A pointer that stands in the options of a caller.
    pub(crate) fn of_options(pointer: *const c_char) -> TextIn {
        TextIn(pointer)
    }

    /// The bytes before the NUL.
    pub(crate) fn bytes(&self) -> Result<&[u8], Errno> {
        if self.0.is_null() {
            return Err(EFAULT);
        }
        // SAFETY: the caller gave text that ends with NUL and stays as it is during the call; `self` does not outlive that.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// The text as a path.
    pub(crate) fn path(&self) -> Result<&Path, Errno> {
        self.bytes().map(|bytes| Path::new(OsStr::from_bytes(bytes)))
    }

    /// The text, which must be UTF-8 (`EINVAL`).
    pub(crate) fn utf8(&self) -> Result<&str, Errno> {
        str::from_utf8(self.bytes()?).map_err(|_| Errno::EINVAL)
    }
}

impl BytesIn {
    /// The `len` bytes.
    pub(crate) fn bytes(&self, len: usize) -> Result<&[u8], Errno> {
        given(self.0.cast(), len)
    }
}

impl NumbersIn {
    /// The `count` numbers.
    pub(crate) fn numbers(&self, count: usize) -> Result<&[u32], Errno> {
        given(self.0, count)
    }
}

/// The `count` bytes or numbers of the caller.
fn given<'call, T: Plain>(pointer: *const T, count: usize) -> Result<&'call [T], Errno> {
    if count == 0 {
        return Ok(&[]);
    }
    check(pointer, count)?;
    // SAFETY: the caller gave `count` readable values, which nobody changes during the call, and each pattern of bits is a value of
    // a `Plain` type. `check` refused NULL, unaligned addresses and sizes that no slice has. Callers bound the lifetime by `self`.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// Room of the caller for `count` bytes or directory entries.
fn room<'call, T: Plain>(pointer: *mut T, count: usize) -> Result<&'call mut [T], Errno> {
    if count == 0 {
        return Ok(&mut []);
    }
    check(pointer, count)?;
    // SAFETY: the caller gave room for `count` values that nobody else uses during the call, and each pattern of bits is a value of
    // a `Plain` type. `check` refused NULL, unaligned addresses and sizes that no slice has. Callers bound the lifetime by `self`.
    Ok(unsafe { slice::from_raw_parts_mut(pointer, count) })
}

/// Types that consist of integers.
trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u32 {}
impl Plain for SluiceDirent {}

impl RoomOut {
    /// Room for `len` bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&mut [u8], Errno> {
        room(self.0.cast(), len)
    }
}

impl EntriesOut {
    /// Room for `count` entries.
    pub(crate) fn entries(&mut self, count: usize) -> Result<&mut [SluiceDirent], Errno> {
        room(self.0, count)
    }
}
