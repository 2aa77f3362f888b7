//! Deadlocks of a few nodes whose messages arrive at once: which are found, which wait is told, and what that costs in messages.

use crate::support::nodes::{Cluster, MS, key, options};
use sluice_dlm::{Held, LockError, LockParty, Mode, Outcome, Submitted, Ticket, Want};
use sluice_membership::NodeId;

/// Parties on nodes.
struct Parties {
    cluster: Cluster,
    /// The node of each, and its name there.
    all: Vec<(usize, LockParty)>,
}

impl Parties {
    fn on(nodes: &[usize]) -> Parties {
        let cluster = Cluster::new(nodes.iter().max().map_or(1, |last| last + 1), &options());
        let all = nodes.iter().map(|&node| (node, cluster.nodes[node].party())).collect();
        Parties { cluster, all }
    }

    /// A party has a lock that nobody has.
    fn has(&self, party: usize, name: &str, mode: Mode) -> Held {
        let (node, of) = self.all[party];
        self.cluster.lock(node, &key(name), Want::new(mode).of(of))
    }

    fn waits(&self, party: usize, name: &str, mode: Mode) -> Ticket {
        let (node, of) = self.all[party];
        let ticket = self.cluster.ask(node, &key(name), &Want::new(mode).of(of));
        self.cluster.deliver();
        ticket
    }

    fn converts(&self, party: usize, held: Held, mode: Mode) -> Ticket {
        let (node, of) = self.all[party];
        match self.cluster.nodes[node].convert(self.cluster.now, held, &Want::new(mode).of(of)) {
            Ok(Submitted::Waiting(ticket)) => {
                self.cluster.deliver();
                ticket
            }
            other => panic!("{other:?}"),
        }
    }

    /// All that wait have waited for some time.
    fn pass(&mut self) {
        for _ in 0..8 {
            self.cluster.pass(10 * MS);
            self.cluster.deliver();
        }
    }

    fn deadlocks(&self) -> u64 {
        self.cluster.nodes.iter().map(|node| node.statistics().deadlocks.get()).sum()
    }

    fn probes(&self) -> u64 {
        self.cluster.nodes.iter().map(|node| node.statistics().probes.get()).sum()
    }

    fn gives_up(&self, party: usize, ticket: Ticket) -> Outcome {
        let (outcome, held) = self.cluster.nodes[self.all[party].0].finish(self.cluster.now, ticket);
        assert!(held.is_none());
        outcome
    }

    fn unlocks(&self, party: usize, held: Held) {
        self.cluster.unlock(self.all[party].0, held);
        self.cluster.deliver();
    }
}

const TOLD: Option<Outcome> = Some(Err(LockError::Deadlock));

/// Each party has a lock and wants that of the next one. Which of them was told?
fn told_in_circle(nodes: &[usize]) -> usize {
    let mut parties = Parties::on(nodes);
    let count = nodes.len();
    let held: Vec<_> = (0..count).map(|n| parties.has(n, &format!("{n}"), Mode::Ex)).collect();
    let waits = (0..count).map(|n| parties.waits(n, &format!("{}", (n + 1) % count), Mode::Ex));
    let mut waits: Vec<_> = waits.collect();
    assert_eq!(parties.deadlocks(), 0);
    parties.pass();
    let told = waits.iter().position(|wait| wait.outcome() == TOLD).expect("one is told");
    assert_eq!(parties.deadlocks(), 1, "{waits:?}");
    assert_eq!(waits.iter().filter(|wait| wait.outcome().is_none()).count(), count - 1);
    // It unlocks, and then all others come through one after the other.
    let mut at = told;
    let _ = parties.gives_up(told, waits.remove(told));
    let mut waits: Vec<_> = waits.into_iter().map(Some).collect();
    waits.insert(told, None);
    let mut held: Vec<_> = held.into_iter().map(Some).collect();
    for _ in 1..count {
        parties.unlocks(at, held[at].take().expect("held"));
        parties.pass();
        at = (at + count - 1) % count;
        let got = parties.cluster.end(parties.all[at].0, waits[at].take().expect("it waits"));
        parties.unlocks(at, got.expect("the next one was told"));
    }
    assert_eq!(parties.deadlocks(), 1);
    told
}

