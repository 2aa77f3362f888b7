//! Seeds: two or three whole nodes with kernels that are played, calls and faults by a seed, and a search for an order that explains
//! what every call answered.
//!
//! Real are: nodes with all their threads, TLS between them, guests and relays, the file system, its store in an object store in
//! memory. Played are: the kernels and their programs, the ways between nodes, to the membership and to the objects.
//!
//! # Not replayed exactly
//! Nodes have threads and leases by the machine's clock. A seed says which calls are made and which faults come, one step after
//! the other, and each step waits for the answers while nothing is broken. The order of threads at the same moment, and the place
//! of a fault in a call, differ from run to run. So a seed that failed is a place to begin, and the history that is printed is
//! the evidence.
//!
//! A few run with the tests. `SLUICE_CLUSTER_SEEDS=10000` runs so many (`make cluster-sim`), `SLUICE_CLUSTER_SEEDS=300..600` those, `SLUICE_CLUSTER_SEED=7`
//! one, `SLUICE_CLUSTER_WORLDS=8` so many at a time.

mod kernel;
mod members;
mod program;
mod world;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use world::World;

/// Seeds beyond the usual ones that found something once.
const REGRESSIONS: &[u64] = &[14, 19, 57, 593];
/// Steps of a seed.
const STEPS: u64 = 40;

/// Planted faults, to see that they are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// A kernel that keeps attributes and pages that it was told to drop.
    StaleAttributes,
    /// A kernel that keeps names.
    StaleNames,
    /// Nodes that take their lease for prolonged when they do not reach the membership.
    LateAnswers,
    /// An owner that forgets what was executed.
    ExecutedTwice,
    /// An owner that treats a mount as valid after it was given up.
    LocksGoOn,
}

/// Runs a seed. An error says what was broken.
fn run(seed: u64, mutant: Option<Mutant>) -> Result<BTreeMap<&'static str, u64>, String> {
    let (nodes, failing) = (2 + seed as usize % 2, [0, 0, 10, 40][seed as usize / 2 % 4]);
    let mut world = World::new(seed, nodes, failing, mutant);
    (0..STEPS).for_each(|step| world.step(step));
    let (history, faults) = world.finish()?;
    crate::history::order::check(&history).map(|()| faults)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs `work` for each seed, several at a time, until one says that it is enough.
fn each(seeds: impl Iterator<Item = u64> + Send, work: impl Fn(u64) -> bool + Sync) {
    let seeds = Mutex::new(seeds);
    std::thread::scope(|scope| {
        for _ in 0..number("SLUICE_CLUSTER_WORLDS", 6) {
            scope.spawn(|| {
                while let Some(seed) = { seeds.lock().expect("no panic").next() } {
                    if work(seed) {
                        return;
                    }
                }
            });
        }
    });
}

/// The seeds that somebody asked for, or a few.
fn wanted() -> Vec<u64> {
    const FEW: u64 = 10;
    if let Ok(seed) = std::env::var("SLUICE_CLUSTER_SEED") {
        return vec![seed.parse().expect("a number")];
    }
    let text = std::env::var("SLUICE_CLUSTER_SEEDS").unwrap_or_default();
    match text.split_once("..") {
        Some((from, to)) => (from.parse().expect("a number")..to.parse().expect("a number")).collect(),
        None => REGRESSIONS.iter().copied().chain(0..number("SLUICE_CLUSTER_SEEDS", FEW)).collect(),
    }
}

#[test]
fn answers_have_an_order_and_nothing_durable_is_lost_whatever_fails() {
    let seeds = wanted();
    let (all, failed) = (Mutex::new(BTreeMap::<&str, u64>::new()), AtomicU64::new(0));
    each(seeds.into_iter(), |seed| {
        match run(seed, None) {
            Ok(faults) => {
                let mut all = all.lock().expect("no panic");
                faults.into_iter().for_each(|(name, count)| *all.entry(name).or_default() += count);
            }
            Err(what) => {
                eprintln!("seed {seed}: {what}");
                failed.fetch_add(1, Ordering::SeqCst);
            }
        }
        false
    });
    println!("{:?}", all.lock().expect("no panic"));
    assert_eq!(failed.load(Ordering::SeqCst), 0, "seeds failed: see above");
}

#[test]
fn planted_faults_are_found() {
    for mutant in [
        Mutant::StaleAttributes,
        Mutant::StaleNames,
        Mutant::LateAnswers,
        Mutant::ExecutedTwice,
        Mutant::LocksGoOn,
    ] {
        let found = Mutex::new(None);
        each(0..800, |seed| {
            if found.lock().expect("no panic").is_none()
                && let Err(what) = run(seed, Some(mutant))
            {
                *found.lock().expect("no panic") = Some((seed, what));
            }
            found.lock().expect("no panic").is_some()
        });
        let found = found.into_inner().expect("no panic");
        let (seed, what) = found.unwrap_or_else(|| panic!("{mutant:?} was not found"));
        println!("{mutant:?}: seed {seed}: {}", what.lines().next().unwrap_or_default());
    }
}

#[test]
fn a_program_whose_lock_another_node_had_meanwhile_is_told_by_the_next_call_through_that_descriptor() {
    let mut world = World::new(0, 2, 0, None);
    let owner = world.owner();
    let mut random = sluice_sync::random::Random::new(1);
    // The victim is a guest whose owner goes on, then an owner.
    for victim in [1 - owner, owner] {
        assert_eq!(
            world.rob(&mut random, victim, true),
            Some(Some(Err(crate::history::model::EIO))),
            "node {victim}"
        );
    }
    let (history, _) = world.finish().expect("nothing was broken");
    crate::history::order::check(&history).expect("an order");
}

#[test]
fn programs_of_all_nodes_that_write_one_page_wait_for_each_other_and_not_for_ever() {
    for nodes in [2, 3] {
        let world = World::new(0, nodes, 0, None);
        assert!(world.write_same_pages(8, 16, 60), "{nodes} nodes: writes are never answered");
    }
}
