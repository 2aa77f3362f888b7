//! The differential test through a mount: the same operations on a mounted sluicefs and on the host's tmpfs.

use sluice_fuse::{Mount, MountOptions};
use sluice_oracle::campaign::prove;
use sluice_oracle::host::{Host, Place, is_superuser};
use sluice_sync::thread;
use sluice_vfs::{Options, Superblock};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Operations of each test unless `SLUICE_ORACLE_OPS` says otherwise.
const MOUNTED: usize = 50_000;

fn skipped(reason: &str) {
    let name = thread::current().name().unwrap_or("test").to_string();
    // Past the capture of the test runner. A test that cannot print can still not run.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {reason} ({name})");
}

fn prove_on(name: &str, dir: &Path) {
    let place = Place::Directory(dir.to_path_buf());
    let mut mounted = Host::new(&place).expect("the directory can be used");
    prove(name, MOUNTED, Path::new(env!("CARGO_TARGET_TMPDIR")), &mut mounted);
}

/// Mounts a fresh file system, compares it, unmounts it, and looks whether all is in order.
fn prove_mount(options: &str) {
    let owner = sluice_oracle::executor::process_users(true).remove(0);
    if !Path::new("/dev/fuse").exists() {
        return skipped("there is no /dev/fuse");
    }
    let superblock =
        Superblock::new(Options { root_uid: owner.uid, root_gid: owner.gid, ..Options::default() });
    let dir =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mounted-{}-{options}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the target directory is writable");
    let parsed = MountOptions::parse(options).expect("the test's options are valid");
    match Mount::new(superblock.clone(), &dir, parsed) {
        Err(error) if !is_superuser() => skipped(&error.to_string()),
        Err(error) => panic!("the superuser can mount: {error}"),
        Ok(mount) => {
            prove_on(&format!("mounted with {options}"), mount.dir());
            mount.unmount().expect("nobody uses the mount any more");
            mount.wait();
            drop(mount);
            let report = superblock.check();
            assert!(report.is_clean(), "{report}");
            assert_eq!(superblock.live_inodes(), report.inodes, "the mount left inodes behind");
        }
    }
    std::fs::remove_dir(&dir).expect("nothing is left in the mount point");
}

#[test]
fn a_mount_whose_locks_the_kernel_serves_agrees_with_tmpfs() {
    prove_mount("locks=kernel");
}

#[test]
fn a_mount_whose_locks_we_serve_agrees_with_tmpfs() {
    prove_mount("locks=sluice");
}

/// For mounts made elsewhere, such as a store's or another file system's.
#[test]
fn the_directory_that_the_environment_names_agrees_with_tmpfs() {
    if let Some(dir) = std::env::var_os("SLUICE_ORACLE_DIR") {
        prove_on("mounted", &PathBuf::from(dir));
    }
}
