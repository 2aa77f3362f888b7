//! RCU: readers that write nothing shared, and memory that is freed only when none of them can see it.
//!
//! # Theory
//! A reader marks the begin and end of its *read section* on its own thread's line. A thread that takes an object
//! out of a structure lets a *grace period* pass before it frees the object. After that period no section is left
//! that could have found it.
//!
//! ```text
//!   reader A   |--- section ---|
//!   reader B             |------ section ------|
//!   remover        x unlink    [---- grace period ---] free      A, B may hold the object
//!   reader C              |------ section -------------------|   C began after the unlink: cannot
//! ```
//!
//! Every section is stamped with the domain's *epoch*; a grace period moves the epoch on and waits for the
//! sections with an older stamp. Sections that begin while it waits do not prolong it. A thread with the period's own stamp
//! has passed it. That can be seen without a barrier: where all threads work, none is interrupted. The waiting thread gives
//! the others some microseconds for it, and takes a barrier if a section is longer. One barrier retires the readers that were
//! last inside before the period and idle since (`readers.rs`); they cost no other barrier until they are back.
//!
//! Periods are numbered in `order`. A thread that has unlinked an object may ask there for the number of the next period. A
//! period with that number or a later one lets it free the object, whichever thread starts the period. So threads that defer
//! share periods, and the epoch's line, which every reader loads, is seldom written.
//!
//! *Eras.* Between two moves of the epoch nothing is freed that could be reached meanwhile: what is unlinked then waits for a
//! period that is not started yet. Suppose a thread has left a section, begins another one and finds the same epoch. Then it
//! may go on with pointers of the first section: their objects may be unlinked, but they are not freed ([`Guard::era`]). The
//! epoch must be loaded after the thread has announced itself: its stamp may be older than a barrier that found it outside.
//!
//! A [`Domain`] is an instance: unrelated structures need not wait for each other's readers. [`domain()`] is
//! one for the whole process.
//!
//! # Clients must
//! - unlink an object before they start its grace period, and reach it only inside a section;
//! - not wait inside a section for anything that itself waits for a grace period of the same domain (such as
//!   a lock held around [`Domain::synchronize`] or [`Domain::defer`]);
//! - keep sections short: memory waits for them.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | announce, leave, young, retire | see `readers.rs` | | a section's begin and end |
//! | order | [`Domain::start`] | [`Domain::start`] | unlinks before a period was started |
//! | epoch | [`Domain::start`] | [`Domain::read`], [`Guard::era`] | these and those before older periods |
//! | completed | [`Domain::poll`] | [`Domain::poll`] | that all older sections have ended |
//!
//! *next*, both interleavings: the remover asks for the number of the next period; it has a fence between its unlink and its
//! load of `order`. The thread that starts a period has one between the write of `order` and that of the epoch. Either the
//! load finds the period started, and the remover asks for a later one; or the remover's fence comes first, and then every
//! section stamped with that period or a later one sees its unlink.
//!
//! *era*: a period is found to be over by a scan that comes after the move of the epoch to it, as the scanner knows
//! (`announced`). If the scan does not find a section that has begun, then the section loads the epoch after the scan's
//! barrier or fence (*announce*, *retire*, see `readers.rs`), and finds it moved. A scan without a barrier takes only those
//! threads for outside that have been in a section of the period: they have loaded that epoch once, and never find an older one.
//!
//! # Cost
//! A section: two stores to the thread's own line, one load of the epoch (written once per grace period). A
//! grace period: two read-modify-writes, one load per thread slot, one membarrier(2) where a thread is idle that was not
//! before; the length of the longest section, and until all threads that work have begun another. Asking for a number: a
//! fence and a load of a line that each period writes once.
//!
//! # Sources
//! McKenney and Slingwine, "Read-Copy Update" (1998); Desnoyers et al. (2012); the kernel's RCU API, whose names these are.

#[allow(unsafe_code)]
mod cell;
mod defer;
#[allow(unsafe_code)]
mod work;

pub use cell::{RcuCell, Replaced};
pub use defer::Drained;

use self::defer::Bag;

use crate::Mutex;
use crate::face::atomic::{AtomicU64, Ordering, fence};
use crate::face::{CachePadded, Mutant, SlotTable, const_new, seeded};
#[cfg(not(feature = "loom"))]
use crate::face::{Host, PerHost};
use crate::readers::{ReaderLine, Readers, Scan, heavy_barrier, is_inside};
use std::marker::PhantomData;

