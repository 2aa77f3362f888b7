//! Scales: a test for authors of locks, which fails where a lock loses its rate on many CPUs, and names the worst wait.
//!
//! ```
//! use sluice_machine::Scales;
//! # use lock_api::{GuardSend, RawMutex};
//! # use sluice_machine::atomic::{AtomicBool, Ordering};
//! # use sluice_machine::spin_loop;
//! # struct MyLock(AtomicBool);
//! # unsafe impl RawMutex for MyLock {
//! #     const INIT: MyLock = MyLock(AtomicBool::new(false));
//! #     type GuardMarker = GuardSend;
//! #     fn lock(&self) { while !self.try_lock() { spin_loop() } }
//! #     fn try_lock(&self) -> bool { !self.0.swap(true, Ordering::Acquire) }
//! #     unsafe fn unlock(&self) { self.0.store(false, Ordering::Release) }
//! # }
//! let verdict = Scales::to(64).at_least(0.8).mutex::<MyLock>();
//! println!("{}", verdict.unwrap_err()); // MyLock is test-and-set, which does not scale
//! ```
//!
//! # Theory
//! One operation is: take the lock, compute for some cycles *inside*, give it back, and compute *outside*, for half of a mean to
//! once and a half, by chance. The share of the rate that is **kept** has two meanings:
//!
//! - A *mutex* lets one CPU in at a time. Its rate cannot grow past a point, and it must not fall: kept is the rate of all CPUs over
//!   the best that a half, a quarter and an eighth of them reach.
//! - *Readers*, and operations without exclusion, need not wait for each other: kept is the rate of all over as many times the
//!   rate of one.
//!
//! Unless told otherwise, a quarter of the CPUs would just use a lock up of which each operation moves four lines over the
//! machine's longest way. So the full number is past the limit of any lock; one that costs the same however many CPUs wait
//! keeps its rate there, and one that costs more the more wait does not.
//!
//! The machine is simulated and the seed is fixed, so a lock has the same verdict in every run, on every computer.
//!
//! # Any lock of `lock_api`
//! [`mutex`](Scales::mutex) and [`readers`](Scales::readers) take the traits [`RawMutex`] and [`RawRwLock`] as they are. The lock's
//! own source must be written over this machine: the machine does not see a lock that was compiled over `std::sync::atomic`, and
//! where such a lock waits the run hangs. Replace these names, in the one module of the lock that imports them:
//!
//! | of the standard library | of this crate |
//! |---|---|
//! | `std::sync::atomic` | [`atomic`](crate::atomic), with the same names |
//! | `std::hint::spin_loop`, bounded back-off | [`spin_loop`](crate::spin_loop), [`pause`](crate::pause) |
//! | a futex, `thread::park` | [`park`](crate::park()) and [`unpark`](crate::unpark) |
//! | `thread_local!` | an array by [`cpu()`](crate::cpu()) |
//!
//! A lock that queues its waiters in a table of its crate, as parking_lot does, needs that table over these atomics, too.

use std::any::type_name;
use std::error::Error;
use std::fmt;

use lock_api::{RawMutex, RawRwLock};

use crate::cell::OwnLine;
use crate::cpu::Cpu;
use crate::label::{label, last_part};
use crate::machine::Machine;
use crate::machines;
use crate::report::{HotLine, HotPlace, HotSite, Report};
use crate::spec::Kind;

/// Cycles that the lock is held, unless told otherwise.
const INSIDE: u64 = 100;
/// Lines that an operation of a good lock moves.
const LINES_MOVED: u64 = 4;
/// How many operations a CPU does that waits for nothing.
const OPERATIONS: u64 = 40;

/// How a lock is loaded, and how much of its rate must be left.
#[derive(Clone, Debug)]
pub struct Scales {
    machine: Machine,
    cpus: usize,
    at_least: f64,
    inside: u64,
    outside: Option<u64>,
}

