//! Node: one level of a radix tree, and the entries by which levels hang together.

use super::Object;
use super::object::{ALIGN, borrowed};
use crate::face::atomic::{AtomicPtr, AtomicU32, Ordering, fence};
use std::ptr::NonNull;

/// Bits of a number that one level looks at.
pub(super) const BITS: u32 = if cfg!(feature = "loom") { 1 } else { 6 };
/// Entries of a node.
pub(super) const SLOTS: usize = 1 << BITS;
/// The most levels. All numbers below `2^(BITS * HEIGHT_MAX)` have a place.
pub(super) const HEIGHT_MAX: u32 = if cfg!(feature = "loom") { 3 } else { 10 };

const _: () = assert!((HEIGHT_MAX as usize) < ALIGN, "addresses have no room for a height");

/// Where a slot leads: nowhere (null), to an object (height 0), or to a node. The low bits of the address are
/// the height of what it leads to, so a reader knows it without another look.
pub(super) type RadixEntry = *mut ();

/// The height of what `entry` leads to: 0 for an object and for nothing.
#[inline]
pub(super) fn height(entry: RadixEntry) -> u32 {
    (entry.addr() & (ALIGN - 1)) as u32
}

/// Which of a node's slots leads to `index`, in a node of `height`.
#[inline]
pub(super) fn slot_of(index: u64, height: u32) -> usize {
    (index >> (BITS * (height - 1))) as usize & (SLOTS - 1)
}

/// Where in its node slot number `at` lies: neighbours on different lines, so that a thread that adds an object takes no
/// line from threads that look for the one before it.
#[inline]
fn place_of(at: usize) -> usize {
    const HALF: u32 = BITS / 2;
    (at & ((1 << HALF) - 1)) << (BITS - HALF) | at >> HALF
}

/// Whether a tree of `height` has a place for `index`.
#[inline]
pub(super) fn reaches(height: u32, index: u64) -> bool {
    index >> (BITS * height) == 0
}

/// One level of one part of a tree.
#[repr(C, align(64))]
pub(super) struct RadixNode {
    /// In the order of [`place_of`]. *written by the writer, read by everybody (publish)*
    slots: [AtomicPtr<()>; SLOTS],
    /// How many slots lead somewhere. Apart from the slots, since readers have no use for it.
    /// *protected by the tree's mutex*
    filled: AtomicU32,
    /// How many slots and trees lead to the node. *atomic (owners)*
    owners: AtomicU32,
}

impl RadixNode {
    pub(super) fn new() -> Box<RadixNode> {
        Box::new(RadixNode {
            slots: std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())),
            filled: AtomicU32::new(0),
            owners: AtomicU32::new(1),
        })
    }

    /// A copy of this node with the same children; this node is shared, and so does not change.
    pub(super) fn copy<O: Object>(&self) -> Box<RadixNode> {
        let copy = RadixNode::new();
        for (to, from) in copy.slots.iter().zip(&self.slots) {
            // Relaxed, both: what is behind it was published to the caller; the copy is nobody else's yet.
            let entry = from.load(Ordering::Relaxed);
            // SAFETY: this node holds a reference to it, of its own.
            unsafe { share::<O>(entry) };
            to.store(entry, Ordering::Relaxed);
        }
        // Relaxed, both: as above.
        copy.filled.store(self.filled.load(Ordering::Relaxed), Ordering::Relaxed);
        copy
    }

    /// Whether more than one slot or tree leads to the node, which the caller found from a tree whose mutex it has. Otherwise
    /// the former owners have finished with the node.
    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        // Acquire(owners): what the others did with it; pairs with Release(owners) in release().
        self.owners.load(Ordering::Acquire) > 1
    }

    /// Slot number `at`.
    #[inline]
    pub(super) fn slot(&self, at: usize) -> &AtomicPtr<()> {
        &self.slots[place_of(at)]
    }

    /// The entry that leads to this node of `height`.
    pub(super) fn into_entry(self: Box<RadixNode>, height: u32) -> RadixEntry {
        Box::into_raw(self).map_addr(|address| address | height as usize).cast()
    }

    /// Notes that one more slot leads somewhere.
    pub(super) fn count_up(&self) {
        // Relaxed: the tree's mutex orders the writers, and nobody else looks.
        self.filled.store(self.filled.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Notes that one slot less leads somewhere. True when none does any more.
    pub(super) fn count_down(&self) -> bool {
        // Relaxed: as in count_up().
        let left = self.filled.load(Ordering::Relaxed) - 1;
        self.filled.store(left, Ordering::Relaxed);
        left == 0
    }
}

/// The node that `entry` leads to.
///
/// # Safety
/// It leads to a node, which is not freed for `'a`.
#[inline]
pub(super) unsafe fn node<'a>(entry: RadixEntry) -> &'a RadixNode {
    debug_assert!(height(entry) > 0, "not a node");
    // SAFETY: without the height the entry is the pointer of `into_entry`; alive by the caller's promise.
    unsafe { &*entry.map_addr(|address| address & !(ALIGN - 1)).cast::<RadixNode>() }
}

/// How many bytes what `entry` leads to has, without what hangs below it.
///
/// # Safety
/// It is null or leads to a node or an `O`, which is not freed meanwhile.
pub(super) unsafe fn bytes<O: Object>(entry: RadixEntry) -> usize {
    match NonNull::new(entry) {
        Some(_) if height(entry) > 0 => size_of::<RadixNode>(),
        // SAFETY: an object, by contract.
        object => object.map_or(0, |object| size_of_val(unsafe { O::target(object) })),
    }
}

/// Makes another reference to what `entry` leads to.
///
/// # Safety
/// It is null or leads to a node or an `O`, to which the caller has a reference.
pub(super) unsafe fn share<O: Object>(entry: RadixEntry) {
    if height(entry) > 0 {
        // SAFETY: a node, alive by the caller's promise. Relaxed: the new reference derives from an existing one.
        unsafe { node(entry) }.owners.fetch_add(1, Ordering::Relaxed);
    } else if let Some(object) = NonNull::new(entry) {
        // SAFETY: alive by the caller's promise; the new reference is the entry's.
        let _ = O::clone(&*unsafe { borrowed::<O>(object) }).into_raw();
    }
}

/// Gives up a reference to what `entry` leads to. The last one frees a node, and gives up what it leads to.
///
/// # Safety
/// It came from `Node::into_entry` or is null or from [`Object::into_raw`] of an `O`; the reference is the caller's, and nobody
/// can find what it leads to by it any more.
pub(super) unsafe fn release<O: Object>(entry: RadixEntry) {
    if height(entry) == 0 {
        // SAFETY: from `into_raw`; the reference becomes ours.
        NonNull::new(entry).into_iter().for_each(|object| drop(unsafe { O::from_raw(object) }));
        return;
    }
    // SAFETY: a node, by contract.
    let this = unsafe { node(entry) };
    // Release(owners): what we did with the node; pairs with the fence below and with Acquire(owners) in is_shared().
    if this.owners.fetch_sub(1, Ordering::Release) > 1 {
        return;
    }
    // Acquire(owners): what others did with it; pairs with the Release above.
    fence(Ordering::Acquire);
    // Relaxed, both: nobody else is left.
    if this.filled.load(Ordering::Relaxed) > 0 {
        for slot in &this.slots {
            // SAFETY: the node's own references.
            unsafe { release::<O>(slot.load(Ordering::Relaxed)) };
        }
    }
    // SAFETY: `into_entry` got it from a box, and nobody has another reference.
    drop(unsafe { Box::from_raw(entry.map_addr(|address| address & !(ALIGN - 1)).cast::<RadixNode>()) });
}
