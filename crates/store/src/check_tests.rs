//! A check finds what is damaged, passes what is not, and ends whatever the files hold.

use crate::check::Look;
use crate::disk::Disk;
use crate::disk::crash::{CrashDisk, Survivors};
use crate::report::{Gravity, Report};
use crate::{EXTENT_ROOM, Extent, Options, Store, StoreError};
use sluice_sync::Arc;
use sluice_sync::random::Random;
use std::collections::BTreeMap;

type Files = BTreeMap<String, Vec<u8>>;

fn options() -> Options {
    Options {
        log_size: 64 << 10,
        segment_size: 64 << 10,
        open_segments: 1,
        cache: 1 << 20,
        background: false,
        ..Options::default()
    }
}

/// Records whose key begins with an `e` hold an extent.
struct Records;

impl Look for Records {
    fn see(&mut self, key: &[u8], value: &[u8], report: &mut Report) {
        if key.first() == Some(&b'e') && Extent::decode(value).is_none() {
            report.find(Gravity::Damage, "no extent");
        }
    }

    fn describe(&self, key: &[u8]) -> String {
        format!("record {key:?}")
    }

    fn extents(&self, key: &[u8], value: &[u8]) -> Vec<Extent> {
        let extent = if key.first() == Some(&b'e') { Extent::decode(value) } else { None };
        extent.map(|(extent, _)| extent).into_iter().collect()
    }
}

fn check(files: Files) -> Result<Report, StoreError> {
    Store::check(Arc::new(CrashDisk::with(files)), &mut Records, &mut |_| ())
}

/// A store with records in the tree, in the log, and with data; its user has gone without a word.
fn used() -> CrashDisk {
    let disk = CrashDisk::new();
    let store = Store::create(Arc::new(disk.clone()), options()).expect("an empty disk");
    for round in 0..12_u8 {
        let extent = store.write_extent(&vec![round | 1; 5000 + usize::from(round)]).expect("the disk works");
        let mut change = store.begin(6000 + EXTENT_ROOM).expect("there is room");
        let mut value = Vec::new();
        extent.encode(&mut value);
        change.put(&[b'e', round], 1, &value);
        change.name_extent(&extent);
        change.put(&[b'k', round % 5], u64::from(round), &[round; 900]);
        drop(change);
        store.sync().expect("the disk works");
        if round == 7 {
            store.checkpoint().expect("the disk works");
        }
    }
    std::mem::forget(store);
    CrashDisk::with(disk.files())
}

/// The store's records and data, or the error.
fn content(files: Files) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
    let open = || -> Result<BTreeMap<Vec<u8>, Vec<u8>>, StoreError> {
        let store = Store::open(Arc::new(CrashDisk::with(files)), options())?;
        let mut found = BTreeMap::new();
        store.scan(b"a", b"z", &mut |key, value| {
            found.insert(key.to_vec(), value.to_vec());
            true
        })?;
        for (key, value) in &mut found {
            for extent in Records.extents(key, value) {
                *value = vec![0; extent.len() as usize];
                store.read_extent(&extent, 0, value)?;
            }
        }
        Ok(found)
    };
    open().map_err(|error| error.to_string())
}

#[test]
fn a_store_after_a_clean_end_or_any_crash_passes() {
    let disk = CrashDisk::new();
    let store = Store::create(Arc::new(disk.clone()), options()).expect("an empty disk");
    let first = disk.steps();
    for round in 0..9_u8 {
        let extent = store.write_extent(&[round; 9000]).expect("the disk works");
        let mut change = store.begin(3000 + 2 * EXTENT_ROOM).expect("there is room");
        let mut value = Vec::new();
        extent.encode(&mut value);
        change.put(&[b'e', round], 1, &value);
        change.name_extent(&extent);
        drop(change);
        store.sync().expect("the disk works");
        if round % 3 == 2 {
            store.checkpoint().expect("the disk works");
        }
    }
    drop(store);
    let report = check(disk.files()).expect("a store");
    assert_eq!((report.found, report.records, report.extents, report.batches), (0, 9, 9, 0), "{report:?}");
    for steps in first..=disk.steps() {
        for way in [Survivors::None, Survivors::All, Survivors::Some(steps as u64)] {
            let report = check(disk.crash(steps, way).files()).expect("a store");
            let worst = report.worst();
            assert!(worst.is_none_or(|worst| worst == Gravity::Note), "step {steps}, {way:?}: {report:?}");
        }
    }
}

fn mend(disk: Arc<CrashDisk>) -> Result<(), StoreError> {
    let store = Store::open(disk, options())?;
    store.mend_counts(&mut Records)?;
    store.close()
}

#[test]
fn a_store_whose_records_name_what_cannot_be_is_not_mended() {
    let disk = used();
    let store = Store::open(Arc::new(disk.clone()), options()).expect("a store");
    store.begin(100).expect("room").put(b"e-none", 1, b"no extent");
    store.sync().expect("the disk works");
    drop(store);
    let refused = mend(Arc::new(disk)).expect_err("it has a wrong record");
    assert!(refused.to_string().contains("records name what cannot be"), "{refused}");
}

