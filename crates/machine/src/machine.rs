//! A simulated machine, ready to run.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;

use crate::conflict::Conflicts;
use crate::cpu::{Cpu, number_run, while_prepared};
use crate::engine::{Ending, Engine, TIME_MAX};
use crate::fiber::{self, Driven};
use crate::machines;
use crate::report::Report;
use crate::spec::{RunOptions, Spec, VcpuOptions};
use crate::stuck::{RunError, Stuck};

/// A machine and how to run it. Runs do not change it: the same machine with the same seed gives the same
/// result.
#[derive(Clone, Debug)]
pub struct Machine {
    spec: Spec,
    seed: u64,
    stack_bytes: usize,
    options: RunOptions,
}

/// There is no machine of that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMachine {
    /// The name.
    pub name: String,
}

impl fmt::Display for UnknownMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = machines::all().iter().map(|spec| spec.name).collect();
        write!(f, "no machine is called {:?}; there are {}", self.name, names.join(", "))
    }
}

impl std::error::Error for UnknownMachine {}

/// Simulated cycles after which a run counts as endless, unless told otherwise: some seconds of the machine's
/// time.
const CYCLES_MAX: u64 = 10_000_000_000;
/// Room for the closure on each CPU, unless told otherwise.
const STACK_BYTES: usize = 256 * 1024;

impl Machine {
    /// The named machine; [`find`](Machine::find) is for names that users type.
    ///
    /// # Panics
    /// When there is none; the message lists the names.
    pub fn named(name: &str) -> Machine {
        Machine::find(name).unwrap_or_else(|unknown| panic!("{unknown}"))
    }

    /// The named machine.
    ///
    /// # Errors
    /// When there is none; the error lists the names.
    pub fn find(name: &str) -> Result<Machine, UnknownMachine> {
        let spec = machines::find(name).ok_or_else(|| UnknownMachine { name: name.to_owned() })?;
        Ok(Machine::custom(spec))
    }

    /// A machine of one's own.
    ///
    /// # Panics
    /// When the description is at fault: see [`Spec::fault`].
    pub fn custom(spec: Spec) -> Machine {
        if let Some(fault) = spec.fault() {
            panic!("machine {}: {fault}", spec.name);
        }
        let options = RunOptions { jitter: true, cycles_max: CYCLES_MAX, trace: 0 };
        Machine { spec, seed: 1, stack_bytes: STACK_BYTES, options }
    }

    /// Everything that a real machine leaves to chance follows from the seed. 1 unless set.
    pub fn seed(mut self, seed: u64) -> Machine {
        self.seed = seed;
        self
    }

    /// Puts a layer of virtual CPUs on the machine.
    pub fn vcpus(mut self, vcpus: VcpuOptions) -> Machine {
        self.spec.vcpus = Some(vcpus);
        if let Some(fault) = self.spec.fault() {
            panic!("machine {}: {fault}", self.spec.name);
        }
        self
    }

    /// Takes the layer of virtual CPUs away: each CPU is a physical one.
    pub fn bare_metal(mut self) -> Machine {
        self.spec.vcpus = None;
        self
    }

    /// Whether the seed disturbs the CPUs' times a little, so that they do not march in step (as it does
    /// unless set): CPUs start up to 64 hits apart, one miss in 64 is followed by a hiccup of up to twice the
    /// cheapest transfer, and a spinner looks again up to one pause after the change. Without it, costs are
    /// exactly those of the tables.
    pub fn jitter(mut self, jitter: bool) -> Machine {
        self.options.jitter = jitter;
        self
    }

    /// Keeps the last `entries` accesses in the report. 0 (unless set): none.
    pub fn trace(mut self, entries: usize) -> Machine {
        self.options.trace = entries;
        self
    }

    /// Simulated cycles after which a run is given up as endless. 10,000,000,000 unless set.
    pub fn cycles_max(mut self, cycles: u64) -> Machine {
        self.options.cycles_max = cycles.min(TIME_MAX - 1);
        self
    }

    /// Bytes of stack for the closure on each CPU. 256 KiB unless set.
    pub fn stack_bytes(mut self, bytes: usize) -> Machine {
        self.stack_bytes = bytes;
        self
    }

    /// How many CPUs the machine has.
    pub fn cpus_max(&self) -> usize {
        self.spec.cpus
    }

    /// The description of the machine.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Runs `setup` off the machine, as plain code, while [`cpus`](crate::cpus) says `cpus`: for objects with
    /// room for each CPU that are made before the run.
    pub fn prepare<R>(&self, cpus: usize, setup: impl FnOnce() -> R) -> R {
        while_prepared(cpus, setup)
    }

    /// Runs `body` once on each of `cpus` CPUs, to the end.
    ///
    /// # Panics
    /// When a CPU's closure panics (with that CPU's number), and where [`try_run`](Machine::try_run) gives an
    /// error.
    pub fn run(&self, cpus: usize, body: impl Fn(Cpu)) -> Report {
        self.try_run(cpus, body).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs `body` once on each of `cpus` CPUs, to the end.
    ///
    /// # Errors
    /// When the machine has not so many CPUs, when nobody can go on, when the limit of time is reached.
    ///
    /// # Panics
    /// When a CPU's closure panics (with that CPU's number), and on a simulated CPU: runs do not nest.
    pub fn try_run(&self, cpus: usize, body: impl Fn(Cpu)) -> Result<Report, RunError> {
        let max = self.spec.cpus;
        if !(1..=max).contains(&cpus) {
            return Err(RunError::Cpus { asked: cpus, max, machine: self.spec.name });
        }
        let mut engine = Engine::new(self.spec.clone(), cpus, self.seed, &self.options);
        number_run();
        match fiber::drive(&mut engine, self.stack_bytes, &|cpu| body(Cpu::new(cpu))) {
            Driven::Ended(Ending::Finished) => Ok(Report::of(engine, self.seed)),
            Driven::Ended(Ending::Stuck) => Err(RunError::Stuck(Stuck::of(&mut engine))),
            Driven::Ended(Ending::TooLong) => Err(RunError::TooLong { cycles_max: self.options.cycles_max }),
            Driven::Panicked(cpu, payload) => pass_on(cpu, payload),
        }
    }

    /// Runs `first` and `second` at the same time on CPUs 0 and 1, and says which lines both touched while at least one
    /// wrote. State that the activities need is best set up, and warmed up, before.
    ///
    /// # Errors
    /// Errors of [`try_run`](Machine::try_run); a machine of one CPU cannot do it.
    pub fn conflicts(&self, first: impl FnOnce(), second: impl FnOnce()) -> Result<Conflicts, RunError> {
        let (first, second) = (RefCell::new(Some(first)), RefCell::new(Some(second)));
        let report = self.try_run(2, |cpu| {
            if cpu.id() == 0 {
                let first = first.borrow_mut().take();
                first.into_iter().for_each(|first| cpu.watch(first));
            } else {
                let second = second.borrow_mut().take();
                second.into_iter().for_each(|second| cpu.watch(second));
            }
        })?;
        Ok(report.conflicts)
    }
}

/// Passes a panic of a CPU's closure on, with the CPU's number where the message is text.
fn pass_on(cpu: usize, payload: Box<dyn Any + Send>) -> ! {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    match text.or_else(|| payload.downcast_ref::<String>().cloned()) {
        Some(text) => panic!("on simulated CPU {cpu}: {text}"),
        None => std::panic::resume_unwind(payload),
    }
}
