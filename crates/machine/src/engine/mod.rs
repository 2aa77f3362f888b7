//! The engine: the state of one run, and what an access does to it.
//!
//! # Theory
//! Each CPU has a clock in cycles. An access is charged to the clock first; then, with no switch in between,
//! the caller does the real operation on the host's memory. So the operations of all CPUs happen one after
//! the other, and any run is sequentially consistent.
//!
//! **Order.** The CPU with the least clock runs. Events that concern other CPUs (a miss, a wake-up) wait until the
//! CPU's clock is the least: such events happen in the exact order of simulated time. A *hit* concerns nobody (unless
//! somebody has asked for the line): it may be done up to the *look-ahead* past the least clock. The look-ahead is the
//! cheapest transfer that takes something from another cache. That is the classical bound of conservative simulation:
//! whatever a CPU at time t begins, no other can notice before t + look-ahead. So a CPU works on its own lines without
//! a switch to the others for dozens of accesses, and the result is one that the real order allows too. A line notes
//! until when its owner has used it, ahead of time or not, so nobody receives a value before it was written.
//!
//! **Jitter.** On a real machine no two rounds of a loop take the same time. Without that, programs fall into
//! step: a CPU that frees a lock and takes it again always wins, by the same few cycles, for ever. So, from
//! the seed: CPUs start up to 64 hits apart; one miss in 64 is followed by a hiccup of up to twice the
//! look-ahead (a TLB miss, an interrupt); a spinner looks again up to a pause after the change.
//!
//! # Cost
//! A hit is one probe of a hash table, one line record and one CPU record; no allocation. A miss is a
//! replay of the clock tree (log CPUs) and, if another CPU is due, a switch of coroutines.

mod clock_tree;
mod directory;
pub(crate) mod line;
mod line_table;
mod schedule;
mod sleep;
mod statistics;
pub(crate) mod topology;
mod vcpu;

use std::panic::Location;

use clock_tree::ClockTree;
pub(crate) use clock_tree::TIME_MAX;
use directory::DirectoryRequest;
use line::{Line, NOBODY, Prices};
pub(crate) use line_table::LINE_BYTES;
use line_table::LineTable;
pub(crate) use schedule::{Ending, Pick};
pub(crate) use sleep::Woken;
pub(crate) use statistics::{LineStatistics, SiteStatistics};
use topology::Topology;

use crate::access::Access;
use crate::cpu_set::CpuSet;
use crate::random::Random;
use crate::spec::{Costs, Kind, RunOptions, Spec};
use crate::trace::Ring;
use crate::watch::Watch;

/// The next step of the calling coroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum EngineStep {
    /// Go on.
    Done,
    /// Let others run, then ask again.
    Again,
}

/// The state of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Running, or due to run.
    Ready,
    /// Waiting for a line, behind others.
    Queued,
    /// Spinning on unchanged lines; costs the host nothing until one changes.
    Spinning {
        /// Whether the program said that it waits for a change (and did not merely look as if).
        certain: bool,
    },
    /// Asleep on the word at this address.
    Parked {
        /// Address of the word.
        word: usize,
    },
    /// Stopped until kicked.
    Halted,
    /// The closure has returned.
    Finished,
}

/// The most lines that a spinner can wait on at once.
pub(crate) const SPIN_LINES_MAX: usize = 8;

/// The number of misses of which one is followed by a hiccup.
const HICCUP_ONE_IN: u64 = 64;

/// The lines loaded since the last spin hint.
#[derive(Clone, Copy, Default)]
struct Window {
    lines: [u32; SPIN_LINES_MAX],
    /// How many loads; beyond `SPIN_LINES_MAX` the window does not look like a spin.
    loads: usize,
}

impl Window {
    #[inline]
    fn note(&mut self, kind: Kind, line: u32) {
        match kind {
            Kind::Load => {
                self.lines[self.loads % SPIN_LINES_MAX] = line;
                self.loads += 1;
            }
            Kind::Store | Kind::Rmw => self.spoil(),
        }
    }

