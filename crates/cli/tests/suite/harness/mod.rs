//! Harness: runs the built `sluice`, and knows whether this machine can mount.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::cell::Cell;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

pub const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");

/// A run of `sluice`, for assertions.
#[derive(Debug, Default)]
pub struct Ran {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub fn sluice<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ran {
    let mut sluice = Command::new(SLUICE);
    // The record of lock orders must not count in the program's own measurements.
    sluice.args(arguments).stdin(Stdio::null()).env_remove(sluice_sync::lock_debug::RECORD);
    let output = sluice.output().expect("sluice starts");
    Ran::from(output)
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("output is text"),
            stderr: String::from_utf8(output.stderr).expect("messages are text"),
        }
    }
}

impl Ran {
    /// Asserts that it went well and said nothing on standard error, and gives what it printed.
    pub fn well(self) -> String {
        assert_eq!((self.status, self.stderr.as_str()), (Some(0), ""), "printed: {}", self.stdout);
        self.stdout
    }

    /// Asserts that it ended with `status` and exactly one line on standard error, and gives that.
    pub fn complaint(self, status: i32) -> String {
        assert_eq!(self.status, Some(status), "said: {}", self.stderr);
        assert_eq!(self.stderr.lines().count(), 1, "more than one line: {}", self.stderr);
        assert!(self.stderr.starts_with("sluice: "), "{}", self.stderr);
        self.stderr
    }
}

