//! Recall: what a thread has walked again and again is found as a first walk would find it, whatever changed.

use sluice_vfs::{
    AtFlags, Cred, Errno, Fd, Fs, MountFlags, OpenFlags, Options, Process, RenameFlags, Superblock,
    UmountFlags,
};

const DIR: &str = "/a/b/c";
const FILE: &str = "/a/b/c/file";

/// A process of the superuser in a tree with a file in it.
fn process() -> Process {
    let process = Fs::new().process(Cred::user(0, 0));
    ["/a", "/a/b", DIR].iter().for_each(|dir| process.mkdir(dir, 0o755).expect("a fresh name"));
    create(&process, FILE);
    process
}

fn create(process: &Process, path: &str) {
    let flags = OpenFlags::RDWR | OpenFlags::CREAT | OpenFlags::EXCL;
    process.close(process.open(path, flags, 0o644).expect("a fresh name")).expect("it is open");
}

fn ino(process: &Process, path: &str) -> Result<u64, Errno> {
    process.stat(path).map(|stat| stat.ino)
}

/// Walks to `path`, and to a missing name beside it, until both walks are remembered as far as they may be.
fn remember(process: &Process, path: &str) -> u64 {
    (0..5).for_each(|_| {
        assert_eq!(process.unlink(format!("{path}-missing")), Err(Errno::ENOENT));
        assert!(ino(process, path).is_ok());
    });
    ino(process, path).expect("it is there")
}

#[test]
fn a_name_that_is_removed_is_gone_and_one_that_comes_back_is_new() {
    let process = process();
    let old = remember(&process, FILE);
    process.unlink(FILE).expect("it is there");
    assert_eq!(ino(&process, FILE), Err(Errno::ENOENT));
    create(&process, FILE);
    assert!(ino(&process, FILE).is_ok_and(|new| new != old));
}

#[test]
fn a_directory_that_moves_takes_its_paths_along() {
    let process = process();
    let old = remember(&process, FILE);
    process.rename("/a/b", "/a/d").expect("a fresh name");
    assert_eq!(ino(&process, FILE), Err(Errno::ENOENT));
    assert_eq!(process.unlink(FILE), Err(Errno::ENOENT));
    assert_eq!(ino(&process, "/a/d/c/file"), Ok(old));
    process.mkdir("/a/b", 0o755).and_then(|()| process.mkdir(DIR, 0o755)).expect("fresh names");
    create(&process, FILE);
    assert_ne!(remember(&process, FILE), old);
}

#[test]
fn a_name_that_another_replaces_or_changes_places_with_stands_for_it_at_once() {
    let process = process();
    create(&process, "/a/b/c/other");
    let (file, other) = (remember(&process, FILE), remember(&process, "/a/b/c/other"));
    process.renameat2(Fd::CWD, FILE, Fd::CWD, "/a/b/c/other", RenameFlags::EXCHANGE).expect("both are there");
    assert_eq!((ino(&process, FILE), ino(&process, "/a/b/c/other")), (Ok(other), Ok(file)));
    assert_eq!(remember(&process, FILE), other);
    process.rename("/a/b/c/other", FILE).expect("both are there");
    assert_eq!((ino(&process, FILE), ino(&process, "/a/b/c/other")), (Ok(file), Err(Errno::ENOENT)));
}

#[test]
fn a_user_that_may_no_longer_search_a_directory_finds_nothing_in_it() {
    let process = process();
    let user = process.fork_as(Cred::user(1000, 1000));
    remember(&process, FILE);
    (0..5).for_each(|_| assert!(ino(&user, FILE).is_ok()));
    process.chmod("/a/b", 0o700).expect("the superuser may");
    assert_eq!(ino(&user, FILE), Err(Errno::EACCES));
    assert_eq!(user.unlink(FILE), Err(Errno::EACCES));
    assert!(ino(&process, FILE).is_ok());
}

