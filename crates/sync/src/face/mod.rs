//! Face: the one place that knows on what machine the locks run.
//!
//! # Theory
//! The source of this crate is compiled three times, each time against another face:
//!
//! ```text
//!             locks, counters, lists: written once
//!   ------------------------ face ------------------------
//!     native              loom                 sim
//!     std + Linux         model checker        simulated multiprocessor
//!     (sluice-sync)       (sluice-sync-loom)   (sluice-sync-sim)
//! ```
//!
//! A face supplies atomics, tracked cells, spinning, parking ([`futex`]), threads with small numbers
//! ([`thread::slot`]), CPU numbers, time and the asymmetric barrier ([`membarrier`]). Which face is
//! meant is a cargo feature (`loom`, `sim`, neither) that only the twin packages switch on, so one
//! binary may hold two faces.
//!
//! # Clients must
//! - reach shared memory only through [`atomic`] and [`cell`], or neither the checker nor the machine
//!   can see it;
//! - write `const` constructors with `const_new!` and statics with `global!` (loom has neither);
//! - put [`hint::spin_loop`], [`hint::pause`] or [`hint::Waiting`] into every loop that waits for another thread;
//! - take [`SHRUNK`] into account in every constant that bounds a loop: a checker explores each turn.

mod host;
#[cfg(feature = "loom")]
mod loom;
#[cfg(not(any(feature = "loom", feature = "sim")))]
mod native;
#[allow(unsafe_code)]
mod quiet;
#[cfg(not(any(feature = "loom", feature = "sim")))]
#[allow(unsafe_code)]
mod rseq;
#[cfg(all(feature = "sim", not(feature = "loom")))]
mod sim;
#[cfg(not(feature = "loom"))]
mod slot;
mod table;

#[cfg(feature = "loom")]
pub use self::loom::*;
#[cfg(not(any(feature = "loom", feature = "sim")))]
pub use self::native::*;
#[cfg(all(feature = "sim", not(feature = "loom")))]
pub use self::sim::*;

pub use self::host::{Birth, HOSTS_SHARE, Host, PerHost, name_value};
#[cfg(not(feature = "loom"))]
pub(crate) use self::table::NEAR;
pub(crate) use self::table::NearTable;
pub use self::table::SlotTable;

use std::ops::{Deref, DerefMut};

/// Bytes that the caches of two CPUs hand to each other as one piece.
pub const CACHE_LINE: usize = 64;

/// True where every turn of a loop is explored or interpreted: bounds of spinning shrink to almost none.
pub const SHRUNK: bool = cfg!(any(feature = "loom", miri));

