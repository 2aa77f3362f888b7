//! Plan: the calls of a round, by chance: who makes which, and how long a program pauses before each.

use crate::call::{NAMES, SharedCall, SharedLockKind, SharedName, WORD};
use serde::{Deserialize, Serialize};
use sluice_sync::random::Random;

/// Calls of each program in a round, beside those that look at the end.
const CALLS: usize = 9;

/// Calls that not every file system has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offered {
    /// link.
    pub links: bool,
    /// flock.
    pub flock: bool,
    /// fcntl locks.
    pub posix: bool,
}

/// The calls of a round. Before each call the program pauses for so many microseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundPlan {
    /// Calls of the program that makes the directories, before the others begin.
    pub first: Vec<(u64, SharedCall)>,
    /// Calls of each program, all at the same time.
    pub body: Vec<Vec<(u64, SharedCall)>>,
}

/// The subject of a round.
#[derive(Clone, Copy)]
enum RoundSubject {
    Names,
    Contents,
    Locks(SharedLockKind),
    All,
}

struct PlanDraw<'r> {
    random: &'r mut Random,
    offered: Offered,
    /// Number of the next write.
    serial: u32,
}

/// Draws a round for so many programs.
pub fn plan_round(random: &mut Random, programs: usize, offered: Offered) -> RoundPlan {
    let kind = match (offered.flock, offered.posix) {
        (true, true) => Some(random.pick(&[SharedLockKind::Flock, SharedLockKind::Posix])),
        (true, false) => Some(SharedLockKind::Flock),
        (false, true) => Some(SharedLockKind::Posix),
        (false, false) => None,
    };
    let subject = match (random.below(10), kind) {
        (0..3, _) => RoundSubject::Names,
        (3..6, _) => RoundSubject::Contents,
        (6..8, Some(kind)) => RoundSubject::Locks(kind),
        _ => RoundSubject::All,
    };
    let pause_max = random.pick(&[0, 0, 300, 3_000]);
    let mut draw = PlanDraw { random, offered, serial: 0 };
    let create = SharedCall::Create { slot: 0, name: SharedName(0), appends: false };
    let first = match subject {
        RoundSubject::Names | RoundSubject::All if draw.random.chance(50) => Vec::new(),
        _ => vec![create, draw.write(0, 0, 0), SharedCall::Close { slot: 0 }],
    };
    let body: Vec<Vec<SharedCall>> = (0..programs)
        .map(|program| match subject {
            RoundSubject::Names => (0..CALLS).map(|_| draw.about_names()).collect(),
            RoundSubject::Contents => draw.about_contents(program),
            RoundSubject::Locks(kind) => draw.under_locks(program, kind),
            RoundSubject::All => (0..CALLS).map(|_| draw.any(program, kind)).collect(),
        })
        .collect();
    let random = draw.random;
    let mut with_pauses =
        |calls: Vec<SharedCall>| calls.into_iter().map(|call| (random.below(pause_max + 1), call)).collect();
    RoundPlan {
        first: first.into_iter().map(|call| (0, call)).collect(),
        body: body.into_iter().map(&mut with_pauses).collect(),
    }
}

/// The calls that look at everything.
pub(crate) fn last_looks() -> Vec<SharedCall> {
    let names = || (0..NAMES as u8).map(SharedName);
    let stats = names().map(|name| SharedCall::Stat { name });
    let reads = names().map(|name| SharedCall::ReadFile { name });
    let lists = [0, 1].into_iter().map(|dir| SharedCall::List { dir });
    lists.chain(stats).chain(reads).collect()
}

