//! A tree that gives space back: how much, and that a crash or an error at any step costs no record.

use crate::disk::Disk;
use crate::disk::crash::{CrashDisk, Survivors};
use crate::disk::fault::FaultDisk;
use crate::engine::{SIZE_MIN, TIMES};
use crate::format::{TREE, TREE_COPY};
use crate::segment_tests::Small;
use crate::{Options, Store, StoreError};
use rustix::io::Errno;
use sluice_sync::Arc;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::time::Duration;
use std::collections::BTreeMap;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// Records of a tree before most of them are removed.
const RECORDS: u32 = 1_000;
/// The value of most of them.
const VALUE: [u8; 12_000] = [7; 12_000];

fn options() -> Options {
    Options { log_size: 1 << 20, cache: 16 << 20, background: false, ..Options::default() }
}

fn shared(disk: impl Disk + 'static) -> Arc<dyn Disk> {
    Arc::from(Box::new(disk) as Box<dyn Disk>)
}

fn open(disk: impl Disk + 'static) -> Result<Store, StoreError> {
    Store::open(shared(disk), options())
}

fn put(store: &Store, keys: impl Iterator<Item = u32>, version: u64, value: Option<&[u8]>) {
    let keys: Vec<u32> = keys.collect();
    for keys in keys.chunks(15) {
        let mut change = store.begin(200_000).expect("there is room");
        for key in keys.iter().map(|key| key.to_be_bytes()) {
            match value {
                Some(value) => change.put(&key, version, value),
                None => change.remove(&key, version),
            }
        }
    }
    store.sync().and_then(|()| store.checkpoint()).expect("the disk works");
}

/// The files of a store whose tree has all records but those that `stays` takes removed. The tree was not made smaller.
fn spacious(stays: impl Fn(u32) -> bool) -> CrashDisk {
    let disk = CrashDisk::new();
    let store = Store::create(shared(disk.clone()), options()).expect("an empty disk");
    // In no order, as names come.
    put(&store, (0..RECORDS).map(|key| key * 499 % RECORDS), 1, Some(&VALUE));
    put(&store, (0..RECORDS).filter(|key| !stays(*key)), 2, None);
    let files = disk.files();
    drop(store);
    CrashDisk::with(files)
}

fn content(store: &Store) -> Result<Content, StoreError> {
    let mut content = Content::new();
    store.scan(b"", &[255; 5], &mut |key, value| content.insert(key.to_vec(), value.to_vec()).is_none())?;
    Ok(content)
}

fn tree_size(disk: &CrashDisk) -> u64 {
    disk.files()[TREE].len() as u64
}

/// The most bytes that a tree with this content may take.
fn bound(content: &Content) -> u64 {
    SIZE_MIN.max(TIMES * content.iter().map(|(key, value)| (key.len() + value.len()) as u64 + 4).sum::<u64>())
}

fn expected(stays: impl Fn(u32) -> bool) -> Content {
    (0..RECORDS).filter(|key| stays(*key)).map(|key| (key.to_be_bytes().to_vec(), VALUE.to_vec())).collect()
}

#[test]
fn a_tree_of_four_records_is_small_when_it_was_closed() {
    let four = |key: u32| key.is_multiple_of(RECORDS / 4);
    let disk = spacious(four);
    let before = tree_size(&disk);
    assert!(before > 10 << 20, "{before}");
    drop(open(disk.clone()).expect("a store"));
    let after = tree_size(&disk);
    assert!(after <= 512 << 10, "{before} -> {after}");
    assert!(!disk.files().contains_key(TREE_COPY));
    assert!(content(&open(disk).expect("a store")).expect("whole") == expected(four));
}

