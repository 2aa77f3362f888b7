//! The calling CPU: its number, its clock, its work.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cpu_set::CPUS_MAX;
use crate::fiber;
use crate::spec::Kind;

thread_local! {
    /// CPUs of the run that is being prepared; 0: none.
    static PREPARED: Cell<usize> = const { Cell::new(0) };
    /// The number of the run; 0: off the machine.
    static RUN: Cell<u64> = const { Cell::new(0) };
}

static RUNS: AtomicU64 = AtomicU64::new(1);

/// Sets what [`cpus`] says while `setup` runs.
pub(crate) fn while_prepared<R>(cpus: usize, setup: impl FnOnce() -> R) -> R {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            PREPARED.set(self.0);
        }
    }
    let _restore = Restore(PREPARED.replace(cpus));
    setup()
}

/// Whether the caller is on a simulated CPU or sets up for it.
#[inline]
pub(crate) fn in_simulation() -> bool {
    on_machine() || PREPARED.get() != 0
}

/// Gives the coming run a number of its own.
pub(crate) fn number_run() {
    RUN.set(RUNS.fetch_add(1, Ordering::Relaxed));
}

/// Whether the caller runs on a simulated CPU.
#[inline]
pub fn on_machine() -> bool {
    fiber::on_machine()
}

/// A number for the present run, different from those of all other runs of this process; 0 off the machine.
/// For state kept per CPU that must not leak from one run into the next.
pub fn run_id() -> u64 {
    if on_machine() { RUN.get() } else { 0 }
}

/// The number of the calling CPU; 0 off the machine. Not charged: it stands for a register or a line of the
/// CPU's own.
#[inline]
pub fn cpu() -> usize {
    fiber::current()
}

/// How many CPUs the run has. Off the machine: what [`Machine::prepare`](crate::Machine::prepare) says, else
/// [`CPUS_MAX`].
#[inline]
pub fn cpus() -> usize {
    fiber::ask(|engine| engine.cpus.len()).unwrap_or_else(|| match PREPARED.get() {
        0 => CPUS_MAX,
        cpus => cpus,
    })
}

/// The node of `cpu`; 0 off the machine.
pub fn node_of(cpu: usize) -> usize {
    fiber::ask(|engine| engine.node(cpu)).unwrap_or(0)
}

/// The node of the calling CPU; 0 off the machine.
pub fn node() -> usize {
    fiber::ask(|engine| engine.node(engine.current())).unwrap_or(0)
}

/// Reads the cycle counter; costs what that costs. 0 off the machine.
pub fn now() -> u64 {
    fiber::ask(|engine| engine.read_clock()).unwrap_or(0)
}

/// Cycles in a microsecond; 1,000 off the machine.
pub fn cycles_per_us() -> u64 {
    fiber::ask(|engine| engine.spec.mhz.into()).unwrap_or(1000)
}

/// Computes for `cycles` without touching memory that others use.
pub fn work(cycles: u64) {
    let mut left = cycles;
    fiber::ask_until_done(|engine| engine.work(&mut left));
}

/// A random number from the calling CPU's own seeded sequence, for back-off and sampling; 0 off the machine.
/// Not charged.
pub fn random() -> u64 {
    fiber::ask(|engine| engine.program_random().next()).unwrap_or(0)
}

/// A barrier that all other running CPUs pass too, as `membarrier(2)` in its expedited form: the caller pays
/// for an interrupt to each, and each pays for being interrupted.
pub fn membarrier() {
    fiber::ask_until_done(|engine| engine.turn());
    fiber::ask(|engine| engine.interrupt_others());
}

/// Whether `cpu` runs: not parked, not halted, not preempted. The answer costs a load of the line that says
/// so, which `cpu` (or the hypervisor) writes when that changes; a spinner that asks is woken by the change.
/// `true` off the machine.
///
/// # Panics
/// When the run has no such CPU.
#[track_caller]
pub fn is_running(cpu: usize) -> bool {
    assert!(cpu < cpus(), "is_running({cpu}): the run has no such CPU");
    let Some((address, _)) = fiber::ask(|engine| engine.run_state(cpu)) else { return true };
    fiber::access(address, 4, Kind::Load, Location::caller());
    fiber::ask(|engine| engine.run_state(cpu).1).unwrap_or(true)
}

/// The handle that a run gives to the closure on each CPU.
#[derive(Debug)]
pub struct Cpu {
    id: usize,
    /// A handle stays on its CPU.
    not_send: PhantomData<*const ()>,
}

impl Cpu {
    pub(crate) fn new(id: usize) -> Cpu {
        Cpu { id, not_send: PhantomData }
    }

    /// The number of this CPU, from 0.
    pub fn id(&self) -> usize {
        self.id
    }

    /// The node of this CPU.
    pub fn node(&self) -> usize {
        node()
    }

    /// How many CPUs the run has.
    pub fn cpus(&self) -> usize {
        cpus()
    }

    /// The clock of this CPU, in cycles since the start of the run. Free, unlike [`now`]: the experimenter's
    /// clock, not the program's. A loop `while cpu.now() < limit` needs something in it that takes time.
    pub fn now(&self) -> u64 {
        fiber::ask(|engine| engine.me().clock).unwrap_or(0)
    }

    /// Computes for `cycles` cycles: the free function [`work`], for code that has a CPU.
    pub fn work(&self, cycles: u64) {
        work(cycles);
    }

    /// Counts one operation of the workload, for throughput and fairness in the report.
    pub fn count_op(&self) {
        self.count_ops(1);
    }

    /// Counts `ops` operations.
    pub fn count_ops(&self, ops: u64) {
        fiber::ask(|engine| engine.me().ops += ops);
    }

    /// A number below `bound` from this CPU's own seeded sequence.
    pub fn random(&self, bound: u64) -> u64 {
        fiber::ask(|engine| engine.program_random().below(bound)).unwrap_or(0)
    }

    /// Watches every access of this CPU while `activity` runs; what watched activities of several CPUs have
    /// in common is in [`Report::conflicts`](crate::Report::conflicts).
    pub fn watch<R>(&self, activity: impl FnOnce() -> R) -> R {
        fiber::ask(|engine| engine.set_watching(true));
        let result = activity();
        fiber::ask(|engine| engine.set_watching(false));
        result
    }
}
