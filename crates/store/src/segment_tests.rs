//! Data in segments after a crash: every extent that a recovered record names reads as it was written.
//!
//! A record's value is the number of its data and an extent; the number determines the data. One thread writes, so each
//! state of the records is known too.

use crate::disk::Disk;
use crate::disk::crash::{CrashDisk, Survivors};
use crate::disk::fault::FaultDisk;
use crate::mutant::{Mutant, Planted};
use crate::{Added, EXTENT_ROOM, Extent, Options, Source, Store, StoreError};
use sluice_sync::Arc;
use sluice_sync::random::Random;
use std::collections::BTreeMap;

/// Key to number of data.
type State = BTreeMap<u8, u8>;

/// Blocks of a segment.
const BLOCKS: usize = 8;
const BLOCK: usize = 4096;

#[derive(Clone, Copy, Debug)]
enum Act {
    /// Data of a number, under one of three keys: the former data of the key are freed.
    Write(u8),
    /// As `Write`, of data that the last `Prepare` wrote.
    Prepare(u8),
    Name,
    Remove(u8),
    Sync,
    Checkpoint,
    Reopen,
}

fn options() -> Options {
    let segment_size = (BLOCKS * BLOCK) as u64;
    Options { segment_size, open_segments: 1, ..crate::crash_tests::options() }
}

fn open(disk: &CrashDisk, mutant: Option<Mutant>) -> Result<Store, StoreError> {
    Store::open_planted(Arc::new(disk.clone()), options(), Planted { mutant })
}

fn empty() -> CrashDisk {
    empty_of(options())
}

fn empty_of(options: Options) -> CrashDisk {
    let disk = CrashDisk::new();
    drop(Store::create(Arc::new(disk.clone()), options).expect("an empty disk"));
    CrashDisk::with(disk.files())
}

/// From one byte more than nothing to four blocks; every sector is another.
fn data(number: u8) -> Vec<u8> {
    let len = 1 + usize::from(number) * 3001 % (4 * BLOCK);
    (0..len).map(|at| number ^ (at / 512) as u8 ^ 0x80).collect()
}

/// The value of a record.
fn value(number: u8, extent: &Extent) -> Vec<u8> {
    let mut value = vec![number];
    extent.encode(&mut value);
    value
}

/// Changes the record of `key`, and frees what it named.
fn change(store: &Store, version: u64, key: u8, former: Option<Extent>, new: Option<(u8, &Extent)>) {
    let mut change = store.begin(100 + 2 * EXTENT_ROOM).expect("there is room");
    match new {
        Some((number, extent)) => {
            change.put(&[key], version, &value(number, extent));
            change.name_extent(extent);
        }
        None => change.remove(&[key], version),
    }
    if let Some(former) = former {
        change.free_extent(&former);
    }
}

/// The records of the store, if each names data that are right.
fn read(store: &Store) -> Result<State, String> {
    let mut values = Vec::new();
    store
        .scan(&[0], &[0xff], &mut |key, value| {
            values.push((key[0], value.to_vec()));
            true
        })
        .map_err(|error| error.to_string())?;
    let mut state = State::new();
    for (key, value) in values {
        let (extent, _) = Extent::decode(&value[1..]).ok_or("a record is none")?;
        let mut found = vec![0; extent.len() as usize];
        store.read_extent(&extent, 0, &mut found).map_err(|error| error.to_string())?;
        if found != data(value[0]) {
            return Err(format!("the data of number {} are wrong", value[0]));
        }
        state.insert(key, value[0]);
    }
    Ok(state)
}

struct Run {
    disk: CrashDisk,
    /// After how many steps there could be at most, and must be at least, so many changes.
    begun: Vec<(usize, usize)>,
    synced: Vec<(usize, usize)>,
    states: Vec<State>,
}

