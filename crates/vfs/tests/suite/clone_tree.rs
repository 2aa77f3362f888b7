//! Clones of trees: what comes along, what is shared, and what is left of one that fails.

use sluice_vfs::{
    Access, AtFlags, Cred, Errno, FallocateMode, Fd, File, FileType, Fs, InodeFlags, MountFlags, Observer,
    OpenFlags, OpenOptions, Options, RenameFlags, SetTime, Superblock, XattrFlags,
};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// A tree with a file of each kind, and a hard link.
fn tree() -> Fs {
    let fs = Fs::new();
    fs.create_dir_all("/a/sub/deep").unwrap();
    fs.write("/a/file", vec![7; 10_000]).unwrap();
    fs.write("/a/sub/small", "ten bytes!").unwrap();
    fs.hard_link("/a/file", "/a/sub/link").unwrap();
    fs.symlink("../file", "/a/sub/symlink").unwrap();
    fs.set_permissions("/a/sub/small", 0o4711).unwrap();
    let root = fs.process(Cred::root());
    root.mknod("/a/fifo", FileType::Fifo, 0o600, 0).unwrap();
    root.setxattr("/a/file", b"user.colour", b"blue", XattrFlags::empty()).unwrap();
    root.chown("/a/sub", Some(1000), Some(2000)).unwrap();
    fs
}

/// Each path below `dir` with what a clone keeps.
fn listing(fs: &Fs, dir: &str) -> Vec<String> {
    let all = fs.walk(dir).map(|entry| {
        let entry = entry.unwrap();
        let path = entry.path.strip_prefix(dir).unwrap().display().to_string();
        let stat = entry.stat;
        let contents = fs.read(&entry.path).unwrap_or_default();
        let target = fs.read_link(&entry.path).ok();
        let colour = fs.process(Cred::root()).lgetxattr(&entry.path, b"user.colour").ok();
        format!(
            "{path} {:o} {} {} {} {} {} {:?} {contents:?} {target:?} {colour:?}",
            stat.mode, stat.nlink, stat.uid, stat.gid, stat.size, stat.blocks, stat.mtime
        )
    });
    let mut all: Vec<_> = all.collect();
    all.sort();
    all
}

#[test]
fn a_clone_is_like_its_original_and_independent_of_it() {
    let fs = tree();
    let original = listing(&fs, "/a");
    fs.clone_tree("/a", "/b").unwrap();
    assert_eq!(listing(&fs, "/b"), original);
    let ino = |path: &str| fs.symlink_metadata(path).unwrap().ino;
    assert_eq!(ino("/b/file"), ino("/b/sub/link"));
    assert_ne!(ino("/b/file"), ino("/a/file"));
    assert_eq!(fs.metadata("/").unwrap().nlink, 4);

    fs.append("/b/file", "more").unwrap();
    fs.remove_dir_all("/b/sub").unwrap();
    fs.write("/b/new", "").unwrap();
    assert_eq!(listing(&fs, "/a"), original);
    fs.write("/a/sub/small", "changed").unwrap();
    assert!(fs.check().is_clean());
    fs.remove_dir_all("/a").unwrap();
    assert_eq!(fs.read("/b/file").unwrap().len(), 10_004);
    assert!(fs.check().is_clean());
}

#[test]
fn a_single_file_is_cloned_and_a_symbolic_link_itself() {
    let fs = tree();
    fs.clone_tree("/a/file", "/copy").unwrap();
    assert_eq!(fs.read("/copy").unwrap(), fs.read("/a/file").unwrap());
    assert_eq!(fs.metadata("/copy").unwrap().nlink, 1);
    fs.clone_tree("/a/sub/symlink", "/link").unwrap();
    assert_eq!(fs.read_link("/link").unwrap(), Path::new("../file"));
    assert!(fs.check().is_clean());
}

