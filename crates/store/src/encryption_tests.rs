//! An encrypted store: nothing of it can be read in its files, the wrong key opens nothing and changes nothing, and no nonce is used twice.

use crate::disk::crash::CrashDisk;
use crate::disk::{Disk, DiskFile};
use crate::encryption::SEAL;
use crate::format::{KEYS, KEYS_COPY, LOG, SUPER, TREE};
use crate::{EXTENT_ROOM, Extent, Options, Store, StoreError, StoreKey};
use sluice_sync::Arc;
use std::collections::BTreeMap;

type Files = BTreeMap<String, Vec<u8>>;
/// A key and the data that its record names, or a nonce and the bytes that are encrypted under it.
type BytePair = (Vec<u8>, Vec<u8>);

const BLOCK: usize = 4096;
/// The bytes that no file may show.
const MARK: &[u8] = b"seventeen words that stand nowhere else";

fn key(byte: u8) -> StoreKey {
    StoreKey::file(vec![byte; 32]).expect("long enough")
}

fn options() -> Options {
    Options {
        log_size: 256 << 10,
        segment_size: 1 << 20,
        cache: 1 << 20,
        background: false,
        ..Options::default()
    }
}

fn shared(disk: &CrashDisk) -> Arc<dyn Disk> {
    Arc::from(Box::new(disk.clone()) as Box<dyn Disk>)
}

fn open(files: &Files, byte: u8) -> Result<(CrashDisk, Store), StoreError> {
    let disk = CrashDisk::with(files.clone());
    Ok((disk.clone(), Store::open(shared(&disk), options().key(key(byte)))?))
}

/// Writes a record and an extent with the mark and this number.
fn change(store: &Store, number: u32) -> Extent {
    let mut bytes = MARK.repeat(300);
    bytes.extend_from_slice(&number.to_le_bytes());
    let extent = store.write_extent(&bytes).expect("room");
    let mut value = MARK.to_vec();
    extent.encode(&mut value);
    let mut change = store.begin(8192 + EXTENT_ROOM).expect("room");
    change.put(&[MARK, &number.to_be_bytes()].concat(), 1, &value);
    change.name_extent(&extent);
    drop(change);
    extent
}

