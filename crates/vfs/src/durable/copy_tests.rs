//! Copies between files that share extents: what they read and write, against a model, after each crash, and while others work.

use super::audit::audit;
use super::crash_calls_tests::Call::{self, *};
use super::crash_tests::{begin, run};
use super::mutant::Mutant;
use super::share_tests::{check, close, live, opened};
use super::tests::{counted, pattern};
use crate::{Cred, Errno, FallocateMode, Fd, Fs, OpenFlags, Process};
use sluice_sync::face::HOSTS_SHARE;
use sluice_sync::random::Random;

const CHUNK: usize = 65_536;
/// The last chunk is not whole, and in an extent.
const LEN: usize = 10 * CHUNK + 21_000;

fn open(process: &Process, path: &str) -> Fd {
    process.open(path, OpenFlags::RDWR | OpenFlags::CREAT, 0o600).expect("room")
}

/// Copies `len` bytes at `from` of one file to `to` of the other.
fn copy(process: &Process, files: (&str, &str), from: usize, to: usize, len: usize) -> Result<usize, Errno> {
    let (source, target) = (open(process, files.0), open(process, files.1));
    let (mut from, mut to) = (from as i64, to as i64);
    let copied = process.copy_file_range(source, Some(&mut from), target, Some(&mut to), len);
    process.close(source).and(process.close(target)).expect("they are open");
    copied
}

fn is_pressed(fs: &Fs) -> bool {
    let shared = fs.superblock().root().shared.clone();
    shared.durable().expect("a store").pending.memory.is_pressed()
}

#[test]
fn a_copy_of_whole_chunks_neither_reads_nor_writes_what_is_on_disk() {
    if !HOSTS_SHARE {
        return;
    }
    for is_in_memory in [true, false] {
        let (disk, mut fs) = counted();
        fs.write("/f", pattern(0, LEN)).expect("room");
        fs.sync().expect("the disk works");
        if !is_in_memory {
            close(&fs);
            fs = opened(&disk, None);
        }
        let traffic = || (disk.reads("segment"), disk.written("segment"));
        let (before, used) = (traffic(), live(&fs));
        // Whole, and one chunk behind the other.
        assert_eq!(fs.copy("/f", "/whole"), Ok(LEN as u64));
        let process = fs.process(Cred::root());
        for at in (0..LEN).step_by(CHUNK).rev() {
            let copied = copy(&process, ("/f", "/parts"), at, at + CHUNK, CHUNK);
            assert_eq!(copied, Ok(CHUNK.min(LEN - at)));
        }
        fs.sync().expect("the disk works");
        assert_eq!(traffic(), before, "in memory: {is_in_memory}");
        assert_eq!(live(&fs), used);
        audit(&fs).expect("counts are right");
        let before = traffic();
        // Again, over what shares them already.
        assert_eq!(fs.copy("/whole", "/f"), Ok(LEN as u64));
        fs.sync().expect("the disk works");
        assert_eq!((traffic(), live(&fs)), (before, used), "in memory: {is_in_memory}");
        audit(&fs).expect("counts are right");
        let pages = |path: &str| fs.metadata(path).expect("it is there").blocks;
        assert_eq!((pages("/whole"), pages("/parts")), (pages("/f"), pages("/f")));
        for path in ["/f", "/whole"] {
            assert!(fs.read(path).expect("whole") == pattern(0, LEN), "{path}");
        }
        let mut parts = vec![0; CHUNK];
        parts.extend(pattern(0, LEN));
        assert!(fs.read("/parts").expect("whole") == parts);
        // Later writes change one file alone.
        let fd = open(&process, "/whole");
        process.pwrite(fd, &[1; 3 * CHUNK], 0).expect("room");
        process.close(fd).expect("it is open");
        fs.remove_file("/f").expect("it is there");
        drop(process);
        close(&fs);
        assert_eq!(check(&disk).found, 0, "{:?}", check(&disk));
        let fs = opened(&disk, None);
        audit(&fs).expect("counts are right");
        assert_eq!(live(&fs), used + 3 * CHUNK as u64);
        assert!(fs.read("/parts").expect("whole") == parts);
        let mut whole = pattern(0, LEN);
        whole[..3 * CHUNK].fill(1);
        assert!(fs.read("/whole").expect("whole") == whole);
        fs.remove_file("/whole").expect("it is there");
        fs.remove_file("/parts").expect("it is there");
        fs.settle();
        audit(&fs).expect("nothing is left over");
        assert_eq!(live(&fs), 0, "nobody has anything");
    }
}

