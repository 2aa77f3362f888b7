//! Tests of crashes against a naive model, for thousands of seeds; and of injected faults. In memory and over a store.

use super::fault::{Calls, Effect, Fault};
use crate::{
    AtFlags, Cred, Errno, FallocateMode, Fd, File, Fs, OpenFlags, OpenOptions, Options, RenameFlags,
    StoreOptions, Superblock, XattrFlags,
};
use sluice_store::disk::Disk;
use sluice_store::disk::crash::CrashDisk;
use sluice_sync::Arc;
use sluice_sync::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

const NEW: OpenFlags = OpenFlags::RDWR.union(OpenFlags::CREAT);

/// Runs `test` with a file system in memory and with one over a store.
fn with_fs(test: impl Fn(&Fs)) {
    test(&Fs::new());
    let store = StoreOptions::default().log_size(1 << 20).background(false);
    let disk: Arc<dyn Disk> = Arc::from(Box::new(CrashDisk::new()) as Box<dyn Disk>);
    let superblock = Superblock::create_on(disk, Options { store, ..Options::default() });
    test(&Fs::with_superblock(superblock.expect("an empty disk")));
}

pub(super) fn tracked(test: impl Fn(&Fs)) {
    with_fs(|fs| {
        fs.track_crashes().expect("all can be read");
        test(fs);
    });
}

pub(super) fn crash(fs: &Fs, seed: u64) -> Fs {
    let clone = fs.crash_clone(seed).expect("it is tracked");
    assert!(clone.check().is_clean(), "{}", clone.check());
    clone
}

fn sync(fs: &Fs, path: &str) {
    let process = fs.process(Cred::root());
    let fd = process.open(path, OpenFlags::RDONLY, 0).expect("it is there");
    process.fsync(fd).expect("it can be");
}

/// The known values of each byte of a file.
#[derive(Default)]
struct Bytes {
    durable: Vec<u8>,
    now: Vec<u8>,
    /// The values that each byte may have besides, zero where the file was longer.
    others: BTreeMap<usize, BTreeSet<u8>>,
    /// The sizes that it may have.
    sizes: BTreeSet<usize>,
}

impl Bytes {
    fn note(&mut self) {
        self.sizes.insert(self.now.len());
        for (at, byte) in self.now.iter().enumerate() {
            self.others.entry(at).or_default().extend([*byte, 0]);
        }
    }

    fn synced(&mut self) {
        *self = Bytes { durable: self.now.clone(), now: self.now.clone(), ..Bytes::default() };
    }

    fn allows(&self, found: &[u8]) -> bool {
        let may_be = |at: usize, byte: u8| {
            self.durable.get(at) == Some(&byte)
                || self.others.get(&at).is_some_and(|others| others.contains(&byte))
        };
        let size = found.len();
        let least = self.sizes.first().map_or(self.durable.len(), |least| self.durable.len().min(*least));
        let most = self.sizes.last().map_or(self.durable.len(), |most| self.durable.len().max(*most));
        (least..=most).contains(&size) && found.iter().enumerate().all(|(at, byte)| may_be(at, *byte))
    }
}

#[test]
fn bytes_that_were_synchronised_stay_and_others_are_what_was_written_there() {
    let (mut lost, mut kept, mut torn) = (0, 0, 0);
    for round in 0..60 {
        for may_sync in [true, false] {
            let fs = Fs::new();
            fs.track_crashes().expect("memory");
            let process = fs.process(Cred::root());
            let fd = process.open("/f", NEW, 0o600).expect("a fresh name");
            let (mut random, mut model) = (Random::new(round), Bytes::default());
            process.fsync(fd).expect("it can be");
            for step in 1..=8_u8 {
                let (at, len) = (random.below(3_000_usize), random.below(3_000) + 1);
                match random.below(5) {
                    0 => {
                        process.ftruncate(fd, at as i64).expect("it can be");
                        model.now.resize(at, 0);
                    }
                    1 => {
                        let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                        process.fallocate(fd, mode, at as i64, len as i64).expect("it can be");
                        let size = model.now.len();
                        model.now[at.min(size)..(at + len).min(size)].fill(0);
                    }
                    2 if may_sync => {
                        process.fdatasync(fd).expect("it can be");
                        model.synced();
                    }
                    _ => {
                        process.pwrite(fd, &vec![step; len], at as i64).expect("there is room");
                        let size = model.now.len().max(at + len);
                        model.now.resize(size, 0);
                        model.now[at..at + len].fill(step);
                    }
                }
                model.note();
            }
            assert_eq!(fs.read("/f").expect("it is there"), model.now, "the model is right of the calls");
            for seed in 0..40 {
                let found = crash(&fs, seed).read("/f").expect("it was synchronised");
                assert!(model.allows(&found), "round {round}, seed {seed}");
                lost += usize::from(found == model.durable && model.durable != model.now);
                kept += usize::from(found == model.now && model.durable != model.now);
                torn += usize::from(found != model.now && found != model.durable);
                match seed {
                    0 => assert_eq!(found, model.durable),
                    1 => assert_eq!(found, model.now),
                    _ => {}
                }
            }
        }
    }
    assert!(lost > 100 && kept > 100 && torn > 100, "{lost} {kept} {torn}");
}