fn run(disk: CrashDisk, acts: &[Act], mutant: Option<Mutant>) -> Result<Run, StoreError> {
    let mut store = open(&disk, mutant).expect("made just now");
    let mut run = Run { disk, begun: vec![(0, 0)], synced: vec![(0, 0)], states: vec![State::new()] };
    let mut named: BTreeMap<u8, Extent> = BTreeMap::new();
    let mut prepared = None;
    for act in acts {
        let done = run.states.len() - 1;
        let mut state = run.states[done].clone();
        let mut changed = |store: &Store, key: u8, new: Option<(u8, Extent)>| {
            let former = named.remove(&key);
            change(
                store,
                done as u64 + 1,
                key,
                former,
                new.as_ref().map(|(number, extent)| (*number, extent)),
            );
            match new {
                Some((number, extent)) => {
                    named.insert(key, extent);
                    state.insert(key, number);
                }
                None => drop(state.remove(&key)),
            }
            run.states.push(state.clone());
            run.begun.push((run.disk.steps(), done + 1));
        };
        match act {
            Act::Write(number) => {
                let extent = store.write_extent(&data(*number))?;
                changed(&store, number % 3, Some((*number, extent)));
            }
            Act::Prepare(number) => {
                prepared = Some((*number, store.write_extent(&data(*number))?));
            }
            Act::Name => {
                if let Some((number, extent)) = prepared.take() {
                    changed(&store, 3, Some((number, extent)));
                }
            }
            Act::Remove(key) => changed(&store, *key, None),
            Act::Sync => {
                store.sync()?;
                run.synced.push((run.disk.steps(), done));
            }
            Act::Checkpoint => {
                store.sync().and_then(|()| store.checkpoint())?;
                run.synced.push((run.disk.steps(), done));
            }
            Act::Reopen => {
                drop(store);
                prepared = None;
                run.synced.push((run.disk.steps(), done));
                store = open(&run.disk, mutant)?;
            }
        }
    }
    std::mem::forget(store);
    Ok(run)
}

impl Run {
    fn judge(
        &self,
        disk: &CrashDisk,
        steps: usize,
        mutant: Option<Mutant>,
    ) -> Result<(Store, State), String> {
        let at = |marks: &[(usize, usize)]| {
            marks.iter().filter(|(when, _)| *when <= steps).map(|(_, count)| *count).max().unwrap_or(0)
        };
        let (least, most) = (at(&self.synced), at(&self.begun));
        let store = open(disk, mutant).map_err(|error| error.to_string())?;
        let found = read(&store)?;
        match self.states[least..=most.max(least)].contains(&found) {
            true => Ok((store, found)),
            false => Err(format!("holds no state between {least} and {most} changes")),
        }
    }

    /// Crashes after each `stride`-th step, lets the store go on, and crashes again: in recovery, and after it.
    fn crash_everywhere(&self, seeds: u64, stride: usize, mutant: Option<Mutant>) -> Result<u64, String> {
        let mut ways = vec![Survivors::None, Survivors::All];
        ways.extend((0..seeds).map(Survivors::Some));
        let mut crashes = 0;
        for steps in (0..=self.disk.steps()).step_by(stride) {
            for (n, way) in ways.iter().enumerate() {
                let said = |what: String| format!("crash after step {steps}, {way:?}: {what}");
                let disk = self.disk.crash(steps, *way);
                let (store, mut state) = self.judge(&disk, steps, mutant).map_err(said)?;
                let in_recovery = disk.steps();
                // More than a segment: what was free is written again.
                for number in [201, 202, 203, 204, 205] {
                    let extent =
                        store.write_extent(&data(number)).map_err(|error| said(error.to_string()))?;
                    change(&store, 1, number, None, Some((number, &extent)));
                    state.insert(number, number);
                }
                store.sync().map_err(|error| said(error.to_string()))?;
                let later = disk.crash(disk.steps(), Survivors::None);
                // The writes that the store makes when it is dropped are not on the other disk.
                drop(store);
                let later = open(&later, mutant);
                let later = later.map_err(|error| said(error.to_string()))?;
                if read(&later).map_err(|what| said(format!("after going on: {what}")))? != state {
                    return Err(said("data written after recovery were lost".into()));
                }
                if in_recovery > 0 {
                    let second = disk.crash((steps * 7 + n) % in_recovery, ways[(n + 1) % ways.len()]);
                    self.judge(&second, steps, mutant).map_err(|what| said(format!("again: {what}")))?;
                }
                crashes += 2;
            }
        }
        Ok(crashes)
    }
}

/// The `n`-th workload, of acts at random.
fn workload(n: u64) -> Vec<Act> {
    let mut random = Random::new(n);
    let mut acts = Vec::new();
    for at in 0..8 + n % 16 {
        let number = (n * 7 + at * 5) as u8 % 200;
        acts.push(match random.below(12) {
            0..5 => Act::Write(number),
            5 => Act::Prepare(number),
            6 => Act::Name,
            7 => Act::Remove(number % 3),
            8 => Act::Reopen,
            9 => Act::Checkpoint,
            _ => Act::Sync,
        });
    }
    acts
}

