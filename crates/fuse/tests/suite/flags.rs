//! Duties that the kernel leaves to a FUSE server: flags of files, idmapped mounts, access times, statfs.

use crate::harness::{Fixture, LOCK_MODES, Peer, fresh_dir, options_of_ours, skipped};
use rustix::fs::{AtFlags, CWD, IFlags, Timespec, Timestamps, UTIME_NOW, XattrFlags};
use sluice_vfs::{Cred, InodeFlags, SetTime, Superblock, Timestamp};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

fn set_flags(path: &Path, flags: IFlags) -> io::Result<()> {
    Ok(rustix::fs::ioctl_setflags(File::open(path)?, flags)?)
}

fn flags_of(path: &Path) -> IFlags {
    rustix::fs::ioctl_getflags(File::open(path).expect("readable")).expect("a file of ours")
}

fn set_times(path: &Path, nsec: rustix::fs::Nsecs) -> io::Result<()> {
    let time = Timespec { tv_sec: 100, tv_nsec: nsec };
    Ok(rustix::fs::utimensat(
        CWD,
        path,
        &Timestamps { last_access: time, last_modification: time },
        AtFlags::empty(),
    )?)
}

/// A call to try in a directory that holds the file `f` with three bytes, and `h`.
type Attempt = fn(&Path) -> io::Result<()>;

const ON_FILE: [(&str, Attempt); 12] = [
    ("write", |dir| OpenOptions::new().write(true).open(dir.join("f"))?.write_all(b"x")),
    ("append", |dir| OpenOptions::new().append(true).open(dir.join("f"))?.write_all(b"x")),
    ("cut", |dir| File::create(dir.join("f")).map(drop)),
    ("unlink", |dir| fs::remove_file(dir.join("f"))),
    ("rename", |dir| fs::rename(dir.join("f"), dir.join("g"))),
    ("rename over", |dir| fs::rename(dir.join("h"), dir.join("f"))),
    ("link", |dir| fs::hard_link(dir.join("f"), dir.join("g"))),
    ("chmod", |dir| fs::set_permissions(dir.join("f"), fs::Permissions::from_mode(0o600))),
    ("chown", |dir| std::os::unix::fs::chown(dir.join("f"), Some(7), None)),
    ("touch", |dir| set_times(&dir.join("f"), UTIME_NOW)),
    ("set times", |dir| set_times(&dir.join("f"), 0)),
    ("setxattr", |dir| Ok(rustix::fs::setxattr(dir.join("f"), "trusted.a", b"", XattrFlags::empty())?)),
];

const IN_DIRECTORY: [(&str, Attempt); 5] = [
    ("create", |dir| fs::write(dir.join("new"), "")),
    ("mkdir", |dir| fs::create_dir(dir.join("new"))),
    ("unlink", |dir| fs::remove_file(dir.join("f"))),
    ("rename", |dir| fs::rename(dir.join("f"), dir.join("g"))),
    ("write", |dir| fs::write(dir.join("f"), "x")),
];

/// The attempts that succeed, and that nothing but EPERM is the answer to the others; on a fresh directory each, below `root`,
/// with `flags` on the file or, if `on_directory`, on the directory.
fn allowed(
    root: &Path,
    attempts: &[(&'static str, Attempt)],
    flags: IFlags,
    on_directory: bool,
) -> Vec<&'static str> {
    let mut allowed = Vec::new();
    for (name, attempt) in attempts {
        let dir = root.join("d");
        fs::create_dir(&dir).expect("writable");
        fs::write(dir.join("f"), "abc").expect("writable");
        fs::write(dir.join("h"), "").expect("writable");
        let flagged = if on_directory { dir.clone() } else { dir.join("f") };
        set_flags(&flagged, flags).expect("root may");
        assert_eq!(flags_of(&flagged) & flags, flags);
        match attempt(&dir) {
            Ok(()) => allowed.push(*name),
            Err(error) => assert_eq!(error.raw_os_error(), Some(1), "{name}: {error}"),
        }
        if flagged.exists() {
            set_flags(&flagged, IFlags::empty()).expect("root may");
        }
        fs::remove_dir_all(&dir).expect("nothing is fixed any more");
    }
    allowed
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped("only root may set these flags, map users and become another");
    }
    is_root
}