#[test]
fn a_copy_that_has_no_extent_to_share_holds_no_file_alone() {
    if !HOSTS_SHARE {
        return;
    }
    let (_disk, fs) = counted();
    fs.write("/little", "in its record").expect("room");
    fs.write("/f", pattern(0, LEN)).expect("room");
    assert_eq!(fs.copy("/f", "/new"), Ok(LEN as u64), "nothing is on the disk yet");
    fs.sync().expect("the disk works");
    fs.copy("/little", "/other").expect("room");
    let process = fs.process(Cred::root());
    assert_eq!(copy(&process, ("/f", "/new"), 0, 4096, LEN), Ok(LEN), "other boundaries");
    assert!(!is_pressed(&fs));
    assert_eq!(fs.copy("/f", "/other"), Ok(LEN as u64));
    assert!(is_pressed(&fs));
}

#[test]
fn an_open_file_without_a_name_borrows_until_the_next_push_and_no_longer() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = counted();
    fs.write("/f", pattern(0, LEN)).expect("room");
    fs.sync().expect("the disk works");
    let process = fs.process(Cred::root());
    assert_eq!(fs.copy("/f", "/copy"), Ok(LEN as u64));
    let copy = open(&process, "/copy");
    fs.remove_file("/copy").expect("it is there");
    fs.remove_file("/f").expect("it is there");
    fs.write("/other", pattern(1, LEN)).expect("room");
    fs.settle();
    fs.sync().expect("the disk works");
    let durable = fs.superblock().root().shared.durable().expect("a store");
    assert!(!durable.pending.owners.are_borrowed(), "it owns them now");
    let used = live(&fs);
    fs.remove_file("/other").expect("it is there");
    fs.settle();
    fs.sync().expect("the disk works");
    assert!(live(&fs) < used, "what others lose is free");
    let mut read = vec![0; LEN];
    assert_eq!(process.pread(copy, &mut read, 0), Ok(LEN));
    assert!(read == pattern(0, LEN));
    process.close(copy).expect("it is open");
    fs.settle();
    audit(&fs).expect("nothing is left over");
    assert_eq!(live(&fs), 0);
    drop(process);
    close(&fs);
    assert_eq!(check(&disk).found, 0, "{:?}", check(&disk));
}

