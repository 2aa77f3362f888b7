//! Owners of file locks that go while they wait, and locks that change hands by a close: the same as on the host.

use crate::harness::{Fixture, LOCK_MODES, Peer, can_mount, eventually, fresh_dir, is_mounted, skipped};
use rustix::mount::UnmountFlags;
use sluice_fuse::control;
use sluice_vfs::Cred;
use std::path::{Path, PathBuf};

/// Where a test runs.
struct Place<'a> {
    path: String,
    /// None on the host.
    fixture: Option<&'a Fixture>,
}

impl Place<'_> {
    /// The lines of `sluice locks`, where the mount serves the locks.
    fn lines(&self) -> Option<Vec<String>> {
        let text = control::locks(self.fixture?.dir()).expect("the mount answers")?;
        Some(String::from_utf8_lossy(&text).lines().map(String::from).collect())
    }
}

/// Runs `body` on the host's tmpfs, if there is one, and on a mount in both lock modes; afterwards no lock may be left.
fn everywhere(body: impl Fn(&Place<'_>)) {
    if !can_mount() {
        return;
    }
    let host = Host::new();
    if let Some(host) = &host {
        body(&Place { path: host.0.display().to_string(), fixture: None });
    }
    for mode in LOCK_MODES {
        let Some(fixture) = Fixture::new(mode) else { return };
        std::fs::write(fixture.path("f"), "0123456789").expect("a fresh mount is writable");
        body(&Place { path: fixture.path("f").display().to_string(), fixture: Some(&fixture) });
        fixture.finish();
    }
}

/// A file on the host's tmpfs, removed in the end.
struct Host(PathBuf);

impl Host {
    fn new() -> Option<Host> {
        let shm = Path::new("/dev/shm");
        let name = fresh_dir();
        // Only its name was wanted.
        std::fs::remove_dir(&name).expect("it is empty");
        let path = shm.join(name.file_name().expect("it has a name"));
        std::fs::write(&path, "0123456789").ok()?;
        Some(Host(path))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Nobody misses it.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn holder(kind: &str, place: &Place<'_>) -> Option<Peer> {
    let mut peer = Peer::start(&[kind, &place.path, "ex", "wait"])?;
    assert_eq!((peer.line(), peer.line()), ("asking".into(), "held".into()));
    Some(peer)
}

/// The answer to another process that asks for the lock now.
fn try_lock(kind: &str, place: &Place<'_>) -> String {
    let peer = Peer::start(&[kind, &place.path, "ex", "try"]).expect("the first peer ran");
    peer.finish().split_once('\n').expect("two lines").1.to_string()
}

/// Has a thread of another process wait for a lock, and its owner go by `way`. Then the lock is given up. Returns what
/// the thread is told, "" if it is no more, and what the next request for the lock is told.
fn go(kind: &str, way: &str, place: &Place<'_>) -> Option<(String, String)> {
    let holder = holder(kind, place)?;
    let mut peer = Peer::start(&["goes", kind, way, &place.path]).expect("the first peer ran");
    assert_eq!(peer.line(), "blocked", "{kind} {way}");
    if place.lines().is_some() {
        let waits = || place.lines().is_some_and(|lines| lines.iter().any(|line| line.contains("-> ")));
        eventually("the request reaches the mount", waits);
    }
    let ends = matches!(way, "exec" | "exit" | "kill");
    let told = if way == "kill" {
        peer.kill();
        holder.finish();
        String::new()
    } else {
        peer.step();
        assert_eq!(peer.line(), if ends { "" } else { "gone" }, "{kind} {way}");
        holder.finish();
        let told = peer.line();
        if !ends {
            let then = try_lock(kind, place);
            peer.finish();
            return Some((told, then));
        }
        told
    };
    Some((told, try_lock(kind, place)))
}

#[test]
fn an_owner_that_goes_while_it_waits_leaves_no_lock() {
    // The answers of tmpfs.
    let expected = |kind: &str, way: &str| match (kind, way) {
        ("posix", "close" | "dup2") => ("error EBADF", "held"),
        (_, "close" | "dup2") => ("held", "held"),
        (_, "copy" | "unshare") => ("held", "error EAGAIN"),
        _ => ("", "held"),
    };
    everywhere(|place| {
        for kind in ["posix", "ofd", "flock"] {
            for way in ["close", "dup2", "copy", "unshare", "exec", "exit", "kill"] {
                let Some((told, then)) = go(kind, way, place) else { return };
                assert_eq!(
                    (told.as_str(), then.as_str()),
                    expected(kind, way),
                    "{kind} {way} {}",
                    place.path
                );
                if place.lines().is_some() {
                    eventually("nothing is left", || place.lines().is_some_and(|lines| lines.is_empty()));
                }
            }
        }
    });
}

#[test]
fn open_files_that_wait_for_each_other_are_no_deadlock() {
    everywhere(|place| {
        let Some(peer) = Peer::start(&["crosswise", &place.path]) else { return };
        assert_eq!(peer.finish(), "ok", "{}", place.path);
    });
}

#[test]
fn what_a_closed_file_had_locked_is_free_at_once() {
    everywhere(|place| {
        let Some(peer) = Peer::start(&["handover", &place.path]) else { return };
        assert_eq!(peer.finish(), "ok", "{}", place.path);
    });
}

/// A mount with a lock that a process holds and another one waits for, and what the latter prints.
fn with_waiter(kind: &str, body: impl FnOnce(&mut Fixture, Peer, Peer)) {
    let Some(mut fixture) = Fixture::new("locks=sluice") else { return };
    std::fs::write(fixture.path("f"), "0123456789").expect("a fresh mount is writable");
    let path = fixture.path("f").display().to_string();
    let inode = fixture.fs.superblock().root().lookup(&Cred::root(), b"f").expect("it was just made");
    let Some(holder) = holder(kind, &Place { path: path.clone(), fixture: None }) else { return };
    let mut waiter = Peer::start(&[kind, &path, "ex", "wait"]).expect("the first peer ran");
    assert_eq!(waiter.line(), "asking");
    eventually("the request reaches the mount", || fixture.mount().waiting_locks() == 1);
    body(&mut fixture, holder, waiter);
    eventually("the mount is gone", || !is_mounted(fixture.dir()));
    assert!(!inode.locks().has_locks(), "{kind}");
}

#[test]
fn an_unmount_beside_a_waiting_process_serves_it_until_it_ends_and_leaves_no_lock() {
    for kind in ["posix", "ofd", "flock"] {
        with_waiter(kind, |fixture, holder, mut waiter| {
            let mount = fixture.take_mount();
            mount.unmount_lazily().expect("who mounts may unmount");
            holder.finish();
            assert_eq!(waiter.line(), "held", "{kind}");
            waiter.finish();
            mount.wait();
        });
    }
}

#[test]
fn an_aborted_connection_ends_waits_and_leaves_no_lock() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root may abort a connection");
    }
    for kind in ["posix", "ofd", "flock"] {
        with_waiter(kind, |fixture, holder, mut waiter| {
            // It is in use, so it stays in the tree; but its connection ends.
            let _ = rustix::mount::unmount(fixture.dir(), UnmountFlags::FORCE);
            assert_eq!(waiter.line(), "error ECONNABORTED", "{kind}");
            let mount = fixture.take_mount();
            waiter.finish();
            holder.finish();
            mount.wait();
            // An aborted mount stays in the tree, dead, until somebody takes it out.
            rustix::mount::unmount(fixture.dir(), UnmountFlags::DETACH).expect("root may");
        });
    }
}
