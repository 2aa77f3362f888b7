//! The command line with mounts: mount, umount, run, locks, bench on a mount, the tour.

use crate::harness::{Ran, SLUICE, Scratch, can_mount, is_mounted, sluice, umount};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// A user who is not root.
const OTHER: u32 = 65_534;

#[test]
fn mount_returns_when_it_works_and_says_nothing() {
    if !can_mount("mount_returns_when_it_works_and_says_nothing") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let text = dir.to_str().unwrap();
    assert_eq!(sluice(["mount", text]).well(), "");
    assert!(is_mounted(&dir));
    std::fs::write(dir.join("file"), "contents").unwrap();
    assert_eq!(std::fs::read_to_string(dir.join("file")).unwrap(), "contents");
    umount(&dir);
    assert!(!is_mounted(&dir));
    assert!(!dir.join("file").exists());
    let line = sluice(["umount", text]).complaint(1);
    assert!(line.contains("no sluicefs is mounted there"), "{line}");
}

#[test]
fn a_busy_mount_stays_until_it_is_unmounted_lazily() {
    if !can_mount("a_busy_mount_stays_until_it_is_unmounted_lazily") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let text = dir.to_str().unwrap();
    sluice(["mount", "--ram", text]).well();
    let open = std::fs::File::create(dir.join("file")).unwrap();
    let line = sluice(["umount", text]).complaint(1);
    // Which process is not certain: one that another test forks has it open too, until it executes its program.
    let who = format!(") has {} open", dir.join("file").display());
    assert!(line.contains("in use") && line.contains(&who), "{line}");
    assert!(is_mounted(&dir));
    sluice(["umount", "--lazy", text]).well();
    assert!(!is_mounted(&dir));
    drop(open);
}

#[test]
fn a_mount_in_a_mount_is_named_where_it_keeps_the_other_from_being_unmounted() {
    if !can_mount("a_mount_in_a_mount_is_named_where_it_keeps_the_other_from_being_unmounted") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let below = dir.join("below");
    sluice(["mount".as_ref(), dir.as_os_str()]).well();
    std::fs::create_dir(&below).unwrap();
    sluice(["mount".as_ref(), below.as_os_str()]).well();
    let line = sluice(["umount".as_ref(), dir.as_os_str()]).complaint(1);
    let told = format!(": another mount stands in it, on {}: unmount that first", below.display());
    assert!(line.contains(&told), "{line}");
    umount(&below);
    umount(&dir);
}

#[test]
fn what_another_user_may_not_do_with_a_mount_is_said_in_our_own_words() {
    let test = "what_another_user_may_not_do_with_a_mount_is_said_in_our_own_words";
    if !can_mount(test) || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::new();
    let (store, dir, theirs) = (scratch.0.join("store"), scratch.dir("m"), scratch.dir("theirs"));
    std::fs::set_permissions(&scratch.0, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&theirs, Some(OTHER), Some(OTHER)).unwrap();
    sluice(["mkfs".as_ref(), store.as_os_str()]).well();
    sluice(["mount".as_ref(), store.as_os_str(), dir.as_os_str()]).well();
    let as_other = |words: &[&OsStr]| {
        let mut command = Command::new(SLUICE);
        command.args(words).uid(OTHER).gid(OTHER).stdin(Stdio::null());
        Ran::from(command.output().expect("sluice starts"))
    };
    let line = as_other(&["umount".as_ref(), dir.as_os_str()]).complaint(1);
    assert!(line.contains("is a mount of user 0: unmount it as that user or as root"), "{line}");
    let line = as_other(&["umount".as_ref(), "--force".as_ref(), dir.as_os_str()]).complaint(1);
    assert!(line.contains("is a mount of user 0: unmount it as that user or as root"), "{line}");
    let line = as_other(&["info".as_ref(), dir.as_os_str()]).complaint(1);
    let told = format!("a mount of the store {}, which you may not read: ask as", store.display());
    assert!(line.contains(&told), "{line}");
    for option in ["suid", "dev"] {
        let options = format!("exec,{option}");
        let words = ["mount".as_ref(), "-o".as_ref(), options.as_ref(), theirs.as_os_str()];
        let line = as_other(&words).complaint(2);
        assert!(
            line.contains(&format!("mount option {option}: only root may give it: leave it out")),
            "{line}"
        );
    }
    assert!(is_mounted(&dir) && !is_mounted(&theirs));
    umount(&dir);
}

