//! Simulation: whole nodes on a simulated network with every fault there is, by seeds. The same code as over TCP.
//!
//! `SLUICE_DLM_SEEDS=10000` runs more of them (`make dlm-sim`), `SLUICE_DLM_SEEDS=5000..10000` some, `SLUICE_DLM_SEED=7` one, and
//! with `SLUICE_DLM_LOG=1` says what happens in it.

mod client;
mod parties;
mod world;

use crate::support::MUTANTS;
use crate::support::check::leaked;
use sluice_dlm::Mutant;
use sluice_membership::NodeId;
use std::collections::BTreeMap;
use world::{MS, World};

/// Seeds beyond the usual ones that found something once.
const REGRESSIONS: &[u64] = &[164, 215, 252, 431, 745, 780, 1035, 1351, 4696, 7453, 8550, 8588, 8679];
const PARTY_REGRESSIONS: &[u64] = &[233, 351];
/// When faults end, and until when all must be well.
const CALM: u64 = 30_000 * MS;
const END: u64 = 60_000 * MS;

/// Runs a seed. An error says what was broken.
fn run(seed: u64, mutant: Option<Mutant>) -> Result<World, String> {
    run_world(World::new(seed, mutant, CALM, false))
}

/// The same, with parties that wait for each other.
fn run_parties(seed: u64, mutant: Option<Mutant>) -> Result<World, String> {
    run_world(World::new(seed, mutant, CALM, true))
}

fn run_world(mut world: World) -> Result<World, String> {
    world.run(END)?;
    let living: BTreeMap<NodeId, _> = world
        .machines
        .iter()
        .filter(|(_, machine)| !machine.is_down)
        .map(|(&id, machine)| (id, machine))
        .collect();
    for (id, machine) in &living {
        if machine.programs.iter().any(|program| !program.is_idle()) {
            let all: Vec<_> =
                living.iter().map(|(id, machine)| format!("{id}: {:?}", machine.programs)).collect();
            return Err(format!(
                "programs wait for ever, on node {id} and perhaps others:\n{}",
                all.join("\n")
            ));
        }
        for (number, client) in machine.clients.iter().enumerate() {
            if !client.is_idle() {
                let locks = machine.node.status().locks;
                let waited: Vec<_> = locks.iter().filter(|lock| !lock.waiters.is_empty()).collect();
                let resources = living.values().flat_map(|machine| machine.node.status().resources);
                let wanted: Vec<_> = resources.filter(|resource| !resource.waiters.is_empty()).collect();
                return Err(format!("{client:?}, number {number} of node {id}: {waited:?}, {wanted:?}"));
            }
        }
    }
    leaked(living.values().map(|machine| &*machine.node))?;
    Ok(world)
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |text: &str| text.parse::<u64>().ok();
    if let Some(seed) = std::env::var("SLUICE_DLM_SEED").ok().and_then(|seed| number(&seed)) {
        return seed..seed + 1;
    }
    let text = std::env::var("SLUICE_DLM_SEEDS").unwrap_or_default();
    let (first, end) = text.split_once("..").unwrap_or(("0", &text));
    number(first).unwrap_or(0)..number(end).unwrap_or(default)
}

#[test]
fn locks_exclude_each_other_and_no_request_is_lost_whatever_fails() {
    let (mut grants, mut writes, mut refused) = (0, 0, 0);
    let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
    let mut broken = Vec::new();
    for seed in REGRESSIONS.iter().copied().chain(seeds(150)) {
        match run(seed, None) {
            Ok(world) => {
                grants += world.truth.grants;
                writes += world.truth.writes;
                refused += world.truth.refused;
                world.faults.iter().for_each(|(name, count)| *faults.entry(name).or_default() += count);
            }
            Err(what) => broken.push(format!("seed {seed}: {what}")),
        }
    }
    assert!(broken.is_empty(), "{} seeds: {}", broken.len(), broken.join("\n\n"));
    println!("{grants} grants, {writes} writes, {refused} refused; {faults:?}");
}

#[test]
fn parties_that_wait_in_a_circle_are_told_and_nobody_else_is() {
    let (mut grants, mut told) = (0, 0);
    let mut broken = Vec::new();
    for seed in PARTY_REGRESSIONS.iter().copied().chain(seeds(40)) {
        match run_parties(seed, None) {
            Ok(world) => {
                grants += world.truth.grants;
                told += world.waits.told;
            }
            Err(what) => broken.push(format!("seed {seed}: {what}")),
        }
    }
    assert!(broken.is_empty(), "{} seeds: {}", broken.len(), broken.join("\n\n"));
    println!("{grants} grants, {told} told of a deadlock");
    assert!(told > 0, "nobody waited in a circle");
}

#[test]
fn a_deadlock_that_is_not_proved_is_found() {
    let found = (0..400).find_map(|seed| run_parties(seed, Some(Mutant::UnprovedDeadlock)).err());
    let found = found.expect("a party was told that was in no circle");
    assert!(found.contains("in no circle"), "{found}");
}

#[test]
fn planted_faults_are_found() {
    for mutant in MUTANTS {
        let found = (0..400).find_map(|seed| run(seed, Some(mutant)).err().map(|what| (seed, what)));
        let Some((seed, what)) = found else { panic!("{mutant:?} was not found") };
        println!("{mutant:?}: seed {seed}: {}", what.lines().next().unwrap_or_default());
    }
}
