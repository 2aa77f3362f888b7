//! Watch: the file locks of a mount (`locks`), and what it has counted, once (`stat`), every second (`top`), or for Prometheus (`-o metrics=ADDRESS`).

use crate::args::Watched;
use crate::in_time::in_time;
use crate::metrics::{self, MountPlace};
use crate::screens::{self, Screens};
use crate::{mount_files, mount_locks, mount_stat};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::output::Output;
use sluice_fuse::control;
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

/// How long a client of the metrics may take to ask, and to read.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest head of a request that is read.
const HEAD_MAX: u64 = 8192;

pub(crate) fn locks(dir: &Path, table: bool, json: bool, hot: bool) -> Result<()> {
    let text = in_time(dir, move |dir| locks_of(dir, hot))?;
    if hot {
        return Output::plain().give(mount_locks::hot_files(&text)?.as_bytes());
    }
    if !table && !json {
        return Output::plain().give(&text);
    }
    let locks = mount_locks::parse(&text, mount_locks::command_of);
    let text = if json { mount_locks::json(&locks) } else { mount_locks::table(&locks) };
    Output::plain().give(text.as_bytes())
}

/// The locks of the mount that holds `dir`, or the statistics of its files' locks if it is these that are wanted.
fn locks_of(dir: &Path, hot: bool) -> Result<Vec<u8>> {
    say_if_elsewhere(dir);
    let place = || dir.display().to_string();
    if hot {
        let answer = control::hot_locks(dir).context(place)?;
        return answer.ok_or_else(|| match sluice_fuse::is_within(dir) {
            Ok(false) => no_server(dir),
            _ => {
                let text = "the kernel serves the locks here and counts nothing: mount with -o locks=sluice";
                Failure::Failed(format!("{}: {text}", place()))
            }
        });
    }
    if !sluice_fuse::is_within(dir).context(place)? {
        return Err(no_server(dir));
    }
    control::all_locks(dir).context(place)
}

pub(crate) fn stat(dir: &Path, json: bool, files: bool, explain: bool) -> Result<()> {
    let ask = move |dir: &Path| {
        say_if_elsewhere(dir);
        let answer = ask(dir)?;
        let asked = if files { control::library_files(dir) } else { Ok(None) };
        Ok((answer, asked.context(|| dir.display().to_string())?))
    };
    let (answer, in_server) = in_time(dir, ask)?;
    if files {
        let mut files = mount_files::of_programs(dir)?;
        files.extend(mount_files::of_server(&in_server.unwrap_or_default())?);
        let text = if json { mount_files::json(&answer, &files)? } else { mount_files::table(&files) };
        return Output::plain().give(text.as_bytes());
    }
    if json {
        return Output::plain().give(&answer);
    }
    let stat = mount_stat::parse(&answer)?;
    let text = if explain { metrics::explained(&stat) } else { mount_stat::text(&stat) };
    Output::plain().give(text.as_bytes())
}

pub(crate) fn top(dir: &Path, watched: &Watched) -> Result<()> {
    let ask = || in_time(dir, ask);
    in_time(dir, |dir| {
        say_if_elsewhere(dir);
        Ok(())
    })?;
    let mut screens = Screens::begin(watched)?;
    let (mut before, mut then) = (mount_stat::parse(&ask()?)?, Instant::now());
    let title = dir.display().to_string();
    while screens.wait() {
        let now = mount_stat::parse(&ask()?)?;
        let seconds = then.elapsed().as_secs_f64();
        let line = || {
            let mut fields = screens::fields(&now, Some(&before), seconds);
            fields.insert("directory".into(), title.clone().into());
            fields.into()
        };
        screens.show(&title, || mount_stat::screen(&now, &before, seconds), line)?;
        (before, then) = (now, Instant::now());
    }
    Ok(())
}

/// One line on standard error if the numbers of processes that will be told are not those of this process's namespace.
fn say_if_elsewhere(dir: &Path) {
    // A server that does not answer is told of by what is asked next.
    if control::is_elsewhere(dir).unwrap_or(false) {
        let text = "the server is in another pid namespace: the process numbers it tells are those there";
        eprintln!("sluice: {}: {text}", dir.display());
    }
}

fn ask(dir: &Path) -> Result<Vec<u8>> {
    let answer = control::stat(dir).context(|| dir.display().to_string())?;
    answer.ok_or_else(|| no_server(dir))
}

/// That no server answers for `path`, and why.
pub(crate) fn no_server(path: &Path) -> Failure {
    // For a dead mount the kernel may answer from its cache.
    let dead = rustix::fs::statfs(path).map_err(io::Error::from).err().filter(sluice_fuse::is_dead);
    if let Some(error) = dead {
        return Failure::from(error).in_context(path.display());
    }
    let text = match sluice_fuse::is_within(path) {
        Ok(true) => "no server of this mount answers in this network namespace: ask where it was mounted",
        _ => "not in a sluicefs mount: `sluice mount` makes one",
    };
    Failure::Failed(format!("{}: {text}", path.display()))
}

/// The pause between attempts to take the address.
const BIND_AGAIN: Duration = Duration::from_secs(1);
/// The pause after a client could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);

/// Answers every HTTP request at `address` with the counts of the mount `device`, until the process ends.
pub(crate) fn serve_metrics(address: SocketAddr, device: (u32, u32), place: MountPlace) -> Result<()> {
    let listener = TcpListener::bind(address).context(|| format!("mount option metrics={address}"))?;
    thread::spawn(move || answer_all(&listener, device, &place));
    Ok(())
}

/// Serves the counts, as [`serve_metrics`] does, as soon as no other process has the address.
pub(crate) fn serve_metrics_later(address: SocketAddr, device: (u32, u32), place: MountPlace) {
    thread::spawn(move || {
        let mut is_told = false;
        let listener = loop {
            match TcpListener::bind(address) {
                Ok(listener) => break listener,
                Err(error) if !std::mem::replace(&mut is_told, true) => {
                    log::warn!("mount option metrics={address}: {error}: tried again until it works");
                }
                Err(_) => thread::sleep(BIND_AGAIN),
            }
        };
        answer_all(&listener, device, &place);
    });
}

fn answer_all(listener: &TcpListener, device: (u32, u32), place: &MountPlace) {
    // One after the other: a collector of metrics asks every few seconds.
    for client in listener.incoming() {
        match client {
            // A client that goes away is its own loss.
            Ok(stream) => drop(answer(stream, device, place)),
            // Out of descriptors or memory: there may be some again later.
            Err(_) => thread::sleep(ACCEPT_AGAIN),
        }
    }
}

fn answer(stream: TcpStream, device: (u32, u32), place: &MountPlace) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // The whole head must be read, or closing would reset the connection before the answer is.
    let mut head = BufReader::new((&stream).take(HEAD_MAX));
    let mut line = String::new();
    let end = Instant::now() + PATIENCE;
    while head.read_line(&mut line)? > 0 && !line.trim_end().is_empty() {
        line.clear();
        // Lines that come slowly do not keep the next client waiting.
        let left = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
    }
    let stat = control::stat_of_device(device)?.and_then(|json| mount_stat::parse(&json).ok());
    let (status, body) = match stat {
        Some(stat) => ("200 OK", metrics::prometheus(&stat, place)),
        None => ("503 Service Unavailable", String::new()),
    };
    let kind = "text/plain; version=0.0.4";
    let length = body.len();
    (&stream).write_all(
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .as_bytes(),
    )
}
