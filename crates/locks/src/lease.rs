//! Leases: promises to a holder that it is told before somebody else opens or changes the file.
//!
//! # Theory
//! A *lease* is held by an open file description: a shared one promises that nobody opens the file for writing, an
//! exclusive one that nobody opens it at all. A *delegation* promises in addition that the file's attributes and
//! names stay; on a directory, that its names do. A caller about to do what was excluded *breaks* the lease: the holder
//! is told to give it up, or to keep a shared one, and the breaker waits until it did. A holder that takes longer than
//! the domain allows loses it.
//!
//! ```text
//!   active --break--> breaking: told what to keep, until when
//!     ^                  |------ holder gives up, or its time is over ----> gone, or shared
//!     `------------------'  (the holder may take a lease again)
//! ```
//!
//! # Which call breaks what
//! | the breaker | leases | delegations |
//! |---|---|---|
//! | opens for reading | exclusive | exclusive |
//! | opens for writing, truncates | all | all |
//! | changes attributes, names, a directory's entries | none | all |
//!
//! # Granting and opening at once
//! An open counts itself, then looks for leases, and if there may be one that matters waits for the mutex. A call that takes
//! a lease shows it, then looks at the counts, and has the mutex all the while. Both sides are SeqCst, so one of them sees
//! the other. A change that is no open looks once more when it is done: either the holder of a new delegation sees the
//! change, or it is told.
//!
//! To look at the counts costs a load for each thread that there is. So when nobody has the file open for writing this is
//! noted, as if there were a shared lease whose holder asked for no notice: a call that opens the file for writing takes the note
//! away. Until then shared leases are taken without a look.
//!
//! # Cost
//! Without leases: one load of a line that only lease calls write. A shared lease on a file that is only read: the mutex.
//!
//! # Sources
//! Linux `fcntl(2)` (`F_SETLEASE`) and `fs/locks.c`; RFC 8881, chapter 10 (delegations).

use crate::lock_class::FILE_LEASES;
use crate::wait::WaitSlot;
use crate::{Cancel, Kind, LockError};
use sluice_sync::atomic::{AtomicU32, Ordering};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Mutex};
use std::{fmt, mem};

/// The changes about which a holder is asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Promise {
    /// About opens and truncation (`F_SETLEASE`).
    Lease,
    /// About attributes and names, too (`F_SETDELEG`).
    Delegation,
}

/// A lease that somebody wants or has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRequest {
    /// The open file description.
    pub owner: u64,
    /// The process that listings report.
    pub pid: i32,
    /// Shared (`F_RDLCK`) or exclusive (`F_WRLCK`).
    pub kind: Kind,
    /// The changes about which the holder is asked first.
    pub promise: Promise,
}

/// The intended call that breaks leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breaking {
    /// Open for reading (shared) or for writing (exclusive), or truncate (exclusive).
    Open(Kind),
    /// Change attributes, names, or a directory's entries.
    Change,
}

/// Which owner breaks leases, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Breaker {
    /// The process, for listings.
    pub pid: i32,
    /// The intended call.
    pub breaking: Breaking,
    /// Its own leases are not in its way. Linux knows this for file servers only, which name their client here.
    pub owner: Option<u64>,
}

/// The message to a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseBreak {
    /// The kind that the holder may keep. `None`: no lease.
    pub keep: Option<Kind>,
    /// How long it may take.
    pub within: Duration,
}

/// How a holder is told; called with no lock of this crate held, by the thread of the breaker, which then waits.
#[derive(Clone)]
pub struct Notice(Option<Arc<Tell>>);

type Tell = Box<dyn Fn(LeaseBreak) + Send + Sync>;

impl Notice {
    /// A holder is told by calling `tell`.
    pub fn new(tell: impl Fn(LeaseBreak) + Send + Sync + 'static) -> Notice {
        Notice(Some(Arc::new(Box::new(tell))))
    }

    /// A holder that does not listen, and loses the lease when its time is over.
    pub const fn unheard() -> Notice {
        Notice(None)
    }