impl Scales {
    /// On `cpus` CPUs of the smallest named machine of bare metal that has so many. 0.8 must be kept unless told otherwise.
    ///
    /// # Panics
    /// If `cpus` is 0, or if no named machine has so many CPUs.
    pub fn to(cpus: usize) -> Scales {
        let fits = |spec: &&'static crate::Spec| (1..=spec.cpus).contains(&cpus) && spec.vcpus.is_none();
        let spec = machines::all().into_iter().find(fits);
        let spec =
            spec.unwrap_or_else(|| panic!("no machine has {cpus} CPUs; give 1 to {}", crate::CPUS_MAX));
        Scales { machine: Machine::custom(spec.clone()), cpus, at_least: 0.8, inside: INSIDE, outside: None }
    }

    /// The share of the rate that must be kept: see the theory above.
    pub fn at_least(mut self, share: f64) -> Scales {
        self.at_least = share;
        self
    }

    /// Another machine, or another seed.
    pub fn on(mut self, machine: Machine) -> Scales {
        self.machine = machine;
        self
    }

    /// Cycles of computing under the lock. 100 unless set.
    pub fn inside(mut self, cycles: u64) -> Scales {
        self.inside = cycles;
        self
    }

    /// Cycles of computing between two operations of a CPU, in the mean. Unless set: see the theory above.
    pub fn outside(mut self, cycles: u64) -> Scales {
        self.outside = Some(cycles);
        self
    }

    /// Whether the lock `R` keeps its rate: all CPUs take one of them.
    ///
    /// # Errors
    /// It does not.
    ///
    /// # Panics
    /// Panics of [`Machine::run`], for instance if nobody can go on.
    pub fn mutex<R: RawMutex>(&self) -> Result<Scaling, DoesNotScale> {
        let on = |cpus| {
            let lock = Box::new(OwnLine(lock_api::Mutex::<R, ()>::new(())));
            label(&lock.0, last_part(type_name::<R>()), "");
            self.run(cpus, |cpu: &Cpu| {
                let guard = lock.lock();
                cpu.work(self.inside);
                drop(guard);
            })
        };
        let fewer = [8, 4, 2].map(|part| on((self.cpus / part).max(1)));
        let best = fewer.into_iter().max_by(|a, b| a.ops_per_s().total_cmp(&b.ops_per_s()));
        let fewer = best.expect("there are three");
        self.judge(Scaling { name: last_part(type_name::<R>()), times: 1.0, fewer, together: on(self.cpus) })
    }

    /// Whether the lock `R` scales for readers: all CPUs share one of them, and none writes.
    ///
    /// # Errors
    /// It does not.
    ///
    /// # Panics
    /// As [`mutex`](Self::mutex).
    pub fn readers<R: RawRwLock>(&self) -> Result<Scaling, DoesNotScale> {
        self.operation(type_name::<R>(), || {
            let lock = Box::new(OwnLine(lock_api::RwLock::<R, ()>::new(())));
            label(&lock.0, last_part(type_name::<R>()), "");
            move |cpu: &Cpu| {
                let guard = lock.read();
                cpu.work(self.inside);
                drop(guard);
            }
        })
    }

    /// Whether an operation on shared objects scales that excludes nobody. `make` makes the objects anew for each of the two
    /// runs, and gives the operation on them, for which [`inside`](Self::inside) means nothing.
    ///
    /// # Errors
    /// It does not.
    ///
    /// # Panics
    /// As [`mutex`](Self::mutex).
    pub fn operation<O: Fn(&Cpu)>(
        &self,
        name: &'static str,
        make: impl Fn() -> O,
    ) -> Result<Scaling, DoesNotScale> {
        let (fewer, together) = (self.run(1, make()), self.run(self.cpus, make()));
        self.judge(Scaling { name: last_part(name), times: self.cpus as f64, fewer, together })
    }

