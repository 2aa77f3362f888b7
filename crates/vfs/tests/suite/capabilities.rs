//! File capabilities and set-ID bits: which calls take them off a file, and which leave them.

use sluice_vfs::{Cred, Errno, FallocateMode, Fd, Fs, OpenFlags, Options, Process, SetTime, XattrFlags};

const CAPABILITY: &[u8] = b"security.capability";
const VALUE: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const SIZE: usize = 3 * 4096;

/// A call, with its file `f` open at the descriptor and another at the second.
type Call = fn(&Process, Fd, Fd) -> Result<(), Errno>;

fn reserve(process: &Process, fd: Fd, mode: FallocateMode) -> Result<(), Errno> {
    process.fallocate(fd, mode, 4096, 4096)
}

fn copy(process: &Process, to: Fd, from: Fd, offset: i64, len: usize) -> Result<(), Errno> {
    let (mut offset, mut to_offset) = (offset, 0);
    process.copy_file_range(from, Some(&mut offset), to, Some(&mut to_offset), len).map(drop)
}

/// Calls that change the contents: the file capability goes whoever makes them, set-ID bits unless it is the superuser.
const WRITERS: [(&str, Call); 16] = [
    ("write", |process, fd, _| process.write(fd, b"x").map(drop)),
    ("pwrite", |process, fd, _| process.pwrite(fd, b"x", 9).map(drop)),
    ("writev", |process, fd, _| process.writev(fd, &[b"x"]).map(drop)),
    ("append", |process, _, _| {
        let fd = process.open("/f", OpenFlags::WRONLY | OpenFlags::APPEND, 0)?;
        process.write(fd, b"x")?;
        process.close(fd)
    }),
    ("truncate to less", |process, _, _| process.truncate("/f", 1)),
    ("truncate to the same size", |process, _, _| process.truncate("/f", SIZE as i64)),
    ("truncate to more", |process, fd, _| process.ftruncate(fd, 2 * SIZE as i64)),
    ("O_TRUNC", |process, _, _| {
        process.open("/f", OpenFlags::WRONLY | OpenFlags::TRUNC, 0).and_then(|fd| process.close(fd))
    }),
    ("fallocate", |process, fd, _| process.fallocate(fd, FallocateMode::empty(), 0, 9 * 4096)),
    ("fallocate, KEEP_SIZE", |process, fd, _| reserve(process, fd, FallocateMode::KEEP_SIZE)),
    ("PUNCH_HOLE", |process, fd, _| {
        reserve(process, fd, FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE)
    }),
    ("ZERO_RANGE", |process, fd, _| reserve(process, fd, FallocateMode::ZERO_RANGE)),
    ("COLLAPSE_RANGE", |process, fd, _| reserve(process, fd, FallocateMode::COLLAPSE_RANGE)),
    ("INSERT_RANGE", |process, fd, _| reserve(process, fd, FallocateMode::INSERT_RANGE)),
    ("a copy of bytes", |process, fd, other| copy(process, fd, other, 5, 77)),
    ("a clone of the whole", |process, fd, other| copy(process, fd, other, 0, SIZE)),
];

/// Calls of the owner that change neither contents nor owner.
const OTHERS: [(&str, Call); 6] = [
    ("write of nothing", |process, fd, _| process.write(fd, b"").map(drop)),
    ("a copy from behind the end", |process, fd, other| copy(process, fd, other, 1 << 20, 5)),
    ("read", |process, fd, _| process.read(fd, &mut [0; 9]).map(drop)),
    ("chmod", |process, _, _| process.chmod("/f", 0o6777)),
    ("utimens", |process, fd, _| process.futimens(fd, [Some(SetTime::Now); 2])),
    ("rename", |process, _, _| process.rename("/f", "/g").and_then(|()| process.rename("/g", "/f"))),
];

