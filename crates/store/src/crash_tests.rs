//! The disk after a crash, at every step of small workloads; and that these tests find the faults which are planted.
//!
//! A workload is a list of [`Act`]s by one thread. Its *states* are what the store should hold after each number of
//! transactions. After a crash the store must hold one of them: at least that of the last [`Act::Sync`] that had returned.

use crate::disk::Disk;
use crate::disk::crash::{CrashDisk, Survivors};
use crate::disk::fault::FaultDisk;
use crate::disk::gate::{Gate, GateDisk, GateFile};
use crate::engine::{Engine, RedbEngine};
use crate::mutant::{Mutant, Planted};
use crate::record::Batch;
use crate::{Options, Store, StoreError};
use sluice_sync::atomic::Ordering;
use sluice_sync::random::Random;
use sluice_sync::time::Duration;
use sluice_sync::{Arc, OnceLock, thread};
use std::collections::BTreeMap;

type State = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// A transaction that writes some keys, chosen by the number.
    Change(u64),
    Sync,
    Checkpoint,
    /// Closes the store without care, and opens it again.
    Reopen,
}

pub(crate) fn options() -> Options {
    let options = Options::default().log_size(64 << 10).background(false);
    Options { cache: 1 << 20, room_patience: Duration::ZERO, ..options }
}

/// A disk that several may use.
pub(crate) fn shared(disk: impl Disk + 'static) -> Arc<dyn Disk> {
    Arc::from(Box::new(disk) as Box<dyn Disk>)
}

pub(crate) fn open(disk: impl Disk + 'static, mutant: Option<Mutant>) -> Result<Store, StoreError> {
    Store::open_planted(shared(disk), options(), Planted { mutant })
}

/// The files of an empty store.
pub(crate) fn empty() -> CrashDisk {
    static FILES: OnceLock<BTreeMap<String, Vec<u8>>> = OnceLock::new();
    empty_on(CrashDisk::new, &FILES)
}

/// The files of an empty store that is encrypted.
fn empty_encrypted() -> CrashDisk {
    static FILES: OnceLock<BTreeMap<String, Vec<u8>>> = OnceLock::new();
    empty_on(CrashDisk::encrypted, &FILES)
}

fn empty_on(disk: fn() -> CrashDisk, files: &OnceLock<BTreeMap<String, Vec<u8>>>) -> CrashDisk {
    let files = files.get_or_init(|| {
        let disk = disk();
        drop(Store::create(shared(disk.clone()), options()).expect("an empty disk"));
        disk.files()
    });
    CrashDisk::with(files.clone())
}

/// The records that a transaction of this number writes: some of four keys, each with a value of its own or none.
fn records(number: u64) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let key = |n: u64| vec![b'k', (n % 4) as u8];
    // Now and then more than a block, so that batches have different lengths and go round the ring.
    let len = if number.is_multiple_of(3) { 5_000 } else { 20 };
    let mut value = vec![number as u8; len];
    value[..8].copy_from_slice(&number.to_le_bytes());
    let second = if number.is_multiple_of(5) { None } else { Some(value.clone()) };
    vec![(key(number), Some(value)), (key(number / 4 + 1 + number), second)]
}

/// The history of a workload, in steps of the disk.
struct Run {
    disk: CrashDisk,
    /// After how many steps how many transactions had begun.
    begun: Vec<(usize, usize)>,
    /// After how many steps how many were known to be durable.
    synced: Vec<(usize, usize)>,
    states: Vec<State>,
}

fn run(acts: &[Act], mutant: Option<Mutant>) -> Run {
    run_on(empty(), acts, mutant)
}

