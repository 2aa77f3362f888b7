//! `sluice-sync`: the one place where sluicefs touches atomics, locks, threads, time and CPU numbers.
//!
//! # Theory
//! Code above this crate never names `std::sync`, `std::thread` or `thread_local!`. It takes what it needs
//! from here. The same source is compiled against three [`face`]s: native atomics and Linux, the model
//! checker loom, and the simulated multiprocessor; the switch is made once, at the bottom, by twin packages.
//!
//! # Which for what
//! | you have | take | a use alone costs |
//! |---|---|---|
//! | a value that one thread at a time may touch | [`Mutex`] | one line, written twice |
//! | the same, of which there are very many that two threads hardly ever want at once | [`SmallMutex`] | the same, in one word |
//! | the same, looked at together by threads that stay for long | [`RwLock`] | the same, for readers too |
//! | a table that all read and hardly anybody changes | [`BrLock`] | a line of the reader's own; a change: microseconds |
//! | one value that is replaced as a whole | [`rcu::RcuCell`] | as above; a change: an allocation |
//! | a few words that are read together | [`SeqLock`]; bytes: [`SeqBytes`] | no store to read |
//! | a map by key, by name, or by number | [`HashTable`], [`NameTable`], [`RadixTree`] | no shared store to look up; a bucket's line to change |
//! | a sum that is added to everywhere and read seldom | [`percpu::Counter`]; with a limit: [`percpu::Budget`] | a line of the CPU's own |
//! | a set of objects that come and go on all CPUs; their numbers | [`percpu::PerCpuList`]; [`percpu::Ida`] | the same |
//! | an object that lives as long as somebody uses it | [`Arc`]; used from all CPUs: [`Ref`] | the object's line; a line of the thread's own |
//! | objects that can be read again, in a limited memory | [`reclaim::Reclaimer`] | to find: a load; to enter: a line of the CPU's own |
//! | data of one thread that others visit at times | [`owner_lock::OwnerLock`] | a line of its own, no read-modify-write |
//! | much that can mostly be said in little | [`Inflatable`] | one line, written twice, one read-modify-write |
//! | a few instructions, mostly by threads of one CPU | [`spin::SpinLock`] | one line, written twice |
//!
//! Doubtful cases are a [`Mutex`]: it spins while that pays and then sleeps, nobody starves, and it costs what the best
//! known ones cost (`examples/peers.rs`). The header of each module states the costs, its theory and the obligations of
//! its clients.
//!
//! # Differences from `std`
//! Locks do not poison. A panic inside a critical section is a bug that the caller's tests must find; a
//! file system that answers every later call with a second panic would only spread it.

#![deny(unsafe_code)]

mod epoch;
mod locks;
mod tables;

pub mod face;
pub mod memory;
pub mod percpu;
pub mod random;
pub mod time;

pub use epoch::*;
#[cfg(feature = "sim")]
pub use face::Host;
#[cfg(not(feature = "loom"))]
pub use face::{Arc, Barrier, LazyLock, OnceLock, Weak};
pub use face::{CACHE_LINE, CachePadded, SlotTable, atomic, cpu, thread};
pub use locks::*;
pub use memory::{Gap, reclaim};
pub use tables::*;

/// Methods that set the fields of their names, for structs of options of the crates above.
#[macro_export]
macro_rules! setters {
    ($options:ident { $($field:ident: $type:ty => $value:expr;)* }) => {
        impl $options {$(
            #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
            #[must_use]
            pub fn $field(mut self, $field: $type) -> $options {
                self.$field = $value;
                self
            }
        )*}
    };
}

/// Channels for handing values from one thread to another.
#[cfg(not(feature = "loom"))]
pub mod mpsc {
    pub use std::sync::mpsc::{
        Receiver, RecvError, RecvTimeoutError, SendError, Sender, SyncSender, TryRecvError, channel,
        sync_channel,
    };
}
