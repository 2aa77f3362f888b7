//! Client: a program on a machine that locks, converts, writes, cancels and unlocks as it is told by the seed.

use super::world::{MS, World};
use sluice_dlm::{Held, Key, LockError, Mode, Name, Range, Submitted, Ticket, Want};
use sluice_membership::NodeId;

#[derive(Debug, Default)]
pub(crate) struct Client {
    state: State,
    /// A write is under way to the store. The lock is kept until it is acknowledged.
    pub(crate) is_writing: bool,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Waiting(Ticket, bool),
    Holding(Held),
}

impl Client {
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }
}

impl World {
    /// A client goes on.
    pub(crate) fn step(&mut self, id: NodeId, number: usize) -> Result<(), String> {
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        let clock = machine.clock(self.now);
        let node = machine.node.clone();
        let client = &mut machine.clients[number];
        let is_writing = client.is_writing;
        let holder = (id, number);
        let state = std::mem::take(&mut client.state);
        let next = match state {
            State::Idle if self.is_calm() => State::Idle,
            State::Idle => {
                let (key, want) = self.wish();
                match node.lock(clock, &key, &want) {
                    Ok(Submitted::Granted(held)) => self.got(id, number, held)?,
                    Ok(Submitted::Waiting(ticket)) => State::Waiting(ticket, false),
                    Err(LockError::Busy | LockError::NotMember) => State::Idle,
                    Err(error) => return Err(format!("{error}")),
                }
            }
            State::Waiting(ticket, converts) => {
                if !self.is_calm() && self.random.chance(3) {
                    self.end(id, number, ticket, converts)?
                } else {
                    State::Waiting(ticket, converts)
                }
            }
            State::Holding(held) if is_writing => State::Holding(held),
            State::Holding(held) => {
                let action = self.random.below(if self.is_calm() { 1 } else { 4 });
                let is_member = node.is_member(clock);
                if action == 1 && held.mode() == Mode::Ex && is_member {
                    let token = held.token().ok_or("a lock without a token is held")?;
                    if held.key().range == Range::WHOLE {
                        let value = self.random.below(1_u64 << 40).to_le_bytes().to_vec();
                        node.set_value(&held, &value).map_err(|error| error.to_string())?;
                        self.log(&|| format!("{holder:?} set {value:?} {:?}", held.key()));
                        self.truth.set(&held.key().name, value);
                        self.write_later(id, number, held.key().name.clone(), token);
                        self.machines.get_mut(&id).expect("it runs").clients[number].is_writing = true;
                    }
                    State::Holding(held)
                } else if action == 2 {
                    let (_, want) = self.wish();
                    match node.convert(clock, held, &want) {
                        Ok(Submitted::Granted(held)) => self.got(id, number, held)?,
                        Ok(Submitted::Waiting(ticket)) => State::Waiting(ticket, true),
                        Err((_, held)) => State::Holding(held),
                    }
                } else if action == 3 {
                    State::Holding(held)
                } else {
                    self.log(&|| format!("{holder:?} unlocks {held:?}"));
                    self.truth.unlocked(holder);
                    node.unlock(clock, held);
                    State::Idle
                }
            }
        };
        let machine = self.machines.get_mut(&id).expect("it runs");
        machine.clients[number].state = next;
        let delay =
            if self.random.chance(5) { self.random.below(400 * MS) } else { self.random.below(8 * MS) };
        self.client_later(id, number, delay + 1);
        Ok(())
    }

    /// Clients whose requests are decided learn it at once.
    pub(crate) fn tell_clients(&mut self, id: NodeId) -> Result<(), String> {
        // Conversions first: one may have made room for another client.
        for (number, client) in self.machines[&id].clients.iter().enumerate() {
            if matches!(&client.state, State::Waiting(ticket, true) if ticket.outcome() == Some(Ok(()))) {
                self.truth.unlocked((id, number));
            }
        }
        for number in 0..self.machines[&id].clients.len() {
            let client = &mut self.machines.get_mut(&id).expect("it runs").clients[number];
            let next = match std::mem::take(&mut client.state) {
                State::Waiting(ticket, converts) if ticket.outcome().is_some() => {
                    self.end(id, number, ticket, converts)?
                }
                same => same,
            };
            self.machines.get_mut(&id).expect("it runs").clients[number].state = next;
        }
        Ok(())
    }

    fn end(&mut self, id: NodeId, number: usize, ticket: Ticket, converts: bool) -> Result<State, String> {
        let machine = &self.machines[&id];
        match machine.node.clone().finish(machine.clock(self.now), ticket) {
            (Ok(()), Some(held)) => self.got(id, number, held),
            (_, Some(held)) => Ok(State::Holding(held)),
            (_, None) if converts => Err("a lock was lost".into()),
            (_, None) => Ok(State::Idle),
        }
    }

    fn got(&mut self, id: NodeId, number: usize, held: Held) -> Result<State, String> {
        self.log(&|| format!("{:?} got {held:?}", (id, number)));
        self.truth.granted((id, number), held.key(), held.mode())?;
        let machine = &self.machines[&id];
        if held.mode().covers(Mode::Pr)
            && held.key().range == Range::WHOLE
            && let Some(value) = machine.node.value(&held)
            && value.is_certain
        {
            self.truth.saw(&held.key().name, &value.bytes)?;
        }
        Ok(State::Holding(held))
    }

    /// The next lock that the client wants.
    fn wish(&mut self) -> (Key, Want) {
        let number = self.random.below(6);
        let name =
            Name::in_shard(u16::try_from(number % 4).unwrap_or(0), &[b'a' + number as u8]).expect("short");
        let range = match self.random.below(12) {
            0 => Range::new(0, 9),
            1 => Range::new(5, 14),
            2 => Range::new(10, 19),
            _ => Some(Range::WHOLE),
        };
        let mode = match self.random.below(10) {
            0..3 => Mode::Ex,
            3..6 => Mode::Pr,
            n => [Mode::Nl, Mode::Cr, Mode::Cw, Mode::Pw][usize::try_from(n).unwrap_or(6) - 6],
        };
        let want = Want { is_try: self.random.chance(10), ..Want::new(mode) };
        (Key { name, range: range.expect("not empty") }, want)
    }
}
