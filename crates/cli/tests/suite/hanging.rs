//! A server that hangs: commands say so in time, and a watchdog has it replaced.

use crate::harness::{
    Ran, SLUICE, is_mounted, kill, processes_of, server_of, sluice, stat_field, umount, until,
};
use crate::holder::{Kept, restarts};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Mounts in the foreground, whose messages are read: the holder, and the lines of its standard error as they come.
fn mounted(kept: &Kept, options: &str) -> (std::process::Child, std::thread::JoinHandle<Vec<String>>) {
    umount(kept.dir());
    let mut holder = Command::new(SLUICE);
    holder.args(["mount", "--foreground", "-o", options]).arg(&kept.stored().store).arg(kept.dir());
    let mut holder = holder.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("sluice starts");
    let lines = BufReader::new(holder.stderr.take().expect("piped")).lines();
    let lines = std::thread::spawn(move || lines.map_while(Result::ok).collect());
    until("a server serves", || restarts(kept.dir()) == Some(0));
    (holder, lines)
}

fn switches_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("a line");
    line.trim().parse().expect("a number")
}

#[test]
fn a_server_that_hangs_is_replaced_by_the_watchdog_and_no_other() {
    let Some(kept) = Kept::new("a_server_that_hangs_is_replaced_by_the_watchdog_and_no_other") else {
        return;
    };
    let (mut holder, lines) = mounted(&kept, "watchdog=2");
    let dir = kept.dir();
    let file = File::create(dir.join("f")).expect("made");
    file.sync_all().expect("durable");
    // A slow call, and many calls.
    sluice(["fault".as_ref(), dir.as_os_str(), "fsync:delay=1000:times=1".as_ref()]).well();
    file.sync_all().expect("durable");
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(4) {
        fs::write(dir.join("g"), "g").expect("served");
    }
    assert_eq!(restarts(dir), Some(0));
    // Without requests nobody wakes, when the last look has found that there are none.
    std::thread::sleep(Duration::from_secs(2));
    let before = switches_of(holder.id());
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(switches_of(holder.id()), before, "the holder has woken");
    // A server that is stopped while nothing is asked is left alone, up to the next call.
    let server = server_of(dir);
    kill("-STOP", server);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(server_of(dir), server);
    file.sync_all().expect("the next server answers it, and nothing is lost");
    assert_ne!(server_of(dir), server);
    until("the next server answers questions", || restarts(dir) == Some(1));
    let cause = stat_field(dir, "restart_cause");
    assert_eq!(cause, "the watchdog ended a server that had answered nothing for 2 s");
    // And again.
    kill("-STOP", server_of(dir));
    fs::write(dir.join("h"), "h").expect("the next server answers");
    until("the next server answers questions", || restarts(dir) == Some(2));
    drop(file);
    kept.end();
    assert!(holder.wait().expect("it ends").success());
    let lines = lines.join().expect("no panic");
    let is_told = |line: &str, parts: &[&str]| parts.iter().all(|part| line.contains(part));
    let hangs = format!("the server, process {server}, has answered nothing for 2 s and is replaced");
    assert!(lines.iter().any(|line| line.contains(&hangs)), "{lines:?}");
    let told = ["thread ", "(sluice-fuse-0): state T, waits in ", "system call ", "kernel stack: "];
    assert!(lines.iter().any(|line| is_told(line, &told)), "{lines:?}");
    let refused = |options: &str, places: &[&Path]| {
        let words = ["mount".as_ref(), "-o".as_ref(), options.as_ref()];
        sluice(words.into_iter().chain(places.iter().map(|place| place.as_os_str()))).complaint(2)
    };
    let both = [kept.stored().store.as_path(), dir];
    assert!(
        refused("watchdog=0", &both).contains("give 1 to 86400 seconds, more than the slowest call takes")
    );
    assert!(refused("watchdog=2,holder=off", &both).contains("only with a holder: leave holder=off out"));
    assert!(refused("watchdog=2,track", &both).contains("mount option watchdog: not with track"));
    assert!(refused("watchdog=2", &[dir]).contains("mount option watchdog"));
}

#[test]
fn each_command_about_a_mount_whose_server_is_stopped_ends_in_time_and_says_what_it_saw() {
    let test = "each_command_about_a_mount_whose_server_is_stopped_ends_in_time_and_says_what_it_saw";
    let Some(kept) = Kept::new(test) else { return };
    let dir = kept.dir();
    fs::create_dir(dir.join("d")).expect("made");
    let open = File::create(dir.join("f")).expect("made");
    open.sync_all().expect("durable");
    let server = server_of(dir);
    kill("-STOP", server);
    // A call that waits.
    let waits = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let synchronised = open.sync_all();
            waits.store(false, Ordering::SeqCst);
            synchronised.expect("it is answered in the end");
        });
        let in_time = |words: &[&str], at: &Path| {
            let begin = Instant::now();
            let mut command = Command::new(SLUICE);
            let output = command.args(words).arg(at).stdin(Stdio::null()).output().expect("it starts");
            // Two seconds on an idle machine.
            assert!(begin.elapsed() < Duration::from_secs(8), "{words:?} took {:?}", begin.elapsed());
            Ran::from(output)
        };
        let seen = format!("(process {server} is stopped: kill -CONT lets it go on");
        for words in [
            &["stat"][..],
            &["stat", "--json"],
            &["stat", "--files"],
            &["top", "--once"],
            &["locks"],
            &["locks", "--hot"],
        ] {
            // Also of a name that the kernel does not know.
            for at in [dir.to_owned(), dir.join("d"), dir.join("d/unknown")] {
                let said = in_time(words, &at).complaint(1);
                assert!(
                    said.contains("the server of this mount has not answered within 2 s")
                        && said.contains(&seen),
                    "{words:?}: {said}"
                );
            }
        }
        let listed = sluice(["list"]).well();
        let row = format!("{}: silent: no answer within 2 s {seen}", dir.display());
        assert!(listed.contains(&row), "{listed}");
        // In use: it stays, and says so.
        let busy = in_time(&["umount"], dir).complaint(1);
        assert!(busy.contains("in use") && busy.contains("its server does not answer"), "{busy}");
        assert!(waits.load(Ordering::SeqCst) && is_mounted(dir));
        kill("-CONT", server);
    });
    drop(open);
    kill("-STOP", server);
    let begin = Instant::now();
    let said = std::cell::Cell::new(Ran::default());
    until("nothing uses the mount", || {
        said.set(Ran::from(Command::new(SLUICE).arg("umount").arg(dir).output().expect("it starts")));
        !is_mounted(dir)
    });
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    let said = said.into_inner().complaint(1);
    assert!(
        said.contains("its server does not answer and still has the store: not all may be durable")
            && said.contains(&format!("process {server} is stopped")),
        "{said}"
    );
    kill("-CONT", server);
    until("the server has ended", || processes_of(dir).is_empty());
    kept.stored().assert_clean();
}
