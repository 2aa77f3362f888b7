//! An encrypted store in an object store: its objects show nothing of it, its key alone opens it, each flipped byte is found, and keys
//! come and go.

use crate::faults::{Node, Plan, contents, wait};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use sluice_bucket::{Bucket, Claim, DiskCache, StoreError};
use sluice_store::{EXTENT_ROOM, Extent, KeyKind, Look, Options, Report, Store, StoreKey};
use std::sync::Arc;

/// A key and the data that its record names.
type BytePair = (Vec<u8>, Vec<u8>);

/// Bytes that no object may show.
const MARK: &[u8] = b"seventeen words that stand nowhere else";

fn key(byte: u8) -> StoreKey {
    StoreKey::file(vec![byte; 32]).expect("long enough")
}

fn plain() -> Options {
    Options::default().log_size(1 << 20).segment_size(1 << 20).background(false)
}

fn options() -> Options {
    plain().key(key(1))
}

/// A record and an extent with the mark and this number.
fn change(store: &Store, number: u32) {
    let mut bytes = MARK.repeat(300);
    bytes.extend_from_slice(&number.to_le_bytes());
    let extent = store.write_extent(&bytes).expect("memory");
    let mut value = MARK.to_vec();
    extent.encode(&mut value);
    let mut change = store.begin(8192 + EXTENT_ROOM).expect("room");
    change.put(&[MARK, &number.to_be_bytes()].concat(), 1, &value);
    change.name_extent(&extent);
}

/// All that a store holds; an error if some of it cannot be read.
fn content(store: &Store) -> Result<Vec<BytePair>, StoreError> {
    let (mut records, mut extents) = (Vec::new(), Vec::new());
    store.scan(&[0], &[0xff], &mut |key, value| {
        records.push(key.to_vec());
        extents.push(Extent::decode(&value[MARK.len()..]).expect("an extent").0);
        true
    })?;
    let read = store.read_extents(&extents.iter().collect::<Vec<_>>())?;
    Ok(records.into_iter().zip(read).collect())
}

/// The objects of a store with some changes in sorted objects and some in pushes, as its owner died.
fn used() -> Arc<InMemory> {
    let objects = Arc::new(InMemory::new());
    let bucket = Bucket::over(objects.clone());
    for number in 0..6 {
        // A store that is closed has sorted objects.
        let store = match number {
            0 => bucket.create(options()).expect("a new store"),
            _ => bucket.open(Claim::Epoch(number + 1), options()).expect("its key"),
        };
        change(&store, number as u32);
        store.sync().expect("memory");
        if number < 4 {
            store.close().expect("memory");
        } else {
            // Undoes the writes that the store makes when it is dropped.
            let kept = copied(&objects, |_| ());
            drop(store);
            restore(&objects, &kept);
        }
    }
    objects
}

/// A copy of the objects, which `damage` may change.
fn copied(objects: &Arc<InMemory>, damage: impl FnOnce(&mut Vec<(Path, Vec<u8>)>)) -> Arc<InMemory> {
    let mut all = contents(objects);
    damage(&mut all);
    let copy = Arc::new(InMemory::new());
    for (path, bytes) in all {
        wait(copy.put(&path, PutPayload::from(bytes))).expect("memory");
    }
    copy
}

fn restore(objects: &Arc<InMemory>, kept: &Arc<InMemory>) {
    for (path, _) in contents(objects) {
        wait(objects.delete(&path)).expect("memory");
    }
    for (path, bytes) in contents(kept) {
        wait(objects.put(&path, PutPayload::from(bytes))).expect("memory");
    }
}

/// A part of the mark that stands in `bytes`.
fn shows(bytes: &[u8]) -> Option<&'static [u8]> {
    let stands = |part: &&[u8]| {
        let mut at = bytes.iter().enumerate().filter(|(_, byte)| **byte == part[0]);
        at.any(|(at, _)| bytes[at..].starts_with(part))
    };
    MARK.chunks_exact(8).find(stands)
}

