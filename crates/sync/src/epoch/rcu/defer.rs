//! Deferred work: what is to be done after a grace period, with a bound on how much may wait.
//!
//! # Theory
//! Each thread gathers its work in a bag of its own. When a batch is full, it is set aside until a grace period is over
//! that was started after that, by whichever thread. Once in each later batch the thread *looks* what has become of those that
//! are set aside, and does the work whose time has come. If no period has been started since its oldest batch was full, it
//! starts one, and looks for its end the next time:
//!
//! ```text
//!   thread 0   [ batch ]--look: starts---[ batch ]--look: sees the end     the period frees both batches
//!   thread 1    [ batch ]------look: has started-[ batch ]---look          that were full before it started
//! ```
//!
//! *When it looks.* Each period costs all readers a load of the new epoch, one after the other: the more CPUs, the longer. So
//! the more CPUs, the more pieces of work after its batch was full does a thread look: for that long all share one period.
//! Likewise one thread at a time looks at the lines of all readers. If the one that has started a period does not come to see
//! its end, another that waits for it in vain for [`PATIENCE`] batches looks in its place.
//!
//! By the time of the next look all threads that work have begun another section, so that a period costs no barrier unless
//! some thread has begun to idle ([`Domain::poll_retiring`]).
//!
//! No thread waits, unless as many as [`BATCHES_MAX`] batches of it are set aside: then it waits for the oldest, which bounds the memory to `threads * BATCH * BATCHES_MAX` objects. Likewise a batch is full, and those set aside are
//! too many, when they free so many bytes. (Inside a read section a thread cannot wait, and the bound is off for as long as the
//! section lasts.)
//!
//! The drain (`drain.rs`) takes the work that an idle thread leaves in its bag: the whole bag, if no work was added
//! since the drain's last look.
//!
//! Work that a thread has taken out of a bag and not yet done is in no bag: it is *in hand*. A flush waits for the
//! threads that have work in hand. It waits for each such thread until its hand is empty, or was empty once meanwhile.
//! So a flush ends: the work that it waits for existed when the flush began.
//!
//! # Ordering
//! The unlink that came before `defer` is ordered before the period that its batch asks for by program order or, when
//! another thread takes the batch, by the bag's mutex.
//!
//! # Cost
//! `defer`: one uncontended mutex, and an allocation if the work captures more than a word; a look per [`BATCH`] calls, which
//! loads two lines of all, and starts at most one grace period.

use super::work::Work;
use super::{Domain, GracePeriod};
use crate::face::{SHRUNK, cpu, thread};
use crate::{LockClass, Mutex, MutexGuard, drain};
use std::collections::VecDeque;

/// How many pieces of work share a grace period (`examples/defer.rs`, docs/measurements.md, section 14).
pub(super) const BATCH: usize = if SHRUNK { 2 } else { 128 };
/// How many batches, the one that waits included, a thread fills before it looks for the end of a period that another has
/// started: the other may be idle.
const PATIENCE: usize = if SHRUNK { 1 } else { 4 };
/// How many batches of one thread may wait before that thread waits.
const BATCHES_MAX: usize = if SHRUNK { 2 } else { 16 };
/// A batch is full when it frees so many bytes, ...
const BATCH_BYTES: usize = 1 << 20;
/// ... and a thread waits when its batches free so many together.
const BATCHES_BYTES_MAX: usize = 16 << 20;

/// The result of [`Domain::drain_idle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Work, and has done it.
    Some,
    /// Only bags of threads that have put something into them since it looked before.
    Busy,
    /// No bag holds anything.
    Nothing,
}

struct DeferredBatch {
    /// The number of the first period that frees it.
    from_period: u64,
    work: Vec<Work>,
    /// How many bytes it frees, as far as that is known.
    bytes: usize,
}