    /// Whether the line was loaded since the last hint.
    fn holds(&self, line: u32) -> bool {
        self.as_spin().is_some_and(|lines| lines.contains(&line))
    }

    /// Marks the accesses since the last hint as more than reading.
    fn spoil(&mut self) {
        self.loads = SPIN_LINES_MAX + 1;
    }

    fn as_spin(&self) -> Option<&[u32]> {
        (1..=SPIN_LINES_MAX).contains(&self.loads).then(|| &self.lines[..self.loads])
    }
}

/// One simulated CPU.
pub(crate) struct CpuState {
    /// Its time, in cycles.
    pub(crate) clock: u64,
    pub(crate) accesses: u64,
    pub(crate) misses: u64,
    pub(crate) ops: u64,
    /// Cycles in spin hints, and asleep on unchanged lines.
    pub(crate) spinning: u64,
    /// Cycles parked or halted.
    pub(crate) idle: u64,
    /// Cycles runnable without a physical CPU.
    pub(crate) preempted: u64,
    pub(crate) doing: Doing,
    pub(crate) random: Random,
    window: Window,
    last_window: Window,
    /// Lines that a spinner waits on; meaningful while `doing` is `Spinning`.
    waits_on: Window,
    /// Where the program waits or waited last.
    waits_at: &'static Location<'static>,
    /// The access that waits at a directory.
    request: Option<DirectoryRequest>,
    /// Interrupts that came meanwhile, in cycles.
    interrupted: u64,
    /// When the present wait, or the present stretch without a physical CPU, began.
    since: u64,
    /// When the wait ends by itself; `TIME_MAX`: never.
    deadline: u64,
    /// How the last wait ended.
    woken: Woken,
    /// A kick that came before its halt.
    kicked: bool,
    /// Whether it has a physical CPU.
    on_cpu: bool,
    /// The time at which another waiting CPU gets its physical CPU.
    slice_end: u64,
}

pub(crate) struct Engine {
    pub(crate) spec: Spec,
    costs: Costs,
    topology: Topology,
    prices: Prices,
    table: LineTable,
    pub(crate) lines: Vec<Line>,
    pub(crate) statistics: Vec<LineStatistics>,
    sleepers: Vec<CpuSet>,
    pub(crate) cpus: Vec<CpuState>,
    /// The CPU that runs.
    current: usize,
    /// Before this time hits take the short path; 0 while each access is watched.
    short_before: u64,
    /// Up to this time the current CPU may hit.
    hit_until: u64,
    /// Up to this time the current CPU may do what concerns others.
    act_until: u64,
    tree: ClockTree,
    random: Random,
    jitter: bool,
    parked: Vec<usize>,
    vcpu: Option<vcpu::Layer>,
    cycles_max: u64,
    /// How often a spinner that nobody can wake was let go on, since anything last changed.
    rescues: usize,
    pub(crate) trace: Option<Ring>,
    pub(crate) watch: Watch,
}

