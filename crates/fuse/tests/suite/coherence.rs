//! The kernel's caches: the entries that it keeps, those that it must forget, and how many messages that takes.

use crate::harness::{Fixture, eventually};
use rustix::fs::{Mode, OFlags};
use sluice_fuse::{Mount, opcode};
use sluice_sync::{Arc, thread};
use sluice_vfs::OpenFlags;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// How many messages `body` takes, FORGETs left out: the kernel sends them when it likes.
fn messages(mount: &Mount, body: impl FnOnce()) -> u64 {
    let count = || {
        let forgets = mount.requests(opcode::FORGET) + mount.requests(opcode::BATCH_FORGET);
        mount.requests_total() - forgets
    };
    let before = count();
    body();
    count() - before
}

#[test]
fn what_the_kernel_has_seen_it_does_not_ask_again() {
    let Some(fixture) = Fixture::new("") else { return };
    let path = fixture.path("f");
    fs::write(&path, "contents").expect("a fresh mount is writable");
    let again = || {
        fs::metadata(&path).expect("the file is there");
        assert_eq!(fs::read(&path).expect("the file is there"), b"contents");
        assert!(!fixture.path("missing").exists());
        assert_eq!(fs::read_dir(fixture.dir()).expect("the directory is there").count(), 1);
    };
    again();
    // Reading moved the access times; one more look brings the attributes up to date.
    again();
    assert_eq!(messages(fixture.mount(), || drop(fs::metadata(&path))), 0);
    assert_eq!(messages(fixture.mount(), || drop(File::open(&path).expect("the file is there"))), 0);
    assert_eq!(messages(fixture.mount(), again), 0);
    fixture.finish();
}

#[test]
fn creating_and_removing_a_file_takes_lookup_mknod_and_unlink() {
    let Some(fixture) = Fixture::new("") else { return };
    let cycle = |name: &str| {
        let path = fixture.path(name);
        drop(rustix::fs::open(&path, OFlags::CREATE | OFlags::RDWR, Mode::RUSR).expect("the name is free"));
        rustix::fs::unlink(&path).expect("it was just made");
    };
    cycle("warm");
    let mount = fixture.mount();
    let parts =
        [opcode::LOOKUP, opcode::MKNOD, opcode::UNLINK].map(|opcode| (opcode, mount.requests(opcode)));
    // FORGETs come when the kernel gets round to them, that of the first cycle maybe only now.
    let forgets = || mount.requests(opcode::FORGET) + mount.requests(opcode::BATCH_FORGET);
    let forgets_before = forgets();
    let total = messages(mount, || cycle("counted"));
    let total = total.saturating_sub(forgets() - forgets_before);
    for (opcode, before) in parts {
        assert_eq!(mount.requests(opcode) - before, 1, "{}", opcode::name(opcode));
    }
    // The attributes of the directory, which both steps change, are asked for once each at most.
    assert!(total <= 5, "{total} messages");
    fixture.finish();
}

#[test]
fn locks_of_the_kernel_take_no_message() {
    let Some(fixture) = Fixture::new("") else { return };
    let file = File::create(fixture.path("f")).expect("a fresh mount is writable");
    let taken = messages(fixture.mount(), || {
        file.lock().expect("nobody else has it");
        file.unlock().expect("it is held");
    });
    assert_eq!(taken, 0);
    drop(file);
    fixture.finish();
}

#[test]
fn a_change_in_process_is_seen_at_once() {
    let Some(fixture) = Fixture::new("") else { return };
    let (fs_in_process, path) = (&fixture.fs, fixture.path("f"));

    // A name that the kernel remembers as missing.
    assert_eq!(fs::metadata(&path).expect_err("there is nothing").kind(), ErrorKind::NotFound);
    fs_in_process.write("/f", "one").expect("the name is free");
    assert_eq!(fs::read_to_string(&path).expect("it was just made"), "one");

    // Contents and size that it keeps.
    fs_in_process.write("/f", "three").expect("it is there");
    assert_eq!(fs::read_to_string(&path).expect("it is there"), "three");
    assert_eq!(fs::metadata(&path).expect("it is there").len(), 5);

    // Contents behind an open file.
    let mut open = File::open(&path).expect("it is there");
    let mut buffer = [0; 2];
    open.read_exact(&mut buffer).expect("there are five bytes");
    fs_in_process.write("/f", "xxREE").expect("it is there");
    let mut rest = String::new();
    open.read_to_string(&mut rest).expect("there are three left");
    assert_eq!((&buffer, rest.as_str()), (b"th", "REE"));

    // Attributes.
    fs_in_process.set_permissions("/f", 0o600).expect("it is there");
    assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o7777, 0o600);

    // A listing that it keeps, and link counts.
    assert_eq!(fs::read_dir(fixture.dir()).expect("it is a directory").count(), 1);
    fs_in_process.hard_link("/f", "/g").expect("the name is free");
    assert_eq!(fs::metadata(&path).expect("it is there").nlink(), 2);
    assert_eq!(fs::read_dir(fixture.dir()).expect("it is a directory").count(), 2);

    // Names that move and go.
    fs_in_process.rename("/g", "/h").expect("it is there");
    assert!(!fixture.path("g").exists() && fixture.path("h").exists());
    fs_in_process.remove_file("/f").expect("it is there");
    assert!(!path.exists());
    assert_eq!(open.metadata().expect("it is open").nlink(), 1);

    // A directory, with what hangs below it.
    fs_in_process.create_dir_all("/d/e").expect("the names are free");
    for dir in ["/d", "/d/e"] {
        fs_in_process.set_permissions(dir, 0o777).expect("it is there");
    }
    fs::write(fixture.path("d/e/x"), "x").expect("the directory is there");
    fs_in_process.rename("/d", "/moved").expect("it is there");
    assert_eq!(fs::read(fixture.path("moved/e/x")).expect("it moved along"), b"x");
    assert!(!fixture.path("d").exists());
    fs_in_process.remove_dir_all("/moved").expect("it is there");
    assert!(!fixture.path("moved/e").exists());
    drop(open);
    fixture.finish();
}

