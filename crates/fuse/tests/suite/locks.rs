//! File locks through the mount, served by the kernel and by sluicefs.

use crate::harness::{
    Fixture, LOCK_MODES, Peer, can_mount, eventually, fresh_dir, fresh_superblock, is_mounted,
    options_of_ours,
};
use rustix::fs::IFlags;
use rustix::process::Signal;
use sluice_fuse::{MountOptions, control, opcode};
use sluice_locks::{Kind, LockError, Owner, Range, RangeRequest};
use sluice_vfs::{Cred, Errno, Fs, Superblock};
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

/// Runs `body` with a mount that holds the file `f`, in both lock modes.
fn with_locks(body: impl Fn(&Fixture, &str)) {
    for mode in LOCK_MODES {
        let Some(fixture) = Fixture::new(mode) else { return };
        std::fs::write(fixture.path("f"), "0123456789").expect("a fresh mount is writable");
        let path = fixture.path("f").display().to_string();
        body(&fixture, &path);
        if mode == "locks=sluice" {
            assert!(requests(&fixture) > 0, "the locks of this test never reached sluicefs");
        } else {
            assert_eq!(requests(&fixture), 0, "the kernel was to serve the locks alone");
        }
        fixture.finish();
    }
}

fn requests(fixture: &Fixture) -> u64 {
    [opcode::GETLK, opcode::SETLK, opcode::SETLKW]
        .iter()
        .map(|&opcode| fixture.mount().requests(opcode))
        .sum()
}

/// How many requests wait, by what `sluice locks` would show.
fn waiters(fixture: &Fixture) -> usize {
    let text = control::all_locks(fixture.dir()).expect("the mount answers");
    String::from_utf8_lossy(&text).lines().filter(|line| line.contains("-> ")).count()
}

/// A peer that holds the lock it asked for.
fn holder(arguments: &[&str]) -> Option<Peer> {
    let mut peer = Peer::start(arguments)?;
    assert_eq!((peer.line(), peer.line()), ("asking".into(), "held".into()));
    Some(peer)
}

/// A peer that waits for a lock.
fn waiter(fixture: &Fixture, arguments: &[&str]) -> Option<Peer> {
    let before = waiters(fixture);
    let mut peer = Peer::start(arguments)?;
    assert_eq!(peer.line(), "asking");
    eventually("the peer waits for the lock", || waiters(fixture) == before + 1);
    Some(peer)
}

#[test]
fn a_lock_excludes_and_is_handed_over_when_it_is_released() {
    for kind in ["posix", "ofd", "flock"] {
        with_locks(|fixture, path| {
            let Some(first) = holder(&[kind, path, "ex", "wait"]) else { return };
            let refused = Peer::start(&[kind, path, "sh", "try"]).expect("the first peer ran");
            assert_eq!(refused.finish(), "asking\nerror EAGAIN", "{kind}");
            let mut second = waiter(fixture, &[kind, path, "ex", "wait"]).expect("the first peer ran");
            assert_eq!(first.finish(), "");
            assert_eq!(second.line(), "held", "{kind}");
            assert_eq!(second.finish(), "");
        });
    }
}

#[test]
fn readers_share_and_disjoint_ranges_do_not_meet() {
    with_locks(|_, path| {
        let Some(one) = holder(&["posix", path, "sh", "wait", "0", "10"]) else { return };
        let two = holder(&["posix", path, "sh", "wait", "5", "10"]).expect("the first peer ran");
        let three = holder(&["ofd", path, "ex", "wait", "20", "5"]).expect("the first peer ran");
        let refused = Peer::start(&["ofd", path, "ex", "try", "14", "1"]).expect("the first peer ran");
        assert_eq!(refused.finish(), "asking\nerror EAGAIN");
        drop((one, two, three));
    });
}

#[test]
fn getlk_names_the_holder() {
    with_locks(|_, path| {
        let Some(holder) = holder(&["posix", path, "ex", "wait", "3", "4"]) else { return };
        let answer = Peer::start(&["getlk", path, "0", "100"]).expect("the first peer ran").finish();
        assert!(answer.starts_with("held WRITE 3 4 "), "{answer}");
        assert_ne!(answer, "held WRITE 3 4 0");
        let answer = Peer::start(&["getlk", path, "7", "100"]).expect("the first peer ran").finish();
        assert_eq!(answer, "free");
        holder.finish();
    });
}

#[test]
fn the_rules_of_close_are_those_of_linux() {
    with_locks(|_, path| {
        let Some(peer) = Peer::start(&["rules", path]) else { return };
        assert_eq!(peer.finish(), "ok");
    });
}

#[test]
fn a_signal_ends_a_wait() {
    for kind in ["posix", "ofd", "flock"] {
        with_locks(|fixture, path| {
            let Some(holder) = holder(&[kind, path, "ex", "wait"]) else { return };
            let mut waiter = waiter(fixture, &[kind, path, "ex", "wait"]).expect("the first peer ran");
            waiter.signal(Signal::USR1);
            assert_eq!(waiter.line(), "error EINTR", "{kind}");
            eventually("the request is withdrawn", || waiters(fixture) == 0);
            holder.finish();
        });
    }
}