#[test]
fn a_tree_is_cloned_into_itself_without_the_clone() {
    let fs = tree();
    let original = listing(&fs, "/a/sub");
    fs.clone_tree("/a", "/a/sub/deep/copy").unwrap();
    assert_eq!(listing(&fs, "/a/sub/deep/copy/sub"), original);
    assert!(!fs.exists("/a/sub/deep/copy/sub/deep/copy"));
    fs.clone_tree("/", "/all").unwrap();
    assert!(fs.exists("/all/a/sub/deep/copy/file") && !fs.exists("/all/all"));
    assert!(fs.check().is_clean());
}

#[test]
fn a_writer_may_have_the_file_open() {
    let fs = tree();
    let mut file = OpenOptions::new().append(true).open(&fs, "/a/file").unwrap();
    file.write_all(b"before").unwrap();
    fs.clone_tree("/a", "/b").unwrap();
    file.write_all(b"after").unwrap();
    assert_eq!(fs.read("/b/file").unwrap().len(), 10_006);
    assert_eq!(fs.read("/a/file").unwrap().len(), 10_011);
}

#[test]
fn what_cannot_be_cloned_is_refused() {
    let fs = tree();
    let original = listing(&fs, "/a");
    let clone = |from: &str, to: &str| fs.clone_tree(from, to);
    assert_eq!(clone("/none", "/b"), Err(Errno::ENOENT));
    assert_eq!(clone("/a", "/a/file"), Err(Errno::EEXIST));
    assert_eq!(clone("/a", "/"), Err(Errno::EEXIST));
    assert_eq!(clone("/a", "/none/b"), Err(Errno::ENOENT));
    assert_eq!(clone("/a", "/a/file/b"), Err(Errno::ENOTDIR));
    assert_eq!(clone("/a/file", "/b/"), Err(Errno::ENOENT));
    assert_eq!(clone("/a", &format!("/{}", "x".repeat(256))), Err(Errno::ENAMETOOLONG));
    let user = fs.process(Cred::user(1000, 1000));
    assert_eq!(user.clone_tree("/a", "/b"), Err(Errno::EPERM));
    fs.create_dir("/other").unwrap();
    fs.mount(Superblock::new(Options::default()), "/other", MountFlags::RDONLY).unwrap();
    assert_eq!(clone("/a", "/other/b"), Err(Errno::EROFS));
    assert_eq!(clone("/other", "/b"), Err(Errno::EXDEV));
    assert_eq!(listing(&fs, "/a"), original);
}

#[test]
fn nothing_is_left_of_a_clone_that_does_not_fit() {
    for options in [Options::default().inode_limit(50), Options::default().size_limit(300 << 10)] {
        let fs = options.build();
        fs.create_dir_all("/a/b/c").unwrap();
        for number in 0..30 {
            fs.write(format!("/a/b/c/{number}"), vec![1; 8000]).unwrap();
        }
        let free = || {
            fs.settle();
            let stat = fs.superblock().statfs();
            (stat.files_free, stat.blocks_free)
        };
        let before = free();
        assert_eq!(fs.clone_tree("/a", "/copy"), Err(Errno::ENOSPC));
        assert!(!fs.exists("/copy"));
        assert_eq!(free(), before);
        assert!(fs.check().is_clean());
        fs.remove_file("/a/b/c/7").unwrap();
    }
}

#[test]
fn a_clone_has_none_of_its_originals_locks() {
    let fs = tree();
    let lock = File::open(&fs, "/a/file").unwrap();
    lock.lock().unwrap();
    fs.clone_tree("/a", "/b").unwrap();
    File::open(&fs, "/b/file").unwrap().try_lock().unwrap();
}