#[test]
fn flags_forbid_to_all_what_they_forbid_on_tmpfs() {
    if !is_root() {
        return;
    }
    let check = |root: &Path| {
        assert_eq!(allowed(root, &ON_FILE, IFlags::IMMUTABLE, false), [""; 0]);
        assert_eq!(allowed(root, &ON_FILE, IFlags::APPEND, false), ["append", "touch"]);
        assert_eq!(allowed(root, &ON_FILE, IFlags::NODUMP | IFlags::NOATIME, false).len(), ON_FILE.len());
        assert_eq!(allowed(root, &IN_DIRECTORY, IFlags::IMMUTABLE, true), ["write"]);
        assert_eq!(allowed(root, &IN_DIRECTORY, IFlags::APPEND, true), ["create", "mkdir", "write"]);
        fs::create_dir(root.join("d")).expect("writable");
        set_flags(&root.join("d"), IFlags::NODUMP | IFlags::NOATIME | IFlags::APPEND).expect("root may");
        fs::write(root.join("d/f"), "").expect("append-only takes new names");
        assert_eq!(flags_of(&root.join("d/f")), IFlags::NODUMP | IFlags::NOATIME);
        set_flags(&root.join("d"), IFlags::empty()).expect("root may");
        let refused = set_flags(&root.join("d/f"), IFlags::COMPRESSED).expect_err("there is no such flag");
        assert_eq!(refused.raw_os_error(), Some(95));
        fs::remove_dir_all(root.join("d")).expect("nothing is fixed any more");
    };
    for mode in LOCK_MODES {
        let Some(fixture) = Fixture::new(mode) else { return };
        check(fixture.dir());
        fixture.finish();
    }
    // The expectations themselves, where the host's tmpfs has such flags.
    let host = Path::new("/dev/shm").join(fresh_dir().file_name().expect("it has a name"));
    if fs::create_dir(&host).is_ok() {
        if set_flags(&host, IFlags::NODUMP).and_then(|()| set_flags(&host, IFlags::empty())).is_ok() {
            check(&host);
        }
        fs::remove_dir(&host).expect("it is empty");
    }
}

#[test]
fn a_flag_set_in_process_holds_in_the_mount_and_the_other_way_round() {
    if !is_root() {
        return;
    }
    let Some(fixture) = Fixture::new("locks=sluice") else { return };
    let process = fixture.fs.process(Cred::root());
    fs::write(fixture.path("f"), "abc").expect("writable");
    let fd = process.open("/f", sluice_vfs::OpenFlags::RDONLY, 0).expect("it is there");
    process.ioctl_setflags(fd, InodeFlags::IMMUTABLE).expect("root may");
    assert_eq!(flags_of(&fixture.path("f")), IFlags::IMMUTABLE);
    // This kernel asks before it opens a file: the answer comes there, as on tmpfs.
    let refused = OpenOptions::new().write(true).open(fixture.path("f")).expect_err("it is immutable");
    assert_eq!(refused.raw_os_error(), Some(1));
    let before = fs::metadata(fixture.path("f")).expect("it is there");
    set_flags(&fixture.path("f"), IFlags::NODUMP).expect("root may");
    assert_eq!(process.ioctl_getflags(fd), Ok(InodeFlags::NODUMP));
    let ctime = process.fstat(fd).expect("it is open").ctime;
    crate::harness::eventually("the kernel is told the time of change", || {
        let now = fs::metadata(fixture.path("f")).expect("it is there");
        (now.ctime(), now.ctime_nsec()) == (ctime.sec, i64::from(ctime.nsec))
    });
    assert!((before.ctime(), before.ctime_nsec()) <= (ctime.sec, i64::from(ctime.nsec)));
    process.close(fd).expect("it is open");
    drop(process);
    fixture.finish();
}

