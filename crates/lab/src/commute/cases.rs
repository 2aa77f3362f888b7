//! Cases: pairs of calls in small states, of which the model says that they commute.
//!
//! # Theory
//! Two calls commute in a state when both orders give both the same answers and leave states that no program can
//! tell apart. By the scalable commutativity rule (Clements and others, SOSP 2013) an implementation exists in
//! which such calls share no written line. The tree of each state holds every relation that matters to a pair of
//! calls: names in one directory and in two, that exist and do not, two names of one file, a symbolic link,
//! directories empty and not, a mount; descriptors of one file and of two, shared and not, at the same offset and
//! at another, of a file without a name.
//!
//! The names are such that no two that a pair of calls uses fall into one bucket of a directory's table: what
//! shares a bucket shares a lock, by chance and not by meaning. Files that are locked have been locked before: a
//! file's lock state is made once.

use super::call::{CREATE, Call, From, How, Lock, READ, WRITE};
use super::model::ModelOutcome;
use super::world::World;
use sluice_vfs_sim::Errno;
use std::fmt;

/// The relation of the two callers, and the calls before the case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CaseState {
    /// Two processes, each with open files of its own.
    Apart,
    /// Two threads of one process.
    OneProcess,
    /// Two processes that share open files.
    Forked,
    /// As `Apart`, with file locks held.
    Locked,
}

impl CaseState {
    pub(super) const ALL: [CaseState; 4] =
        [CaseState::Apart, CaseState::OneProcess, CaseState::Forked, CaseState::Locked];

    /// The process in which each of the two actors calls.
    pub(super) fn processes(self) -> [usize; 2] {
        if self == CaseState::OneProcess { [0, 0] } else { [0, 1] }
    }

    /// Whether the pair of calls can see what is special about the state.
    fn concerns(self, calls: [&Call; 2]) -> bool {
        let both_use = calls.iter().all(|call| call.uses_descriptors());
        match self {
            CaseState::Apart => true,
            CaseState::OneProcess | CaseState::Forked => both_use,
            CaseState::Locked => both_use && calls.iter().any(|call| call.concerns_locks()),
        }
    }
}

/// The tree, made by process 0.
pub(super) const TREE: &[Call] = &[
    Call::Mkdir("/d"),
    Call::Mkdir("/e"),
    Call::Mkdir("/m"),
    Call::Open("/d/f", CREATE),
    Call::Write(0, 4),
    Call::Posix(0, Lock::Exclusive, 0, 1),
    Call::Posix(0, Lock::Unlock, 0, 1),
    Call::Close(0),
    Call::Open("/d/g", CREATE),
    Call::Write(0, 4),
    Call::Posix(0, Lock::Exclusive, 0, 1),
    Call::Posix(0, Lock::Unlock, 0, 1),
    Call::Close(0),
    Call::Open("/d/b", CREATE),
    Call::Close(0),
    Call::Link("/d/b", "/e/v"),
    Call::Mkdir("/d/s"),
    Call::Mkdir("/d/t"),
    Call::Open("/d/t/i", CREATE),
    Call::Close(0),
    Call::Symlink("/d/f", "/d/j"),
    Call::Open("/e/o", CREATE),
    Call::Write(0, 2),
    Call::Posix(0, Lock::Exclusive, 0, 1),
    Call::Posix(0, Lock::Unlock, 0, 1),
    Call::Close(0),
    Call::Open("/e/p", CREATE),
    Call::Close(0),
    Call::Mkdir("/e/u"),
    Call::Mkdir("/e/q"),
    Call::Mount("/m"),
    Call::Open("/m/k", CREATE),
    Call::Write(0, 2),
    Call::Close(0),
    Call::Open("/d/z", CREATE),
    Call::Close(0),
];

/// The files that each process opens: descriptors 0 to 6.
pub(super) const DESCRIPTORS: &[Call] = &[
    Call::Open("/d/f", WRITE),
    Call::Open("/d/f", WRITE),
    Call::Open("/d/g", WRITE),
    Call::Open("/e/o", How { append: true, ..WRITE }),
    Call::Open("/d", How { directory: true, ..READ }),
    Call::Open("/e", How { directory: true, ..READ }),
    Call::Open("/d/z", WRITE),
    Call::Lseek(1, 2, From::Start),
];

/// Done by process 0 when everything is open: descriptor 6 loses its name.
pub(super) const LATE: &[Call] = &[Call::Unlink("/d/z")];

