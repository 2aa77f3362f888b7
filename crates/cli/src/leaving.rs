//! Leaving: waits for a server that lets its store go.

use crate::bucket;
use crate::in_time::in_time_of;
use crate::processes::{command_of, is_over, parent_of};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sluice_console::failure::{Failure, Result};
use sluice_fuse::control::{self, ServerAnswer, ServerEnd, ServerOutcome};
use sluice_store::StoreError;
use sluice_store::disk::HostDisk;
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant};
use std::os::fd::OwnedFd;
use std::path::Path;

/// How long a server may take to say which process it is: it is unmounted all the same.
const ASK_MAX: Duration = Duration::from_millis(1200);
/// How long a server that writes what is left may do nothing.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the processes of a server that has let go may take to exit: until then they have files of the store's disk open.
const EXIT_MAX: Duration = Duration::from_secs(5);
/// How long a server without a mount is waited for: one that was unmounted lazily stays as long as its files are open.
const LEAVING: Duration = Duration::from_secs(30);

/// The server of a mount that is about to be unmounted.
#[derive(Default)]
pub(crate) struct LeavingServer {
    /// Its process, if this one can tell.
    process: Option<u32>,
    /// Handles of the server's process and of its holder's, if the mount has one.
    processes: Vec<OwnedFd>,
    end: Option<ServerEnd>,
    /// For a silent server: its process and state, as far as `/proc` tells.
    silence: Option<String>,
}

impl LeavingServer {
    /// The server of the mount on `dir`.
    pub(crate) fn of(dir: &Path) -> LeavingServer {
        let asked = in_time_of(ASK_MAX, dir, |dir| {
            // A server in another pid namespace has another number there.
            let is_here = control::is_elsewhere(dir).is_ok_and(|is_elsewhere| !is_elsewhere);
            let process = control::server_of(dir).ok().flatten().filter(|_| is_here);
            let end = control::end_of(dir).ok().flatten();
            let processes = process.map_or_else(Vec::new, processes_of);
            Ok(LeavingServer { process, processes, end, silence: None })
        });
        asked.unwrap_or_else(|_| LeavingServer {
            silence: Some(control::silent_server(dir).unwrap_or_default()),
            ..LeavingServer::default()
        })
    }

    /// For a silent server: what was seen of it, as the rest of a message.
    pub(crate) fn silence(&self) -> Option<String> {
        self.silence.as_ref().map(|seen| format!("; its server does not answer ({seen})"))
    }

    /// [Waits](await_end_for) until it has let go of `store`, and has exited. A silent server is not waited for.
    pub(crate) fn await_end(self, store: &Path) -> Result<()> {
        match self.silence {
            None => {
                if await_end_for(PATIENCE, store, self.process, self.end)? {
                    wait_while(EXIT_MAX, || !self.processes.iter().all(is_over));
                }
                Ok(())
            }
            Some(seen) => await_end_for(Duration::ZERO, store, None, None)
                .map(drop)
                .map_err(|failure| Failure::Failed(format!("{failure}; {seen}"))),
        }
    }
}

/// The process `server`, and its parent if that is a `sluice mount`.
fn processes_of(server: u32) -> Vec<OwnedFd> {
    let server = Pid::from_raw(server.cast_signed());
    let is_mount = |pid: &Pid| is_mount_command(&command_of(pid.as_raw_nonzero().get().cast_unsigned()));
    let parent = server.and_then(parent_of).filter(is_mount);
    let open = |pid: Pid| pidfd_open(pid, PidfdFlags::empty()).ok();
    [server, parent].into_iter().flatten().filter_map(open).collect()
}

/// Whether the [command line](command_of) is that of a `sluice mount`.
fn is_mount_command(line: &str) -> bool {
    line.split('\0').nth(1) == Some("mount")
}

