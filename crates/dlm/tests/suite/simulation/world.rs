//! World: machines with clocks of their own, a network that loses, repeats, delays and reorders packets, a membership service and a
//! store, all driven by one queue of events and one seed.

use super::client::Client;
use super::parties::{Program, Waits};
use crate::support::check::Truth;
use crate::support::wishes::{Wish, Wishes};
use sluice_dlm::{Masters, Mutant, Node, Options, Packet, Session, Token};
use sluice_membership::{NodeId, Registry, ShardId, View};
use sluice_sync::random::Random;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const MS: u64 = 1_000_000;
const TTL: u64 = 4_000 * MS;
/// Clocks differ by at most one in a hundred; a lease is counted as shorter by more than that.
const MARGIN: u64 = TTL / 10;
const SHARDS: u16 = 4;

pub(crate) struct Machine {
    pub(crate) node: Arc<Node<Wishes>>,
    sessions: BTreeMap<NodeId, Session>,
    pub(crate) clients: Vec<Client>,
    /// The programs that run in place of clients if there are parties.
    pub(crate) programs: Vec<Program>,
    /// Gone for good: crashed, left, or without a lease.
    pub(crate) is_down: bool,
    paused_until: u64,
    /// No packets to other nodes; no calls to the membership.
    cut_from_nodes: bool,
    cut_from_members: bool,
    /// In millionths.
    skew: i64,
}

impl Machine {
    /// The time on this machine.
    pub(crate) fn clock(&self, now: u64) -> u64 {
        let drift = i128::from(now) * i128::from(self.skew) / 1_000_000;
        u64::try_from(i128::from(now) + drift).unwrap_or(0)
    }
}

enum Event {
    /// For a machine; waits while it is paused.
    At(NodeId, Task),
    /// At the membership, the store, or the hand that makes faults.
    Claim(NodeId, ShardId, u64),
    Resign(NodeId, ShardId, u64),
    Renew(NodeId, u64),
    Look(NodeId),
    FenceAtStore(NodeId),
    Fenced(NodeId),
    Write(NodeId, usize, sluice_dlm::Name, Token),
    Fault,
    Join,
}

enum Task {
    Packet(NodeId, Packet),
    View(View),
    Renewed(u64),
    Client(usize),
    Written(usize),
    Tick,
    Housekeeping,
}

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) random: Random,
    pub(crate) truth: Truth,
    pub(crate) waits: Waits,
    /// Programs of parties run, and no clients.
    has_parties: bool,
    /// Parties lock for reading, too.
    pub(crate) is_shared: bool,
    pub(crate) machines: BTreeMap<NodeId, Machine>,
    registry: Registry,
    /// *boxed: a map moves its values, and a packet is large*
    events: BTreeMap<(u64, u64), Box<Event>>,
    count: u64,
    options: Options,
    /// When the last packet from one node to another arrives, if they keep their order.
    arrivals: BTreeMap<(NodeId, NodeId), u64>,
    /// When faults end.
    calm: u64,
    joins: u32,
    pub(crate) faults: BTreeMap<&'static str, u64>,
    is_logged: bool,
}

impl World {
    pub(crate) fn new(seed: u64, mutant: Option<Mutant>, calm: u64, has_parties: bool) -> World {
        let options = Options {
            shards: SHARDS,
            hold: 5 * MS,
            retry: 1_000 * MS,
            memory: 64 << 10,
            seed,
            masters: if seed % 4 == 3 { Masters::Oldest } else { Masters::Spread },
            mutant,
            ..Options::default()
        };
        let mut world = World {
            now: 0,
            random: Random::new(seed),
            truth: Truth::default(),
            waits: Waits::default(),
            has_parties,
            is_shared: seed % 2 == 1,
            machines: BTreeMap::new(),
            registry: Registry::new(SHARDS, TTL),
            events: BTreeMap::new(),
            count: 0,
            options,
            arrivals: BTreeMap::new(),
            calm,
            joins: 0,
            faults: BTreeMap::new(),
            is_logged: std::env::var_os("SLUICE_DLM_LOG").is_some(),
        };
        (0..world.random.between(2, 4)).for_each(|_| world.join());
        world.after(1_000 * MS, Event::Fault);
        world
    }

    /// Runs until `end`.
    pub(crate) fn run(&mut self, end: u64) -> Result<(), String> {
        while let Some(((time, _), event)) = self.events.pop_first() {
            self.now = time;
            if time > end {
                break;
            }
            self.happen(*event)?;
        }
        Ok(())
    }

    /// Says what happens, if that is wanted.
    pub(crate) fn log(&self, what: &dyn Fn() -> String) {
        if self.is_logged {
            println!("{:>9} us {}", self.now / 1000, what());
        }
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.now >= self.calm
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.count += 1;
        self.events.insert((self.now + delay, self.count), Box::new(event));
    }

