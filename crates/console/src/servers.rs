//! Servers: the servers that a cluster stands on, for as long as a demo or a test lasts: members of an etcd, and an S3 server.

use crate::failure::{Context, Failure, Result};
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// How long a server may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How often a server is started: another program may take a port before it does.
const ATTEMPTS: usize = 3;

/// A server. Dropping it kills it.
pub struct ServerProcess {
    child: Child,
    /// `http://ADDRESS:PORT`.
    pub url: String,
    /// Environment variables for its clients.
    pub environment: Vec<(&'static str, &'static str)>,
}

/// The directory into which `make` puts servers and testers: `TOOLS` in the environment, else `target/tools`.
///
/// # Errors
/// When there is no current directory.
pub fn tools() -> Result<PathBuf> {
    let tools = std::env::var_os("TOOLS").map_or_else(|| "target/tools".into(), PathBuf::from);
    Ok(std::path::absolute(tools)?)
}

impl ServerProcess {
    /// Members of one etcd that listen at `address`, with their data below `dir`; none if there is no etcd, neither in `PATH` nor
    /// in `tools`, where `make programs` unpacks it.
    ///
    /// # Errors
    /// If a server does not start.
    pub fn etcd(
        tools: &Path,
        dir: &Path,
        address: IpAddr,
        members: usize,
    ) -> Result<Option<Vec<ServerProcess>>> {
        let Some(program) = find("etcd", &tools.join("etcd/usr/bin/etcd")) else { return Ok(None) };
        let start = |attempt| {
            let dir = dir.join(format!("etcd-{attempt}"));
            fs::create_dir_all(&dir)?;
            ServerProcess::start_etcd(&program, &dir, address, members)
        };
        started(start).map(Some)
    }

    fn start_etcd(program: &Path, dir: &Path, address: IpAddr, members: usize) -> Result<Vec<ServerProcess>> {
        let ports = free(address, 2 * members)?;
        let urls: Vec<_> = ports
            .chunks(2)
            .map(|pair| (format!("http://{}", pair[0]), format!("http://{}", pair[1])))
            .collect();
        let all: Vec<_> = urls.iter().enumerate().map(|(at, (_, peer))| format!("m{at}={peer}")).collect();
        let mut servers = Vec::new();
        for (at, (url, peer)) in urls.iter().enumerate() {
            let name = format!("m{at}");
            let arguments = [
                ("--name", name.as_str()),
                ("--listen-client-urls", url),
                ("--advertise-client-urls", url),
                ("--listen-peer-urls", peer),
                ("--initial-advertise-peer-urls", peer),
                ("--initial-cluster", &all.join(",")),
            ];
            let mut command = Command::new(program);
            command.arg("--data-dir").arg(dir.join(&name));
            command.args(arguments.iter().flat_map(|(option, value)| [*option, *value]));
            servers.push(ServerProcess::start(
                &mut command,
                &dir.join(format!("{name}.log")),
                url.clone(),
                Vec::new(),
            )?);
        }
        for server in &mut servers {
            // The server answers `true` only when it has a leader.
            server.await_answer("/health", |answer| answer.contains("true"))?;
        }
        Ok(servers)
    }

    /// An S3 server with `bucket` in it, whose objects are files below `dir`; none if there is no versitygw, neither in `PATH` nor
    /// in `tools`, where `make s3-server` puts it.
    ///
    /// # Errors
    /// If the server does not start.
    pub fn s3(tools: &Path, dir: &Path, address: IpAddr, bucket: &str) -> Result<Option<ServerProcess>> {
        let Some(program) = find("versitygw", &tools.join("bin/versitygw")) else { return Ok(None) };
        let objects = dir.join("objects");
        fs::create_dir_all(objects.join(bucket))?;
        started(|_| ServerProcess::start_s3(&program, dir, &objects, address)).map(Some)
    }

    fn start_s3(program: &Path, dir: &Path, objects: &Path, address: IpAddr) -> Result<ServerProcess> {
        const ACCESS: &str = "demo";
        const SECRET: &str = "for-this-demo-alone";
        let at = free(address, 1)?[0].to_string();
        let mut command = Command::new(program);
        command.args(["--port", &at, "--quiet", "posix"]).arg(objects);
        command.env("ROOT_ACCESS_KEY", ACCESS).env("ROOT_SECRET_KEY", SECRET);
        let environment = vec![
            ("AWS_ACCESS_KEY_ID", ACCESS),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_REGION", "us-east-1"),
        ];
        let url = format!("http://{at}");
        let mut server = ServerProcess::start(&mut command, &dir.join("s3.log"), url, environment)?;
        // Whatever it says to one that shows no key.
        server.await_answer("/", |answer| answer.starts_with("HTTP/"))?;
        Ok(server)
    }

    fn start(
        command: &mut Command,
        log: &Path,
        url: String,
        environment: Vec<(&'static str, &'static str)>,
    ) -> Result<ServerProcess> {
        let log = File::create(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Ctrl-C in a terminal is for us, and not for it: its clients come first.
        let child = command.process_group(0).spawn().context(|| format!("cannot start {command:?}"))?;
        Ok(ServerProcess { child, url, environment })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn await_answer(&mut self, path: &str, is_right: impl Fn(&str) -> bool) -> Result<()> {
        let limit = Instant::now() + START_LIMIT;
        loop {
            let is_answered = ask(&self.url, path).is_ok_and(|answer| is_right(&answer));
            // The answer at the port of a server that has ended comes from another program.
            if let Some(status) = self.child.try_wait()? {
                return Err(Failure::Failed(format!("the server at {} ended early: {status}", self.url)));
            }
            if is_answered {
                return Ok(());
            }
            if Instant::now() > limit {
                return Err(Failure::Failed(format!("the server at {} does not answer", self.url)));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The server has no state to save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The result of `start`, which gets the number of the attempt, in the first successful attempt.
fn started<T>(start: impl Fn(usize) -> Result<T>) -> Result<T> {
    (1..ATTEMPTS).fold(start(0), |outcome, attempt| outcome.or_else(|_| start(attempt)))
}

/// The program `name` in `PATH`, or else the one at `other`.
fn find(name: &str, other: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|dir| dir.join(name)).chain([other.to_owned()]);
    places.find(|program| program.is_file())
}

/// As many ports as `count` without a listener, all different.
fn free(address: IpAddr, count: usize) -> Result<Vec<SocketAddr>> {
    let listeners: Vec<_> =
        (0..count).map(|_| TcpListener::bind((address, 0))).collect::<std::io::Result<_>>()?;
    Ok(listeners.iter().map(TcpListener::local_addr).collect::<std::io::Result<_>>()?)
}

/// The answer of a server to GET, with its head.
fn ask(url: &str, path: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(url.trim_start_matches("http://"))?;
    connection.set_read_timeout(Some(START_LIMIT))?;
    write!(connection, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The members of an etcd, as the nodes of a cluster are told of them.
pub fn endpoints(servers: &[ServerProcess]) -> OsString {
    servers.iter().map(|server| server.url.as_str()).collect::<Vec<_>>().join(",").into()
}
