//! Model: all orders of events in small clusters, by the model checker stateright. The nodes are the real ones.
//!
//! # Theory
//! A state is the list of what has happened. To look at one, the cluster is made anew and all of it happens again; two lists
//! after which nodes, messages under way, membership, store and programs are the same are one state. So what the simulation
//! leaves to chance is tried whole here, in small: two or three nodes, one resource, programs of a few calls, one death.
//!
//! Time stands still. There is no minimum hold and no repetition; the end of a lease is an event, at the node before it is one at
//! the membership.
//!
//! `SLUICE_DLM_STATES=1000000` raises the bound on the states of each cluster (`make dlm-model`).

mod circles;
mod cluster;
mod state;

use crate::support::MUTANTS;
use cluster::Call::{self, Convert, Lock, Try, Unlock, Write};
use cluster::{Cluster, Event, Scenario};
use sluice_dlm::Mode::{Cw, Ex, Nl, Pr, Pw};
use state::{Replayed, State, check, nothing_breaks};

/// How many states of each cluster are looked at, unless the environment says otherwise.
const STATES: usize = 10_000;

impl Replayed for Scenario {
    type Event = Event;
    const HOLDS: &'static str =
        "locks exclude each other, tokens grow, no request is lost, no lock is leaked";

    fn name(&self) -> &'static str {
        self.name
    }

    fn after(&self, happened: Vec<Event>) -> State<Event> {
        let mut cluster = Cluster::new(self);
        happened.iter().for_each(|event| cluster.happen(*event));
        let events = cluster.events();
        let need_not =
            |event: &Event| matches!(event, Event::Cancel(_) | Event::Die(_) | Event::Lapse(_) | Event::Join);
        let mut broken = cluster.broken.clone();
        if events.iter().all(need_not) {
            broken = broken.and_then(|()| cluster.at_rest());
        }
        State::new(happened, events, broken, cluster.text())
    }
}

fn scenario(name: &'static str, nodes: usize, programs: &[(usize, &[Call])]) -> Scenario {
    let programs = programs.iter().map(|(node, calls)| (*node, calls.to_vec())).collect();
    Scenario { name, nodes, joins_late: false, programs, may_cancel: false, deaths: 0, mutant: None }
}

/// The clusters that are looked at.
fn scenarios() -> Vec<Scenario> {
    let exclusive: &[Call] = &[Lock(Ex), Write, Unlock];
    vec![
        scenario("two writers", 2, &[(0, &[Lock(Ex), Write, Unlock, Lock(Ex), Unlock]), (1, exclusive)]),
        scenario("writers that share a node", 2, &[(0, exclusive), (0, exclusive), (1, exclusive)]),
        scenario(
            "readers and a writer",
            3,
            &[(0, &[Lock(Pr), Unlock]), (1, &[Lock(Pr), Unlock]), (2, exclusive)],
        ),
        scenario(
            "conversions up and down",
            2,
            &[
                (0, &[Lock(Pr), Convert(Ex), Write, Convert(Pr), Unlock]),
                (1, &[Lock(Pr), Convert(Ex), Unlock]),
            ],
        ),
        scenario(
            "the weaker modes",
            2,
            &[(0, &[Lock(Nl), Convert(Cw), Unlock]), (1, &[Lock(Cw), Convert(Pw), Write, Unlock])],
        ),
        Scenario {
            may_cancel: true,
            ..scenario(
                "requests that are withdrawn",
                3,
                &[(0, exclusive), (1, exclusive), (2, &[Try(Ex), Unlock])],
            )
        },
        Scenario {
            deaths: 1,
            ..scenario(
                "a death among writers",
                3,
                &[(0, exclusive), (1, &[Lock(Ex), Unlock, Lock(Ex), Unlock])],
            )
        },
        Scenario {
            joins_late: true,
            ..scenario("a master that changes", 3, &[(1, &[Lock(Ex), Unlock]), (2, &[Lock(Ex), Unlock])])
        },
        Scenario {
            joins_late: true,
            ..scenario("a member that comes late", 3, &[(0, exclusive), (1, exclusive), (2, exclusive)])
        },
        Scenario {
            joins_late: true,
            deaths: 1,
            may_cancel: true,
            ..scenario(
                "everything at once",
                3,
                &[(0, exclusive), (1, &[Lock(Pr), Convert(Ex), Unlock]), (2, exclusive)],
            )
        },
    ]
}

fn bound() -> usize {
    std::env::var("SLUICE_DLM_STATES").ok().and_then(|text| text.parse().ok()).unwrap_or(STATES)
}

#[test]
fn no_order_of_events_breaks_a_lock() {
    for scenario in scenarios() {
        nothing_breaks(&scenario, bound());
    }
}

#[test]
fn planted_faults_are_found() {
    for mutant in MUTANTS {
        let found = scenarios()
            .into_iter()
            .find_map(|scenario| check(&Scenario { mutant: Some(mutant), ..scenario }, 4 * STATES).err());
        println!("{mutant:?}: {}", found.unwrap_or_else(|| panic!("{mutant:?} was not found")));
    }
}