    fn judge(&self, scaling: Scaling) -> Result<Scaling, DoesNotScale> {
        match scaling.kept() < self.at_least {
            true => Err(DoesNotScale { scaling: Box::new(scaling), at_least: self.at_least }),
            false => Ok(scaling),
        }
    }

    fn run(&self, cpus: usize, operation: impl Fn(&Cpu)) -> Report {
        let outside = self.outside.unwrap_or_else(|| self.outside_by_default());
        let until = OPERATIONS * (self.inside + outside);
        self.machine.run(cpus, |cpu| {
            while cpu.now() < until {
                operation(&cpu);
                cpu.count_op();
                cpu.work(outside / 2 + cpu.random(outside.max(1)));
            }
        })
    }

    fn outside_by_default(&self) -> u64 {
        let longest = self.machine.spec().transfer.rmw_modified.iter().copied().max().unwrap_or(0);
        (self.cpus as u64 / 4).max(1) * (self.inside + LINES_MOVED * u64::from(longest))
    }
}

/// How a lock fared on few CPUs and on many. Its figures are *simulated*.
#[derive(Clone, Debug)]
pub struct Scaling {
    /// The lock's type.
    pub name: &'static str,
    /// How many times the rate of the fewer CPUs would be all that can be had.
    pub times: f64,
    /// The run on fewer CPUs: for a mutex the best of them, otherwise that on one.
    pub fewer: Report,
    /// The run on all of them.
    pub together: Report,
}

impl Scaling {
    /// The share of the rate that is kept on all CPUs.
    pub fn kept(&self) -> f64 {
        self.together.ops_per_s() / (self.times * self.fewer.ops_per_s())
    }

    /// The place in the source where all CPUs together waited longest. `None` where nobody waited.
    pub fn worst_wait(&self) -> Option<&HotPlace> {
        self.together.places.first().filter(|place| place.cost() > 0)
    }

    /// The cache line for which they waited longest.
    pub fn worst_line(&self) -> Option<&HotLine> {
        self.together.hottest.iter().max_by_key(|line| line.stall + line.waited + line.parked)
    }
}

impl fmt::Display for Scaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scaling { name, times, fewer, together } = self;
        let (kept, cpus, machine) = (self.kept(), together.cpus.len(), together.machine);
        let times = if *times > 1.0 { format!("{times} times ") } else { String::new() };
        let fewer = fewer.cpus.len();
        write!(
            f,
            "{name}: {cpus} CPUs of {machine} (simulated) keep {kept:.2} of {times}the rate of {fewer}"
        )?;
        if let Some(place) = self.worst_wait() {
            let all: u64 = together.places.iter().map(HotPlace::cost).sum();
            let percent = 100.0 * place.cost() as f64 / all as f64;
            write!(f, "\n  the worst wait: {percent:.0}% of all waiting, at {}", place.site)?;
        }
        if let Some(line) = self.worst_line() {
            let label = line.sites.first().map_or("", |site| &site.label);
            let label = if label.is_empty() { "a line without a label" } else { label };
            write!(f, "\n  the worst line: {label}, written by {} CPUs", line.writers.len())?;
            let writes = line.sites.iter().filter(|site| site.kind.writes());
            if let Some(HotSite { site, kind, .. }) = writes.max_by_key(|site| site.stall) {
                let how = if *kind == Kind::Rmw { "read-modify-write" } else { "store" };
                write!(f, ", most of all by the {how} at {site}")?;
            }
        }
        Ok(())
    }
}

/// A lock keeps less of its rate than was asked for.
#[derive(Clone)]
pub struct DoesNotScale {
    /// How it fared.
    pub scaling: Box<Scaling>,
    /// The share that had to be kept.
    pub at_least: f64,
}

impl fmt::Display for DoesNotScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} must be kept, but {}", self.at_least, self.scaling)
    }
}

/// As text: a test that fails prints it.
impl fmt::Debug for DoesNotScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for DoesNotScale {}