    fn tell(&self, lease_break: LeaseBreak) {
        if let Some(tell) = &self.0 {
            tell(lease_break);
        }
    }
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notice")
    }
}

/// One lease. *Protected by the leases' state.*
struct Lease {
    request: LeaseRequest,
    /// The kind that the holder may keep and the deadline, if the lease was broken.
    broken: Option<(Option<Kind>, Instant)>,
    notice: Notice,
}

/// A call that waits for leases to go.
struct LeaseWaiter {
    breaker: Breaker,
    slot: Arc<WaitSlot>,
}

/// The listed state of a lease, or of a call that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseState {
    /// Nobody minds.
    Active,
    /// The holder was told to keep this.
    Breaking(Option<Kind>),
    /// Waits for leases of others to go.
    Breaker,
}

/// The leases of one file.
pub(crate) struct Leases {
    /// Which promises anybody has, and what is noted: [`LEASES`], [`DELEGATIONS`], [`UNWRITTEN`]. *atomic (lease); written
    /// under the mutex*
    present: AtomicU32,
    /// *protected by its own mutex*
    state: Mutex<LeasesOfFile>,
}

#[derive(Default)]
struct LeasesOfFile {
    leases: Vec<Lease>,
    waiters: Vec<LeaseWaiter>,
    /// The file is not open for writing, or a call that opens it has not yet come for the mutex; see the header.
    is_unwritten: bool,
}

const LEASES: u32 = 1 << 0;
const DELEGATIONS: u32 = 1 << 1;
const UNWRITTEN: u32 = 1 << 2;

impl Promise {
    const fn bit(self) -> u32 {
        match self {
            Promise::Lease => LEASES,
            Promise::Delegation => DELEGATIONS,
        }
    }
}

impl Breaker {
    fn conflicts_with(&self, held: &LeaseRequest) -> bool {
        let breaks = match self.breaking {
            Breaking::Open(kind) => held.kind.conflicts(kind),
            Breaking::Change => held.promise == Promise::Delegation,
        };
        breaks && self.owner != Some(held.owner)
    }

    /// The kind that a holder may keep.
    fn leaves(&self) -> Option<Kind> {
        (self.breaking == Breaking::Open(Kind::Shared)).then_some(Kind::Shared)
    }
}

impl Lease {
    /// The kind after the holder has obeyed the break (`F_GETLEASE`).
    fn target(&self) -> Option<Kind> {
        self.broken.map_or(Some(self.request.kind), |(keep, _)| keep)
    }
}

impl LeasesOfFile {
    fn position(&self, owner: u64) -> Option<usize> {
        self.leases.iter().position(|lease| lease.request.owner == owner)
    }

    /// Whether leases of others keep `request` from being granted.
    fn refuses(&self, request: &LeaseRequest) -> bool {
        self.leases.iter().any(|lease| {
            let pending = matches!(lease.broken, Some((None, _)));
            lease.request.owner != request.owner && (request.kind.conflicts(lease.request.kind) || pending)
        })
    }

    /// The word that all threads see.
    fn bits(&self) -> u32 {
        let note = if self.is_unwritten { UNWRITTEN } else { 0 };
        self.leases.iter().fold(note, |bits, lease| bits | lease.request.promise.bit())
    }

    /// Downgrades the leases of holders that missed their deadline.
    fn expire(&mut self) -> bool {
        if self.leases.iter().all(|lease| lease.broken.is_none()) {
            return false;
        }
        let now = Instant::now();
        let before = self.leases.len();
        let mut changed = false;
        self.leases.retain_mut(|lease| match lease.broken {
            Some((keep, until)) if until <= now => {
                changed = true;
                lease.broken = None;
                keep.is_some_and(|kind| {
                    lease.request.kind = kind;
                    true
                })
            }
            _ => true,
        });
        changed || self.leases.len() != before
    }