#[test]
fn one_of_a_circle_is_told_whatever_its_length_and_wherever_it_goes() {
    for nodes in [&[1, 2][..], &[0, 1], &[1, 1], &[0, 0, 0], &[1, 2, 3], &[3, 1, 0, 2], &[1, 2, 1, 2, 1, 2]] {
        let told = told_in_circle(nodes);
        assert!(told < nodes.len());
    }
}

#[test]
fn a_party_that_waits_for_itself_is_told() {
    for node in [0, 1] {
        let mut parties = Parties::on(&[node]);
        let held = parties.has(0, "a", Mode::Pr);
        let wait = parties.waits(0, "a", Mode::Ex);
        parties.pass();
        assert_eq!(wait.outcome(), TOLD);
        let _ = parties.gives_up(0, wait);
        parties.unlocks(0, held);
    }
}

#[test]
fn a_wait_that_is_short_costs_no_probe_and_one_that_lasts_a_few() {
    let mut parties = Parties::on(&[1, 2]);
    let held = parties.has(0, "a", Mode::Ex);
    let wait = parties.waits(1, "a", Mode::Ex);
    parties.cluster.pass(10 * MS);
    parties.unlocks(0, held);
    parties.pass();
    assert_eq!(wait.outcome(), Some(Ok(())));
    assert_eq!(parties.probes(), 0);
    let held = parties.cluster.end(2, wait).expect("granted");
    let wait = parties.waits(0, "a", Mode::Ex);
    parties.pass();
    // After 20, 40 and 80 ms: to the master, and from there to the holder, of whom nothing is known that it waits for.
    assert_eq!(parties.probes(), 6);
    // A wait that did not ask costs none; the other one looks again after 160 ms.
    let other = parties.cluster.ask(0, &key("a"), &Want::new(Mode::Ex));
    parties.pass();
    assert_eq!(parties.probes(), 8);
    assert_eq!((wait.outcome(), other.outcome()), (None, None));
    let _ = parties.cluster.nodes[0].finish(parties.cluster.now, other);
    let _ = parties.gives_up(0, wait);
    parties.unlocks(1, held);
}

#[test]
fn nobody_is_told_when_a_wait_of_the_circle_does_not_ask_or_has_been_withdrawn() {
    let mut parties = Parties::on(&[1, 2]);
    let (a, b) = (parties.has(0, "a", Mode::Ex), parties.has(1, "b", Mode::Ex));
    let first = parties.waits(0, "b", Mode::Ex);
    let silent = parties.cluster.ask(2, &key("a"), &Want::new(Mode::Ex));
    parties.cluster.deliver();
    parties.pass();
    assert_eq!((first.outcome(), silent.outcome()), (None, None));
    let _ = parties.cluster.nodes[2].finish(parties.cluster.now, silent);
    // It asks now, but the other one gives up before a probe has come to it.
    let second = parties.waits(1, "a", Mode::Ex);
    let _ = parties.gives_up(0, first);
    parties.pass();
    assert_eq!(second.outcome(), None);
    assert_eq!(parties.deadlocks(), 0);
    parties.unlocks(0, a);
    parties.pass();
    parties.unlocks(1, b);
    let held = parties.cluster.end(2, second).expect("free");
    parties.unlocks(1, held);
}

