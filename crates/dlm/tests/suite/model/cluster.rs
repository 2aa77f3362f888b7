//! Cluster: two or three real nodes, a membership, a store, and what is on its way between them; one event at a time.

use crate::support::check::{Truth, leaked};
use crate::support::wishes::{Wish, Wishes};
use sluice_dlm::{
    Held, Key, LockError, Message, Mode, Mutant, Name, Node, Options, Range, Submitted, Ticket, Token, Want,
};
use sluice_membership::Registry;
use std::collections::{BTreeMap, VecDeque};

/// By the clock of a node: a time in its lease, when the lease is over, and a time after that.
const IN_LEASE: u64 = 1;
const LEASE_END: u64 = 10;
const AFTER_LEASE: u64 = 20;
/// The length of a lease by the clock of the membership.
const TTL: u64 = 100;

/// A call of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Lock(Mode),
    Try(Mode),
    Convert(Mode),
    /// Sets the value, and writes to the store with the lock's token.
    Write,
    Unlock,
}

/// A cluster, what runs on it, and what may go wrong.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) nodes: usize,
    /// The last node joins while the programs run.
    pub(crate) joins_late: bool,
    /// For each program: its node, and its calls.
    pub(crate) programs: Vec<(usize, Vec<Call>)>,
    /// A program that waits may give up.
    pub(crate) may_cancel: bool,
    /// How many nodes may die or lose their lease.
    pub(crate) deaths: usize,
    pub(crate) mutant: Option<Mutant>,
}

/// The events that can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// A program makes its next call.
    Call(usize),
    /// A program gives up waiting.
    Cancel(usize),
    /// The first message from one node to another arrives.
    Arrive(usize, usize),
    /// A node hears what the membership says now.
    Hear(usize),
    /// The membership, or the store, hears what a node wants first.
    Wish(usize),
    /// The write of a program reaches the store.
    Store(usize),
    /// The last node joins.
    Join,
    /// A node stops for good, without knowing it.
    Die(usize),
    /// The lease of a node is over by its own clock.
    Lapse(usize),
    /// The lease of a node is over at the membership: not before it is over at the node.
    Expire(usize),
}

#[derive(Debug, Default)]
enum Doing {
    #[default]
    Nothing,
    Waits(Ticket, bool),
    Holds(Held),
    /// Its node has died, or is no member any more.
    Stopped,
}

struct Program {
    node: usize,
    next: usize,
    doing: Doing,
    /// A write that the store has not got yet.
    writes: Option<Token>,
}

struct Machine {
    node: Node<Wishes>,
    now: u64,
    is_dead: bool,
    /// The membership says so too.
    is_expired: bool,
    heard: u64,
    wishes: VecDeque<Wish>,
}

pub(crate) struct Cluster<'s> {
    scenario: &'s Scenario,
    machines: Vec<Machine>,
    programs: Vec<Program>,
    /// By the membership's clock. All leases were renewed then.
    time: u64,
    registry: Registry,
    truth: Truth,
    under_way: BTreeMap<(usize, usize), VecDeque<Message>>,
    deaths: usize,
    /// The broken property, if any.
    pub(crate) broken: Result<(), String>,
}

fn key() -> Key {
    Key { name: Name::in_shard(0, b"a").expect("short"), range: Range::WHOLE }
}

