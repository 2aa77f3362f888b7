//! FileLocks: the lock state of one inode, and the calls on it.

use crate::flock::Flocks;
use crate::queue::Queue;
use crate::ranges::Ranges;
use crate::request::Flock;
use crate::wait::{Completions, Done, Slot, Submitted, Ticket};
use crate::{Cancel, Kind, LockDomain, LockError, Owner, Range, RangeLock, RangeRequest};
use sluice_sync::{Arc, Mutex};
use std::fmt;

/// The advisory locks of one file: byte ranges (POSIX and OFD) and flock.
///
/// Dropping it drops all locks, and ends waits that are left with [`LockError::Interrupted`].
pub struct FileLocks {
    /// *immutable*
    domain: Arc<LockDomain>,
    /// The number in the domain's registry. *immutable*
    registration: u64,
    state: Arc<FileState>,
}

/// What the domain's registry sees of a file.
pub(crate) struct FileState {
    /// *immutable*
    pub(crate) dev: u64,
    /// *immutable*
    pub(crate) ino: u64,
    /// The outer of the two locks of this crate that nest; see the crate's lock order.
    pub(crate) spaces: Mutex<Spaces>,
}

/// The two lock spaces of a file, which know nothing of each other.
#[derive(Default)]
pub(crate) struct Spaces {
    pub(crate) ranges: Queue<Ranges>,
    pub(crate) flocks: Queue<Flocks>,
}

/// For requests that do not wait: no way to build a completion.
const NO_WAIT: Option<fn() -> Done> = None;

impl FileLocks {
    /// The state of a file without locks. `dev` (a Linux `dev_t`) and `ino` name the file in listings.
    pub fn new(domain: &Arc<LockDomain>, dev: u64, ino: u64) -> Self {
        let state = Arc::new(FileState { dev, ino, spaces: Mutex::default() });
        FileLocks { registration: domain.register(&state), domain: domain.clone(), state }
    }

    // Byte ranges: POSIX and OFD.

    /// F_GETLK: the first lock that keeps `request` from being granted, in the order in which Linux searches:
    /// owners by age of their first lock in this file, ranges ascending within an owner.
    pub fn test_range(&self, request: &RangeRequest) -> Option<RangeLock> {
        self.state.spaces.lock().ranges.granted.conflicts(request).next()
    }

    /// F_OFD_GETLK with F_UNLCK: the first lock of `owner` itself that overlaps `range`.
    pub fn test_own_range(&self, owner: Owner, range: Range) -> Option<RangeLock> {
        self.state.spaces.lock().ranges.granted.first_of(owner, range)
    }

    /// F_SETLK: locks now or not at all. What the owner holds of the range already is converted.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`], [`LockError::NoLocks`].
    pub fn set_range(&self, request: &RangeRequest) -> Result<(), LockError> {
        self.request_range(request, NO_WAIT).map(drop)
    }

    /// F_SETLKW: locks, sleeping while others hold conflicting locks. What the owner holds of the range already
    /// stays as it is until then.
    ///
    /// # Errors
    /// [`LockError::Deadlock`], [`LockError::NoLocks`], and by `cancel` [`LockError::Interrupted`] and
    /// [`LockError::TimedOut`].
    pub fn set_range_wait(&self, request: &RangeRequest, cancel: &Cancel) -> Result<(), LockError> {
        self.wait(cancel, |done| self.request_range(request, Some(done)))
    }

    /// F_SETLKW without a thread that sleeps: if the request must wait, `done` is called with the outcome, by
    /// whichever thread decides it, maybe before this returns. See the crate's documentation for its duties.
    ///
    /// # Errors
    /// [`LockError::Deadlock`] and [`LockError::NoLocks`], when known at once; `done` is then not called.
    pub fn submit_range(&self, request: &RangeRequest, done: Done) -> Result<Submitted, LockError> {
        Self::keeping(done, |done| self.request_range(request, Some(done)))
    }

    /// F_UNLCK: unlocks what `owner` holds of `range`, if anything.
    ///
    /// # Errors
    /// [`LockError::NoLocks`] if this would split a lock and the limit is reached; then nothing is unlocked.
    pub fn unlock_range(&self, owner: Owner, range: Range) -> Result<(), LockError> {
        self.change(|spaces, domain, finished| {
            if spaces.ranges.granted.unlock(owner, range, &domain.quota)? {
                spaces.ranges.settle(domain, finished);
            }
            Ok(())
        })
    }

    /// Unlocks all ranges of `owner`: due at any close of the file by a process, and at the last close of a
    /// description. Its waiting requests stay; [`cancel`](Self::cancel) them when the owner dies.
    pub fn release_owner(&self, owner: Owner) {
        self.change(|spaces, domain, finished| {
            if spaces.ranges.granted.release(owner, &domain.quota) {
                spaces.ranges.settle(domain, finished);
            }
        });
    }

    // flock.

    /// flock with `LOCK_NB`: locks the file for the description `owner`, now or not at all. `pid` is for listings.
    ///
    /// A conversion is a release followed by a request, as on Linux: if it fails, the old lock is lost.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`], [`LockError::NoLocks`].
    pub fn set_flock(&self, owner: u64, pid: i32, kind: Kind) -> Result<(), LockError> {
        self.request_flock(Flock { owner, pid, kind }, NO_WAIT).map(drop)
    }

