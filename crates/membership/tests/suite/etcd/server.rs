//! Server: an etcd of one member on loopback, with its own data, for as long as this lives.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// No test waits for longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// How often an etcd is started: another program may take a port before it does.
const ATTEMPTS: u32 = 3;

pub(crate) struct Server {
    pub(crate) process: Child,
    /// Its data, and what tests put beside.
    pub(crate) dir: PathBuf,
    pub(crate) address: String,
}

impl Server {
    /// Starts one. Says loudly, past the test harness, that `test` is skipped if etcd is not installed.
    pub(crate) fn start(test: &str) -> Option<Server> {
        Server::start_with(test, "http", |_| Vec::new())
    }

    /// Starts a server, as [`start`](Self::start) does, with the further arguments that `options` returns for its directory and
    /// the URL scheme `scheme` for clients.
    pub(crate) fn start_with(
        test: &str,
        scheme: &str,
        options: impl Fn(&Path) -> Vec<String>,
    ) -> Option<Server> {
        let dir = fast_dir().join(format!("sluice-etcd-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a new directory");
        for attempt in 1..=ATTEMPTS {
            let free =
                || TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
            let (clients, peers, health) = (free(), free(), format!("http://{}", free()));
            let address = format!("{scheme}://{clients}");
            let started = programs().iter().find_map(|program| {
                Command::new(program)
                    .arg("--data-dir")
                    .arg(dir.join(format!("data-{attempt}")))
                    .args(["--listen-client-urls", &address, "--advertise-client-urls", &address])
                    .args(["--listen-peer-urls", &format!("http://{peers}")])
                    .args(["--listen-metrics-urls", &health])
                    .args(options(&dir))
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .ok()
            });
            let Some(mut process) = started else {
                let _ = std::fs::remove_dir_all(&dir);
                let _ = writeln!(
                    std::io::stderr(),
                    "SKIPPED: {test}: there is no etcd (make programs installs it, or apt-get install etcd-server)"
                );
                return None;
            };
            let has_ended = Cell::new(false);
            until("etcd has a leader", || {
                let is_healthy = is_healthy(&health);
                // If the process has ended, another program answers at its port.
                has_ended.set(process.try_wait().expect("it is a child").is_some());
                is_healthy || has_ended.get()
            });
            if !has_ended.get() {
                return Some(Server { process, dir, address });
            }
        }
        panic!("etcd ended early, {ATTEMPTS} times");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Where its data are: in memory, if there is such a place. No test counts on a disk, and one that is busy holds up each change.
fn fast_dir() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let room = rustix::fs::statvfs(&memory).map_or(0, |told| told.f_bavail * told.f_frsize);
    if room > 1 << 30 { memory } else { std::env::temp_dir() }
}

/// Where one may be installed.
fn programs() -> [PathBuf; 2] {
    let tools = std::env::var_os("TOOLS").map(PathBuf::from);
    let tools = tools.unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools").into());
    ["etcd".into(), tools.join("etcd/usr/bin/etcd")]
}

/// Whether it answers that it works.
fn is_healthy(address: &str) -> bool {
    ask(address, "GET /health HTTP/1.0\r\n\r\n").is_ok_and(|answer| answer.contains("true"))
}

pub(crate) fn ask(address: &str, request: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address.trim_start_matches("http://"))?;
    connection.set_read_timeout(Some(LIMIT))?;
    connection.write_all(request.as_bytes())?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Sends a signal by kill(1).
pub(crate) fn send(signal: &str, pid: u32) {
    let sent = Command::new("kill").args([signal, &pid.to_string()]).status();
    assert!(sent.expect("kill runs").success(), "{signal} to {pid}");
}

/// Stops a process, and waits until it stands still: the signal has to reach each of its threads.
pub(crate) fn stop(pid: u32) {
    send("-STOP", pid);
    let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = thread.and_then(|thread| std::fs::read_to_string(thread.path().join("stat")));
        stat.is_ok_and(|stat| stat.contains(") T "))
    };
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    until(&format!("{pid} stands still"), || threads().all(is_stopped));
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < limit, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