/// Waits until the `server` of `store`, which is unmounted, has brought everything there and let go: the next command may want it.
/// Does not wait for a server whose mount goes on elsewhere, and returns false then. Another node of a cluster may have the store for as long as it
/// likes: where the server is not known, only a server without a mount is waited for.
///
/// # Errors
/// The line that the server says at its `end`, if not all is durable; that it has not let go yet.
fn await_end_for(
    patience: Duration,
    store: &Path,
    server: Option<u32>,
    end: Option<ServerEnd>,
) -> Result<bool> {
    if end.as_ref().is_some_and(ServerEnd::is_mounted_elsewhere) {
        return Ok(false);
    }
    match end.map(|end| end.wait(patience)) {
        Some(ServerOutcome::Failed(why)) => return Err(Failure::Failed(why)),
        Some(ServerOutcome::GoesOn) => return Ok(false),
        Some(ServerOutcome::Ended) | None => {}
    }
    let bucket = bucket::at(store).unwrap_or_default();
    let is_meant = |user: u32| server.map_or_else(|| is_leaving(user, store), |server| server == user);
    // A process that has ended holds nothing.
    let may_hold = || server.is_none_or(|server| Path::new(&format!("/proc/{server}")).exists());
    let is_used = || match &bucket {
        Some(bucket) => {
            matches!(bucket.user(), Ok(Some(StoreError::InUse(Some(user)))) if is_meant(user))
        }
        None => match HostDisk::lock_read_only(store) {
            // A process that is not shown may be meant.
            Err(StoreError::InUse(user)) => user.is_none_or(is_meant),
            _ => false,
        },
    };
    let has_it = || may_hold() && is_used();
    wait_while(patience, has_it);
    match has_it() {
        true => Err(Failure::Failed(format!(
            "{}: its server does not answer and still has the store: not all may be durable (wait until it has ended)",
            store.display()
        ))),
        false => Ok(true),
    }
}

/// Waits while `goes_on`, for `limit` at most. The looks get rarer, down to four a second: each may be a request to an object store.
fn wait_while(limit: Duration, mut goes_on: impl FnMut() -> bool) {
    const LONGEST_PAUSE: Duration = Duration::from_millis(250);
    let (began, mut pause) = (Instant::now(), Duration::from_millis(2));
    while goes_on() && began.elapsed() < limit {
        thread::sleep(pause);
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// Does `open`, again and again while a server of ours has `store` whose mount is gone: umount(8) returns before it has ended.
pub(crate) fn once_left<T>(
    store: &Path,
    open: impl Fn() -> std::result::Result<T, StoreError>,
) -> std::result::Result<T, StoreError> {
    let mut opened = open();
    wait_while(LEAVING, || {
        let is_leaving = matches!(&opened, Err(StoreError::InUse(Some(user))) if is_leaving(*user, store));
        if is_leaving {
            opened = open();
        }
        is_leaving
    });
    opened
}

/// Whether process `user` is a server that has `store`, and no mount of it any more.
fn is_leaving(user: u32, store: &Path) -> bool {
    let line = command_of(user);
    if line.is_empty() {
        return true;
    }
    // A mount whose name differs from the store's cannot be proved gone.
    let is_server = is_mount_command(&line) && !line.contains("fsname=");
    let store = store.canonicalize().unwrap_or_else(|_| store.to_owned());
    match sluice_fuse::is_mounted_for(user, store.as_os_str()) {
        // The store may have been moved since it was mounted.
        Ok(mounted) => is_server && !mounted && !serves(user),
        // It may have ended just now.
        Err(_) => command_of(user).is_empty(),
    }
}

/// Whether process `user` serves a mount that this process sees.
fn serves(user: u32) -> bool {
    let mounts = control::mounts(ASK_MAX).unwrap_or_default();
    mounts.iter().any(|mount| matches!(mount.server, ServerAnswer::Serves(server, _) if server == user))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_vfs::{Options, Superblock};

    #[test]
    fn looks_at_a_store_in_use_get_rarer_and_end_with_their_reason() {
        let mut looks = 0;
        wait_while(Duration::from_secs(60), || {
            looks += 1;
            looks < 6
        });
        assert_eq!(looks, 6);
        let mut late = 0;
        wait_while(Duration::ZERO, || {
            late += 1;
            true
        });
        assert_eq!(late, 1);
    }

    #[test]
    fn nobody_waits_for_a_server_that_is_dead() {
        let dir = std::env::temp_dir().join(format!("sluice-dead-server-{}", std::process::id()));
        let store = Superblock::create(&dir, Options::default()).unwrap();
        let began = Instant::now();
        // Another process, this one, has the store.
        await_end_for(PATIENCE, &dir, None, None).expect("it is no failure");
        await_end_for(PATIENCE, &dir, Some(u32::MAX), None).expect("it is no failure");
        assert!(began.elapsed() < PATIENCE);
        let late = await_end_for(Duration::ZERO, &dir, Some(std::process::id()), None);
        let late = late.expect_err("it is no success").to_string();
        assert!(late.contains("does not answer and still has the store"), "{late}");
        store.close().unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }
}