/// The locks of [`CaseState::Locked`], by process.
pub(super) const LOCKS: &[(usize, Call)] = &[
    (0, Call::Posix(0, Lock::Exclusive, 0, 2)),
    (1, Call::Ofd(0, Lock::Shared, 2, 4)),
    (0, Call::Flock(2, Lock::Shared)),
    (1, Call::Flock(2, Lock::Shared)),
];

/// Every call with every pattern of arguments.
const CALLS: &[Call] = &[
    Call::Open("/d/f", READ),
    Call::Open("/d/f", How { truncate: true, ..WRITE }),
    Call::Open("/d/g", WRITE),
    Call::Open("/d/j", READ),
    Call::Open("/d/x", READ),
    Call::Open("/d", How { directory: true, ..READ }),
    Call::Open("/e/o", READ),
    Call::Open("/m/k", READ),
    Call::Open("/d/x", CREATE),
    Call::Open("/d/a", CREATE),
    Call::Open("/d/f", CREATE),
    Call::Open("/d/f", How { exclusive: false, ..CREATE }),
    Call::Open("/e/x", CREATE),
    Call::Open("/m/x", CREATE),
    Call::Close(0),
    Call::Close(1),
    Call::Close(2),
    Call::Close(6),
    Call::Close(9),
    Call::Dup(0),
    Call::Dup(2),
    Call::Dup(9),
    Call::Stat("/d/f"),
    Call::Stat("/d/g"),
    Call::Stat("/d/b"),
    Call::Stat("/e/v"),
    Call::Stat("/d/x"),
    Call::Stat("/d/j"),
    Call::Stat("/d/s"),
    Call::Stat("/d"),
    Call::Stat("/e/o"),
    Call::Stat("/m/k"),
    Call::Lstat("/d/f"),
    Call::Lstat("/d/j"),
    Call::Lstat("/d/t/i"),
    Call::Fstat(0),
    Call::Fstat(1),
    Call::Fstat(2),
    Call::Fstat(4),
    Call::Fstat(6),
    Call::Fstat(9),
    Call::Lseek(0, 0, From::Start),
    Call::Lseek(0, 2, From::Start),
    Call::Lseek(0, 0, From::Here),
    Call::Lseek(1, 0, From::End),
    Call::Lseek(2, 2, From::Start),
    Call::Lseek(2, -9, From::Here),
    Call::Lseek(4, 0, From::Start),
    Call::Read(0, 2),
    Call::Read(1, 2),
    Call::Read(2, 2),
    Call::Read(4, 2),
    Call::Read(6, 2),
    Call::Write(0, 2),
    Call::Write(1, 2),
    Call::Write(2, 2),
    Call::Write(3, 2),
    Call::Write(4, 2),
    Call::Pread(0, 2, 0),
    Call::Pread(0, 2, 2),
    Call::Pread(1, 1, 1),
    Call::Pread(2, 4, 0),
    Call::Pread(2, 2, 4),
    Call::Pread(6, 2, 0),
    Call::Pwrite(0, 2, 0),
    Call::Pwrite(0, 2, 2),
    Call::Pwrite(1, 1, 0),
    Call::Pwrite(1, 1, 1),
    Call::Pwrite(2, 2, 0),
    Call::Pwrite(2, 2, 4),
    Call::Pwrite(6, 2, 0),
    Call::Truncate("/d/f", 0),
    Call::Truncate("/d/g", 4),
    Call::Truncate("/d/g", 2),
    Call::Truncate("/d/x", 0),
    Call::Truncate("/e/o", 0),
    Call::Ftruncate(0, 4),
    Call::Ftruncate(0, 2),
    Call::Ftruncate(2, 6),
    Call::Ftruncate(6, 0),
    Call::Ftruncate(4, 0),
    Call::Link("/d/f", "/d/x"),
    Call::Link("/d/f", "/d/a"),
    Call::Link("/d/g", "/d/x"),
    Call::Link("/d/g", "/e/x"),
    Call::Link("/d/x", "/d/a"),
    Call::Link("/d/f", "/d/g"),
    Call::Link("/d/s", "/d/x"),
    Call::Link("/d/f", "/m/x"),
    Call::Unlink("/d/f"),
    Call::Unlink("/d/g"),
    Call::Unlink("/d/b"),
    Call::Unlink("/e/v"),
    Call::Unlink("/d/x"),
    Call::Unlink("/d/s"),
    Call::Unlink("/d/j"),
    Call::Unlink("/e/o"),
    Call::Unlink("/m/k"),
    Call::Rename("/d/f", "/d/x"),
    Call::Rename("/d/f", "/d/g"),
    Call::Rename("/d/g", "/d/a"),
    Call::Rename("/d/g", "/e/x"),
    Call::Rename("/d/f", "/e/o"),
    Call::Rename("/e/o", "/e/x"),
    Call::Rename("/d/x", "/d/a"),
    Call::Rename("/d/b", "/e/v"),
    Call::Rename("/d/s", "/d/x"),
    Call::Rename("/d/s", "/e/x"),
    Call::Rename("/e/u", "/e/a"),
    Call::Rename("/e/u", "/d/a"),
    Call::Rename("/d/f", "/m/x"),
    Call::Mkdir("/d/x"),
    Call::Mkdir("/d/a"),
    Call::Mkdir("/d/f"),
    Call::Mkdir("/e/x"),
    Call::Mkdir("/d/s/x"),
    Call::Rmdir("/d/s"),
    Call::Rmdir("/d/t"),
    Call::Rmdir("/d/f"),
    Call::Rmdir("/e/u"),
    Call::Rmdir("/e/q"),
    Call::Rmdir("/d/x"),
    Call::Symlink("/d/g", "/d/x"),
    Call::Symlink("/d/g", "/d/a"),
    Call::Symlink("/d/g", "/d/f"),
    Call::Symlink("/d/g", "/e/x"),
    Call::Readlink("/d/j"),
    Call::Readlink("/d/f"),
    Call::Readlink("/d/x"),
    Call::Chmod("/d/f", 0o600),
    Call::Chmod("/d/g", 0o600),
    Call::Chmod("/d/b", 0o600),
    Call::Chmod("/d/x", 0o600),
    Call::Chmod("/d/s", 0o700),
    Call::Chmod("/e/o", 0o600),
    Call::Readdir(4, 64),
    Call::Readdir(5, 64),
    Call::Readdir(4, 3),
    Call::Readdir(5, 2),
    Call::Readdir(0, 64),
    Call::Posix(0, Lock::Exclusive, 0, 1),
    Call::Posix(0, Lock::Exclusive, 2, 3),
    Call::Posix(1, Lock::Shared, 2, 4),
    Call::Posix(0, Lock::Unlock, 0, 4),
    Call::Posix(2, Lock::Shared, 0, 4),
    Call::Posix(2, Lock::Exclusive, 1, 2),
    Call::Ofd(0, Lock::Exclusive, 0, 1),
    Call::Ofd(1, Lock::Exclusive, 3, 4),
    Call::Ofd(0, Lock::Shared, 2, 4),
    Call::Ofd(2, Lock::Exclusive, 0, 2),
    Call::Ofd(2, Lock::Unlock, 0, 4),
    Call::Flock(0, Lock::Exclusive),
    Call::Flock(0, Lock::Shared),
    Call::Flock(2, Lock::Shared),
    Call::Flock(2, Lock::Unlock),
    Call::Flock(3, Lock::Exclusive),
    Call::Mount("/d/s"),
    Call::Mount("/e/u"),
    Call::Umount("/m"),
    Call::Umount("/d"),
    Call::Bind("/d", "/e/q"),
    Call::Bind("/e", "/d/s"),
];

