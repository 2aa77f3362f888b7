//! History: calls of the name space that overlap in time, drawn by a seed and recorded on the simulated machine.

use super::call::{CREATE, Call, How, READ};
use super::cases::CaseState;
use super::run::machine;
use super::stage::{CallAnswer, Stage};
use crate::simulated_fs::On;
use sluice_sync::random::Random;
use sluice_vfs_sim::Errno;
use std::cell::RefCell;
use std::fmt;

/// The paths that calls may name: the more often two calls meet, the more a history says.
pub(super) const PATHS: &[&str] =
    &["/d/f", "/d/g", "/d/b", "/d/x", "/d/j", "/d/s", "/d/t/i", "/e/o", "/e/v", "/e/x", "/e/u"];
/// The number of paths that the calls of one history name.
const PATHS_OF_A_HISTORY: usize = 3;
const CPUS_MIN: u64 = 2;
const CPUS_MAX: u64 = 4;
/// Calls of one CPU.
const CALLS_MIN: u64 = 2;
const CALLS_MAX: u64 = 4;
/// Cycles by which the clocks of two CPUs cannot be compared: some transfers of a line, as a CPU may still use its copy
/// while the change is on its way.
const SKEW_MAX: u64 = 400;
/// How often in every other history each CPU has walked the paths before, so that it remembers them and walks otherwise.
const WALKS_BEFORE: usize = 3;
/// Cycles that a CPU lets go by before a call: about what a call takes.
const PAUSE_MAX: u64 = 4000;

/// One call, with its time on the machine's clock.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) cpu: usize,
    pub(super) process: usize,
    pub(super) call: Call,
    /// Cycles at which it was called.
    pub(super) called: u64,
    /// Cycles at which it had returned.
    pub(super) returned: u64,
    pub(super) answer: Result<CallAnswer, Errno>,
}

impl Recorded {
    /// Whether the call had returned before the other began.
    pub(super) fn precedes(&self, other: &Recorded) -> bool {
        let skew = if self.cpu == other.cpu { 0 } else { SKEW_MAX };
        self.returned + skew < other.called
    }

    /// Whether the call, as it answered, changes nothing whenever it is done.
    pub(super) fn only_looks(&self) -> bool {
        let looks =
            matches!(self.call, Call::Stat(_) | Call::Lstat(_) | Call::Readlink(_) | Call::Readdir(..));
        looks || self.answer.is_err()
    }
}

/// The calls of a run.
pub(super) struct History {
    /// By CPU, and by time on each.
    pub(super) calls: Vec<Recorded>,
    /// The stage after the calls.
    pub(super) stage: Stage,
}

impl History {
    /// Runs the calls that `seed` draws, in the state [`CaseState::Apart`], on a machine with that seed.
    ///
    /// # Errors
    /// Text, if the state cannot be made or the machine gets stuck.
    pub(super) fn record(seed: u64) -> Result<History, String> {
        let mut random = Random::new(seed);
        let (paths, programs) = draw_programs(&mut random);
        let walks_before = if seed.is_multiple_of(2) { WALKS_BEFORE } else { 0 };
        let machine = machine().jitter(true).seed(seed);
        let stage = machine.prepare(programs.len(), || Stage::set_up(CaseState::Apart, On::Ram))?;
        let logs: Vec<RefCell<Vec<Recorded>>> = programs.iter().map(|_| RefCell::default()).collect();
        let run = machine.try_run(programs.len(), |this| {
            let (cpu, process) = (this.id(), process_of(this.id()));
            for path in std::iter::repeat_n(&paths, walks_before).flatten() {
                // The answer does not matter: other CPUs may be at work.
                _ = stage.perform(0, process, &Call::Lstat(path));
            }
            for &(pause, call) in &programs[cpu] {
                this.work(pause);
                let called = this.now();
                let answer = stage.perform(0, process, &call);
                let returned = this.now();
                logs[cpu].borrow_mut().push(Recorded { cpu, process, call, called, returned, answer });
            }
        });
        run.map_err(|error| error.to_string())?;
        Ok(History { calls: logs.into_iter().flat_map(RefCell::into_inner).collect(), stage })
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.calls.iter().try_for_each(|recorded| {
            let Recorded { cpu, call, called, returned, answer, .. } = recorded;
            writeln!(f, "CPU {cpu} {called:>8} .. {returned:>8}  {call} = {answer:?}")
        })
    }
}

/// There are two processes. The CPUs after the first two make no calls that need a descriptor: which descriptor is the
/// lowest free one is decided when a path has been walked, which is another instant.
fn process_of(cpu: usize) -> usize {
    cpu % 2
}

/// The calls of a CPU, each after a pause of so many cycles.
type Program = Vec<(u64, Call)>;

/// The paths that calls name, and a program for each CPU.
fn draw_programs(random: &mut Random) -> (Vec<&'static str>, Vec<Program>) {
    let paths: Vec<&'static str> = (0..PATHS_OF_A_HISTORY).map(|_| random.pick(PATHS)).collect();
    let cpus = random.between(CPUS_MIN, CPUS_MAX) as usize;
    let programs = (0..cpus).map(|cpu| {
        let mut program = Program::new();
        for _ in 0..random.between(CALLS_MIN, CALLS_MAX) {
            let call = draw_call(random, &paths, cpu < 2);
            // A directory is read from its beginning only once.
            let again =
                matches!(call, Call::Readdir(..)) && program.iter().any(|(_, earlier)| *earlier == call);
            if !again {
                program.push((random.between(0, PAUSE_MAX), call));
            }
        }
        program
    });
    let programs = programs.collect();
    (paths, programs)
}

fn draw_call(random: &mut Random, paths: &[&'static str], descriptors: bool) -> Call {
    let (path, other) = (random.pick(paths), random.pick(paths));
    match random.between(0, if descriptors { 14 } else { 10 }) {
        0 | 1 => Call::Rename(path, other),
        2 => Call::Link(path, other),
        3 | 4 => Call::Unlink(path),
        5 => Call::Mkdir(path),
        6 => Call::Rmdir(path),
        7 => Call::Symlink("/d/f", path),
        8 => Call::Readlink(path),
        9 => Call::Stat(path),
        10 => Call::Lstat(path),
        11 => Call::Open(path, CREATE),
        12 => Call::Open(path, How { exclusive: false, ..CREATE }),
        13 => Call::Open(path, READ),
        _ => Call::Readdir(random.pick(&[4, 5]), 64),
    }
}
