//! The differential test through a mount: the same operations on a mounted sluicefs and on the host's tmpfs.

use sluice_fuse::{Mount, MountError, MountOptions};
use sluice_oracle::campaign::prove;
use sluice_oracle::host::{Ground, Host, is_superuser};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, thread};
use sluice_vfs::{Options, Superblock};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// After this long something is taken to hang. Nothing is measured by it.
const HANG: Duration = Duration::from_secs(600);

/// Operations of each test unless `SLUICE_ORACLE_OPS` says otherwise.
const MOUNTED: usize = 50_000;
/// Set in a child process: the directory that it is to mount on and serve, with the kernel collecting writes.
const SERVE: &str = "SLUICE_ORACLE_TEST_SERVE";
/// The line that such a child prints when its mount works.
const SERVING: &str = "serving";

fn skipped(reason: &str) {
    let name = thread::current().name().unwrap_or("test").to_string();
    // Past the capture of the test runner. A test that cannot print can still not run.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {reason} ({name})");
}

fn prove_on(name: &str, dir: &Path, holes: bool) {
    let place = Ground::Directory(dir.to_path_buf());
    let mut mounted = Host::new(&place).expect("the directory can be used");
    mounted.compare_holes(holes);
    prove(name, MOUNTED, Path::new(env!("CARGO_TARGET_TMPDIR")), &mut mounted);
}

fn superblock() -> Arc<Superblock> {
    let owner = sluice_oracle::executor::process_users(true).remove(0);
    Superblock::new(Options::default().root_owner(owner.uid, owner.gid))
}

/// A new directory for a mount with `options`. `None`: this machine has no FUSE.
fn mountpoint(options: &str) -> Option<PathBuf> {
    if !Path::new("/dev/fuse").exists() {
        skipped("there is no /dev/fuse");
        return None;
    }
    let dir =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mounted-{}-{options}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the target directory is writable");
    Some(dir)
}

/// Says why a mount failed, if that is for want of rights.
fn explain(error: &MountError) {
    assert!(!is_superuser(), "the superuser can mount: {error}");
    skipped(&error.to_string());
}

/// Unmounts. The other tests of this program have mount namespaces of their own, which keep copies of all mounts for a while, and
/// a process that they just start has copies of all descriptors until it runs its program.
fn unmount(mount: &Mount) {
    let start = Instant::now();
    while let Err(error) = mount.unmount() {
        let passes = matches!(error, MountError::Elsewhere(_) | MountError::Busy(_));
        assert!(passes, "nobody uses the mount any more: {error}");
        assert!(start.elapsed() < HANG, "{error}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The mount is gone: is all in order?
fn check(superblock: &Superblock) {
    let report = superblock.check();
    assert!(report.is_clean(), "{report}");
    assert_eq!(superblock.live_inodes(), report.inodes, "the mount left inodes behind");
}

/// Mounts a fresh file system, compares it, unmounts it, and looks whether all is in order.
fn prove_mount(options: &str) {
    let Some(dir) = mountpoint(options) else { return };
    let superblock = superblock();
    let parsed = MountOptions::parse(options).expect("the test's options are valid");
    match parsed.mount(&superblock, &dir) {
        Err(error) => explain(&error),
        Ok(mount) => {
            prove_on(&format!("mounted with {options}"), mount.dir(), true);
            unmount(&mount);
            mount.wait();
            drop(mount);
            check(&superblock);
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

/// A process of its own serves the mount: one that is ended while it is both server and client of a mount may wait for
/// itself to write back what it has written.
#[test]
fn a_mount_whose_kernel_collects_writes_agrees_with_tmpfs() {
    if let Some(dir) = std::env::var_os(SERVE) {
        return serve(Path::new(&dir));
    }
    let Some(dir) = mountpoint("writeback") else { return };
    let mut server = Command::new(std::env::current_exe().expect("this program has a path"))
        .args(["--exact", "--nocapture", "mounted::a_mount_whose_kernel_collects_writes_agrees_with_tmpfs"])
        .env(SERVE, &dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program starts");
    let mut said = BufReader::new(server.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    // The test runner's own lines come before. Dropped by a panic, the pipes end the server.
    let mounted = said.any(|line| line.ends_with(SERVING));
    if mounted {
        prove_on("mounted with writeback", &dir, false);
    }
    drop(server.stdin.take());
    said.for_each(drop);
    assert!(server.wait().expect("it is a child").success(), "the server has said why");
    std::fs::remove_dir(&dir).expect("nothing is left in the mount point");
}

/// Serves until nobody writes to standard input any more.
fn serve(dir: &Path) {
    let superblock = superblock();
    let options = Mount::builder().writeback(true).dedicated(true);
    match options.mount(&superblock, dir) {
        Err(error) => explain(&error),
        Ok(mount) => {
            println!("{SERVING}");
            // An error ends the wait as well.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            unmount(&mount);
            mount.wait();
            drop(mount);
            check(&superblock);
        }
    }
}

/// For mounts made elsewhere, such as a store's or another file system's.
#[test]
fn the_directory_that_the_environment_names_agrees_with_tmpfs() {
    if let Some(dir) = std::env::var_os("SLUICE_ORACLE_DIR") {
        prove_on("mounted", &PathBuf::from(dir), true);
    }
}
