//! How mounts end when something is wrong: processes that stay, servers that die.

use crate::harness::{
    Ran, SLUICE, Scratch, Served, Sleeper, can_mount, is_mounted, kill, server_of, skipped, sluice, umount,
    unmount_others, until,
};
use crate::store::Stored;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// True when the files of `dir` cannot be reached any more.
fn is_dead(dir: &Path) -> bool {
    std::fs::write(dir.join("probe"), "").is_err_and(|error| matches!(error.raw_os_error(), Some(103 | 107)))
}

/// Mounts on `dir`, kills the server, and waits until the mount is dead.
fn dead_mount(dir: &Path) -> Served {
    let served = Served::on(dir, "");
    kill("-KILL", server_of(dir));
    until("the mount is dead", || is_dead(dir));
    served
}

#[test]
fn run_gives_the_status_of_its_command_though_a_process_stays_in_the_mount() {
    if !can_mount("run_gives_the_status_of_its_command_though_a_process_stays_in_the_mount") {
        return;
    }
    for (end, status) in [("exit 7", 7), ("exit 0", 0), ("kill -TERM $$", 143)] {
        let script = format!("sleep 600 >/dev/null 2>&1 & echo $! $PWD; {end}");
        let ran = sluice(["run", "--", "sh", "-c", &script]);
        let (pid, place) = ran.stdout.trim_end().split_once(' ').expect("two words");
        kill("-KILL", pid.parse().unwrap());
        assert_eq!(ran.status, Some(status), "{}", ran.stderr);
        // Its shell may not have executed it yet.
        let said = format!("(process {pid}) loses what it has open");
        assert!(ran.stderr.lines().count() == 1 && ran.stderr.starts_with("sluice: "), "{}", ran.stderr);
        assert!(ran.stderr.contains("detached") && ran.stderr.contains(&said), "{}", ran.stderr);
        assert!(!Path::new(place).exists(), "{place} is still there");
    }
}