#[test]
fn nothing_of_an_encrypted_store_stands_in_its_objects_and_its_key_opens_it() {
    let objects = used();
    let all = contents(&objects);
    for (path, bytes) in &all {
        assert!(
            shows(bytes).is_none() && shows(path.as_ref().as_bytes()).is_none(),
            "{path} shows {:?}",
            shows(bytes)
        );
    }
    let of = |part: &str| all.iter().filter(|(path, _)| path.as_ref().starts_with(part)).count();
    assert!(of("records/compacted/") >= 4 && of("records/wal/") >= 2 && of("data/") >= 6, "{all:?}");
    // The same store in the clear shows all of it.
    let clear = Arc::new(InMemory::new());
    let store = Bucket::over(clear.clone()).create(plain()).expect("a new store");
    change(&store, 0);
    store.close().expect("memory");
    let shown = contents(&clear).iter().filter(|(_, bytes)| shows(bytes).is_some()).count();
    assert!(shown >= 3, "{shown}");
    let bucket = Bucket::over(objects.clone());
    assert!(bucket.info().expect("a store").key_id.is_some());
    for store in [bucket.look(options()), bucket.open(Claim::Epoch(100), options())] {
        let store = store.expect("its key");
        assert!(store.is_encrypted());
        let found = content(&store).expect("whole");
        assert_eq!(found.len(), 6);
        for (number, (record, bytes)) in (0_u32..).zip(found) {
            assert!(record.ends_with(&number.to_be_bytes()) && bytes.ends_with(&number.to_le_bytes()));
        }
    }
}

#[test]
fn without_its_key_an_encrypted_store_does_not_open_and_no_object_changes() {
    let objects = used();
    let bucket = Bucket::over(objects.clone());
    let before = contents(&objects);
    let words = StoreKey::passphrase(vec![1; 32]).expect("words");
    for (options, is_wrong) in [(plain(), false), (plain().key(key(2)), true), (plain().key(words), true)] {
        let told = |opened: Result<Store, StoreError>| match opened.expect_err("it has another key") {
            StoreError::Locked => assert!(!is_wrong),
            StoreError::WrongKey => assert!(is_wrong),
            error => panic!("{error}"),
        };
        told(bucket.open(Claim::Alone, options.clone()));
        told(bucket.open(Claim::Takeover, options.clone()));
        told(bucket.open(Claim::Epoch(100), options.clone()));
        told(bucket.open_without_lost(options.clone()));
        told(bucket.look(options));
    }
    assert!(matches!(bucket.check(&mut Nothing, &mut |_| ()), Err(StoreError::Locked)));
    assert!(matches!(bucket.create(plain()), Err(StoreError::Exists)));
    assert!(matches!(bucket.create(options()), Err(StoreError::Exists)), "it has records");
    assert!(matches!(bucket.create(plain().key(key(2))), Err(StoreError::Exists)));
    assert!(contents(&objects) == before);
    // A key for a store that is not encrypted: somebody may have put it in the place of one that is.
    let clear = Bucket::over(Arc::new(InMemory::new()));
    drop(clear.create(plain()).expect("a new store"));
    assert!(matches!(clear.open(Claim::Alone, options()), Err(StoreError::NotEncrypted)));
    assert!(matches!(clear.keys(), Err(StoreError::NotEncrypted)));
    assert!(matches!(clear.change_keys(|_| Ok(())), Err(StoreError::NotEncrypted)));
    // The keys of another store, and none.
    let keys_of = |bytes: Option<Vec<u8>>| {
        let copy = copied(&objects, |all| {
            all.retain(|(path, _)| path.as_ref() != "keys");
            all.extend(bytes.map(|bytes| (Path::from("keys"), bytes)));
        });
        Bucket::over(copy).open(Claim::Alone, options()).expect_err("they are not its own").to_string()
    };
    let other = contents(&used()).into_iter().find(|(path, _)| path.as_ref() == "keys").expect("encrypted").1;
    assert!(keys_of(Some(other)).contains("`keys` belongs to another store"));
    assert!(keys_of(None).contains("`keys` is missing"));
}

struct Nothing;

impl Look for Nothing {
    fn see(&mut self, _key: &[u8], _value: &[u8], _report: &mut Report) {}

    fn describe(&self, _key: &[u8]) -> String {
        String::new()
    }

    fn extents(&self, _key: &[u8], _value: &[u8]) -> Vec<Extent> {
        Vec::new()
    }
}

#[test]
fn each_flipped_byte_of_an_encrypted_store_in_objects_is_found_or_changes_nothing() {
    let objects = used();
    let whole = content(&Bucket::over(objects.clone()).look(options()).expect("its key")).expect("whole");
    let (mut found, mut same) = (0, 0);
    for (at, (path, bytes)) in contents(&objects).into_iter().enumerate() {
        // Claims are in the clear, and say who has the store.
        if path.as_ref().starts_with("owners/") {
            continue;
        }
        // Some bytes of a large object, and each end of it.
        let step = (bytes.len() / 12).max(1);
        let places = (0..bytes.len())
            .filter(|place| place % step == at % step || place + 2 > bytes.len() || *place < 2);
        for place in places {
            let copy = copied(&objects, |all| all[at].1[place] ^= 1 << (place % 8));
            let read = Bucket::over(copy).look(options()).and_then(|store| content(&store));
            match read {
                Err(
                    StoreError::Damaged(_)
                    | StoreError::DamagedLog(_)
                    | StoreError::NotAStore
                    | StoreError::NewerFormat(_),
                ) => found += 1,
                Err(StoreError::WrongKey) if path.as_ref() == "keys" => found += 1,
                Err(error) => panic!("byte {place} of {path}: {error:?}"),
                // Objects that no list names any more, and free slots.
                Ok(read) if read == whole => same += 1,
                Ok(_) => panic!("byte {place} of {path}: other content"),
            }
        }
    }
    assert!(found > 100, "{found} found, {same} without effect");
}

