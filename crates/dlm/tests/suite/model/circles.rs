//! Circles: parties that each hold a lock and wait for that of another one, in all orders of calls, messages and searches.
//!
//! A party is told of a deadlock only if it was in a circle of waits at some moment of its wait, and no circle stays.

use super::state::{Replayed, State, check, nothing_breaks};
use crate::support::wishes::{Wish, Wishes};
use sluice_dlm::{
    Held, Key, LockError, LockParty, Message, Mode, Mutant, Name, Node, Options, Submitted, Ticket, Want,
};
use sluice_membership::Registry;
use std::collections::{BTreeMap, VecDeque};

/// The length of a lease.
const TTL: u64 = u64::MAX / 2;
/// So often each node looks for deadlocks among the other events.
const SEARCHES: u32 = 1;
const NODES: usize = 3;

/// Three nodes, and parties of which each has locked one key and is about to lock another.
#[derive(Clone, Debug)]
pub(crate) struct Circles {
    pub(crate) name: &'static str,
    /// For each party: its node, the key that it holds, the key that it wants.
    pub(crate) parties: &'static [(usize, u8, u8)],
    /// The first that may give up.
    pub(crate) gives_up: Option<usize>,
    pub(crate) mutant: Option<Mutant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// A party asks for its second lock, or, when it has both, unlocks them.
    Call(usize),
    /// A party waits no longer, and unlocks what it has.
    GiveUp(usize),
    /// The first message from one node to another arrives.
    Arrive(usize, usize),
    /// Time has passed at a node, so that it looks for deadlocks.
    Search(usize),
}

struct Party {
    id: LockParty,
    held: Vec<Held>,
    wait: Option<Ticket>,
    has_asked: bool,
    was_in_circle: bool,
}

struct World<'c> {
    circles: &'c Circles,
    nodes: Vec<Node<Wishes>>,
    now: Vec<u64>,
    searches: Vec<u32>,
    parties: Vec<Party>,
    under_way: BTreeMap<(usize, usize), VecDeque<Message>>,
    broken: Result<(), String>,
}

fn key(name: u8) -> Key {
    Key::whole(Name::in_shard(0, &[name]).expect("short"))
}