fn run_on(disk: CrashDisk, acts: &[Act], mutant: Option<Mutant>) -> Run {
    let mut store = open(disk.clone(), mutant).expect("made just now");
    let mut run = Run { disk, begun: vec![(0, 0)], synced: vec![(0, 0)], states: vec![State::new()] };
    let mut version = 0;
    for act in acts {
        let done = run.states.len() - 1;
        match act {
            Act::Change(number) => {
                let mut state = run.states[done].clone();
                let mut change = store.begin(12_000).expect("there is room");
                for (key, value) in records(*number) {
                    version += 1;
                    match value {
                        Some(value) => {
                            change.put(&key, version, &value);
                            state.insert(key, value);
                        }
                        None => {
                            change.remove(&key, version);
                            state.remove(&key);
                        }
                    }
                }
                drop(change);
                run.states.push(state);
                run.begun.push((run.disk.steps(), done + 1));
            }
            Act::Sync => {
                store.sync().expect("the disk works");
                run.synced.push((run.disk.steps(), done));
            }
            Act::Checkpoint => {
                store.sync().and_then(|()| store.checkpoint()).expect("the disk works");
                run.synced.push((run.disk.steps(), done));
            }
            Act::Reopen => {
                drop(store);
                run.synced.push((run.disk.steps(), done));
                store = open(run.disk.clone(), mutant).expect("closed just now");
            }
        }
    }
    // The steps of a clean end do not count: the crash comes before.
    std::mem::forget(store);
    run
}

fn content(store: &Store) -> Result<State, StoreError> {
    let mut state = State::new();
    store.scan(b"", b"z", &mut |key, value| {
        state.insert(key.to_vec(), value.to_vec());
        true
    })?;
    Ok(state)
}

impl Run {
    /// The least and most transactions that may have survived a crash after `steps`.
    fn bounds(&self, steps: usize) -> (usize, usize) {
        let at = |marks: &[(usize, usize)]| {
            marks.iter().filter(|(when, _)| *when <= steps).map(|(_, count)| *count).max().unwrap_or(0)
        };
        (at(&self.synced), at(&self.begun).max(at(&self.synced)))
    }

    /// Opens the store on `disk`, and says what is wrong with what it holds.
    fn judge(&self, disk: &CrashDisk, steps: usize, mutant: Option<Mutant>) -> Result<Store, String> {
        let store = open(disk.clone(), mutant).map_err(|error| error.to_string())?;
        let found = content(&store).map_err(|error| error.to_string())?;
        let (least, most) = self.bounds(steps);
        match self.states[least..=most].contains(&found) {
            true => Ok(store),
            false => Err(format!("holds no state between {least} and {most} transactions")),
        }
    }

    /// Crashes after each `stride`-th step, in each way, and once more in recovery, and after it.
    fn crash_everywhere(&self, seeds: u64, stride: usize, mutant: Option<Mutant>) -> Result<u64, String> {
        let mut crashes = 0;
        let mut ways = vec![Survivors::None, Survivors::All];
        ways.extend((0..seeds).map(Survivors::Some));
        for steps in (0..=self.disk.steps()).step_by(stride) {
            for (n, way) in ways.iter().enumerate() {
                let said = |what: String| format!("crash after step {steps}, {way:?}: {what}");
                let disk = self.disk.crash(steps, *way);
                let store = self.judge(&disk, steps, mutant).map_err(said)?;
                crashes += 1;
                let recovered = content(&store).map_err(|error| said(error.to_string()))?;
                let in_recovery = disk.steps();
                // The store goes on, and must lose nothing more.
                let mut change = store.begin(100).map_err(|error| said(error.to_string()))?;
                change.put(b"more", 1, b"");
                drop(change);
                store.sync().map_err(|error| said(error.to_string()))?;
                let later = disk.crash(disk.steps(), Survivors::None);
                // The writes that the store makes when it is dropped are not on the other disk.
                drop(store);
                let store = open(later, mutant).map_err(|error| said(error.to_string()))?;
                let mut expected = recovered;
                expected.insert(b"more".to_vec(), Vec::new());
                if content(&store).map_err(|error| said(error.to_string()))? != expected {
                    return Err(said(
                        "a transaction after recovery was lost, or brought another with it".into(),
                    ));
                }
                // A second crash, at one step of the recovery.
                if in_recovery > 0 {
                    let second = disk.crash((steps * 7 + n) % in_recovery, ways[(n + 1) % ways.len()]);
                    self.judge(&second, steps, mutant)
                        .map_err(|what| said(format!("again in recovery: {what}")))?;
                    crashes += 1;
                }
            }
        }
        Ok(crashes)
    }
}

