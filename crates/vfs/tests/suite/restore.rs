//! Restored trees: what comes back, what goes, and what programs keep that have files of the old tree open.

use sluice_vfs::{Cred, Errno, Fs, MountFlags, OpenFlags, Options, Superblock, XattrFlags};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs `body` with a file system in memory, and with one in a store.
fn with_both(name: &str, body: impl Fn(&Fs)) {
    body(&Fs::new());
    let dir = std::env::temp_dir().join(format!("sluice-restore-{name}-{}", std::process::id()));
    let fs = Options::default().create_store(&dir).unwrap();
    body(&fs);
    drop(fs);
    let fs = Options::default().open_store(&dir).unwrap();
    assert!(fs.check().is_clean(), "{}", fs.check());
    drop(fs);
    std::fs::remove_dir_all(&dir).unwrap();
}

fn restore(fs: &Fs, path: &str) -> Result<(), Errno> {
    fs.superblock().restore_snapshot(b"one", path.as_bytes())
}

fn names(fs: &Fs, dir: &str) -> Vec<String> {
    let mut names: Vec<String> =
        fs.read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().to_str().unwrap().into()).collect();
    names.sort();
    names
}

fn with_snapshot(fs: &Fs) {
    fs.create_dir_all("/d/e").unwrap();
    fs.write("/d/f", vec![7; 200_000]).unwrap();
    fs.hard_link("/d/f", "/d/e/g").unwrap();
    fs.write("/other", "first").unwrap();
    let root = fs.process(Cred::root());
    root.setxattr("/", b"user.a", b"first", XattrFlags::empty()).unwrap();
    root.chmod("/", 0o750).unwrap();
    root.symlink("f", "/d/link").unwrap();
    fs.superblock().take_snapshot(b"one").unwrap();
}

#[test]
fn the_whole_tree_goes_back_and_the_snapshots_stay() {
    with_both("whole", |fs| {
        with_snapshot(fs);
        let root = fs.process(Cred::root());
        let before = root.stat("/.snapshots/one").unwrap();
        fs.remove_dir_all("/d").unwrap();
        fs.write("/d", "a file in its place").unwrap();
        fs.create_dir_all("/new/below").unwrap();
        fs.write("/new/below/file", "new").unwrap();
        fs.write("/other", "second").unwrap();
        root.setxattr("/", b"user.a", b"second", XattrFlags::empty()).unwrap();
        root.setxattr("/", b"user.b", b"second", XattrFlags::empty()).unwrap();
        root.chmod("/", 0o700).unwrap();
        fs.superblock().take_snapshot(b"two").unwrap();
        assert_eq!(restore(fs, ""), Ok(()));
        assert_eq!(names(fs, "/"), ["d", "other"]);
        assert_eq!(names(fs, "/d"), ["e", "f", "link"]);
        assert_eq!(fs.read("/d/f").unwrap(), vec![7; 200_000]);
        assert_eq!(fs.metadata("/d/f").unwrap().ino, fs.metadata("/d/e/g").unwrap().ino);
        assert_eq!(fs.read_to_string("/other").unwrap(), "first");
        assert_eq!(root.getxattr("/", b"user.a"), Ok(b"first".to_vec()));
        assert_eq!(root.getxattr("/", b"user.b"), Err(Errno::ENODATA));
        let after = root.stat("/").unwrap();
        assert_eq!((after.mode, after.nlink), (before.mode, before.nlink + 1), "and one for the snapshots");
        assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime));
        assert_eq!(fs.superblock().snapshots(), Ok(vec![b"one".to_vec(), b"two".to_vec()]));
        // The tree changes as before, the snapshot does not.
        fs.write("/d/f", "third").unwrap();
        assert_eq!(fs.read("/.snapshots/one/d/f").unwrap(), vec![7; 200_000]);
        assert_eq!(fs.read_to_string("/.snapshots/two/new/below/file").unwrap(), "new");
        fs.settle();
        assert!(fs.check().is_clean(), "{}", fs.check());
    });
}

#[test]
fn a_part_goes_back_and_nothing_else() {
    with_both("part", |fs| {
        with_snapshot(fs);
        fs.write("/d/f", "second").unwrap();
        fs.write("/d/e/new", "second").unwrap();
        fs.write("/other", "second").unwrap();
        assert_eq!(restore(fs, "d/e"), Ok(()));
        assert_eq!(names(fs, "/d/e"), ["g"]);
        assert_eq!(fs.read_to_string("/d/f").unwrap(), "second");
        assert_eq!(restore(fs, "/./d//f/"), Ok(()));
        assert_eq!(fs.read("/d/f").unwrap(), vec![7; 200_000]);
        assert_eq!(fs.read_to_string("/other").unwrap(), "second");
        // A name that is gone comes back, and a file takes the place of a directory.
        fs.remove_dir_all("/d/e").unwrap();
        fs.remove_file("/other").unwrap();
        fs.create_dir_all("/other/below").unwrap();
        assert_eq!(restore(fs, "d/e"), Ok(()));
        assert_eq!(restore(fs, "other"), Ok(()));
        assert_eq!(fs.read_to_string("/other").unwrap(), "first");
        assert_eq!(fs.read("/d/e/g").unwrap(), vec![7; 200_000]);
        assert_eq!(restore(fs, "d/none"), Err(Errno::ENOENT));
        assert_eq!(restore(fs, "d/../other"), Err(Errno::EINVAL));
        assert_eq!(restore(fs, "other/below"), Err(Errno::ENOTDIR));
        assert_eq!(fs.superblock().restore_snapshot(b"none", b""), Err(Errno::ENOENT));
        fs.remove_dir_all("/d").unwrap();
        assert_eq!(restore(fs, "d/e"), Err(Errno::ENOENT), "its directory is missing");
        fs.settle();
        assert!(fs.check().is_clean(), "{}", fs.check());
    });
}