impl<'c> World<'c> {
    fn new(circles: &'c Circles) -> World<'c> {
        let mut registry = Registry::new(1, TTL);
        let options = Options {
            shards: 1,
            hold: 0,
            retry: TTL,
            search: 1,
            memory: 64 << 10,
            mutant: circles.mutant,
            ..Options::default()
        };
        let nodes: Vec<_> =
            (0..NODES).map(|_| Node::new(registry.join(0, ""), options.clone(), Wishes::default())).collect();
        registry.claim(0, nodes[0].id(), 0, 0);
        nodes.iter().for_each(|node| {
            node.renewed(TTL);
            node.view(1, registry.view().clone());
        });
        let mut world = World {
            circles,
            nodes,
            now: vec![1; NODES],
            searches: vec![0; NODES],
            parties: Vec::new(),
            under_way: BTreeMap::new(),
            broken: Ok(()),
        };
        // The waits of the first node are the younger ones, and so the ones that are told.
        (0..8).for_each(|_| _ = world.nodes[0].party());
        world.deliver();
        for &(node, holds, _) in circles.parties {
            let id = world.nodes[node].party();
            let submitted = world.nodes[node].lock(1, &key(holds), &Want::new(Mode::Ex).of(id));
            let mut party =
                Party { id, held: Vec::new(), wait: None, has_asked: false, was_in_circle: false };
            match submitted {
                Ok(Submitted::Granted(held)) => party.held.push(held),
                Ok(Submitted::Waiting(ticket)) => party.wait = Some(ticket),
                Err(error) => world.broken = Err(error.to_string()),
            }
            world.parties.push(party);
            world.deliver();
        }
        world
    }

    /// Delivers messages until there are none.
    fn deliver(&mut self) {
        self.settle();
        while let Some((&(from, to), _)) = self.under_way.iter().find(|(_, messages)| !messages.is_empty()) {
            self.happen(Event::Arrive(from, to));
        }
    }

    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (number, party) in self.parties.iter().enumerate() {
            if party.wait.is_none() && !party.held.is_empty() {
                events.push(Event::Call(number));
            }
            if party.wait.is_some() && self.circles.gives_up == Some(number) {
                events.push(Event::GiveUp(number));
            }
        }
        let under_way = self.under_way.iter().filter(|(_, messages)| !messages.is_empty());
        events.extend(under_way.map(|(&(from, to), _)| Event::Arrive(from, to)));
        let waits = |node| {
            let mut all = self.circles.parties.iter().zip(&self.parties);
            all.any(|((at, ..), party)| *at == node && party.wait.is_some())
        };
        events.extend(
            (0..NODES).filter(|&node| self.searches[node] < SEARCHES && waits(node)).map(Event::Search),
        );
        events
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Call(number) if self.parties[number].has_asked => self.end(number),
            Event::Call(number) => {
                let (node, _, wants) = self.circles.parties[number];
                let party = &mut self.parties[number];
                party.has_asked = true;
                match self.nodes[node].lock(self.now[node], &key(wants), &Want::new(Mode::Ex).of(party.id)) {
                    Ok(Submitted::Granted(held)) => party.held.push(held),
                    Ok(Submitted::Waiting(ticket)) => party.wait = Some(ticket),
                    Err(error) => self.broken = Err(error.to_string()),
                }
            }
            Event::GiveUp(number) => self.end(number),
            Event::Arrive(from, to) => {
                let message = self.under_way.get_mut(&(from, to)).and_then(VecDeque::pop_front);
                if let Some(message) = message {
                    self.nodes[to].message(self.now[to], self.nodes[from].id(), message);
                }
            }
            Event::Search(node) => {
                self.searches[node] += 1;
                // A search is due again when the wait has doubled.
                self.now[node] = 2 * self.now[node] + 2;
                self.nodes[node].tick(self.now[node]);
            }
        }
        self.settle();
    }

    /// A party ends, with or without what it waits for.
    fn end(&mut self, number: usize) {
        let node = self.circles.parties[number].0;
        let party = &mut self.parties[number];
        let ticket = party.wait.take();
        let got = ticket.and_then(|ticket| self.nodes[node].finish(self.now[node], ticket).1);
        for held in party.held.drain(..).chain(got) {
            self.nodes[node].unlock(self.now[node], held);
        }
    }

    /// Messages are put on their way, and parties learn what has become of their requests.
    fn settle(&mut self) {
        loop {
            for from in 0..NODES {
                for wish in self.nodes[from].effects().take() {
                    if let Wish::Send(to, message) = wish {
                        let to = self.nodes.iter().position(|node| node.id() == to).expect("it is a member");
                        self.under_way.entry((from, to)).or_default().push_back(message);
                    }
                }
            }
            let is_decided = |party: &Party| party.wait.as_ref().and_then(Ticket::outcome);
            let decided =
                self.parties.iter().enumerate().find_map(|(n, party)| Some((n, is_decided(party)?)));
            let Some((number, outcome)) = decided else { break };
            match outcome {
                Ok(()) => {
                    let node = self.circles.parties[number].0;
                    let party = &mut self.parties[number];
                    let ticket = party.wait.take().expect("it is decided");
                    party.held.extend(self.nodes[node].finish(self.now[node], ticket).1);
                }
                Err(LockError::Deadlock) if !self.parties[number].was_in_circle => {
                    self.broken = Err(format!("party {number} was told, but was in no circle"));
                    self.end(number);
                }
                Err(LockError::Deadlock) => self.end(number),
                Err(error) => {
                    self.broken = Err(error.to_string());
                    self.end(number);
                }
            }
        }
        self.note_circles();
    }

    /// Notes which parties wait in a circle now.
    fn note_circles(&mut self) {
        let waits_for = |number: usize| {
            let wanted = key(self.circles.parties[number].2);
            let is_held = |party: &Party| party.held.iter().any(|held| *held.key() == wanted);
            self.parties[number].wait.as_ref().and_then(|_| self.parties.iter().position(is_held))
        };
        let comes_back = |number: usize| {
            let steps = std::iter::successors(waits_for(number), |next| waits_for(*next));
            steps.take(self.parties.len()).any(|next| next == number)
        };
        let in_circle: Vec<_> = (0..self.parties.len()).filter(|number| comes_back(*number)).collect();
        in_circle.into_iter().for_each(|number| self.parties[number].was_in_circle = true);
    }

    /// Nothing happens any more by itself: then searches find what circles there are, and nobody waits.
    fn at_rest(&mut self) -> Result<(), String> {
        for _ in 0..4 {
            for node in 0..NODES {
                self.happen(Event::Search(node));
                self.deliver();
            }
            while let Some(event) = self.events().into_iter().find(|event| matches!(event, Event::Call(_))) {
                self.happen(event);
                self.deliver();
            }
        }
        self.broken.clone()?;
        match self.parties.iter().position(|party| party.wait.is_some()) {
            Some(number) => Err(format!("party {number} waits for ever")),
            None => Ok(()),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{:?} {:?} {:?} ", self.now, self.searches, self.under_way);
        for node in &self.nodes {
            text += &node.state_text();
        }
        for party in &self.parties {
            let Party { held, wait, has_asked, was_in_circle, .. } = party;
            text += &format!(" {held:?} {wait:?} {has_asked} {was_in_circle}");
        }
        text
    }
}

impl Replayed for Circles {
    type Event = Event;
    const HOLDS: &'static str = "a party that is told was in a circle, and no circle stays";

    fn name(&self) -> &'static str {
        self.name
    }

    fn after(&self, happened: Vec<Event>) -> State<Event> {
        let mut world = World::new(self);
        happened.iter().for_each(|event| world.happen(*event));
        let events = world.events();
        let mut broken = world.broken.clone();
        if events.iter().all(|event| matches!(event, Event::Search(_) | Event::GiveUp(_))) {
            broken = broken.and_then(|()| world.at_rest());
        }
        State::new(happened, events, broken, world.text())
    }
}

/// The parties that are looked at: two, and three of which one gives up.
const CIRCLES: [Circles; 2] = [
    Circles {
        name: "two parties and two keys",
        parties: &[(0, b'a', b'b'), (1, b'b', b'a')],
        gives_up: Some(0),
        mutant: None,
    },
    Circles {
        name: "three parties, one of which gives up",
        parties: &[(0, b'a', b'b'), (1, b'b', b'c'), (2, b'c', b'a')],
        gives_up: Some(1),
        mutant: None,
    },
];

#[test]
fn no_order_of_events_tells_a_party_of_a_circle_that_is_none_or_leaves_one() {
    for circles in CIRCLES {
        nothing_breaks(&circles, super::bound());
    }
}

#[test]
fn a_deadlock_that_is_told_without_proof_is_found() {
    let unproved = |circles| Circles { mutant: Some(Mutant::UnprovedDeadlock), ..circles };
    let found = CIRCLES.into_iter().find_map(|circles| check(&unproved(circles), 100_000).err());
    println!("{}", found.expect("a party was told that was in no circle"));
}