#[test]
fn snapshots_stand_beside_the_tree_and_hold_none_of_each_other() {
    let options = Options::default().root_owner(1000, 1000);
    let fs = options.build();
    let take = |name: &str| fs.superblock().take_snapshot(name.as_bytes());
    assert_eq!(fs.superblock().snapshots(), Ok(vec![]));
    fs.write("/file", "first").unwrap();
    take("one").unwrap();
    fs.write("/file", "second").unwrap();
    take("two").unwrap();
    assert_eq!(fs.superblock().snapshots(), Ok(vec![b"one".to_vec(), b"two".to_vec()]));
    assert_eq!(fs.read_to_string("/.snapshots/one/file").unwrap(), "first");
    assert_eq!(fs.read_to_string("/.snapshots/two/file").unwrap(), "second");
    assert!(!fs.exists("/.snapshots/two/.snapshots"));
    let dir = fs.metadata("/.snapshots").unwrap();
    assert_eq!((dir.permissions(), dir.uid, dir.gid), (0o700, 1000, 1000));
    assert_eq!(take("one"), Err(Errno::EEXIST));
    for name in ["", ".", "..", "a/b", "a\0b"] {
        assert_eq!(take(name), Err(Errno::EINVAL), "{name:?}");
    }
    for name in ["one", "two"] {
        fs.superblock().drop_snapshot(name.as_bytes()).unwrap();
    }
    assert_eq!(fs.remove_dir("/.snapshots"), Err(Errno::EROFS));
    assert!(fs.check().is_clean());
    let other = Fs::new();
    other.write("/.snapshots", "").unwrap();
    assert_eq!(other.superblock().take_snapshot(b"three"), Err(Errno::ENOTDIR));
}

#[test]
fn a_snapshot_directory_of_others_is_not_used() {
    let fs = Fs::new();
    let superblock = fs.superblock();
    fs.create_dir("/.snapshots").unwrap();
    fs.create_dir("/.snapshots/old").unwrap();
    let root = fs.process(Cred::root());
    for (uid, mode) in [(1000, 0o700), (0, 0o720), (0, 0o1777)] {
        root.chown("/.snapshots", Some(uid), Some(uid)).unwrap();
        root.chmod("/.snapshots", mode).unwrap();
        assert_eq!(superblock.take_snapshot(b"new"), Err(Errno::EACCES));
        assert_eq!(superblock.drop_snapshot(b"old"), Err(Errno::EACCES));
        assert_eq!(superblock.snapshots(), Err(Errno::EACCES));
    }
    root.chmod("/.snapshots", 0o755).unwrap();
    superblock.take_snapshot(b"new").unwrap();
    superblock.drop_snapshot(b"old").unwrap();
    assert_eq!(superblock.snapshots(), Ok(vec![b"new".to_vec()]));
}

#[test]
fn a_snapshot_is_deleted_with_files_that_do_not_change_and_paths_of_any_length() {
    let fs = Fs::new();
    let root = fs.process(Cred::root());
    let flags_of = |path: &str, flags| {
        let fd = root.open(path, OpenFlags::RDONLY, 0).unwrap();
        root.ioctl_setflags(fd, flags).unwrap();
        root.close(fd).unwrap();
    };
    fs.create_dir("/d").unwrap();
    fs.write("/d/fixed", "x").unwrap();
    flags_of("/d/fixed", InodeFlags::IMMUTABLE);
    flags_of("/d", InodeFlags::APPEND);
    let name = "n".repeat(255);
    for _ in 0..20 {
        root.mkdir(&name, 0o755).unwrap();
        root.chdir(&name).unwrap();
    }
    fs.superblock().take_snapshot(b"one").unwrap();
    fs.superblock().drop_snapshot(b"one").unwrap();
    assert_eq!(fs.superblock().snapshots(), Ok(vec![]));
    assert_eq!(fs.read_to_string("/d/fixed").unwrap(), "x");
    fs.remove_dir_all(format!("/{name}")).unwrap();
    assert_eq!(fs.remove_dir_all("/d"), Err(Errno::EPERM), "of the tree itself the flags are kept");
    assert!(fs.check().is_clean());
}

