//! Mounts that several mount namespaces have or that stand in several places, servers in other namespaces, and mount(8), which
//! is given our helper in a namespace.

#[path = "suite/harness/mod.rs"]
mod harness;

use harness::{
    Ran, SLUICE, Scratch, Served, Sleeper, can_mount, is_mounted, kill, server_of, skipped, sluice, umount,
    until,
};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mount namespace keeps copies of all mounts that there are, so that their servers go on after unmounting: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// The right to go on alone, if this process may mount and make namespaces; says that `test` is skipped if not.
fn alone(test: &str) -> Option<MutexGuard<'static, ()>> {
    // A test that failed has unmounted what it had.
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !can_mount(test) {
        return None;
    }
    let made =
        Command::new("unshare").args(["--mount", "--pid", "--fork", "true"]).stderr(Stdio::null()).status();
    if !made.is_ok_and(|status| status.success()) {
        skipped(test, "needs root and unshare");
        return None;
    }
    Some(alone)
}

#[test]
fn a_second_place_keeps_the_file_system_and_sigterm_takes_both_away() {
    let test = "a_second_place_keeps_the_file_system_and_sigterm_takes_both_away";
    let Some(_alone) = alone(test) else { return };
    let scratch = Scratch::new();
    let (dir, second) = (scratch.dir("m"), scratch.dir("second"));
    let _served = [Served::on(&dir, ""), Served(second.clone())];
    let bind = |from: &Path, to: &Path| {
        assert!(Command::new("mount").arg("--bind").args([from, to]).status().unwrap().success());
    };
    bind(&dir, &second);
    std::fs::write(dir.join("file"), "contents").unwrap();
    let server = server_of(&dir);
    umount(&dir);
    assert_eq!(std::fs::read_to_string(second.join("file")).unwrap(), "contents");
    bind(&second, &dir);
    kill("-TERM", server);
    until("both are unmounted", || !is_mounted(&dir) && !is_mounted(&second));
    until("the server has ended", || !Path::new(&format!("/proc/{server}")).exists());
}

#[test]
fn umount_of_a_store_does_not_wait_for_a_server_whose_mount_is_elsewhere() {
    let test = "umount_of_a_store_does_not_wait_for_a_server_whose_mount_is_elsewhere";
    let Some(_alone) = alone(test) else { return };
    let scratch = Scratch::new();
    let (store, dir, second) = (scratch.0.join("store"), scratch.dir("m"), scratch.dir("second"));
    sluice(["mkfs".as_ref(), store.as_os_str()]).well();
    sluice(["mount".as_ref(), store.as_os_str(), dir.as_os_str()]).well();
    let _served = [Served(dir.clone()), Served(second.clone())];
    let server = server_of(&dir);
    // umount gives up after 120 s.
    let began = std::time::Instant::now();
    let script = ["-m", "--propagation", "private", SLUICE, "umount"];
    assert!(Command::new("unshare").args(script).arg(&dir).status().unwrap().success());
    assert!(is_mounted(&dir));
    assert!(Command::new("mount").arg("--bind").args([&dir, &second]).status().unwrap().success());
    umount(&dir);
    assert!(began.elapsed().as_secs() < 100);
    assert!(is_mounted(&second) && Path::new(&format!("/proc/{server}")).exists());
    umount(&second);
    sluice(["fsck".as_ref(), store.as_os_str()]).well();
}

#[test]
fn a_server_ends_though_another_mount_namespace_has_its_mount() {
    let test = "a_server_ends_though_another_mount_namespace_has_its_mount";
    let Some(_alone) = alone(test) else { return };
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let _served = Served::on(&dir, "");
    let server = server_of(&dir);
    let script = ["--mount", "sh", "-c", "echo there; exec sleep 600"];
    let mut elsewhere =
        Sleeper(Command::new("unshare").args(script).stdout(Stdio::piped()).spawn().expect("unshare starts"));
    let mut line = String::new();
    BufReader::new(elsewhere.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    kill("-TERM", server);
    until("the server has ended", || !Path::new(&format!("/proc/{server}")).exists());
    assert!(!is_mounted(&dir));
}

#[test]
fn a_copy_of_the_mount_that_nobody_uses_is_no_fault_of_a_run() {
    let test = "a_copy_of_the_mount_that_nobody_uses_is_no_fault_of_a_run";
    let Some(_alone) = alone(test) else { return };
    let scratch = Scratch::new();
    let said = scratch.0.join("pid");
    let script = r#"cd /
        unshare --mount sh -c 'echo $$; exec sleep 600' >"$1" 2>/dev/null &
        until test -s "$1"; do sleep 0.01; done
        exit 5"#;
    let run = ["run", "--", "sh", "-c", script, "sh", said.to_str().unwrap()];
    let ran = sluice(run);
    kill("-KILL", std::fs::read_to_string(&said).unwrap().trim_end().parse().unwrap());
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(5), ""));
}