/// In memory and in a store, by user 1000 and by the superuser: the permission bits, and whether there is a capability.
fn each_way(name: &str, call: Call, check: impl Fn(u32, u32, bool)) {
    for uid in [1000, 0] {
        let fs = Fs::new();
        let (mode, has) = made(name, &fs, uid, call);
        check(uid, mode, has);

        let dir = store_dir(name, uid);
        let fs = Options::default().create_store(&dir).unwrap();
        let (mode, has) = made(name, &fs, uid, call);
        check(uid, mode, has);
        fs.superblock().close().unwrap();
        let fs = Options::default().open_store(&dir).unwrap();
        assert_eq!(state(&fs.process(Cred::root())), (mode, has), "{name} by {uid}, read from the store");
        fs.superblock().close().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

fn store_dir(name: &str, uid: u32) -> std::path::PathBuf {
    let dir = format!("sluice-capabilities-{}-{}-{uid}", std::process::id(), name.replace([' ', ','], "-"));
    std::env::temp_dir().join(dir)
}

/// The file after `call` was made on it by `uid`, which owns it.
fn made(name: &str, fs: &Fs, uid: u32, call: Call) -> (u32, bool) {
    let root = fs.process(Cred::root());
    fs.set_permissions("/", 0o777).unwrap();
    for path in ["/f", "/other"] {
        fs.write(path, vec![7; SIZE]).unwrap();
        root.chown(path, Some(1000), Some(1000)).unwrap();
    }
    root.chmod("/f", 0o6777).unwrap();
    root.setxattr("/f", CAPABILITY, &VALUE, XattrFlags::empty()).unwrap();
    fs.sync().unwrap();
    assert_eq!(state(&root), (0o6777, true));
    let user = fs.process(if uid == 0 { Cred::root() } else { Cred::user(uid, 1000) });
    let [fd, other] = ["/f", "/other"].map(|path| user.open(path, OpenFlags::RDWR, 0).unwrap());
    assert_eq!(call(&user, fd, other), Ok(()), "{name} by {uid}");
    [fd, other].into_iter().for_each(|fd| user.close(fd).unwrap());
    assert!(fs.superblock().check_idle().is_clean());
    state(&root)
}

fn state(root: &Process) -> (u32, bool) {
    let has = root.getxattr("/f", CAPABILITY).map(|value| value == VALUE);
    (root.stat("/f").unwrap().permissions(), has.unwrap_or(false))
}

#[test]
fn a_change_of_the_contents_takes_the_capability_and_set_id_bits_off() {
    for (name, call) in WRITERS {
        each_way(name, call, |uid, mode, has| {
            assert_eq!((mode, has), (if uid == 0 { 0o6777 } else { 0o777 }, false), "{name} by {uid}");
        });
    }
}

#[test]
fn a_change_of_the_owner_takes_the_capability_and_set_id_bits_off() {
    let calls: [(&str, Call); 3] = [
        ("chown", |process, _, _| process.chown("/f", Some(1000), None)),
        ("chgrp", |process, fd, _| process.fchown(fd, None, Some(1000))),
        ("chown of nothing", |process, _, _| process.chown("/f", None, None)),
    ];
    for (name, call) in calls {
        each_way(name, call, |uid, mode, has| assert_eq!((mode, has), (0o777, false), "{name} by {uid}"));
    }
}

#[test]
fn other_calls_leave_the_capability_and_set_id_bits() {
    for (name, call) in OTHERS {
        each_way(name, call, |uid, mode, has| assert_eq!((mode, has), (0o6777, true), "{name} by {uid}"));
    }
}

#[test]
fn a_refused_change_leaves_the_capability_and_set_id_bits() {
    let fs = Fs::new();
    let stranger = fs.process(Cred::user(5, 5));
    assert_eq!(made("nothing", &fs, 0, |_, _, _| Ok(())), (0o6777, true));
    assert_eq!(stranger.chown("/f", Some(5), None), Err(Errno::EPERM));
    assert_eq!(stranger.chown("/f", None, None), Err(Errno::EPERM));
    assert_eq!(stranger.truncate("/f", -1), Err(Errno::EINVAL));
    assert_eq!(state(&fs.process(Cred::root())), (0o6777, true));
}