impl Engine {
    pub(crate) fn new(spec: Spec, cpus: usize, seed: u64, options: &RunOptions) -> Engine {
        let mut random = Random::new(seed);
        let state = |cpu: usize| CpuState {
            clock: 0,
            accesses: 0,
            misses: 0,
            ops: 0,
            spinning: 0,
            idle: 0,
            preempted: 0,
            doing: Doing::Ready,
            random: Random::new(seed ^ (cpu as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)),
            window: Window::default(),
            last_window: Window::default(),
            waits_on: Window::default(),
            waits_at: Location::caller(),
            request: None,
            interrupted: 0,
            since: 0,
            deadline: TIME_MAX,
            woken: Woken::Change,
            kicked: false,
            on_cpu: true,
            slice_end: TIME_MAX,
        };
        let mut states: Vec<CpuState> = (0..cpus).map(state).collect();
        if options.jitter && cpus > 1 {
            let skew = u64::from(spec.costs.hit) * 64;
            for cpu in &mut states {
                cpu.clock = random.below(skew);
                cpu.idle = cpu.clock;
            }
        }
        let vcpu = spec.vcpus.clone().map(|vcpus| vcpu::Layer::new(vcpus, cpus));
        let mut engine = Engine {
            costs: spec.costs.clone(),
            topology: Topology::new(&spec),
            prices: Prices::new(&spec),
            spec,
            table: LineTable::new(),
            lines: Vec::new(),
            statistics: Vec::new(),
            sleepers: Vec::new(),
            cpus: states,
            current: 0,
            short_before: 0,
            hit_until: 0,
            act_until: 0,
            tree: ClockTree::new(cpus),
            random,
            jitter: options.jitter,
            parked: Vec::new(),
            vcpu,
            cycles_max: options.cycles_max.min(TIME_MAX - 1),
            rescues: 0,
            trace: (options.trace > 0).then(|| Ring::new(options.trace)),
            watch: Watch::default(),
        };
        engine.start();
        engine
    }

    pub(crate) fn current(&self) -> usize {
        self.current
    }

    pub(crate) fn node(&self, cpu: usize) -> usize {
        self.topology.node(cpu)
    }

    pub(crate) fn me(&mut self) -> &mut CpuState {
        &mut self.cpus[self.current]
    }