#[test]
fn a_tree_takes_no_more_than_its_bound_whatever_part_of_it_stays() {
    for part in [2, 3, 5, 9, 30] {
        let stays = |key: u32| key.is_multiple_of(part);
        let disk = spacious(stays);
        let before = tree_size(&disk);
        drop(open(disk.clone()).expect("a store"));
        let (after, expected) = (tree_size(&disk), expected(stays));
        println!("one of {part}: {before} -> {after}, bound {}", bound(&expected));
        assert!(after <= bound(&expected), "one of {part}: {before} -> {after}");
        let store = open(disk.clone()).expect("a store");
        assert!(content(&store).expect("whole") == expected);
        let steps = disk.steps();
        assert_eq!(store.core.compact(u64::MAX).ok(), Some(false), "it is done");
        assert_eq!(disk.steps(), steps, "and writes nothing");
    }
}

#[test]
fn a_tree_that_was_copied_becomes_small_again_when_more_is_removed() {
    let [third, four] = [3, RECORDS / 4].map(|part| move |key: u32| key.is_multiple_of(part));
    let disk = spacious(third);
    let store = open(disk.clone()).expect("a store");
    while store.core.compact(u64::MAX).expect("the disk works") {}
    let copied = tree_size(&disk);
    assert!(copied > SIZE_MIN, "{copied}: it can be made smaller");
    put(&store, (0..RECORDS).filter(|key| third(*key) && !four(*key)), 3, None);
    assert_eq!(tree_size(&disk), copied);
    drop(store);
    let after = tree_size(&disk);
    assert!(after <= 512 << 10, "{copied} -> {after}");
}

#[test]
fn a_tree_in_use_becomes_small_unasked() {
    let stays = |key: u32| key.is_multiple_of(10);
    let disk = spacious(stays);
    let background = Options { background: true, age: Duration::from_millis(1), ..options() };
    let store = Store::open(shared(disk.clone()), background).expect("a store");
    let mut expected = expected(stays);
    let mut version = 9;
    while tree_size(&disk) > bound(&expected) || disk.files().contains_key(TREE_COPY) {
        version += 1;
        let key = (version as u32 * 1_000 % RECORDS).to_be_bytes();
        store.begin(100).expect("there is room").put(&key, version, b"later");
        expected.insert(key.to_vec(), b"later".to_vec());
        store.sync().and_then(|()| store.checkpoint()).expect("the disk works");
    }
    assert!(content(&store).expect("whole") == expected);
    drop(store);
    assert!(content(&open(disk).expect("a store")).expect("whole") == expected);
}

/// Changes between the steps of a copy, and what the store holds after each: of keys that were copied, and of keys that were not.
fn change_and_compact(store: &Store, mut done: impl FnMut(&Content)) {
    let mut now = content(store).expect("whole");
    for round in 0.. {
        let more = store.core.compact(u64::MAX).expect("the disk works");
        let version = 100 + u64::from(round);
        for (key, value) in [
            (round * 10, Some(b"changed".as_slice())),
            (round * 10 + 1, Some(&[8; 600])),
            (RECORDS / 2 + round * 10, Some(b"")),
            (RECORDS - 10 - round * 10, None),
            (round * 20, None),
        ] {
            let mut change = store.begin(4000).expect("there is room");
            match value {
                Some(value) => change.put(&key.to_be_bytes(), version, value),
                None => change.remove(&key.to_be_bytes(), version),
            }
            match value {
                Some(value) => drop(now.insert(key.to_be_bytes().to_vec(), value.to_vec())),
                None => drop(now.remove(key.to_be_bytes().as_slice())),
            }
        }
        store.sync().and_then(|()| store.checkpoint()).expect("the disk works");
        done(&now);
        if !more {
            assert!(round > 1, "it takes several steps");
            return;
        }
    }
}

fn a_fifth(key: u32) -> bool {
    key.is_multiple_of(5)
}

/// Steps of the disk at the end of a compaction that are all tried, and of the others, which copy records, one of so many.
const LAST: usize = 60;
const STRIDE: usize = 23;