impl<'s> Cluster<'s> {
    /// A cluster whose first members know each other, and have a master.
    pub(crate) fn new(scenario: &'s Scenario) -> Cluster<'s> {
        let programs = scenario.programs.iter();
        let mut cluster = Cluster {
            scenario,
            machines: Vec::new(),
            programs: programs
                .map(|(node, _)| Program { node: *node, next: 0, doing: Doing::Nothing, writes: None })
                .collect(),
            time: 0,
            registry: Registry::new(1, TTL),
            truth: Truth::default(),
            under_way: BTreeMap::new(),
            deaths: 0,
            broken: Ok(()),
        };
        (0..scenario.nodes - usize::from(scenario.joins_late)).for_each(|_| cluster.join());
        let is_settling =
            |event: &Event| matches!(event, Event::Hear(_) | Event::Wish(_) | Event::Arrive(..));
        while let Some(event) = cluster.events().into_iter().find(is_settling) {
            cluster.happen(event);
        }
        cluster
    }

    /// The events that can happen now.
    pub(crate) fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (number, program) in self.programs.iter().enumerate() {
            let Some(machine) = self.machines.get(program.node) else { continue };
            let is_running = !machine.is_dead && program.next < self.scenario.programs[number].1.len();
            match program.doing {
                Doing::Nothing if is_running => events.push(Event::Call(number)),
                Doing::Holds(_) if is_running && program.writes.is_none() => events.push(Event::Call(number)),
                Doing::Waits(..) if !machine.is_dead && self.scenario.may_cancel => {
                    events.push(Event::Cancel(number));
                }
                _ => {}
            }
            if program.writes.is_some() {
                events.push(Event::Store(number));
            }
        }
        for (&(from, to), messages) in &self.under_way {
            if !messages.is_empty() && !self.machines[to].is_dead {
                events.push(Event::Arrive(from, to));
            }
        }
        for (number, machine) in self.machines.iter().enumerate() {
            if machine.is_dead {
                if !machine.is_expired {
                    events.push(Event::Expire(number));
                }
                continue;
            }
            if machine.now > LEASE_END && !machine.is_expired {
                events.push(Event::Expire(number));
            }
            if machine.heard < self.registry.view().revision && !machine.is_expired {
                events.push(Event::Hear(number));
            }
            if !machine.wishes.is_empty() && !machine.is_expired {
                events.push(Event::Wish(number));
            }
            if self.deaths < self.scenario.deaths && machine.now < LEASE_END {
                events.extend([Event::Die(number), Event::Lapse(number)]);
            }
        }
        if self.machines.len() < self.scenario.nodes {
            events.push(Event::Join);
        }
        events
    }

    /// Lets `event` happen.
    pub(crate) fn happen(&mut self, event: Event) {
        let result = self.try_event(event).and_then(|()| self.settle());
        if self.broken.is_ok() {
            self.broken = result;
        }
    }

