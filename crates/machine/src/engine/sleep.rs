//! Waiting: spinning on a line, parking on a word, halting a virtual CPU.
//!
//! # Theory
//! A spinner that re-reads a line of which it has a copy learns nothing until another CPU writes: the copy is
//! lost, the next read misses. So the machine lets it sleep until that moment and then charges the one
//! refetch. Its time counts as *spinning*: the CPU is not idle. A parked CPU is *idle*; parking and waking
//! cost what the operating system costs. After the change a spinner is up to one pause into its next look
//! (seeded), so that spinners do not march in step.

use super::{Doing, Engine, EngineStep, LINE_BYTES, SPIN_LINES_MAX, TIME_MAX, Window};
use crate::cpu_set::CpuSet;
use crate::spec::Kind;
use std::panic::Location;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The awaited change happened.
    Change,
    /// The time was up.
    Deadline,
}

impl Engine {
    /// One spin hint: costs a pause. If the loop has now gone round twice over the same unchanged lines, the
    /// CPU sleeps (`Again`). `site` is where the program waits, here and below.
    pub(crate) fn spin_hint(&mut self, site: &'static Location<'static>) -> EngineStep {
        self.pause(1);
        let cpu = &mut self.cpus[self.current];
        let (window, last) = (cpu.window, cpu.last_window);
        cpu.last_window = window;
        cpu.window = Window::default();
        match (window.as_spin(), last.as_spin()) {
            (Some(lines), Some(before)) if lines == before => self.sleep_on(window, TIME_MAX, false, site),
            _ => EngineStep::Done,
        }
    }

    /// `times` pauses.
    pub(crate) fn pause(&mut self, times: u64) {
        let cycles = times.saturating_mul(self.costs.pause.into());
        self.spend(cycles);
        self.me().spinning += cycles;
    }

    /// Sleeps until the line at `address`, which this CPU has just loaded, changes, or until `deadline`.
    /// `Done` if it has changed already.
    pub(crate) fn sleep_on_address(
        &mut self,
        address: usize,
        deadline: u64,
        site: &'static Location<'static>,
    ) -> EngineStep {
        let mut window = Window::default();
        let line = self.line_of(address);
        window.note(Kind::Load, line);
        self.sleep_on(window, deadline, true, site)
    }

    fn sleep_on(
        &mut self,
        window: Window,
        deadline: u64,
        certain: bool,
        site: &'static Location<'static>,
    ) -> EngineStep {
        let me = self.current;
        let lines = &window.lines[..window.loads.min(SPIN_LINES_MAX)];
        if !lines.iter().all(|&line| self.lines[line as usize].sharers.contains(me)) {
            return EngineStep::Done;
        }
        for &line in lines {
            self.add_sleeper(line, me);
        }
        let cpu = &mut self.cpus[me];
        cpu.doing = Doing::Spinning { certain };
        cpu.waits_on = window;
        cpu.waits_at = site;
        cpu.since = cpu.clock;
        cpu.deadline = deadline.max(cpu.clock);
        let time = self.spinner_timer(me, self.cpus[me].clock);
        self.enqueue_timer(me, time);
        EngineStep::Again
    }

    fn add_sleeper(&mut self, line: u32, cpu: usize) {
        let line = &mut self.lines[line as usize];
        if line.sleepers == 0 {
            self.sleepers.push(CpuSet::default());
            line.sleepers = self.sleepers.len() as u32;
        }
        self.sleepers[line.sleepers as usize - 1].insert(cpu);
    }

    /// Wakes all CPUs that spin on a line that was written, at the end of the write.
    #[inline]
    pub(super) fn wake_spinners(&mut self, line: u32, time: u64) {
        let sleepers = self.lines[line as usize].sleepers;
        if sleepers == 0 || self.sleepers[sleepers as usize - 1].is_empty() {
            return;
        }
        let woken = self.sleepers[sleepers as usize - 1];
        self.rescues = 0;
        for cpu in woken.iter() {
            let waited = time.saturating_sub(self.cpus[cpu].since);
            self.statistics[line as usize].spun(cpu, self.cpus[cpu].waits_at, waited);
            let phase = if self.jitter { self.random.below(self.costs.pause.into()) } else { 0 };
            self.wake_spinner(cpu, time + phase, Woken::Change);
        }
    }

    /// Ends the spin of `cpu` at `time`.
    pub(super) fn wake_spinner(&mut self, cpu: usize, time: u64, woken: Woken) {
        let waits_on = self.cpus[cpu].waits_on;
        for &line in &waits_on.lines[..waits_on.loads.min(SPIN_LINES_MAX)] {
            let sleepers = self.lines[line as usize].sleepers as usize;
            self.sleepers[sleepers - 1].remove(cpu);
        }
        let state = &mut self.cpus[cpu];
        state.doing = Doing::Ready;
        state.woken = woken;
        state.deadline = TIME_MAX;
        if !state.on_cpu {
            // It goes on where it left off when it gets a physical CPU again.
            return;
        }
        let time = time.max(state.since);
        state.spinning += time - state.since;
        state.clock = time;
        self.enqueue(cpu);
        self.lower_horizon(time);
    }

    /// How the current CPU's last wait ended.
    pub(crate) fn woken(&self) -> Woken {
        self.cpus[self.current].woken
    }

    /// The current CPU enters the kernel.
    pub(crate) fn enter_kernel(&mut self) {
        self.spend(self.costs.syscall.into());
        self.me().window.spoil();
    }