    /// flock: as [`set_flock`](Self::set_flock), but sleeps while others hold conflicting locks.
    ///
    /// # Errors
    /// [`LockError::NoLocks`], and by `cancel` [`LockError::Interrupted`] and [`LockError::TimedOut`].
    pub fn set_flock_wait(&self, owner: u64, pid: i32, kind: Kind, cancel: &Cancel) -> Result<(), LockError> {
        self.wait(cancel, |done| self.request_flock(Flock { owner, pid, kind }, Some(done)))
    }

    /// As [`submit_range`](Self::submit_range), for flock.
    ///
    /// # Errors
    /// [`LockError::NoLocks`]; `done` is then not called.
    pub fn submit_flock(&self, owner: u64, pid: i32, kind: Kind, done: Done) -> Result<Submitted, LockError> {
        Self::keeping(done, |done| self.request_flock(Flock { owner, pid, kind }, Some(done)))
    }

    /// flock with `LOCK_UN`: unlocks what the description `owner` holds, if anything.
    pub fn unlock_flock(&self, owner: u64) {
        self.change(|spaces, domain, finished| {
            if spaces.flocks.granted.unlock(owner, &domain.quota) {
                spaces.flocks.settle(domain, finished);
            }
        });
    }

    /// The last close of the description `owner`: the same as [`unlock_flock`](Self::unlock_flock).
    pub fn release_flock(&self, owner: u64) {
        self.unlock_flock(owner);
    }

    // Both.

    /// Withdraws a waiting request of this file. True: its completion will never be called. False: it was
    /// decided (or withdrawn) before, and its completion has been or is about to be called.
    pub fn cancel(&self, ticket: &Ticket) -> bool {
        let withdrawn = {
            let mut spaces = self.state.spaces.lock();
            match spaces.ranges.withdraw(*ticket, &self.domain) {
                None => spaces.flocks.withdraw(*ticket, &self.domain),
                done => done,
            }
        };
        // The completion is dropped here, with the file unlocked: it may own anything.
        withdrawn.is_some()
    }

    /// True if anybody holds or waits for a lock of this file.
    pub fn has_locks(&self) -> bool {
        let spaces = self.state.spaces.lock();
        !spaces.ranges.granted.is_empty()
            || !spaces.flocks.granted.is_empty()
            || spaces.ranges.has_waiters()
            || spaces.flocks.has_waiters()
    }

    fn request_range(
        &self,
        request: &RangeRequest,
        done: Option<impl FnOnce() -> Done>,
    ) -> Result<Submitted, LockError> {
        self.change(|spaces, domain, finished| {
            let submitted = spaces.ranges.request(*request, domain, done)?;
            if submitted == Submitted::Granted {
                spaces.ranges.settle(domain, finished);
            }
            Ok(submitted)
        })
    }

    fn request_flock(
        &self,
        request: Flock,
        done: Option<impl FnOnce() -> Done>,
    ) -> Result<Submitted, LockError> {
        self.change(|spaces, domain, finished| {
            let held = spaces.flocks.granted.of(request.owner);
            if held.is_some_and(|held| held.kind == request.kind) {
                return Ok(Submitted::Granted);
            }
            let gave_up = spaces.flocks.granted.unlock(request.owner, &domain.quota);
            // The request comes before the settling: who converts is ahead of those who wait.
            let submitted = spaces.flocks.request(request, domain, done);
            if gave_up {
                spaces.flocks.settle(domain, finished);
            }
            submitted
        })
    }

    /// Runs `body` on the locked file, then, unlocked, the completions it found.
    fn change<T>(&self, body: impl FnOnce(&mut Spaces, &LockDomain, &mut Completions) -> T) -> T {
        let mut finished = Completions::default();
        let result = body(&mut self.state.spaces.lock(), &self.domain, &mut finished);
        finished.deliver();
        result
    }

    /// Makes a request that takes `done` if it has to wait. If it need not, `done` is dropped here and not
    /// under the file lock: it may own anything, such as something that calls this crate when dropped.
    fn keeping(
        done: Done,
        request: impl FnOnce(&mut dyn FnMut() -> Done) -> Result<Submitted, LockError>,
    ) -> Result<Submitted, LockError> {
        let mut kept = Some(done);
        // Asked for at most once; the spare is never built.
        request(&mut || kept.take().unwrap_or_else(|| Box::new(drop)))
    }

    /// Makes a request, and sleeps if it has to wait.
    fn wait(
        &self,
        cancel: &Cancel,
        request: impl FnOnce(&mut dyn FnMut() -> Done) -> Result<Submitted, LockError>,
    ) -> Result<(), LockError> {
        // Built only when the request waits, to keep the allocation off the fast path.
        let mut slot = None;
        let submitted = request(&mut || {
            let waker = slot.insert(Arc::<Slot>::default()).clone();
            Box::new(move |outcome| waker.finish(outcome))
        })?;
        match (submitted, slot) {
            (Submitted::Waiting(ticket), Some(slot)) => Slot::sleep(&slot, cancel, || self.cancel(&ticket)),
            _ => Ok(()),
        }
    }
}

impl Drop for FileLocks {
    fn drop(&mut self) {
        self.domain.unregister(self.registration);
        self.change(|spaces, domain, finished| {
            spaces.ranges.clear(domain, finished);
            spaces.flocks.clear(domain, finished);
        });
    }
}

impl fmt::Debug for FileLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileLocks")
            .field("dev", &self.state.dev)
            .field("ino", &self.state.ino)
            .finish_non_exhaustive()
    }
}
