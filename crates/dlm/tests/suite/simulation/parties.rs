//! Parties: programs that hold several locks at once and lock them in any order, so that they wait for each other; and the graph
//! of the parties that wait for each other, seen from outside of all nodes.

use super::world::{MS, World};
use crate::support::check::Truth;
use sluice_dlm::{Held, Key, LockError, LockParty, Mode, Name, Outcome, Submitted, Ticket, Want};
use sluice_membership::NodeId;
use sluice_sync::random::Random;
use std::collections::{BTreeMap, BTreeSet};

/// So many locks a program may hold at once.
const LOCKS_MAX: usize = 8;

/// A program: its node, and its number there.
type Id = (NodeId, usize);

#[derive(Debug, Default)]
pub(crate) struct Program {
    party: Option<LockParty>,
    /// The locks that it still has to take, the last one first.
    plan: Vec<(Key, Mode)>,
    held: Vec<Held>,
    wait: Option<Ticket>,
}

/// Which party waits for what, and has been in a circle meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    by_program: BTreeMap<Id, Waiting>,
    /// How many were told of a deadlock.
    pub(crate) told: u64,
}

#[derive(Debug)]
struct Waiting {
    key: Key,
    was_in_circle: bool,
}

impl Waits {
    /// Notes which of those that wait are in a circle now. A wait is for each other program with a lock of the same name: exactly
    /// these if all locks are exclusive. If some are shared it may be for fewer: which requests are before it is not seen from here.
    fn note(&mut self, truth: &Truth, is_down: impl Fn(NodeId) -> bool) {
        let waits: BTreeMap<_, _> = self.by_program.iter().filter(|((node, _), _)| !is_down(*node)).collect();
        let edges = |of: &Id| -> BTreeSet<Id> {
            let Some(wait) = waits.get(of) else { return BTreeSet::new() };
            let held = truth.held().filter(|(_, key, _)| key.name == wait.key.name);
            held.map(|((node, number), ..)| (node, number / LOCKS_MAX)).filter(|other| other != of).collect()
        };
        let graph: BTreeMap<Id, _> = waits.keys().map(|id| (**id, edges(id))).collect();
        let in_circle = graph.keys().filter(|id| {
            let mut seen = BTreeSet::new();
            let mut next: Vec<_> = graph[*id].iter().collect();
            while let Some(other) = next.pop() {
                if seen.insert(other) {
                    next.extend(graph.get(other).into_iter().flatten());
                }
            }
            seen.contains(*id)
        });
        let in_circle: Vec<_> = in_circle.copied().collect();
        for id in in_circle {
            self.by_program.get_mut(&id).expect("it waits").was_in_circle = true;
        }
    }
}

impl Program {
    pub(crate) fn is_idle(&self) -> bool {
        self.plan.is_empty() && self.held.is_empty() && self.wait.is_none()
    }

    /// Some of a few locks, in any order.
    fn plan(random: &mut Random, is_shared: bool) -> Vec<(Key, Mode)> {
        let mut names: Vec<u8> = (0..5).collect();
        (0..random.between(2, 3))
            .map(|_| {
                let name = names.swap_remove(random.below(names.len()));
                let name = Name::in_shard(u16::from(name % 4), &[b'a' + name]).expect("short");
                (Key::whole(name), if is_shared && random.chance(60) { Mode::Pr } else { Mode::Ex })
            })
            .collect()
    }
}

