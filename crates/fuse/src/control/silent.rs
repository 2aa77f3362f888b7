//! Silent: what can be seen of a server that does not answer, without a question to it.

use super::{abstract_name, process_at};
use crate::mountinfo;
use crate::proc_stat::{fields, stat_of};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::fs;
use std::path::Path;

/// The visible state of the server of the mount that holds `path`: its process, that process's state, and how many requests wait.
/// None if nothing can be seen. No file of a mount is touched.
pub fn silent_server(path: &Path) -> Option<String> {
    let path = std::path::absolute(path).ok()?;
    let mounts = mountinfo::read().ok()?;
    let holds = |entry: &&mountinfo::MountEntry| entry.is_sluicefs() && path.starts_with(&entry.mountpoint);
    // The last one of the deepest: mounts may stand on each other.
    let mount = mounts.iter().filter(holds).max_by_key(|entry| entry.mountpoint.components().count())?;
    let waiting = fs::read_to_string(format!("/sys/fs/fuse/connections/{}/waiting", mount.device.1));
    let waiting = waiting.ok().and_then(|text| text.trim().parse::<u64>().ok());
    let requests = waiting.map(|waiting| format!("requests that wait for it: {waiting}"));
    let seen = [process_of(mount.device).and_then(state_of), requests];
    let seen: Vec<String> = seen.into_iter().flatten().collect();
    (!seen.is_empty()).then(|| seen.join("; "))
}

/// The process that listens for the mount `device`.
fn process_of(device: (u32, u32)) -> Option<i32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    let address = SocketAddrUnix::new_abstract_name(abstract_name(device).as_bytes()).ok()?;
    // It need not accept: the kernel keeps the connection, and knows who listens.
    rustix::net::connect(&socket, &address).ok()?;
    process_at(&socket).ok().filter(|pid| *pid > 0)
}

/// A process and its state, in words.
fn state_of(pid: i32) -> Option<String> {
    let state = fields(&stat_of(pid)?)?.next()?.chars().next()?;
    Some(format!("process {pid} {}", in_words(state)))
}

fn in_words(state: char) -> &'static str {
    match state {
        'T' | 't' => "is stopped: kill -CONT lets it go on",
        'D' => "waits for a disk",
        'Z' | 'X' => "has ended",
        'R' => "runs",
        _ => "sleeps",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_process_is_told_in_words() {
        let own = i32::try_from(std::process::id()).expect("a small number");
        let seen = state_of(own).expect("it lives");
        assert!([" runs", " sleeps"].iter().any(|end| seen.ends_with(end)), "{seen}");
        assert!(in_words('T').starts_with("is stopped") && in_words('D') == "waits for a disk");
        assert_eq!((in_words('Z'), in_words('S'), in_words('R')), ("has ended", "sleeps", "runs"));
        assert!(silent_server(Path::new("/proc")).is_none());
    }
}