#[test]
fn after_a_crash_at_any_step_of_a_compaction_everything_is_there() {
    let disk = spacious(a_fifth);
    let store = open(disk.clone()).expect("a store");
    // The durable content after each number of steps.
    let mut states = vec![(0, content(&store).expect("whole"))];
    change_and_compact(&store, |now| states.push((disk.steps(), now.clone())));
    let over = disk.steps();
    // The log goes round, so that the tree alone has what was changed before.
    let mut last = states.last().expect("the first").1.clone();
    for round in 0..300_u32 {
        put(&store, 0..1, 1_000 + u64::from(round), Some(&round.to_be_bytes()));
        last.insert(0_u32.to_be_bytes().to_vec(), round.to_be_bytes().to_vec());
        states.push((disk.steps(), last.clone()));
    }
    // The crash comes before the end.
    std::mem::forget(store);
    let (mut copies, mut renamed) = (0, 0);
    let ways = [Survivors::None, Survivors::All, Survivors::Some(1), Survivors::Some(2), Survivors::Some(3)];
    let at_end = |steps: usize| (over - LAST..over + 9).contains(&steps);
    let is_tried =
        |steps: &usize| at_end(*steps) || steps.is_multiple_of(if *steps < over { STRIDE } else { 251 });
    for steps in (0..=disk.steps()).filter(is_tried) {
        // Every way at the last steps, and one way while records are copied.
        for way in ways.iter().skip(steps % 5).take(if at_end(steps) { 5 } else { 1 }) {
            let crashed = disk.crash(steps, *way);
            let said = format!("crash after step {steps} of {}, {way:?}", disk.steps());
            copies += u32::from(crashed.files().contains_key(TREE_COPY));
            renamed += u32::from(tree_size(&crashed) < tree_size(&disk) * 2);
            let at = states.iter().rposition(|(when, _)| *when <= steps).unwrap_or(0);
            let judge = |disk: &CrashDisk, what: &str| {
                let store = open(disk.clone()).unwrap_or_else(|error| panic!("{said}, {what}: {error}"));
                assert!(!disk.files().contains_key(TREE_COPY), "{said}, {what}");
                let found = content(&store).unwrap_or_else(|error| panic!("{said}, {what}: {error}"));
                let may = &states[at..states.len().min(at + 2)];
                // Some of the five transactions after a state may have survived.
                let is_between = may.iter().any(|(_, state)| *state == found)
                    || may.len() == 2 && {
                        let kept = |key: &Vec<u8>| may[0].1.get(key) == may[1].1.get(key);
                        found.iter().filter(|(key, _)| kept(key)).count()
                            == may[0].1.keys().filter(|key| kept(key)).count()
                            && found.iter().all(|(key, value)| {
                                may.iter().any(|(_, state)| state.get(key) == Some(value))
                            })
                    };
                assert!(is_between, "{said}, {what}: other records");
                (store, found)
            };
            let (store, found) = judge(&crashed, "first");
            let in_recovery = crashed.steps();
            drop(store);
            assert!(tree_size(&crashed) <= bound(&found), "{said}: it is made smaller at the next end");
            let (_, again) = judge(&crashed, "closed");
            assert!(again == found, "{said}: it holds other records once it was made smaller");
            if at_end(steps) && in_recovery > 0 {
                judge(
                    &crashed.crash(steps % in_recovery, Survivors::Some(steps as u64)),
                    "again in recovery",
                );
            }
        }
    }
    assert!(copies > 20 && renamed > 5, "{copies} {renamed}");
}