#[test]
fn an_object_that_was_cut_or_stands_for_another_is_found() {
    let objects = used();
    let all = contents(&objects);
    let whole = content(&Bucket::over(objects.clone()).look(options()).expect("its key")).expect("whole");
    let is_found = |read: Result<_, StoreError>, how: String| match read {
        Err(StoreError::Damaged(_)) => {}
        // The object store itself refuses a part behind the end.
        Err(error) => {
            assert!(how.contains("cut to") && error.to_string().contains("could not read"), "{how}: {error}")
        }
        // No list names it any more.
        Ok(read) => assert!(read == whole && how.contains("compacted"), "{how}"),
    };
    let newest = |part: &str| {
        let of_part = all.iter().enumerate().filter(|(_, (path, _))| path.as_ref().starts_with(part));
        of_part.map(|(at, _)| at).collect::<Vec<_>>()
    };
    for part in ["records/wal/", "records/manifest/", "records/compacted/"] {
        let of_part = newest(part);
        let last = *of_part.last().expect("there are some");
        for len in [0, 1, 31, 32, all[last].1.len() - 1] {
            let copy = copied(&objects, |all| all[last].1.truncate(len));
            let read = Bucket::over(copy).look(options()).and_then(|store| content(&store));
            is_found(read, format!("{} cut to {len}", all[last].0));
        }
        let copy = copied(&objects, |copy| copy[last].1 = all[of_part[0]].1.clone());
        let read = Bucket::over(copy).look(options()).and_then(|store| content(&store));
        is_found(read, format!("{} exchanged", all[last].0));
    }
}

#[test]
fn keys_of_an_encrypted_store_in_objects_come_and_go_while_nobody_has_it_open() {
    let objects = used();
    let bucket = Bucket::over(objects.clone());
    let records = || {
        contents(&objects)
            .into_iter()
            .filter(|(path, _)| !path.as_ref().starts_with("owners/") && path.as_ref() != "keys")
            .collect::<Vec<_>>()
    };
    let before = records();
    assert!(matches!(bucket.change_keys(|keys| keys.add(&key(2), &key(3))), Err(StoreError::WrongKey)));
    let words = StoreKey::passphrase(b"correct horse".to_vec()).expect("words");
    assert_eq!(bucket.change_keys(|keys| keys.add(&key(1), &words)).expect("its key"), 1);
    assert_eq!(bucket.change_keys(|keys| keys.add(&words, &key(3))).expect("its key"), 2);
    bucket.change_keys(|keys| keys.remove(&key(3), 0)).expect("another key");
    assert!(matches!(bucket.change_keys(|keys| keys.remove(&key(3), 2)), Err(StoreError::BadKey(_))));
    let kinds: Vec<_> =
        bucket.keys().expect("encrypted").iter().map(|slot| (slot.number, slot.kind)).collect();
    assert_eq!(kinds, [(1, KeyKind::Passphrase), (2, KeyKind::File)]);
    assert!(records() == before, "nothing else was written");
    assert!(matches!(bucket.open(Claim::Alone, options()), Err(StoreError::WrongKey)));
    let store = bucket.open(Claim::Alone, plain().key(key(3))).expect("its key");
    assert_eq!(content(&store).expect("whole").len(), 6);
    // While somebody has it open no key changes, and none is asked for in vain.
    let held = contents(&objects).into_iter().find(|(path, _)| path.as_ref() == "keys");
    assert!(matches!(bucket.change_keys(|keys| keys.add(&key(3), &key(4))), Err(StoreError::InUse(_))));
    change(&store, 6);
    store.sync().expect("it goes on");
    assert!(contents(&objects).into_iter().find(|(path, _)| path.as_ref() == "keys") == held);
    store.close().expect("memory");
    bucket.change_keys(|keys| keys.add(&key(3), &key(4))).expect("nobody has it open");
    assert_eq!(content(&bucket.look(plain().key(key(4))).expect("its key")).expect("whole").len(), 7);
}

