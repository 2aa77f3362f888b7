//! Servers: processes of their own that serve a mount for a test, and say how they stand.

use super::{fresh_dir, is_mounted};
use rustix::process::Signal;
use sluice_fuse::{Mount, StopSignals};
use sluice_vfs::Fs;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Set in a child process: the directory that it is to mount on and serve.
const SERVE: &str = "SLUICE_FUSE_TEST_SERVE";

/// Serves a mount until it ends, if this process was started for that by [`Server::start`].
pub fn serve_if_asked() -> bool {
    let Some(dir) = std::env::var_os(SERVE) else { return false };
    let fs = Fs::builder().root_mode(0o777).build();
    let signals = StopSignals::catch().expect("signals can be caught");
    match Mount::new(&fs, &dir) {
        Ok(mount) => {
            println!("\nserving");
            let ended = mount.run_until_signal(signals).expect("a thread can be started");
            println!("{ended:?}");
        }
        Err(error) => println!("\nerror: {error}"),
    }
    true
}

/// A process that serves a mount. Killed, and the mount removed, when dropped.
pub struct Server {
    pub child: Child,
    stdout: BufReader<std::process::ChildStdout>,
    pub dir: PathBuf,
}

impl Server {
    /// Runs the test called `test` again in a process of its own, as user `uid`; it must begin with
    /// [`serve_if_asked`].
    pub fn start(test: &str, uid: u32) -> Server {
        Server::start_program(&std::env::current_exe().expect("this program has a path"), test, uid)
    }

    /// The same, where this program is at `program`.
    pub fn start_program(program: &Path, test: &str, uid: u32) -> Server {
        let dir = fresh_dir();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&dir, Some(uid), Some(uid)).expect("root may");
        }
        let mut command = Command::new(program);
        command.args(["--exact", test, "--nocapture"]).env(SERVE, &dir).stdout(Stdio::piped());
        if rustix::process::geteuid().as_raw() != uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().expect("this program runs");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Server { child, stdout, dir }
    }

    /// The next line that says how it stands, past what the test runner prints.
    pub fn status(&mut self) -> String {
        let mut line = String::new();
        while self.stdout.read_line(&mut line).expect("the pipe is readable") > 0 {
            if ["serving", "error", "Unmounted", "Detached"].iter().any(|word| line.starts_with(word)) {
                return line.trim_end().to_string();
            }
            line.clear();
        }
        line
    }

    pub fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the server runs");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if is_mounted(&self.dir) {
            let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(&self.dir).status();
        }
        let _ = fs::remove_dir(&self.dir);
    }
}