#[test]
fn the_other_call_for_flags_knows_those_and_refuses_what_tmpfs_refuses() {
    let Some(fixture) = Fixture::new("") else { return };
    fs::write(fixture.path("f"), "").expect("writable");
    let Some(mut peer) = Peer::start(&["fsxattr", &fixture.path("f").display().to_string()]) else { return };
    assert_eq!(peer.line(), "none, set, NODUMP, project: EOPNOTSUPP");
    drop(peer);
    fixture.finish();
}

#[test]
fn reading_moves_the_access_time_as_the_mount_and_the_open_file_say() {
    const EARLY: Timestamp = Timestamp { sec: 100, nsec: 0 };
    const O_NOATIME: i32 = 0o1_000_000;
    let late = Timestamp { sec: Timestamp::now().sec + 3600, nsec: 0 };
    // Which access time the file has, and whether reading moves it; `late` is past the last change, and tells nothing new.
    for (options, open_flags, [early_moves, late_moves]) in [
        ("", 0, [true, false]),
        ("relatime", O_NOATIME, [false, false]),
        ("strictatime", 0, [true, true]),
        ("strictatime", O_NOATIME, [false, false]),
        ("strictatime,noatime", 0, [false, false]),
        ("noatime,relatime", 0, [true, false]),
        ("ro", 0, [false, false]),
    ] {
        let superblock = Superblock::new(options_of_ours());
        let fixture = if crate::harness::can_mount() { Fixture::of(&superblock, options) } else { return };
        for (name, atime, moves) in [("early", EARLY, early_moves), ("late", late, late_moves)] {
            // Written in process: the kernel has nothing of it, and asks.
            fixture.fs.write(format!("/{name}"), "contents").expect("there is room");
            let process = fixture.fs.process(Cred::root());
            let time = Some(SetTime::At(atime));
            process.utimens(format!("/{name}"), [time, Some(SetTime::At(EARLY))]).expect("root may");
            let mut file = OpenOptions::new()
                .read(true)
                .custom_flags(open_flags)
                .open(fixture.path(name))
                .expect("it is there");
            let mut text = String::new();
            file.read_to_string(&mut text).expect("readable");
            let now = process.stat(format!("/{name}")).expect("it is there").atime;
            assert_eq!((text.as_str(), now != atime), ("contents", moves), "{options}, {name}");
        }
        fixture.finish();
    }
}

#[test]
fn listing_and_following_a_link_move_access_times_only_where_the_mount_lets_reads_move_them() {
    const EARLY: Timestamp = Timestamp { sec: 100, nsec: 0 };
    for (options, [dir_moves, link_moves]) in [
        ("", [true, true]),
        ("noatime", [false, false]),
        ("ro", [false, false]),
        ("nodiratime", [false, true]),
        ("nodiratime,diratime", [true, true]),
    ] {
        let superblock = Superblock::new(options_of_ours());
        let fixture = if crate::harness::can_mount() { Fixture::of(&superblock, options) } else { return };
        let process = fixture.fs.process(Cred::root());
        process.mkdir("/dir", 0o755).expect("there is room");
        process.symlink("dir", "/link").expect("there is room");
        let times = [Some(SetTime::At(EARLY)); 2];
        process.utimens("/dir", times).expect("root may");
        let flags = sluice_vfs::AtFlags::SYMLINK_NOFOLLOW;
        process.utimensat(sluice_vfs::Fd::CWD, "/link", times, flags).expect("root may");
        assert_eq!(fs::read_dir(fixture.path("dir")).expect("readable").count(), 0);
        assert_eq!(fs::read_link(fixture.path("link")).expect("readable"), Path::new("dir"));
        let moved = |name| process.lstat(name).expect("it is there").atime != EARLY;
        assert_eq!([moved("/dir"), moved("/link")], [dir_moves, link_moves], "{options}");
        drop(process);
        fixture.finish();
    }
}

