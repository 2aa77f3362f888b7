//! Schedule: which CPU runs next, and until when.

use super::{Doing, Engine, EngineStep, TIME_MAX, Woken};
use crate::random::Random;

/// Why a run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Every CPU's closure has returned.
    Finished,
    /// Nobody can go on.
    Stuck,
    /// The limit of simulated time is reached.
    TooLong,
}

/// The scheduler's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    Run(usize),
    End(Ending),
}

/// How many times a spinner that nobody can wake goes on by itself before the run is called stuck, per CPU.
const RESCUES_MAX: usize = 1000;

impl Engine {
    /// Puts all CPUs at their start.
    pub(super) fn start(&mut self) {
        for cpu in 0..self.cpus.len() {
            if self.give_first_slice(cpu) {
                self.enqueue(cpu);
            }
        }
    }

    /// `cpu` is to run at its clock.
    pub(super) fn enqueue(&mut self, cpu: usize) {
        let tie = self.random.next();
        self.tree.set(cpu, self.cpus[cpu].clock, tie);
    }

    /// `cpu` waits, and is looked at again at `time` if nothing happens before.
    pub(super) fn enqueue_timer(&mut self, cpu: usize, time: u64) {
        match time {
            TIME_MAX.. => self.tree.clear(cpu),
            _ => self.tree.set(cpu, time, 0),
        }
        self.lower_horizon(time);
    }

    /// Another CPU has become due at `time`: the current one must not pass it.
    pub(super) fn lower_horizon(&mut self, time: u64) {
        self.act_until = self.act_until.min(time);
        self.hit_until = self.hit_until.min(time + self.prices.least);
        self.set_short();
    }

    /// The coroutine of `cpu` has given up control.
    pub(crate) fn suspended(&mut self, cpu: usize) {
        if self.cpus[cpu].doing == Doing::Ready && self.cpus[cpu].on_cpu {
            self.enqueue(cpu);
        }
    }

    /// The closure of `cpu` has returned.
    pub(crate) fn finish(&mut self, cpu: usize) {
        self.cpus[cpu].doing = Doing::Finished;
        self.publish_run_state(cpu);
        let now = self.cpus[cpu].clock;
        self.release(cpu, now);
    }

    /// Decides which CPU runs.
    pub(crate) fn pick(&mut self) -> Pick {
        loop {
            let Some((cpu, time)) = self.tree.least() else {
                match self.nobody_due() {
                    EngineStep::Again => continue,
                    EngineStep::Done if self.all_finished() => return Pick::End(Ending::Finished),
                    EngineStep::Done => return Pick::End(Ending::Stuck),
                }
            };
            if time > self.cycles_max {
                return Pick::End(Ending::TooLong);
            }
            // A fetch that is under way is completed first, or everybody would wait for the line as long.
            let fetching = self.cpus[cpu].request.is_some();
            if time >= self.cpus[cpu].slice_end && !fetching && !self.all_wait() {
                self.expire(cpu, time);
                continue;
            }
            let doing = self.cpus[cpu].doing;
            match doing {
                Doing::Parked { .. } => self.end_park_by_deadline(cpu, time),
                Doing::Queued | Doing::Halted | Doing::Finished => self.tree.clear(cpu),
                _ if !self.cpus[cpu].on_cpu => self.steal_over(cpu, time),
                Doing::Ready => {
                    self.run_now(cpu);
                    return Pick::Run(cpu);
                }
                Doing::Spinning { .. } => {
                    if self.look_after_spinner(cpu, time) == EngineStep::Done {
                        return Pick::End(Ending::Stuck);
                    }
                }
            }
        }
    }

    /// The time has come for something else than a change of its lines. `Done` when nobody can ever wake it.
    fn look_after_spinner(&mut self, cpu: usize, time: u64) -> EngineStep {
        if time >= self.cpus[cpu].deadline {
            self.wake_spinner(cpu, time, Woken::Deadline);
            return EngineStep::Again;
        }
        if self.nobody_due() == EngineStep::Done && self.all_wait() {
            return EngineStep::Done;
        }
        if matches!(self.cpus[cpu].doing, Doing::Spinning { .. }) {
            let timer = self.spinner_timer(cpu, time + 1);
            self.enqueue_timer(cpu, timer);
        }
        EngineStep::Again
    }

    fn run_now(&mut self, cpu: usize) {
        self.tree.clear(cpu);
        self.current = cpu;
        let stop = self.cpus[cpu].slice_end.saturating_sub(1).min(self.cycles_max);
        let least = self.tree.least_time();
        self.act_until = least.min(stop);
        self.hit_until = (least + self.prices.least).min(stop);
        self.set_short();
    }

    fn all_finished(&self) -> bool {
        self.cpus.iter().all(|cpu| cpu.doing == Doing::Finished)
    }

    /// Whether every CPU waits for another, without a deadline.
    fn all_wait(&self) -> bool {
        !self.cpus.iter().any(|cpu| match cpu.doing {
            Doing::Ready | Doing::Queued => true,
            Doing::Spinning { .. } | Doing::Parked { .. } => cpu.deadline < TIME_MAX,
            Doing::Halted | Doing::Finished => false,
        })
    }

    /// All wait for each other. A loop that only looked like a spin may have a bound that the machine cannot
    /// see: let the one that is furthest behind go round once more. `Again` if there was one.
    fn nobody_due(&mut self) -> EngineStep {
        if !self.all_wait() || self.rescues >= RESCUES_MAX * self.cpus.len() {
            return EngineStep::Done;
        }
        let bounded = |cpu: &usize| self.cpus[*cpu].doing == Doing::Spinning { certain: false };
        let cpus = 0..self.cpus.len();
        let Some(cpu) = cpus.filter(bounded).min_by_key(|&cpu| self.cpus[cpu].since) else {
            return EngineStep::Done;
        };
        self.rescues += 1;
        let time = self.cpus[cpu].since + u64::from(self.costs.pause);
        self.wake_spinner(cpu, time, Woken::Change);
        EngineStep::Again
    }

    /// A random number for the program.
    pub(crate) fn program_random(&mut self) -> &mut Random {
        &mut self.cpus[self.current].random
    }
}