#[test]
fn an_append_goes_to_the_end_that_others_have_moved() {
    let Some(fixture) = Fixture::new("") else { return };
    let path = fixture.path("log");
    let mut log = File::options().create(true).append(true).open(&path).expect("a fresh mount is writable");
    log.write_all(b"a").expect("there is room");
    fixture.fs.append("/log", "bbb").expect("it is there");
    log.write_all(b"c").expect("there is room");
    fixture.fs.append("/log", "dd").expect("it is there");
    log.write_all(b"e").expect("there is room");
    assert_eq!(fixture.fs.read_to_string("/log").expect("it is there"), "abbbcdde");
    eventually("the kernel forgets the bytes that it misplaced", || {
        fs::read_to_string(&path).expect("it is there") == "abbbcdde"
    });
    drop(log);
    fixture.finish();
}

#[test]
fn creating_what_somebody_in_process_creates_opens_it() {
    let Some(fixture) = Fixture::new("") else { return };
    let fixture = &fixture;
    for round in 0..200 {
        let (name, path) = (format!("/r{round}"), fixture.path(&format!("r{round}")));
        assert!(!path.exists());
        thread::scope(|scope| {
            scope.spawn(|| {
                let user = fixture.fs.process(crate::harness::cred());
                let flags = OpenFlags::CREAT | OpenFlags::WRONLY | OpenFlags::APPEND;
                let fd = user.open(&name, flags, 0o600).expect("it creates or opens");
                user.write(fd, b"in").expect("there is room");
            });
            let mut options = File::options();
            let file = options
                .create(true)
                .append(true)
                .open(&path)
                .expect("create without O_EXCL never says EEXIST");
            drop(file);
        });
        eventually("the kernel sees what was appended", || fs::read(&path).expect("it is there") == b"in");
    }
}

#[test]
fn two_mounts_of_one_file_system_neither_hang_nor_disagree() {
    if !crate::harness::can_mount() {
        return;
    }
    let superblock = crate::harness::fresh_superblock();
    let mounts = [Fixture::of(&superblock, "threads=2"), Fixture::of(&superblock, "threads=2")];
    thread::scope(|scope| {
        for (number, fixture) in mounts.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..300 {
                    let (ours, theirs) =
                        (fixture.path(&format!("{number}")), fixture.path(&format!("{}", 1 - number)));
                    // The other mount may have moved or removed any of them.
                    let _ = fs::write(&ours, format!("{round}"));
                    let _ = fs::rename(&theirs, fixture.path("shared"));
                    let _ = fs::read(fixture.path("shared"));
                    let _ = fs::remove_file(&ours);
                }
            });
        }
    });
    fs::write(mounts[0].path("last"), "word").expect("the name is free");
    eventually("the other mount sees it", || {
        fs::read(mounts[1].path("last")).is_ok_and(|contents| contents == b"word")
    });
    let names = |fixture: &Fixture| {
        let listing = fs::read_dir(fixture.dir()).expect("it is a directory");
        let mut names: Vec<_> = listing.map(|entry| entry.expect("it is readable").file_name()).collect();
        names.sort();
        names
    };
    eventually("both list the same", || names(&mounts[0]) == names(&mounts[1]));
    let [one, two] = mounts;
    drop(one);
    two.finish();
    // The trees in which it stood are gone, and let go of it late.
    superblock.settle();
    drop(Arc::into_inner(superblock).expect("nobody else has it"));
}