    fn try_event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Call(number) => return self.call(number),
            Event::Cancel(number) => {
                if let Doing::Waits(ticket, converts) = std::mem::take(&mut self.programs[number].doing) {
                    self.end(number, ticket, converts)?;
                }
            }
            Event::Arrive(from, to) => {
                let message = self.under_way.get_mut(&(from, to)).and_then(VecDeque::pop_front);
                let sender = self.machines[from].node.id();
                let machine = &self.machines[to];
                if let Some(message) = message {
                    machine.node.message(machine.now, sender, message);
                }
            }
            Event::Hear(number) => {
                let machine = &mut self.machines[number];
                machine.heard = self.registry.view().revision;
                machine.node.view(machine.now, self.registry.view().clone());
                machine.node.remind(machine.now);
            }
            Event::Wish(number) => self.grant_wish(number),
            Event::Store(number) => {
                let program = &mut self.programs[number];
                let token = program.writes.take().ok_or("no write")?;
                return self.truth.write(self.machines[program.node].node.id(), &key().name, token);
            }
            Event::Join => self.join(),
            Event::Die(number) => {
                self.deaths += 1;
                self.machines[number].is_dead = true;
            }
            Event::Lapse(number) => {
                self.deaths += 1;
                let machine = &mut self.machines[number];
                machine.now = AFTER_LEASE;
                machine.node.tick(machine.now);
            }
            Event::Expire(number) => {
                self.machines[number].is_expired = true;
                self.time += TTL;
                // The others are renewed just before the lease of this one is over, and again then.
                self.renew(self.time - 1);
                self.registry.expire(self.time);
                self.renew(self.time);
            }
        }
        Ok(())
    }

    fn renew(&mut self, now: u64) {
        for machine in self.machines.iter().filter(|machine| !machine.is_expired) {
            self.registry.renew(now, machine.node.id());
        }
    }

    fn call(&mut self, number: usize) -> Result<(), String> {
        let call = self.scenario.programs[number].1[self.programs[number].next];
        let program = &mut self.programs[number];
        program.next += 1;
        let machine = &self.machines[program.node];
        let (node, now, holder) = (&machine.node, machine.now, (machine.node.id(), number));
        let doing = std::mem::take(&mut program.doing);
        program.doing = match (call, doing) {
            (Call::Lock(mode) | Call::Try(mode), Doing::Nothing) => {
                let want = if call == Call::Try(mode) { Want::now(mode) } else { Want::new(mode) };
                match node.lock(now, &key(), &want) {
                    Ok(Submitted::Granted(held)) => return self.got(number, held),
                    Ok(Submitted::Waiting(ticket)) => Doing::Waits(ticket, false),
                    // The calls that need the lock are left out.
                    Err(LockError::Busy | LockError::NotMember) => Doing::Stopped,
                    Err(error) => return Err(error.to_string()),
                }
            }
            (Call::Convert(mode), Doing::Holds(held)) => match node.convert(now, held, &Want::new(mode)) {
                Ok(Submitted::Granted(held)) => {
                    self.truth.unlocked(holder);
                    return self.got(number, held);
                }
                Ok(Submitted::Waiting(ticket)) => Doing::Waits(ticket, true),
                Err((_, held)) => Doing::Holds(held),
            },
            (Call::Write, Doing::Holds(held)) => {
                if let Some(token) = held.token()
                    && held.mode().writes()
                {
                    let value = [u8::try_from(number).unwrap_or(0), u8::try_from(program.next).unwrap_or(0)];
                    if node.set_value(&held, &value).is_ok() {
                        self.truth.set(&key().name, value.to_vec());
                        program.writes = Some(token);
                    }
                }
                Doing::Holds(held)
            }
            (Call::Unlock, Doing::Holds(held)) => {
                self.truth.unlocked(holder);
                node.unlock(now, held);
                Doing::Nothing
            }
            // Its request was refused, or its node is no member.
            (_, _) => Doing::Stopped,
        };
        Ok(())
    }

    /// A program has a lock.
    fn got(&mut self, number: usize, held: Held) -> Result<(), String> {
        let program = &mut self.programs[number];
        let node = &self.machines[program.node].node;
        self.truth.granted((node.id(), number), held.key(), held.mode())?;
        if held.mode() == Mode::Ex
            && let Some(value) = node.value(&held)
            && value.is_certain
        {
            self.truth.saw(&held.key().name, &value.bytes)?;
        }
        program.doing = Doing::Holds(held);
        Ok(())
    }

    /// A request is decided, or withdrawn.
    fn end(&mut self, number: usize, ticket: Ticket, converts: bool) -> Result<(), String> {
        let machine = &self.machines[self.programs[number].node];
        let (outcome, held) = machine.node.finish(machine.now, ticket);
        match (outcome, held) {
            (Ok(()), Some(held)) => self.got(number, held),
            (_, Some(held)) => {
                self.programs[number].doing = Doing::Holds(held);
                Ok(())
            }
            (_, None) if converts => Err("a lock was lost".into()),
            (_, None) => {
                self.programs[number].doing = Doing::Stopped;
                Ok(())
            }
        }
    }

    /// Programs whose requests are decided learn it; what nodes want is put on its way.
    fn settle(&mut self) -> Result<(), String> {
        let is_decided =
            |doing: &Doing| matches!(doing, Doing::Waits(ticket, _) if ticket.outcome().is_some());
        for (number, program) in self.programs.iter().enumerate() {
            // Conversions first: one may have made room for another program.
            if matches!(&program.doing, Doing::Waits(ticket, true) if ticket.outcome() == Some(Ok(()))) {
                self.truth.unlocked((self.machines[program.node].node.id(), number));
            }
        }
        for number in 0..self.programs.len() {
            let program = &mut self.programs[number];
            let is_up = self.machines.get(program.node).is_some_and(|machine| !machine.is_dead);
            if is_up
                && is_decided(&program.doing)
                && let Doing::Waits(ticket, converts) = std::mem::take(&mut program.doing)
            {
                self.end(number, ticket, converts)?;
            }
        }
        for from in 0..self.machines.len() {
            for wish in self.machines[from].node.effects().take() {
                match wish {
                    Wish::Send(to, message) => {
                        let is_at = |machine: &Machine| machine.node.id() == to && !machine.is_dead;
                        if let Some(to) = self.machines.iter().position(is_at) {
                            self.under_way.entry((from, to)).or_default().push_back(message);
                        }
                    }
                    wish if self.machines[from].wishes.contains(&wish) => {}
                    wish => self.machines[from].wishes.push_back(wish),
                }
            }
        }
        Ok(())
    }

    fn grant_wish(&mut self, number: usize) {
        let node = self.machines[number].node.id();
        match self.machines[number].wishes.pop_front() {
            Some(Wish::Claim(shard, epoch)) => drop(self.registry.claim(self.time, node, shard, epoch)),
            Some(Wish::Resign(shard, epoch)) => drop(self.registry.resign(self.time, node, shard, epoch)),
            Some(Wish::Fence(dead)) => {
                self.truth.fence(dead);
                self.registry.fenced(dead);
                // A node that has left is heard no more.
                let gone = self.machines.iter().position(|machine| machine.node.id() == dead);
                self.under_way.retain(|(from, to), _| Some(*from) != gone && Some(*to) != gone);
            }
            _ => {}
        }
    }

    fn join(&mut self) {
        // A node that joins late gets a number that makes it the preferred master.
        let id = loop {
            let id = self.registry.join(self.time, "");
            let is_early = self.machines.len() + 1 < self.scenario.nodes || !self.scenario.joins_late;
            if is_early || self.registry.view().preferred(0) == Some(id) {
                break id;
            }
            self.registry.leave(id);
        };
        let options = Options {
            shards: 1,
            hold: 0,
            memory: 64 << 10,
            retry: u64::MAX / 4,
            mutant: self.scenario.mutant,
            ..Options::default()
        };
        let node = Node::new(id, options, Wishes::default());
        node.renewed(LEASE_END);
        self.machines.push(Machine {
            node,
            now: IN_LEASE,
            is_dead: false,
            is_expired: false,
            heard: 0,
            wishes: VecDeque::new(),
        });
    }

    /// Nothing can happen any more but what need not: then every program on a member has ended, and no lock is leaked.
    pub(crate) fn at_rest(&self) -> Result<(), String> {
        let members = || self.machines.iter().filter(|machine| !machine.is_dead && machine.now < LEASE_END);
        for (number, program) in self.programs.iter().enumerate() {
            let is_member = self.machines.get(program.node).is_some_and(|m| !m.is_dead && m.now < LEASE_END);
            if is_member && matches!(program.doing, Doing::Waits(..)) {
                return Err(format!("program {number} waits for ever: {:?}", program.doing));
            }
        }
        leaked(members().map(|machine| &machine.node))
    }

    /// All that decides what can happen from here on, as text.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{:?} {:?} {:?}", self.registry, self.truth, self.under_way);
        for machine in &self.machines {
            let Machine { node, now, is_dead, is_expired, heard, wishes } = machine;
            // The state of a dead node decides nothing.
            let knows = if *is_dead { String::new() } else { node.state_text() };
            text += &format!(" {now} {is_dead} {is_expired} {heard} {wishes:?} {knows}");
        }
        for program in &self.programs {
            text += &format!(" {} {:?} {:?}", program.next, program.doing, program.writes);
        }
        text
    }
}
