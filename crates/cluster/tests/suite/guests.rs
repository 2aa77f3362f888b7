//! Guests: two mounts of one file system, each by a relay: what one changes the other sees by its next call.

use crate::mounts::{can_mount, eventually, fresh_dir};
use crate::pair::{Node, Pair, ToGuest};
use rustix::fs::{FlockOperation, Mode, OFlags};
use sluice_cluster::{GuestChannel, Host, Notice, Relay, Server, Uplink};
use sluice_fuse::{MountError, MountOptions};
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::time::Instant;
use sluice_sync::{Arc, Mutex, Weak, thread};
use sluice_vfs::{Errno, Options, Superblock};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

#[test]
fn what_one_guest_changes_the_other_sees_by_its_next_call() {
    let Some(pair) = Pair::new() else { return };
    let (a, b) = pair.dirs();
    for round in 0..50_u32 {
        let name = format!("f{round}");
        assert!(!b.join(&name).exists());
        fs::write(a.join(&name), "one").expect("written");
        assert_eq!(fs::read(b.join(&name)).expect("it is there"), b"one");
        fs::write(b.join(&name), "another").expect("written");
        assert_eq!(fs::read(a.join(&name)).expect("it is there"), b"another");
        assert_eq!(fs::metadata(a.join(&name)).expect("it is there").len(), 7);
        let kept = File::options().read(true).write(true).open(b.join(&name)).expect("it is there");
        let changed = File::options().write(true).open(a.join(&name)).expect("it is there");
        changed.write_all_at(b"X", 2).expect("written");
        let mut bytes = [0; 7];
        kept.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes, b"anXther");
        kept.set_len(2).expect("cut");
        assert_eq!(changed.metadata().expect("open").len(), 2);
        fs::rename(a.join(&name), a.join("other")).expect("renamed");
        assert!(!b.join(&name).exists() && b.join("other").exists());
        fs::remove_file(b.join("other")).expect("removed");
        assert!(!a.join("other").exists());
        assert_eq!(kept.metadata().expect("open").nlink(), 0);
    }
    pair.finish();
}

#[test]
fn two_guests_that_change_one_directory_at_once_do_not_wait_for_each_other_for_ever() {
    let Some(pair) = Pair::new() else { return };
    let (a, b) = pair.dirs();
    let began = Instant::now();
    thread::scope(|scope| {
        for (dir, other, me) in [(a, b, "a"), (b, a, "b")] {
            scope.spawn(move || {
                for round in 0..300 {
                    let name = format!("{me}{round}");
                    fs::create_dir(dir.join(&name)).expect("the name is free");
                    assert!(other.join(&name).is_dir());
                    fs::remove_dir(other.join(&name)).expect("it is empty");
                    assert!(!dir.join(&name).exists());
                }
            });
        }
    });
    let cut: u64 = pair.nodes.iter().map(|node| node.relay.counts().notices_cut_short).sum();
    println!("{:?}, cut short {cut}", began.elapsed());
    pair.finish();
}

#[test]
fn a_name_is_made_by_one_of_two_guests_and_lines_appended_by_both_are_all_there() {
    let Some(pair) = Pair::new() else { return };
    let (a, b) = pair.dirs();
    const ROUNDS: usize = 200;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    let wins: usize = thread::scope(|scope| {
        let tasks = [a, b].map(|dir| {
            scope.spawn(move || {
                let mut wins = 0;
                let mut log = File::options().append(true).create(true).open(dir.join("log")).expect("open");
                for round in 0..ROUNDS {
                    match rustix::fs::open(dir.join(format!("x{round}")), flags, Mode::RUSR) {
                        Ok(_) => wins += 1,
                        Err(errno) => assert_eq!(errno, rustix::io::Errno::EXIST),
                    }
                    log.write_all(format!("{round:9}\n").as_bytes()).expect("appended");
                }
                wins
            })
        });
        tasks.into_iter().map(|task| task.join().expect("no panic")).sum()
    });
    assert_eq!(wins, ROUNDS);
    for dir in [a, b] {
        let text = fs::read_to_string(dir.join("log")).expect("it is there");
        assert_eq!(text.len(), 2 * ROUNDS * 10);
        let mut counts = BTreeMap::new();
        text.lines().for_each(|line| *counts.entry(line.to_string()).or_insert(0) += 1);
        assert!(counts.len() == ROUNDS && counts.values().all(|count| *count == 2), "{counts:?}");
    }
    pair.finish();
}