#[test]
fn a_foreground_mount_ends_with_its_signal() {
    if !can_mount("a_foreground_mount_ends_with_its_signal") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let mut server =
        Command::new(SLUICE).args(["mount", "--foreground"]).arg(&dir).spawn().expect("sluice starts");
    while !is_mounted(&dir) {
        assert!(server.try_wait().unwrap().is_none(), "it ended by itself");
        sleep(Duration::from_millis(2));
    }
    assert!(Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap().success());
    assert!(server.wait().unwrap().success());
    assert!(!is_mounted(&dir));
}

#[test]
fn mounting_on_what_is_no_directory_is_one_line() {
    if !can_mount("mounting_on_what_is_no_directory_is_one_line") {
        return;
    }
    for options in [&["mount"][..], &["mount", "--foreground"]] {
        let line = sluice(options.iter().copied().chain(["/no/such/place"])).complaint(1);
        assert!(line.contains("give an existing directory"), "{line}");
    }
}

#[test]
fn run_gives_the_command_a_file_system_and_its_exit_status_back() {
    if !can_mount("run_gives_the_command_a_file_system_and_its_exit_status_back") {
        return;
    }
    let script = "test \"$PWD\" = \"$SLUICE_MOUNT\" && echo text > file && cat file && pwd && exit 7";
    let ran = sluice(["run", "--", "sh", "-c", script]);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(7), ""));
    let (text, place) = ran.stdout.trim_end().split_once('\n').expect("two lines");
    assert_eq!(text, "text");
    assert!(!std::path::Path::new(place).exists(), "{place} is still there");
    assert_eq!(sluice(["run", "--", "sh", "-c", "kill -KILL $$"]).status, Some(137));
    assert!(sluice(["run", "--", "no-such-command-here"]).complaint(127).contains("no such command"));
}

