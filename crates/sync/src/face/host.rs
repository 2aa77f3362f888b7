//! Hosts: what the process has once, and on the simulator once for each thread of the host.
//!
//! Simulated machines of different host threads run beside each other, each in its own time. A structure that
//! all of them shared would let one machine wait for another, and its counts would depend on the other's pace. Likewise a
//! run should not find what an earlier one on the same thread has left: its thread becomes a new host (`Host::renew`).
//!
//! # Clients must
//! not share between threads of the host, on the simulator, what RCU or scalable references protect: the readers of
//! one host are not those of another ([`HOSTS_SHARE`]). The CPUs of one machine are one host.

#[cfg(feature = "sim")]
use std::cell::Cell;
#[cfg(feature = "sim")]
use std::sync::atomic::{AtomicU32, Ordering};

/// Whether threads may share what RCU and scalable references protect: everywhere but on the simulator.
pub const HOSTS_SHARE: bool = !cfg!(feature = "sim");

/// A host thread: natively, and under loom, there is only the one world and this is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    #[cfg(feature = "sim")]
    number: u32,
}

impl Host {
    /// The caller's.
    #[inline]
    pub fn here() -> Host {
        Host {
            #[cfg(feature = "sim")]
            number: match NUMBER.get() {
                0 => Host::renew().number,
                taken => taken - 1,
            },
        }
    }

    /// Makes the calling thread a host that no thread was before, and returns it: what readers, counters and deferred
    /// work of this thread were before is unknown to what it does from now on. Objects that the thread used before
    /// should have been dropped; some kilobytes for each CPU stay.
    #[cfg(feature = "sim")]
    pub fn renew() -> Host {
        // Relaxed: only that they differ counts.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        NUMBER.set(number + 1);
        Host { number }
    }
}

/// The number of the next host.
#[cfg(feature = "sim")]
static NEXT: AtomicU32 = AtomicU32::new(0);

#[cfg(feature = "sim")]
thread_local! {
    /// The calling thread's host plus one, 0 while it is none. *owner only*
    static NUMBER: Cell<u32> = const { Cell::new(0) };
}

/// When an object was made, on the simulator: a name that does not depend on where it lies, as addresses differ from
/// process to process. Elsewhere it is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    #[cfg(feature = "sim")]
    number: u32,
}

impl Birth {
    /// The next one of this host.
    #[inline]
    pub fn now() -> Birth {
        #[cfg(feature = "sim")]
        static NEXT: PerHost<AtomicU32> = PerHost::new(AtomicU32::new(0));
        Birth {
            // Relaxed: only this host counts here.
            #[cfg(feature = "sim")]
            number: NEXT.get(Host::here()).fetch_add(1, Ordering::Relaxed),
        }
    }

    /// How many objects of this host were made before, on the simulator.
    #[inline]
    pub fn number(self) -> Option<usize> {
        #[cfg(feature = "sim")]
        return Some(self.number as usize);
        #[cfg(not(feature = "sim"))]
        None
    }
}

/// A `T` for each [`Host`].
#[cfg(not(feature = "sim"))]
pub struct PerHost<T>(T);

/// A `T` for each [`Host`].
#[cfg(feature = "sim")]
pub struct PerHost<T>(super::SlotTable<T>);

#[cfg(not(feature = "sim"))]
impl<T> PerHost<T> {
    /// `first`, or on the simulator as many of its default as there are hosts.
    pub const fn new(first: T) -> Self {
        PerHost(first)
    }

    /// The one of `host`.
    #[inline]
    pub fn get(&self, _host: Host) -> &T {
        &self.0
    }
}

#[cfg(feature = "sim")]
impl<T: Default> PerHost<T> {
    /// A default for each host. (`first` is only the native value.)
    pub const fn new(first: T) -> Self {
        // A destructor cannot run in a constant; what is forgotten here owns nothing yet.
        std::mem::forget(first);
        PerHost(super::SlotTable::new())
    }

    /// The one of `host`.
    pub fn get(&self, host: Host) -> &T {
        self.0.get(host.number)
    }
}

/// Tells the machine, if there is one, what lies at `value`, which has found its place: of a type `owner` the field
/// `field`, or all of it if that is empty. `owner` may be a path.
#[inline]
pub fn name_value<T: ?Sized>(value: &T, owner: &'static str, field: &'static str) {
    #[cfg(feature = "sim")]
    sluice_machine::name_object(std::ptr::from_ref(value).cast(), size_of_val(value), owner, field);
    #[cfg(not(feature = "sim"))]
    let _ = (value, owner, field);
}

/// Tells the machine, if there is one, what the fields of an object are called: `name_fields!(inode, Inode { links })`.
#[macro_export]
macro_rules! name_fields {
    ($object:expr, $owner:ident { $($field:ident),+ $(,)? }) => {
        $($crate::face::name_value(&$object.$field, stringify!($owner), stringify!($field));)+
    };
}