    fn hit_cost(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Load | Kind::Store => self.costs.hit.into(),
            Kind::Rmw => self.costs.rmw_hit.into(),
        }
    }

    /// An access by the current CPU, if it hits and need not be looked at closely.
    #[inline]
    pub(crate) fn short_access(&mut self, address: usize, kind: Kind) -> bool {
        let cost = self.hit_cost(kind);
        let cpu = &mut self.cpus[self.current];
        if cpu.clock >= self.short_before {
            return false;
        }
        let Some(id) = self.table.get((address / LINE_BYTES) as u64) else { return false };
        let line = &mut self.lines[id as usize];
        if !line.hit(kind, self.current) || line.first != NOBODY {
            return false;
        }
        cpu.clock += cost;
        cpu.accesses += 1;
        cpu.window.note(kind, id);
        line.use_copy(kind, self.current, cpu.clock);
        true
    }

    /// An access of `length` bytes within one line, with everything that can happen.
    pub(crate) fn long_access(
        &mut self,
        address: usize,
        length: usize,
        kind: Kind,
        site: &'static Location<'static>,
    ) -> EngineStep {
        let id = self.line_of(address);
        let (me, now) = (self.current, self.cpus[self.current].clock);
        let line = &self.lines[id as usize];
        let hit = line.hit(kind, me);
        // A hit concerns CPUs that wait for the line: it is theirs as soon as their order has reached it.
        let until = if hit && line.first == NOBODY { self.hit_until } else { self.act_until };
        // A CPU that has asked for the line comes back when its transfer reaches it.
        if now > until && self.cpus[me].request.is_none() {
            return EngineStep::Again;
        }
        let end = if hit {
            let end = now + self.hit_cost(kind);
            self.lines[id as usize].use_copy(kind, me, end);
            end
        } else {
            let Some(planned) = self.transfer(id, kind) else { return EngineStep::Again };
            self.lines[id as usize].fetch(kind, me, planned, &self.prices)
        };
        let began = self.served(now);
        let delay = if hit { 0 } else { self.hiccup() };
        let cpu = &mut self.cpus[me];
        cpu.clock = end + delay + std::mem::take(&mut cpu.interrupted);
        cpu.accesses += 1;
        cpu.misses += u64::from(!hit);
        // A line that was lost and came back since the last hint may have been looked at before the change and
        // not after it: the round says nothing about the line as it is now.
        let came_back = !hit && cpu.window.holds(id);
        cpu.window.note(kind, id);
        if came_back {
            cpu.window.spoil();
        }
        let access =
            Access { cpu: me, kind, site, offset: (address % LINE_BYTES) as u8, length: length as u8 };
        if !hit {
            self.statistics[id as usize].miss(&access, end - began);
            if kind.writes() {
                self.wake_spinners(id, end);
            }
        }
        if let Some(trace) = &mut self.trace {
            trace.push(began, end, id, address, &access);
        }
        self.watch.note(id, &access);
        EngineStep::Done
    }

    /// The occasional delay between an access that missed and the next instruction.
    #[inline]
    fn hiccup(&mut self) -> u64 {
        if !self.jitter {
            return 0;
        }
        let chance = self.random.next();
        if chance.is_multiple_of(HICCUP_ONE_IN) { (chance >> 32) % (2 * self.prices.least) } else { 0 }
    }

    /// The number of the line at `address`, a new one if it is touched for the first time.
    fn line_of(&mut self, address: usize) -> u32 {
        let tag = (address / LINE_BYTES) as u64;
        if let Some(id) = self.table.get(tag) {
            return id;
        }
        let id = self.lines.len() as u32;
        self.table.insert(tag, id);
        self.lines.push(Line::new(self.topology.node(self.current)));
        self.statistics.push(LineStatistics::new(tag));
        id
    }

    /// Lets `cycles` go by on the current CPU.
    pub(crate) fn spend(&mut self, cycles: u64) {
        let cpu = &mut self.cpus[self.current];
        cpu.clock = (cpu.clock + cycles).min(TIME_MAX);
    }

    /// Local computation: gives up to the end of the time slice at a time, and takes what was done off
    /// `left`.
    pub(crate) fn work(&mut self, left: &mut u64) -> EngineStep {
        let slice_end = self.cpus[self.current].slice_end.min(self.cycles_max + 1);
        let clock = self.cpus[self.current].clock;
        let part = (*left).min(slice_end.saturating_sub(clock));
        self.spend(part);
        *left -= part;
        if *left == 0 && clock + part < slice_end { EngineStep::Done } else { EngineStep::Again }
    }

    pub(crate) fn fence(&mut self) {
        self.spend(self.costs.fence.into());
    }

    /// Reads the cycle counter. A loop that looks at the time is not one that only waits for a change.
    pub(crate) fn read_clock(&mut self) -> u64 {
        self.spend(self.costs.clock_read.into());
        let cpu = self.me();
        cpu.window.spoil();
        cpu.clock
    }

    /// `Done` when the current CPU's clock is the least, so that it may do what concerns others.
    pub(crate) fn turn(&self) -> EngineStep {
        if self.cpus[self.current].clock > self.act_until { EngineStep::Again } else { EngineStep::Done }
    }

    /// `Again` when the current CPU has used up its time slice, or the run its time.
    pub(crate) fn overdue(&self) -> EngineStep {
        let cpu = &self.cpus[self.current];
        if cpu.clock >= cpu.slice_end || cpu.clock > self.cycles_max {
            EngineStep::Again
        } else {
            EngineStep::Done
        }
    }

    /// Starts or ends looking at every access.
    pub(crate) fn set_watching(&mut self, cpu_watches: bool) {
        self.watch.set(self.current, cpu_watches);
        self.set_short();
    }

    fn set_short(&mut self) {
        let all = self.trace.is_some() || self.watch.is_on(self.current);
        self.short_before = if all { 0 } else { self.hit_until + 1 };
    }

    /// A way to name the line that holds a CPU's run state: an address where no object can be.
    fn run_state_address(cpu: usize) -> usize {
        usize::MAX - (cpu + 1) * LINE_BYTES + 1
    }

    /// The CPU whose run state is on the line with this tag.
    pub(crate) fn run_state_of(tag: u64) -> Option<usize> {
        let last = (usize::MAX / LINE_BYTES) as u64;
        (tag <= last && last - tag < crate::CPUS_MAX as u64).then_some((last - tag) as usize)
    }
}