#[test]
fn run_passes_sigterm_on_and_unmounts() {
    if !can_mount("run_passes_sigterm_on_and_unmounts") {
        return;
    }
    let mut run = Command::new(SLUICE)
        .args(["run", "--", "sh", "-c", "trap 'exit 5' TERM; pwd; while :; do sleep 0.05; done"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("sluice starts");
    let mut place = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut place).unwrap();
    let place = std::path::PathBuf::from(place.trim_end());
    assert!(is_mounted(&place));
    assert!(Command::new("kill").args(["-TERM", &run.id().to_string()]).status().unwrap().success());
    assert_eq!(run.wait().unwrap().code(), Some(5));
    assert!(!is_mounted(&place) && !place.exists());
}

#[test]
fn no_mount_outlives_a_killed_run() {
    if !can_mount("no_mount_outlives_a_killed_run") {
        return;
    }
    let mut run = Command::new(SLUICE)
        .args(["run", "--", "sh", "-c", "pwd; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sluice starts");
    let mut place = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut place).unwrap();
    let place = std::path::PathBuf::from(place.trim_end());
    run.kill().unwrap();
    run.wait().unwrap();
    // The command is an orphan now and reads on until we close its input; the server lets go of the mount.
    while is_mounted(&place) {
        sleep(Duration::from_millis(2));
    }
    let _ = std::fs::remove_dir(place.parent().unwrap().join("mnt"));
    let _ = std::fs::remove_dir(place.parent().unwrap());
}

#[test]
fn locks_shows_holder_and_waiter_whoever_serves_them() {
    if !can_mount("locks_shows_holder_and_waiter_whoever_serves_them") {
        return;
    }
    for mode in ["locks=sluice", "locks=kernel"] {
        let scratch = Scratch::new();
        let dir = scratch.dir("m");
        let text = dir.to_str().unwrap();
        sluice(["mount", "-o", mode, text]).well();
        assert_eq!(sluice(["locks", text]).well(), "", "{mode}");
        let lock = || {
            Command::new(SLUICE)
                .args(["child", "hold-lock"])
                .arg(dir.join("file"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("sluice starts")
        };
        let mut holder = lock();
        let mut said = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "locked\n");
        let mut waiter = lock();
        let listed = loop {
            let listed = sluice(["locks", text]).well();
            if listed.lines().count() == 2 {
                break listed;
            }
            assert!(waiter.try_wait().unwrap().is_none(), "two hold the lock: {listed}");
            sleep(Duration::from_millis(2));
        };
        let lines: Vec<_> = listed.lines().collect();
        assert!(
            lines[0].contains("POSIX") && lines[0].contains("100 199") && !lines[0].contains("->"),
            "{listed}"
        );
        assert!(lines[0].contains(&format!(" {} ", holder.id())), "{mode}: {listed}");
        assert!(
            lines[1].contains("->") && lines[1].contains(&format!(" {} ", waiter.id())),
            "{mode}: {listed}"
        );
        let table = sluice(["locks", "--table", text]).well();
        assert!(table.contains("\nsluice") && table.contains("\n-> sluice"), "{mode}: {table}");
        let json = sluice(["locks", "--json", text]).well();
        assert!(json.lines().count() == 2 && json.contains("\"start\":100,\"end\":199"), "{mode}: {json}");
        let hot = sluice(["locks", "--hot", text]);
        if mode == "locks=sluice" {
            assert_eq!(hot.well().lines().count(), 2, "one file was locked");
        } else {
            assert_eq!(hot.status, Some(1), "the kernel counts nothing");
        }
        drop(holder.stdin.take());
        assert!(holder.wait().unwrap().success());
        drop(waiter.stdin.take());
        assert!(waiter.wait().unwrap().success());
        assert_eq!(sluice(["locks", text]).well(), "", "{mode}");
        umount(&dir);
    }
}

#[test]
fn bench_measures_a_mount_of_its_own() {
    if !can_mount("bench_measures_a_mount_of_its_own") {
        return;
    }
    let every = [
        "open-close",
        "creat-unlink",
        "stat",
        "readdir",
        "posix02",
        "flock02",
        "read4k",
        "write4k",
        "untar",
        "rmtree",
    ];
    let tail = ["--on", "mount", "--cpus", "1", "--tasks", "2", "--runs", "1", "--ops", "20", "--json", "-"];
    let ran = sluice(["bench"].iter().chain(&every).chain(&tail));
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert_eq!(ran.stdout.lines().count(), every.len());
}

#[test]
fn the_tour_ends_well_and_leaves_nothing() {
    if !can_mount("the_tour_ends_well_and_leaves_nothing") {
        return;
    }
    let scratch = Scratch::new();
    let output = Command::new(SLUICE)
        .arg("demo")
        .env("XDG_RUNTIME_DIR", &scratch.0)
        .env("TMPDIR", &scratch.0)
        .stdin(Stdio::null())
        .output()
        .expect("sluice starts");
    let told = Ran::from(output).well();
    for part in [
        "Mounted a fresh file system",
        "Unpacked",
        "Searched",
        "-> POSIX",
        "Unmounted",
        "2 threads",
        "1 / 8 / 64 simulated CPUs",
        "in process",
        "Try next",
    ] {
        assert!(told.contains(part), "{part} is missing in:\n{told}");
    }
    // The tour names programs that this machine lacks.
    for (part, lack) in [
        ("50 of 50 fsynced files there", "No disk file system"),
        ("SQLite: 2 processes", "there is no sqlite3 here"),
    ] {
        assert!(told.contains(part) || told.contains(lack), "{part} is missing in:\n{told}");
    }
    assert!(told.lines().all(|line| line.chars().count() <= 120), "{told}");
    assert_eq!(scratch.names(), [""; 0]);
}

#[test]
fn a_mount_tells_what_it_has_counted_to_people_programs_and_prometheus() {
    if !can_mount("a_mount_tells_what_it_has_counted_to_people_programs_and_prometheus") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let text = dir.to_str().unwrap();
    // A port that was free a moment ago: another program may take it before the mount does.
    let mounted_with = |_| {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let ran = sluice(["mount", "-o", &format!("metrics=127.0.0.1:{port}"), text]);
        assert!(ran.status == Some(0) || ran.stderr.contains("in use"), "{}", ran.stderr);
        (ran.status == Some(0)).then_some(port)
    };
    let port = (0..5).find_map(mounted_with).expect("one is free");
    std::fs::write(dir.join("file"), "contents").unwrap();
    let json: serde_json::Value = serde_json::from_str(&sluice(["stat", "--json", text]).well()).unwrap();
    let took = &json["latency"]["LOOKUP"];
    assert!(took["ns_total"].as_u64() > Some(0) && took["buckets"][0][1].as_u64() > Some(0), "{json}");
    assert!(json["resident_bytes"].as_u64() > Some(1 << 20) && json["hot_locks"].is_array(), "{json}");
    assert!(json["requests"]["LOOKUP"].as_u64() > Some(0), "{json}");
    assert!(sluice(["stat", text]).well().contains("LOOKUP"));
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let answer = std::io::read_to_string(stream).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("kind=\"LOOKUP\""), "{answer}");
    umount(&dir);
    let line = sluice(["stat", scratch.0.to_str().unwrap()]).complaint(1);
    assert!(line.contains("not in a sluicefs mount"), "{line}");
}

#[test]
fn each_mount_is_listed_with_its_server_also_when_that_is_silent_or_gone() {
    if !can_mount("each_mount_is_listed_with_its_server_also_when_that_is_silent_or_gone") {
        return;
    }
    let scratch = Scratch::new();
    let [memory, stored, store] = ["memory", "a stored one", "store"].map(|name| scratch.dir(name));
    std::fs::remove_dir(&store).unwrap();
    sluice(["mkfs".as_ref(), store.as_os_str()]).well();
    sluice(["mount".as_ref(), memory.as_os_str()]).well();
    // Its server's end is the mount's.
    sluice(["mount".as_ref(), "-o".as_ref(), "holder=off".as_ref(), store.as_os_str(), stored.as_os_str()])
        .well();
    std::fs::write(memory.join("file"), [7; 10_000]).unwrap();
    let listed = |dir: &std::path::Path| {
        let rows: Vec<serde_json::Value> = serde_json::from_str(&sluice(["list", "--json"]).well()).unwrap();
        rows.into_iter().find(|row| row["directory"] == dir.to_str().unwrap()).expect("it is mounted")
    };
    // A server of a busy machine may be silent for longer than `list` waits.
    let becomes = |dir: &std::path::Path, state: &str| {
        let is = |row: &serde_json::Value| row["state"] == state;
        (0..100).map(|_| listed(dir)).find(is).unwrap_or_else(|| panic!("{}", listed(dir)))
    };
    let [memory_row, stored_row] = [&memory, &stored].map(|dir| becomes(dir, "serves"));
    assert!(memory_row["store"].is_null() && stored_row["store"] == store.to_str().unwrap(), "{stored_row}");
    assert_eq!(stored_row["version"], env!("CARGO_PKG_VERSION"));
    assert!(memory_row["used_bytes"].as_u64() >= Some(10_000), "{memory_row}");
    assert!(memory_row["uptime_seconds"].as_u64() < Some(3600), "{memory_row}");
    let table = sluice(["list"]).well();
    assert!(table.starts_with("DIRECTORY") && table.contains("a stored one"), "{table}");
    let server = rustix::process::Pid::from_raw(stored_row["pid"].as_u64().unwrap() as i32).unwrap();
    let signal = |signal| rustix::process::kill_process(server, signal).unwrap();
    signal(rustix::process::Signal::STOP);
    let silent = becomes(&stored, "silent")["why"].clone();
    becomes(&memory, "serves");
    signal(rustix::process::Signal::CONT);
    let why = silent.as_str().expect("a text");
    assert!(why.starts_with("no answer within 2 s (") && why.contains("is stopped"), "{why}");
    becomes(&stored, "serves");
    signal(rustix::process::Signal::KILL);
    becomes(&stored, "ended");
    assert!(sluice(["list"]).well().contains("ended: calls there fail"));
    umount(&stored);
    umount(&memory);
}

#[test]
fn a_mount_tells_which_of_its_files_are_open_and_by_whom_whoever_serves_the_locks() {
    if !can_mount("a_mount_tells_which_of_its_files_are_open_and_by_whom_whoever_serves_the_locks") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let text = dir.to_str().unwrap();
    for options in ["locks=kernel", "locks=sluice"] {
        sluice(["mount", "-o", options, text]).well();
        let files = || {
            let json = sluice(["stat", "--json", "--files", text]).well();
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert!(json["open_files"].is_u64(), "{json}");
            json["files"].as_array().unwrap().clone()
        };
        assert!(files().is_empty(), "{options}");
        let mut open = std::fs::File::create(dir.join("open")).unwrap();
        std::io::Write::write_all(&mut open, b"abc").unwrap();
        let mut sleeper = Command::new("sleep").arg("60").current_dir(&dir).spawn().unwrap();
        let files = files();
        // A process that another test forks has the file open too, until it executes its program.
        let known = [sleeper.id(), std::process::id()];
        let files: Vec<_> = files.iter().filter(|file| known.iter().any(|pid| file["pid"] == *pid)).collect();
        let held: Vec<_> =
            files.iter().map(|file| [&file["path"], &file["pid"], &file["position"]]).collect();
        let path = dir.join("open").display().to_string();
        let expected = [
            [&text.into(), &sleeper.id().into(), &serde_json::Value::Null],
            [&path.into(), &std::process::id().into(), &3.into()],
        ];
        assert_eq!(held, expected, "{options}");
        assert_eq!((&files[0]["held_as"], &files[1]["kind"]), (&"cwd".into(), &"file".into()));
        let table = sluice(["stat", "--files", text]).well();
        let rows_of = |pid: u32| {
            let pid = pid.to_string();
            table.lines().filter(|row| row.split_whitespace().any(|word| word == pid)).count()
        };
        assert_eq!(known.map(rows_of), [1, 1], "{table}");
        assert!(table.contains("  write  "), "{table}");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        drop(open);
        sluice(["umount", "--lazy", text]).well();
    }
}

#[test]
fn top_shows_latencies_waiters_and_the_hottest_locks_of_a_mount_at_work() {
    if !can_mount("top_shows_latencies_waiters_and_the_hottest_locks_of_a_mount_at_work") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let text = dir.to_str().unwrap();
    sluice(["mount", "-o", "locks=sluice", text]).well();
    let path = dir.join("locked");
    let holder = std::fs::File::create(&path).unwrap();
    holder.lock().unwrap();
    let waiter = std::thread::spawn({
        let path = path.clone();
        move || std::fs::File::open(path).and_then(|file| file.lock())
    });
    let mut top = Command::new(SLUICE).args(["top", text]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines().map(Result::unwrap);
    // The waiter may not have come yet when the first screen is drawn.
    assert!(lines.any(|line| line.contains("waiting locks 1")), "nobody is seen to wait");
    let head: Vec<String> = lines.next().into_iter().chain(lines.next()).collect();
    assert!(head.iter().any(|line| line.ends_with("p99")), "{head:?}");
    assert!(lines.any(|line| line.starts_with("LOOKUP")), "no requests");
    assert!(lines.any(|line| line == "hottest locks"), "no locks");
    let (names, figures) = (lines.next().unwrap(), lines.next().unwrap());
    let inode = std::os::unix::fs::MetadataExt::ino(&holder.metadata().unwrap());
    assert!(names.contains("WAITING") && figures.trim_start().starts_with(&inode.to_string()), "{figures}");
    let kill = Command::new("kill").args(["-INT", &top.id().to_string()]).status().unwrap();
    assert!(kill.success() && top.wait().unwrap().success(), "Ctrl-C is how it ends");
    let once = sluice(["top", "--once", text]).well();
    assert!(once.starts_with(text) && once.contains("LOOKUP") && !once.contains('\x1b'), "{once}");
    let line = sluice(["top", "--once", "--json", text]).well();
    let line: serde_json::Value = serde_json::from_str(&line).expect("one line of JSON");
    assert_eq!(line["directory"], text);
    assert_eq!(line["stat"]["waiting_locks"], 1);
    assert!(line["per_second"].is_object() && line["seconds"].as_f64() >= Some(1.0), "{line}");
    drop(holder);
    waiter.join().unwrap().unwrap();
    umount(&dir);
}

#[test]
fn a_rule_acts_when_fault_returns_and_no_longer_when_it_is_taken_away() {
    if !can_mount("a_rule_acts_when_fault_returns_and_no_longer_when_it_is_taken_away") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let text = dir.to_str().unwrap();
    sluice(["mount", "--ram", text]).well();
    std::fs::create_dir(dir.join("db")).unwrap();
    let write = || std::fs::write(dir.join("db/log"), "bytes").map_err(|error| error.raw_os_error().unwrap());
    for _ in 0..20 {
        let id = sluice(["fault", text, "write:ENOSPC:path=/db/*"]).well();
        assert_eq!(write(), Err(28));
        let listed = sluice(["fault", text]).well();
        assert_eq!(listed, format!("{} 1 write:ENOSPC:path=/db/*\n", id.trim()));
        assert_eq!(sluice(["fault", &format!("--clear={}", id.trim()), text]).well(), "");
        assert_eq!(write(), Ok(()));
    }
    sluice(["fault", text, "create:EIO:nth=2", "write:short=2"]).well();
    let made = |name| std::fs::File::create(dir.join(name)).is_ok();
    assert_eq!([made("a"), made("b"), made("c")], [true, false, false]);
    assert_eq!(sluice(["fault", "--clear", text]).well(), "");
    assert_eq!((sluice(["fault", text]).well().as_str(), made("b")), ("", true));
    let line = sluice(["fault", text, "wrote:EIO"]).complaint(2);
    assert!(line.contains("fallocate"), "{line}");
    let line = sluice(["fault", "--clear=7", text]).complaint(1);
    assert!(line.contains("no such rule"), "{line}");
    let line = sluice(["fault", "--unsynced", text]).complaint(1);
    assert!(line.contains("-o track"), "{line}");
    umount(&dir);
}

#[test]
fn a_crash_of_a_tracked_mount_leaves_what_was_synchronised() {
    if !can_mount("a_crash_of_a_tracked_mount_leaves_what_was_synchronised") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let text = dir.to_str().unwrap();
    for options in ["track", "track,writeback", "track,locks=sluice"] {
        sluice(["mount", "--ram", "-o", options, text]).well();
        std::fs::create_dir(dir.join("db")).unwrap();
        std::fs::write(dir.join("db/kept"), "precious").unwrap();
        std::fs::File::open(dir.join("db/kept")).unwrap().sync_all().unwrap();
        std::fs::write(dir.join("db/lost"), "nobody asked").unwrap();
        let unsynced = sluice(["fault", "--unsynced", text]).well();
        // With write-back the kernel sets the times.
        let expected = ["12 name /db/lost\n", "12 name,attributes /db/lost\n"];
        assert!(expected.contains(&unsynced.as_str()), "{options}: {unsynced}");
        let crash = |seed: &str| {
            let to = scratch.0.join(format!("{options}-{seed}"));
            sluice(["fault", "--seed", seed, "--crash-clone", to.to_str().unwrap(), text]).well();
            ["db/kept", "db/lost"].map(|name| std::fs::read_to_string(to.join(name)).ok())
        };
        let (kept, lost) = (Some("precious".to_owned()), Some("nobody asked".to_owned()));
        assert_eq!(crash("0"), [kept.clone(), None], "{options}");
        assert_eq!(crash("1"), [kept, lost], "{options}");
        std::fs::File::open(dir.join("db/lost")).unwrap().sync_all().unwrap();
        assert_eq!(sluice(["fault", "--unsynced", text]).well(), "", "{options}");
        umount(&dir);
    }
    // Where the kernel was told that fsync is nothing, it cannot begin.
    sluice(["mount", "--ram", text]).well();
    std::fs::File::create(dir.join("f")).unwrap().sync_all().unwrap();
    let line = sluice(["fault", "--track", text]).complaint(1);
    assert!(line.contains("-o track"), "{line}");
    umount(&dir);
}