/// Two calls that commute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) state: CaseState,
    pub(super) calls: [Call; 2],
}

/// The model's prediction for a case, in either order of its calls.
pub(super) struct Expected {
    /// The answers of the calls.
    pub(super) outcomes: [ModelOutcome; 2],
    /// How they leave the world.
    pub(super) after: World,
}

/// The worlds of all states, before the calls.
pub(super) struct Worlds([(CaseState, World); 4]);

impl Worlds {
    pub(super) fn new() -> Worlds {
        Worlds(CaseState::ALL.map(|state| (state, world(state))))
    }

    /// The model's prediction for `case`; the second call comes first if `turned`.
    fn perform(&self, case: &Case, turned: bool) -> Expected {
        let (_, before) = self.0.iter().find(|(state, _)| *state == case.state).expect("all are there");
        let mut after = before.clone();
        let mut outcomes = [Err(Errno::EINVAL), Err(Errno::EINVAL)];
        for actor in if turned { [2, 1] } else { [1, 2] } {
            let process = case.state.processes()[actor - 1];
            outcomes[actor - 1] = after.perform(actor, process, &case.calls[actor - 1]);
        }
        Expected { outcomes, after }
    }

    /// The model's prediction for `case`, in the order of its calls.
    pub(super) fn expected(&self, case: &Case) -> Expected {
        self.perform(case, false)
    }