#[test]
fn fsync_of_a_file_keeps_its_name_contents_and_attributes_and_nothing_of_others() {
    tracked(|fs| {
        fs.create_dir_all("/db/sub").expect("fresh names");
        fs.write("/db/sub/f", "precious").expect("there is room");
        fs.set_permissions("/db/sub/f", 0o640).expect("it is there");
        let process = fs.process(Cred::root());
        process.setxattr("/db/sub/f", b"user.tag", b"v", XattrFlags::empty()).expect("there is room");
        fs.hard_link("/db/sub/f", "/db/other").expect("a fresh name");
        fs.write("/db/unrelated", "lost").expect("there is room");
        sync(fs, "/db/sub/f");
        let is_there = |seed| crash(fs, seed).exists("/db/unrelated");
        assert!((0..50).any(is_there) && !(0..50).all(is_there));
        for seed in 0..50 {
            let clone = crash(fs, seed);
            assert_eq!(clone.read_to_string("/db/sub/f").as_deref(), Ok("precious"));
            assert_eq!(clone.read_to_string("/db/other").as_deref(), Ok("precious"));
            let stat = clone.metadata("/db/other").expect("it is there");
            assert_eq!((stat.permissions(), stat.nlink), (0o640, 2));
            let value = clone.process(Cred::root()).getxattr("/db/sub/f", b"user.tag");
            assert_eq!(value.as_deref(), Ok(b"v".as_slice()));
        }
        let left: Vec<_> =
            fs.unsynced().expect("tracked").into_iter().map(|one| (one.path, one.bytes, one.name)).collect();
        assert_eq!(left, [(PathBuf::from("/db/unrelated"), 4, true)]);
    });
}

#[test]
fn a_rename_is_whole_and_fsync_of_the_directory_keeps_it() {
    tracked(|fs| {
        fs.write("/target", "old").expect("there is room");
        fs.sync().expect("it can be");
        fs.write("/new", "newer").expect("there is room");
        sync(fs, "/new");
        fs.rename("/new", "/target").expect("it is there");
        let read = |seed| crash(fs, seed).read_to_string("/target").expect("one of both is there");
        let found: BTreeSet<String> = (0..50).map(read).collect();
        assert_eq!(found, ["old".to_owned(), "newer".to_owned()].into());
        assert!((0..50).all(|seed| crash(fs, seed).exists("/new") == (read(seed) == "old")));
        sync(fs, "/");
        assert!((0..50).all(|seed| read(seed) == "newer" && !crash(fs, seed).exists("/new")));
        assert_eq!(fs.unsynced(), Ok(Vec::new()));
    });
}

