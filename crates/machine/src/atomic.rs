//! Atomic types that look and are laid out like those of `std::sync::atomic`, and whose accesses the machine
//! sees.
//!
//! On a simulated CPU each operation is first charged to the cache model. The operation itself is done by the
//! `std` type inside, so the types are as thread-safe as those, and off the machine they cost one
//! thread-local read more. A compare-and-swap that fails has taken the line exclusively all the same. The
//! weak forms never fail spuriously on the machine.

use std::panic::Location;
use std::sync::atomic as host;

pub use std::sync::atomic::Ordering;

use crate::fiber;
use crate::spec::Kind;

#[inline]
fn charge<T>(object: &T, kind: Kind, site: &'static Location<'static>) {
    fiber::access(std::ptr::from_ref(object).addr(), size_of::<T>(), kind, site);
}

/// A fence: a sequentially consistent one costs the CPU a drained store buffer, weaker ones nothing.
#[inline]
pub fn fence(order: Ordering) {
    if order == Ordering::SeqCst {
        fiber::ask(|engine| engine.fence());
    }
    host::fence(order);
}

/// Keeps the compiler from moving accesses across; free.
#[inline]
pub fn compiler_fence(order: Ordering) {
    host::compiler_fence(order);
}

/// Types that a spinner can wait on.
pub trait Watchable: sealed::Sealed {
    /// The value of a load.
    type Value: Copy;

    /// Loads the value, charged as any load.
    #[track_caller]
    fn look(&self, order: Ordering) -> Self::Value;
}

mod sealed {
    pub trait Sealed {}
}

/// The common part of all atomic types; `$value` is the type of their content.
macro_rules! atomic {
    ($(#[$doc:meta])* $name:ident $(<$t:ident>)?, $value:ty) => {
        $(#[$doc])*
        #[repr(transparent)]
        pub struct $name $(<$t>)? (host::$name $(<$t>)?);

        impl $(<$t>)? $name $(<$t>)? {
            /// Holds `value`.
            pub const fn new(value: $value) -> Self {
                Self(host::$name::new(value))
            }

            /// Reads the value.
            #[inline]
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                charge(self, Kind::Load, Location::caller());
                self.0.load(order)
            }

            /// Writes the value; a sequentially consistent store also costs a fence.
            #[inline]
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                charge(self, Kind::Store, Location::caller());
                if order == Ordering::SeqCst {
                    fiber::ask(|engine| engine.fence());
                }
                self.0.store(value, order);
            }

            /// Writes the value and gives the old one.
            #[inline]
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                charge(self, Kind::Rmw, Location::caller());
                self.0.swap(value, order)
            }

            /// Writes `new` if the value is `current`.
            ///
            /// # Errors
            /// Gives the value found if it is another.
            #[inline]
            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                charge(self, Kind::Rmw, Location::caller());
                self.0.compare_exchange(current, new, success, failure)
            }

            /// As `compare_exchange`; off the machine it may fail spuriously.
            ///
            /// # Errors
            /// Gives the value found.
            #[inline]
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                charge(self, Kind::Rmw, Location::caller());
                if fiber::on_machine() {
                    return self.0.compare_exchange(current, new, success, failure);
                }
                self.0.compare_exchange_weak(current, new, success, failure)
            }

            /// Replaces the value by what `f` makes of it, by compare-and-swap; gives the old one.
            ///
            /// # Errors
            /// Gives the value for which `f` gave `None`.
            #[inline]
            #[track_caller]
            pub fn fetch_update<F>(&self, set: Ordering, fetch: Ordering, mut f: F) -> Result<$value, $value>
            where
                F: FnMut($value) -> Option<$value>,
            {
                let mut old = self.load(fetch);
                while let Some(new) = f(old) {
                    match self.compare_exchange_weak(old, new, set, fetch) {
                        Ok(old) => return Ok(old),
                        Err(found) => old = found,
                    }
                }
                Err(old)
            }

            /// The value, which nobody else can reach: not charged.
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            /// The value at the end of its life: not charged.
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
        }

        impl $(<$t>)? std::fmt::Debug for $name $(<$t>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.0, f)
            }
        }

        impl $(<$t>)? From<$value> for $name $(<$t>)? {
            fn from(value: $value) -> Self {
                Self::new(value)
            }
        }

        impl $(<$t>)? sealed::Sealed for $name $(<$t>)? {}

        impl $(<$t>)? Watchable for $name $(<$t>)? {
            type Value = $value;

            #[inline]
            #[track_caller]
            fn look(&self, order: Ordering) -> $value {
                self.load(order)
            }
        }
    };
}

