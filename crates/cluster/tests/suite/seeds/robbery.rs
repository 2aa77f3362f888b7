//! Robbery: a node that is cut off for longer than its lease has a lock, which another takes and frees meanwhile.

use super::{Fault, HANG, Machine, What, World};
use crate::history::call::{Call, Outcome, PATHS, Path, Slot};
use sluice_cluster::Role;
use sluice_sync::random::Random;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

impl World {
    /// The owner.
    pub(crate) fn owner(&self) -> usize {
        let is_owner = |machine: &Machine| {
            machine
                .node
                .as_ref()
                .is_some_and(|node| node.await_server(HANG) && node.status().role == Role::Owner)
        };
        self.machines.iter().position(is_owner).expect("there is one")
    }

    /// A node locks a file and is cut off; another locks it, writes and unlocks; the first one writes through its descriptor. Returns
    /// what that answered, if it came so far. `is_cut_off`: from all, and not from the other nodes alone.
    pub(crate) fn rob(&mut self, random: &mut Random, victim: usize, is_cut_off: bool) -> Option<Outcome> {
        const PATIENCE: Duration = Duration::from_secs(6);
        let fault = if is_cut_off { Fault::CutOff } else { Fault::CutLinks };
        let robber = (victim + 1) % self.machines.len();
        let path = Path(random.below(PATHS));
        let slot = 0;
        let locks = |world: &mut World, at: usize, end: Instant| {
            for call in [Call::Open(slot, path, false), Call::TryLock(slot)] {
                if matches!(call, Call::Open(..)) || world.await_machine(at, end)?.contains_key(&slot) {
                    world.call(at, call);
                }
            }
            (world.await_machine(at, end)?.get(&slot) == Some(&true)).then_some(())
        };
        let end = Instant::now() + PATIENCE;
        self.await_machine(victim, end)?;
        self.call(victim, Call::Make(slot, path, false));
        if self.await_machine(victim, end)?.contains_key(&slot) {
            // So that it is there for another owner.
            self.call(victim, Call::Fsync(slot));
            self.await_machine(victim, end)?;
        }
        locks(self, victim, end)?;
        self.machines.iter().for_each(|machine| self.record.shake(machine.number));
        self.cut(victim, fault, true);
        let end = Instant::now() + PATIENCE;
        let mut robbed = None;
        while robbed.is_none() && Instant::now() < end && self.await_machine(robber, end).is_some() {
            robbed = locks(self, robber, end);
            // Each try is an event that has to have its place.
            std::thread::sleep(Duration::from_millis(100));
        }
        let robbed = robbed.and_then(|()| {
            self.serial += 1;
            let bytes = (self.serial << 8 | self.machines[robber].number as u64).to_be_bytes();
            for call in [Call::Write(slot, 0, bytes), Call::Unlock(slot)] {
                self.call(robber, call);
                self.await_machine(robber, end)?;
            }
            Some(())
        });
        self.cut(victim, fault, false);
        robbed?;
        let end = Instant::now() + HANG;
        self.await_machine(victim, end)?;
        self.serial += 1;
        let bytes = (self.serial << 8 | self.machines[victim].number as u64).to_be_bytes();
        let id = self.call(victim, Call::Write(slot, 8, bytes));
        self.await_machine(victim, end)?;
        match &self.record.history().events[id].what {
            What::Call { outcome, .. } => Some(outcome.clone()),
            _ => None,
        }
    }

    /// The files that a node has open, when its last call was answered.
    fn await_machine(&self, at: usize, end: Instant) -> Option<BTreeMap<Slot, bool>> {
        loop {
            if let Some(open) = self.machines[at].open() {
                return Some(open);
            }
            if Instant::now() > end {
                return None;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