#[test]
fn locks_exclude_each_other_between_guests_and_a_waiter_gets_its_turn() {
    let Some(pair) = Pair::new() else { return };
    let (a, b) = pair.dirs();
    let mine = File::create(a.join("f")).expect("made");
    let yours = File::open(b.join("f")).expect("it is there");
    rustix::fs::flock(&mine, FlockOperation::LockExclusive).expect("free");
    let refused = rustix::fs::flock(&yours, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK));
    thread::scope(|scope| {
        let waits = scope.spawn(|| rustix::fs::flock(&yours, FlockOperation::LockExclusive));
        let guest = pair.nodes[1].guest.as_ref().expect("attached");
        eventually("it waits", || guest.requests(sluice_fuse::opcode::SETLKW) >= 1);
        drop(mine);
        assert_eq!(waits.join().expect("no panic"), Ok(()));
    });
    drop(yours);
    pair.finish();
}

#[test]
fn another_host_goes_on_where_the_kernel_was() {
    let Some(mut pair) = Pair::new() else { return };
    let path = pair.nodes[0].path("d/f");
    fs::create_dir(pair.nodes[0].path("d")).expect("made");
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).expect("made");
    file.write_all(b"kept").expect("written");
    rustix::fs::flock(&file, FlockOperation::LockExclusive).expect("free");
    // The kernel's own server goes; a request that comes meanwhile waits.
    let node = &mut pair.nodes[0];
    let holdings = node.relay.detach();
    let waits = thread::spawn({
        let path = path.clone();
        move || fs::metadata(path).map(|metadata| metadata.len())
    });
    let before = node.relay.counts().requests;
    let syncs = thread::spawn({
        let file = file.try_clone().expect("copied");
        move || file.sync_all()
    });
    eventually("it waits", || node.relay.counts().requests > before);
    let wanted: BTreeSet<u64> = holdings.inodes().collect();
    let found = pair.host.superblock().adopt(&wanted);
    assert_eq!(found.len(), wanted.len());
    let host = Host::new(pair.host.superblock().clone());
    let old = node.guest.take().expect("attached");
    let guest = node.relay.attach_host(&host, &holdings, &found, true, 1).expect("admitted");
    old.give_way(&guest);
    drop(old);
    node.guest = Some(guest);
    assert_eq!(waits.join().expect("no panic").expect("it is there"), 4);
    let other = File::open(pair.nodes[1].path("d/f")).expect("it is there");
    let refused = rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK));
    // Earlier writes may be lost: the next fsync says so, once, also one that was asked of the server before.
    assert_eq!(syncs.join().expect("no panic").expect_err("it may be lost").raw_os_error(), Some(5));
    file.seek(SeekFrom::Start(0)).expect("seek");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "kept");
    file.write_all(b", and more").expect("written");
    drop(file);
    eventually("the lock is free", || {
        rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
    assert_eq!(fs::read_to_string(pair.nodes[1].path("d/f")).expect("read"), "kept, and more");
    assert_eq!(fs::File::create_new(&path).expect_err("it is there").kind(), ErrorKind::AlreadyExists);
    drop(other);
    pair.finish();
}

/// Makes `files` files in a directory `name` of `dir`.
fn make_files(dir: &Path, name: &str, files: usize) {
    fs::create_dir(dir.join(name)).expect("made");
    (0..files).for_each(|file| fs::write(dir.join(name).join(format!("f{file}")), "some").expect("written"));
}

/// Looks at everything in the directory.
fn look_at_all(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).expect("it is there").map(|entry| entry.expect("read"));
    entries.map(|entry| assert_eq!(entry.metadata().expect("it is there").len(), 4)).count()
}

#[test]
fn a_tree_that_another_guest_never_saw_is_removed_without_a_notice() {
    const FILES: usize = 200;
    let Some(pair) = Pair::new() else { return };
    let (a, b) = pair.dirs();
    make_files(a, "d", FILES);
    assert_eq!(look_at_all(&a.join("d")), FILES);
    assert!(b.join("d").is_dir(), "it knows the directory, and no name in it");
    let before = pair.nodes[1].relay.counts().notices;
    fs::remove_dir_all(a.join("d")).expect("removed");
    let notices = pair.nodes[1].relay.counts().notices - before;
    assert!(notices <= 4, "{notices}");
    assert!(!b.join("d").exists());
    pair.finish();
}