/// The distance of two epochs; the bits below count the depth of a section.
const STEP: u64 = 1 << 16;

/// Readers and grace periods that belong together.
pub struct Domain {
    /// *each line by its thread*
    readers: Readers,
    /// The number of the newest period, or an older one's while that is started. Apart from the epoch: no reader looks
    /// here. *atomic (order)*
    order: CachePadded<AtomicU64>,
    /// The stamp of sections that begin now. *atomic (epoch)*
    epoch: CachePadded<AtomicU64>,
    /// The newest epoch whose grace period is over. *atomic (completed)*
    completed: CachePadded<AtomicU64>,
    /// Held by the thread that retires readers.
    retiring: Mutex<()>,
    /// The deferred work of each thread. *each protected by its mutex*
    bags: SlotTable<CachePadded<Bag>>,
    /// How many pieces of work share a grace period. *immutable*
    batch: usize,
}

/// A read section: what was reachable when it began is not freed before it ends. It stays on its thread.
#[must_use = "the read section ends at once when the guard is dropped"]
pub struct Guard<'d> {
    domain: &'d Domain,
    line: &'d ReaderLine,
    marker: PhantomData<*const ()>,
}

/// A time without a new grace period: see [`Guard::era`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Era(u64);

impl Era {
    /// A number for the era, never 0, to be kept in an atomic.
    pub(crate) fn word(self) -> u64 {
        self.0
    }
}

/// A grace period that was started and may be over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GracePeriod(u64);

impl GracePeriod {
    /// An odd number other than 1 that stands for the period, to be kept in an atomic.
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    /// The period that `word` stands for.
    pub(crate) fn from_word(word: u64) -> Self {
        GracePeriod(word)
    }
}

impl Domain {
    const_new! {
        /// A domain without readers.
        pub fn new() -> Self {
            Domain::with_batch(defer::BATCH)
        }
    }

    const_new! {
        /// A domain without readers, in which at least `batch` pieces of deferred work share a grace period, at least one.
        pub fn with_batch(batch: usize) -> Self {
            Domain {
                readers: Readers::new(),
                order: CachePadded::new(AtomicU64::new(STEP | 1)),
                epoch: CachePadded::new(AtomicU64::new(STEP | 1)),
                completed: CachePadded::new(AtomicU64::new(0)),
                retiring: Mutex::new(()),
                bags: SlotTable::new(),
                batch: if batch == 0 { 1 } else { batch },
            }
        }
    }