impl PlanDraw<'_> {
    fn name(&mut self) -> SharedName {
        SharedName(self.random.below(NAMES as u8))
    }

    fn word(&mut self, program: usize) -> [u8; WORD] {
        self.serial += 1;
        let mut word = [b'0'; WORD];
        word[0] = b'a' + (program % 26) as u8;
        let digits = self.serial.to_string();
        let at = WORD - digits.len().min(WORD - 1);
        word[at..].copy_from_slice(&digits.as_bytes()[..WORD - at]);
        word
    }

    fn write(&mut self, program: usize, slot: u8, offset: u64) -> SharedCall {
        SharedCall::Write { slot, offset, word: self.word(program) }
    }

    fn about_names(&mut self) -> SharedCall {
        let (name, other) = (self.name(), self.name());
        match self.random.below(100) {
            0..18 => SharedCall::Create { slot: 0, name, appends: false },
            18..24 => SharedCall::Open { slot: 0, name, appends: false },
            24..40 => SharedCall::Unlink { name },
            40..56 if name != other => SharedCall::Rename { old: name, new: other },
            56..63 if self.offered.links && name != other => SharedCall::Link { old: name, new: other },
            63..70 => SharedCall::Mkdir { name },
            70..76 => SharedCall::Rmdir { name },
            76..82 => SharedCall::List { dir: self.random.below(2) },
            82..86 => SharedCall::ReadFile { name },
            _ => SharedCall::Stat { name },
        }
    }

    fn on_a_file(&mut self, program: usize) -> SharedCall {
        let (slot, offset) = (self.random.below(2), self.random.below(3) * WORD as u64);
        let name = SharedName(0);
        match self.random.below(100) {
            0..16 => self.write(program, 0, offset),
            16..34 => SharedCall::Append { slot: 1, word: self.word(program) },
            34..44 => SharedCall::Truncate { slot, size: offset },
            44..50 => SharedCall::Fsync { slot },
            50..68 => SharedCall::Read { slot },
            68..78 => SharedCall::Fstat { slot },
            78..88 => SharedCall::Stat { name },
            _ => SharedCall::ReadFile { name },
        }
    }

    fn about_contents(&mut self, program: usize) -> Vec<SharedCall> {
        let open = |slot, appends| SharedCall::Open { slot, name: SharedName(0), appends };
        let mut calls = vec![open(0, false), open(1, true), SharedCall::Read { slot: 0 }];
        calls.extend((3..CALLS + 2).map(|_| self.on_a_file(program)));
        calls
    }

    fn under_locks(&mut self, program: usize, kind: SharedLockKind) -> Vec<SharedCall> {
        let appends = self.random.chance(50);
        let mut calls = vec![SharedCall::Open { slot: 0, name: SharedName(0), appends }];
        for _ in 0..2 {
            let shared = self.random.chance(25);
            calls.push(SharedCall::Lock { slot: 0, shared, kind });
            calls.push(SharedCall::Read { slot: 0 });
            calls.push(match appends {
                _ if shared => SharedCall::Fstat { slot: 0 },
                true => SharedCall::Append { slot: 0, word: self.word(program) },
                false => self.write(program, 0, 0),
            });
            calls.push(SharedCall::Unlock { slot: 0, kind });
        }
        calls
    }

    fn any(&mut self, program: usize, kind: Option<SharedLockKind>) -> SharedCall {
        let shared = self.random.chance(30);
        match (self.random.below(100), kind) {
            (0..40, _) => self.about_names(),
            (40..50, _) => SharedCall::Open { slot: 0, name: self.name(), appends: self.random.chance(40) },
            (50..62, Some(kind)) => SharedCall::Lock { slot: 0, shared, kind },
            (62..70, Some(kind)) => SharedCall::Unlock { slot: 0, kind },
            _ => match self.on_a_file(program) {
                SharedCall::Append { word, .. } => SharedCall::Append { slot: 0, word },
                SharedCall::Truncate { size, .. } => SharedCall::Truncate { slot: 0, size },
                SharedCall::Read { .. } => SharedCall::Read { slot: 0 },
                SharedCall::Fstat { .. } => SharedCall::Fstat { slot: 0 },
                SharedCall::Fsync { .. } => SharedCall::Fsync { slot: 0 },
                SharedCall::Stat { .. } => SharedCall::Stat { name: self.name() },
                SharedCall::ReadFile { .. } => SharedCall::ReadFile { name: self.name() },
                other => other,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const ALL: Offered = Offered { links: true, flock: true, posix: true };

    fn calls(seeds: u64, offered: Offered) -> Vec<SharedCall> {
        let plans = (0..seeds).map(|seed| plan_round(&mut Random::new(seed), 3, offered));
        let of = |plan: RoundPlan| [vec![plan.first], plan.body].concat().concat();
        plans.flat_map(of).map(|(_, call)| call).collect()
    }

    #[test]
    fn every_call_is_drawn_and_no_word_twice_in_a_round() {
        let kinds: BTreeSet<String> = calls(200, ALL)
            .iter()
            .map(|call| format!("{call:?}").split(' ').next().unwrap_or_default().to_owned())
            .collect();
        assert_eq!(kinds.len(), 19, "{kinds:?}");
        for seed in 0..200 {
            let plan = plan_round(&mut Random::new(seed), 3, ALL);
            let words =
                plan.first.iter().chain(plan.body.iter().flatten()).filter_map(|(_, call)| match call {
                    SharedCall::Write { word, .. } | SharedCall::Append { word, .. } => Some(*word),
                    _ => None,
                });
            let words: Vec<_> = words.collect();
            assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len(), "{plan:?}");
        }
    }

    #[test]
    fn calls_that_are_not_offered_are_not_drawn() {
        let calls = calls(200, Offered { links: false, flock: false, posix: true });
        assert!(!calls.iter().any(|call| matches!(call, SharedCall::Link { .. })));
        let is_flock =
            |call: &SharedCall| matches!(call, SharedCall::Lock { kind: SharedLockKind::Flock, .. });
        assert!(!calls.iter().any(is_flock));
        assert!(calls.iter().any(|call| matches!(call, SharedCall::Lock { .. })));
    }
}