#[test]
fn a_dot_at_the_end_wants_a_directory_that_may_be_searched() {
    let process = process();
    let user = process.fork_as(Cred::user(1000, 1000));
    for path in ["/a/b/c/.", "/a/b/c/./"] {
        (0..5).for_each(|_| assert!(ino(&user, path).is_ok() && ino(&user, &format!("{path}/file")).is_ok()));
        process.chmod(DIR, 0o644).expect("the superuser may");
        assert_eq!(ino(&user, path), Err(Errno::EACCES));
        assert_eq!(ino(&user, DIR), ino(&process, DIR));
        process.chmod(DIR, 0o755).expect("the superuser may");
    }
}

#[test]
fn what_is_mounted_over_a_directory_hides_what_is_below_it() {
    let process = process();
    let below = remember(&process, FILE);
    process.mount(Superblock::new(Options::default()), "/a/b", MountFlags::empty()).expect("a directory");
    assert_eq!(ino(&process, FILE), Err(Errno::ENOENT));
    process.mkdir(DIR, 0o755).expect("a fresh name");
    create(&process, FILE);
    (0..5).for_each(|_| assert!(ino(&process, FILE).is_ok()));
    process.unlink(FILE).and_then(|()| process.umount("/a/b", UmountFlags::empty())).expect("nobody uses it");
    assert_eq!(ino(&process, FILE), Ok(below));
}

#[test]
fn a_slash_behind_what_is_no_directory_and_a_link_at_the_end_are_as_ever() {
    let process = process();
    process.symlink("file", "/a/b/c/link").expect("a fresh name");
    let file = remember(&process, FILE);
    for _ in 0..5 {
        assert_eq!(ino(&process, "/a/b/c/file/"), Err(Errno::ENOTDIR));
        assert_eq!(ino(&process, "/a/b/c/file/below"), Err(Errno::ENOTDIR));
        assert_eq!(process.unlink("/a/b/c/file/below"), Err(Errno::ENOTDIR));
        assert_eq!(ino(&process, "/a/b/c/link"), Ok(file));
        assert!(process.lstat("/a/b/c/link").is_ok_and(|link| link.ino != file));
        assert_eq!(ino(&process, "/a/./b/../b/c/file"), Ok(file));
        assert_eq!(ino(&process, "/a/b/c/"), ino(&process, DIR));
    }
}

#[test]
fn a_relative_path_begins_where_its_process_is_now() {
    let process = process();
    process.mkdir("/a/c", 0o755).expect("a fresh name");
    create(&process, "/a/c/file");
    let elsewhere = process.fork();
    process.chdir("/a/b").and_then(|()| elsewhere.chdir("/a")).expect("directories");
    for _ in 0..5 {
        assert_eq!(ino(&process, "c/file"), ino(&process, FILE));
        assert_eq!(ino(&elsewhere, "c/file"), ino(&process, "/a/c/file"));
    }
    process.chdir("/a").expect("a directory");
    assert_eq!(ino(&process, "c/file"), ino(&process, "/a/c/file"));
    assert_eq!(
        process.fstatat(Fd::CWD, "c/file", AtFlags::empty()).map(|stat| stat.ino),
        ino(&elsewhere, "c/file")
    );
}

#[test]
fn a_tree_that_comes_to_lie_where_another_was_is_not_taken_for_it() {
    for round in 0..200 {
        let process = process();
        let size = i64::from(round) + 1;
        process.truncate(FILE, size).expect("there is room");
        (0..5).for_each(|_| assert_eq!(process.stat(FILE).map(|stat| stat.size), Ok(size.cast_unsigned())));
    }
}

#[test]
fn paths_longer_and_deeper_than_what_is_remembered_are_walked() {
    let process = process();
    let deep = format!("/a{}", "/d".repeat(20));
    let long = format!("/a/{}/{}", "x".repeat(200), "y".repeat(200));
    process
        .fs()
        .create_dir_all(&deep)
        .and_then(|()| process.fs().create_dir_all(&long))
        .expect("fresh names");
    for path in [deep, long] {
        let file = format!("{path}/file");
        create(&process, &file);
        let old = remember(&process, &file);
        process.unlink(&file).expect("it is there");
        create(&process, &file);
        assert!(ino(&process, &file).is_ok_and(|new| new != old));
    }
}