    /// Puts the current CPU to sleep on `word` until somebody wakes it, or for `timeout` cycles.
    pub(crate) fn park(&mut self, word: usize, timeout: Option<u64>, site: &'static Location<'static>) {
        self.spend(self.costs.sleep.into());
        let me = self.current;
        let cpu = &mut self.cpus[me];
        cpu.doing = Doing::Parked { word };
        cpu.waits_at = site;
        cpu.since = cpu.clock;
        cpu.deadline = timeout.map_or(TIME_MAX, |cycles| cpu.clock.saturating_add(cycles).min(TIME_MAX - 1));
        let (clock, deadline) = (cpu.clock, cpu.deadline);
        self.parked.push(me);
        self.publish_run_state(me);
        self.enqueue_timer(me, deadline);
        self.release(me, clock);
    }

    /// Wakes up to `count` CPUs parked on `word`, in the order in which they came.
    pub(crate) fn unpark(&mut self, word: usize, count: usize) -> usize {
        let mut woken = 0;
        while woken < count {
            let on_word = |&cpu: &usize| self.cpus[cpu].doing == Doing::Parked { word };
            let Some(place) = self.parked.iter().position(on_word) else { break };
            let cpu = self.parked.remove(place);
            self.spend(self.costs.wake.into());
            let time = self.cpus[self.current].clock + u64::from(self.costs.wake_latency);
            let waited = time.saturating_sub(self.cpus[cpu].since);
            let line = self.line_of(word) as usize;
            self.statistics[line].slept(cpu, self.cpus[cpu].waits_at, waited);
            self.end_idle(cpu, time, Woken::Change);
            woken += 1;
        }
        woken
    }

    pub(super) fn end_park_by_deadline(&mut self, cpu: usize, time: u64) {
        self.parked.retain(|&parked| parked != cpu);
        self.end_idle(cpu, time, Woken::Deadline);
    }

    fn end_idle(&mut self, cpu: usize, time: u64, woken: Woken) {
        self.rescues = 0;
        let state = &mut self.cpus[cpu];
        let time = time.max(state.since);
        state.idle += time - state.since;
        state.clock = time;
        state.doing = Doing::Ready;
        state.woken = woken;
        state.deadline = TIME_MAX;
        self.tree.clear(cpu);
        self.acquire(cpu, time);
        self.publish_run_state(cpu);
    }

    /// Stops the current CPU until it is kicked (`Again`); `Done` if a kick has come already.
    pub(crate) fn halt(&mut self) -> EngineStep {
        self.spend(self.costs.halt.into());
        let me = self.current;
        let cpu = &mut self.cpus[me];
        cpu.window.spoil();
        if std::mem::take(&mut cpu.kicked) {
            return EngineStep::Done;
        }
        cpu.doing = Doing::Halted;
        cpu.since = cpu.clock;
        let clock = cpu.clock;
        self.publish_run_state(me);
        self.release(me, clock);
        EngineStep::Again
    }

    /// Ends the halt of `cpu`, or the next one it tries.
    pub(crate) fn kick(&mut self, cpu: usize) {
        self.spend(self.costs.kick.into());
        self.me().window.spoil();
        match self.cpus[cpu].doing {
            Doing::Halted => {
                let time = self.cpus[self.current].clock + u64::from(self.costs.kick_latency);
                self.end_idle(cpu, time, Woken::Change);
            }
            _ => self.cpus[cpu].kicked = true,
        }
    }

    /// Interrupts all other CPUs that run, and waits for their answers.
    pub(crate) fn interrupt_others(&mut self) {
        let mut reached = 0;
        for cpu in 0..self.cpus.len() {
            let state = &mut self.cpus[cpu];
            if cpu == self.current || !state.on_cpu || !matches!(state.doing, Doing::Ready | Doing::Queued) {
                continue;
            }
            reached += 1;
            if state.request.is_some() {
                // The line comes first.
                state.interrupted += u64::from(self.costs.interrupt);
            } else {
                state.clock += u64::from(self.costs.interrupt);
                self.enqueue(cpu);
            }
        }
        let cycles = u64::from(self.costs.syscall) + reached * u64::from(self.costs.ipi);
        self.spend(cycles + if reached > 0 { self.costs.interrupt.into() } else { 0 });
        self.me().window.spoil();
    }

    /// The address to load for the question whether `cpu` runs, and the answer as of now.
    pub(crate) fn run_state(&self, cpu: usize) -> (usize, bool) {
        let state = &self.cpus[cpu];
        let running =
            state.on_cpu && matches!(state.doing, Doing::Ready | Doing::Queued | Doing::Spinning { .. });
        (Engine::run_state_address(cpu), running)
    }

    /// `cpu` has started or stopped running: CPUs that looked at its run state have an old copy. Free for
    /// the CPU itself: its run queue is its own line.
    pub(super) fn publish_run_state(&mut self, cpu: usize) {
        let tag = (Engine::run_state_address(cpu) / LINE_BYTES) as u64;
        let Some(id) = self.table.get(tag) else { return };
        let time = self.cpus[cpu].clock.max(self.lines[id as usize].busy_until);
        self.lines[id as usize].own(cpu, true);
        self.wake_spinners(id, time);
    }

    pub(crate) fn waits_on(&self, cpu: usize) -> &[u32] {
        let window = &self.cpus[cpu].waits_on;
        &window.lines[..window.loads.min(SPIN_LINES_MAX)]
    }

    pub(crate) fn waits_since(&self, cpu: usize) -> u64 {
        self.cpus[cpu].since
    }

    pub(crate) fn line_at(&mut self, address: usize) -> u32 {
        self.line_of(address)
    }
}