#[test]
fn a_killed_waiter_is_withdrawn_and_a_killed_holder_lets_go() {
    for kind in ["posix", "ofd", "flock"] {
        with_locks(|fixture, path| {
            let Some(first) = holder(&[kind, path, "ex", "wait"]) else { return };
            let doomed = waiter(fixture, &[kind, path, "ex", "wait"]).expect("the first peer ran");
            doomed.kill();
            eventually("the dead waiter is withdrawn", || waiters(fixture) == 0);
            let mut second = waiter(fixture, &[kind, path, "ex", "wait"]).expect("the first peer ran");
            first.kill();
            assert_eq!(second.line(), "held", "{kind}");
            second.finish();
        });
    }
}

#[test]
fn waiters_occupy_no_worker() {
    const WAITERS: usize = 64;
    let Some(fixture) = Fixture::new("locks=sluice,threads=2") else { return };
    let path = fixture.path("f");
    let held = File::create(&path).expect("a fresh mount is writable");
    held.lock().expect("nobody else has it");
    let path = path.display().to_string();
    let mut peers = Vec::new();
    for _ in 0..WAITERS {
        let Some(peer) = Peer::start(&["flock", &path, "ex", "wait"]) else { return };
        peers.push(peer);
    }
    eventually("all of them wait", || fixture.mount().waiting_locks() == WAITERS);
    std::fs::write(fixture.path("other"), "still served").expect("the mount is served");
    assert_eq!(std::fs::read(fixture.path("other")).expect("the mount is served"), b"still served");
    assert_eq!(std::fs::read_dir(fixture.dir()).expect("the mount is served").count(), 2);
    for peer in peers.split_off(WAITERS / 2) {
        peer.kill();
    }
    eventually("the dead ones are withdrawn", || fixture.mount().waiting_locks() == WAITERS / 2);
    // In whatever order the lock goes round: each gets it and lets go.
    peers.iter_mut().for_each(Peer::let_go);
    drop(held);
    for peer in peers {
        assert_eq!(peer.finish(), "asking\nheld");
    }
    assert!(fixture.mount().requests(opcode::SETLKW) >= WAITERS as u64);
    fixture.finish();
}

#[test]
fn in_process_users_and_the_mount_exclude_each_other() {
    let Some(fixture) = Fixture::new("locks=sluice") else { return };
    std::fs::write(fixture.path("f"), "x").expect("a fresh mount is writable");
    let path = fixture.path("f").display().to_string();
    let inode = fixture.fs.superblock().root().lookup(&Cred::root(), b"f").expect("it was just made");
    let range = Range::new(0, 9).expect("a valid range");
    let request = RangeRequest { owner: Owner::Process(1), pid: 1, kind: Kind::Exclusive, range };

    let Some(peer) = holder(&["posix", &path, "ex", "wait"]) else { return };
    assert_eq!(inode.locks().set_range(&request), Err(LockError::WouldBlock));
    peer.finish();
    inode.locks().set_range(&request).expect("the peer is gone");
    let mut peer = waiter(&fixture, &["posix", &path, "ex", "wait"]).expect("the first peer ran");
    inode.locks().unlock_range(Owner::Process(1), range).expect("it is held");
    assert_eq!(peer.line(), "held");
    peer.finish();
    drop(inode);
    fixture.finish();
}

#[test]
fn all_locks_can_be_read_from_a_file_of_the_mount() {
    let Some(fixture) = Fixture::new("locks=sluice,lockfile=.locks") else { return };
    let (path, table) = (fixture.path("f"), fixture.path(".locks"));
    std::fs::write(&path, "x").expect("a fresh mount is writable");
    let path = path.display().to_string();
    let Some(holder) = holder(&["posix", &path, "ex", "wait", "3", "4"]) else { return };
    let waiter = waiter(&fixture, &["posix", &path, "ex", "wait", "0", "10"]).expect("the first peer ran");
    let mut text = String::new();
    let mut open = File::open(&table).expect("its name is known");
    open.read_to_string(&mut text).expect("it is readable");
    assert_eq!(
        text.as_bytes(),
        control::locks(fixture.dir()).expect("the server answers").expect("locks are served")
    );
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("1: POSIX  ADVISORY  WRITE ") && lines[0].ends_with(" 3 6"), "{text}");
    assert!(lines[1].starts_with("1: -> POSIX  ADVISORY  WRITE ") && lines[1].ends_with(" 0 9"), "{text}");
    holder.finish();
    waiter.finish();
    // An opened table stays as it was; a new open sees the locks of now.
    let mut again = [0; 2];
    open.read_exact_at(&mut again, text.len() as u64 - 2).expect("it is readable");
    assert_eq!(&again, b"9\n");
    eventually("a file without locks has no line", || {
        std::fs::read(&table).expect("it is readable").is_empty()
    });
    drop(open);
    fixture.finish();
}

