//! State: what has happened in a cluster so far, for the model checker, which makes each state anew from that.

use stateright::{Checker, HasDiscoveries, Model, Property};
use std::fmt::Debug;
use std::hash::{BuildHasher, Hash, Hasher};

/// A cluster of which all orders of events are looked at.
pub(crate) trait Replayed: Clone + Send + Sync + 'static {
    type Event: Copy + Debug + PartialEq + Send + Sync + 'static;
    /// The property that holds in each state.
    const HOLDS: &'static str;

    fn name(&self) -> &'static str;

    /// The state after these events.
    fn after(&self, happened: Vec<Self::Event>) -> State<Self::Event>;
}

/// The model of a cluster.
struct Replay<R>(R);

/// A list of events, and what may follow. Two lists after which everything is the same are one state.
#[derive(Clone, Debug)]
pub(crate) struct State<Event> {
    happened: Vec<Event>,
    events: Vec<Event>,
    broken: Option<String>,
    /// The hash of everything that decides which events can follow.
    hash: u64,
}

impl<Event> Hash for State<Event> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl<Event> PartialEq for State<Event> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl<Event: Copy> State<Event> {
    /// After `happened`; `text` says all that decides what can happen, which is one of `events`.
    pub(crate) fn new(
        happened: Vec<Event>,
        events: Vec<Event>,
        broken: Result<(), String>,
        text: impl Hash,
    ) -> State<Event> {
        let hash = foldhash::fast::FixedState::default().hash_one(text);
        State { happened, events, broken: broken.err(), hash }
    }
}

impl<R: Replayed> Model for Replay<R> {
    type State = State<R::Event>;
    type Action = R::Event;

    fn init_states(&self) -> Vec<State<R::Event>> {
        vec![self.0.after(Vec::new())]
    }

    fn actions(&self, state: &State<R::Event>, actions: &mut Vec<R::Event>) {
        if state.broken.is_none() {
            actions.extend(&state.events);
        }
    }

    fn next_state(&self, state: &State<R::Event>, event: R::Event) -> Option<State<R::Event>> {
        Some(self.0.after(state.happened.iter().copied().chain([event]).collect()))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(R::HOLDS, |_, state: &State<R::Event>| state.broken.is_none())]
    }
}

/// Examines up to `states` states. Returns the broken property with the events that led to it; else how many states there were,
/// and whether these were all.
pub(crate) fn check<R: Replayed>(cluster: &R, states: usize) -> Result<(usize, bool), String> {
    let checker = Replay(cluster.clone()).checker();
    let checker = checker.target_state_count(states).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    match checker.discoveries().into_values().next() {
        Some(path) => {
            let State { happened, broken, .. } = path.last_state();
            let what = broken.as_deref().unwrap_or("");
            Err(format!("{}: {what} after {happened:?}", cluster.name()))
        }
        None => Ok((checker.unique_state_count(), checker.state_count() < states)),
    }
}

/// Fails if something is broken in one of the first `states` states, or nothing happened.
pub(crate) fn nothing_breaks<R: Replayed>(cluster: &R, states: usize) {
    let (states, is_all) = check(cluster, states).unwrap_or_else(|what| panic!("{what}"));
    let name = cluster.name();
    println!("{name}: {states} states, {}", if is_all { "all" } else { "the first" });
    assert!(states > 50, "{name}: nothing happened");
}