#[test]
fn a_tree_that_another_guest_saw_is_removed_with_few_notices() {
    const FILES: usize = 500;
    let Some(pair) = Pair::new() else { return };
    let (a, b) = pair.dirs();
    make_files(a, "d", FILES);
    assert_eq!(look_at_all(&b.join("d")), FILES);
    let before = pair.nodes[1].relay.counts().notices;
    fs::remove_dir_all(a.join("d")).expect("removed");
    let notices = pair.nodes[1].relay.counts().notices - before;
    assert!(notices <= FILES as u64 / 10, "{notices}");
    assert!((0..FILES).all(|file| !b.join(format!("d/f{file}")).exists()));
    pair.finish();
}

#[test]
fn removals_are_told_ahead_again_after_a_thread_returned_late_from_an_answer() {
    const FILES: usize = 500;
    const MEANWHILE: usize = 40;
    let Some(pair) = Pair::far() else { return };
    let (a, b) = pair.dirs();
    make_files(a, "d", FILES);
    assert_eq!(look_at_all(&b.join("d")), FILES);
    let mut names = fs::read_dir(a.join("d")).expect("it is there").map(|entry| entry.expect("read").path());
    let count = || pair.nodes[1].relay.counts().notices;
    let returns_late = pair.nodes[1].delivered.lock();
    assert!(!b.join("unknown").exists());
    names.by_ref().take(MEANWHILE).for_each(|name| fs::remove_file(name).expect("removed"));
    drop(returns_late);
    eventually("a removal that needs no notice", || {
        let before = count();
        fs::remove_file(names.next().expect("a file is left")).expect("removed");
        count() == before
    });
    names.for_each(|name| fs::remove_file(name).expect("removed"));
    assert_eq!(fs::read_dir(b.join("d")).expect("it is there").count(), 0);
    pair.finish();
}

#[test]
fn names_that_a_kernel_drops_before_they_are_removed_are_there_until_then() {
    const FILES: usize = 150;
    let Some(pair) = Pair::new() else { return };
    let (a, b) = (pair.nodes[0].path("d"), pair.nodes[1].path("d"));
    make_files(&pair.nodes[0].dir, "d", FILES);
    fs::hard_link(a.join("f77"), pair.nodes[0].path("second")).expect("linked");
    assert_eq!(look_at_all(&b), FILES);
    assert_eq!(fs::metadata(pair.nodes[1].path("second")).expect("it is there").nlink(), 2);
    let kept = File::open(b.join("f77")).expect("it is there");
    let names: Vec<_> =
        fs::read_dir(&a).expect("it is there").map(|entry| entry.expect("read").file_name()).collect();
    let (asked, rest) = names.split_at(50);
    for name in asked {
        let open = File::open(b.join(name)).expect("it is there until now");
        // Other nodes' knowledge of the file changes in other ways, too.
        fs::set_permissions(a.join(name), Permissions::from_mode(0o600)).expect("changed");
        assert_eq!(open.metadata().expect("open").mode() & 0o777, 0o600);
        fs::remove_file(a.join(name)).expect("removed");
        assert_eq!(open.metadata().expect("open").nlink(), u64::from(name == "f77"), "{name:?}");
        assert!(!b.join(name).exists(), "{name:?}");
    }
    // Now nothing is asked before all are gone.
    let held: Vec<_> = rest.iter().map(|name| File::open(b.join(name)).expect("it is there")).collect();
    rest.iter().for_each(|name| fs::remove_file(a.join(name)).expect("removed"));
    for (name, open) in rest.iter().zip(&held) {
        assert_eq!(open.metadata().expect("open").nlink(), u64::from(name == "f77"), "{name:?}");
    }
    assert!(asked.iter().chain(rest).all(|name| !b.join(name).exists()));
    assert_eq!(fs::read_dir(&b).expect("it is there").count(), 0);
    assert_eq!(kept.metadata().expect("open").nlink(), 1);
    fs::remove_file(pair.nodes[0].path("second")).expect("removed");
    assert_eq!(kept.metadata().expect("open").nlink(), 0);
    drop((kept, held));
    pair.finish();
}

