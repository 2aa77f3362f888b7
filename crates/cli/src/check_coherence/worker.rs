//! Worker: the program on one directory. It reads orders, a line each, makes the calls, and writes what it is told.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sluice_coherence::{Offered, SharedAnswer, SharedCall, SharedDir, monotonic_ns, offered_in};
use sluice_console::failure::Result;
use sluice_sync::thread;
use sluice_sync::time::Duration;
use std::fs;
use std::io::{self, BufRead, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// An order to a program. All paths are below its directory.
#[derive(Serialize, Deserialize)]
pub(super) enum WorkerOrder {
    MakeDir(PathBuf),
    /// Make a file with this text.
    MakeMarker(PathBuf, String),
    /// Look whether there is a file with this text.
    SeeMarker(PathBuf, String),
    /// Find out which calls there are, by a file of this name.
    Probe(PathBuf, String),
    /// Make the directories of a round, durably or not.
    MakeRound(PathBuf, bool),
    /// Make these calls, each after a pause in microseconds, and close all at the end.
    Calls {
        root: PathBuf,
        calls: Vec<(u64, SharedCall)>,
        begin_ns: u64,
        may_vanish: bool,
    },
    Remove(PathBuf),
}

/// A reply of a program. An order has one reply that is not a call.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WorkerReply {
    Done,
    Failed(String),
    Offered(Offered),
    /// A call begins.
    Begun(SharedCall, u64),
    /// A call has ended: its begin, its end and its answer.
    Ended(u64, u64, std::result::Result<SharedAnswer, i32>),
}

impl From<io::Result<()>> for WorkerReply {
    fn from(outcome: io::Result<()>) -> WorkerReply {
        match outcome {
            Ok(()) => WorkerReply::Done,
            Err(error) => WorkerReply::Failed(error.to_string()),
        }
    }
}

/// Follows orders from standard input until it ends.
///
/// # Errors
/// Standard output is gone.
pub(crate) fn work(dir: &Path) -> Result<()> {
    for line in io::stdin().lock().lines() {
        let Ok(order) = serde_json::from_str(&line?) else {
            tell(&WorkerReply::Failed("not an order".into()))?;
            continue;
        };
        let reply = follow(dir, order)?;
        tell(&reply)?;
    }
    Ok(())
}

fn tell(reply: &WorkerReply) -> Result<()> {
    let mut line = serde_json::to_string(reply).map_err(io::Error::from)?;
    line.push('\n');
    let mut stdout = io::stdout();
    stdout.write_all(line.as_bytes())?;
    Ok(stdout.flush()?)
}

fn follow(dir: &Path, order: WorkerOrder) -> Result<WorkerReply> {
    let of_system = |outcome: std::result::Result<(), Errno>| outcome.map_err(io::Error::from).into();
    Ok(match order {
        WorkerOrder::MakeDir(name) => {
            let made = fs::DirBuilder::new().mode(0o700).create(dir.join(name));
            made.and_then(|()| fs::File::open(dir)?.sync_all()).into()
        }
        WorkerOrder::MakeMarker(name, text) => {
            let file = fs::File::create_new(dir.join(name));
            file.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all())).into()
        }
        WorkerOrder::SeeMarker(name, text) => match fs::read_to_string(dir.join(name)) {
            Ok(seen) if seen == text => WorkerReply::Done,
            Ok(_) => WorkerReply::Failed("another file".into()),
            Err(error) => WorkerReply::Failed(error.to_string()),
        },
        WorkerOrder::Probe(base, name) => match offered_in(&dir.join(base), &name) {
            Ok(offered) => WorkerReply::Offered(offered),
            Err(errno) => WorkerReply::Failed(io::Error::from(errno).to_string()),
        },
        WorkerOrder::MakeRound(root, is_durable) => {
            of_system(SharedDir::new(dir.join(root), false).make_dirs(is_durable))
        }
        WorkerOrder::Calls { root, calls, begin_ns, may_vanish } => {
            make_calls(SharedDir::new(dir.join(root), may_vanish), calls, begin_ns)?;
            WorkerReply::Done
        }
        WorkerOrder::Remove(path) => match fs::remove_dir_all(dir.join(path)) {
            // A mount directory that was moved away keeps the files.
            Err(error) if error.kind() == ErrorKind::NotFound && dir.exists() => WorkerReply::Done,
            outcome => outcome.into(),
        },
    })
}

fn make_calls(mut shared: SharedDir, planned: Vec<(u64, SharedCall)>, begin_ns: u64) -> Result<()> {
    thread::sleep(Duration::from_nanos(begin_ns.saturating_sub(monotonic_ns())));
    for (pause, call) in planned {
        if pause > 0 {
            thread::sleep(Duration::from_micros(pause));
        }
        for call in shared.calls_for(&call) {
            make(&mut shared, call)?;
        }
    }
    for call in shared.closing_calls() {
        make(&mut shared, call)?;
    }
    Ok(())
}

fn make(shared: &mut SharedDir, call: SharedCall) -> Result<()> {
    // The call may never return: it is told before.
    tell(&WorkerReply::Begun(call.clone(), monotonic_ns()))?;
    let (begun, ended, result) = shared.make(&call);
    tell(&WorkerReply::Ended(begun, ended, result))
}
