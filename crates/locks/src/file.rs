//! FileLocks: the lock state of one inode, and the calls on it.

use crate::file_state::{FileState, Wait};
use crate::lease::{Breaker, Breaking, LeaseRequest, Leases, Notice, Promise};
use crate::lock_class::{FILE_FLOCKS, FILE_RANGES};
use crate::outcomes::Outcomes;
use crate::sole::Sole;
use crate::space::{Around, LockSpace};
use crate::wait::{Detection, Done, Patience, Submitted, Then, Ticket, WaitSlot};
use crate::{Cancel, Kind, LockDomain, LockError, Owner, Range, RangeLock, RangeRequest};
use sluice_sync::percpu::list::Handle;
use sluice_sync::{Arc, CachePadded, Inflatable};
use std::fmt;

/// The advisory locks of one file: byte ranges (POSIX and OFD) and flock.
///
/// Dropping it drops all locks, and ends waits that are left with [`LockError::Interrupted`].
pub struct FileLocks {
    /// *immutable*
    domain: Arc<LockDomain>,
    /// The place in the domain's list of files. *immutable*
    listed: Handle,
    /// *immutable; looks after itself*
    pub(crate) state: Arc<FileState>,
}

/// For requests that do not wait.
fn no_wait(_grants: u64) -> Option<fn() -> Then> {
    None
}

impl FileLocks {
    /// The state of a file without locks. `dev` (a Linux `dev_t`) and `ino` name the file in listings.
    pub fn new(domain: &Arc<LockDomain>, dev: u64, ino: u64) -> Self {
        let space = |class, is_flock| {
            CachePadded::new(Inflatable::with_class(class, Sole::default(), LockSpace::new(is_flock)))
        };
        let (ranges, flocks) = (space(&FILE_RANGES, false), space(&FILE_FLOCKS, true));
        let leases = CachePadded::new(Leases::new());
        let state = Arc::new(FileState { dev, ino, ranges, flocks, leases });
        FileLocks { listed: domain.files.add(Arc::downgrade(&state)), domain: domain.clone(), state }
    }

    // Byte ranges: POSIX and OFD.

    /// F_GETLK: the first lock that keeps `request` from being granted, in the order in which Linux searches:
    /// owners by age of their first lock in this file, ranges ascending within an owner.
    pub fn test_range(&self, request: &RangeRequest) -> Option<RangeLock> {
        self.state.ranges.lock().granted.first_conflict(request)
    }

    /// F_OFD_GETLK with F_UNLCK: the first lock of `owner` itself that overlaps `range`.
    pub fn test_own_range(&self, owner: Owner, range: Range) -> Option<RangeLock> {
        self.state.ranges.lock().granted.first_of(owner, range)
    }

    /// F_SETLK: locks now or not at all. Ranges that the owner already holds are converted.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`], [`LockError::NoLocks`].
    pub fn set_range(&self, request: &RangeRequest) -> Result<(), LockError> {
        self.set_range_noting(request, None, || ())
    }

    /// F_SETLKW: locks, sleeping while others hold conflicting locks. Locks that the owner already holds on the range
    /// stay unchanged until then.
    ///
    /// # Errors
    /// [`LockError::Deadlock`], [`LockError::NoLocks`], and by `cancel` [`LockError::Interrupted`] and
    /// [`LockError::TimedOut`].
    pub fn set_range_wait(&self, request: &RangeRequest, cancel: &Cancel) -> Result<(), LockError> {
        self.set_range_noting(request, Some(cancel), || ())
    }

    /// [`set_range_wait`](Self::set_range_wait), or without `cancel` [`set_range`](Self::set_range). When the lock is
    /// granted `note` is called with the ranges locked: it must not call this crate. So the notes of this function and
    /// of [`release_owner_noting`](Self::release_owner_noting) are in the order of grants and releases.
    ///
    /// # Errors
    /// Errors of both.
    pub fn set_range_noting(
        &self,
        request: &RangeRequest,
        cancel: Option<&Cancel>,
        note: impl Fn(),
    ) -> Result<(), LockError> {
        match cancel {
            None => self.request(request, false, no_wait, note).map(drop),
            Some(cancel) => self.wait(request, false, cancel, note),
        }
    }

