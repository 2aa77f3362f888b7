//! Textbook locks, written against the machine as a stranger would write them.

use std::cell::RefCell;
use std::ptr;

use sluice_machine::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use sluice_machine::cell::OwnLine;
use sluice_machine::{CPUS_MAX, Machine, Report, cpu, pause, random, spin_loop, spin_until};

/// Runs a critical section under a lock.
pub(crate) trait Lock: Default {
    fn with(&self, section: impl FnOnce());
}

/// Test-and-set.
#[derive(Default)]
pub(crate) struct Tas(OwnLine<AtomicU32>);

impl Lock for Tas {
    fn with(&self, section: impl FnOnce()) {
        while self.0.swap(1, Ordering::Acquire) != 0 {
            spin_loop();
        }
        section();
        self.0.store(0, Ordering::Release);
    }
}

/// Test-and-test-and-set with exponential back-off.
#[derive(Default)]
pub(crate) struct Ttas(OwnLine<AtomicU32>);

impl Lock for Ttas {
    fn with(&self, section: impl FnOnce()) {
        let mut bound = 4;
        while self.0.load(Ordering::Relaxed) != 0 || self.0.swap(1, Ordering::Acquire) != 0 {
            pause(1 + random() % bound);
            bound = (bound * 2).min(1024);
        }
        section();
        self.0.store(0, Ordering::Release);
    }
}

/// First come, first served; all wait on one word.
#[derive(Default)]
pub(crate) struct Ticket(OwnLine<TicketWords>);

#[derive(Default)]
struct TicketWords {
    next: AtomicU32,
    serving: AtomicU32,
}

impl Lock for Ticket {
    fn with(&self, section: impl FnOnce()) {
        let mine = self.0.next.fetch_add(1, Ordering::Relaxed);
        while self.0.serving.load(Ordering::Acquire) != mine {
            spin_loop();
        }
        section();
        self.0.serving.store(mine + 1, Ordering::Release);
    }
}

/// Mellor-Crummey and Scott's queue: each waits on a line of its own.
pub(crate) struct Mcs {
    tail: OwnLine<AtomicPtr<McsNode>>,
    nodes: Vec<OwnLine<McsNode>>,
}

#[derive(Default)]
struct McsNode {
    next: AtomicPtr<McsNode>,
    waits: AtomicBool,
    index: usize,
}

impl Default for Mcs {
    fn default() -> Mcs {
        let node = |index| OwnLine(McsNode { index, ..McsNode::default() });
        Mcs { tail: OwnLine::default(), nodes: (0..CPUS_MAX).map(node).collect() }
    }
}

impl Mcs {
    /// The node at a pointer that is known to point into `nodes`.
    fn node(&self, at: *mut McsNode) -> &McsNode {
        let base = ptr::from_ref(&self.nodes[0]).addr();
        &self.nodes[(at.addr() - base) / size_of::<OwnLine<McsNode>>()]
    }
}

impl Lock for Mcs {
    fn with(&self, section: impl FnOnce()) {
        let mine = &self.nodes[cpu()].0;
        assert_eq!(mine.index, cpu());
        let at = ptr::from_ref(mine).cast_mut();
        mine.next.store(ptr::null_mut(), Ordering::Relaxed);
        mine.waits.store(true, Ordering::Relaxed);
        let before = self.tail.swap(at, Ordering::AcqRel);
        if !before.is_null() {
            self.node(before).next.store(at, Ordering::Release);
            spin_until(&mine.waits, |waits| !waits);
        }
        section();
        let none = ptr::null_mut();
        if self.tail.compare_exchange(at, none, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            let next = spin_until(&mine.next, |next| !next.is_null());
            self.node(next).waits.store(false, Ordering::Release);
        }
    }
}

/// Each CPU takes the lock again and again until `until` cycles: `inside` cycles in it, up to twice `outside`
/// between.
pub(crate) fn contend<L: Lock>(
    machine: &Machine,
    cpus: usize,
    until: u64,
    inside: u64,
    outside: u64,
) -> Report {
    let lock = Box::new(L::default());
    let held = RefCell::new(());
    machine.run(cpus, |cpu| {
        while cpu.now() < until {
            lock.with(|| {
                let _alone = held.try_borrow_mut().expect("nobody else is in the critical section");
                cpu.work(inside);
            });
            cpu.count_op();
            cpu.work(outside + cpu.random(outside));
        }
    })
}
