//! Two callers of sync while something below a push fails: whatever the schedule, a sync that succeeds has made its change durable,
//! and a store that has failed says yes to nobody.

use sluice_machine::Machine;
use sluice_store_sim::disk::Disk;
use sluice_store_sim::disk::crash::CrashDisk;
use sluice_store_sim::disk::fault::FaultDisk;
use sluice_store_sim::engine::{Engine, MemoryEngine, Visit};
use sluice_store_sim::{Added, Batch, Data, Options, Source, Store, StoreError};
use sluice_sync::Arc;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

#[global_allocator]
static HEAP: sluice_machine::Heap = sluice_machine::Heap;

/// Changes that each caller makes and synchronises.
const CHANGES: u64 = 3;
/// The error number of what fails.
const EIO: i32 = 5;

/// Below which part of a push the fault lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// The data that records name.
    Data,
    /// The tree.
    Tree,
    /// The records that the source adds.
    Source,
}

/// Steps of one kind, of which one fails, and all after it where the fault lasts.
struct Steps {
    done: AtomicU64,
    fails_at: Option<u64>,
    lasts: bool,
}

impl Steps {
    fn new(fails_at: Option<u64>, lasts: bool) -> std::sync::Arc<Steps> {
        std::sync::Arc::new(Steps { done: AtomicU64::new(0), fails_at, lasts })
    }

    fn fails(&self) -> bool {
        let step = self.done.fetch_add(1, Ordering::Relaxed);
        self.fails_at.is_some_and(|at| step == at || step > at && self.lasts)
    }
}

fn broken() -> StoreError {
    StoreError::Io("do what was planned", std::io::Error::from_raw_os_error(EIO))
}

/// A tree whose batches fail as planned.
struct Tree(std::sync::Arc<MemoryEngine>, std::sync::Arc<Steps>);

impl Engine for Tree {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError> {
        self.0.scan(from, to, visit)
    }

    fn position(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.position()
    }

    fn apply(&self, batch: &Batch, position: &[u8]) -> Result<(), StoreError> {
        if self.1.fails() { Err(broken()) } else { self.0.apply(batch, position) }
    }
}

/// A source that fails as planned, behind the cut.
struct Adds(std::sync::Arc<Steps>);

impl Source for Adds {
    fn collect(&self, _: &mut Added) {}

    fn write(&self, _: &Data<'_>, to: &mut Added) {
        if self.0.fails() {
            to.fail(broken());
        }
    }
}

/// Two callers, of which the step `at` of `place` fails: whether anything failed.
fn run(place: Where, at: u64, lasts: bool, seed: u64) -> bool {
    let at_place = |one: Where| if one == place { Some(at) } else { None };
    let machine = Machine::named("uma-2").seed(seed);
    let tree = std::sync::Arc::new(MemoryEngine::new());
    let store = machine.prepare(2, || {
        let below: Arc<dyn Disk> = Arc::from(Box::new(CrashDisk::new()) as Box<dyn Disk>);
        let fault = FaultDisk::new(below, at_place(Where::Data).unwrap_or(u64::MAX), lasts, EIO);
        let data: Arc<dyn Disk> = Arc::from(Box::new(fault) as Box<dyn Disk>);
        let engine = Tree(tree.clone(), Steps::new(at_place(Where::Tree), lasts));
        let options = Options::default().background(false);
        let store = Store::over(Box::new(engine), Some(data), options).expect("an empty store");
        store.set_source(Box::new(Adds(Steps::new(at_place(Where::Source), lasts))));
        store
    });
    let acknowledged = Rc::new(RefCell::new(BTreeSet::new()));
    machine.run(2, |cpu| {
        for change in 0..CHANGES {
            let key = [cpu.id() as u8, change as u8];
            let had_failed = store.failure().is_some();
            let changed = store.write_extent(&[1; 4096]).and_then(|extent| {
                let mut transaction = store.begin(256)?;
                transaction.put(&key, 1, b"value");
                transaction.name_extent(&extent);
                Ok(())
            });
            let synced = store.sync();
            assert!(
                !(had_failed && synced.is_ok()),
                "{place:?} {at}, seed {seed}: yes from a store that failed"
            );
            if changed.is_ok() && synced.is_ok() {
                acknowledged.borrow_mut().insert(key);
            }
        }
    });
    let failed = machine.prepare(2, || {
        // The planned step may come only now.
        let (synced, failed) = (store.sync(), store.failure().is_some());
        assert_eq!(synced.is_err(), failed, "{place:?} {at}, seed {seed}: afterwards");
        let closed = store.close();
        assert!(!(failed && closed.is_ok()), "{place:?} {at}, seed {seed}: its end");
        for key in &*acknowledged.borrow() {
            let found = tree.get(key).expect("memory");
            assert!(found.is_some(), "{place:?} {at}, seed {seed}: {key:?} was acknowledged and is lost");
        }
        failed
    });
    machine.prepare(2, || drop(store));
    failed
}

#[test]
fn a_sync_says_yes_to_nothing_that_a_failed_push_took() {
    let mut failures = 0;
    for place in [Where::Data, Where::Tree, Where::Source] {
        for at in 0..6 {
            for seed in 0..8 {
                failures += u64::from(run(place, at, seed % 2 == 0, seed));
            }
        }
    }
    assert!(failures > 60, "{failures} runs failed");
}
