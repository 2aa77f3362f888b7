//! Mounts: every sluicefs that this process sees, and what its server says of itself.

use super::client::{server_of_device, stat_of_device};
use super::unserved;
use crate::mount_stat::MountStat;
use crate::mountinfo;
use sluice_sync::thread::{self, JoinHandle};
use sluice_sync::time::{Duration, Instant};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// How often a waiting caller looks whether the servers have answered.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A mount of sluicefs in the table of mounts.
#[derive(Debug)]
pub struct ListedMount {
    /// Where it is mounted.
    pub directory: PathBuf,
    /// Its source in the table of mounts: the store, if its server has one.
    pub source: OsString,
    /// The process number of the server, as the server sees it, and what it has counted.
    pub server: ServerAnswer,
}

/// How the server of a mount answered.
#[derive(Debug)]
pub enum ServerAnswer {
    /// It serves.
    Serves(u32, Box<MountStat>),
    /// Nobody listens: the server has ended, and calls in the mount fail, or it is in another network namespace.
    Nobody,
    /// The server did not answer in time.
    Silent,
    /// The mount has no server for a while, and calls there wait, for this reason: see [`Unserved`](super::Unserved).
    Waits(String),
    /// The server is another user's, or said something else than statistics: as a line.
    Refused(String),
}

/// All mounts of sluicefs that this process sees, in the order in which they were made. The servers are asked side by side, and have
/// `patience` together. No file of a mount is touched: a server that hangs holds up nobody.
///
/// # Errors
/// When the table of mounts cannot be read.
pub fn mounts(patience: Duration) -> io::Result<Vec<ListedMount>> {
    let end = Instant::now() + patience;
    let asked: Vec<_> = mountinfo::read()?
        .into_iter()
        .filter(mountinfo::MountEntry::is_sluicefs)
        .map(|entry| {
            // The thread of a server that hangs stays behind until its own patience ends, or the process.
            let asking = thread::Builder::new().name("list".into()).spawn(move || ask(entry.device));
            (entry.mountpoint, entry.source, asking)
        })
        .collect();
    let listed = |(directory, source, asking): (_, _, io::Result<JoinHandle<ServerAnswer>>)| {
        let server = match asking {
            Ok(asking) => {
                while !asking.is_finished() && Instant::now() < end {
                    thread::sleep(LOOK_AGAIN);
                }
                let answer = asking.is_finished().then(|| asking.join().ok()).flatten();
                answer.unwrap_or(ServerAnswer::Silent)
            }
            Err(error) => ServerAnswer::Refused(error.to_string()),
        };
        ListedMount { directory, source, server }
    };
    Ok(asked.into_iter().map(listed).collect())
}

fn ask(device: (u32, u32)) -> ServerAnswer {
    let both = || io::Result::Ok(server_of_device(device)?.zip(stat_of_device(device)?));
    match both() {
        Ok(None) => ServerAnswer::Nobody,
        Ok(Some((process, stat))) => match serde_json::from_slice(&stat) {
            Ok(stat) => ServerAnswer::Serves(process, stat),
            Err(_) => {
                ServerAnswer::Refused("the server answers in another form: is it of another version?".into())
            }
        },
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            ServerAnswer::Silent
        }
        Err(error) => {
            let line = error.to_string();
            match unserved::why(&line) {
                Some(why) => ServerAnswer::Waits(why.to_owned()),
                None => ServerAnswer::Refused(line),
            }
        }
    }
}