#[test]
fn a_file_without_a_name_and_a_clone_of_a_tree_come_back_as_they_were() {
    tracked(|fs| {
        let process = fs.process(Cred::root());
        let fd = process.open("/", OpenFlags::TMPFILE | OpenFlags::RDWR, 0o600).expect("a directory");
        process.write(fd, b"unnamed").expect("there is room");
        process.fsync(fd).expect("it can be");
        process.linkat(fd, "", Fd::CWD, "/named", AtFlags::EMPTY_PATH).expect("a fresh name");
        let read = |seed, path: &str| crash(fs, seed).read_to_string(path);
        assert!(
            (0..50)
                .all(|seed| matches!(read(seed, "/named").as_deref(), Ok("unnamed") | Err(&Errno::ENOENT)))
        );
        assert_eq!((read(0, "/named"), read(1, "/named")), (Err(Errno::ENOENT), Ok("unnamed".into())));
        fs.create_dir_all("/a/b").expect("fresh names");
        fs.write("/a/b/f", "copied").expect("there is room");
        fs.clone_tree("/a", "/c").expect("a fresh name");
        sync(fs, "/c");
        assert!((0..50).all(|seed| read(seed, "/c/b/f").as_deref() == Ok("copied")));
        // Gone and durable: nothing of it is left.
        fs.remove_file("/named").expect("it is there");
        sync(fs, "/");
        assert!((0..50).all(|seed| read(seed, "/named") == Err(Errno::ENOENT)));
        process.pwrite(fd, b"x", 0).expect("it is open");
        process.fsync(fd).expect("it is open");
        assert!((0..20).all(|seed| !crash(fs, seed).exists("/named")));
    });
}

#[test]
fn what_moves_contents_is_not_torn_and_all_before_it_counts_with_it() {
    tracked(|fs| {
        let process = fs.process(Cred::root());
        let fd = process.open("/f", NEW, 0o600).expect("a fresh name");
        process.write(fd, &[vec![1; 4096], vec![2; 4096]].concat()).expect("there is room");
        process.fsync(fd).expect("it can be");
        process.fallocate(fd, FallocateMode::COLLAPSE_RANGE, 0, 4096).expect("whole pages");
        process.pwrite(fd, &[3; 10], 0).expect("there is room");
        let ways: BTreeSet<(usize, u8)> = (0..100)
            .map(|seed| {
                let found = crash(fs, seed).read("/f").expect("it is there");
                (found.len(), found[0])
            })
            .collect();
        assert_eq!(ways, [(8192, 1), (4096, 2), (4096, 3)].into());
    });
}

#[test]
fn a_file_system_that_is_not_tracked_says_so() {
    with_fs(|fs| {
        fs.write("/f", "x").expect("there is room");
        assert_eq!(fs.crash_clone(0).err(), Some(Errno::EINVAL));
        assert_eq!(fs.unsynced().err(), Some(Errno::EINVAL));
        fs.track_crashes().expect("all can be read");
        assert_eq!(crash(fs, 0).read_to_string("/f").as_deref(), Ok("x"), "what was there counts as durable");
    });
}

#[test]
fn a_clone_is_a_file_system_of_its_own_that_may_crash_again() {
    tracked(|fs| {
        fs.write("/f", "one").expect("there is room");
        fs.sync().expect("it can be");
        let clone = crash(fs, 0);
        clone.track_crashes().expect("memory");
        clone.write("/f", "another").expect("there is room");
        assert_eq!(crash(&clone, 0).read_to_string("/f").as_deref(), Ok("one"));
        assert_eq!(fs.read_to_string("/f").as_deref(), Ok("one"));
    });
}

/// A call that a rule strikes.
type Call<'c> = &'c dyn Fn() -> Result<(), Errno>;

