//! Results: what a call gives to C.

use sluice_vfs::{Errno, StoreError};
use std::cell::RefCell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::arguments::RoomOut;

/// A pointer is NULL. Calls in Rust have no such error.
pub(crate) const EFAULT: Errno = Errno::from_raw(14);

thread_local! {
    /// Why this thread's last call failed, where a number does not say it.
    static ERROR_TEXT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `call`. Its error becomes a negative number, and a panic `-EIO`.
pub(crate) fn count(call: impl FnOnce() -> Result<usize, Errno>) -> isize {
    // A panic inside a change fails the store, or the lock that was held, for all later calls; this layer has no state of its own.
    match catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno::EIO)) {
        Ok(count) => isize::try_from(count).unwrap_or(isize::MAX),
        Err(errno) => -(errno.raw() as isize),
    }
}

/// Runs `call`, which gives a small number: a descriptor, or 0.
pub(crate) fn number(call: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    count(|| call().map(|number| number.max(0) as usize)) as c_int
}

/// Runs `call`, which gives nothing.
pub(crate) fn done(call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    number(|| call().map(|()| 0))
}

/// The value behind a pointer, or `EFAULT`.
pub(crate) fn there<T>(pointer: Option<T>) -> Result<T, Errno> {
    pointer.ok_or(EFAULT)
}

/// Keeps `text` for [`sluice_error_text`].
pub(crate) fn explain(text: String) {
    ERROR_TEXT.with(|kept| *kept.borrow_mut() = text);
}

/// The number of a store's error, whose text is kept.
pub(crate) fn store_error(error: &StoreError) -> Errno {
    explain(error.to_string());
    Errno::from_raw(error.errno())
}

/// Copies `text` to `room` as far as it fits, with a NUL behind it, and gives its whole length.
pub(crate) fn copy_text(text: &[u8], room: &mut [u8]) -> usize {
    if let Some(last) = room.len().checked_sub(1) {
        let fits = text.len().min(last);
        room[..fits].copy_from_slice(&text[..fits]);
        room[fits] = 0;
    }
    text.len()
}

/// Why this thread's last call failed that made or opened a store, set a rule of faults, imported or exported: one line for a person.
/// It goes to `buffer`, ends with NUL, and is cut off after `size` bytes. Gives its whole length; 0 without such a failure.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_error_text(mut buffer: RoomOut, size: usize) -> isize {
    count(|| {
        let room = buffer.bytes(size)?;
        Ok(ERROR_TEXT.with(|text| copy_text(text.borrow().as_bytes(), room)))
    })
}