/// The `n`-th workload: all of two acts come first, then longer ones at random.
fn workload(n: u64) -> Vec<Act> {
    const SHORT: u64 = 16;
    let act = |choice: u64, n: u64| match choice {
        0 => Act::Change(n),
        1 => Act::Sync,
        2 => Act::Checkpoint,
        _ => Act::Reopen,
    };
    if n < SHORT {
        return vec![Act::Change(n), act(n / 4, n + 1), act(n % 4, n + 2), Act::Change(n + 3), Act::Sync];
    }
    let mut random = Random::new(n);
    let mut acts = Vec::new();
    for at in 0..4 + n % 12 {
        acts.push(act(random.pick(&[0, 0, 0, 1, 1, 2, 3]), n + at));
    }
    acts
}

#[test]
fn after_a_crash_at_any_step_the_store_holds_a_prefix_with_all_that_was_synchronised() {
    let workloads = std::env::var("SLUICE_CRASH_WORKLOADS").ok().and_then(|n| n.parse().ok()).unwrap_or(30);
    let mut crashes = 0;
    for n in 0..workloads {
        let acts = workload(n);
        // Encryption costs time, and the encrypted store has the same steps.
        let disks = [Some(empty()), n.is_multiple_of(4).then(empty_encrypted)];
        for disk in disks.into_iter().flatten() {
            let found = run_on(disk, &acts, None).crash_everywhere(2, 1, None);
            crashes += found.unwrap_or_else(|what| panic!("workload {n} {acts:?}: {what}"));
        }
    }
    println!("{crashes} crashes of {workloads} workloads");
    assert!(crashes > workloads * 10);
}

#[test]
fn each_planted_fault_is_found() {
    use Mutant::*;
    for mutant in
        [NoFlush, NoBodyChecksum, FreedEarly, PositionWithoutRecords, OldestVersion, ReplayFromStart]
    {
        let finds = |n: u64| run(&tight(n), Some(mutant)).crash_everywhere(5, 1, Some(mutant)).is_err();
        assert!((0..8).any(finds), "{mutant:?} was not found");
    }
    run(&tight(0), None).crash_everywhere(1, 9, None).expect("without a fault all is well");
}

/// Workloads in which each fault shows: a log that goes round, several versions of a key in a batch, a second run.
fn tight(n: u64) -> Vec<Act> {
    let mut acts = workload(16 + n);
    acts.extend([Act::Change(3), Act::Change(7), Act::Change(3 + n), Act::Sync, Act::Change(6), Act::Sync]);
    for round in 0..8 {
        acts.extend([Act::Change(3 * round), Act::Sync]);
    }
    acts.extend([Act::Checkpoint, Act::Change(9), Act::Sync, Act::Change(12), Act::Sync]);
    acts
}

#[test]
fn a_failed_flush_ends_the_store_and_what_was_synchronised_before_stays() {
    let outcome = |mutant| {
        let disk = empty();
        let store = open(disk.clone(), mutant).expect("made just now");
        let put = |value: &[u8], version| {
            let mut change = store.begin(100).expect("there is room");
            change.put(b"k", version, value);
        };
        put(b"safe", 1);
        store.sync().expect("the disk works");
        disk.fail_sync_after(0);
        put(b"lost", 2);
        let second = store.sync();
        let third = store.sync();
        std::mem::forget(store);
        let after = open(disk.crash(disk.steps(), Survivors::None), None).expect("a store");
        (second.is_ok(), third.is_ok(), after.get(b"k").expect("whole"))
    };
    assert_eq!(outcome(None), (false, false, Some(b"safe".to_vec())));
    // Found: it says that "lost" is durable.
    assert_eq!(outcome(Some(Mutant::FlushAgain)), (true, true, Some(b"safe".to_vec())));
}