#[test]
fn the_cache_of_an_encrypted_store_has_what_is_stored_and_a_damaged_copy_there_is_fetched_anew() {
    let dir = std::env::temp_dir().join(format!("sluice-sealed-cache-{}", std::process::id()));
    let objects = Arc::new(InMemory::new());
    let bucket = Bucket::over(objects.clone()).with_cache(DiskCache { dir: dir.clone(), bytes: 64 << 20 });
    let store = bucket.create(options()).expect("a new store");
    (0..40).for_each(|number| change(&store, number));
    store.close().expect("memory");
    drop(store);
    let read = || content(&bucket.look(options()).expect("its key")).expect("whole");
    let whole = read();
    assert_eq!(whole.len(), 40);
    let files = || {
        let (mut places, mut files) = (vec![dir.clone()], Vec::new());
        while let Some(place) = places.pop() {
            for entry in std::fs::read_dir(place).expect("it is there").flatten() {
                let path = entry.path();
                if path.is_dir() { places.push(path) } else { files.push(path) }
            }
        }
        files
    };
    let (mut parts, mut bytes) = (0, 0);
    for file in files() {
        let cached = std::fs::read(&file).expect("it is there");
        assert!(shows(&cached).is_none(), "{} shows {:?}", file.display(), shows(&cached));
        bytes += cached.len();
        if file.to_string_lossy().contains("_part") {
            parts += 1;
            let mut damaged = cached;
            damaged.iter_mut().skip(20).step_by(100).for_each(|byte| *byte ^= 4);
            std::fs::write(&file, damaged).expect("room");
        }
    }
    assert!(parts >= 2 && bytes > 40 * 300 * MARK.len(), "{parts} parts, {bytes} bytes");
    assert!(read() == whole);
    std::fs::remove_dir_all(dir).expect("it is there");
}

#[test]
fn an_object_of_many_parts_is_encrypted_whole_and_merges_of_it_too() {
    const BURST: u64 = 20 << 20;
    const PART: u64 = 1 << 20;
    let objects = Arc::new(InMemory::new());
    let bucket = Bucket::over(objects.clone());
    let store = bucket.create(options().log_size(64 << 20)).expect("a new store");
    for key in 0..BURST / PART {
        let mut change = store.begin(PART + 64).expect("room");
        let value = MARK.repeat(PART as usize / MARK.len());
        change.put(&key.to_be_bytes(), key, &value);
        drop(change);
        store.sync().expect("memory");
    }
    store.close().expect("memory");
    drop(store);
    let largest = contents(&objects).into_iter().map(|(_, bytes)| bytes.len()).max();
    assert!(largest > Some(12 << 20), "{largest:?}: none was sent in parts");
    assert!(contents(&objects).iter().all(|(_, bytes)| shows(bytes).is_none()));
    let store = bucket.look(options()).expect("its key");
    for key in 0..BURST / PART {
        let value = store.get(&key.to_be_bytes()).expect("whole").expect("it is there");
        assert!(value == MARK.repeat(PART as usize / MARK.len()), "{key}");
    }
}

#[test]
fn crashes_and_lost_answers_of_an_encrypted_store_lose_nothing_that_was_synchronised() {
    for seed in 0..20 {
        let objects = Arc::new(InMemory::new());
        drop(Bucket::over(objects.clone()).create(options()).expect("a new store"));
        let plan =
            Plan { failing: 60, dies_at: Some(3 + 2 * seed), dies_after: seed % 2 == 0, ..Plan::default() };
        let node = Node::new(&objects, plan, seed);
        let mut done = 0;
        if let Ok(store) = node.bucket().open(Claim::Epoch(5), options()) {
            for number in 0..12 {
                let written = store.write_extent(&MARK.repeat(200)).and_then(|extent| {
                    let mut value = MARK.to_vec();
                    extent.encode(&mut value);
                    let mut change = store.begin(8192 + EXTENT_ROOM)?;
                    change.put(&u32::to_be_bytes(number), 1, &value);
                    change.name_extent(&extent);
                    drop(change);
                    store.sync()
                });
                match written {
                    Ok(()) => done = number + 1,
                    Err(_) => break,
                }
            }
        }
        let store = Bucket::over(objects.clone()).open(Claim::Epoch(9), options()).expect("whole");
        let found = content(&store).unwrap_or_else(|error| panic!("seed {seed}: {error}")).len();
        assert!((done as usize..=done as usize + 1).contains(&found), "seed {seed}: {found} of {done}");
    }
}