#[test]
fn a_mount_can_be_idmapped() {
    if !is_root() {
        return;
    }
    for mode in LOCK_MODES {
        let Some(fixture) = Fixture::new(mode) else { return };
        let second = fresh_dir();
        fs::write(fixture.path("theirs"), "").expect("writable");
        std::os::unix::fs::chown(fixture.path("theirs"), Some(1000), Some(1000)).expect("root may");
        rustix::fs::setxattr(fixture.path("theirs"), "trusted.a", b"", XattrFlags::empty())
            .expect("root may");
        fs::create_dir(fixture.path("d")).expect("writable");
        std::os::unix::fs::chown(fixture.path("d"), Some(1000), Some(1000)).expect("root may");
        let places = [fixture.dir().display().to_string(), second.display().to_string()];
        // Users 1000 to 1009 of the file system are 2000 to 2009 there.
        let Some(mut peer) = Peer::start(&["idmap", &places[0], &places[1], "1000", "2000", "10"]) else {
            return;
        };
        match peer.line().as_str() {
            "mapped" => {}
            refused => {
                // Linux 6.12 is the first that maps users of FUSE mounts.
                skipped(&format!("users cannot be mapped here: {refused}"));
                return;
            }
        }
        assert_eq!(fs::metadata(second.join("theirs")).expect("it is there").uid(), 2000);
        // A user of the map makes a file, and it is stored by its own number.
        let Some(mut maker) = Peer::start(&["make", &second.join("d/new").display().to_string(), "2000"])
        else {
            return;
        };
        assert_eq!(maker.line(), "done");
        assert_eq!(fs::metadata(fixture.path("d/new")).expect("it is there").uid(), 1000);
        assert_eq!(fs::metadata(second.join("d/new")).expect("it is there").uid(), 2000);
        // The kernel does not tell any more which user asks: privileged callers still see what only they may see.
        let mut names = vec![0; 64];
        let len = rustix::fs::listxattr(fixture.path("theirs"), &mut names).expect("readable");
        assert_eq!(&names[..len], b"trusted.a\0");
        let Some(mut other) = Peer::start(&["list", &fixture.path("theirs").display().to_string(), "1000"])
        else {
            return;
        };
        assert_eq!(other.line(), "");
        drop((peer, maker, other));
        rustix::mount::unmount(&second, rustix::mount::UnmountFlags::DETACH).expect("it is mounted");
        fs::remove_dir(&second).expect("it is empty");
        fixture.finish();
    }
}

/// The files that programs make in a directory, by name and as `stat` shows them, or the error: as root, whom an idmapped mount
/// does not map, and as user 2000, whom it does, with a umask, in a directory with the set-group-ID bit, and in one with a
/// default ACL.
fn made_in(dir: &Path) -> Vec<String> {
    use rustix::fs::{FileType, Mode, OFlags};
    let attempt = |what: &str, outcome: rustix::io::Result<()>| format!("{what}: {outcome:?}");
    let name = |name| dir.join("root").join(name);
    let mode = Mode::from_raw_mode(0o2755);
    let open = |path: &Path, flags| rustix::fs::open(path, flags | OFlags::RDWR, mode).map(drop);
    let device = |kind, number| rustix::fs::mknodat(CWD, name("made"), kind, mode, number);
    let mut made = vec![
        attempt("create", open(&name("made"), OFlags::CREATE)),
        attempt("tmpfile", open(&dir.join("root"), OFlags::TMPFILE)),
        attempt("mkdir", rustix::fs::mkdir(name("made"), mode)),
        attempt("symlink", rustix::fs::symlink("x", name("made"))),
        attempt("link", rustix::fs::link(name("old"), name("made"))),
        attempt("fifo", device(FileType::Fifo, 0)),
        attempt("device", device(FileType::CharacterDevice, 0x103)),
    ];
    let script = r#"umask 027
        for dir in plain group acl; do
            cd "$1/$dir"
            touch file && mkdir dir && mkfifo fifo && ln -s x link && ln file linked && echo x >written
            chmod 6775 file && chmod 2755 dir && mkdir dir/below && touch dir/below/file && echo x >>file
            for made in *; do echo "$dir $(stat -c '%n %A %h %u %g' "$made") $(getfacl -cnE "$made" 2>&1 | tr '\n' ' ')"; done
            stat -c '%n %A %u %g' dir/below dir/below/file
        done"#;
    let user = ["--reuid", "2000", "--regid", "2000", "--groups", "2000,2003", "sh", "-c", script, "sh"];
    let ran = std::process::Command::new("setpriv").args(user).arg(dir).output().expect("setpriv starts");
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "");
    made.extend(String::from_utf8_lossy(&ran.stdout).lines().map(String::from));
    made
}