/// A directory of this test's own.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        Scratch::below(&std::env::temp_dir())
    }

    /// In memory, if there is such a place: for a server that waits for its disk at each change, and whose data nobody needs.
    pub fn in_memory() -> Scratch {
        let memory = Path::new("/dev/shm");
        let room = rustix::fs::statvfs(memory).map_or(0, |told| told.f_bavail * told.f_frsize);
        if room > 1 << 30 { Scratch::below(memory) } else { Scratch::new() }
    }

    fn below(dir: &Path) -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("sluice-cli-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).expect("a new directory");
        Scratch(path)
    }

    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir(&path).expect("a new directory");
        path
    }

    /// The names that are left in the directory.
    pub fn names(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.0).expect("it is there");
        names.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Scratch {
    /// Unmounts what a failed test has left there, and removes the directory.
    fn drop(&mut self) {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
        let mut left: Vec<&Path> = points.filter(|point| point.starts_with(&self.0)).collect();
        left.reverse();
        left.into_iter().for_each(unmount_lazily);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Unmounts what is on `dir`, ours or not.
fn unmount_lazily(dir: &Path) {
    sluice(["umount".as_ref(), "--lazy".as_ref(), dir.as_os_str()]);
    if is_mounted(dir) {
        let _ = Command::new("umount").arg("--lazy").arg(dir).status();
    }
}

/// A tmpfs of the host of `size` in directory `name` of `scratch`, which unmounts it. None where that is not allowed.
pub fn small_disk(scratch: &Scratch, name: &str, size: &str) -> Option<PathBuf> {
    let dir = scratch.dir(name);
    let mut command = Command::new("mount");
    let mount = command.args(["-t", "tmpfs", "-o", &format!("size={size}"), "small"]).arg(&dir).output();
    mount.is_ok_and(|mount| mount.status.success()).then_some(dir)
}

/// A command of the shell for a mount namespace of its own: mounts of other tests, whose servers would go on there, stay out. A mount
/// on `dir` stays.
pub fn unmount_others(dir: &Path) -> String {
    format!(
        "grep -F ' - fuse.sluice ' /proc/self/mountinfo | cut -d ' ' -f 5 | grep -vxF {} | xargs -r -n 1 umount -l",
        dir.display()
    )
}

/// Unmounts `dir`, without a word. A process that another test forks inherits this one's open files until it executes its
/// program: that is waited for.
pub fn umount(dir: &Path) {
    let once = || sluice(["umount".as_ref(), dir.as_os_str()]);
    let ran = Cell::new(once());
    until("nothing uses the mount any more", || {
        let last = ran.replace(Ran::default());
        let is_busy = last.status == Some(1) && last.stderr.contains("in use");
        ran.set(if is_busy { once() } else { last });
        !is_busy
    });
    assert_eq!(ran.into_inner().well(), "");
}

/// True when this machine and user can mount. Says loudly, past the test harness, that `test` is skipped if not.
pub fn can_mount(test: &str) -> bool {
    let ran = sluice(["run", "--", "true"]);
    if ran.status == Some(0) {
        return true;
    }
    let known = ["/dev/fuse", "fusermount3", "not permitted"];
    assert!(known.iter().any(|cause| ran.stderr.contains(cause)), "mounting fails here: {}", ran.stderr);
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {}", ran.stderr.trim_end());
    false
}

/// Says loudly, past the test harness, that `test` is skipped, and why.
pub fn skipped(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
}

/// A directory on which something of ours is mounted, or will be. Unmounted when dropped, however the test ends.
pub struct Served(pub PathBuf);

impl Served {
    /// Mounts on `dir` with `options`.
    pub fn on(dir: &Path, options: &str) -> Served {
        let served = Served(dir.to_owned());
        sluice(["mount".as_ref(), "-o".as_ref(), options.as_ref(), dir.as_os_str()]).well();
        served
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            unmount_lazily(&self.0);
        }
    }
}

/// A fresh mount on a directory of its own.
pub struct Mounted {
    served: Served,
    _scratch: Scratch,
}

impl Mounted {
    /// Mounts with `options`. `None`, said loudly, where nothing can be mounted.
    pub fn new(test: &str, options: &str) -> Option<Mounted> {
        can_mount(test).then(|| {
            let scratch = Scratch::new();
            Mounted { served: Served::on(&scratch.dir("m"), options), _scratch: scratch }
        })
    }

    pub fn dir(&self) -> &Path {
        &self.served.0
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.served.0.join(name)
    }

    /// A figure of those that the server gives as JSON.
    pub fn stat(&self) -> serde_json::Value {
        let json = sluice(["stat".as_ref(), "--json".as_ref(), self.served.0.as_os_str()]).well();
        serde_json::from_str(&json).expect("JSON")
    }

    /// How many requests of a kind the server has got.
    pub fn requests(&self, kind: &str) -> u64 {
        self.stat()["requests"][kind].as_u64().unwrap_or(0)
    }

    /// Runs `script` with the mount as its working directory, and asserts that it ends well.
    pub fn run(&self, script: &str) {
        let output =
            Command::new("sh").args(["-ec", script]).current_dir(self.dir()).output().expect("sh starts");
        assert!(output.status.success(), "{script}: {output:?}");
    }
}

/// The value of `field` in `sluice stat`, also of a nested field.
pub fn stat_field(dir: &Path, field: &str) -> String {
    let stat = sluice(["stat".as_ref(), "--json".as_ref(), dir.as_os_str()]).well();
    let value = stat.split(&format!("\"{field}\":")).nth(1).expect("it is there");
    value.split([',', '}']).next().expect("a value").trim_matches('"').to_owned()
}

/// The process that serves the mount on `dir`, and not its holder.
pub fn server_of(dir: &Path) -> u32 {
    *processes_of(dir).last().expect("a server serves it")
}

/// Ends the holder of the mount on `dir`, if it has one, and its server, as a crash of the machine does.
pub fn crash(dir: &Path) {
    let processes = processes_of(dir);
    assert!(!processes.is_empty(), "nobody serves it");
    processes.into_iter().for_each(|pid| kill("-KILL", pid));
}

/// The holder of the mount on `dir`, if it has one, and its server: their command lines end with that.
pub fn processes_of(dir: &Path) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let serves = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        words.contains(&b"--foreground".as_slice()) && words.contains(&dir.as_os_str().as_encoded_bytes())
    };
    let mut found: Vec<u32> = pids.filter(serves).collect();
    let is_held = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).any(|word| word == b"--held")
    };
    found.sort_by_key(is_held);
    found
}

/// A process that sleeps in a directory. Killed when dropped.
pub struct Sleeper(pub Child);

impl Sleeper {
    pub fn in_dir(dir: &Path) -> Sleeper {
        Sleeper(Command::new("sleep").arg("600").current_dir(dir).spawn().expect("sleep starts"))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal by kill(1).
pub fn kill(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill runs").success());
}

/// Waits until `done`, and fails after a time that no machine needs.
pub fn until(what: &str, done: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !done() {
        assert!(began.elapsed().as_secs() < 120, "in vain: {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// True when something is mounted on `dir`.
pub fn is_mounted(dir: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the table of mounts");
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    table.lines().any(|line| line.split(' ').nth(4) == dir.to_str())
}

/// The version of the running kernel.
pub fn kernel() -> (u32, u32) {
    let release = rustix::system::uname();
    let mut numbers =
        release.release().to_str().unwrap_or_default().split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