#[test]
fn who_closes_a_store_as_the_second_waits_and_is_told_what_the_first_is_told() {
    let gate = Arc::new(Gate::new());
    let gated = GateDisk { below: shared(empty()), gate: gate.clone() };
    let store = open(gated, None).expect("made just now");
    store.begin(100).expect("there is room").put(b"a", 1, b"");
    thread::scope(|scope| {
        gate.close();
        let first = scope.spawn(|| store.close());
        gate.await_caller();
        let second = scope.spawn(|| store.close());
        thread::sleep(Duration::from_millis(100));
        assert!(!second.is_finished());
        gate.open();
        first.join().expect("no panic").expect("the disk works");
        second.join().expect("no panic").expect("the first has closed it");
    });
    let failed = open(empty(), None).expect("made just now");
    failed.abandon();
    assert!(failed.close().is_err());
    assert!(failed.close().is_err());
}

#[test]
fn a_batch_is_not_durable_before_those_in_front_of_it() {
    let both = |mutant| {
        let disk = empty();
        let gate = Arc::new(Gate::new());
        let gated = GateDisk { below: shared(disk.clone()), gate: gate.clone() };
        let store = open(gated, mutant).expect("made just now");
        let put = |key: &[u8]| {
            let mut change = store.begin(100).expect("there is room");
            change.put(key, 1, b"");
        };
        let before_both = store.stats().batches;
        let lost = thread::scope(|scope| {
            gate.close();
            put(b"a");
            let first = scope.spawn(|| store.sync());
            gate.await_caller();
            put(b"b");
            let before = disk.steps();
            let second = scope.spawn(|| store.sync());
            // The second is written and flushed.
            while disk.steps() < before + 2 {
                thread::yield_now();
            }
            let lost = mutant.is_some().then(|| {
                second.join().expect("no panic").expect("the disk works");
                let after = disk.crash(disk.steps(), Survivors::None);
                let after = open(after, None).expect("a store");
                after.get(b"b").expect("whole").is_none()
            });
            let waits = store.stats().batches == before_both;
            gate.open();
            first.join().expect("no panic").expect("the disk works");
            lost.unwrap_or(!waits)
        });
        store.sync().expect("the disk works");
        lost
    };
    assert!(!both(None));
    assert!(both(Some(Mutant::DoneOutOfOrder)), "found: a synchronised change is lost");
}

#[test]
fn a_cut_waits_for_the_transactions_that_have_begun() {
    let half = |mutant| {
        let disk = empty();
        let store = open(disk.clone(), mutant).expect("made just now");
        let mut change = store.begin(100).expect("there is room");
        change.put(b"a", 1, b"");
        let crashed = || disk.crash(disk.steps(), Survivors::None);
        let after = thread::scope(|scope| {
            let push = scope.spawn(|| store.sync());
            // With the fault it does not wait for us, and a crash may come now.
            let early = mutant.is_some().then(|| {
                push.join().expect("no panic").expect("the disk works");
                crashed()
            });
            change.put(b"b", 1, b"");
            drop(change);
            early
        });
        store.sync().expect("the disk works");
        let after = after.unwrap_or_else(crashed);
        let after = open(after, None).expect("a store");
        let has = |key: &[u8]| after.get(key).expect("whole").is_some();
        (has(b"a"), has(b"b"))
    };
    assert_eq!(half(None), (true, true));
    assert_eq!(half(Some(Mutant::CutInParts)), (true, false), "found: half a transaction");
}

#[test]
fn a_store_that_was_made_in_part_is_none_or_whole() {
    let disk = CrashDisk::new();
    drop(Store::create(shared(disk.clone()), options()).expect("an empty disk"));
    for steps in 0..=disk.steps() {
        for way in [Survivors::None, Survivors::All, Survivors::Some(1), Survivors::Some(2)] {
            match open(disk.crash(steps, way), None) {
                Ok(store) => assert!(content(&store).expect("whole").is_empty()),
                Err(StoreError::NotAStore | StoreError::Damaged(_)) => {}
                Err(error) => panic!("step {steps}, {way:?}: {error}"),
            }
        }
    }
}

