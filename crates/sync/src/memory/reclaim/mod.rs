//! Reclaim: which objects of a cache stay in memory when there is room for some only, decided by each CPU for itself.
//!
//! # Theory
//! For objects that can be read again: inodes and directory entries in front of a store. A [`Reclaimer`] does not find
//! objects, that is the work of the client's table; it keeps their bytes below a limit, and says which have to go.
//!
//! An object enters the queues of the CPU that read it, and stays there. To find it moves nothing: the finder marks the
//! object ([`Usage::touch`]), unless it is marked, and a CPU that wants memory looks at the marks:
//!
//! ```text
//!    read                     old enough            was not found
//!   -------> [ arrivals 5% ] -----------> [ probation 5% ] -------------------> gone, its ghost remains
//!                              (mark off)        | was found                        |
//!   was a ghost                                  v                                  |
//!   ---------------------------------------> [ kept ] -------------------> gone ----+
//!                                             ^    | was found (mark off)
//!                                             +----+
//! ```
//!
//! Objects that are used once, even by a burst of calls (lookup, stat, open, read), have no mark when probation ends,
//! and leave without touching the kept objects: a scan passes through a tenth of the memory. An object that is found
//! again stays as long as it is found at least once in each round of its queue. An object that left too early leaves a
//! *ghost*, a fingerprint of its key, and is kept at once when it returns.
//!
//! *Bytes.* A CPU has a credit, a slice of the limit, and draws another when it is used up. When nothing is left to draw,
//! the CPU that charges pays: by objects of its own queues, since these are near and no other looks at them. But a CPU that
//! meets ghosts lacks memory that others perhaps do not need, and so does one with less than half its share: these take
//! a slice from the other CPUs' queues first, where what is found stays by its mark. So memory goes where it is missed, and
//! a scan, which meets no ghosts, takes none of it.
//!
//! *Users.* An object in use is pinned ([`Usage::pin`]); to go is one exchange, of no pins for the mark of the gone. So a new
//! user comes before it, and the object stays, or after it, and reads the object again. A thread that only looks, in an RCU
//! section in which the client's table lets objects be read, needs no pin.
//!
//! # Clients must
//! - enter an object before others can find it, while its maker's pin ([`Usage::new`]) holds it; and read it from the store after
//!   they can, or one of them may read it, change it and let it go meanwhile;
//! - pin what the store does not have yet as it is, or write it back before it leaves their table; and pin what is reached
//!   from a pinned object (a directory, from its entries);
//! - when a pin is refused, look again until the object is no more in their table, which it is about to leave;
//! - not let all CPUs pin one object, whose line they would write: one pin is enough for all, in a [`Ref`](crate::Ref) that
//!   the object keeps for them, and gives up when it is [`asked`](Reclaim::asked) to go (`sync-sim/tests/suite/reclaim.rs`).
//!
//! # Then
//! - an object is let go once, by [`Reclaimer::enter`] or [`Reclaimer::remove`], and not while it is pinned;
//! - no lock is held while it is let go, and the client may enter and remove others meanwhile;
//! - the bytes of all objects exceed the limit only if newcomers looked `LOOKS` times in vain, since all that they met were
//!   pinned or had just been found: the next newcomers, on any CPU, let others go for these too.
//!
//! # Invariants
//! - C1 what is undrawn, all credits and all objects' bytes together are the limit (but for what is under way).
//!
//! # Cost
//! To find: a load of the object's own line, and a store if it is the first since the last look. To enter, while there is
//! room: the own CPU's mutex, a load of a ghost's place, and a look at an older object of this CPU. To let another go for it:
//! that mutex three times more, and a store to a ghost's place. At most `LOOKS` looks in the queues of each of `HELPERS` other
//! CPUs, and twice as many in the own ones. Shared lines: ghosts, by chance; what is undrawn, once a slice; another CPU's mutex,
//! once a slice for a CPU that meets ghosts or has little. Instructions: docs/measurements.md, section 23. Memory: 12 bytes in
//! the object, one or two handles in a queue, and see `ghosts.rs`.
//!
//! # Example
//! `tests/inode_cache.rs` has the same with contents that change and are written back.
//! ```
//! use sluice_sync::reclaim::{Reclaim, Reclaimer, Usage};
//! use sluice_sync::{Arc, HashTable, rcu, thread};
//!
//! struct Inode {
//!     number: u64,
//!     usage: Usage,
//! }
//!
//! impl Reclaim for Inode {
//!     fn usage(&self) -> &Usage {
//!         &self.usage
//!     }
//!     fn key(&self) -> u64 {
//!         self.number
//!     }
//!     fn charge(&self) -> u64 {
//!         400
//!     }
//! }
//!
//! struct Cache {
//!     inodes: HashTable<u64, Arc<Inode>>,
//!     memory: Reclaimer<Arc<Inode>>,
//! }
//!
//! impl Cache {
//!     /// The inode, pinned.
//!     fn get(&self, number: u64) -> Arc<Inode> {
//!         loop {
//!             if let Some(found) = self.inodes.get(&number, &self.inodes.read()) {
//!                 if found.usage.pin() {
//!                     found.usage.touch();
//!                     return found.clone();
//!                 }
//!             } else {
//!                 let inode = Arc::new(Inode { number, usage: Usage::new() });
//!                 self.memory.enter(inode.clone(), |gone| _ = self.inodes.remove(&gone.number));
//!                 if self.inodes.insert(number, inode.clone()).is_ok() {
//!                     return inode;
//!                 }
//!                 // Another thread was first.
//!                 self.memory.remove(&inode);
//!             }
//!             // It was leaving, or has just come.
//!             thread::yield_now();
//!         }
//!     }
//! }
//!
//! let cache = Cache { inodes: HashTable::new(rcu::domain()), memory: Reclaimer::new(40_000) };
//! (0..1_000).for_each(|number| cache.get(number).usage.unpin());
//! // About: one that finds nobody to let go leaves that to the next.
//! assert!(cache.memory.charged() < 50_000);
//! assert_eq!(cache.memory.charged(), 400 * cache.inodes.len() as u64);
//! ```
//!
//! # Sources
//! Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for cache eviction" (SOSP 2023): the queues, the marks, the
//! ghosts. Johnson and Shasha, "2Q" (VLDB 1994), and O'Neil et al., "The LRU-K page replacement algorithm" (SIGMOD 1993): uses that
//! come in a burst are one use. That ghosts tell which CPU lacks memory: the kernel's workingset detection (mm/workingset.c).

