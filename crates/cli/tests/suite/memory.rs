//! The memory of a mount's server: it comes back when files are gone, and ends with ENOSPC before the machine's does.

use crate::harness::{SLUICE, Scratch, can_mount, is_mounted, sluice};
use std::fs::{read_dir, read_to_string, write};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// After this long something is taken never to happen. Nothing is measured by it.
const HANG: Duration = Duration::from_secs(120);

const SMALL_FILES: usize = 20_000;

/// A mount with a server of its own, unmounted whatever happens.
struct Mounted {
    dir: PathBuf,
    server: u32,
}

impl Mounted {
    /// Mounts on `dir`; the server joins `group`.
    fn new(dir: PathBuf, options: &str, group: Option<&Path>) -> Mounted {
        let join = group.map(|group| format!("echo $$ > {}/cgroup.procs", group.display()));
        Mounted::after(join.as_deref().unwrap_or("true"), dir, options)
    }

    /// Mounts on `dir` in a shell that has done `preparation`.
    fn after(preparation: &str, dir: PathBuf, options: &str) -> Mounted {
        // The shell becomes the command.
        let script = format!("{preparation} && exec \"$0\" \"$@\"");
        let mut mount = Command::new("sh");
        mount.args(["-c", &script, SLUICE, "mount", "-o", options]).arg(&dir).stdin(Stdio::null());
        assert!(mount.status().expect("sh starts").success(), "mounting works here");
        let server = processes().find(|pid| serves(*pid, &dir)).expect("a server is left");
        Mounted { dir, server }
    }

    /// The server's memory beside its program, in bytes.
    fn resident(&self) -> u64 {
        let statm = read_to_string(format!("/proc/{}/statm", self.server)).expect("the server lives");
        let mut pages = statm.split(' ').skip(1).map(|pages| pages.parse::<u64>().expect("a number"));
        let (all, shared) = (pages.next().expect("a table of them"), pages.next().expect("a table of them"));
        (all - shared) * 4096
    }

    fn lives(&self) -> bool {
        serves(self.server, &self.dir)
    }