#[test]
fn when_any_write_or_flush_fails_calls_say_so_and_what_was_synchronised_stays() {
    for errno in [rustix::io::Errno::IO, rustix::io::Errno::NOSPC] {
        for lasts in [false, true] {
            for at in 0.. {
                let disk = empty();
                let fault = FaultDisk::new(shared(disk.clone()), at, lasts, errno.raw_os_error());
                let mut safe = 0;
                if let Ok(store) = Store::open(shared(fault.clone()), options()) {
                    for n in 1..20_u64 {
                        let Ok(mut change) = store.begin(8_000) else { break };
                        change.put(b"n", n, &[n as u8; 5_000]);
                        drop(change);
                        if store.sync().is_err() {
                            assert!(store.sync().is_err(), "the store has failed for good");
                            break;
                        }
                        safe = n;
                    }
                }
                let store = open(CrashDisk::with(disk.files()), None).expect("still a store");
                let found = store.get(b"n").expect("whole").map_or(0, |value| u64::from(value[0]));
                assert!(found >= safe, "step {at} failed with {errno}: {found} of {safe} left");
                if fault.steps() <= at {
                    assert_eq!(safe, 19, "without a fault all is done");
                    break;
                }
            }
        }
    }
}

#[test]
fn when_any_write_or_flush_fails_none_of_several_callers_is_told_otherwise() {
    for lasts in [false, true] {
        for at in 0.. {
            let disk = empty();
            let fault = FaultDisk::new(shared(disk.clone()), at, lasts, rustix::io::Errno::IO.raw_os_error());
            let Ok(store) = Store::open(shared(fault.clone()), options()) else { continue };
            let synced = |caller: u8, n: u8| -> Result<(), StoreError> {
                let mut change = store.begin(8_000)?;
                change.put(&[b'c', caller], u64::from(n), &[n; 5_000]);
                drop(change);
                store.sync()
            };
            let told: Vec<usize> = thread::scope(|scope| {
                let synced = &synced;
                let calls = |caller| move || (1..6).take_while(|n| synced(caller, *n).is_ok()).count();
                let callers: Vec<_> = (0..3).map(|caller| scope.spawn(calls(caller))).collect();
                callers.into_iter().map(|caller| caller.join().expect("no panic")).collect()
            });
            let after = open(disk.crash(disk.steps(), Survivors::None), None).expect("still a store");
            for (caller, told) in (0..).zip(told) {
                let found = after.get(&[b'c', caller]).expect("whole").map_or(0, |value| value[0]);
                assert!(usize::from(found) >= told, "step {at}: {found} of caller {caller}'s {told} left");
            }
            if fault.steps() <= at {
                break;
            }
        }
    }
}