    /// Until when the first conflicting holder may take its time.
    fn deadline(&self, breaker: &Breaker) -> Option<Instant> {
        let conflicting = self.leases.iter().filter(|lease| breaker.conflicts_with(&lease.request));
        conflicting.filter_map(|lease| lease.broken).map(|(_, until)| until).min()
    }

    /// Tells all holders in the way of `breaker` that were not told as much.
    fn begin_break(&mut self, breaker: &Breaker, within: Duration) -> Vec<(Notice, LeaseBreak)> {
        let mut told = Vec::new();
        let keep = breaker.leaves();
        // A time too far to express is a very long one.
        let until = Instant::now().checked_add(within).unwrap_or_else(|| Instant::now() + FAR);
        for lease in self.leases.iter_mut().filter(|lease| breaker.conflicts_with(&lease.request)) {
            let is_news = match (lease.broken, keep) {
                (None, _) => true,
                (Some((Some(_), _)), None) => true,
                (Some(_), _) => false,
            };
            if is_news {
                lease.broken = Some((keep, until));
                told.push((lease.notice.clone(), LeaseBreak { keep, within }));
            }
        }
        told
    }
}

/// Longer than any holder takes.
const FAR: Duration = Duration::from_secs(1 << 30);

impl Leases {
    pub(crate) fn new() -> Leases {
        let state = Mutex::with_class(&FILE_LEASES, LeasesOfFile::default());
        Leases { present: AtomicU32::new(0), state }
    }

    /// False if nothing is in the way of a call that is about to do `breaking`.
    pub(crate) fn any_against(&self, breaking: Breaking) -> bool {
        self.sees(breaking, 0)
    }

    /// False if `breaking` conflicts with no lease.
    pub(crate) fn are_concerned(&self, breaking: Breaking) -> bool {
        self.sees(breaking, UNWRITTEN)
    }

    fn sees(&self, breaking: Breaking, note: u32) -> bool {
        let bits = match breaking {
            Breaking::Open(Kind::Shared) => LEASES | DELEGATIONS,
            Breaking::Open(Kind::Exclusive) => LEASES | DELEGATIONS | note,
            Breaking::Change => DELEGATIONS,
        };
        // SeqCst(lease): pairs with show_bits(); see the header.
        self.present.load(Ordering::SeqCst) & bits != 0
    }

    /// Lets everybody see `bits`, with the mutex held.
    fn show_bits(&self, bits: u32) {
        // Relaxed: written under the mutex.
        if self.present.load(Ordering::Relaxed) != bits {
            // SeqCst(lease): pairs with sees().
            self.present.store(bits, Ordering::SeqCst);
        }
    }

    /// Lets all threads see which promises there are, and returns the waiters that may have waited for a change.
    fn show(&self, state: &LeasesOfFile) -> Vec<Arc<WaitSlot>> {
        self.show_bits(state.bits());
        state.waiters.iter().map(|waiter| waiter.slot.clone()).collect()
    }

    /// See [`FileLocks::set_lease`](crate::FileLocks::set_lease).
    pub(crate) fn set(
        &self,
        request: &LeaseRequest,
        is_in_use: impl Fn() -> bool,
        notice: Notice,
    ) -> Result<(), LockError> {
        let woken = {
            let mut state = self.state.lock();
            state.expire();
            if state.refuses(request) || self.find_in_use(&mut state, request, is_in_use) {
                self.show(&state);
                return Err(LockError::WouldBlock);
            }
            match state.position(request.owner) {
                Some(own) => {
                    let lease = &mut state.leases[own];
                    lease.request = LeaseRequest { promise: lease.request.promise, ..*request };
                    lease.notice = notice;
                    // A holder that was told to keep a shared lease and takes one has done it.
                    lease.broken =
                        lease.broken.filter(|(keep, _)| keep.is_none() || request.kind == Kind::Exclusive);
                }
                None => state.leases.push(Lease { request: *request, broken: None, notice }),
            }
            self.show(&state)
        };
        woken.iter().for_each(|slot| slot.call());
        Ok(())
    }