    /// F_SETLKW without a thread that sleeps: if the request must wait, `done` is called with the outcome, by
    /// whichever thread decides it, maybe before this returns. See the crate's documentation for its duties.
    ///
    /// # Errors
    /// [`LockError::Deadlock`] and [`LockError::NoLocks`], when known at once; `done` is then not called.
    pub fn submit_range(&self, request: &RangeRequest, done: Done) -> Result<Submitted, LockError> {
        self.submit_range_with(request, Detection::ByOwner, done)
    }

    /// Submits an F_SETLKW, as [`submit_range`](Self::submit_range) does; `detection` says whether the wait may be refused as a
    /// deadlock, and be a part of one.
    ///
    /// # Errors
    /// [`LockError::Deadlock`] and [`LockError::NoLocks`], when known at once; `done` is then not called.
    pub fn submit_range_with(
        &self,
        request: &RangeRequest,
        detection: Detection,
        done: Done,
    ) -> Result<Submitted, LockError> {
        self.keeping(request, false, detection, done)
    }

    /// F_UNLCK: unlocks what `owner` holds of `range`, if anything.
    ///
    /// # Errors
    /// [`LockError::NoLocks`] if this would split a lock and the limit is reached; then nothing is unlocked.
    pub fn unlock_range(&self, owner: Owner, range: Range) -> Result<(), LockError> {
        if self.state.take_sole(owner, range, false, &self.domain.quota, || ()) {
            return Ok(());
        }
        self.change(false, |ranges, around, outcomes| ranges.unlock(around, owner, range, outcomes))
    }

    /// Unlocks all ranges of `owner`: due at any close of the file by a process, and at the last close of a
    /// description. Its waiting requests stay; [`cancel`](Self::cancel) them when the owner dies.
    pub fn release_owner(&self, owner: Owner) {
        self.release_owner_noting(owner, || ());
    }

