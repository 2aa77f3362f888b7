//! File systems: in memory, and in a directory of the host.

use crate::arguments::TextIn;
use crate::options::OptionsIn;
use crate::results::{count, done, store_error, there};
use sluice_vfs::{Errno, Fs, StoreError};
use std::ffi::{c_char, c_int};

/// A file system.
pub struct SluiceFs(pub(crate) Fs);

/// Puts a new handle of `fs` to `out`.
pub(crate) fn give(fs: Fs, out: &mut *mut SluiceFs) {
    *out = Box::into_raw(Box::new(SluiceFs(fs)));
}

/// The release of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn sluice_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Makes an empty file system in memory. `options` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fs_new(options: OptionsIn, fs: Option<&mut *mut SluiceFs>) -> c_int {
    done(|| {
        let fs = there(fs)?;
        give(options.read()?.build(), fs);
        Ok(())
    })
}

/// Makes an empty file system that is kept in the directory `dir` of the host, which is missing or empty. `options` may be NULL.
/// sluice_error_text() says why it failed.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fs_create_store(
    dir: TextIn,
    options: OptionsIn,
    fs: Option<&mut *mut SluiceFs>,
) -> c_int {
    in_store(dir, options, fs, |options, dir| options.create_store(dir))
}

/// Opens the file system that is kept in the directory `dir` of the host. `options` may be NULL. sluice_error_text() says why it failed.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fs_open_store(
    dir: TextIn,
    options: OptionsIn,
    fs: Option<&mut *mut SluiceFs>,
) -> c_int {
    in_store(dir, options, fs, |options, dir| options.open_store(dir))
}

fn in_store(
    dir: TextIn,
    options: OptionsIn,
    fs: Option<&mut *mut SluiceFs>,
    get: impl FnOnce(sluice_vfs::Options, &std::path::Path) -> Result<Fs, StoreError>,
) -> c_int {
    done(|| {
        let fs = there(fs)?;
        give(get(options.read()?, dir.path()?).map_err(|error| store_error(&error))?, fs);
        Ok(())
    })
}

/// Makes every change durable, ends the use of the store, and frees the handle, also where it fails. Processes that remain
/// change nothing any more (-EROFS). A file system in memory ends with its last handle and process. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fs_close(fs: Option<Box<SluiceFs>>) -> c_int {
    done(|| match fs {
        Some(fs) if fs.0.superblock().is_durable() => fs.0.superblock().close(),
        _ => Ok(()),
    })
}

/// Makes every change durable.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fs_sync(fs: Option<&SluiceFs>) -> c_int {
    done(|| there(fs)?.0.sync())
}

/// Makes a file system in memory of the tree below `path` as it is now. Both share contents until one side writes.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fs_snapshot(
    fs: Option<&SluiceFs>,
    path: TextIn,
    snapshot: Option<&mut *mut SluiceFs>,
) -> c_int {
    done(|| {
        let snapshot = there(snapshot)?;
        give(there(fs)?.0.snapshot(path.path()?)?, snapshot);
        Ok(())
    })
}

/// Looks for inconsistencies of the whole tree. Gives their number, 0 being right.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fs_check(fs: Option<&SluiceFs>) -> isize {
    count(|| Ok::<_, Errno>(there(fs)?.0.check().findings.len()))
}
