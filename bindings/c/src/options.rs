//! Options of a file system. `unsafe` code stands here because programs built against an older header give a shorter structure.

use crate::arguments::TextIn;
use crate::results::store_error;
use sluice_vfs::{Errno, Fs, Options, StoreKey, StoreOptions};
use std::ffi::c_char;
use std::mem::{offset_of, size_of};
use std::{ptr, slice};

/// Limits and choices of a new file system, or of one that is opened. Set all to 0, then `struct_size` to `sizeof(struct sluice_options)`.
#[repr(C)]
pub struct SluiceOptions {
    /// The size of this structure. A later library takes what a program does not know of for 0.
    pub struct_size: usize,
    /// The most bytes of contents; 0 for no limit but the memory, or the disk.
    pub size_limit: u64,
    /// The most files; 0 for no limit.
    pub inode_limit: u64,
    /// The most bytes of memory that a store keeps files in; 0 for the default.
    pub memory_limit: u64,
    /// The owner of a new root directory.
    pub root_uid: u32,
    /// The group of a new root directory.
    pub root_gid: u32,
    /// The mode of a new root directory; 0 for 0755.
    pub root_mode: u32,
    /// Not 0: a new store is compressed.
    pub compress: u32,
    /// The words that encrypt a new store, or open an encrypted one; NULL for none.
    pub passphrase: *const c_char,
}

/// Options, or NULL for the defaults.
#[repr(transparent)]
pub struct OptionsIn(*const SluiceOptions);

impl OptionsIn {
    /// The options, the unknown part of a longer structure being 0 (`E2BIG`).
    pub(crate) fn read(&self) -> Result<Options, Errno> {
        let defaults = Fs::builder();
        if self.0.is_null() {
            return Ok(defaults);
        }
        if !self.0.is_aligned() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the pointer is valid and aligned, and every such structure begins with its size.
        let size = unsafe { self.0.cast::<usize>().read() };
        if !(offset_of!(SluiceOptions, size_limit)..=4096).contains(&size) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller gave a structure of `size` bytes, which stays as it is during the call.
        let bytes = unsafe { slice::from_raw_parts(self.0.cast::<u8>(), size) };
        let (known, unknown) = bytes.split_at(size.min(size_of::<SluiceOptions>()));
        if unknown.iter().any(|byte| *byte != 0) {
            return Err(Errno::E2BIG);
        }
        let mut given = SluiceOptions {
            struct_size: size,
            size_limit: 0,
            inode_limit: 0,
            memory_limit: 0,
            root_uid: 0,
            root_gid: 0,
            root_mode: 0,
            compress: 0,
            passphrase: ptr::null(),
        };
        // SAFETY: `known` is not longer than `given`, and each pattern of bits is a value of its integers and of its raw pointer.
        unsafe { ptr::copy_nonoverlapping(known.as_ptr(), (&raw mut given).cast::<u8>(), known.len()) };
        given.options(defaults)
    }
}

impl SluiceOptions {
    fn options(&self, defaults: Options) -> Result<Options, Errno> {
        let limit = |number: u64| (number != 0).then_some(number);
        let mode = if self.root_mode == 0 { 0o755 } else { self.root_mode };
        if mode & !0o7777 != 0 {
            return Err(Errno::EINVAL);
        }
        let mut store = StoreOptions::default();
        if !self.passphrase.is_null() {
            let words = TextIn::of_options(self.passphrase).bytes()?.to_vec();
            store = store.key(StoreKey::passphrase(words).map_err(|error| store_error(&error))?);
        }
        let mut options = defaults
            .root_owner(self.root_uid, self.root_gid)
            .root_mode(mode)
            .store(store.compress(self.compress != 0));
        options.size_limit = limit(self.size_limit);
        options.inode_limit = limit(self.inode_limit);
        options.memory_limit = limit(self.memory_limit);
        Ok(options)
    }
}
