//! The published shapes appear: how the textbook locks behave as CPUs are added. Ratios of counts at fixed
//! seeds.

use crate::locks::{Lock, Mcs, Tas, Ticket, Ttas, contend};
use sluice_machine::Machine;

/// Operations per second with short critical sections, on a machine of that name.
fn ops_per_s<L: Lock>(machine: &str, cpus: usize, until: u64) -> f64 {
    let machine = Machine::named(machine).seed(7);
    contend::<L>(&machine, cpus, until, 100, 100).ops_per_s()
}

/// Shows the table that the assertions below are about (`--nocapture`).
fn row(machine: &str, lock: &str, rates: &[(usize, f64)]) {
    let rates: Vec<String> = rates.iter().map(|(cpus, rate)| format!("{cpus}: {:.2}M", rate / 1e6)).collect();
    println!("simulated {machine} {lock:<7} {}", rates.join("  "));
}

fn curve<L: Lock>(machine: &str, name: &str, until: u64, cpus: &[usize]) -> Vec<f64> {
    let rates: Vec<f64> = cpus.iter().map(|&cpus| ops_per_s::<L>(machine, cpus, until)).collect();
    row(machine, name, &cpus.iter().copied().zip(rates.iter().copied()).collect::<Vec<_>>());
    rates
}

#[test]
fn test_and_set_collapses_ticket_decays_and_mcs_stays_flat() {
    let cpus = [1, 2, 4, 8, 16, 32];
    let tas = curve::<Tas>("opteron-32", "tas", 1_000_000, &cpus);
    let ticket = curve::<Ticket>("opteron-32", "ticket", 1_000_000, &cpus);
    let mcs = curve::<Mcs>("opteron-32", "mcs", 1_000_000, &cpus);
    let kept = |curve: &[f64]| curve[5] / curve[2];
    assert!(kept(&tas) < 0.15, "test-and-set keeps {:.2} from 4 to 32 CPUs", kept(&tas));
    assert!((0.15..0.40).contains(&kept(&ticket)), "ticket keeps {:.2}", kept(&ticket));
    assert!(kept(&mcs) > 0.60, "MCS keeps {:.2}", kept(&mcs));
    // From 16 CPUs on (all handovers cross nodes) the queue does not care how many wait.
    assert!(mcs[5] / mcs[4] > 0.85, "MCS keeps {:.2} from 16 to 32", mcs[5] / mcs[4]);
    assert!(ticket[5] / ticket[4] < 0.75, "ticket keeps {:.2} from 16 to 32", ticket[5] / ticket[4]);
}

#[test]
fn alone_the_simple_locks_are_the_fastest() {
    let alone =
        [ops_per_s::<Tas>, ops_per_s::<Ticket>, ops_per_s::<Mcs>].map(|of| of("opteron-32", 1, 1_000_000));
    assert!(alone[0] >= alone[1] && alone[1] > alone[2], "{alone:?}");
}

#[test]
fn without_preemption_a_guest_is_a_small_machine() {
    let mcs = ops_per_s::<Mcs>("vm-16", 12, 10_000_000);
    let ttas = ops_per_s::<Ttas>("vm-16", 12, 10_000_000);
    assert!(mcs > ttas, "12 virtual CPUs have 12 physical ones: MCS {mcs:.0}, back-off {ttas:.0}");
}

#[test]
fn preemption_ruins_queues_and_bare_test_and_set_loses_to_back_off() {
    let at_16 = [ops_per_s::<Tas>, ops_per_s::<Ttas>, ops_per_s::<Ticket>, ops_per_s::<Mcs>];
    let [tas, ttas, ticket, mcs] = at_16.map(|of| of("vm-16", 16, 40_000_000));
    println!("simulated vm-16, 16 CPUs: tas {tas:.0} ttas {ttas:.0} ticket {ticket:.0} mcs {mcs:.0}");
    assert!(ticket < ttas * 0.1 && mcs < ttas * 0.1, "ticket {ticket:.0}, MCS {mcs:.0}, back-off {ttas:.0}");
    assert!(tas < ttas * 0.4, "test-and-set {tas:.0}, back-off {ttas:.0}");
}
