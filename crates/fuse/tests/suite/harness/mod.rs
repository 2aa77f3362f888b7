//! Harness: a fresh file system, mounted for one test and unmounted whatever happens, and helper processes.

#![allow(dead_code, unreachable_pub)] // each test binary uses its own part

pub mod server;

use sluice_fuse::{Mount, MountError, MountOptions};
use sluice_sync::atomic::{AtomicU32, Ordering};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, OnceLock, thread};
use sluice_vfs::{Cred, Fs, Options, Superblock};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// After this long something is taken to hang. Nothing is measured by it.
const HANG: Duration = Duration::from_secs(60);

/// A mounted file system.
pub struct Fixture {
    /// The same file system, in process.
    pub fs: Fs,
    mount: Option<Mount>,
    dir: PathBuf,
}

/// Both ways in which locks are served.
pub const LOCK_MODES: [&str; 2] = ["locks=kernel", "locks=sluice"];

/// Says that `test` cannot run because of `reason`, past the test runner's capture.
pub fn skipped(reason: &str) {
    let name = thread::current().name().unwrap_or("test").to_string();
    // A test that cannot print can still not run.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {reason} ({name})");
}

/// True if file systems can be mounted here; otherwise says so loudly.
pub fn can_mount() -> bool {
    let usable = rustix::fs::access("/dev/fuse", rustix::fs::Access::EXISTS).is_ok()
        && (rustix::process::geteuid().is_root() || find_program("fusermount3"));
    if !usable {
        skipped("no /dev/fuse, or no fusermount3 for an ordinary user: this test of the mount did not run");
    }
    usable
}

/// True if `name` can be run.
pub fn find_program(name: &str) -> bool {
    let found = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok()
}

/// An empty file system that belongs to the user who runs the tests.
pub fn fresh_superblock() -> Arc<Superblock> {
    Superblock::new(options_of_ours())
}

/// How to make it.
pub fn options_of_ours() -> Options {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Options::default().root_owner(uid.as_raw(), gid.as_raw())
}

/// The user who runs the tests, for calls in process.
pub fn cred() -> Cred {
    Cred::user(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// A fresh directory to mount on.
pub fn fresh_dir() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("sluice-fuse-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the temporary directory is writable");
    dir
}

impl Fixture {
    /// Mounts an empty file system with `options`, or says why not.
    pub fn new(options: &str) -> Option<Fixture> {
        can_mount().then(|| Fixture::of(&fresh_superblock(), options))
    }

    /// Mounts `superblock`.
    pub fn of(superblock: &Arc<Superblock>, options: &str) -> Fixture {
        let dir = fresh_dir();
        let options = MountOptions::parse(options).expect("the test's options are valid");
        let mount = options.mount(superblock, &dir).expect("mounting works here");
        Fixture { fs: Fs::with_superblock(superblock.clone()), mount: Some(mount), dir }
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `name` below the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The mount.
    pub fn mount(&self) -> &Mount {
        self.mount.as_ref().expect("the mount is there until it is taken")
    }

    /// Takes the mount out, to end it in a way of the test's own.
    pub fn take_mount(&mut self) -> Mount {
        self.mount.take().expect("the mount is taken once")
    }

    /// Unmounts, and checks that the tree is sound and that nothing of the kernel's is left behind.
    pub fn finish(mut self) {
        let superblock = self.fs.superblock().clone();
        let mount = self.take_mount();
        // A process that another test is just starting may hold copies of this test's files until it runs its
        // program.
        eventually("nothing uses the mount any more", || match mount.unmount() {
            Err(MountError::Busy(_)) => false,
            decided => decided.map(|()| true).expect("unmounting works"),
        });
        assert!(!is_mounted(&self.dir));
        let report = superblock.check_idle();
        assert!(report.is_clean(), "{report}");
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.mount.take());
        // Left over only when a test failed; it is empty, as the mount is gone.
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// True if something is mounted on `dir`.
pub fn is_mounted(dir: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("proc is mounted");
    table.lines().any(|line| line.split(' ').nth(4) == dir.to_str())
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "never happened: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A process that runs `peer.c`. Killed when dropped.
pub struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Peer {
    /// Runs `peer ARGUMENTS...`, or says why not.
    pub fn start(arguments: &[&str]) -> Option<Peer> {
        let program = peer_program()?;
        let mut command = Command::new(program);
        let mut child = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the compiled peer runs");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Some(Peer { child, stdin, stdout })
    }

    /// The next line that it prints, empty when it ended.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the pipe is readable");
        line.trim_end().to_string()
    }

    /// Sends it one line, and returns the line that it answers.
    pub fn tell(&mut self, line: &str) -> String {
        let stdin = self.stdin.as_mut().expect("its input is open until it is let go");
        writeln!(stdin, "{line}").expect("the peer reads");
        self.line()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("the peer runs");
    }

    /// Tells it to take the next step.
    pub fn step(&mut self) {
        let stdin = self.stdin.as_mut().expect("its input is open until it is let go");
        stdin.write_all(b"x").expect("the peer reads it");
    }

    /// Ends its input, so that it will not stay where it waits for that.
    pub fn let_go(&mut self) {
        drop(self.stdin.take());
    }

    /// Lets it go on past where it waits for its input, then waits for its end. Returns its last output.
    pub fn finish(mut self) -> String {
        self.let_go();
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).expect("the pipe is readable");
        self.child.wait().expect("the peer is a child");
        rest.trim_end().to_string()
    }

    /// Kills it outright and waits for its end.
    pub fn kill(mut self) {
        self.child.kill().expect("the peer runs");
        self.child.wait().expect("the peer is a child");
    }

    fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The compiled helper, or None where there is no C compiler.
fn peer_program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("peer")).as_deref()
}

/// The program of the file `NAME.c`, or says why not.
pub fn compiled(name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).with_extension("c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let mut compiler = Command::new("cc");
    match compiler.args(["-O1", "-Wall", "-pthread", "-o"]).args([&program, &source]).status() {
        Ok(status) => assert!(status.success(), "{name}.c does not compile"),
        Err(_) => {
            skipped("no C compiler (install gcc): this test needs a helper process and did not run");
            return None;
        }
    }
    Some(program)
}