    pub(crate) fn client_later(&mut self, node: NodeId, client: usize, delay: u64) {
        self.after(delay, Event::At(node, Task::Client(client)));
    }

    pub(crate) fn write_later(&mut self, node: NodeId, client: usize, name: sluice_dlm::Name, token: Token) {
        // Now and then a write is under way for longer than a lease.
        let delay =
            if self.random.chance(2) { self.random.below(6_000 * MS) } else { self.random.below(20 * MS) };
        self.after(delay, Event::Write(node, client, name, token));
    }

    fn join(&mut self) {
        self.joins += 1;
        let id = self.registry.join(self.now, "");
        let skew = self.random.below(20_001_i64) - 10_000;
        let machine = Machine {
            node: Arc::new(Node::new(id, self.options.clone(), Wishes::default())),
            sessions: BTreeMap::new(),
            clients: (0..3).map(|_| Client::default()).collect(),
            programs: (0..3).map(|_| Program::default()).collect(),
            is_down: false,
            paused_until: 0,
            cut_from_nodes: false,
            cut_from_members: false,
            skew,
        };
        machine.node.renewed(machine.clock(self.now) + TTL - MARGIN);
        self.machines.insert(id, machine);
        for task in [Task::Tick, Task::Housekeeping, Task::Client(0), Task::Client(1), Task::Client(2)] {
            let delay = self.random.below(100 * MS);
            self.after(delay, Event::At(id, task));
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::At(id, task) => return self.at(id, task),
            Event::Claim(node, shard, epoch) => drop(self.registry.claim(self.now, node, shard, epoch)),
            Event::Resign(node, shard, epoch) => drop(self.registry.resign(self.now, node, shard, epoch)),
            Event::Renew(node, sent_at) => {
                if self.registry.renew(self.now, node) {
                    self.answer(node, Task::Renewed(sent_at + TTL - MARGIN));
                }
            }
            Event::Look(node) => {
                self.registry.expire(self.now);
                let view = self.registry.view().clone();
                self.answer(node, Task::View(view));
            }
            Event::FenceAtStore(dead) => {
                self.truth.fence(dead);
                let delay = self.random.below(100 * MS);
                self.after(delay, Event::Fenced(dead));
            }
            Event::Fenced(dead) => drop(self.registry.fenced(dead)),
            Event::Write(node, client, name, token) => {
                self.truth.write(node, &name, token)?;
                self.answer(node, Task::Written(client));
            }
            Event::Fault => self.fault(),
            Event::Join => self.join(),
        }
        Ok(())
    }

    /// An answer of the membership or the store.
    fn answer(&mut self, node: NodeId, task: Task) {
        let is_cut = self.machines.get(&node).is_none_or(|machine| machine.cut_from_members);
        if !is_cut || matches!(task, Task::Written(_)) {
            let delay = self.random.below(5 * MS);
            self.after(delay, Event::At(node, task));
        }
    }

    fn at(&mut self, id: NodeId, task: Task) -> Result<(), String> {
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        if machine.is_down {
            return Ok(());
        }
        if machine.paused_until > self.now {
            let later = machine.paused_until - self.now;
            self.after(later, Event::At(id, task));
            return Ok(());
        }
        let node = machine.node.clone();
        let clock = machine.clock(self.now);
        match task {
            Task::Packet(from, packet) if !self.registry.view().is_gone(from) => {
                let session = machine.sessions.entry(from).or_default();
                if let Some(message) = session.take(packet).map_err(|_| "an invalid packet".to_string())? {
                    if self.is_logged {
                        println!("{:>9} us {id} <- {from}: {message:?}", self.now / 1000);
                    }
                    node.message(clock, from, message);
                }
            }
            Task::Packet(..) => {}
            Task::View(view) => node.view(clock, view),
            Task::Renewed(end) => node.renewed(end),
            Task::Client(number) if self.has_parties => self.step_program(id, number)?,
            Task::Client(number) => self.step(id, number)?,
            Task::Written(number) => {
                if let Some(client) = machine.clients.get_mut(number) {
                    client.is_writing = false;
                }
            }
            Task::Tick => {
                node.tick(clock);
                if !node.is_member(clock) {
                    self.down(id);
                    return Ok(());
                }
                let delay = self.random.between(MS, 10 * MS);
                self.after(delay, Event::At(id, Task::Tick));
            }
            Task::Housekeeping => self.keep_house(id),
        }
        self.tell_clients(id)?;
        self.tell_programs(id)?;
        self.grant_wishes(id);
        Ok(())
    }