#[test]
fn after_a_crash_at_any_step_each_extent_that_a_record_names_reads_right() {
    let workloads = std::env::var("SLUICE_CRASH_WORKLOADS").ok().and_then(|n| n.parse().ok()).unwrap_or(16);
    for n in 0..workloads {
        let acts = workload(n);
        for compress in [false, cfg!(feature = "compression")] {
            let disk = empty_of(options().compress(compress));
            let found = run(disk, &acts, None).expect("the disk works").crash_everywhere(1, 1, None);
            found.unwrap_or_else(|what| panic!("workload {n} {acts:?}: {what}"));
        }
    }
}

#[test]
fn each_planted_fault_of_the_segments_is_found() {
    use Act::*;
    let tight = [
        Prepare(5),
        Write(1),
        Write(4),
        Sync,
        Write(2),
        Write(7),
        Checkpoint,
        Write(10),
        Sync,
        Write(13),
        Remove(1),
        Write(16),
        Sync,
        Checkpoint,
        Remove(2),
        Checkpoint,
        Write(19),
        Write(20),
        Write(21),
        Sync,
        Checkpoint,
        Write(22),
        Write(23),
        Name,
        Sync,
        Reopen,
        Write(24),
        Sync,
        Write(25),
        Remove(0),
        Checkpoint,
        Write(26),
        Sync,
    ];
    run(empty(), &tight, None)
        .expect("the disk works")
        .crash_everywhere(1, 1, None)
        .expect("without a fault all is well");
    for mutant in
        [Mutant::DataNotFlushed, Mutant::PunchedEarly, Mutant::EndForgotten, Mutant::PendingForgotten]
    {
        // Some show at once, the others after a crash.
        let found = run(empty(), &tight, Some(mutant)).map(|run| run.crash_everywhere(3, 1, Some(mutant)));
        assert!(!matches!(found, Ok(Ok(_))), "{mutant:?} was not found");
    }
}