mod ghosts;
mod queues;
// Not under Miri: thousands of uses by one thread, of code that has nothing unsafe.
#[cfg(all(test, not(any(feature = "loom", miri))))]
mod tests;
mod usage;

pub use usage::Usage;

use self::ghosts::Ghosts;
use self::queues::Queues;
use self::usage::Leave;
use crate::face::CachePadded;
use crate::face::atomic::{AtomicI64, Ordering};
use crate::percpu::PerCpu;
use crate::{Mutex, MutexGuard};
use std::fmt;
use std::ops::Deref;

/// How many objects a newcomer looks at in one CPU's queues at most.
const LOOKS: u32 = 32;
/// How many other CPUs it asks at most.
const HELPERS: usize = 4;
/// A CPU's share of the limit is drawn in so many slices.
const SLICES: u64 = 32;

/// An object that may be dropped from memory because it can be read again.
pub trait Reclaim {
    /// The part that says how it is used.
    fn usage(&self) -> &Usage;
    /// A number under which it will be read again, if it is.
    fn key(&self) -> u64;
    /// The bytes that are free when it has gone, the same at each call.
    fn charge(&self) -> u64;
    /// Called, with no lock held, when the object was to go, but is pinned: one that keeps a pin for others puts it now.
    fn asked(&self) {}
}

/// Keeps the bytes of objects that `H` stands for below a limit.
pub struct Reclaimer<H> {
    /// *each protected by its mutex*
    cpus: PerCpu<Mutex<Queues<H>>>,
    /// Bytes of the limit that no CPU has drawn; a negative value is the debt of all CPUs. *atomic*
    undrawn: CachePadded<AtomicI64>,
    /// *each place atomic*
    ghosts: Ghosts,
    /// Half of a CPU's share of the limit: a CPU with less asks the others first. All of it would let CPUs that have about
    /// their share take from each other. *immutable*
    poor: u64,
    /// *immutable*
    slice: i64,
}

impl<H: Deref<Target: Reclaim>> Reclaimer<H> {
    /// Keeps objects below `limit` bytes.
    #[track_caller]
    pub fn new(limit: u64) -> Self {
        Reclaimer::with(PerCpu::new(|_| Mutex::new(Queues::new())), limit)
    }

    fn with(cpus: PerCpu<Mutex<Queues<H>>>, limit: u64) -> Self {
        let limit = limit.min(u64::MAX >> 2);
        let share = limit / cpus.len() as u64;
        Reclaimer {
            cpus,
            undrawn: CachePadded::new(AtomicI64::new(limit.cast_signed())),
            ghosts: Ghosts::new(limit),
            poor: share / 2,
            slice: (share / SLICES).cast_signed(),
        }
    }