/// A store with some changes in its tree and some in its log, as its machine died.
fn used() -> Files {
    let disk = CrashDisk::new();
    let store = Store::create(shared(&disk), options().key(key(1))).expect("an empty disk");
    for number in 0..8 {
        change(&store, number);
        if number % 4 == 1 {
            store.sync().and_then(|()| store.checkpoint()).expect("the disk works");
        }
    }
    store.sync().expect("the disk works");
    let files = disk.files();
    // The copy was taken before the store was dropped, and lacks its last writes.
    drop(store);
    files
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

#[test]
fn nothing_of_an_encrypted_store_stands_in_its_files_and_its_key_opens_it() {
    let files = used();
    // How many segments there are depends on the CPUs that its thread ran on.
    let (segments, others): (Vec<_>, Vec<_>) = files.keys().partition(|name| name.starts_with("segment-"));
    assert_eq!(others, [KEYS, LOG, SUPER, TREE], "a file of a kind that this test does not know");
    for (name, bytes) in &files {
        for part in MARK.windows(8) {
            assert!(!bytes.windows(8).any(|found| found == part), "{name} shows {part:?}");
        }
    }
    // Where an extent ends cannot be seen: no block that was written ends with zeros.
    let mut blocks = 0;
    for name in segments {
        let written = files[name].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        for block in files[name][..written].chunks(BLOCK) {
            assert!(block.len() == BLOCK && !block.ends_with(&[0; 8]), "{name} shows where data end");
            blocks += 1;
        }
    }
    assert!(blocks >= 8, "{blocks} blocks for 8 extents");
    let (_, store) = open(&files, 1).expect("its key");
    let found = content(&store).expect("whole");
    assert_eq!(found.len(), 8);
    for (number, (record, bytes)) in (0_u32..).zip(found) {
        assert!(record.ends_with(&number.to_be_bytes()) && bytes.ends_with(&number.to_le_bytes()));
        assert!(bytes.starts_with(MARK));
    }
}

#[test]
fn without_its_key_a_store_does_not_open_and_nothing_is_written() {
    let files = used();
    let told = |files: &Files, options: Options| {
        let disk = CrashDisk::with(files.clone());
        let error = Store::open(shared(&disk), options).expect_err("it has another key");
        assert_eq!((disk.steps(), disk.files() == *files), (0, true), "{error}");
        error
    };
    assert!(matches!(told(&files, options()), StoreError::Locked));
    assert!(matches!(told(&files, options().key(key(2))), StoreError::WrongKey));
    let words = StoreKey::passphrase(vec![1; 32]).expect("words");
    assert!(matches!(told(&files, options().key(words)), StoreError::WrongKey));
    // The file of another store, none, a part, and more than all.
    let keys = |bytes: Option<&[u8]>| {
        let mut files = files.clone();
        match bytes {
            Some(bytes) => drop(files.insert(KEYS.into(), bytes.to_vec())),
            None => drop(files.remove(KEYS)),
        }
        told(&files, options().key(key(1))).to_string()
    };
    assert!(keys(Some(&used()[KEYS])).contains("`keys` belongs to another store"));
    assert!(keys(None).contains("`keys` is missing"));
    for len in [0, 1, 1000] {
        assert!(keys(Some(&files[KEYS][..len])).contains("`keys`: it has another length"));
    }
    assert!(keys(Some(&[&files[KEYS][..], &[0]].concat())).contains("`keys`: it has another length"));
    // A store that is not encrypted in the place of one that is.
    let disk = CrashDisk::with(Files::new());
    drop(Store::create(shared(&disk), options()).expect("an empty disk"));
    if disk.cipher().is_none() {
        assert!(matches!(told(&disk.files(), options().key(key(1))), StoreError::NotEncrypted));
        assert!(matches!(Store::keys(&disk), Err(StoreError::NotEncrypted)));
    }
    // A check, a repair and a look at the content ask for the key, too.
    let disk = shared(&CrashDisk::with(files.clone()));
    assert!(matches!(Store::content(disk.clone(), &[]..&[], &mut |_, _| true), Err(StoreError::Locked)));
    assert!(matches!(Store::cut_log(&*disk), Err(StoreError::Locked)));
    let unlocked = Store::unlock(disk, &key(1)).expect("its key");
    let content = Store::content(unlocked.clone(), &[]..&[], &mut |_, _| true).expect("whole");
    assert!(content.batches > 0);
    Store::cut_log(&*unlocked).expect("whole");
}

#[test]
fn keys_come_and_go_and_a_crash_leaves_the_former_ones_or_the_new() {
    let files = used();
    let disk = CrashDisk::with(files.clone());
    assert_eq!(Store::add_key(&disk, &key(1), &key(2)).expect("room"), 1);
    Store::remove_key(&disk, &key(2), 0).expect("another");
    assert!(matches!(Store::unlock(shared(&disk), &key(1)), Err(StoreError::WrongKey)));
    let changed = disk.files();
    assert!(changed.iter().all(|(name, bytes)| name == KEYS || files[name] == *bytes), "nothing else");
    for steps in 0..=disk.steps() {
        for way in [crate::disk::crash::Survivors::None, crate::disk::crash::Survivors::Some(steps as u64)] {
            let left = disk.crash(steps, way);
            let opens = [1, 2].map(|byte| Store::unlock(shared(&left), &key(byte)).is_ok());
            assert!(opens.contains(&true), "after step {steps}");
            // Files that the crash left do no harm.
            let opener = if opens[0] { 1 } else { 2 };
            Store::add_key(&left, &key(opener), &key(3)).expect("room");
            assert!(!left.files().contains_key(KEYS_COPY));
            content(&open(&left.files(), 3).expect("a new key").1).expect("whole");
        }
    }
}

#[test]
fn each_flipped_byte_of_an_encrypted_store_is_found_or_changes_nothing() {
    let files = used();
    let right = content(&open(&files, 1).expect("its key").1).expect("whole");
    let mut found = BTreeMap::new();
    for (name, bytes) in &files {
        let used = bytes.iter().rposition(|byte| *byte != 0).expect("not empty") + 1;
        // All bytes of small files; of others a part of each sector, and all kinds of places in a block.
        let step = if used < BLOCK { 1 } else { 127 };
        for at in (0..used).step_by(step) {
            let mut files = files.clone();
            files.get_mut(name).expect("it is there")[at] ^= 0x10;
            let read = open(&files, 1).and_then(|(_, store)| content(&store));
            match read {
                Ok(read) => assert!(read == right, "byte {at} of {name}: other bytes"),
                Err(_) => *found.entry(name.as_str()).or_insert(0) += 1,
            }
        }
    }
    println!("{found:?}");
    assert!(found.values().all(|count| *count > 30) && found.len() == files.len(), "{found:?}");
}

/// The nonces of what `files` hold, each with what was encrypted under it.
fn nonces(files: &Files, byte: u8) -> Vec<BytePair> {
    let mut all = Vec::new();
    // A batch of the log.
    for block in files[LOG].chunks(BLOCK).filter(|block| block.starts_with(&crate::log::MAGIC.to_le_bytes()))
    {
        all.push((block[64..64 + 24].to_vec(), block[64 + 24..].to_vec()));
    }
    // A page of the tree: 96 behind each block of seals, and page 0 with its own.
    for group in files[TREE].chunks(97 * BLOCK) {
        for (number, page) in group[BLOCK..].chunks(BLOCK).enumerate() {
            let at = number / 12 * 512 + number % 12 * SEAL;
            let seal = if group[at..at + SEAL] == [0; SEAL] {
                &page[512 - SEAL..512]
            } else {
                &group[at..at + SEAL]
            };
            if seal[..24] != [0; 24] {
                all.push((seal[..24].to_vec(), [&seal[24..], page].concat()));
            }
        }
    }
    let (_, store) = open(files, byte).expect("its key");
    let mut extents = Vec::new();
    store
        .scan(&[0], &[0xff], &mut |_, value| {
            extents.push(value[MARK.len() + 12..].to_vec());
            true
        })
        .expect("whole");
    all.extend(extents.into_iter().map(|proofs| (proofs[..16].to_vec(), proofs[16..].to_vec())));
    all
}

#[test]
fn two_copies_of_a_store_that_go_on_apart_and_a_log_that_a_crash_cut_use_no_nonce_twice() {
    let files = used();
    let goes_on = |first: u32| {
        let (disk, store) = open(&files, 1).expect("its key");
        for number in first..first + 6 {
            change(&store, number);
            store.sync().expect("the disk works");
        }
        store.checkpoint().expect("the disk works");
        change(&store, first + 6);
        store.sync().expect("the disk works");
        let after = disk.files();
        drop(store);
        (disk, after)
    };
    let ((disk, one), (_, other)) = (goes_on(100), goes_on(200));
    assert!(one[LOG] != other[LOG] && one[TREE] != other[TREE]);
    // The same numbers of batches and the same blocks, written once more after a crash.
    let cut = disk.crash(disk.steps() / 2, crate::disk::crash::Survivors::None).files();
    let (_, store) = open(&cut, 1).expect("its key");
    change(&store, 300);
    store.sync().expect("the disk works");
    drop(store);
    let mut seen: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut twice = 0;
    for files in [&files, &one, &other, &cut] {
        for (nonce, under) in nonces(files, 1) {
            match seen.insert(nonce, under.clone()) {
                // Both copies have this page from before.
                Some(before) if before == under => twice += 1,
                Some(_) => panic!("a nonce was used for two pieces"),
                None => {}
            }
        }
    }
    assert!(seen.len() > 60 && twice > 20, "{} {twice}", seen.len());
}

#[test]
fn a_key_file_that_cannot_be_read_or_written_is_an_error_of_the_disk() {
    let files = used();
    let disk = shared(&CrashDisk::with(files));
    for at in 0..2 {
        let fault =
            crate::disk::fault::FaultDisk::new(disk.clone(), at, true, rustix::io::Errno::IO.raw_os_error());
        assert!(matches!(Store::add_key(&fault, &key(1), &key(2)), Err(StoreError::Io(..))), "{at}");
        assert!(Store::unlock(disk.clone(), &key(1)).is_ok());
    }
    let file: Arc<dyn DiskFile> = disk.open(KEYS).expect("it is there");
    file.set_size(100).expect("memory");
    assert!(matches!(Store::unlock(disk, &key(1)), Err(StoreError::Damaged(_))));
}