    /// Begins a read section. Sections nest.
    #[inline]
    pub fn read(&self) -> Guard<'_> {
        // Acquire(epoch): a section stamped with an epoch sees the unlinks before it; pairs with Release(epoch)
        // in start().
        let line = self.readers.enter(|| self.epoch.load(Ordering::Acquire));
        line.come_back();
        Guard { domain: self, line, marker: PhantomData }
    }

    /// Whether the calling thread is in a read section of this domain.
    pub fn is_reading(&self) -> bool {
        self.readers.own_inside()
    }

    /// Starts a grace period and does not wait for it: ask [`poll`](Self::poll).
    pub fn start(&self) -> GracePeriod {
        // AcqRel(order): what was unlinked before, handed on with the unlinks before older periods, so that this one stands
        // for them too; pairs with itself.
        self.announce(self.order.fetch_add(STEP, Ordering::AcqRel) + STEP)
    }

    /// Starts a period if none numbered `number` or later was started. If many threads ask together, one starts the period: the
    /// barrier interrupts every CPU.
    fn start_first(&self, number: u64) -> Option<GracePeriod> {
        // Relaxed: if it is old, the exchange fails.
        let newest = self.order.load(Ordering::Relaxed);
        // AcqRel(order): as in start().
        let started = newest < number
            && self
                .order
                .compare_exchange(newest, newest + STEP, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        started.then(|| self.announce(newest + STEP))
    }

    /// Lets sections that begin from now on belong to the period `target`, the caller's.
    fn announce(&self, target: u64) -> GracePeriod {
        // SeqCst(next): pairs with the fence in next_period().
        fence(Ordering::SeqCst);
        // Release(epoch): all that; pairs with Acquire(epoch) in read(). A newer period may have moved it further.
        self.epoch.fetch_max(target, Ordering::Release);
        GracePeriod(target)
    }

    /// The period numbered `number`, which has [started](Self::has_started), for a thread that looks for its end although
    /// another started it. The other may not have moved the epoch yet.
    fn announced(&self, number: u64) -> GracePeriod {
        // Acquire(epoch): pairs with Release(epoch) in announce(). A fence or barrier comes before each look for the end: after it
        // no thread finds the epoch older than we did (era).
        if self.epoch.load(Ordering::Acquire) < number {
            return self.announce(number);
        }
        GracePeriod(number)
    }

    /// The number of the first period to be started from now on: odd, and not 1.
    pub(crate) fn next_period(&self) -> u64 {
        // SeqCst(next): pairs with the fence in announce(). A read-modify-write would do too, but hundreds of tables that
        // grow at once would queue for the line.
        fence(Ordering::SeqCst);
        // Relaxed: by the fence.
        self.order.load(Ordering::Relaxed) + STEP
    }

    /// Whether a period numbered `number` or later was started, or is about to be announced. If so, the caller may look for its
    /// end.
    pub(crate) fn has_started(&self, number: u64) -> bool {
        // Relaxed: a hint. When the caller looks for the end, the fence in scan() stands for the one in announce() (next): a
        // thread that asks for a number after it finds this period started, and the sections that are left see what was
        // unlinked before it.
        self.order.load(Ordering::Relaxed) >= number
    }

    /// Whether a period numbered `number` or later is known to be over.
    pub(crate) fn is_over(&self, number: u64) -> bool {
        // Acquire(completed): pairs with Release(completed) in complete(): another thread saw the readers leave.
        self.completed.load(Ordering::Acquire) >= number
    }

    /// Whether `period` is over; does not wait. If that cannot be seen otherwise it takes a barrier, which interrupts every CPU.
    pub fn poll(&self, period: GracePeriod) -> bool {
        self.poll_with(period, |target| {
            // Barrier(announce): pairs with the light barrier in Line::enter().
            heavy_barrier();
            self.readers.all(|word| has_passed(word, target))
        })
    }

    /// Whether `period` is over; does not wait. For a call so long after the start that all threads that work have begun another
    /// section: the others are taken to be idle, and cost no further barrier until they are back.
    pub fn poll_retiring(&self, period: GracePeriod) -> bool {
        if self.is_over(period.0) {
            return true;
        }
        // Hundreds of threads that read hundreds of lines would slow each other down. If another thread is retiring,
        // the next caller may find that its work was enough.
        let Some(_alone) = self.retiring.try_lock() else { return false };
        self.poll_with(period, |target| self.readers.retire(|word| is_of_period(word, target)))
    }

    /// Whether `period` is over; `in_doubt` is asked, with the period's number, when it cannot be seen whether somebody is inside.
    fn poll_with(&self, period: GracePeriod, in_doubt: impl FnOnce(u64) -> bool) -> bool {
        let GracePeriod(target) = period;
        if self.is_over(target) {
            return true;
        }
        let over = match self.readers.scan(|word| is_of_period(word, target)) {
            Scan::Passed => true,
            Scan::Inside => false,
            Scan::Unknown => in_doubt(target),
        };
        if over {
            self.complete(target);
        }
        over
    }

    /// Waits until `period` is over: a little, for threads that work to begin another section, and else with a barrier. The
    /// barrier interrupts every CPU, and retires the threads that idle until they are back.
    ///
    /// # Panics
    /// Inside a read section of this domain: it would wait for itself.
    pub fn wait(&self, period: GracePeriod) {
        self.refuse_readers();
        let GracePeriod(target) = period;
        if self.is_over(target) {
            return;
        }
        let is_young = |word| is_of_period(word, target);
        if !self.readers.pass_soon(is_young) {
            let have_passed = match self.retiring.try_lock() {
                Some(_alone) => self.readers.retire(is_young),
                None => {
                    // Barrier(announce): as in poll().
                    heavy_barrier();
                    false
                }
            };
            if !have_passed {
                self.readers.wait_for_all(|word| has_passed(word, target));
            }
        }
        self.complete(target);
    }

    fn refuse_readers(&self) {
        assert!(
            !self.is_reading(),
            "a read section cannot wait for a grace period: it would wait for itself"
        );
    }

    /// Waits until every read section that began before has ended.
    ///
    /// # Panics
    /// Inside a read section of this domain: it would wait for itself.
    pub fn synchronize(&self) {
        self.wait(self.start());
    }

    fn complete(&self, target: u64) {
        // Release(completed): pairs with Acquire(completed) in is_over(). Acquire: hands on what others saw.
        self.completed.fetch_max(target, Ordering::AcqRel);
    }
}