#[test]
fn a_removed_name_is_gone_on_the_other_guest_while_that_lists_and_looks_names_up() {
    const FILES: usize = 300;
    let Some(pair) = Pair::new() else { return };
    let (a, b) = (pair.nodes[0].path("d"), pair.nodes[1].path("d"));
    make_files(&pair.nodes[0].dir, "d", FILES);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                // It may have gone since it was listed.
                fs::read_dir(&b).into_iter().flatten().flatten().for_each(|entry| drop(entry.metadata()));
                (0..FILES).step_by(7).for_each(|file| drop(fs::metadata(b.join(format!("f{file}")))));
            }
        });
        // The other thread ends before anything is asserted.
        let is_there = |file: &usize| {
            let name = format!("f{file}");
            fs::remove_file(a.join(&name)).is_err() || b.join(&name).exists()
        };
        let old: Vec<_> = (0..FILES).filter(is_there).collect();
        is_over.store(true, Ordering::SeqCst);
        assert_eq!(old, [0; 0]);
    });
    assert_eq!(fs::read_dir(&b).expect("it is there").count(), 0);
    pair.finish();
}

/// A server far away, whose answers to requests that change something may be lost.
struct Far {
    relay: Weak<Relay>,
    attachment: u64,
    is_mute: AtomicBool,
    /// The requests whose answers are.
    muted: Mutex<BTreeSet<[u8; 8]>>,
}

impl GuestChannel for Far {
    fn answer(&self, message: &[u8]) -> io::Result<()> {
        let is_muted = message.get(8..16).is_some_and(|unique| {
            <[u8; 8]>::try_from(unique).is_ok_and(|unique| self.muted.lock().contains(&unique))
        });
        if let Some(relay) = self.relay.upgrade().filter(|_| !is_muted) {
            relay.answer(self.attachment, message);
        }
        Ok(())
    }

    fn announce(&self, notice: Notice) {
        drop(notice);
    }
}

struct ToFar(ToGuest, Arc<Far>);

impl Uplink for ToFar {
    fn request(&self, message: &[u8]) {
        // SETATTR, SYMLINK, MKNOD to LINK, WRITE, CREATE, RENAME2.
        const CHANGES: [u8; 11] = [4, 6, 8, 9, 10, 11, 12, 13, 16, 35, 45];
        if self.1.is_mute.load(Ordering::SeqCst) && CHANGES.contains(&message[4]) {
            self.1.muted.lock().insert(message[8..16].try_into().expect("a header"));
        }
        self.0.request(message);
    }
}

/// A call on a directory, or on the open file `file` there.
type LostCall = fn(&Path, &File) -> io::Result<()>;

/// Calls whose answers are lost, each in a directory of its own, after what they need was made there.
const CALLS: [(&str, LostCall); 9] = [
    ("mkdir", |dir, _| fs::create_dir(dir.join("new"))),
    ("symlink", |dir, _| std::os::unix::fs::symlink("target", dir.join("new"))),
    ("link", |dir, _| fs::hard_link(dir.join("file"), dir.join("new"))),
    ("create", |dir, _| File::create_new(dir.join("new")).map(drop)),
    ("unlink", |dir, _| fs::remove_file(dir.join("file"))),
    ("rmdir", |dir, _| fs::remove_dir(dir.join("dir"))),
    ("rename", |dir, _| fs::rename(dir.join("file"), dir.join("new"))),
    ("append", |_, mut file| file.write_all(b"more\n")),
    ("truncate", |_, file| file.set_len(3)),
];

/// Where a new file is made, whose answer is lost, and another takes its name; the second one gets another name first.
const REPLACED: [&str; 2] = ["replaced", "moved"];

