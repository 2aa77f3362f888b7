//! A mount by an ordinary user. A program of its own: it makes a table of mounts, which keeps the mounts of tests beside it.

#[path = "suite/harness/mod.rs"]
mod harness;

use harness::server::{Server, serve_if_asked};
use harness::{can_mount, find_program, fresh_dir, is_mounted, skipped};
use rustix::process::Signal;
use sluice_fuse::Ended;
use sluice_sync::thread;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

#[test]
fn an_ordinary_user_mounts_with_fusermount3() {
    const NOBODY: u32 = 65534;
    if serve_if_asked() || !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() || !find_program("fusermount3") {
        return skipped("needs root, to become an ordinary user, and fusermount3");
    }
    // A thread with a table of mounts of its own, in which everybody may open the device, as udev has it, and run this program.
    let user = thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("root may");
        let open = fresh_dir();
        let script = r#"mount --make-rprivate / && mount -t tmpfs -o mode=755 tmpfs "$1" && cd "$1" &&
            mknod -m 666 fuse c 10 229 && mount --bind fuse /dev/fuse && install -m 755 "$0" program"#;
        let program = std::env::current_exe().expect("this program has a path");
        let made = Command::new("sh").args(["-c", script]).arg(program).arg(&open).status();
        assert!(made.expect("sh runs").success(), "root may mount");
        an_ordinary_user_mounts(&open.join("program"), NOBODY);
    });
    user.join().expect("all is as it should be");
}

fn an_ordinary_user_mounts(program: &Path, uid: u32) {
    let mut server = Server::start_program(program, "an_ordinary_user_mounts_with_fusermount3", uid);
    assert_eq!(server.status(), "serving");
    let as_user = |script: &str| {
        let script = format!("cd {} && {script}", server.dir.display());
        Command::new("sh").args(["-c", &script]).uid(uid).gid(uid).status().expect("sh runs").success()
    };
    assert!(as_user("echo x > f && test \"$(cat f)\" = x && rm f"));
    // Without allow_other even root stays outside.
    assert!(fs::read_dir(&server.dir).is_err());
    server.signal(Signal::TERM);
    assert_eq!(server.status(), format!("{:?}", Ended::Unmounted));
    assert!(!is_mounted(&server.dir));
}