/// The work that one thread deferred.
#[derive(Default)]
struct Contents {
    /// Not yet part of a grace period.
    open: Vec<Work>,
    /// How many bytes that frees, as far as that is known.
    open_bytes: usize,
    /// Nothing was put there since a drain looked.
    is_idle: bool,
    /// Room for the next batches: that of those that are done, at most [`BATCHES_MAX`].
    spare: Vec<Vec<Work>>,
    /// Oldest first.
    batches: VecDeque<DeferredBatch>,
    /// How many pieces are in the open batch when the thread looks what has become of the others; 0 before there are any.
    looks_at: usize,
    /// The grace period whose end this thread checks for, because it started the period or waits for it.
    awaited: Option<GracePeriod>,
    /// How many takings of work the thread has in hand, one inside the other.
    in_hand: u32,
    /// How many times the thread's hand has become empty.
    times_done: u64,
}

impl Contents {
    fn is_empty(&self) -> bool {
        self.open.is_empty() && self.batches.is_empty()
    }

    /// Bytes that the work will free, as far as known.
    fn bytes(&self) -> usize {
        self.open_bytes + self.batches.iter().map(|batch| batch.bytes).sum::<usize>()
    }

    /// Moves all work to the end of `work`.
    fn take_all(&mut self, work: &mut Vec<Work>) {
        work.extend(self.batches.drain(..).flat_map(|batch| batch.work));
        work.append(&mut self.open);
        self.open_bytes = 0;
    }

    fn take_in_hand(&mut self) {
        self.in_hand += 1;
    }

    fn let_go(&mut self) {
        self.in_hand -= 1;
        self.times_done += u64::from(self.in_hand == 0);
    }
}

/// One thread's bag. *protected by its mutex*
pub(super) struct Bag(Mutex<Contents>);

static BAG: LockClass = LockClass::new("sync.rcu.bag");

impl Default for Bag {
    fn default() -> Self {
        Bag(Mutex::with_class(&BAG, Contents::default()))
    }
}

impl Bag {
    #[track_caller]
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock()
    }

    /// Waits for the work that its thread has in hand now.
    fn wait_for_work_in_hand(&self) {
        let times_done = self.lock().times_done;
        let is_at_it = || {
            let contents = self.lock();
            contents.in_hand > 0 && contents.times_done == times_done
        };
        while is_at_it() {
            thread::yield_now();
        }
    }
}

impl Domain {
    /// Runs `work` after a grace period, on whichever thread defers or flushes then, or when the domain is
    /// dropped. May wait when very much is waiting already, so call it without locks that readers wait for.
    ///
    /// `work` should only free memory: it must not take locks that a caller of `defer` may hold.
    pub fn defer(&self, work: impl FnOnce() + Send + 'static) {
        self.defer_sized(0, work);
    }