#[test]
fn a_server_in_another_pid_namespace_is_told_of() {
    let test = "a_server_in_another_pid_namespace_is_told_of";
    let Some(_alone) = alone(test) else { return };
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let _served = Served(dir.clone());
    let text = dir.to_str().unwrap();
    let serve = ["--pid", "--fork", "--kill-child", SLUICE, "mount", "--foreground", text];
    let _server = Sleeper(Command::new("unshare").args(serve).spawn().expect("unshare starts"));
    until("it is mounted", || is_mounted(&dir));
    for command in ["stat", "locks"] {
        until("the server answers", || sluice(["stat", text]).status == Some(0));
        let ran = sluice([command, text]);
        assert_eq!(ran.status, Some(0), "{}", ran.stderr);
        assert!(
            ran.stderr.lines().count() == 1 && ran.stderr.contains("another pid namespace"),
            "{}",
            ran.stderr
        );
    }
    umount(&dir);
}

#[test]
fn a_server_in_another_network_namespace_answers() {
    let test = "a_server_in_another_network_namespace_answers";
    let Some(_alone) = alone(test) else { return };
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let text = dir.to_str().unwrap();
    let elsewhere = |command: &str| {
        let mut asked = Command::new("unshare");
        asked.args(["--net", SLUICE, command, text]);
        Ran::from(asked.stdin(Stdio::null()).output().expect("unshare starts"))
    };
    // A server that is killed leaves its socket file, which is in the next one's way neither with another number nor with its own.
    for _ in 0..2 {
        let _served = Served::on(&dir, "locks=sluice");
        for command in ["stat", "locks"] {
            let (here, there) = (sluice([command, text]), elsewhere(command));
            assert_eq!((here.status, here.stderr.as_str()), (Some(0), ""));
            assert_eq!((there.status, there.stderr.as_str()), (Some(0), ""));
        }
        kill("-KILL", server_of(&dir));
        until("the server has died", || elsewhere("stat").status != Some(0));
        let ran = elsewhere("stat");
        assert!(ran.stderr.contains("sluice umount"), "{}", ran.stderr);
        umount(&dir);
    }
    // The other way round.
    let _served = Served(dir.clone());
    let serve = ["--net", "--kill-child", SLUICE, "mount", "--foreground", text];
    let _server = Sleeper(Command::new("unshare").args(serve).spawn().expect("unshare starts"));
    until("it is mounted", || is_mounted(&dir));
    until("the server answers", || sluice(["stat", text]).status == Some(0));
    umount(&dir);
}

#[test]
fn mount_and_fstab_find_the_helper() {
    let test = "mount_and_fstab_find_the_helper";
    let Some(_alone) = alone(test) else { return };
    let scratch = Scratch::new();
    let (sbin, dir) = (scratch.dir("sbin"), scratch.dir("m"));
    std::os::unix::fs::symlink(SLUICE, sbin.join("mount.fuse.sluice")).unwrap();
    let fstab = scratch.0.join("fstab");
    let line = format!("scratch {} fuse.sluice size=64K,mode=1777,noatime,nofail 0 0\n", dir.display());
    std::fs::write(&fstab, line).unwrap();
    // In a mount namespace of its own, so that /sbin stays what it is for everybody else.
    let script = r#"set -e
        mount --bind "$1" /sbin
        mount -T "$2" "$3"
        test "$(stat -f -c %b "$3")" = 16
        grep -q "^scratch $3 fuse.sluice rw,.*noatime" /proc/mounts
        echo x > "$3/file"
        mount -o remount,ro "$3"
        ! touch "$3/file" 2>/dev/null
        mount -o remount,rw "$3"
        touch "$3/file"
        umount "$3"
        mount -t fuse.sluice -o ro none "$3"
        ! touch "$3/file" 2>/dev/null
        umount "$3"
        echo done"#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).args([&sbin, &fstab, &dir]);
    let ran = Ran::from(command.stdin(Stdio::null()).output().expect("unshare starts"));
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(0), "done\n"), "{}", ran.stderr);
}