#[test]
fn programs_keep_what_they_have_open_of_the_old_tree() {
    with_both("open", |fs| {
        with_snapshot(fs);
        fs.write("/d/f", "second").unwrap();
        let process = fs.process(Cred::root());
        let file = process.open("/d/f", OpenFlags::RDWR, 0).unwrap();
        process.chdir("/d/e").unwrap();
        restore(fs, "").unwrap();
        assert_eq!(process.pwrite(file, b"S", 0), Ok(1));
        let mut bytes = [0; 6];
        assert_eq!(process.pread(file, &mut bytes, 0), Ok(6));
        assert_eq!((&bytes, process.fstat(file).unwrap().nlink), (b"Second", 0));
        assert_eq!(process.mkdir("new", 0o755), Err(Errno::ENOENT), "its directory is gone");
        assert_eq!(fs.read("/d/f").unwrap(), vec![7; 200_000]);
    });
}

#[test]
fn a_name_on_which_something_is_mounted_does_not_go_back() {
    let fs = Fs::new();
    with_snapshot(&fs);
    fs.mount(Superblock::new(Options::default()), "/d", MountFlags::empty()).unwrap();
    assert_eq!(restore(&fs, ""), Err(Errno::EBUSY));
    assert_eq!(restore(&fs, "d"), Err(Errno::EBUSY));
    assert_eq!(restore(&fs, "other"), Ok(()));
}

#[test]
fn restores_beside_changes_deletions_and_lookups_leave_a_sound_tree_in_which_names_never_miss() {
    with_both("beside", |fs| {
        with_snapshot(fs);
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let beside = |act: &'static (dyn Fn(&Fs, usize) + Sync)| {
                let (fs, ended) = (fs.clone(), &ended);
                scope.spawn(move || {
                    (0..).take_while(|_| !ended.load(Ordering::SeqCst)).for_each(|n| act(&fs, n))
                });
            };
            beside(&|fs, _| assert!(fs.exists("/other") && fs.exists("/d/f"), "a name is missing"));
            beside(&|fs, n| {
                // Where the directory was replaced meanwhile this fails.
                let _ = fs.write(format!("/d/e/new{n}"), "new");
                let _ = fs.write(format!("/new{}", n % 4), "new");
            });
            beside(&|fs, _| {
                let superblock = fs.superblock();
                superblock.take_snapshot(b"two").unwrap();
                superblock.drop_snapshot(b"two").unwrap();
            });
            for round in 0..30 {
                restore(fs, ["", "d", "other"][round % 3]).unwrap();
            }
            ended.store(true, Ordering::SeqCst);
        });
        restore(fs, "").unwrap();
        assert_eq!((names(fs, "/"), names(fs, "/d/e")), (vec!["d".into(), "other".into()], vec!["g".into()]));
        fs.settle();
        assert!(fs.check().is_clean(), "{}", fs.check());
    });
}

#[test]
fn a_list_has_the_bytes_that_a_deletion_would_free() {
    with_both("list", |fs| {
        fs.write("/kept", vec![1; 1 << 20]).unwrap();
        fs.write("/changed", vec![2; 1 << 19]).unwrap();
        fs.hard_link("/changed", "/again").unwrap();
        // In a store a copy of what is not on disk yet is written a second time.
        fs.sync().unwrap();
        fs.superblock().take_snapshot(b"one").unwrap();
        fs.write("/changed", vec![3; 1 << 19]).unwrap();
        fs.sync().unwrap();
        fs.superblock().take_snapshot(b"two").unwrap();
        let listed = fs.superblock().list_snapshots().unwrap();
        let sizes: Vec<_> =
            listed.iter().map(|one| (&*one.name, one.size.shared_bytes, one.size.private_bytes)).collect();
        let expected = [(&b"one"[..], 1 << 20, 1 << 19), (b"two", 3 << 19, 0)];
        assert_eq!(sizes, expected);
        let top = fs.metadata(Path::new("/.snapshots/two")).unwrap();
        assert_eq!(listed[1].created, Some(top.btime));
        assert!(listed[0].created <= listed[1].created);
    });
}
