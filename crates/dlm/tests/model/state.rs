//! State: what has happened in a cluster so far, for the model checker.

use std::hash::{BuildHasher, Hash, Hasher};

/// A list of events, and what may follow. Two lists after which everything is the same are one state.
#[derive(Clone, Debug)]
pub(crate) struct State<Event> {
    pub(crate) happened: Vec<Event>,
    events: Vec<Event>,
    pub(crate) broken: Option<String>,
    /// Of all that decides what can happen from here on.
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

    /// What may follow: nothing once something is broken.
    pub(crate) fn actions(&self) -> &[Event] {
        if self.broken.is_none() { &self.events } else { &[] }
    }

    /// What has happened, and then `event`.
    pub(crate) fn and(&self, event: Event) -> Vec<Event> {
        self.happened.iter().copied().chain([event]).collect()
    }
}