/// Faults that the models can seed, to prove that they would find them. Off the model checker there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The mutex is unlocked without publishing what was done under it.
    UnlockWithoutRelease,
    /// A first waiter takes the mutex and forgets those behind it.
    WaitersForgotten,
    /// A reader that came too late takes itself off the rwsem without waking the threads that it held up.
    PhantomLeavesQuietly,
    /// A reader announces itself and goes on without the light barrier.
    AnnounceWithoutBarrier,
    /// A reader that was retired enters and does not say that it is back.
    RetiredAndInside,
    /// A reader takes the era for that of its stamp, and does not look once it is inside.
    EraOfTheStamp,
    /// The owner of an owner lock announces itself and goes on without the light barrier.
    OwnerWithoutBarrier,
    /// A visitor of an owner lock does not wait until the owner holds it no more.
    VisitedWhileHeld,
    /// A sequence lock's reader looks at the sequence again without the fence after its loads.
    RetryWithoutFence,
    /// A reference count that dies reads a CPU's count first and closes it then.
    KillInTwoSteps,
    /// A hash table is resized again while readers may still walk the chains of the last resize.
    ResizeWithoutGracePeriod,
    /// A table of chains is closed by a thread that looked at each bucket, but did not keep it locked.
    ClosedUnlocked,
    /// A table of chains that shrinks says so of one bucket after the other, before its new array is the current one.
    ShrunkBucketByBucket,
    /// A name that moves stands under the new name before it has left the old one.
    MovedInTwoSteps,
    /// A name that is removed does not say so.
    RemovedUnmarked,
    /// A name that another may replace goes on standing for itself.
    ReplacedUnmarked,
    /// The counts of CPUs are added up in a single pass.
    SummedInOneLook,
    /// A scalable reference's cache does not tell that it gives up an object whose uses cancelled out.
    CancelledUsesForgotten,
    /// A scalable reference's cache keeps what it counted although the global count is 0.
    KeptAtZero,
    /// A review that began in a later epoch than the one that is looked at counts as long past.
    EpochsUnordered,
    /// A value to which a weak reference leads is freed though that may have been followed since it was found dead.
    FollowedMeanwhile,
    /// A scalable reference's cache is flushed by its owner while it borrows.
    FlushedWhileHeld,
    /// A borrow holds a cache that does not take part in flushes, and that no thread waits for.
    BorrowedUnlisted,
    /// The short form of a value is given back without publishing what was done to it.
    ShortWithoutRelease,
    /// An object is let go by a thread that looked whether it is held, and then marks it.
    LeaveInTwoSteps,
    /// A drain that is about to end looks once more without the fence before.
    RestWithoutFence,
    /// The only owner of a shared block of bytes does not wait for what the others did with it.
    SoleWithoutFence,
    /// The ticket lock leaves out the barrier between seeing its turn and using it.
    TicketWithoutBarrier,
}

/// Whether `mutant` is seeded in this execution.
#[cfg(not(feature = "loom"))]
#[inline]
pub const fn seeded(_mutant: Mutant) -> bool {
    false
}

/// True where nothing may depend on the addresses that objects happen to have.
pub const DETERMINISTIC: bool = cfg!(feature = "sim");

/// A value alone on its cache lines: writing it takes no line away from its neighbours.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    /// Puts `value` on lines of its own.
    pub const fn new(value: T) -> Self {
        CachePadded(value)
    }

    /// Takes the value out of its lines.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for CachePadded<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for CachePadded<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// How a call of [`futex::wait`] ended. A wake-up may be spurious under any of them: wait in a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Woken, or so it seems.
    Woken,
    /// The word no longer held the expected value; the call did not sleep.
    Changed,
    /// The time ran out.
    TimedOut,
}

/// Writes a constructor that is `const` wherever the face's atomics allow it (loom's do not).
#[cfg(not(feature = "loom"))]
#[doc(hidden)]
#[macro_export]
macro_rules! const_new {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block) => {
        $(#[$meta])*
        $vis const fn $name($($arg: $ty),*) -> $ret $body
    };
}
#[cfg(feature = "loom")]
#[doc(hidden)]
#[macro_export]
macro_rules! const_new {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) -> $ret $body
    };
}

/// Declares a static that lives as long as the program, or under loom as long as one explored execution.
#[cfg(not(feature = "loom"))]
#[doc(hidden)]
#[macro_export]
macro_rules! global {
    ($(#[$meta:meta])* static $name:ident: $ty:ty = $init:expr;) => {
        $(#[$meta])*
        static $name: $ty = $init;
    };
}
#[cfg(feature = "loom")]
#[doc(hidden)]
#[macro_export]
macro_rules! global {
    ($(#[$meta:meta])* static $name:ident: $ty:ty = $init:expr;) => {
        $crate::face::lazy_static! {
            $(#[$meta])*
            static ref $name: $ty = $init;
        }
    };
}

/// A [`NearTable`] whose values `$new` makes (it is a constant), or their `Default`, which is the same.
macro_rules! near_table {
    ($new:expr) => {{
        #[cfg(not(feature = "loom"))]
        let table =
            $crate::face::NearTable::of([const { $crate::face::CachePadded::new($new) }; $crate::face::NEAR]);
        #[cfg(feature = "loom")]
        let table = $crate::face::NearTable::of([]);
        table
    }};
}

pub(crate) use near_table;
pub use {const_new, global};