    /// Takes `object` in, and lets others go until there is room for it, as far as few looks find some. For each
    /// of those calls `let_go`, which takes it out of the client's table; not to be called in a read section, if
    /// that may wait for a grace period.
    pub fn enter(&self, object: H, let_go: impl Fn(&H)) {
        self.enter_at(self.cpus.here_at(), object, let_go);
    }

    fn enter_at(&self, here: usize, object: H, let_go: impl Fn(&H)) {
        let wanted = self.ghosts.know(object.key());
        object.usage().set_home(here);
        let (debt, is_poor, asked) = {
            let mut own = self.lock(here);
            own.admit(object, wanted);
            self.draw(&mut own);
            own.asked += HELPERS;
            (-own.credit, own.charged < self.poor, own.asked)
        };
        if debt <= 0 {
            return;
        }
        // Relaxed: as in draw().
        let debt = debt - self.undrawn.load(Ordering::Relaxed).min(0);
        // A CPU that lacks memory takes a slice from the others, and the rest of its debt from itself; any other, the reverse.
        let (first, needed) = if wanted || is_poor { (0, debt + self.slice) } else { (debt, debt) };
        let mut freed = self.collect(here, first, &let_go);
        let others = self.cpus.len() - 1;
        for n in asked..asked + HELPERS.min(others) {
            freed += self.collect((here + 1 + n % others) % self.cpus.len(), needed - freed, &let_go);
        }
        freed += self.collect(here, debt - freed, &let_go);
        self.pay_in(&mut self.lock(here), freed);
    }

    /// Removes an `object` that only the caller has pinned, together with that pin: the object has left the store, or
    /// was replaced. Returns false and changes nothing if other threads have pinned it.
    ///
    /// # Panics
    /// In debug builds, if it was not entered.
    pub fn remove(&self, object: &H) -> bool {
        if object.usage().leave(1) != Leave::Left {
            return false;
        }
        let mut home = self.lock(object.usage().home());
        debug_assert!(home.charged >= object.charge(), "what is removed was entered");
        home.charged -= object.charge();
        self.pay_in(&mut home, object.charge().cast_signed());
        let gone = home.note_gone();
        drop(home);
        drop(gone);
        true
    }

    /// The bytes of all objects; exact when none enters or goes meanwhile.
    pub fn charged(&self) -> u64 {
        self.cpus.iter().map(|queues| queues.lock().charged).sum()
    }

    fn lock(&self, cpu: usize) -> MutexGuard<'_, Queues<H>> {
        self.cpus.get(cpu).expect("CPUs are numbered from 0").lock()
    }

    /// Pays what `own` has charged too much by what is undrawn, if that suffices, and draws a slice with it.
    fn draw(&self, own: &mut Queues<H>) {
        let debt = -own.credit;
        for sum in [debt + self.slice, debt] {
            // Relaxed: bytes publish nothing.
            let rest = |undrawn| (sum > 0 && undrawn >= sum).then(|| undrawn - sum);
            if debt > 0 && self.undrawn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_ok() {
                own.credit += sum;
                return;
            }
        }
    }

    /// Adds `bytes` to the credit of `own`. An excess over two slices goes back; so does the whole credit while bytes
    /// are owed, and a negative credit becomes a debt of all CPUs.
    fn pay_in(&self, own: &mut Queues<H>, bytes: i64) {
        own.credit += bytes;
        // Relaxed: as in draw().
        let kept = if own.credit < 0 || self.undrawn.load(Ordering::Relaxed) < 0 {
            0
        } else if own.credit > 2 * self.slice {
            self.slice
        } else {
            return;
        };
        // Relaxed: as in draw().
        self.undrawn.fetch_add(own.credit - kept, Ordering::Relaxed);
        own.credit = kept;
    }

    /// Lets objects of `cpu` go until these are `needed` bytes. Returns how many they are.
    fn collect(&self, cpu: usize, needed: i64, let_go: impl Fn(&H)) -> i64 {
        let (mut freed, mut looks) = (0, LOOKS);
        while freed < needed {
            let Some(object) = self.lock(cpu).next_victim(&mut looks) else { break };
            match object.usage().leave(0) {
                Leave::Left => {
                    self.lock(cpu).charged -= object.charge();
                    freed += object.charge().cast_signed();
                    self.ghosts.note(object.key());
                    let_go(&object);
                }
                Leave::Held => {
                    object.asked();
                    self.lock(cpu).keep(object);
                }
                Leave::Gone => self.lock(cpu).met_gone(),
            }
        }
        freed
    }
}

impl<H> fmt::Debug for Reclaimer<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaimer").field("poor", &self.poor).finish_non_exhaustive()
    }
}