#[test]
fn an_error_at_any_step_of_a_compaction_costs_nothing_but_the_space() {
    let files = spacious(a_fifth).files();
    for errno in [Errno::NOSPC, Errno::IO] {
        let faulty =
            |disk: &CrashDisk, at| FaultDisk::new(shared(disk.clone()), at, false, errno.raw_os_error());
        let opening = faulty(&CrashDisk::with(files.clone()), u64::MAX);
        std::mem::forget(open(opening.clone()).expect("a store"));
        let (mut skipped, mut failed) = (0, 0);
        let begin = opening.steps();
        // A first run without a fault says how many steps there are.
        let end = {
            let fault = faulty(&CrashDisk::with(files.clone()), u64::MAX);
            let store = open(fault.clone()).expect("a store");
            store.core.compact_all(u64::MAX).expect("the disk works");
            fault.steps()
        };
        let is_tried = |at: &u64| end - at < LAST as u64 || (at - begin).is_multiple_of(STRIDE as u64);
        for at in (begin..=end).filter(is_tried) {
            let disk = CrashDisk::with(files.clone());
            let fault = faulty(&disk, at);
            let store = open(fault.clone()).expect("a store");
            let before = content(&store).expect("whole");
            while matches!(store.core.compact(u64::MAX), Ok(true)) {}
            let is_small = tree_size(&disk) <= bound(&before);
            if fault.steps() <= at {
                assert!(is_small && store.failure().is_none());
                continue;
            }
            assert!(content(&store).expect("whole") == before, "step {at}");
            if store.failure().is_some() {
                // Nobody knows which tree a crash would leave.
                failed += 1;
            } else {
                skipped += u32::from(!is_small);
                put(&store, 0..1, 900, Some(b"goes on"));
            }
            let later = content(&store).expect("whole");
            drop(store);
            let found = content(&open(disk).expect("a store")).expect("whole");
            assert!(found == later, "step {at}");
        }
        assert!(skipped > 20, "{skipped}");
        assert_eq!(failed, if errno == Errno::IO { 2 } else { 1 }, "the change of the name, and its flush");
    }
}

#[test]
fn a_tree_on_a_full_disk_becomes_small_if_the_copy_finds_room_and_stays_as_it_is_otherwise() {
    let disk = spacious(a_fifth);
    let before = tree_size(&disk);
    let small = Small(disk.clone(), AtomicU64::new(2 << 20));
    let room = Arc::new(small);
    let store = Store::open(room.clone(), options()).expect("a store");
    let expected = content(&store).expect("whole");
    assert!(matches!(store.core.compact(u64::MAX), Ok(false)));
    put(&store, 0..1, 900, Some(&VALUE));
    store.close().expect("nothing is wrong");
    drop(store);
    assert!(tree_size(&disk) > before / 2 && !disk.files().contains_key(TREE_COPY));
    room.1.store(16 << 20, Ordering::SeqCst);
    drop(Store::open(room, options()).expect("a store"));
    assert!(tree_size(&disk) < before / 2);
    assert!(content(&open(disk).expect("a store")).expect("whole") == expected);
}

#[test]
fn a_compaction_ends_at_a_damaged_record_and_the_damage_stays_where_it_is_seen() {
    let disk = spacious(a_fifth);
    if disk.cipher().is_some() {
        // The record is found by its bytes.
        return;
    }
    // The damaged record is read from the disk.
    let store = Store::open(shared(disk.clone()), Options { cache: 0, ..options() }).expect("a store");
    put(&store, 800..801, 900, Some(&[9; 12_000]));
    let (tree, before) = (disk.files().remove(TREE).expect("a tree"), tree_size(&disk));
    let mut pages = (0..before).step_by(4096).map(|at| at + 2_000);
    let at = pages.find(|at| tree[*at as usize..].starts_with(&[9; 8])).expect("it is there");
    disk.open(TREE).and_then(|file| file.write_at(&[8], at)).expect("memory");
    assert!(matches!(store.core.compact(u64::MAX), Ok(true)), "it comes to that record later");
    while matches!(store.core.compact(u64::MAX), Ok(true)) {}
    assert_eq!(store.failure(), None);
    assert_eq!((tree_size(&disk), disk.files().contains_key(TREE_COPY)), (before, false));
    assert!(content(&store).is_err());
    drop(store);
    assert_eq!((tree_size(&disk), disk.files().contains_key(TREE_COPY)), (before, false));
}
