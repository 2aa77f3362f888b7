//! Stage: a mount of a test's own with a directory on the host beside it, and shell scripts that play on them.

use crate::harness::{Scratch, can_mount, is_mounted, sluice, umount};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Both ways to serve file locks.
pub(crate) const LOCK_MODES: [&str; 2] = ["locks=kernel", "locks=sluice"];
/// Ends a script that hangs, in seconds: a hang is a failure with a name, not a test run that never ends.
const PATIENCE: &str = "300";
/// Programs that a machine may lack, with the packages that have them.
const PACKAGES: [(&str, &str); 14] = [
    ("cargo", "rustup"),
    ("cc", "build-essential"),
    ("diff", "diffutils"),
    ("fallocate", "util-linux"),
    ("find", "findutils"),
    ("flock", "util-linux"),
    ("getfattr", "attr"),
    ("git", "git"),
    ("make", "make"),
    ("rsync", "rsync"),
    ("setfacl", "acl"),
    ("sqlite3", "sqlite3"),
    ("tar", "tar"),
    ("timeout", "coreutils"),
];

/// A mount and a host directory. Dropping it unmounts, and fails the test when that needs force.
pub(crate) struct Stage {
    mount: PathBuf,
    host: PathBuf,
    _scratch: Scratch,
}

impl Stage {
    /// Mounts with `options` for `test`; none, loudly, where mounting is impossible or one of the programs `needs`
    /// is missing.
    pub(crate) fn new(test: &str, options: &str, needs: &[&str]) -> Option<Stage> {
        for program in needs.iter().chain(&["timeout"]) {
            if !is_installed(program) {
                let package = PACKAGES.iter().find(|(name, _)| name == program).expect("a package has it").1;
                skip(test, &format!("needs {program} (cure: apt-get install {package})"));
                return None;
            }
        }
        if !can_mount(test) {
            return None;
        }
        let scratch = Scratch::new();
        let stage = Stage { mount: scratch.dir("mnt"), host: scratch.dir("host"), _scratch: scratch };
        let options = if options.is_empty() { "rw" } else { options };
        sluice(["mount", "-o", options, stage.mount.to_str().expect("text")]).well();
        assert!(is_mounted(&stage.mount));
        Some(stage)
    }

    /// Where it is mounted: `$MNT` in scripts.
    pub(crate) fn mount(&self) -> &Path {
        &self.mount
    }

    /// The directory on the host: `$HOST` in scripts.
    pub(crate) fn host(&self) -> &Path {
        &self.host
    }

    /// A shell that will run `script` in the mount, ending at the first command that fails.
    pub(crate) fn command(&self, script: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", PATIENCE, "sh", "-euc", script]).current_dir(&self.mount);
        command.env("MNT", &self.mount).env("HOST", &self.host).env("HOME", &self.host).env("LC_ALL", "C");
        // Set by the caller of the tests, for the build of this project.
        command.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS").env_remove("MAKEFLAGS");
        command.env_remove("GIT_DIR").env_remove("GIT_INDEX_FILE").env_remove("GIT_WORK_TREE");
        command.stdin(Stdio::null());
        command
    }

    /// Runs `script` and gives what happened.
    pub(crate) fn outcome(&self, script: &str) -> Output {
        self.command(script).output().expect("a shell starts")
    }

    /// Runs `script`, which must succeed, and gives what it printed.
    pub(crate) fn sh(&self, script: &str) -> String {
        let output = self.outcome(script);
        let said = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{script}\n{}\nstderr: {said}\nstdout: {printed}", output.status);
        printed.into_owned()
    }

    /// Compiles `source`, C, to a program on the host, and gives its path.
    pub(crate) fn compile(&self, name: &str, source: &str) -> PathBuf {
        let file = self.host.join(name).with_extension("c");
        std::fs::write(&file, source).expect("a file on the host");
        self.sh(&format!("cc -O1 -Wall -Werror -pthread -o $HOST/{name} $HOST/{name}.c"));
        self.host.join(name)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Force, so that nothing is left on this machine.
            sluice(["umount".as_ref(), "--lazy".as_ref(), self.mount.as_os_str()]);
        } else {
            umount(&self.mount);
            assert!(!is_mounted(&self.mount));
        }
    }
}

/// Says loudly, past the test harness, that `test` is skipped, and why.
pub(crate) fn skip(test: &str, why: &str) {
    // If standard error is gone, nobody is there to be told.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