/// Whether the reader whose line holds `word` cannot be in a section older than `target`. Only a barrier makes certain
/// that the reader is outside.
fn has_passed(word: u64, target: u64) -> bool {
    !is_inside(word) || is_of_period(word, target)
}

/// Whether the last section of the reader whose line holds `word` is stamped with the period `target` or a younger one.
fn is_of_period(word: u64, target: u64) -> bool {
    word / STEP >= target / STEP
}

impl Default for Domain {
    fn default() -> Self {
        Domain::new()
    }
}

impl Guard<'_> {
    /// Whether this is a section of `domain`.
    #[inline]
    pub fn is_of(&self, domain: &Domain) -> bool {
        std::ptr::eq(self.domain, domain)
    }

    /// Where the domain lies whose section this is.
    #[inline]
    pub(crate) fn domain_addr(&self) -> usize {
        std::ptr::from_ref(self.domain).addr()
    }

    /// The era that it is now. Suppose the thread asked for the era in an earlier section too, and was given the same.
    /// Then an object that it could reach after the first question is not freed before this section ends, provided that
    /// it is freed a grace period after its unlinking, as it must be.
    #[inline]
    pub fn era(&self) -> Era {
        if seeded(Mutant::EraOfTheStamp) {
            return Era(self.line.stamp());
        }
        // Acquire(epoch): as in Domain::read(): a thread that is given an era sees the unlinks before it. The barrier when the
        // section began orders it with scans (era).
        Era(self.domain.epoch.load(Ordering::Acquire))
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.line.leave();
    }
}

#[cfg(feature = "loom")]
::loom::lazy_static! {
    static ref DOMAIN: Domain = Domain::new();
}

/// The domain of the execution, for structures that have none of their own.
#[cfg(feature = "loom")]
pub fn domain() -> &'static Domain {
    &DOMAIN
}

/// The domain of the process, for structures that have none of their own. (On the simulator each thread of the
/// host has one: a machine must not wait for another machine's readers.)
#[cfg(not(feature = "loom"))]
pub fn domain() -> &'static Domain {
    static DOMAINS: PerHost<Domain> = PerHost::new(Domain::new());
    DOMAINS.get(Host::here())
}

#[cfg(all(test, not(feature = "loom")))]
pub(crate) mod tests {
    use super::*;
    use crate::thread;
    use std::sync::{Mutex, PoisonError};

    /// A domain for one test, kept where leak checkers see that what waits in it is not lost.
    pub(crate) fn kept_domain() -> &'static Domain {
        static KEPT: Mutex<Vec<&Domain>> = Mutex::new(Vec::new());
        let domain = Box::leak(Box::default());
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(domain);
        domain
    }

    #[test]
    fn a_grace_period_waits_for_older_sections_only() {
        let domain = Domain::new();
        let old = domain.read();
        let period = domain.start();
        assert!(!domain.poll(period), "an older section is open");
        thread::scope(|scope| {
            scope.spawn(|| {
                let _young = domain.read();
                assert!(!domain.poll(period));
            });
        });
        drop(old);
        let _young = domain.read();
        assert!(domain.poll(period), "a younger section does not prolong it");
    }

    #[test]
    fn a_nested_section_ends_with_the_outermost_guard() {
        let domain = Domain::new();
        let outer = domain.read();
        let inner = domain.read();
        let period = domain.start();
        drop(outer);
        assert!(!domain.poll(period) && domain.is_reading());
        drop(inner);
        assert!(domain.poll(period) && !domain.is_reading());
    }

    #[test]
    #[should_panic(expected = "wait for itself")]
    fn waiting_inside_a_section_is_refused() {
        let domain = Domain::new();
        let _guard = domain.read();
        domain.synchronize();
    }

    #[test]
    fn a_sleeping_synchronizer_is_woken_by_the_last_reader() {
        let domain = Domain::new();
        let inside = crate::Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let guard = domain.read();
                inside.wait();
                thread::sleep(crate::time::Duration::from_millis(20));
                drop(guard);
            });
            inside.wait();
            domain.synchronize();
        });
        assert_ne!(domain.readers.scan(|_| false), Scan::Inside);
    }
}