    /// Runs `work` after a grace period, as [`defer`](Self::defer) does; it frees about so many `bytes`, if they are many.
    pub fn defer_sized(&self, bytes: usize, work: impl FnOnce() + Send + 'static) {
        let slot = thread::slot();
        let mut bag = self.bags.get(slot).lock();
        bag.open.push(Work::new(work));
        bag.open_bytes += bytes;
        bag.is_idle = false;
        if bag.open.len() == 1 {
            // Under the mutex (ask).
            drain::ask();
        }
        let is_heavy = bag.open_bytes >= BATCH_BYTES;
        let looks = bag.open.len() == bag.looks_at || is_heavy;
        if bag.open.len() == self.batch || is_heavy {
            bag.looks_at = cpu::possible().min(self.batch);
            let room = bag.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.batch));
            let work = std::mem::replace(&mut bag.open, room);
            let bytes = std::mem::take(&mut bag.open_bytes);
            bag.batches.push_back(DeferredBatch { from_period: self.next_period(), work, bytes });
        }
        drop(bag);
        if looks {
            self.look(slot);
        }
    }

    /// Does the work of the calling thread, whose slot is `slot`, whose time has come, and starts the period that the rest
    /// waits for if nobody has.
    fn look(&self, slot: u32) {
        let (awaited, full) = {
            let bag = self.bags.get(slot).lock();
            (bag.awaited, bag.batches.len() > BATCHES_MAX || bag.bytes() > BATCHES_BYTES_MAX)
        };
        if let Some(period) = awaited
            && full
            && !self.is_reading()
        {
            self.wait(period);
        }
        let over = awaited.is_some_and(|period| self.poll_retiring(period));
        let mut bag = self.reclaim(slot);
        if over && bag.awaited == awaited {
            bag.awaited = None;
        }
        let oldest = bag.batches.front().map(|oldest| (oldest.from_period, bag.batches.len()));
        let Some((number, filled)) = oldest.filter(|_| bag.awaited.is_none()) else { return };
        drop(bag);
        // Outside the mutex: it may wait for the line of all.
        let period = match self.has_started(number) {
            false => self.start_first(number),
            true if filled >= PATIENCE => Some(self.announced(number)),
            _ => return,
        };
        if period.is_some() {
            self.bags.get(slot).lock().awaited = period;
        }
    }

    /// Does the work of `slot` whose time has come; returns its bag.
    fn reclaim(&self, slot: u32) -> MutexGuard<'_, Contents> {
        let mut bag = self.bags.get(slot).lock();
        while bag.batches.front().is_some_and(|oldest| self.is_over(oldest.from_period))
            && let Some(DeferredBatch { mut work, .. }) = bag.batches.pop_front()
        {
            bag.take_in_hand();
            // Outside the mutex: freeing an object may defer freeing another.
            drop(bag);
            work.drain(..).for_each(Work::run);
            bag = self.bags.get(slot).lock();
            bag.let_go();
            if bag.spare.len() < BATCHES_MAX {
                bag.spare.push(work);
            }
        }
        bag
    }

    /// Waits for a grace period and does all that any thread deferred before the call, or waits for the thread that does
    /// it. (Work that calls this does not wait for the work of others: two such calls would wait for each other.)
    ///
    /// # Panics
    /// Inside a read section of this domain: it would wait for itself.
    pub fn flush(&self) {
        // Before any work is in hand.
        self.refuse_readers();
        let own = self.bags.get(thread::slot());
        let mut work = Vec::new();
        let waits = {
            let mut own = own.lock();
            own.take_in_hand();
            own.in_hand == 1
        };
        self.bags.iter().for_each(|bag| bag.lock().take_all(&mut work));
        self.synchronize();
        work.into_iter().for_each(Work::run);
        own.lock().let_go();
        if waits {
            // Only now: a thread may have taken work out of another's bag after we had looked at its own.
            self.bags.iter().for_each(|bag| bag.wait_for_work_in_hand());
        }
    }

    /// Does what waits in bags into which nothing was put since the last call of this, after a grace period for which it waits.
    /// For one thread at a time, outside of read sections.
    pub fn drain_idle(&self) -> Drained {
        let own = self.bags.get(thread::slot());
        let (mut work, mut found) = (Vec::new(), Drained::Nothing);
        // A thread that flushes waits for us, as for every thread that has taken work.
        own.lock().take_in_hand();
        for bag in self.bags.iter() {
            let mut contents = bag.lock();
            if contents.is_empty() {
                continue;
            }
            found = Drained::Busy;
            if std::mem::replace(&mut contents.is_idle, true) || std::ptr::eq(bag, own) {
                contents.take_all(&mut work);
            }
        }
        if !work.is_empty() {
            found = Drained::Some;
            self.synchronize();
            work.into_iter().for_each(Work::run);
        }
        own.lock().let_go();
        found
    }

    /// How many bytes are freed by what waits, as far as that is known.
    pub fn deferred_bytes(&self) -> usize {
        self.bags.iter().map(|bag| bag.lock().bytes()).sum()
    }

    /// How many pieces of work wait.
    pub fn deferred(&self) -> usize {
        let of_bag =
            |bag: &Contents| bag.open.len() + bag.batches.iter().map(|b| b.work.len()).sum::<usize>();
        self.bags.iter().map(|bag| of_bag(&bag.lock())).sum()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // No guard borrows the domain, so no reader is left. Freeing may defer again: until nothing is left.
        while self.deferred() > 0 {
            self.flush();
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::Arc;
    use crate::atomic::{AtomicUsize, Ordering};

    fn count(done: &Arc<AtomicUsize>) -> impl FnOnce() + Send + 'static {
        let done = done.clone();
        move || {
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn deferred_work_waits_for_an_open_section_and_stays_bounded_without_one() {
        let (domain, done) = (Domain::new(), Arc::new(AtomicUsize::new(0)));
        let guard = domain.read();
        (0..10 * BATCH).for_each(|_| domain.defer(count(&done)));
        assert_eq!(done.load(Ordering::Relaxed), 0, "a section is open");
        drop(guard);
        (0..10 * BATCH).for_each(|_| domain.defer(count(&done)));
        assert!(domain.deferred() <= BATCH * (BATCHES_MAX + 1), "{} wait", domain.deferred());
        domain.flush();
        assert_eq!(done.load(Ordering::Relaxed), 20 * BATCH);
        assert_eq!(domain.deferred(), 0);
    }

    #[test]
    fn what_frees_much_is_bounded_by_its_bytes() {
        let (domain, done) = (Domain::new(), Arc::new(AtomicUsize::new(0)));
        let pieces = 8 * BATCHES_BYTES_MAX / BATCH_BYTES;
        (0..pieces).for_each(|_| domain.defer_sized(BATCH_BYTES, count(&done)));
        assert!(domain.deferred_bytes() <= BATCHES_BYTES_MAX + 2 * BATCH_BYTES);
        domain.flush();
        assert_eq!((done.load(Ordering::Relaxed), domain.deferred_bytes()), (pieces, 0));
    }

    #[test]
    fn a_drain_takes_what_nothing_was_put_to_since_the_drain_before() {
        let (domain, done) = (Domain::new(), Arc::new(AtomicUsize::new(0)));
        let drained = || (domain.drain_idle(), done.load(Ordering::Relaxed));
        assert_eq!(drained(), (Drained::Nothing, 0));
        domain.defer(count(&done));
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(drained(), (Drained::Busy, 0));
                domain.defer(count(&done));
                assert_eq!(drained(), (Drained::Some, 2), "the drain's own, and what has been idle");
                assert_eq!(drained(), (Drained::Nothing, 2));
            });
        });
    }

    #[test]
    fn the_smallest_batch_is_one_piece_of_work() {
        let (domain, done) = (Domain::with_batch(0), Arc::new(AtomicUsize::new(0)));
        (0..10).for_each(|_| domain.defer(count(&done)));
        assert!(done.load(Ordering::Relaxed) > 0, "{} wait", domain.deferred());
    }

    #[test]
    fn dropping_the_domain_does_all_that_is_left_even_what_that_defers() {
        let done = Arc::new(AtomicUsize::new(0));
        let domain = Domain::new();
        (0..3).for_each(|_| domain.defer(count(&done)));
        drop(domain);
        assert_eq!(done.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_flush_waits_for_the_work_that_another_flush_has_in_hand() {
        let (domain, done) = (Domain::new(), Arc::new(AtomicUsize::new(0)));
        let begun = Arc::new(crate::Barrier::new(2));
        let (has_begun, count) = (begun.clone(), count(&done));
        domain.defer(move || {
            has_begun.wait();
            thread::sleep(crate::time::Duration::from_millis(20));
            count();
        });
        thread::scope(|scope| {
            scope.spawn(|| domain.flush());
            begun.wait();
            domain.flush();
            assert_eq!(done.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn work_may_flush() {
        let (domain, done) = (Arc::new(Domain::new()), Arc::new(AtomicUsize::new(0)));
        let (inner, count) = (Arc::downgrade(&domain), count(&done));
        domain.defer(move || {
            inner.upgrade().expect("the test has it").flush();
            count();
        });
        domain.flush();
        assert_eq!(done.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn work_may_defer_more_work() {
        let (domain, done) = (Arc::new(Domain::new()), Arc::new(AtomicUsize::new(0)));
        let (inner, more) = (Arc::downgrade(&domain), count(&done));
        domain.defer(move || {
            if let Some(domain) = inner.upgrade() {
                domain.defer(more);
            }
        });
        domain.flush();
        assert_eq!(domain.deferred(), 1);
        domain.flush();
        assert_eq!(done.load(Ordering::Relaxed), 1);
    }
}
