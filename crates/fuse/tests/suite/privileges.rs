//! Set-ID bits and file capabilities, for every call that changes bytes, size or owner: on a mount what tmpfs does.

use crate::harness::{Fixture, LOCK_MODES, compiled, skipped};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory of the host's tmpfs, removed when dropped.
struct OnTmpfs(PathBuf);

impl OnTmpfs {
    fn new() -> Option<OnTmpfs> {
        const TMPFS_MAGIC: u32 = 0x0102_1994;
        let statfs = rustix::fs::statfs("/dev/shm").ok()?;
        let path = PathBuf::from(format!("/dev/shm/sluice-privileges-{}", std::process::id()));
        (statfs.f_type as u32 == TMPFS_MAGIC && fs::create_dir(&path).is_ok()).then_some(OnTmpfs(path))
    }
}

impl Drop for OnTmpfs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The result of each call in `dir`, a line each.
fn outcomes(program: &Path, dir: &Path) -> Vec<String> {
    let output = Command::new(program).arg(dir).output().expect("the compiled program runs");
    let text = String::from_utf8(output.stdout).expect("it prints ASCII");
    assert!(output.status.success(), "{text}");
    text.lines().map(str::to_owned).collect()
}

/// Whether the kernel's FUSE client leaves the server no choice in `call`.
///
/// A chown that changes neither owner nor group, by a caller that is not the owner, comes as a request to set nothing. So does
/// a write by the same caller to the same file. tmpfs answers EPERM; we change nothing and say that all is well. A capability
/// is taken away by the kernel itself.
fn is_the_kernels(call: &str) -> bool {
    let calls = ["chown(-1, -1) of", "fchown(-1, -1) of"];
    let callers = ["by member:", "by member by login:", "by stranger:"];
    calls.iter().any(|name| call.starts_with(name)) && callers.iter().any(|name| call.contains(name))
}

#[test]
fn what_calls_do_to_set_id_bits_and_capabilities_is_what_tmpfs_does() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root may become others");
    }
    let Some(tmpfs) = OnTmpfs::new() else { return skipped("/dev/shm is no tmpfs that we may write to") };
    let Some(program) = compiled("privileges") else { return };
    let expected = outcomes(&program, &tmpfs.0);
    for mode in LOCK_MODES {
        let Some(fixture) = Fixture::new(mode) else { return };
        let found = outcomes(&program, fixture.dir());
        assert_eq!(found.len(), expected.len());
        let pairs = expected.iter().zip(&found);
        let differing: Vec<_> = pairs.filter(|(one, other)| one != other && !is_the_kernels(one)).collect();
        assert!(differing.is_empty(), "{mode}: {} differ: {differing:#?}", differing.len());
        fixture.finish();
    }
    fs::remove_file(program).expect("it was made here");
}
