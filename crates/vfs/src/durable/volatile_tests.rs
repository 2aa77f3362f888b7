//! A store without flushes: it makes room in memory, and lasts until its end.

use super::crash_tests::shared;
use super::tests::{options, pattern};
use crate::{Cred, Fs, OpenFlags, Options, StoreError, Superblock};
use sluice_store::Store;
use sluice_store::disk::crash::{CrashDisk, Survivors};
use sluice_sync::face::HOSTS_SHARE;

#[test]
fn a_volatile_store_flushes_nothing_until_it_is_closed_and_is_lost_after_a_crash() {
    if !HOSTS_SHARE {
        return;
    }
    const LEN: usize = 8_000_000;
    let volatile = |volatile| {
        let store = options().store.segment_size(1 << 20).volatile(volatile);
        Options { store, memory_limit: Some(2 << 20), ..options() }
    };
    let disk = CrashDisk::new();
    let made = Superblock::create_on(shared(&disk), volatile(true)).expect("an empty disk");
    let fs = Fs::with_superblock(made);
    let before = disk.flushes();
    let process = fs.process(Cred::root());
    let fd = process.open("/f", OpenFlags::CREAT | OpenFlags::WRONLY, 0o644).expect("room");
    for at in (0..LEN).step_by(100_000) {
        process.pwrite(fd, &pattern(at, 100_000), at as i64).expect("room");
        process.fsync(fd).expect("nothing to do");
    }
    assert!(fs.read("/f").expect("it is there") == pattern(0, LEN));
    assert_eq!(disk.flushes(), before);
    assert!(disk.written("segment") > LEN as u64 / 2, "more than memory may hold");
    for survivors in [Survivors::All, Survivors::None] {
        let crashed = disk.crash(disk.steps(), survivors);
        for again in [true, false] {
            let opened = Superblock::open_on(shared(&crashed), volatile(again));
            assert!(matches!(opened, Err(StoreError::Lost)));
        }
        assert!(matches!(Superblock::check_store(shared(&crashed), &mut |_| ()), Err(StoreError::Lost)));
        assert!(Store::info(&crashed).expect("a store").is_volatile);
    }
    fs.superblock().close().expect("the disk works");
    let ended = disk.crash(disk.steps(), Survivors::None);
    assert!(!Store::info(&ended).expect("a store").is_volatile);
    let fs =
        Fs::with_superblock(Superblock::open_on(shared(&ended), volatile(false)).expect("it was closed"));
    assert!(fs.read("/f").expect("it is there") == pattern(0, LEN));
    assert!(fs.check().is_clean(), "{}", fs.check());
}