    /// Whether others have the file open in a way that `request` excludes. A call that opens it from now on sees the
    /// request, and waits for the mutex.
    fn find_in_use(
        &self,
        state: &mut LeasesOfFile,
        request: &LeaseRequest,
        is_in_use: impl Fn() -> bool,
    ) -> bool {
        let is_about_writers = request.kind == Kind::Shared && request.promise == Promise::Lease;
        if is_about_writers && state.is_unwritten {
            return false;
        }
        self.show_bits(state.bits() | request.promise.bit());
        let is_in_use = is_in_use();
        state.is_unwritten |= is_about_writers && !is_in_use;
        is_in_use
    }

    /// See [`FileLocks::unset_lease`](crate::FileLocks::unset_lease). True if there was one.
    pub(crate) fn unset(&self, owner: u64) -> bool {
        let woken = {
            let mut state = self.state.lock();
            let Some(own) = state.position(owner) else { return false };
            state.leases.remove(own);
            self.show(&state)
        };
        woken.iter().for_each(|slot| slot.call());
        true
    }

    /// See [`FileLocks::lease_of`](crate::FileLocks::lease_of).
    pub(crate) fn of(&self, owner: u64, promise: Promise) -> Option<Kind> {
        let mut state = self.state.lock();
        if state.expire() {
            self.show(&state);
        }
        let own = state.position(owner).map(|own| &state.leases[own])?;
        if own.request.promise == promise { own.target() } else { None }
    }

    /// See [`FileLocks::break_leases`](crate::FileLocks::break_leases).
    pub(crate) fn break_for(
        &self,
        breaker: &Breaker,
        within: Duration,
        wait: Option<&Cancel>,
    ) -> Result<(), LockError> {
        let slot = Arc::<WaitSlot>::default();
        let result = loop {
            let (told, deadline) = {
                let mut state = self.state.lock();
                let writes = breaker.breaking == Breaking::Open(Kind::Exclusive);
                let was_unwritten = writes && mem::take(&mut state.is_unwritten);
                if state.expire() || was_unwritten {
                    self.show(&state);
                }
                let told = state.begin_break(breaker, within);
                let Some(deadline) = state.deadline(breaker) else { break Ok(()) };
                if wait.is_some() && !state.waiters.iter().any(|waiter| Arc::ptr_eq(&waiter.slot, &slot)) {
                    state.waiters.push(LeaseWaiter { breaker: *breaker, slot: slot.clone() });
                }
                (told, deadline)
            };
            for (notice, lease_break) in told {
                notice.tell(lease_break);
            }
            let Some(cancel) = wait else { break Err(LockError::WouldBlock) };
            // Called, it looks again; so it does when a holder's time is over.
            let ends_for = cancel.deadline();
            match cancel.until(deadline).sleep(&slot, || Some(Ok(())), || true) {
                Ok(()) => {}
                Err(LockError::TimedOut) if ends_for.is_none_or(|at| Instant::now() < at) => {}
                Err(error) => break Err(error),
            }
        };
        if wait.is_some() {
            self.state.lock().waiters.retain(|waiter| !Arc::ptr_eq(&waiter.slot, &slot));
        }
        result
    }

    /// All leases, and the calls that wait for them.
    pub(crate) fn list(&self) -> Vec<(LeaseRequest, LeaseState)> {
        let state = self.state.lock();
        let lease = |lease: &Lease| {
            let state = lease.broken.map_or(LeaseState::Active, |(keep, _)| LeaseState::Breaking(keep));
            (lease.request, state)
        };
        let waiter = |waiter: &LeaseWaiter| {
            let Breaker { pid, breaking, owner } = waiter.breaker;
            let (kind, promise) = match breaking {
                Breaking::Open(kind) => (kind, Promise::Lease),
                Breaking::Change => (Kind::Exclusive, Promise::Delegation),
            };
            (LeaseRequest { owner: owner.unwrap_or(0), pid, kind, promise }, LeaseState::Breaker)
        };
        state.leases.iter().map(lease).chain(state.waiters.iter().map(waiter)).collect()
    }
}