#[test]
fn what_was_executed_before_the_server_died_is_answered_and_not_executed_again() {
    if !can_mount() {
        return;
    }
    let (dir, store) = (fresh_dir(), fresh_dir());
    let superblock = Superblock::create(store.join("store"), Options::default()).expect("made");
    let host = Host::new(superblock.clone());
    let near = Node::new(&host, 1);
    let options = MountOptions::parse("locks=sluice,transport=classic").expect("valid");
    let relay = Arc::new(Relay::mount(&dir, &options).expect("mounting works here"));
    let attachment = relay.next_attachment();
    let far = Far {
        relay: Arc::downgrade(&relay),
        attachment,
        is_mute: AtomicBool::new(false),
        muted: Mutex::default(),
    };
    let far = Arc::new(far);
    let guest = Arc::new(host.admit(far.clone(), true, 2).expect("admitted"));
    relay.attach(
        attachment,
        Server::Remote(Arc::new(ToFar(ToGuest::new(guest.clone()), far.clone()))),
        &Default::default(),
        false,
    );
    for name in CALLS.map(|(name, _)| name).into_iter().chain(REPLACED) {
        fs::create_dir_all(dir.join(name).join("dir")).expect("made");
        fs::write(dir.join(name).join("file"), "some\n").expect("written");
    }
    let effects = |root: &Path| {
        let is_there = |name: &str, file: &str| fs::symlink_metadata(root.join(name).join(file)).is_ok();
        let len = |name: &str| fs::metadata(root.join(name).join("file")).map(|file| file.len()).ok();
        let made = ["mkdir", "symlink", "link", "create", "rename"].map(|name| is_there(name, "new"));
        let gone = [("unlink", "file"), ("rmdir", "dir"), ("rename", "file")];
        let gone = gone.map(|(name, file)| !is_there(name, file));
        (made, gone, len("append"), len("truncate"))
    };
    let all = ([true; 5], [true; 3], Some(10), Some(3));
    // Opening a file is a call of its own.
    let open = |name: &str| File::options().append(true).open(dir.join(name).join("file")).expect("open");
    let calls = CALLS.map(|(name, call)| (dir.join(name), open(name), call));
    far.is_mute.store(true, Ordering::SeqCst);
    let calls = calls.map(|(dir, file, call)| thread::spawn(move || call(&dir, &file)));
    let write_new = |path: PathBuf| File::create_new(path).and_then(|mut file| file.write_all(b"mine"));
    let replaced = REPLACED.map(|name| dir.join(name).join("new"));
    let replaced = replaced.map(|path| thread::spawn(move || write_new(path)));
    eventually("all was executed", || {
        effects(&near.dir) == all && REPLACED.iter().all(|name| near.path(name).join("new").exists())
    });
    let in_moved = |root: &Path, file: &str| root.join("moved").join(file);
    fs::rename(in_moved(&near.dir, "new"), in_moved(&near.dir, "aside")).expect("renamed");
    for name in REPLACED {
        fs::rename(near.path(name).join("file"), near.path(name).join("new")).expect("renamed");
    }
    assert!(calls.iter().all(|call| !call.is_finished()), "nothing was answered");
    superblock.sync().expect("durable");
    let holdings = relay.detach();
    drop((near, guest, far));
    superblock.close().expect("durable");
    drop((host, superblock));
    let superblock = Superblock::open(store.join("store"), Options::default()).expect("opened");
    let host = Host::new(superblock.clone());
    let found = host.adopt(&holdings);
    let guest = relay.attach_host(&host, &holdings, &found, true, 2).expect("admitted");
    drop(found);
    for (call, (name, _)) in calls.into_iter().zip(CALLS) {
        call.join().expect("no panic").unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let [gone, moved] = replaced.map(|call| call.join().expect("no panic"));
    assert_eq!(gone.expect_err("the file that it made is gone").raw_os_error(), Some(Errno::EIO.raw()));
    moved.expect("the file that it made has another name");
    assert_eq!(fs::read_to_string(in_moved(&dir, "aside")).expect("read"), "mine");
    for name in REPLACED {
        assert_eq!(fs::read_to_string(dir.join(name).join("new")).expect("read"), "some\n");
    }
    assert_eq!(effects(&dir), all);
    assert_eq!(fs::read_to_string(dir.join("append/file")).expect("read"), "some\nmore\n");
    // Later calls are new ones.
    assert_eq!(
        fs::create_dir(dir.join("mkdir/new")).expect_err("it is there").kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(fs::remove_file(dir.join("unlink/file")).expect_err("it is gone").kind(), ErrorKind::NotFound);
    eventually("nothing uses the mount any more", || !matches!(relay.unmount(), Err(MountError::Busy(_))));
    drop((guest, relay));
    assert!(superblock.check().is_clean(), "{}", superblock.check());
    superblock.close().expect("durable");
    for dir in [dir, store] {
        fs::remove_dir_all(dir).expect("removed");
    }
}
