//! Two locks of `lock_api` and whether they scale: `cargo run -p sluice-machine --example scales`.

use lock_api::{GuardSend, RawMutex};
use sluice_machine::atomic::{AtomicU32, AtomicUsize, Ordering};
use sluice_machine::cell::OwnLine;
use sluice_machine::{CPUS_MAX, Scales, cpu, spin_loop};

/// First come, first served; all wait on one word.
pub(crate) struct Ticket {
    next: AtomicU32,
    serving: AtomicU32,
}

// SAFETY: each number is taken once, and `serving` reaches it by the store of the owner before.
unsafe impl RawMutex for Ticket {
    const INIT: Ticket = Ticket { next: AtomicU32::new(0), serving: AtomicU32::new(0) };
    type GuardMarker = GuardSend;

    fn lock(&self) {
        let mine = self.next.fetch_add(1, Ordering::Relaxed);
        while self.serving.load(Ordering::Acquire) != mine {
            spin_loop();
        }
    }

    fn try_lock(&self) -> bool {
        let mine = self.serving.load(Ordering::Acquire);
        self.next.compare_exchange(mine, mine.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    unsafe fn unlock(&self) {
        let mine = self.serving.load(Ordering::Relaxed);
        self.serving.store(mine.wrapping_add(1), Ordering::Release);
    }
}

/// How many may wait in a [`Queue`]: a power of two, so that numbers may wrap.
const PLACES: usize = CPUS_MAX;

/// First come, first served; each waits on a line of its own (T. Anderson, 1990).
pub(crate) struct Queue {
    next: OwnLine<AtomicUsize>,
    /// The number whose turn it is, written at its place.
    turns: [OwnLine<AtomicUsize>; PLACES],
    /// The number of the owner on each CPU: what would be thread-local elsewhere.
    mine: [OwnLine<AtomicUsize>; CPUS_MAX],
}

// SAFETY: each number is taken once, and its turn is written once, by the owner before.
unsafe impl RawMutex for Queue {
    const INIT: Queue = Queue {
        next: OwnLine(AtomicUsize::new(PLACES)),
        // The turn of number PLACES, at place 0, has come.
        turns: {
            let mut turns = [const { OwnLine(AtomicUsize::new(0)) }; PLACES];
            turns[0] = OwnLine(AtomicUsize::new(PLACES));
            turns
        },
        mine: [const { OwnLine(AtomicUsize::new(0)) }; CPUS_MAX],
    };
    type GuardMarker = GuardSend;

    fn lock(&self) {
        let mine = self.next.fetch_add(1, Ordering::Relaxed);
        while self.turns[mine % PLACES].load(Ordering::Acquire) != mine {
            spin_loop();
        }
        self.mine[cpu()].store(mine, Ordering::Relaxed);
    }

    fn try_lock(&self) -> bool {
        let mine = self.next.load(Ordering::Relaxed);
        let is_free = self.turns[mine % PLACES].load(Ordering::Acquire) == mine
            && self
                .next
                .compare_exchange(mine, mine.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_free {
            self.mine[cpu()].store(mine, Ordering::Relaxed);
        }
        is_free
    }

    unsafe fn unlock(&self) {
        let next = self.mine[cpu()].load(Ordering::Relaxed).wrapping_add(1);
        self.turns[next % PLACES].store(next, Ordering::Release);
    }
}

fn main() {
    for cpus in [8, 16, 32, 64, 128, 160, 256] {
        let scales = Scales::to(cpus).at_least(0.8);
        for verdict in [scales.mutex::<Ticket>(), scales.mutex::<Queue>()] {
            match verdict {
                Ok(scaling) => println!("{scaling}"),
                Err(failure) => println!("FAILED: {failure}"),
            }
        }
    }
}