#[test]
fn run_gives_the_status_of_its_command_though_the_server_was_killed() {
    if !can_mount("run_gives_the_status_of_its_command_though_the_server_was_killed") {
        return;
    }
    let mut run = Command::new(SLUICE)
        .args(["run", "--", "sh", "-c", "pwd; read line; exit 7"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("sluice starts");
    let mut place = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut place).unwrap();
    let place = PathBuf::from(place.trim_end());
    kill("-KILL", server_of(&place));
    until("the mount is dead", || is_dead(&place));
    drop(run.stdin.take());
    let ran = Ran::from(run.wait_with_output().unwrap());
    assert_eq!(ran.status, Some(7), "{}", ran.stderr);
    assert!(ran.stderr.contains("SIGKILL"), "{}", ran.stderr);
    assert!(!is_mounted(&place) && !place.exists());
}

#[test]
fn umount_does_not_wait_for_a_server_whose_mount_is_in_another_namespace_too() {
    if !can_mount("umount_does_not_wait_for_a_server_whose_mount_is_in_another_namespace_too") {
        return;
    }
    let scratch = Scratch::new();
    let stored = Stored::new(&scratch);
    stored.mount("");
    std::fs::write(stored.dir.join("f"), "written\n").expect("room");
    // As a container that was started meanwhile.
    let read = format!("read line && cat {}/f && exec sleep 600", stored.dir.display());
    let others = unmount_others(&stored.dir);
    let mut container = Command::new("unshare");
    container.args([
        "-m",
        "--propagation",
        "private",
        "sh",
        "-c",
        &format!("{others}; echo ready && {read}"),
    ]);
    let container = container.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare starts");
    let mut container = Sleeper(container);
    let mut lines = BufReader::new(container.0.stdout.take().expect("a pipe")).lines();
    if lines.next().is_none() {
        return skipped("umount", "only root has mount namespaces");
    }
    let server = server_of(&stored.dir);
    assert_eq!(sluice(["umount".as_ref(), stored.dir.as_os_str()]).well(), "");
    assert!(!is_mounted(&stored.dir));
    // The container goes on, and the store is free and whole when the container has ended.
    container.0.stdin.take().expect("a pipe").write_all(b"go on\n").expect("it listens");
    assert_eq!(lines.next().expect("a line").expect("it reads"), "written");
    drop(container);
    until("the server ends", || !Path::new(&format!("/proc/{server}")).exists());
    stored.assert_clean();
}

#[test]
fn a_command_that_may_not_be_executed_gives_what_a_shell_gives() {
    if !can_mount("a_command_that_may_not_be_executed_gives_what_a_shell_gives") {
        return;
    }
    assert!(sluice(["run", "--", "/"]).complaint(126).contains("ermission denied"));
}

#[test]
fn every_command_says_that_a_mount_is_dead_and_umount_removes_it_though_it_is_in_use() {
    if !can_mount("every_command_says_that_a_mount_is_dead_and_umount_removes_it_though_it_is_in_use") {
        return;
    }
    for mode in ["locks=kernel", "locks=sluice"] {
        let scratch = Scratch::new();
        let dir = scratch.dir("m");
        let text = dir.to_str().unwrap();
        let _served = Served::on(&dir, mode);
        let open = std::fs::File::create(dir.join("file")).unwrap();
        let sleeper = Sleeper::in_dir(&dir);
        kill("-KILL", server_of(&dir));
        until("the mount is dead", || is_dead(&dir));
        for command in ["stat", "locks", "top"] {
            let line = sluice([command, text]).complaint(1);
            assert!(
                line.contains("has ended") && line.contains("sluice umount"),
                "{mode}, {command}: {line}"
            );
        }
        let line = sluice(["mount", text]).complaint(1);
        assert!(line.contains(&format!("sluice umount {text}")), "{mode}: {line}");
        let line = sluice(["umount", text]).complaint(0);
        assert!(line.contains("had ended") && line.contains("detached"), "{mode}: {line}");
        assert!(!is_mounted(&dir), "{mode}");
        drop((open, sleeper));
        sluice(["mount", text]).well();
        umount(&dir);
    }
}

#[test]
fn a_forced_umount_ends_the_calls_that_wait_for_a_server_that_hangs() {
    if !can_mount("a_forced_umount_ends_the_calls_that_wait_for_a_server_that_hangs") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let _served = Served::on(&dir, "locks=sluice");
    let server = server_of(&dir);
    let mut waiting = Command::new("sh");
    waiting
        .args(["-c", "read line; exec cat file"])
        .current_dir(&dir)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped());
    let mut waiting = waiting.spawn().expect("a shell starts");
    kill("-STOP", server);
    drop(waiting.stdin.take());
    // It may well be in the kernel by then.
    std::thread::sleep(Duration::from_millis(200));
    let ended = sluice(["umount", "--force", dir.to_str().unwrap()]);
    let ran = Ran::from(waiting.wait_with_output().expect("it ends"));
    // Before anything is asserted: nobody else ends it.
    kill("-KILL", server);
    ended.well();
    assert!(!is_mounted(&dir));
    assert!(ran.stderr.contains("not connected") || ran.stderr.contains("abort"), "{}", ran.stderr);
}

#[test]
fn a_dead_mount_that_nobody_uses_is_unmounted_without_a_word() {
    if !can_mount("a_dead_mount_that_nobody_uses_is_unmounted_without_a_word") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let _served = dead_mount(&dir);
    umount(&dir);
    assert!(!is_mounted(&dir));
}

#[test]
fn a_foreground_mount_says_on_standard_error_what_its_level_lets_through() {
    if !can_mount("a_foreground_mount_says_on_standard_error_what_its_level_lets_through") {
        return;
    }
    for (level, expected) in [("info", ["mounted on", "ended: Unmounted"].as_slice()), ("error", &[])] {
        let scratch = Scratch::new();
        let dir = scratch.dir("m");
        let _served = Served(dir.clone());
        let serve = ["mount", "--foreground", "-o", &format!("log={level}"), dir.to_str().unwrap()];
        let server = Command::new(SLUICE).args(serve).stderr(Stdio::piped()).spawn().expect("sluice starts");
        until("the server answers", || sluice(["stat", dir.to_str().unwrap()]).status == Some(0));
        umount(&dir);
        let ran = Ran::from(server.wait_with_output().expect("it ends"));
        assert_eq!((ran.status, ran.stderr.lines().count()), (Some(0), expected.len()), "{}", ran.stderr);
        assert!(expected.iter().all(|part| ran.stderr.contains(part)), "{}", ran.stderr);
    }
    assert!(sluice(["mount", "-o", "log=loud", "/"]).complaint(2).contains("give off, error, warn"));
}