#[test]
fn what_is_made_on_an_idmapped_mount_is_as_on_tmpfs() {
    if !is_root() || !["setpriv", "setfacl", "getfacl"].into_iter().all(crate::harness::find_program) {
        return;
    }
    let run = |fs: &Path| {
        for dir in ["root", "plain", "group", "acl"] {
            let path = fs.join(dir);
            fs::create_dir(&path).expect("writable");
            let group = if dir == "group" { 1003 } else { 1000 };
            std::os::unix::fs::chown(&path, Some(1000), Some(group)).expect("root may");
            let mode = if dir == "group" { 0o2775 } else { 0o777 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("root may");
        }
        fs::write(fs.join("root/old"), "").expect("writable");
        std::os::unix::fs::chown(fs.join("root/old"), Some(1000), Some(1000)).expect("root may");
        let acl = ["-d", "-m", "u:1005:rwx,g:1006:r-x,m:rwx"];
        let set = std::process::Command::new("setfacl").args(acl).arg(fs.join("acl")).status();
        assert!(set.expect("setfacl starts").success());
        let second = fresh_dir();
        let (from, to) = (fs.display().to_string(), second.display().to_string());
        let mut peer = Peer::start(&["idmap", &from, &to, "1000", "2000", "10"])?;
        let line = peer.line();
        let made = (line == "mapped").then(|| made_in(&second));
        drop(peer);
        // Not mounted if users cannot be mapped.
        let _ = rustix::mount::unmount(&second, rustix::mount::UnmountFlags::DETACH);
        fs::remove_dir(&second).expect("it is empty");
        made
    };
    let tmpfs = fresh_dir();
    rustix::mount::mount("none", &tmpfs, "tmpfs", rustix::mount::MountFlags::empty(), None)
        .expect("root may");
    let theirs = run(&tmpfs);
    rustix::mount::unmount(&tmpfs, rustix::mount::UnmountFlags::DETACH).expect("it is mounted");
    fs::remove_dir(&tmpfs).expect("it is empty");
    let Some(theirs) = theirs else { return skipped("users cannot be mapped here") };
    for mode in LOCK_MODES {
        let Some(fixture) = Fixture::new(mode) else { return };
        match run(fixture.dir()) {
            Some(ours) => assert_eq!(ours, theirs, "{mode}"),
            // Linux 6.12 is the first that maps users of FUSE mounts.
            None => skipped("users of a FUSE mount cannot be mapped here"),
        }
        fixture.finish();
    }
}

#[test]
fn statfs_counts_files_also_where_their_number_has_no_limit() {
    if !crate::harness::can_mount() {
        return;
    }
    let superblock = Superblock::new(options_of_ours().size_limit(1 << 20));
    let fixture = Fixture::of(&superblock, "");
    let used = || {
        let told = rustix::fs::statvfs(fixture.dir()).expect("it is mounted");
        assert!(told.f_ffree > 0 && told.f_files > told.f_ffree);
        told.f_files - told.f_ffree
    };
    let before = used();
    fs::write(fixture.path("f"), "").expect("writable");
    assert_eq!(used(), before + 1);
    fixture.finish();
}