#[test]
fn nothing_below_a_snapshot_changes_whoever_asks() {
    let dir = std::env::temp_dir().join(format!("sluice-read-only-{}", std::process::id()));
    for fs in [Fs::new(), Options::default().create_store(&dir).unwrap()] {
        let root = fs.process(Cred::root());
        root.chmod("/", 0o777).unwrap();
        let user = fs.process(Cred::user(1000, 1000));
        user.mkdir("/d", 0o755).unwrap();
        user.mkdir("/d/e", 0o755).unwrap();
        fs.write("/d/f", "text").unwrap();
        root.chown("/d/f", Some(1000), Some(1000)).unwrap();
        root.setxattr("/d/f", b"user.x", b"y", XattrFlags::empty()).unwrap();
        fs.write("/outside", "").unwrap();
        root.chmod("/outside", 0o666).unwrap();
        // The owner lets others in.
        root.mkdir("/.snapshots", 0o755).unwrap();
        fs.superblock().take_snapshot(b"one").unwrap();
        let at = |below: &str| format!("/.snapshots/one/{below}");
        let stats =
            || -> Vec<_> { ["", "d", "d/e", "d/f"].map(|below| fs.metadata(at(below)).unwrap()).into() };
        let before = stats();
        assert_eq!(root.stat(at("")).unwrap().permissions(), 0o777);
        let write = OpenFlags::WRONLY;
        for process in [&root, &user] {
            let (here, file) = (
                process.open(at("d"), OpenFlags::RDONLY, 0).unwrap(),
                process.open(at("d/f"), OpenFlags::RDONLY, 0).unwrap(),
            );
            let opened = |path: &str, flags| process.open(at(path), flags, 0o600).map(drop);
            let rename =
                |from: String, to: String, flags| process.renameat2(Fd::CWD, from, Fd::CWD, to, flags);
            let plain = RenameFlags::empty();
            let outside = process.open("/outside", OpenFlags::RDWR, 0).unwrap();
            let refused = [
                opened("d/f", write),
                opened("d/f", OpenFlags::RDONLY | OpenFlags::TRUNC),
                opened("d/new", write | OpenFlags::CREAT),
                process.mkdirat(here, "new", 0o755),
                process.symlink("target", at("d/new")),
                process.unlink(at("d/f")),
                process.unlinkat(here, "f", AtFlags::empty()),
                process.rmdir(at("d/e")),
                rename(at("d/f"), at("d/g"), plain),
                rename(at("d/f"), "/moved".into(), plain),
                rename("/outside".into(), at("d/f"), plain),
                rename("/outside".into(), at("d/f"), RenameFlags::EXCHANGE),
                process.link(at("d/f"), "/link"),
                process.link("/outside", at("link")),
                process.truncate(at("d/f"), 1),
                process.chmod(at("d/f"), 0o777),
                process.fchmod(file, 0o777),
                process.fchmod(here, 0o777),
                process.chown(at("d/f"), Some(1000), None),
                process.futimens(file, [Some(SetTime::Now); 2]),
                process.utimens(at("d"), [Some(SetTime::Now); 2]),
                process.fsetxattr(file, b"user.z", b"y", XattrFlags::empty()),
                process.removexattr(at("d/f"), b"user.x"),
                process.ioctl_setflags(file, InodeFlags::NODUMP),
                process.access(at("d/f"), Access::WRITE),
                fs.clone_tree("/d", at("copy")),
            ];
            for (number, refused) in refused.into_iter().enumerate() {
                assert_eq!(refused, Err(Errno::EROFS), "call {number}");
            }
            assert_eq!(process.mkdir(at("d/e"), 0o755), Err(Errno::EEXIST), "it is there already");
            assert_eq!(process.read(file, &mut [0; 8]), Ok(4));
            [here, file, outside].into_iter().for_each(|fd| process.close(fd).unwrap());
        }
        // A server of files has handles, and opens nothing.
        let file = fs.superblock().root().lookup(&Cred::root(), b".snapshots").unwrap();
        let file = ["one", "d", "f"]
            .iter()
            .fold(file, |dir, name| dir.lookup(&Cred::root(), name.as_bytes()).unwrap());
        assert_eq!(file.write_at(&Cred::root(), 0, b"x"), Err(Errno::EROFS));
        assert_eq!(file.write_back(&Cred::root(), 0, b"x"), Err(Errno::EROFS));
        assert_eq!(file.write_within(&Cred::root(), 0, b"x", true), Err(Errno::EROFS));
        assert_eq!(file.append(&Cred::root(), b"x"), Err(Errno::EROFS));
        assert_eq!(file.fallocate(&Cred::root(), FallocateMode::empty(), 0, 9), Err(Errno::EROFS));
        assert_eq!(file.note_written(), Err(Errno::EROFS));
        assert_eq!(stats(), before);
        // Its top may not move either, and it is not listed.
        assert_eq!(fs.rename("/.snapshots/one", "/.snapshots/two"), Err(Errno::EROFS));
        assert_eq!(fs.remove_dir_all("/.snapshots/one"), Err(Errno::EROFS));
        assert_eq!(fs.create_dir("/.snapshots/two"), Err(Errno::EROFS));
        assert_eq!(fs.rename("/.snapshots", "/moved"), Err(Errno::EROFS));
        assert_eq!(root.chmod("/.snapshots", 0o777), Err(Errno::EROFS));
        assert_eq!(root.link("/outside", "/.snapshots/two"), Err(Errno::EROFS));
        assert_eq!(fs.clone_tree("/d", "/.snapshots/two"), Err(Errno::EROFS));
        for below in ["/.snapshots", "/.snapshots/one/d"] {
            let mounted = root.mount(Superblock::new(Options::default()), below, MountFlags::empty());
            assert_eq!(mounted, Err(Errno::EROFS));
        }
        assert!(fs.read_dir("/").unwrap().all(|entry| entry.unwrap().file_name() != ".snapshots"));
        assert!(!fs.snapshot("/").unwrap().exists("/.snapshots"), "a copy of the root is without it");
        // A copy of it is a tree like any other.
        fs.clone_tree("/.snapshots/one/d", "/again").unwrap();
        fs.write("/again/f", "new").unwrap();
        fs.superblock().drop_snapshot(b"one").unwrap();
        assert_eq!(fs.superblock().snapshots(), Ok(vec![]));
        assert!(fs.check().is_clean(), "{}", fs.check());
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Swaps a symlink for the directory that is being emptied, as soon as it has lost its first name.
struct Swapper(OnceLock<Fs>, AtomicBool);

impl Observer for Swapper {
    fn entry_changed(&self, _: u64, name: &[u8], victim: Option<u64>) {
        if victim.is_some() && name.starts_with(b"file") && !self.1.swap(true, Ordering::Relaxed) {
            let root = self.0.get().unwrap().process(Cred::root());
            root.renameat2(Fd::CWD, "/tree/dir", Fd::CWD, "/link", RenameFlags::EXCHANGE).unwrap();
        }
    }

    fn attributes_changed(&self, _: u64) {}

    fn data_changed(&self, _: u64, _: u64, _: u64) {}
}

#[test]
fn a_link_put_in_the_way_leads_a_removal_nowhere() {
    let swapper = Arc::new(Swapper(OnceLock::new(), AtomicBool::new(false)));
    let fs = Fs::new();
    fs.superblock().observe(swapper.clone()).unwrap();
    assert!(swapper.0.set(fs.clone()).is_ok());
    fs.create_dir_all("/tree/dir/sub").unwrap();
    fs.create_dir_all("/live/sub").unwrap();
    for number in 0..3 {
        fs.write(format!("/tree/dir/file{number}"), "").unwrap();
        fs.write(format!("/tree/dir/sub/file{number}"), "").unwrap();
        fs.write(format!("/live/sub/live{number}"), "").unwrap();
    }
    fs.symlink("/live", "/link").unwrap();
    assert_eq!(fs.remove_dir_all("/tree"), Err(Errno::ENOTDIR));
    assert!(swapper.1.load(Ordering::Relaxed), "it was in the way");
    assert_eq!(fs.read_dir("/live/sub").unwrap().count(), 3);
    assert!(fs.read_dir("/link").unwrap().next().is_none(), "the directory that was moved is empty");
    assert!(fs.read_link("/tree/dir").is_ok());
}