    /// The names of the server's threads, and how often all of them have gone to sleep or lost their CPU.
    fn threads(&self) -> (Vec<String>, u64) {
        let tasks = read_dir(format!("/proc/{}/task", self.server)).expect("the server lives");
        // A thread may end meanwhile.
        let status = tasks.flatten().filter_map(|task| read_to_string(task.path().join("status")).ok());
        let (mut names, mut switches) = (Vec::new(), 0);
        for line in status.collect::<String>().lines() {
            match line.split_once(':') {
                Some(("Name", name)) => names.push(name.trim().to_owned()),
                Some((field, count)) if field.ends_with("_ctxt_switches") => {
                    switches += count.trim().parse::<u64>().expect("a number");
                }
                _ => {}
            }
        }
        (names, switches)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        sluice(["umount", "--lazy", self.dir.to_str().expect("a name of ours")]);
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let names = read_dir("/proc").expect("proc is mounted").flatten();
    names.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether `pid` is the server of `dir`.
fn serves(pid: u32, dir: &Path) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = command.split(|byte| *byte == 0);
    words.clone().any(|word| word == b"--foreground")
        && words.any(|word| word == dir.as_os_str().as_encoded_bytes())
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "never happened: {what}");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_server_with_a_limit_of_its_address_space_leaves_most_of_it_to_files() {
    if !can_mount("a_server_with_a_limit_of_its_address_space_leaves_most_of_it_to_files") {
        return;
    }
    let scratch = Scratch::new();
    let mounted = Mounted::after("ulimit -v 1500000", scratch.dir("mnt"), "size=50%");
    // Threads of the server work at the same time, each with memory of its own.
    let script = "for n in 1 2 3 4 5 6 7 8; do head -c 4M /dev/zero >$0/$n & done; wait";
    let wrote = Command::new("sh").args(["-c", script]).arg(&mounted.dir).status().expect("sh starts");
    assert!(wrote.success());
    let status = read_to_string(format!("/proc/{}/status", mounted.server)).expect("the server lives");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("its size");
    let kilobytes: u64 = size.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(kilobytes < 700_000, "{kilobytes} kB of its address space are taken");
}

#[test]
fn the_memory_of_removed_files_comes_back_and_an_idle_server_sleeps() {
    if !can_mount("the_memory_of_removed_files_comes_back_and_an_idle_server_sleeps") {
        return;
    }
    let scratch = Scratch::new();
    for (number, locks) in ["locks=kernel", "locks=sluice"].iter().enumerate() {
        let mounted = Mounted::new(scratch.dir(&format!("m{number}")), locks, None);
        let (large, small) = (mounted.dir.join("large"), mounted.dir.join("small"));
        let before = mounted.resident();
        let mut file = std::fs::File::create(&large).expect("a fresh name");
        (0..256).for_each(|_| file.write_all(&[7; 1 << 20]).expect("there is room"));
        drop(file);
        std::fs::create_dir(&small).expect("a fresh name");
        (0..SMALL_FILES).for_each(|n| write(small.join(n.to_string()), "ten bytes.").expect("there is room"));
        let grown = mounted.resident() - before;
        std::fs::remove_file(&large).expect("it is there");
        std::fs::remove_dir_all(&small).expect("it is there");
        // Each worker keeps some for the next files, and the allocator what lies between that.
        eventually(&format!("most of {grown} bytes come back"), || mounted.resident() < before + grown / 6);
        let drains = || mounted.threads().0.iter().any(|name| name == "sluice-drain");
        eventually("nobody drains any more", || !drains());
        eventually("no thread of the server wakes for some seconds", || {
            let before = mounted.threads();
            sleep(Duration::from_secs(3));
            mounted.threads() == before
        });
        let json = sluice(["stat", "--json", mounted.dir.to_str().expect("a name of ours")]).well();
        let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
        assert_eq!((&json["file_bytes"], &json["spare_page_bytes"]), (&0.into(), &0.into()), "{json}");
        assert!(json["left_bytes"].as_u64() > Some(0), "{json}");
    }
}

/// A control group whose memory is limited, removed when dropped.
struct Group {
    path: PathBuf,
    /// The file that counts the processes that the kernel has ended for want of memory.
    kills: &'static str,
}

impl Group {
    /// `None` if this user or this machine cannot have one.
    fn new(limit: u64) -> Option<Group> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let own = read_to_string("/proc/self/cgroup").ok()?;
        let kinds = [
            ("", "/sys/fs/cgroup", "memory.max", "memory.events"),
            ("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control"),
        ];
        kinds.into_iter().find_map(|(controller, root, file, kills)| {
            let line = own.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                (controllers == controller).then_some(path)
            })?;
            let name = format!("sluice-test-{}", std::process::id());
            // Beside our own group: one with members may have no groups of its own.
            let beside = Path::new(line.trim_start_matches('/')).parent().unwrap_or(Path::new(""));
            let path = Path::new(root).join(beside).join(name);
            std::fs::create_dir(&path).ok()?;
            let group = Group { path, kills };
            // Elsewhere that is a directory like others.
            group.kills()?;
            write(group.path.join(file), limit.to_string()).ok()?;
            Some(group)
        })
    }

    /// How many processes the kernel has ended for want of memory.
    fn kills(&self) -> Option<u64> {
        let events = read_to_string(self.path.join(self.kills)).ok()?;
        events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }

    /// Runs `script` in the group.
    fn sh(&self, script: &str) -> std::process::Output {
        let joined = format!("echo $$ > {}/cgroup.procs && {script}", self.path.display());
        Command::new("sh").args(["-c", &joined]).stdin(Stdio::null()).output().expect("sh starts")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The processes of the group have ended, or are about to: a failed test leaves servers that are being unmounted. A
        // program that looks after groups may remove an empty group first.
        let start = Instant::now();
        while std::fs::remove_dir(&self.path).is_err() && self.path.exists() && start.elapsed() < HANG {
            sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn two_servers_that_fill_a_machine_say_enospc_and_live() {
    let name = "two_servers_that_fill_a_machine_say_enospc_and_live";
    if !can_mount(name) {
        return;
    }
    let Some(group) = Group::new(256 << 20) else {
        let _ = writeln!(std::io::stderr(), "SKIPPED: {name}: no control group can limit memory here");
        return;
    };
    let scratch = Scratch::new();
    // Each may hold all that there is.
    let mounts = ["a", "b"].map(|name| Mounted::new(scratch.dir(name), "size=0", Some(&group.path)));
    for round in 0..2 {
        let fills = mounts.each_ref().map(|mounted| {
            let file = mounted.dir.join("fill");
            // The other may be the faster, and leave nothing for a new file.
            write(&file, "").expect("there is room");
            format!("dd if=/dev/zero of={} bs=64k count=16384 conv=notrunc 2>&1", file.display())
        });
        let [first, second] = fills;
        let ran = group.sh(&format!("{{ {first} & {second}; wait; }}"));
        let said = String::from_utf8_lossy(&ran.stdout);
        assert_eq!(said.matches("No space left on device").count(), 2, "round {round}: {said}");
        for mounted in &mounts {
            assert!(mounted.lives() && is_mounted(&mounted.dir), "round {round}");
            let file = mounted.dir.join("fill");
            let size = std::fs::metadata(&file).expect("it is there").len();
            let contents = std::fs::read(&file).expect("it can be read");
            assert!(contents.len() as u64 == size && contents.iter().all(|byte| *byte == 0));
        }
        // One may have been so late that the other had all.
        let sizes = mounts
            .each_ref()
            .map(|mounted| std::fs::metadata(mounted.dir.join("fill")).expect("it is there").len());
        assert!(sizes.iter().sum::<u64>() > 2 << 20, "{sizes:?} bytes fitted");
        assert_eq!(group.kills(), Some(0), "round {round}");
        mounts.iter().for_each(|mounted| {
            std::fs::remove_file(mounted.dir.join("fill")).expect("removing needs no memory");
        });
    }
    // There is memory again.
    for mounted in &mounts {
        write(mounted.dir.join("after"), [7; 1 << 20]).expect("there is room again");
    }
    drop(mounts);
}
