//! Snapshots: trees that begin as others are, within the library.

use super::trees::{Abilities, assert_equal, inside, plant};
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::thread;
use sluice_vfs::{Cred, Errno, Fs, MountFlags, OpenFlags, Options, Stat, Superblock, WalkEntry};

const PAGE: usize = 4096;
const ALL: Abilities = Abilities { root: true, user_xattrs: true, acls: true };

#[test]
fn a_snapshot_is_the_tree_as_it_was_to_the_last_attribute() {
    let fs = Fs::new();
    plant(&fs, "/", ALL);
    // Before anybody reads, which moves access times.
    let (whole, part) = (fs.snapshot("/").unwrap(), fs.snapshot("/dir").unwrap());
    for WalkEntry { path, stat, .. } in fs.walk("/").map(Result::unwrap) {
        let copy = whole.symlink_metadata(&path).unwrap();
        assert_ne!(copy.dev, stat.dev);
        assert_eq!(Stat { dev: stat.dev, ino: stat.ino, ..copy }, stat, "{path:?}");
    }
    let without_atime = |fs: &Fs| {
        let mut tree = inside(fs, "/");
        tree.values_mut().for_each(|node| node.atime = None);
        tree
    };
    assert_equal(&without_atime(&fs), &without_atime(&whole));
    assert!(part.exists("/deeper/second") && !part.exists("/plain"));
    assert_eq!(part.metadata("/deeper/second").unwrap().nlink, 1, "its other name is outside");
    assert!(whole.check().is_clean() && part.check().is_clean() && fs.check().is_clean());
}

#[test]
fn neither_side_sees_what_the_other_does_afterwards() {
    let fs = Fs::new();
    fs.create_dir("/d").unwrap();
    fs.write("/d/f", [b'o'; 2 * PAGE]).unwrap();
    let copy = fs.snapshot("/").unwrap();
    let overwrite = |fs: &Fs, offset: usize, byte: u8| {
        let process = fs.process(Cred::root());
        let fd = process.open("/d/f", OpenFlags::WRONLY, 0).unwrap();
        assert_eq!(process.pwrite(fd, &[byte; PAGE], offset as i64), Ok(PAGE));
    };
    overwrite(&fs, 0, b'1');
    overwrite(&copy, PAGE, b'2');
    copy.write("/d/new", "copy").unwrap();
    fs.rename("/d", "/e").unwrap();
    assert_eq!(fs.read("/e/f").unwrap(), [[b'1'; PAGE], [b'o'; PAGE]].concat());
    assert_eq!(copy.read("/d/f").unwrap(), [[b'o'; PAGE], [b'2'; PAGE]].concat());
    assert!(!fs.exists("/e/new") && !copy.exists("/e"));
    assert!(fs.check().is_clean());
    drop(fs);
    let again = copy.snapshot("/d").unwrap();
    drop(copy);
    assert_eq!(again.read("/f").unwrap(), [[b'o'; PAGE], [b'2'; PAGE]].concat());
    assert!(again.check().is_clean());
}

#[test]
fn each_side_has_the_limits_of_the_first_and_pays_for_its_pages_once() {
    let limits = Options::default().size_limit(4 * PAGE as u64);
    let fs = limits.build();
    fs.write("/f", [1; 3 * PAGE]).unwrap();
    let copy = fs.snapshot("/").unwrap();
    let used = |fs: &Fs| fs.superblock().bytes_used() / PAGE as u64;
    assert_eq!((used(&fs), used(&copy)), (3, 3));
    let process = copy.process(Cred::root());
    let fd = process.open("/f", OpenFlags::WRONLY, 0).unwrap();
    assert_eq!(process.pwrite(fd, &[2; 5 * PAGE], 0), Ok(4 * PAGE), "what was shared is paid for already");
    assert_eq!((used(&fs), used(&copy)), (3, 4));
    copy.remove_file("/f").unwrap();
    process.close(fd).unwrap();
    assert_eq!((used(&fs), used(&copy)), (3, 0));
}

#[test]
fn there_is_no_snapshot_of_a_file_nor_of_a_removed_directory_nor_of_what_is_mounted_below() {
    let fs = Fs::new();
    fs.create_dir_all("/a/on").unwrap();
    fs.write("/f", "").unwrap();
    assert_eq!(fs.snapshot("/f").err(), Some(Errno::ENOTDIR));
    fs.mount(Superblock::new(Options::default()), "/a/on", MountFlags::empty()).unwrap();
    fs.write("/a/on/above", "").unwrap();
    assert!(fs.snapshot("/").unwrap().read_dir("/a/on").unwrap().next().is_none());
    assert!(fs.snapshot("/a/on").unwrap().exists("/above"));
    let process = fs.process(Cred::root());
    process.mkdir("/gone", 0o755).unwrap();
    process.chdir("/gone").unwrap();
    process.rmdir("/gone").unwrap();
    assert_eq!(process.snapshot(".").err(), Some(Errno::ENOENT));
    assert_eq!(fs.process(Cred::user(1, 1)).snapshot("/").err(), Some(Errno::EPERM));
}

#[test]
fn a_snapshot_under_writers_holds_each_file_whole_and_every_name_that_stays() {
    const LEN: usize = 3 * PAGE + 100;
    const SNAPSHOTS: u32 = 200;
    let fs = Fs::new();
    ["/one", "/two", "/one/moves"].iter().for_each(|dir| fs.create_dir(dir).unwrap());
    fs.write("/one/stays", [0; LEN]).unwrap();
    fs.write("/one/moves/below", "").unwrap();
    let done = AtomicBool::new(false);
    // Relaxed: a flag that publishes nothing.
    let until_done = |step: &dyn Fn(u32)| {
        (1..).take_while(|_| !done.load(Ordering::Relaxed)).for_each(step);
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let process = fs.process(Cred::root());
            let fd = process.open("/one/stays", OpenFlags::WRONLY, 0).unwrap();
            until_done(&|round| assert_eq!(process.pwrite(fd, &[round as u8; LEN], 50), Ok(LEN)));
        });
        scope.spawn(|| {
            let process = fs.process(Cred::root());
            until_done(&|round| {
                let path = format!("/two/{}", round % 7);
                let fd = process.open(&path, OpenFlags::WRONLY | OpenFlags::CREAT, 0o600).unwrap();
                process.write(fd, b"new").unwrap();
                process.close(fd).unwrap();
                process.link(&path, "/one/second").unwrap();
                fs.rename("/one/moves", "/two/moved").unwrap();
                process.unlink(&path).unwrap();
                process.unlink("/one/second").unwrap();
                fs.rename("/two/moved", "/one/moves").unwrap();
            });
        });
        for _ in 0..SNAPSHOTS {
            let copy = fs.snapshot("/").unwrap();
            let bytes = copy.read("/one/stays").unwrap();
            assert!([LEN, LEN + 50].contains(&bytes.len()), "{} bytes", bytes.len());
            assert!(bytes[50..].windows(2).all(|two| two[0] == two[1]), "torn");
            assert!(copy.exists("/two"));
            let report = copy.check();
            assert!(report.is_clean(), "{:?}", report.findings);
        }
        // Relaxed: as above.
        done.store(true, Ordering::Relaxed);
    });
    assert!(fs.check().is_clean());
}