#[test]
fn a_circle_that_is_gone_when_the_probe_comes_again_counts_for_nothing() {
    let mut parties = Parties::on(&[1, 2]);
    let _held = (parties.has(0, "a", Mode::Ex), parties.has(1, "b", Mode::Ex));
    let first = parties.waits(0, "b", Mode::Ex);
    let second = parties.waits(1, "a", Mode::Ex);
    // The search of the younger one comes as far as the wait of the older one, which ends meanwhile.
    parties.cluster.now += 20 * MS;
    parties.cluster.nodes[2].tick(parties.cluster.now);
    parties.cluster.nodes[1].tick(parties.cluster.now);
    let ids: Vec<_> = parties.cluster.nodes.iter().map(|node| node.id()).collect();
    let mut hops = 0;
    let mut first = Some(first);
    loop {
        let sent = [1, 0, 2].into_iter().find_map(|from: usize| {
            let (to, message) = parties.cluster.nodes[from].effects().0.lock().unwrap().pop_front()?;
            Some((ids[from], to, message))
        });
        let Some((from, to, message)): Option<(NodeId, NodeId, _)> = sent else { break };
        hops += 1;
        if hops == 5 {
            // In the middle of the second lap of one of them.
            first.take().map(|ticket| parties.gives_up(0, ticket));
        }
        let to = ids.iter().position(|id| *id == to).expect("a member");
        parties.cluster.nodes[to].message(parties.cluster.now, from, message);
    }
    assert!(hops > 5, "{hops}");
    parties.pass();
    assert_eq!((second.outcome(), parties.deadlocks()), (None, 0));
    let _ = parties.gives_up(1, second);
}

#[test]
fn what_waits_behind_another_request_waits_for_what_that_waits_for() {
    // Two read; a writer of no party waits for them; a third reader waits behind it, though it is in nobody's way.
    let mut parties = Parties::on(&[1, 2, 3]);
    let (a, b) = (parties.has(0, "a", Mode::Pr), parties.has(1, "b", Mode::Ex));
    let writer = parties.cluster.ask(3, &key("a"), &Want::new(Mode::Ex));
    parties.cluster.deliver();
    let reader = parties.waits(1, "a", Mode::Pr);
    let other = parties.waits(0, "b", Mode::Ex);
    parties.pass();
    assert_eq!(parties.deadlocks(), 1);
    let told = if reader.outcome() == TOLD { (1, reader, other) } else { (0, other, reader) };
    assert_eq!(told.1.outcome(), TOLD);
    let _ = parties.gives_up(told.0, told.1);
    let _ = parties.gives_up(1 - told.0, told.2);
    let _ = parties.cluster.nodes[3].finish(parties.cluster.now, writer);
    parties.unlocks(0, a);
    parties.unlocks(1, b);
}

#[test]
fn a_local_reader_that_waits_until_its_node_has_given_a_lock_back_is_told() {
    let mut parties = Parties::on(&[1, 1]);
    let (a, b) = (parties.has(0, "a", Mode::Pr), parties.has(1, "b", Mode::Ex));
    let writer = parties.cluster.ask(0, &key("a"), &Want::new(Mode::Ex));
    parties.cluster.deliver();
    parties.cluster.pass(10 * MS);
    let reader = parties.waits(1, "a", Mode::Pr);
    let other = parties.waits(0, "b", Mode::Ex);
    parties.pass();
    assert_eq!(parties.deadlocks(), 1, "{reader:?} {other:?}");
    let _ = parties.gives_up(1, reader);
    let _ = parties.gives_up(0, other);
    let _ = parties.cluster.nodes[0].finish(parties.cluster.now, writer);
    parties.unlocks(0, a);
    parties.unlocks(1, b);
}

#[test]
fn a_conversion_in_a_circle_is_told_and_keeps_its_lock() {
    let mut parties = Parties::on(&[1, 2]);
    let (a, also_a) = (parties.has(0, "a", Mode::Pr), parties.has(1, "a", Mode::Pr));
    let b = parties.has(0, "b", Mode::Ex);
    let wait = parties.waits(1, "b", Mode::Ex);
    let conversion = parties.converts(0, a, Mode::Ex);
    parties.pass();
    assert_eq!(parties.deadlocks(), 1);
    let (of_conversion, a) = parties.cluster.nodes[1].finish(parties.cluster.now, conversion);
    let a = a.expect("it is held all the time");
    let is_told = of_conversion == Err(LockError::Deadlock);
    assert!(is_told != (wait.outcome() == TOLD), "one of the two");
    assert_eq!(a.mode(), Mode::Pr);
    let _ = parties.gives_up(1, wait);
    parties.unlocks(0, a);
    parties.unlocks(0, b);
    parties.unlocks(1, also_a);
}