#[test]
fn each_flipped_bit_is_found_or_changes_nothing() {
    let disk = used();
    let files = disk.files();
    let right = content(files.clone()).expect("whole");
    let whole = check(files.clone()).expect("a store");
    assert_eq!((whole.found, whole.batches), (0, 4), "{whole:?}");
    let mut random = Random::new(7);
    let (mut found, mut harmless) = (0, 0);
    for (name, bytes) in &files {
        // Each region of the small files; of the others some bits, the first bytes of blocks more often.
        let step = (bytes.len() / 150).max(1);
        for at in (0..bytes.len()).step_by(step) {
            let at = match random.below(3) {
                0 => at / 4096 * 4096 + random.below(64),
                _ => at + random.below(step),
            };
            let at = at.min(bytes.len() - 1);
            let mut flipped = files.clone();
            let bit = random.below(8);
            flipped.get_mut(name).expect("it is there")[at] ^= 1 << bit;
            let report = check(flipped.clone());
            if matches!(&report, Ok(report) if report.found == 0) {
                assert_eq!(
                    content(flipped),
                    Ok(right.clone()),
                    "bit {bit} of byte {at} of `{name}`: {report:?}"
                );
                harmless += 1;
            } else {
                found += 1;
            }
        }
    }
    assert!(found > 100 && harmless > 10, "{found} found, {harmless} harmless");
}

#[test]
fn each_cut_or_missing_file_is_found_or_changes_nothing() {
    let files = used().files();
    let right = content(files.clone()).expect("whole");
    for (name, bytes) in &files {
        let cuts = (0..8).map(|eighth| bytes.len() * eighth / 8).chain([1, 63, bytes.len() - 1]);
        for cut in cuts.map(Some).chain([None]) {
            let mut left = files.clone();
            match cut {
                Some(len) => left.get_mut(name).expect("it is there").truncate(len),
                None => drop(left.remove(name)),
            }
            let checked = check(left.clone());
            if cut.is_none()
                && let Ok(report) = &checked
            {
                let says = |name: &str| report.findings.iter().any(|one| one.text.contains(name));
                assert!(report.found == 0 || says("` is missing"), "`{name}`: {:?}", report.findings);
            }
            let is_found = checked.map_or(true, |report| report.found > 0);
            assert!(is_found || content(left) == Ok(right.clone()), "`{name}` cut to {cut:?}");
        }
    }
}

#[test]
fn whatever_the_files_hold_a_check_ends_with_findings_or_an_error() {
    let files = used().files();
    const SHORT: u64 = 40;
    let rounds = std::env::var("SLUICE_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SHORT);
    let mut random = Random::new(99);
    for round in 0..rounds {
        for name in files.keys() {
            let mut hostile = files.clone();
            let file = hostile.get_mut(name).expect("it is there");
            for _ in 0..1 + random.below(8) {
                // A run of random bytes, zeros, or bytes from elsewhere in the file.
                let len = (1_usize << random.below(14)).min(file.len());
                let at = random.below(file.len() - len + 1);
                let from = random.below(file.len() - len + 1);
                match random.below(3) {
                    0 => file[at..at + len].fill_with(|| random.bits() as u8),
                    1 => file[at..at + len].fill(0),
                    _ => file.copy_within(from..from + len, at),
                }
            }
            if round % 8 == 0 {
                file.fill_with(|| random.bits() as u8);
            }
            // Neither panics nor hangs. But redb aborts over some damaged lists of free pages (docs/limits.md): in a long run what a check
            // finds damaged is not opened.
            let report = check(hostile.clone());
            let is_sound = report.is_ok_and(|report| report.worst() != Some(Gravity::Damage));
            if is_sound || round < SHORT {
                let _ = content(hostile);
            }
        }
    }
}

#[test]
fn wrong_counts_are_found_and_repaired_and_then_data_are_not_overwritten() {
    let disk = CrashDisk::new();
    let store = Store::create(Arc::new(disk.clone()), options()).expect("an empty disk");
    // A caller that names an extent and does not say so.
    let extent = store.write_extent(&[5; 9000]).expect("the disk works");
    let mut value = Vec::new();
    extent.encode(&mut value);
    store.begin(100).expect("there is room").put(b"e", 1, &value);
    drop(store);
    let report = check(disk.files()).expect("a store");
    assert_eq!((report.found, report.worst()), (1, Some(Gravity::Count)), "{report:?}");
    let shared = || Arc::new(disk.clone());
    mend(shared()).expect("only counts are wrong");
    assert_eq!(check(disk.files()).expect("a store").found, 0);
    let store = Store::open(shared(), options()).expect("repaired");
    let new = store.write_extent(&[6; 9000]).expect("the disk works");
    let mut found = vec![0; 9000];
    store.read_extent(&extent, 0, &mut found).expect("it is still there");
    assert!(found == [5; 9000] && new != extent);
}

#[test]
fn a_check_writes_nothing() {
    let disk = used();
    let (files, steps) = (disk.files(), disk.steps());
    Store::check(Arc::new(disk.clone()), &mut Records, &mut |_| ()).expect("a store");
    assert!(disk.files() == files && disk.steps() == steps);
    assert!(disk.names().is_ok_and(|names| names.len() == files.len()));
}