impl World {
    /// A program goes on.
    pub(crate) fn step_program(&mut self, id: NodeId, number: usize) -> Result<(), String> {
        let (now, is_calm) = (self.now, self.is_calm());
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        let (clock, node) = (machine.clock(now), machine.node.clone());
        let program = &mut machine.programs[number];
        if program.wait.is_some() {
            if !is_calm && self.random.chance(2) {
                self.end_wait(id, number)?;
            }
        } else if program.is_idle() {
            if !is_calm {
                program.party = Some(node.party());
                program.plan = Program::plan(&mut self.random, self.is_shared);
            }
        } else if let Some((key, mode)) = program.plan.pop() {
            let want = Want::new(mode).of(program.party.expect("it has begun"));
            let weak = program.held.iter().position(|held| held.mode() == Mode::Pr);
            let submitted = match weak.filter(|_| self.random.chance(20)) {
                Some(at) => {
                    let held = program.held.remove(at);
                    let key = held.key().clone();
                    let want = Want { mode: Mode::Ex, ..want };
                    node.convert(clock, held, &want)
                        .map_err(|(error, held)| (error, Some(held)))
                        .map(|s| (key, s))
                }
                None => node.lock(clock, &key, &want).map_err(|error| (error, None)).map(|s| (key, s)),
            };
            match submitted {
                Ok((_, Submitted::Granted(held))) => self.has(id, number, held)?,
                Ok((key, Submitted::Waiting(ticket))) => {
                    program.wait = Some(ticket);
                    self.waits.by_program.insert((id, number), Waiting { key, was_in_circle: false });
                    self.note_waits();
                }
                Err((_, held)) => {
                    program.held.extend(held);
                    self.unlock_all(id, number);
                }
            }
        } else if self.random.chance(70) {
            self.unlock_all(id, number);
        }
        let delay = self.random.below(8 * MS);
        self.client_later(id, number, delay + 1);
        Ok(())
    }

    /// Programs whose requests are decided learn it at once.
    pub(crate) fn tell_programs(&mut self, id: NodeId) -> Result<(), String> {
        for number in 0..self.machines[&id].programs.len() {
            let wait = &self.machines[&id].programs[number].wait;
            if wait.as_ref().is_some_and(|ticket| ticket.outcome().is_some()) {
                self.end_wait(id, number)?;
            }
        }
        Ok(())
    }

    fn end_wait(&mut self, id: NodeId, number: usize) -> Result<(), String> {
        let now = self.now;
        let machine = self.machines.get_mut(&id).expect("it runs");
        let Some(ticket) = machine.programs[number].wait.take() else { return Ok(()) };
        let (outcome, held): (Outcome, _) = machine.node.finish(machine.clock(now), ticket);
        let wait = self.waits.by_program.remove(&(id, number)).ok_or("a wait that nobody knows of")?;
        self.log(&|| format!("{:?} waited for {}: {outcome:?}", (id, number), wait.key));
        match (outcome, held) {
            (Ok(()), Some(held)) => self.has(id, number, held),
            (outcome, held) => {
                self.machines.get_mut(&id).expect("it runs").programs[number].held.extend(held);
                if outcome == Err(LockError::Deadlock) {
                    self.waits.told += 1;
                    if !wait.was_in_circle {
                        return Err(format!("{:?} was told, but was in no circle: {wait:?}", (id, number)));
                    }
                }
                self.unlock_all(id, number);
                Ok(())
            }
        }
    }

    fn has(&mut self, id: NodeId, number: usize, held: Held) -> Result<(), String> {
        let slot = self.slot(id, number, held.key());
        self.truth.granted(slot, held.key(), held.mode())?;
        self.log(&|| format!("{:?} got {held:?}", (id, number)));
        self.machines.get_mut(&id).expect("it runs").programs[number].held.push(held);
        self.note_waits();
        Ok(())
    }

    fn unlock_all(&mut self, id: NodeId, number: usize) {
        let now = self.now;
        let machine = self.machines.get_mut(&id).expect("it runs");
        let (clock, node) = (machine.clock(now), machine.node.clone());
        let program = &mut machine.programs[number];
        program.plan.clear();
        for held in std::mem::take(&mut program.held) {
            self.truth.unlocked(self.slot(id, number, held.key()));
            node.unlock(clock, held);
        }
    }

    /// The holder that a program is as to one of its locks.
    fn slot(&self, id: NodeId, number: usize, key: &Key) -> (NodeId, usize) {
        (id, number * LOCKS_MAX + usize::from(key.name.bytes()[0] - b'a'))
    }

    fn note_waits(&mut self) {
        let machines = &self.machines;
        let is_down = |node| machines.get(&node).is_none_or(|machine| machine.is_down);
        self.waits.note(&self.truth, is_down);
    }
}
