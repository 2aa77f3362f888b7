//! Control: questions that another process may ask the server of a mount.
//!
//! # Theory
//! The server listens on an abstract Unix socket that is named after the mount's device number, so that it is found
//! from any path inside the mount, and on a socket file (`socket_file`), which clients in other network namespaces find. One question
//! per connection:
//! ```text
//!   client                        server
//!   "locks\n", "hot\n", "stat\n", "content\n", "files\n",
//!   "namespace\n", "server\n", "snapshots\n", "end\n", or an
//!   order and what it is about        ──>
//!                           <──   "ok\n" and the answer, or one line that says why not; end of stream
//! ```
//! The order `upgrade` is in `upgrade.rs`. The others are `clone`, `take-snapshot`, `drop-snapshot` and `restore-snapshot`, and those in `faults.rs`, `quota.rs`, `scrub.rs` and
//! `transfer.rs`. A
//! line of numbers follows, the last one the length of a name, and the name. The object of a clone is given in numbers, since a path would be
//! relative to the client: an inode and the directory of the copy. The client has both open until it is answered.
//!
//! Anybody can bind or connect to such a name, so both sides look at the other's credentials: the server
//! answers root and its own user, the client believes root and its own user. No user is waited for who only holds a name:
//! a client tries the socket file first, in a directory that no other user can have made, and each wait for a connection
//! has a limit.

mod chunks;
mod client;
mod ending;
mod faults;
mod mounts;
pub(crate) mod order;
mod process_wait;
mod quota;
mod scrub;
pub(crate) mod server;
mod silent;
mod socket_file;
pub(crate) mod stat;
mod streams;
mod transfer;
mod unserved;
mod upgrade;

pub use crate::mount_stat::{
    FileSystemStat, HotFile, Latency, MountStat, ObjectRequests, ObjectStoreStat, ScrubStat, StoreStat,
};
pub use client::{
    all_locks, check_workspaces, clone_tree, content_of_device, drop_snapshot, hot_locks, is_elsewhere,
    kernel_locks, library_files, locks, move_workspace, new_workspace, restore_snapshot, server_of,
    snapshots, stat, stat_of_device, take_snapshot,
};
pub use ending::{ServerEnd, ServerOutcome, end_of, tell_end, will_tell_end};
pub use faults::{clear_faults, crash_clone, faults, inject, track_crashes, unsynced};
pub use mounts::{ListedMount, ServerAnswer, mounts};
pub use process_wait::ProcessWait;
pub use quota::{QuotaOrder, quota};
pub use scrub::scrub;
pub(crate) use server::Server;
pub use silent::silent_server;
pub use streams::{changes, export, receive, send};
pub use unserved::Unserved;
pub use upgrade::upgrade;

pub use crate::workspace::{MAKES_WORKSPACES, junction as junction_to, with_root as workspace_with_root};

use nix::sys::socket::{getsockopt, sockopt};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use sluice_sync::time::Duration;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// How long the server waits for a client, while others wait behind it.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a client waits for the server: a busy machine may keep that from its CPU for seconds.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// First line of an answer.
const OK: &str = "ok\n";
/// The whole answer to `locks` and `hot` when the kernel serves them.
const LOCKS_IN_KERNEL: &str = "locks are served by the kernel\n";

/// The abstract name on which the server of the mount with device number `device` listens.
fn abstract_name((major, minor): (u32, u32)) -> String {
    format!("sluicefs/{major}:{minor}")
}

/// Connects to `address`. A listener that accepts nobody is waited for as long as `patience`.
///
/// # Errors
/// The system's; `TimedOut`.
fn connect(address: &SocketAddrUnix, patience: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => Ok(socket.into()),
        Err(Errno::AGAIN) => {
            Err(io::Error::new(ErrorKind::TimedOut, "the control socket of this mount accepts nobody"))
        }
        Err(error) => Err(error.into()),
    }
}

/// The pid namespace of this process, as the kernel names it.
fn pid_namespace() -> String {
    // Without /proc nothing can be said, here or by the other side.
    std::fs::read_link("/proc/self/ns/pid").map_or_else(|_| String::new(), |link| link.display().to_string())
}

/// The user of the process at the other end.
fn user_of(stream: &UnixStream) -> io::Result<u32> {
    // Not rustix's function: it assumes that a process number is never 0, but the number of a process in an invisible
    // namespace is 0.
    Ok(getsockopt(stream, sockopt::PeerCredentials)?.uid())
}

/// True if the process at the other end is root's or this user's.
fn is_trusted(stream: &UnixStream) -> io::Result<bool> {
    let user = user_of(stream)?;
    Ok(user == 0 || user == rustix::process::geteuid().as_raw())
}

/// Whether one process is at the other ends of both connections.
fn is_same_process(one: &UnixStream, other: &UnixStream) -> bool {
    matches!((process_at(one), process_at(other)), (Ok(one), Ok(other)) if one == other)
}

/// The number of the process at the other end, 0 if it is in a pid namespace that is invisible here.
fn process_at(socket: &impl AsFd) -> io::Result<i32> {
    // As in user_of().
    Ok(getsockopt(socket, sockopt::PeerCredentials)?.pid())
}

/// The connection, if the server at its other end [is trusted](is_trusted).
fn trusted(stream: UnixStream) -> io::Result<UnixStream> {
    if is_trusted(&stream)? { Ok(stream) } else { Err(of_another_user()) }
}

fn of_another_user() -> io::Error {
    let message = "the control socket of this mount belongs to another user";
    io::Error::new(ErrorKind::PermissionDenied, message)
}
