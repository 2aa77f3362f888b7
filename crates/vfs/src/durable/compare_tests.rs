//! Files that are compared: what both share is not read, and what differs is found; and trees that become snapshots, after crashes.

use super::share_tests::{check, close, opened};
use super::tests::{counted, pattern};
use crate::{Cred, FallocateMode, Fs, InodeRef, NewInode, NewKind, OpenFlags};
use sluice_store::disk::crash::Survivors;
use sluice_sync::face::HOSTS_SHARE;
use std::ops::Range;

/// The last chunk stands in its record.
const LEN: usize = 20 * 65_536 + 3_000;
/// Where that begins.
const LAST: u64 = 20 * 65_536;

fn inode(fs: &Fs, path: &str) -> InodeRef {
    let root = fs.superblock().root().clone();
    path.split('/').fold(root, |dir, name| dir.lookup(&Cred::root(), name.as_bytes()).expect("it is there"))
}

/// All that may differ.
fn differences(old: &InodeRef, new: &InodeRef) -> Vec<Range<u64>> {
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some(range) = old.first_difference(new, from).expect("it can be read") {
        assert!(range.start >= from && range.start < range.end, "{range:?}");
        from = range.end;
        found.push(range);
    }
    found
}

#[test]
fn contents_that_two_files_share_are_not_read_to_compare_them() {
    if !HOSTS_SHARE {
        return;
    }
    for is_in_memory in [true, false] {
        let (disk, mut fs) = counted();
        fs.write("/f", pattern(0, LEN)).expect("room");
        fs.superblock().take_snapshot(b"one").expect("room");
        let process = fs.process(Cred::root());
        let fd = process.open("/f", OpenFlags::WRONLY, 0).expect("it is there");
        process.pwrite(fd, b"new", 5 * 65_536 + 4096).expect("room");
        let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        process.fallocate(fd, punch, 9 * 65_536, 8192).expect("room");
        process.close(fd).expect("it is open");
        fs.superblock().take_snapshot(b"two").expect("room");
        fs.superblock().take_snapshot(b"three").expect("room");
        if !is_in_memory {
            drop(process);
            close(&fs);
            fs = opened(&disk, None);
        }
        let [one, two, three] =
            ["one", "two", "three"].map(|name| inode(&fs, &format!(".snapshots/{name}/f")));
        let before = disk.reads("segment");
        let changed = [5 * 65_536 + 4096..5 * 65_536 + 8192, 9 * 65_536..9 * 65_536 + 8192];
        // Each file has its own record of what stands in records: the last chunk, and the page that is new.
        let patched = if is_in_memory { &[][..] } else { &changed[..1] };
        let of_record = |found: &Range<u64>| !is_in_memory && found.start >= LAST;
        let found = |one, other| {
            differences(one, other).into_iter().filter(|found| !of_record(found)).collect::<Vec<_>>()
        };
        for (old, new, wanted) in
            [(&one, &two, &changed[..]), (&two, &one, &changed), (&two, &three, patched)]
        {
            assert_eq!(found(old, new), wanted, "in memory: {is_in_memory}");
        }
        assert_eq!(found(&one, &one), []);
        assert_eq!(disk.reads("segment"), before, "in memory: {is_in_memory}");
        // One file is in memory now, the other is not.
        let mut bytes = vec![0; LEN];
        assert_eq!(two.read_at(0, &mut bytes, false), Ok(LEN));
        assert_eq!(found(&one, &two), changed, "in memory: {is_in_memory}");
    }
}

#[test]
fn a_tree_that_becomes_a_snapshot_is_whole_or_gone_after_a_crash_at_each_step() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = counted();
    fs.write("/f", pattern(0, LEN)).expect("room");
    fs.superblock().take_snapshot(b"base").expect("room");
    let from = disk.steps();
    let new = fs.superblock().begin_snapshot(Some(b"base")).expect("room");
    let cred = Cred::root();
    let made = NewInode { kind: NewKind::Regular, mode: 0o644, umask: 0 };
    let file = new.top().create(&cred, b"new", &made).expect("room");
    file.write_at(&cred, 0, &pattern(1, 70_000)).expect("room");
    fs.sync().expect("the disk works");
    new.remove(new.top(), b"f").expect("it is there");
    new.keep(b"new").expect("room");
    let (mut whole, mut gone) = (0, 0);
    for step in from..=disk.steps() {
        for survivors in [Survivors::None, Survivors::All] {
            let crash = disk.crash(step, survivors);
            assert_eq!(check(&crash).found, 0, "step {step}: {:?}", check(&crash));
            let again = opened(&crash, None);
            assert!(again.read("/.snapshots/base/f").expect("it is there") == pattern(0, LEN));
            match again.read("/.snapshots/new/new") {
                Ok(bytes) => {
                    assert!(bytes == pattern(1, 70_000), "step {step}");
                    assert!(!again.exists("/.snapshots/new/f"), "step {step}");
                    whole += 1;
                }
                Err(_) => {
                    assert_eq!(again.superblock().snapshots(), Ok(vec![b"base".to_vec()]), "step {step}");
                    gone += 1;
                }
            }
            // The next tree removes its rest.
            drop(again.superblock().begin_snapshot(None).expect("room"));
            assert!(!again.exists("/.receiving"), "step {step}");
            again.settle();
            assert!(again.check().is_clean(), "step {step}: {}", again.check());
        }
    }
    assert!(whole > 0 && gone > 0, "whole {whole}, gone {gone}");
    let last = opened(&disk.crash(disk.steps(), Survivors::None), None);
    assert!(last.exists("/.snapshots/new/new"), "it was durable");
}
