//! Repair of a file system in an object store: of records that do not fit together, and of a log with lost pushes.

use crate::faults::{contents, copy_without, is_push};
use object_store::memory::InMemory;
use sluice_bucket::{Bucket, Claim};
use sluice_store::{Gravity, Report, StoreError};
use sluice_vfs::{Fs, Options, Superblock};
use std::sync::Arc;

fn options() -> Options {
    let mut options = Options::default();
    options.store.background = false;
    options
}

fn new_file_system() -> (Arc<InMemory>, Fs) {
    let objects = Arc::new(InMemory::new());
    let store = Bucket::over(objects.clone()).create(options().store).expect("a new store");
    (objects, Fs::create_in(store, options()).expect("memory"))
}

fn open(bucket: &Bucket) -> Result<Fs, StoreError> {
    let store = bucket.open(Claim::Alone, options().store)?;
    Superblock::open_in(store, options()).map(Fs::with_superblock)
}

fn check(bucket: &Bucket) -> Report {
    Superblock::check_shown(|look| bucket.check(look, &mut |_| ())).expect("it answers")
}

fn is_sound(bucket: &Bucket) -> bool {
    check(bucket).worst().is_none_or(|worst| worst == Gravity::Note)
}

/// As `sluice fsck --repair`.
fn repair(bucket: &Bucket) -> Result<(), StoreError> {
    Superblock::repair_opened(
        |look| bucket.check(look, &mut |_| ()),
        || bucket.open_without_lost(options().store),
    )
}

#[test]
fn a_repair_gives_up_what_came_after_a_lost_push_and_keeps_all_before() {
    let (objects, fs) = new_file_system();
    let names: Vec<_> = (0..6).map(|number| format!("/file{number}")).collect();
    for name in &names {
        fs.write(name, name.repeat(1000)).expect("room");
        fs.superblock().sync().expect("memory");
    }
    let mut pushes: Vec<_> =
        contents(&objects).iter().map(|(path, _)| path.to_string()).filter(|path| is_push(path)).collect();
    pushes.sort_unstable();
    for lost in pushes.len() - 4..pushes.len() {
        // As a death leaves it.
        let copy = copy_without(&objects, |path| path == pushes[lost]);
        let is_newest = lost == pushes.len() - 1;
        if is_newest {
            // No claim has told of it yet, so nobody can know.
            assert!(is_sound(&copy));
            continue;
        }
        let why = check(&copy).findings.into_iter().map(|one| one.text).collect::<Vec<_>>().join("; ");
        assert!(why.contains("is missing"), "{lost}: {why}");
    }
    let copy = copy_without(&objects, |path| path == pushes[pushes.len() - 3]);
    drop(fs);
    assert!(matches!(open(&copy), Err(StoreError::DamagedLog(_))));
    repair(&copy).expect("the rest is whole");
    assert!(is_sound(&copy), "{:?}", check(&copy));
    let fs = open(&copy).expect("it was mended");
    let left: Vec<_> = names
        .iter()
        .filter(|name| fs.read(name).is_ok_and(|read| read == name.repeat(1000).as_bytes()))
        .collect();
    assert_eq!(left, names[..3].iter().collect::<Vec<_>>());
    fs.write("/new", "new").expect("it takes changes");
    fs.superblock().close().expect("memory");
    drop(fs);
    assert!(is_sound(&copy));
    assert_eq!(open(&copy).expect("it was closed").read("/new").expect("it is there"), b"new");
}

#[test]
fn a_repair_removes_what_belongs_to_no_file_and_gives_its_room_back() {
    let (objects, fs) = new_file_system();
    let bucket = Bucket::over(objects);
    for name in ["/kept", "/lost"] {
        fs.write(name, vec![7; 1 << 20]).expect("room");
    }
    fs.superblock().close().expect("memory");
    drop(fs);
    let before = check(&bucket);
    assert_eq!(before.found, 0, "{before:?}");
    // The record of the second file's inode.
    let store = bucket.open(Claim::Alone, options().store).expect("it was closed");
    let mut inodes = Vec::new();
    store
        .scan(b"i", b"j", &mut |key, _| {
            inodes.push(key.to_vec());
            true
        })
        .expect("memory");
    let mut change = store.begin(100).expect("room");
    change.remove(inodes.last().expect("three"), u64::MAX);
    drop(change);
    store.close().expect("memory");
    drop(store);
    assert!(matches!(check(&bucket).worst(), Some(Gravity::Damage)));
    repair(&bucket).expect("it can be mended");
    let after = check(&bucket);
    assert!(is_sound(&bucket) && after.data_bytes < before.data_bytes, "{after:?}");
    let fs = open(&bucket).expect("it was mended");
    assert_eq!(fs.read("/kept").expect("it is whole"), vec![7; 1 << 20]);
    assert!(fs.read("/lost").is_err());
}