    /// Renews the lease, looks at the view, sends again what was not acknowledged.
    fn keep_house(&mut self, id: NodeId) {
        let Some(machine) = self.machines.get_mut(&id) else { return };
        let clock = machine.clock(self.now);
        let view = self.registry.view();
        machine.sessions.retain(|other, _| !view.is_gone(*other));
        let mut packets = Vec::new();
        for (&other, session) in &mut machine.sessions {
            packets.extend(
                session.again().into_iter().chain(session.acknowledgement(1)).map(|packet| (other, packet)),
            );
        }
        machine.node.remind(clock);
        for (other, packet) in packets {
            self.post(id, other, packet);
        }
        if !self.machines[&id].cut_from_members {
            let (renew, look) = (self.random.below(5 * MS), self.random.below(5 * MS));
            self.after(renew, Event::Renew(id, clock));
            self.after(look, Event::Look(id));
        }
        let next = self.random.between(50 * MS, 200 * MS);
        self.after(next, Event::At(id, Task::Housekeeping));
    }

    /// The network.
    fn post(&mut self, from: NodeId, to: NodeId, packet: Packet) {
        let cut = |id| self.machines.get(&id).is_none_or(|machine: &Machine| machine.cut_from_nodes);
        let gone = |id| self.registry.view().is_gone(id);
        if cut(from) || cut(to) || gone(from) || gone(to) || (!self.is_calm() && self.random.chance(2)) {
            return;
        }
        let delay =
            if self.random.chance(3) { self.random.below(300 * MS) } else { self.random.below(2 * MS) };
        if self.random.chance(2) {
            let again = self.random.below(400 * MS);
            self.after(again, Event::At(to, Task::Packet(from, packet.clone())));
        }
        let delay = if self.has_parties { self.in_order(from, to, delay) } else { delay };
        self.after(delay, Event::At(to, Task::Packet(from, packet)));
    }

    /// The delay after which a packet does not overtake those before it. Where each may, a session carries a few messages a second.
    fn in_order(&mut self, from: NodeId, to: NodeId, delay: u64) -> u64 {
        let last = self.arrivals.entry((from, to)).or_default();
        *last = (*last).max(self.now + delay);
        *last - self.now
    }

    pub(crate) fn grant_wishes(&mut self, id: NodeId) {
        let Some(machine) = self.machines.get(&id) else { return };
        let wishes = machine.node.effects().take();
        let is_cut = machine.cut_from_members;
        for wish in wishes {
            let delay = self.random.below(5 * MS);
            match wish {
                Wish::Send(to, message) => {
                    let Some(machine) = self.machines.get_mut(&id) else { return };
                    if self.is_logged {
                        println!("{:>9} us {id} -> {to}: {message:?}", self.now / 1000);
                    }
                    let packet = machine.sessions.entry(to).or_default().push(message);
                    self.post(id, to, packet);
                }
                _ if is_cut => {}
                Wish::Fence(dead) => {
                    let delay = self.random.below(1_000 * MS);
                    self.after(delay, Event::FenceAtStore(dead));
                }
                Wish::Claim(shard, epoch) => self.after(delay, Event::Claim(id, shard, epoch)),
                Wish::Resign(shard, epoch) => self.after(delay, Event::Resign(id, shard, epoch)),
            }
        }
    }

    fn down(&mut self, id: NodeId) {
        if let Some(machine) = self.machines.get_mut(&id) {
            machine.is_down = true;
            let delay = self.random.below(3_000 * MS);
            self.after(delay, Event::Join);
        }
    }

    fn fault(&mut self) {
        if self.is_calm() {
            for machine in self.machines.values_mut() {
                machine.cut_from_nodes = false;
                machine.cut_from_members = false;
            }
            return;
        }
        let up: Vec<_> =
            self.machines.iter().filter(|(_, machine)| !machine.is_down).map(|(&id, _)| id).collect();
        let pick = self.random.below(up.len() as u64);
        if let Some(&id) = up.get(usize::try_from(pick).unwrap_or(0)) {
            let kind = self.random.below(8);
            let time = self.random.below(7_000 * MS);
            let now = self.now;
            let machine = self.machines.get_mut(&id).expect("it is up");
            let name = match kind {
                0 => {
                    self.down(id);
                    "crash"
                }
                1 | 2 => {
                    machine.paused_until = now + time;
                    "pause"
                }
                3 => {
                    machine.cut_from_nodes = true;
                    "cut from nodes"
                }
                4 => {
                    machine.cut_from_members = true;
                    "cut from members"
                }
                5 if self.joins < 12 => {
                    self.join();
                    "join"
                }
                _ => {
                    for machine in self.machines.values_mut() {
                        machine.cut_from_nodes = false;
                        machine.cut_from_members = false;
                    }
                    "heal"
                }
            };
            *self.faults.entry(name).or_default() += 1;
        }
        let next = self.random.between(300 * MS, 3_000 * MS);
        self.after(next, Event::Fault);
    }
}