#[test]
fn each_call_fails_as_a_rule_says_and_does_nothing() {
    with_fs(|fs| {
        fs.write("/f", "12345").expect("there is room");
        fs.create_dir("/d").expect("a fresh name");
        let process = fs.process(Cred::root());
        let fd = process.open("/f", OpenFlags::RDWR, 0).expect("it is there");
        let open = |path: &str, flags| process.open(path, flags, 0o600).map(drop);
        let calls: [(Calls, Call<'_>); 15] = [
            (Calls::OPEN, &|| open("/f", OpenFlags::RDONLY)),
            (Calls::CREATE, &|| open("/new", NEW)),
            (Calls::CREATE, &|| process.mkdir("/new", 0o700)),
            (Calls::CREATE, &|| process.symlink("x", "/new")),
            (Calls::READ, &|| process.pread(fd, &mut [0; 4], 0).map(drop)),
            (Calls::WRITE, &|| process.pwrite(fd, b"abc", 0).map(drop)),
            (Calls::WRITE, &|| process.copy_file_range(fd, Some(&mut 0), fd, Some(&mut 10), 5).map(drop)),
            (Calls::TRUNCATE, &|| process.ftruncate(fd, 2)),
            (Calls::FALLOCATE, &|| process.fallocate(fd, FallocateMode::empty(), 0, 9_000)),
            (Calls::FSYNC, &|| process.fdatasync(fd)),
            (Calls::FSYNC, &|| process.syncfs(fd)),
            (Calls::REMOVE, &|| process.rmdir("/d")),
            (Calls::LINK, &|| process.link("/f", "/l")),
            (Calls::SETATTR, &|| process.chmod("/f", 0o400)),
            (Calls::RENAME, &|| process.renameat2(Fd::CWD, "/f", Fd::CWD, "/g", RenameFlags::empty())),
        ];
        for (kind, call) in calls {
            let id = fs.inject(Fault::new(kind, Effect::Fail(Errno::EIO))).expect("it can be");
            assert_eq!(call(), Err(Errno::EIO), "{kind:?}");
            assert_eq!(fs.superblock().faults()[0].2, 1);
            assert!(fs.superblock().clear_fault(id) && !fs.superblock().clear_fault(id));
        }
        assert_eq!(fs.read_to_string("/f").as_deref(), Ok("12345"));
        assert_eq!(fs.metadata("/f").map(|stat| stat.permissions() & 0o400), Ok(0o400));
        assert!(fs.exists("/d") && !fs.exists("/new") && !fs.exists("/l"));
        // Without the rule each works.
        for (kind, call) in calls.into_iter().filter(|(kind, _)| *kind != Calls::CREATE) {
            assert_eq!(call(), Ok(()), "{kind:?}");
        }
        assert!(fs.check().is_clean());
    });
}

#[test]
fn a_rule_strikes_from_its_nth_call_on_as_often_as_it_says_by_any_name() {
    with_fs(|fs| {
        fs.create_dir("/db").expect("a fresh name");
        let log = OpenOptions::new().write(true).create(true).open(fs, "/db/wal").expect("a fresh name");
        fs.hard_link("/db/wal", "/elsewhere").expect("a fresh name");
        fs.inject("write:EIO:path=/db/*:nth=2:times=2".parse().expect("a rule")).expect("it can be");
        let write = || log.write_at(b"x", 0);
        assert_eq!([(); 5].map(|()| write().is_ok()), [true, false, false, true, true]);
        fs.superblock().clear_faults();
        fs.inject("write:EIO:path=/elsewhere".parse().expect("a rule")).expect("it can be");
        assert_eq!(write(), Err(Errno::EIO));
        fs.rename("/elsewhere", "/moved").expect("it is there");
        assert_eq!(write(), Ok(1), "it has that name no longer");
        fs.rename("/db", "/elsewhere").expect("it is there");
        fs.superblock().clear_faults();
        fs.inject("write:ENOSPC:path=/else*/wal".parse().expect("a rule")).expect("it can be");
        assert_eq!(write(), Err(Errno::ENOSPC));
    });
}

#[test]
fn a_short_write_and_a_short_read_do_a_part() {
    with_fs(|fs| {
        let file = File::create(fs, "/f").expect("a fresh name");
        fs.inject("read,write:short=3".parse().expect("a rule")).expect("it can be");
        assert_eq!(file.write_at(b"12345", 0), Ok(3));
        assert_eq!(file.metadata().map(|stat| stat.size), Ok(3));
        assert_eq!(file.write_all_at(b"12345", 0), Ok(()), "who goes on gets there");
        let mut buf = [0; 5];
        assert_eq!((file.read_at(&mut buf, 0), &buf), (Ok(3), b"123\0\0"));
        fs.superblock().clear_faults();
        assert_eq!((file.read_at(&mut buf, 0), &buf), (Ok(5), b"12345"));
    });
}

#[test]
fn an_fsync_that_fails_makes_nothing_durable() {
    tracked(|fs| {
        let file = File::create(fs, "/f").expect("a fresh name");
        file.write_at(b"bytes", 0).expect("there is room");
        fs.inject("fsync:EIO:times=1".parse().expect("a rule")).expect("it can be");
        assert_eq!(file.sync_all(), Err(Errno::EIO));
        assert!(!crash(fs, 0).exists("/f"));
        assert_eq!(file.sync_all(), Ok(()));
        assert_eq!(crash(fs, 0).read_to_string("/f").as_deref(), Ok("bytes"));
    });
}
