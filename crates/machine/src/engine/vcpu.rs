//! The hypervisor's scheduler: which virtual CPUs have a physical one.
//!
//! # Theory
//! One first-in-first-out queue for all physical CPUs. A virtual CPU's clock stands still while it is in the
//! queue: if it held a lock, everybody waits for it (lock-holder preemption); if it is next in line for one,
//! everybody behind it waits (lock-waiter preemption). Time slices end only while somebody waits, at the
//! first step past the end: a step is an access, or a part of a computation, so the overrun is one access.
//!
//! # Invariants
//! - I1: `free` + the CPUs with `on_cpu` (+ those stolen) is the number of physical CPUs.
//! - I2: with a free physical CPU the queue is empty.
//! - I3: a CPU in the queue has no entry in the clock tree.

use std::collections::VecDeque;

use super::{Doing, Engine, TIME_MAX, Woken};
use crate::spec::VcpuOptions;

pub(crate) struct Layer {
    options: VcpuOptions,
    /// Physical CPUs without work.
    free: usize,
    /// Virtual CPUs that could run.
    queue: VecDeque<usize>,
}

impl Layer {
    pub(super) fn new(options: VcpuOptions, cpus: usize) -> Layer {
        Layer { free: options.physical, options, queue: VecDeque::with_capacity(cpus) }
    }
}

impl Engine {
    /// At the start of a run: whether `cpu` has a physical CPU.
    pub(super) fn give_first_slice(&mut self, cpu: usize) -> bool {
        let Some(layer) = &mut self.vcpu else { return true };
        if layer.free == 0 {
            layer.queue.push_back(cpu);
            self.cpus[cpu].on_cpu = false;
            return false;
        }
        layer.free -= 1;
        // First slices are of random length, or all physical CPUs would switch at the same time for ever.
        let quantum = layer.options.quantum;
        self.cpus[cpu].slice_end = 1 + quantum / 4 + self.random.below(quantum * 3 / 4);
        true
    }

    /// `cpu`, which has stopped at `time`, frees its physical CPU.
    pub(super) fn release(&mut self, cpu: usize, time: u64) {
        let Some(layer) = &mut self.vcpu else { return };
        layer.free += 1;
        self.cpus[cpu].on_cpu = false;
        self.cpus[cpu].slice_end = TIME_MAX;
        self.dispatch(time);
    }

    /// `cpu` has become runnable at `time`.
    pub(super) fn acquire(&mut self, cpu: usize, time: u64) {
        let Some(layer) = &mut self.vcpu else {
            self.enqueue(cpu);
            self.lower_horizon(time);
            return;
        };
        if layer.free > 0 {
            layer.free -= 1;
            let slice_end = time + layer.options.quantum;
            self.cpus[cpu].on_cpu = true;
            self.cpus[cpu].slice_end = slice_end;
            self.enqueue(cpu);
            self.lower_horizon(time);
            return;
        }
        layer.queue.push_front(cpu);
        let granularity = layer.options.wakeup_granularity;
        self.cpus[cpu].since = time;
        let running = (0..self.cpus.len()).filter(|&cpu| self.cpus[cpu].on_cpu);
        if let Some(victim) = running.min_by_key(|&cpu| self.cpus[cpu].slice_end) {
            self.cpus[victim].slice_end = self.cpus[victim].slice_end.min(time + granularity);
        }
        self.time_slices(time);
    }

    /// A CPU waits for a physical one since `time`: slices end again, also those of spinners, which have no
    /// other event.
    fn time_slices(&mut self, time: u64) {
        for cpu in 0..self.cpus.len() {
            if cpu == self.current {
                self.lower_horizon(self.cpus[cpu].slice_end.saturating_sub(1));
            }
            if self.cpus[cpu].on_cpu && matches!(self.cpus[cpu].doing, Doing::Spinning { .. }) {
                let timer = self.spinner_timer(cpu, time);
                self.enqueue_timer(cpu, timer);
            }
        }
    }

    /// When a spinner must be looked at: its deadline, or the end of its slice while somebody waits.
    pub(super) fn spinner_timer(&self, cpu: usize, now: u64) -> u64 {
        let state = &self.cpus[cpu];
        let contended = self
            .vcpu
            .as_ref()
            .is_some_and(|layer| !layer.queue.is_empty() || layer.options.steal_per_mille > 0);
        if contended { state.deadline.min(state.slice_end.max(now)) } else { state.deadline }
    }

    /// Gives free physical CPUs, at `time`, to virtual ones that wait.
    fn dispatch(&mut self, time: u64) {
        while let Some(layer) = self.vcpu.as_mut().filter(|layer| layer.free > 0) {
            let Some(cpu) = layer.queue.pop_front() else { return };
            layer.free -= 1;
            let (switch, quantum) = (layer.options.switch, layer.options.quantum);
            let state = &mut self.cpus[cpu];
            // While it was off, `since` was the time it lost its physical CPU.
            let start = time.max(state.since) + switch;
            state.preempted += start - state.since;
            state.since = start;
            state.on_cpu = true;
            state.slice_end = start + quantum;
            state.clock = start;
            self.go_on(cpu, start);
        }
    }

    fn go_on(&mut self, cpu: usize, time: u64) {
        match self.cpus[cpu].doing {
            Doing::Spinning { .. } if self.cpus[cpu].deadline <= time => {
                self.wake_spinner(cpu, time, Woken::Deadline);
            }
            Doing::Spinning { .. } => {
                let timer = self.spinner_timer(cpu, time);
                self.enqueue_timer(cpu, timer);
            }
            _ => {
                self.enqueue(cpu);
                self.lower_horizon(time);
            }
        }
        self.publish_run_state(cpu);
    }

    /// The slice of `cpu` is over at `time`.
    pub(super) fn expire(&mut self, cpu: usize, time: u64) {
        let Some(layer) = &mut self.vcpu else { return };
        let (quantum, steal) = (layer.options.quantum, layer.options.steal);
        let stolen = steal > 0 && self.random.below(1000) < layer.options.steal_per_mille.into();
        if !stolen && layer.queue.is_empty() {
            self.cpus[cpu].slice_end = time + quantum;
            if matches!(self.cpus[cpu].doing, Doing::Spinning { .. }) {
                let timer = self.spinner_timer(cpu, time);
                self.enqueue_timer(cpu, timer);
            }
            return;
        }
        let state = &mut self.cpus[cpu];
        if matches!(state.doing, Doing::Spinning { .. }) {
            state.spinning += time.saturating_sub(state.since);
        }
        state.clock = state.clock.max(time);
        state.since = state.clock;
        state.on_cpu = false;
        let now = state.clock;
        if stolen {
            // Another guest has the physical CPU meanwhile.
            state.slice_end = TIME_MAX;
            self.tree.set(cpu, now + steal, 0);
        } else {
            state.slice_end = TIME_MAX;
            self.tree.clear(cpu);
            layer.queue.push_back(cpu);
            layer.free += 1;
        }
        self.publish_run_state(cpu);
        self.dispatch(now);
    }

    /// The other guest gives the physical CPU back to `cpu`.
    pub(super) fn steal_over(&mut self, cpu: usize, time: u64) {
        let quantum = self.vcpu.as_ref().map_or(TIME_MAX, |layer| layer.options.quantum);
        let state = &mut self.cpus[cpu];
        state.preempted += time - state.since;
        state.since = time;
        state.clock = time;
        state.on_cpu = true;
        state.slice_end = time.saturating_add(quantum).min(TIME_MAX);
        self.tree.clear(cpu);
        self.go_on(cpu, time);
    }
}