/// One call on one of three files of up to eight chunks, here and in the `model`.
fn call(process: &Process, model: &mut [Vec<u8>; 3], random: &mut Random, round: usize) {
    const MOST: usize = 8 * CHUNK;
    let (one, other) = (random.below(3), random.below(3));
    let paths = ["/0", "/1", "/2"];
    // Mostly whole chunks.
    let mut place = |most: usize| match random.below(4) {
        0 => random.below(most),
        1 => random.below(most / 4096) * 4096,
        _ => random.below(most / CHUNK) * CHUNK,
    };
    let (at, to, len) = (place(MOST), place(MOST), place(MOST).max(1));
    let fd = open(process, paths[one]);
    let file = &mut model[one];
    match random.below(9) {
        0..=4 => {
            let to = if random.below(2) == 0 { at } else { to };
            let mut source = file.get(at..file.len().min(at + len)).unwrap_or_default().to_vec();
            source.truncate(MOST.saturating_sub(to));
            let overlaps = one == other && at.abs_diff(to) < source.len();
            let copied = copy(process, (paths[one], paths[other]), at, to, source.len());
            if overlaps {
                assert_eq!(copied, Err(Errno::EINVAL));
            } else {
                assert_eq!(copied, Ok(source.len()), "from {at} of {one} to {to} of {other}");
                let target = &mut model[other];
                if !source.is_empty() {
                    target.resize(target.len().max(to + source.len()), 0);
                    target[to..to + source.len()].copy_from_slice(&source);
                }
            }
        }
        5 => {
            let bytes = vec![round as u8 | 1; len.min(MOST - at)];
            process.pwrite(fd, &bytes, at as i64).expect("room");
            file.resize(file.len().max(at + bytes.len()), 0);
            file[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        6 => {
            process.ftruncate(fd, at as i64).expect("room");
            file.resize(at, 0);
        }
        7 => {
            let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
            process.fallocate(fd, mode, at as i64, len as i64).expect("room");
            let end = file.len().min(at + len);
            file.get_mut(at..end).into_iter().for_each(|bytes| bytes.fill(0));
        }
        _ => {
            // Little, so that it is patched.
            let bytes = [round as u8 | 1; 100];
            process.pwrite(fd, &bytes, at as i64).expect("room");
            file.resize(file.len().max(at + 100), 0);
            file[at..at + 100].copy_from_slice(&bytes);
        }
    }
    process.close(fd).expect("it is open");
}

/// Each page in memory is one that the store has, or will have.
fn look_at_pages(fs: &Fs) -> Result<(), String> {
    for name in [b"0", b"1", b"2"] {
        let Ok(inode) = fs.superblock().root().lookup(&Cred::root(), name) else { continue };
        let Some(stored) = inode.stored() else { continue };
        let kept = stored.kept.lock();
        for (chunk, held) in &kept.extents {
            let present = inode.data.chunk(*chunk, 0, &mut Vec::new());
            let (dirty, absent) = (stored.dirty_in(*chunk), kept.absent.get(chunk).copied().unwrap_or(0));
            let kept_of = held.pages | held.patched | dirty;
            if (dirty != 0 && absent != 0)
                || present & !kept_of != 0
                || absent & (present | !held.pages | held.patched | dirty) != 0
            {
                return Err(format!("chunk {chunk} of {name:?}: {held:?}, {present:x} {dirty:x} {absent:x}"));
            }
        }
    }
    Ok(())
}

/// Many calls, pushes, and times that the store is opened again, by `seed`.
fn calls_as_in_the_model(seed: u64, calls: usize, mutant: Option<Mutant>) -> Result<(), String> {
    let (disk, mut fs) = counted();
    let mut random = Random::new(seed);
    let limit = (seed % 2 == 1).then_some(256 << 10);
    let mut model: [Vec<u8>; 3] = Default::default();
    let plant = |fs: &Fs| {
        let shared = fs.superblock().root().shared.clone();
        shared.durable().expect("a store").pending.planted.plant(mutant);
    };
    plant(&fs);
    for round in 0..calls {
        call(&fs.process(Cred::root()), &mut model, &mut random, round);
        look_at_pages(&fs).map_err(|what| format!("round {round}: {what}"))?;
        match random.below(12) {
            0 | 1 => fs.sync().map_err(|error| error.to_string())?,
            2 => audit(&fs).map_err(|what| format!("round {round}: {what}"))?,
            3 => {
                close(&fs);
                let report = check(&disk);
                if report.found > 0 {
                    return Err(format!("round {round}: {report:?}"));
                }
                fs = opened(&disk, limit);
                plant(&fs);
            }
            _ => {}
        }
        if random.below(4) == 0 {
            let at = random.below(3);
            let read = fs.read(format!("/{at}")).unwrap_or_default();
            if read != model[at] {
                let differ = read.iter().zip(&model[at]).position(|(is, was)| is != was);
                return Err(format!(
                    "round {round}, file {at}: {} of {}, {differ:?}",
                    read.len(),
                    model[at].len()
                ));
            }
        }
    }
    for path in ["/0", "/1", "/2"] {
        let _ = fs.remove_file(path);
    }
    fs.settle();
    audit(&fs)?;
    if live(&fs) > 0 { Err(format!("{} bytes are left", live(&fs))) } else { Ok(()) }
}

#[test]
fn files_that_share_chunks_hold_what_a_model_holds_whatever_is_done_to_them() {
    if !HOSTS_SHARE {
        return;
    }
    let seeds = std::env::var("SLUICE_COPY_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(8);
    for seed in 0..seeds {
        calls_as_in_the_model(seed, 300, None).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    use Mutant::*;
    for mutant in [LossNotCounted, FreedAtFirstLoss, ReplacedStays, LentWithoutChanges, OwnerNotCounted] {
        let found = (0..8).any(|seed| calls_as_in_the_model(seed, 300, Some(mutant)).is_err());
        assert!(found, "{mutant:?} was not found");
    }
}

#[test]
fn after_a_crash_at_any_step_of_a_copy_extents_have_the_owners_that_are_counted() {
    if !HOSTS_SHARE {
        return;
    }
    let base = begin();
    let workloads: &[&[Call]] = &[
        &[Reflink("/b", "/f"), Sync, Unlink("/b"), Sync, Unlink("/f"), Sync],
        &[Reflink("/b", "/d/g"), Sync, Write("/b", 0, 100_000), Sync, Unlink("/d/g"), Sync],
        &[Truncate("/d/g", 0), Reflink("/b", "/d/g"), Sync, Truncate("/d/g", 3_000), Sync],
        &[Reflink("/b", "/f"), Unlink("/b"), Sync, UnlinkOpenSync("/f")],
        &[Write("/b", 70_000, 10), Reflink("/b", "/f"), Write("/f", 3, 3), Sync, Reflink("/d/g", "/f"), Sync],
        &[
            Read("/b"),
            Reflink("/b", "/d/g"),
            Reflink("/d/g", "/f"),
            Unlink("/d/g"),
            Sync,
            Unlink("/hard"),
            Sync,
        ],
        &[Clone("/b", "/c"), Reflink("/c", "/d/g"), Unlink("/c"), Sync, Clone("/d/g", "/c"), Sync],
        &[Reflink("/d/g", "/b"), Sync, Reflink("/b", "/d/g"), Sync, Truncate("/b", 0), Unlink("/hard"), Sync],
    ];
    for calls in workloads {
        for more in [&[][..], &[Sync]] {
            // With one call more the other half of the memory is there: see run().
            let calls = [*calls, more].concat();
            let found = run(&base, &calls, None).and_then(|ran| ran.crash_everywhere(1, 1));
            found.unwrap_or_else(|what| panic!("{calls:?}: {what}"));
        }
    }
    use Mutant::*;
    for (mutant, calls) in [
        (OwnerNotCounted, workloads[0]),
        (LossNotCounted, workloads[1]),
        (FreedAtFirstLoss, workloads[1]),
        (ReplacedStays, workloads[1]),
        (LentWithoutChanges, &[Write("/b", 70_000, 10), Reflink("/b", "/f"), Sync]),
    ] {
        let outcome = run(&base, calls, Some(mutant)).and_then(|ran| ran.crash_everywhere(1, 1));
        assert!(outcome.is_err(), "{mutant:?} was not found");
    }
}

#[test]
fn a_copy_to_beyond_the_end_of_what_a_file_can_be_is_refused_as_in_memory() {
    if !HOSTS_SHARE {
        return;
    }
    let (_disk, stored) = counted();
    let outcome = |fs: &Fs| {
        fs.write("/f", vec![1; 2 * CHUNK]).expect("room");
        fs.write("/g", "").expect("room");
        fs.sync().expect("the disk works");
        let (root, cred) = (fs.superblock().root(), Cred::root());
        let file = |name: &[u8]| root.lookup(&cred, name).expect("it is there");
        let to = [u64::MAX, u64::MAX - CHUNK as u64 + 1, i64::MAX as u64 - CHUNK as u64 + 1];
        to.map(|to| file(b"f").copy_range(&cred, 0, &file(b"g"), to, 2 * CHUNK as u64))
    };
    assert_eq!(outcome(&stored), outcome(&Fs::new()));
}

#[test]
fn copies_go_opposite_ways_while_others_write_and_push() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = counted();
    for path in ["/0", "/1"] {
        fs.write(path, vec![1; 4 * CHUNK]).expect("room");
    }
    close(&fs);
    let fs = opened(&disk, Some(256 << 10));
    sluice_sync::thread::scope(|scope| {
        for (one, other) in [("/0", "/1"), ("/1", "/0")] {
            let (copies, writes, reads) =
                (fs.process(Cred::root()), fs.process(Cred::root()), fs.process(Cred::root()));
            scope.spawn(move || {
                for round in 0..60 {
                    let (at, to) = (round % 4 * CHUNK, round * 3 % 4 * CHUNK);
                    assert_eq!(copy(&copies, (one, other), at, to, CHUNK), Ok(CHUNK));
                }
            });
            scope.spawn(move || {
                let fd = open(&writes, one);
                for round in 2..60_u8 {
                    // Whole chunks: each has one value everywhere.
                    let at = i64::from(round % 4) * CHUNK as i64;
                    writes.pwrite(fd, &[round; CHUNK], at).expect("room");
                }
            });
            scope.spawn(move || {
                let (fd, mut read) = (open(&reads, one), vec![0; CHUNK]);
                for round in 0..200 {
                    let at = round % 4 * CHUNK;
                    assert_eq!(reads.pread(fd, &mut read, at as i64), Ok(CHUNK));
                    assert!(read.iter().all(|byte| *byte == read[0]), "a chunk is torn");
                }
            });
        }
        let push = fs.process(Cred::root());
        scope.spawn(move || (0..60).for_each(|_| push.fs().sync().expect("the disk works")));
    });
    fs.sync().expect("the disk works");
    audit(&fs).expect("counts are right");
    let contents = ["/0", "/1"].map(|path| fs.read(path).expect("whole"));
    close(&fs);
    assert_eq!(check(&disk).found, 0, "{:?}", check(&disk));
    let fs = opened(&disk, Some(256 << 10));
    let again = ["/0", "/1"].map(|path| fs.read(path).expect("whole"));
    assert!(again == contents);
    assert!(
        again
            .iter()
            .flat_map(|file| file.chunks(CHUNK))
            .all(|chunk| chunk.iter().all(|byte| *byte == chunk[0]))
    );
}
