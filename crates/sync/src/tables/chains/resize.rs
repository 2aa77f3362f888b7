//! Resizing: begins a move to a larger or smaller array, moves a few buckets at a time, and closes for good.

use super::array::{Array, LockedBucket, closed, is_array};
use super::ready::Ready;
use super::{Chains, Node};
use crate::face::atomic::Ordering;
use crate::face::{Mutant, SHRUNK, seeded};
use crate::rcu::Guard;

/// How many buckets a writer moves at least while a resize is under way, ...
const MOVE_AT_ONCE: usize = if SHRUNK { 1 } else { 8 };
/// ... and at most: a thread that makes a name does not want to wait for more.
const MOVE_AT_ONCE_MAX: usize = 8 * MOVE_AT_ONCE;
/// Between the two, the parts in which an array is moved: a helper writes a line that says how far the move is.
const PARTS: usize = 64;

/// An array that is no longer current, on its way to be freed.
pub(super) struct Retired<N: Node>(pub(super) *mut Array<N>);

// SAFETY: it owns the array and no node: each is in the next array too, or there is none.
unsafe impl<N: Node> Send for Retired<N> {}

impl<N: Node> Retired<N> {
    /// # Safety
    /// No reader may be left that could have found the array.
    pub(super) unsafe fn free(self) {
        // SAFETY: the pointer came from `Box::into_raw`; each array has one `Retired`. Its nodes are not touched.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl<N: Node + Send + Sync> Chains<N> {
    /// The number of buckets, or their number after the current resize.
    pub(crate) fn buckets(&self) -> usize {
        let guard = self.read();
        let array = self.current(&guard);
        array.and_then(|array| array.next(&guard)).or(array).map_or(0, Array::len)
    }

    /// Begins to move to `buckets` buckets, a power of two. Does nothing, and says false, if there are so many
    /// already, or if the previous resize is not over; that includes its grace period.
    pub(crate) fn resize(&self, buckets: usize) -> bool {
        let begin = |array: &Array<N>, _: &Guard<'_>| {
            array.set_next(Box::new(array.successor(buckets))).then_some(())
        };
        self.when_ready(buckets, begin).is_some()
    }

    /// Moves all nodes to `buckets` buckets, a power of two, at one moment: while it goes on, all buckets are locked. Does
    /// nothing, and says false, as [`resize`](Self::resize), or if a bucket is locked.
    pub(crate) fn replace(&self, buckets: usize) -> bool {
        let retired = self.when_ready(buckets, |array, guard| self.move_whole(array, buckets, guard));
        retired.map(|retired| self.retire(retired)).is_some()
    }