#[test]
fn a_flipped_bit_of_the_log_is_refused_or_changes_nothing() {
    let run = run(&tight(1)[..16], None);
    let files = run.disk.files();
    let right = content(&open(CrashDisk::with(files.clone()), None).expect("whole")).expect("whole");
    let log = &files["log"];
    let used = log.iter().rposition(|byte| *byte != 0).expect("it was written") + 1;
    let mut refused = 0;
    // All bits of each header, and some of all that follows.
    let headers = (0..used).step_by(4096).flat_map(|at| at * 8..at * 8 + 512);
    for bit in headers.chain((512..used * 8).step_by(197)) {
        let mut files = files.clone();
        files.get_mut("log").expect("it is there")[bit / 8] ^= 1 << (bit % 8);
        match open(CrashDisk::with(files.clone()), None) {
            Ok(store) => assert_eq!(content(&store).expect("whole"), right, "bit {bit}"),
            Err(StoreError::DamagedLog(_)) => {
                refused += 1;
                let disk = CrashDisk::with(files.clone());
                assert!(
                    open(disk.clone(), None).is_err() && disk.files()["log"] == files["log"],
                    "nothing is written"
                );
            }
            Err(error) => panic!("bit {bit}: {error}"),
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn a_log_that_was_wiped_or_is_another_is_refused() {
    let run = run(&[Act::Change(1), Act::Sync, Act::Change(2), Act::Sync], None);
    let (files, other) = (run.disk.files(), empty().files());
    let half = files["log"].len() / 2;
    let with = |log: Vec<u8>| {
        let mut files = files.clone();
        files.insert("log".into(), log);
        open(CrashDisk::with(files), None).map(drop)
    };
    with(files["log"].clone()).expect("as it was");
    let [mut first, mut last] = [files["log"].clone(), files["log"].clone()];
    first[..half].fill(0);
    last[half..].fill(0);
    assert!(matches!(with(first), Err(StoreError::DamagedLog(_))), "what was written is there");
    with(last).expect("nothing was there");
    let disk = CrashDisk::new();
    drop(Store::create(shared(disk.clone()), options()).expect("an empty disk"));
    assert!(matches!(with(disk.files()["log"].clone()), Err(StoreError::DamagedLog(_))), "of another store");
    assert!(with(other["log"].clone()).is_ok(), "an older copy is as if nothing had been written since");
    // But not when the tree has what is missing.
    let run = self::run(&[Act::Change(1), Act::Sync, Act::Checkpoint, Act::Change(2), Act::Sync], None);
    let mut files = run.disk.files();
    files.insert("log".into(), other["log"].clone());
    assert!(matches!(open(CrashDisk::with(files), None), Err(StoreError::DamagedLog(_))));
}

#[test]
fn a_log_that_was_cut_goes_on_also_when_that_is_interrupted() {
    const SECOND: u64 = 3;
    let acts: Vec<Act> = (1..6).flat_map(|n| [Act::Change(n), Act::Sync]).collect();
    let run = run(&acts, None);
    let mut files = run.disk.files();
    // The body of the second batch that the tree does not have.
    let log = files.get_mut("log").expect("it is there");
    let at = (0..log.len()).step_by(4096).find(|at| log[at + 24..at + 32] == SECOND.to_le_bytes());
    log[at.expect("it is there") + 70] ^= 1;
    let damaged = CrashDisk::with(files);
    assert!(matches!(open(damaged.clone(), None), Err(StoreError::DamagedLog(_))));
    Store::cut_log(&damaged).expect("the disk works");
    for steps in 0..=damaged.steps() {
        for way in [Survivors::None, Survivors::All, Survivors::Some(steps as u64)] {
            let disk = damaged.crash(steps, way);
            match open(disk.clone(), None) {
                Err(StoreError::DamagedLog(_)) => Store::cut_log(&disk).expect("the disk works"),
                opened => drop(opened.expect("it was cut")),
            }
            // Twice is as once.
            Store::cut_log(&disk).expect("the disk works");
            let store = open(disk.clone(), None).expect("it was cut");
            assert!(run.states.contains(&content(&store).expect("whole")));
            store.begin(100).expect("there is room").put(b"more", 1, b"");
            store.sync().expect("the disk works");
            let disk = disk.crash(disk.steps(), Survivors::None);
            assert!(open(disk, None).expect("it goes on").get(b"more").expect("whole").is_some());
        }
    }
}

#[test]
fn a_damaged_or_cut_file_is_an_error_and_never_a_panic() {
    let run = run(&[Act::Change(1), Act::Checkpoint, Act::Change(2), Act::Sync], None);
    let files = run.disk.files();
    for name in ["super", "log", "tree"] {
        for cut in [0, 1, 511, 512, 4_096, 10_000] {
            let mut files = files.clone();
            let file = files.get_mut(name).expect("it is there");
            file.truncate(file.len().min(cut));
            if let Ok(store) = open(CrashDisk::with(files), None) {
                assert!(cut > 511, "`{name}` of {cut} bytes is as a new one");
                let _ = content(&store);
            }
        }
        let mut files = files.clone();
        files.remove(name);
        assert!(open(CrashDisk::with(files), None).is_err(), "{name} is missing");
    }
}

#[test]
fn an_engine_whose_library_gave_up_goes_without_a_panic() {
    let file = CrashDisk::new().create("tree", 0).expect("an empty disk");
    let gate = Arc::new(Gate::new());
    let gated = crate::disk::shared(GateFile(file, gate.clone()));
    let engine = RedbEngine::open(gated, None, 1 << 20).expect("an empty file");
    engine.apply(&Batch::default(), b"first").expect("the disk works");
    // redb panics in the middle of its work, as over bytes that it did not write.
    gate.is_broken.store(true, Ordering::SeqCst);
    let refused = engine.apply(&Batch::default(), b"second");
    assert!(matches!(refused, Err(StoreError::Damaged(_))), "{refused:?}");
    drop(engine);
}
