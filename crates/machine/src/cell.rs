//! Plain data whose accesses the machine sees.

use std::panic::Location;

use crate::fiber;
use crate::spec::Kind;

/// Charges a read of the `length` bytes at `start`; off the machine it does nothing. Guards of locks call
/// this for the data they protect.
#[inline]
#[track_caller]
pub fn touch_read<T: ?Sized>(start: *const T, length: usize) {
    fiber::access_span(start.addr(), length, Kind::Load, Location::caller());
}

/// Charges a write of the `length` bytes at `start`; off the machine it does nothing.
#[inline]
#[track_caller]
pub fn touch_write<T: ?Sized>(start: *const T, length: usize) {
    fiber::access_span(start.addr(), length, Kind::Store, Location::caller());
}

/// Charges one read-modify-write of the `length` bytes at `start`, which lie in one line, as an atomic operation
/// of a type that is not from [`atomic`](crate::atomic); off the machine it does nothing.
#[inline]
#[track_caller]
pub fn touch_update<T: ?Sized>(start: *const T, length: usize) {
    fiber::access(start.addr(), length, Kind::Rmw, Location::caller());
}

/// A value whose reads and writes are charged; laid out as the value.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Tracked<T>(T);

impl<T> Tracked<T> {
    /// Holds `value`.
    pub const fn new(value: T) -> Tracked<T> {
        Tracked(value)
    }

    /// Reads the value: charged as a load of all its lines.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> &T {
        touch_read(&raw const self.0, size_of::<T>());
        &self.0
    }

    /// Writes the value: charged as a store to all its lines.
    #[inline]
    #[track_caller]
    pub fn write(&mut self) -> &mut T {
        touch_write(&raw const self.0, size_of::<T>());
        &mut self.0
    }

    /// The value at the end of its life: not charged.
    pub fn into_inner(self) -> T {
        self.0
    }
}

/// A value with a line, or more, to itself: nothing else can share its lines, and where it lies in them does
/// not depend on where it was put. Use it for what a test on the machine shares, above all for values on the
/// stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(64))]
pub struct OwnLine<T>(pub T);

impl<T> std::ops::Deref for OwnLine<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> std::ops::DerefMut for OwnLine<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