#[test]
fn the_lock_file_cannot_be_changed_and_is_in_no_listing() {
    let Some(fixture) = Fixture::new("locks=sluice,lockfile=.locks") else { return };
    let (other, table) = (fixture.path("f"), fixture.path(".locks"));
    std::fs::write(&other, "x").expect("a fresh mount is writable");
    let is_refused =
        |outcome: std::io::Result<()>| outcome.is_err_and(|error| error.kind() != ErrorKind::NotFound);
    assert!(is_refused(std::fs::write(&table, "x")));
    assert!(is_refused(std::fs::remove_file(&table)));
    assert!(is_refused(std::fs::rename(&table, fixture.path("g"))));
    assert!(is_refused(std::fs::rename(&other, &table)));
    // It has no name that the kernel knows of, and such files get none.
    assert!(std::fs::hard_link(&table, fixture.path("g")).is_err());
    assert!(is_refused(std::fs::create_dir(&table)));
    assert!(is_refused(std::fs::set_permissions(&table, Permissions::from_mode(0o666))));
    let file = File::open(&table).expect("it is readable");
    assert!(rustix::fs::ioctl_setflags(&file, IFlags::NODUMP).is_err());
    assert!(!rustix::fs::ioctl_getflags(&file).is_ok_and(|flags| flags.contains(IFlags::NODUMP)));
    drop(file);
    let names = |dir: &Path| {
        std::fs::read_dir(dir).expect("a directory").map(|entry| entry.map(|entry| entry.file_name()))
    };
    assert_eq!(names(fixture.dir()).collect::<Result<Vec<_>, _>>().expect("readable"), ["f"]);
    // One of that name made in process is listed, and hidden by it.
    fixture.fs.write("/.locks", "not a lock").expect("nobody has the name");
    assert_eq!(names(fixture.dir()).count(), 2);
    assert!(std::fs::metadata(&table).is_ok_and(|metadata| metadata.len() == 0));
    assert!(std::fs::read(&table).expect("it is readable").is_empty());
    fixture.finish();
}

#[test]
fn a_lock_file_needs_locks_of_ours_and_a_free_name() {
    if !can_mount() {
        return;
    }
    let superblock = fresh_superblock();
    Fs::with_superblock(superblock.clone()).write("/taken", "").expect("an empty file system");
    for (options, why) in
        [("lockfile=x", "add locks=sluice"), ("locks=sluice,lockfile=taken", "choose another")]
    {
        let dir = fresh_dir();
        let options = MountOptions::parse(options).expect("valid on its own");
        let error = options.mount(&superblock, &dir).map(drop).expect_err(why).to_string();
        assert!(error.ends_with(why), "{error}");
        assert!(!is_mounted(&dir));
        std::fs::remove_dir(&dir).expect("nothing is mounted on it");
    }
}

#[test]
fn of_two_processes_that_wait_for_each_other_one_is_refused() {
    with_locks(|_, path| {
        let Some(peer) = Peer::start(&["deadlock", path]) else { return };
        assert_eq!(peer.finish(), "ok");
    });
}

#[test]
fn without_detection_they_wait_until_one_is_killed() {
    if !can_mount() {
        return;
    }
    let superblock = Superblock::new(options_of_ours().deadlock_detection(false));
    let fixture = Fixture::of(&superblock, "locks=sluice");
    std::fs::write(fixture.path("f"), "0123456789").expect("a fresh mount is writable");
    let path = fixture.path("f").display().to_string();
    let Some(peer) = Peer::start(&["deadlock", &path]) else { return };
    eventually("both wait", || waiters(&fixture) == 2);
    peer.kill();
    eventually("the lock of the dead one goes to the other", || waiters(&fixture) == 0);
    fixture.finish();
}

#[test]
fn past_the_limit_programs_get_enolck_until_a_lock_goes() {
    if !can_mount() {
        return;
    }
    let superblock = Superblock::new(options_of_ours().lock_limit(1));
    let fixture = Fixture::of(&superblock, "locks=sluice");
    let [one, other] =
        ["f", "g"].map(|name| File::create(fixture.path(name)).expect("a fresh mount is writable"));
    one.lock().expect("the first");
    let refusal = other.lock().expect_err("one is all there may be");
    assert_eq!(refusal.raw_os_error(), Some(Errno::ENOLCK.raw()));
    one.unlock().expect("it has it");
    other.lock().expect("the first is gone");
    drop((one, other));
    fixture.finish();
}

#[test]
fn an_unmount_in_use_leaves_no_lock_behind() {
    let Some(mut fixture) = Fixture::new("locks=sluice") else { return };
    let path = fixture.path("f");
    std::fs::write(&path, "x").expect("a fresh mount is writable");
    let path = path.display().to_string();
    let Some(peer) = holder(&["posix", &path, "ex", "wait"]) else { return };
    let inode = fixture.fs.superblock().root().lookup(&Cred::root(), b"f").expect("it was just made");
    assert!(inode.locks().has_locks());
    let mount = fixture.take_mount();
    mount.unmount_lazily().expect("root may");
    peer.finish();
    mount.wait();
    assert!(!inode.locks().has_locks());
}