    /// Whether the calls commute.
    fn commute(&self, case: &Case) -> bool {
        let (one, other) = (self.perform(case, false), self.perform(case, true));
        one.outcomes == other.outcomes && one.after == other.after
    }

    /// All cases, in a fixed order; those of one pair of calls only, if that is given.
    pub(super) fn cases(&self, pair: Option<[&str; 2]>) -> Vec<Case> {
        let mut cases = Vec::new();
        for (number, first) in CALLS.iter().enumerate() {
            for second in &CALLS[number..] {
                let names = [first.name(), second.name()];
                if pair.is_some_and(|[a, b]| [a, b] != names && [b, a] != names) {
                    continue;
                }
                let states = CaseState::ALL.into_iter().filter(|state| state.concerns([first, second]));
                let candidates = states.map(|state| Case { state, calls: [*first, *second] });
                cases.extend(candidates.filter(|case| self.commute(case)));
            }
        }
        cases
    }
}

impl Case {
    /// The names of the calls.
    pub(super) fn names(&self) -> [&'static str; 2] {
        [self.calls[0].name(), self.calls[1].name()]
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = &self.calls;
        let state = match self.state {
            CaseState::Apart => "",
            CaseState::OneProcess => ", one process",
            CaseState::Forked => ", after fork",
            CaseState::Locked => ", with locks",
        };
        write!(f, "{first} | {second}{state}")
    }
}

/// The world of each state, before the calls.
pub(super) fn world(state: CaseState) -> World {
    let mut world = World::new();
    let mut done = |process: usize, call: &Call| {
        let outcome = world.perform(0, process, call);
        assert!(outcome.is_ok(), "setting up: {call}: {outcome:?}");
    };
    TREE.iter().for_each(|call| done(0, call));
    DESCRIPTORS.iter().for_each(|call| done(0, call));
    if matches!(state, CaseState::Apart | CaseState::Locked) {
        DESCRIPTORS.iter().for_each(|call| done(1, call));
    }
    if state == CaseState::Locked {
        LOCKS.iter().for_each(|(process, call)| done(*process, call));
    }
    LATE.iter().for_each(|call| done(0, call));
    if state == CaseState::Forked {
        world.processes[1] = world.processes[0].clone();
    }
    world
}

/// The names of all calls, in the order in which they are listed.
pub(super) fn names() -> Vec<&'static str> {
    let mut names: Vec<&'static str> = Vec::new();
    for call in CALLS {
        if !names.contains(&call.name()) {
            names.push(call.name());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commute(state: CaseState, first: Call, second: Call) -> bool {
        Worlds::new().commute(&Case { state, calls: [first, second] })
    }

    #[test]
    fn the_model_knows_what_commutes() {
        let (x, y) = (Call::Open("/d/x", CREATE), Call::Open("/d/a", CREATE));
        assert!(commute(CaseState::Apart, x, y), "different names in one directory");
        assert!(!commute(CaseState::OneProcess, x, y), "both want the lowest descriptor");
        assert!(!commute(CaseState::Apart, x, x), "one comes first");
        assert!(!commute(CaseState::Apart, x, Call::Stat("/d")), "the directory's size tells");
        assert!(commute(CaseState::Apart, Call::Write(0, 2), Call::Stat("/d/g")));
        assert!(!commute(CaseState::Forked, Call::Read(0, 2), Call::Read(0, 2)), "one offset");
        assert!(commute(CaseState::Apart, Call::Read(0, 2), Call::Read(0, 2)), "two offsets");
        assert!(
            !commute(CaseState::Apart, Call::Pwrite(0, 2, 0), Call::Pwrite(1, 1, 1)),
            "the last one shows"
        );
        assert!(
            commute(CaseState::Apart, Call::Unlink("/d/b"), Call::Unlink("/e/v")),
            "two names of one file"
        );
        assert!(
            !commute(CaseState::Apart, Call::Unlink("/d/b"), Call::Stat("/e/v")),
            "the count of links tells"
        );
        let (low, high) = (Call::Ofd(0, Lock::Exclusive, 0, 1), Call::Ofd(1, Lock::Exclusive, 3, 4));
        assert!(commute(CaseState::Apart, low, high), "different ranges");
        assert!(!commute(CaseState::Apart, Call::Rename("/d/s", "/e/x"), Call::Rename("/e/u", "/e/x")));
    }

    #[test]
    fn there_are_as_many_cases_as_the_best_study_had() {
        let cases = Worlds::new().cases(None).len();
        assert!(cases >= 13_664, "{cases}");
        assert!(names().len() >= 18);
    }
}