/// Read-modify-writes that differ only in name.
macro_rules! fetches {
    ($name:ident, $value:ty, $($(#[$doc:meta])* $fetch:ident)*) => {
        impl $name {
            $(
                $(#[$doc])*
                #[inline]
                #[track_caller]
                pub fn $fetch(&self, value: $value, order: Ordering) -> $value {
                    charge(self, Kind::Rmw, Location::caller());
                    self.0.$fetch(value, order)
                }
            )*
        }
    };
}

macro_rules! integer {
    ($name:ident, $value:ident) => {
        atomic! {
            #[doc = concat!("An atomic `", stringify!($value), "`.")]
            #[derive(Default)]
            $name, $value
        }
        fetches! { $name, $value,
            /// Adds, wrapping; gives the old value.
            fetch_add
            /// Subtracts, wrapping; gives the old value.
            fetch_sub
            /// Bitwise and; gives the old value.
            fetch_and
            /// Bitwise not-and; gives the old value.
            fetch_nand
            /// Bitwise or; gives the old value.
            fetch_or
            /// Bitwise exclusive or; gives the old value.
            fetch_xor
            /// The larger of the two; gives the old value.
            fetch_max
            /// The smaller of the two; gives the old value.
            fetch_min
        }
    };
}

integer!(AtomicU8, u8);
integer!(AtomicU16, u16);
integer!(AtomicU32, u32);
integer!(AtomicU64, u64);
integer!(AtomicUsize, usize);
integer!(AtomicI8, i8);
integer!(AtomicI16, i16);
integer!(AtomicI32, i32);
integer!(AtomicI64, i64);
integer!(AtomicIsize, isize);

atomic! {
    /// An atomic `bool`.
    #[derive(Default)]
    AtomicBool, bool
}
fetches! { AtomicBool, bool,
    /// Logical and; gives the old value.
    fetch_and
    /// Logical not-and; gives the old value.
    fetch_nand
    /// Logical or; gives the old value.
    fetch_or
    /// Logical exclusive or; gives the old value.
    fetch_xor
}

atomic! {
    /// An atomic pointer.
    AtomicPtr<T>, *mut T
}

impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        Self(host::AtomicPtr::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_types_are_laid_out_as_those_of_std() {
        fn same<A, B>() {
            assert_eq!((size_of::<A>(), align_of::<A>()), (size_of::<B>(), align_of::<B>()));
        }
        same::<AtomicU8, host::AtomicU8>();
        same::<AtomicBool, host::AtomicBool>();
        same::<AtomicU32, host::AtomicU32>();
        same::<AtomicI64, host::AtomicI64>();
        same::<AtomicPtr<u8>, host::AtomicPtr<u8>>();
    }

    #[test]
    fn off_the_machine_they_are_plain_atomics() {
        let word = AtomicU32::new(5);
        assert_eq!(word.fetch_add(2, Ordering::Relaxed), 5);
        assert_eq!(word.compare_exchange(7, 9, Ordering::AcqRel, Ordering::Acquire), Ok(7));
        assert_eq!(word.compare_exchange(7, 1, Ordering::AcqRel, Ordering::Acquire), Err(9));
        assert_eq!(word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |v| Some(v * 2)), Ok(9));
        assert_eq!(word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |_| None), Err(18));
        assert_eq!(format!("{word:?}"), "18");
        assert_eq!(word.into_inner(), 18);
        let flag = AtomicBool::default();
        assert!(!flag.fetch_or(true, Ordering::AcqRel) && flag.load(Ordering::Acquire));
        let mut target = 3;
        let pointer = AtomicPtr::new(&raw mut target);
        assert_eq!(pointer.swap(std::ptr::null_mut(), Ordering::AcqRel), &raw mut target);
    }
}
