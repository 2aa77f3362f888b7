//! Faults and power failures, for tests of programs.

use crate::arguments::TextIn;
use crate::fs::{SluiceFs, give};
use crate::results::{done, explain, there};
use sluice_vfs::{Errno, Fault};
use std::ffi::c_int;

/// Makes calls fail, be short or be late from now on, by a rule such as "write:ENOSPC:path=/log:nth=3". sluice_error_text() says what is
/// wrong with a rule.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fs_inject(fs: Option<&SluiceFs>, rule: TextIn) -> c_int {
    done(|| {
        let fault: Fault = rule.utf8()?.parse().map_err(|text| {
            explain(text);
            Errno::EINVAL
        })?;
        there(fs)?.0.inject(fault).map(drop)
    })
}

/// Ends all injected faults.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fs_clear_faults(fs: Option<&SluiceFs>) -> c_int {
    done(|| {
        there(fs)?.0.superblock().clear_faults();
        Ok(())
    })
}

/// Begins to record what a power failure would lose. Before the first change.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fs_track_crashes(fs: Option<&SluiceFs>) -> c_int {
    done(|| there(fs)?.0.track_crashes())
}

/// Makes a file system of what a power failure at this moment would leave. Changes that were not synchronised survive or not, by the `seed`:
/// 0 loses all. After sluice_fs_track_crashes().
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fs_crash(
    fs: Option<&SluiceFs>,
    seed: u64,
    left: Option<&mut *mut SluiceFs>,
) -> c_int {
    done(|| {
        let left = there(left)?;
        give(there(fs)?.0.crash_clone(seed)?, left);
        Ok(())
    })
}
