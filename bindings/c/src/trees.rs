//! Trees of the host, in and out.

use crate::arguments::TextIn;
use crate::fs::SluiceFs;
use crate::results::{done, explain, there};
use sluice_trees::Transfer;
use sluice_vfs::{Errno, Fs};
use std::ffi::c_int;
use std::io;
use std::path::Path;

fn carried(
    fs: Option<&SluiceFs>,
    [from, to]: [TextIn; 2],
    carry: impl FnOnce(&Fs, &Path, &Path) -> io::Result<Transfer>,
) -> c_int {
    done(|| {
        carry(&there(fs)?.0, from.path()?, to.path()?).map(drop).map_err(|error| {
            explain(error.to_string());
            Errno::from(error)
        })
    })
}

/// Copies the directory `host` of the host, with all below it, to the directory `to`. sluice_error_text() names the file that failed.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fs_import(fs: Option<&SluiceFs>, host: TextIn, to: TextIn) -> c_int {
    carried(fs, [host, to], |fs, host, to| sluice_trees::import(fs, host, to))
}

/// Copies the tree at `from` to the directory `host` of the host. sluice_error_text() names the file that failed.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fs_export(fs: Option<&SluiceFs>, from: TextIn, host: TextIn) -> c_int {
    carried(fs, [from, host], |fs, from, host| sluice_trees::export(fs, from, host))
}