#[test]
fn a_flipped_bit_of_data_is_an_error_and_never_wrong_bytes() {
    let outcome = |mutant| {
        let disk = empty();
        let store = open(&disk, mutant).expect("made just now");
        let extent = store.write_extent(&data(3)).expect("the disk works");
        let Some((name, _)) = disk.files().into_iter().find(|(name, _)| name.starts_with("segment")) else {
            panic!("it is in a segment")
        };
        let file = disk.open(&name).expect("it is there");
        let span = extent.span();
        let len = extent.len() as usize;
        let (mut right, mut damaged, mut wrong) = (0, 0, 0);
        for bit in (0..len * 8).step_by(4099) {
            let at = span.offset() + bit as u64 / 8;
            let mut byte = [0];
            file.read_at(&mut byte, at).expect("memory");
            file.write_at(&[byte[0] ^ 1 << (bit % 8)], at).expect("memory");
            for start in [0, bit / 8, len - 1] {
                let mut found = vec![0; len - start];
                match store.read_extent(&extent, start as u64, &mut found) {
                    Ok(()) if found == data(3)[start..] => right += 1,
                    Ok(()) => wrong += 1,
                    Err(StoreError::Damaged(_)) => damaged += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            file.write_at(&byte, at).expect("memory");
        }
        assert!(right > 0, "what does not touch the block is right");
        (damaged > 0, wrong > 0)
    };
    assert_eq!(outcome(None), (true, false));
    assert_eq!(outcome(Some(Mutant::DataNotChecked)), (false, true), "found");
}

#[test]
fn freed_data_go_back_to_the_disk_at_the_checkpoint_and_full_segments_are_written_again() {
    let disk = empty();
    let store = open(&disk, None).expect("made just now");
    let used = || {
        let files = disk.files();
        let segments = files.iter().filter(|(name, _)| name.starts_with("segment"));
        segments
            .map(|(_, bytes)| bytes.chunks(BLOCK).filter(|block| block.iter().any(|b| *b != 0)).count())
            .collect::<Vec<_>>()
    };
    let mut former = None;
    for round in 0..40_u64 {
        let extent = store.write_extent(&[7; 3 * BLOCK]).expect("the disk works");
        change(&store, round + 1, 1, former.replace(extent.clone()), Some((1, &extent)));
        store.sync().expect("the disk works");
        if round % 4 == 3 {
            store.checkpoint().expect("the disk works");
            assert_eq!(used().iter().sum::<usize>(), 3, "round {round}: only the last lives");
        }
    }
    assert!(used().len() <= 6, "{} segments", used().len());
    let given_up = store.write_extent(&[8; BLOCK]).expect("the disk works");
    store.discard_extent(&given_up);
    assert_eq!(used().iter().sum::<usize>(), 3);
}

#[test]
fn when_any_write_flush_or_request_for_room_fails_calls_say_so_and_what_was_synchronised_reads_right() {
    for errno in [rustix::io::Errno::IO, rustix::io::Errno::NOSPC] {
        for at in 0.. {
            let disk = empty();
            let fault =
                Arc::new(FaultDisk::new(Arc::new(disk.clone()), at, at % 2 == 1, errno.raw_os_error()));
            let mut safe = State::new();
            if let Ok(store) = Store::open(fault.clone(), options()) {
                let mut former = BTreeMap::new();
                for number in 1..12_u8 {
                    let Ok(extent) = store.write_extent(&data(number)) else { continue };
                    let key = number % 3;
                    if store.begin(1).is_err() {
                        break;
                    }
                    change(
                        &store,
                        u64::from(number),
                        key,
                        former.insert(key, extent.clone()),
                        Some((number, &extent)),
                    );
                    let done =
                        store.sync().and_then(|()| if number % 4 == 0 { store.checkpoint() } else { Ok(()) });
                    if done.is_err_and(|error| !error.is_full_disk() || store.failure().is_some()) {
                        assert!(store.sync().is_err(), "the store has failed for good");
                        break;
                    }
                    safe.insert(key, number);
                }
            }
            let store = open(&CrashDisk::with(disk.files()), None).expect("still a store");
            let found = read(&store).unwrap_or_else(|what| panic!("step {at} failed with {errno}: {what}"));
            let kept = safe.iter().all(|(key, number)| found.get(key).is_some_and(|found| found >= number));
            assert!(kept, "step {at} failed with {errno}: {found:?} of {safe:?} left");
            if fault.steps() <= at {
                assert_eq!(safe.len(), 3, "without a fault all is done");
                break;
            }
        }
    }
}

/// A disk with so much room.
#[derive(Debug)]
pub(crate) struct Small(pub(crate) CrashDisk, pub(crate) sluice_sync::atomic::AtomicU64);

impl Disk for Small {
    fn open(&self, name: &str) -> std::io::Result<Arc<dyn crate::disk::DiskFile>> {
        self.0.open(name)
    }

    fn create(&self, name: &str, len: u64) -> std::io::Result<Arc<dyn crate::disk::DiskFile>> {
        self.0.create(name, len)
    }

    fn cipher(&self) -> Option<Arc<crate::Cipher>> {
        self.0.cipher()
    }

    fn names(&self) -> std::io::Result<Vec<String>> {
        self.0.names()
    }

    fn free_bytes(&self) -> std::io::Result<u64> {
        Ok(self.1.load(sluice_sync::atomic::Ordering::SeqCst))
    }

    fn rename(&self, from: &str, to: &str) -> std::io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> std::io::Result<()> {
        self.0.remove(name)
    }

    fn sync_names(&self) -> std::io::Result<()> {
        self.0.sync_names()
    }
}

#[test]
fn growth_is_refused_while_what_the_log_holds_still_finds_room_and_allowed_again() {
    let small = Arc::new(Small(empty(), u64::MAX.into()));
    let store = Store::open(small.clone(), options()).expect("made just now");
    assert!(store.has_room());
    small.1.store(100_000, sluice_sync::atomic::Ordering::SeqCst);
    let change = |version| {
        store.begin(100).expect("a deletion goes on").put(&[9], version, b"");
        store.sync().expect("the disk works");
    };
    change(1);
    assert!(!store.has_room());
    change(2);
    small.1.store(1 << 30, sluice_sync::atomic::Ordering::SeqCst);
    assert!(store.has_room());
}

#[test]
fn blocks_that_are_held_back_are_no_room_for_growth_and_writes_into_them_go_on() {
    let small = Arc::new(Small(empty(), (1 << 30).into()));
    let store = Store::open(small.clone(), options()).expect("made just now");
    let before = store.room_bytes().expect("it tells");
    let all = before / (4096 + 256);
    assert!(!store.hold_back(all + 1) && store.held_back() == 0 && store.has_room());
    assert!(store.hold_back(all - 10) && !store.hold_back(11) && store.hold_back(10));
    assert_eq!((store.held_back(), store.room_bytes()), (all, Some(before - all * (4096 + 256))));
    // One block less, and growth is refused at once, and what is held back is not.
    small.1.fetch_sub(4096 + 256, sluice_sync::atomic::Ordering::SeqCst);
    store.hold_back_anyway(0);
    assert!(!store.has_room() && store.has_room_held_back() && store.room_bytes() == Some(0));
    store.give_up(1);
    assert!(store.has_room());
    small.1.store(4096, sluice_sync::atomic::Ordering::SeqCst);
    store.hold_back_anyway(0);
    assert!(!store.has_room_held_back(), "deletions need the rest");
}

#[test]
fn segments_take_a_small_part_of_a_disk_ahead_and_give_it_back_when_the_disk_is_full() {
    let small = Arc::new(Small(empty(), (64 << 20).into()));
    let store =
        Store::open(small.clone(), Options { segment_size: 64 << 20, ..options() }).expect("made just now");
    store.write_extent(&[1; 9000]).expect("room");
    let ahead = store.core.segments.ahead_bytes();
    assert!(0 < ahead && ahead <= (64 << 20) / 8, "{ahead} bytes");
    small.1.store(100_000, sluice_sync::atomic::Ordering::SeqCst);
    store.hold_back_anyway(0);
    assert!(!store.make_room(), "this disk stays full");
    assert_eq!(store.core.segments.ahead_bytes(), 0);
    store.write_extent(&[1; 9000]).expect("a write asks for room again");
}

/// A store with one extent, which record 1 names, on a disk that is full.
fn full_with_an_extent(options: Options) -> (Store, Arc<Small>, Extent) {
    let small = Arc::new(Small(empty(), u64::MAX.into()));
    let store = Store::open(small.clone(), options).expect("made just now");
    let extent = store.write_extent(&[1; 9000]).expect("room");
    let mut change = store.begin(1000).expect("room");
    change.name_extent(&extent);
    change.put(&[1], 1, &value(1, &extent));
    drop(change);
    store.sync().and_then(|()| store.checkpoint()).expect("the disk works");
    assert!(store.stats().data_bytes > 0);
    small.1.store(100_000, sluice_sync::atomic::Ordering::SeqCst);
    (store, small, extent)
}

/// A store like that of [`full_with_an_extent`], after a transaction has freed the extent.
fn full_with_a_freed_extent(options: Options) -> (Store, Arc<Small>) {
    let (store, small, extent) = full_with_an_extent(options);
    let mut change = store.begin(1000).expect("a deletion goes on");
    change.free_extent(&extent);
    change.remove(&[1], 2);
    drop(change);
    (store, small)
}

#[test]
fn a_full_disk_gets_back_what_was_deleted_when_a_caller_asks_for_room() {
    let (store, _full) = full_with_a_freed_extent(options());
    store.sync().expect("the disk works");
    assert!(!store.make_room(), "this disk stays full");
    assert_eq!((store.stats().data_bytes, store.stats().log_used), (0, 0));
    let before = store.stats().batches;
    assert!(!store.make_room());
    assert_eq!(store.stats().batches, before, "with nothing to give back nothing is written");
}

/// Frees some extents, one in a push.
struct Frees(sluice_sync::Mutex<Vec<(u8, Extent)>>);

impl Source for Frees {
    fn collect(&self, to: &mut Added) {
        let mut left = self.0.lock();
        if let Some((key, extent)) = left.pop() {
            to.free_extent(&extent);
            to.remove(&[key]);
        }
        if !left.is_empty() {
            to.ask_again();
        }
    }
}

#[test]
fn a_full_disk_gets_back_what_only_the_source_of_changes_knows_to_be_gone() {
    let (store, _full, first) = full_with_an_extent(options());
    let mut extents = vec![(1, first)];
    for key in 2..4 {
        let extent = store.write_extent(&[key; 9000]).expect("room");
        let mut change = store.begin(1000).expect("the log has room");
        change.name_extent(&extent);
        change.put(&[key], 1, &value(key, &extent));
        drop(change);
        extents.push((key, extent));
    }
    store.write_out().expect("the disk works");
    store.set_source(Box::new(Frees(sluice_sync::Mutex::new(extents))));
    store.hold_back_anyway(0);
    assert!(!store.make_room(), "this disk stays full");
    assert_eq!(store.stats().data_bytes, 0);
}

#[test]
fn a_full_disk_gets_back_what_was_deleted_unasked() {
    let age = sluice_sync::time::Duration::from_millis(1);
    let (store, _full) = full_with_a_freed_extent(Options { background: true, age, ..options() });
    while store.stats().data_bytes > 0 {
        sluice_sync::thread::yield_now();
    }
    let (store, full) = full_with_a_freed_extent(Options { background: true, age, ..options() });
    full.1.store(u64::MAX, sluice_sync::atomic::Ordering::SeqCst);
    while store.stats().data_bytes > 0 {
        sluice_sync::thread::yield_now();
    }
}