    /// Calls `begin` with the current array, in a section, if it may be moved to one of `buckets` buckets. Returns None without
    /// a change if the array may not be moved now, or if `begin` gives up.
    fn when_ready<R>(&self, buckets: usize, begin: impl Fn(&Array<N>, &Guard<'_>) -> Option<R>) -> Option<R> {
        loop {
            let guard = self.read();
            let array = self.current(&guard)?;
            if array.next(&guard).is_some() || array.len() == buckets {
                return None;
            }
            // One at a time: a crowd that finds the array too small would look at all readers' lines again and again, and
            // each make a new array.
            let ready = array.ready.take()?;
            // The chains of the array before this one use the links that the new one needs: its readers must be gone.
            let over = match ready {
                Ready::AtOnce => true,
                _ if seeded(Mutant::ResizeWithoutGracePeriod) => true,
                Ready::When(period) => self.domain.poll(period),
                Ready::After(number) if self.domain.is_over(number) => true,
                // Many tables that grow side by side share a period: the thread that started it sees to its end. But a
                // thread that has let a resize go by does not wait for that.
                Ready::After(number) if self.domain.has_started(number) && buckets <= 2 * array.len() => {
                    false
                }
                Ready::After(_) => {
                    array.ready.set(&Ready::When(self.domain.start()));
                    // It may be over as soon as our own section is.
                    continue;
                }
            };
            let begun = if over { begin(array, &guard) } else { None };
            if begun.is_none() {
                array.ready.set(&ready);
            }
            return begun;
        }
    }

    /// Moves what is in `old` to an array of `buckets` buckets, and makes that the current one. None if a bucket is locked, or
    /// the table is being closed.
    ///
    /// A bucket is marked only when the new array is the current one. So no thread finds what has changed in the new chains, and
    /// then the old chains as they were.
    fn move_whole(&self, old: &Array<N>, buckets: usize, guard: &Guard<'_>) -> Option<Retired<N>> {
        if !old.forbid_next() {
            return None;
        }
        let Ok(locked) = lock_all(old, |_| true) else {
            old.allow_next();
            return None;
        };
        // All sections are claimed before other threads can see work to claim.
        let claim = || Some(old.progress().claim(old.len())).filter(|claimed| !claimed.is_empty());
        let claimed: Vec<_> = std::iter::from_fn(claim).collect();
        let new = Box::new(old.successor(buckets));
        locked.iter().for_each(|bucket| bucket.copy_to(&new));
        old.set_forbidden_next(new);
        let new = old.next(guard).expect("it was set above");
        let mut locked = locked.into_iter();
        if seeded(Mutant::ShrunkBucketByBucket) {
            locked.by_ref().for_each(LockedBucket::mark_moved);
        }
        let retired = self.finish(old, new, guard);
        locked.for_each(LockedBucket::mark_moved);
        claimed.iter().for_each(|claimed| _ = old.progress().note_moved(claimed));
        Some(retired)
    }

    /// Moves a few buckets if a resize is under way. Call it without a bucket's lock.
    #[inline]
    pub(crate) fn help(&self) {
        let finished = {
            let guard = self.read();
            let Some(array) = self.current(&guard) else { return };
            match array.next(&guard) {
                Some(next) => self.help_slow(array, next, &guard),
                None => return,
            }
        };
        // Outside the section: deferring may wait.
        if let Some(retired) = finished {
            self.retire(retired);
        }
    }

    #[cold]
    fn help_slow(&self, old: &Array<N>, new: &Array<N>, guard: &Guard<'_>) -> Option<Retired<N>> {
        let claimed = old.progress().claim((old.len() / PARTS).clamp(MOVE_AT_ONCE, MOVE_AT_ONCE_MAX));
        for at in claimed.clone() {
            let bucket = old.lock_at(at).expect("a bucket is moved by the thread that claimed it");
            bucket.copy_to(new);
            bucket.mark_moved();
        }
        old.progress().note_moved(&claimed).then(|| self.finish(old, new, guard))
    }

    /// Makes `new` the current array.
    fn finish(&self, old: &Array<N>, new: &Array<N>, _guard: &Guard<'_>) -> Retired<N> {
        // Release(array): all chains of the new array; pairs with Acquire(array) in current().
        let retired = self.current.swap(old.next_ptr(), Ordering::AcqRel);
        debug_assert!(std::ptr::eq(retired, old), "only the current array is moved");
        // Readers of the old chains: the next resize waits for them.
        new.ready.set(&Ready::After(self.domain.next_period()));
        Retired(retired)
    }

    fn retire(&self, retired: Retired<N>) {
        // SAFETY: runs a grace period after the array stopped being current; no other pointer to it is left.
        self.domain.defer(move || unsafe { retired.free() });
    }

    /// Closes the table if it is empty: no bucket will ever be locked again. Says whether it is closed; none if that
    /// cannot be said without waiting, for a bucket's lock or for the end of a resize.
    pub(crate) fn try_close(&self) -> Option<bool> {
        let guard = self.read();
        let null = std::ptr::null_mut();
        let Some(array) = self.current(&guard) else {
            // Relaxed: nothing is published. A failure means that the first array came, or that it is closed.
            let _ = self.current.compare_exchange(null, closed(), Ordering::Relaxed, Ordering::Relaxed);
            return self.is_closed().then_some(true);
        };
        if !array.forbid_next() {
            return None;
        }
        let outcome = self.close_array(array);
        drop(guard);
        match outcome {
            Ok(retired) => {
                self.retire(retired);
                Some(true)
            }
            Err(NotClosed::Locked) => None,
            Err(NotClosed::Occupied) => Some(false),
        }
    }

    /// Locks all buckets of the current array, which is not moved, and marks them as moved to nowhere.
    fn close_array(&self, array: &Array<N>) -> Result<Retired<N>, NotClosed> {
        let mut locked = lock_all(array, LockedBucket::is_empty).inspect_err(|_| array.allow_next())?;
        if seeded(Mutant::ClosedUnlocked) {
            locked.clear();
        }
        // Release(array): that the table is closed, before any bucket says so.
        let retired = self.current.swap(closed(), Ordering::AcqRel);
        debug_assert!(is_array(retired) && std::ptr::eq(retired, array));
        locked.into_iter().for_each(LockedBucket::mark_moved);
        Ok(Retired(retired))
    }
}

/// All buckets of `array`, locked, if each can be locked at once and is `wanted`.
fn lock_all<'a, N: Node>(
    array: &'a Array<N>,
    wanted: impl Fn(&LockedBucket<'a, N>) -> bool,
) -> Result<Vec<LockedBucket<'a, N>>, NotClosed> {
    let lock = |at| match array.try_lock_at(at) {
        None => Err(NotClosed::Locked),
        Some(bucket) if wanted(&bucket) => Ok(bucket),
        Some(_) => Err(NotClosed::Occupied),
    };
    (0..array.len()).map(lock).collect()
}

/// Why an array was not closed.
enum NotClosed {
    /// Somebody has a bucket locked.
    Locked,
    /// There is a node.
    Occupied,
}