    /// Unlocks all ranges of `owner`, as [`release_owner`](Self::release_owner) does, then calls `note`; for its order see
    /// [`set_range_noting`](Self::set_range_noting).
    pub fn release_owner_noting(&self, owner: Owner, note: impl Fn()) {
        if self.state.take_sole(owner, Range::WHOLE, false, &self.domain.quota, &note) {
            return;
        }
        self.change(false, |ranges, around, outcomes| {
            ranges.release(around, owner, outcomes);
            note();
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
        self.request(&whole(owner, pid, kind), true, no_wait, || ()).map(drop)
    }

    /// flock: as [`set_flock`](Self::set_flock), but sleeps while others hold conflicting locks.
    ///
    /// # Errors
    /// [`LockError::NoLocks`], and by `cancel` [`LockError::Interrupted`] and [`LockError::TimedOut`].
    pub fn set_flock_wait(&self, owner: u64, pid: i32, kind: Kind, cancel: &Cancel) -> Result<(), LockError> {
        self.wait(&whole(owner, pid, kind), true, cancel, || ())
    }

    /// Requests a flock without waiting on this thread; see [`submit_range`](Self::submit_range).
    ///
    /// # Errors
    /// [`LockError::NoLocks`]; `done` is then not called.
    pub fn submit_flock(&self, owner: u64, pid: i32, kind: Kind, done: Done) -> Result<Submitted, LockError> {
        self.keeping(&whole(owner, pid, kind), true, Detection::Off, done)
    }

    /// flock with `LOCK_UN`: unlocks what the description `owner` holds, if anything.
    pub fn unlock_flock(&self, owner: u64) {
        let owner = Owner::Description(owner);
        if self.state.take_sole(owner, Range::WHOLE, true, &self.domain.quota, || ()) {
            return;
        }
        self.change(true, |flocks, around, outcomes| flocks.release(around, owner, outcomes));
    }

    /// The last close of the description `owner`: the same as [`unlock_flock`](Self::unlock_flock).
    pub fn release_flock(&self, owner: u64) {
        self.unlock_flock(owner);
    }

    // Leases and delegations.

    /// F_SETLEASE, F_SETDELEG: takes a lease, or changes the owner's. `is_in_use` tells whether others have the file
    /// open in a way that the lease excludes. It must not call this crate. It is asked after every opener sees that there
    /// are leases to break. It is not asked for a shared lease on a file that is not known to be open for writing.
    /// `notice` is called when the lease is broken; the holder then answers by taking a lesser one or none.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`]: the file is in use, or a lease of others excludes this one.
    pub fn set_lease(
        &self,
        request: &LeaseRequest,
        is_in_use: impl Fn() -> bool,
        notice: Notice,
    ) -> Result<(), LockError> {
        self.state.leases.set(request, is_in_use, notice)
    }

    /// Gives up the lease of the description `owner`; due at its last close. True if it had one.
    pub fn unset_lease(&self, owner: u64) -> bool {
        self.state.leases.unset(owner)
    }

    /// F_GETLEASE, F_GETDELEG: the lease of the description `owner`, if it holds it by this promise, or what will be left
    /// of it once it was given up as asked.
    pub fn lease_of(&self, owner: u64, promise: Promise) -> Option<Kind> {
        self.state.leases.of(owner, promise)
    }

    /// False if no lease or delegation is in the way of a caller that is about to do `breaking`. One load.
    pub fn has_leases(&self, breaking: Breaking) -> bool {
        self.state.leases.any_against(breaking)
    }

    /// Tells the holders of leases and delegations that are in the way, and sleeps until they gave up or their time is
    /// over, or until `cancel` says so. Without `wait` the holders are only told. Due at each open, once a thread that
    /// takes a lease can see the open.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`] without `wait`; by `wait`, [`LockError::Interrupted`] and [`LockError::TimedOut`].
    pub fn break_leases(&self, breaker: &Breaker, wait: Option<&Cancel>) -> Result<(), LockError> {
        if !self.state.leases.are_concerned(breaker.breaking) {
            return Ok(());
        }
        self.state.leases.break_for(breaker, self.domain.lease_break, wait)
    }

    // All.

    /// Withdraws a waiting request of this file. True: its completion will never be called. False: the request was
    /// decided or withdrawn before, and its completion has been or is about to be called.
    pub fn cancel(&self, ticket: &Ticket) -> bool {
        let withdrawn = self.change(ticket.is_flock, |space, around, outcomes| {
            space.withdraw(around, ticket.place, outcomes)
        });
        // The completion is dropped here, with the file unlocked: it may own anything.
        withdrawn.is_some()
    }

    /// True if anybody holds or waits for a lock or a lease of this file.
    pub fn has_locks(&self) -> bool {
        self.state.spaces().into_iter().any(|space| {
            let space = space.lock();
            !space.granted.is_empty() || space.waiters().is_some()
        }) || self.has_leases(Breaking::Open(Kind::Exclusive))
    }

    /// Makes a request in one of the two spaces, and calls `note` with it locked if the request is granted at once. For
    /// `then` see [`LockSpace::request`].
    pub(crate) fn request<F: FnOnce() -> Then>(
        &self,
        request: &RangeRequest,
        is_flock: bool,
        then: impl FnOnce(u64) -> Option<F>,
        note: impl Fn(),
    ) -> Result<Submitted, LockError> {
        if self.state.grant_sole(request, is_flock, &self.domain.quota, &note) {
            return Ok(Submitted::Granted);
        }
        if is_flock {
            return self.request_flock(request, then);
        }
        self.submit(false, |ranges, around, outcomes| {
            let submitted = ranges.request(around, *request, then, outcomes)?;
            if submitted == Submitted::Granted {
                note();
            }
            Ok(submitted)
        })
    }

    fn request_flock<F: FnOnce() -> Then>(
        &self,
        request: &RangeRequest,
        then: impl FnOnce(u64) -> Option<F>,
    ) -> Result<Submitted, LockError> {
        self.submit(true, |flocks, around, outcomes| {
            let held = flocks.granted.first_of(request.owner, request.range);
            if held.is_some_and(|held| held.kind == request.kind) {
                return Ok(Submitted::Granted);
            }
            let gave_up = held.and_then(|_| flocks.granted.release(request.owner, &around.domain.quota));
            // The request comes before the settling: a conversion is ahead of the requests that wait.
            let submitted = flocks.request(around, *request, then, outcomes);
            if let Some(range) = gave_up {
                flocks.settle(around, range, outcomes);
            }
            submitted
        })
    }

    /// Runs `body` on the locked space, and then, unlocked, whatever it left to be done.
    fn change<T>(
        &self,
        is_flock: bool,
        body: impl FnOnce(&mut LockSpace, Around<'_>, &mut Outcomes) -> T,
    ) -> T {
        let mut outcomes = Outcomes::default();
        let around = Around { file: &self.state, domain: &self.domain };
        let result = body(&mut self.state.space(is_flock).lock(), around, &mut outcomes);
        // No request of the caller's own, so no error.
        let _ = outcomes.carry_out(&self.domain, None);
        result
    }

    /// Runs `body` for a request, which may turn out to be a deadlock; else like [`change`](Self::change).
    fn submit(
        &self,
        is_flock: bool,
        body: impl FnOnce(&mut LockSpace, Around<'_>, &mut Outcomes) -> Result<Submitted, LockError>,
    ) -> Result<Submitted, LockError> {
        let mut outcomes = Outcomes::default();
        let around = Around { file: &self.state, domain: &self.domain };
        let submitted = body(&mut self.state.space(is_flock).lock(), around, &mut outcomes);
        let own = match submitted {
            Ok(Submitted::Waiting(ticket)) if outcomes.has_suspects() => {
                Some(Wait { file: self.state.clone(), ticket })
            }
            _ => None,
        };
        outcomes.carry_out(&self.domain, own)?;
        submitted
    }

    /// The request of `ticket`, which was called, comes for its lock; `note` is called as by `request`.
    pub(crate) fn claim(&self, ticket: &Ticket, note: impl FnOnce()) -> Option<Result<(), LockError>> {
        self.change(ticket.is_flock, |space, around, outcomes| {
            let claimed = space.claim(around, ticket.place, outcomes)?;
            if claimed.is_ok() {
                note();
            }
            Some(claimed)
        })
    }

    /// Makes a request that takes `done` if it has to wait. If it need not, `done` is dropped here and not
    /// under the file lock: it may own anything, such as something that calls this crate when dropped.
    fn keeping(
        &self,
        request: &RangeRequest,
        is_flock: bool,
        detection: Detection,
        done: Done,
    ) -> Result<Submitted, LockError> {
        let mut kept = Some(done);
        // Asked for at most once; the spare is never built.
        let then = || Then::Tell { done: kept.take().unwrap_or_else(|| Box::new(drop)), detection };
        self.request(request, is_flock, |_| Some(then), || ())
    }

    /// Makes a request, and sleeps if it has to wait for long.
    fn wait(
        &self,
        request: &RangeRequest,
        is_flock: bool,
        cancel: &Cancel,
        note: impl Fn(),
    ) -> Result<(), LockError> {
        let mut patience = Patience::default();
        loop {
            // Built only when the request waits, to keep the allocation off the fast path.
            let mut slot = None;
            let called = &mut slot;
            let then = |grants| {
                let sleeps = patience.is_over(grants);
                sleeps.then_some(move || Then::Call(called.insert(Arc::<WaitSlot>::default()).clone()))
            };
            match (self.request(request, is_flock, then, &note), slot) {
                (Err(LockError::WouldBlock), _) => patience.pause(),
                (Ok(Submitted::Waiting(ticket)), Some(slot)) => {
                    return cancel.sleep(&slot, || self.claim(&ticket, &note), || self.cancel(&ticket));
                }
                (decided, _) => return decided.map(drop),
            }
        }
    }
}

/// A flock as a lock of all bytes.
pub(crate) const fn whole(owner: u64, pid: i32, kind: Kind) -> RangeRequest {
    RangeRequest { owner: Owner::Description(owner), pid, kind, range: Range::WHOLE }
}

impl Drop for FileLocks {
    fn drop(&mut self) {
        self.domain.files.remove(self.listed);
        for is_flock in [false, true] {
            self.change(is_flock, |space, around, outcomes| space.clear(around, outcomes));
        }
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
