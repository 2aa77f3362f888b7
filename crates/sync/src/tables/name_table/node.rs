//! Nodes of a name table: position, value and name in one allocation.

use super::tally::{Adder, Count};
use crate::chains::{Array, Bucket, ChainPlace, LockedBucket, Node, unlinked};
use crate::face::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
use crate::memory::blocks::BlockKind;
use std::alloc::Layout;
use std::ptr::{self, NonNull};

/// The longest name, in bytes.
pub const NAME_MAX: usize = u8::MAX as usize;

/// The bits of a position. Programs that keep positions in 32 signed bits list directories, too.
const POSITION_BITS: u32 = 31;
/// The last position that there can be.
pub(super) const LAST: u64 = (1 << POSITION_BITS) - 1;
/// How many of a position's low bits tell names of one hash apart.
const TWIN_BITS: u32 = 8;
/// How many bits of a hash are part of a position.
pub(super) const HASH_BITS: u32 = POSITION_BITS - TWIN_BITS;
/// The first position that an entry may have: 0 is the beginning, 1 and 2 are left to "." and "..".
pub(super) const FIRST: u64 = 3;
/// How much of a hash is no part of a position.
const UNUSED_BITS: u32 = u64::BITS - HASH_BITS;

/// The first position for names with this hash.
#[inline]
pub(super) fn first_position(hash: u64) -> u64 {
    (hash >> UNUSED_BITS << TWIN_BITS).max(FIRST)
}

/// The last position for names whose first is `position`.
#[inline]
pub(super) fn last_twin(position: u64) -> u64 {
    position | ((1 << TWIN_BITS) - 1)
}

/// The place of `position` in the chains.
#[inline]
pub(super) fn place_of(position: u64) -> u64 {
    position << (UNUSED_BITS - TWIN_BITS)
}

/// The position at `place`.
#[inline]
pub(super) fn position_at(place: u64) -> u64 {
    place >> (UNUSED_BITS - TWIN_BITS)
}

/// Whether two names are equal. Names are short: most are compared by a load or two, without a call.
#[inline]
pub(super) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len()
        && match a.len() {
            8..=16 => a.first_chunk::<8>() == b.first_chunk() && a.last_chunk::<8>() == b.last_chunk(),
            4..8 => a.first_chunk::<4>() == b.first_chunk() && a.last_chunk::<4>() == b.last_chunk(),
            2..4 => a.first_chunk::<2>() == b.first_chunk() && a.last() == b.last(),
            1 => a.first() == b.first(),
            _ => a == b,
        }
}

/// An entry. The name follows in the same allocation, from the end of `name_len` on.
#[repr(C, align(8))]
pub(super) struct NameNode<V> {
    /// See [`Node::links`].
    links: [AtomicPtr<NameNode<V>>; 2],
    /// *immutable*
    pub(super) position: u64,
    /// *immutable*
    pub(super) value: V,
    /// A [`EntryState`]. *written under the bucket's lock; atomic (standing)*
    standing: AtomicU8,
    /// The weight of the entry, counted beside its 1. *immutable*
    pub(super) weight: u8,
    /// *immutable*
    name_len: u8,
}

/// Whether a lookup that comes to the entry finds it. See `pair.rs`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum EntryState {
    Stands,
    /// The entry will stand once the leaving entry has ceased to stand.
    Arrives,
    /// The entry has moved to another name, or is removed.
    Left,
    /// An arriving entry will stand before this one, or already does. A lookup that comes here by the chain has passed
    /// that one, and finds this one. A thread that remembers this one does not know.
    Yields,
    /// An entry that arrived stands before this one: a lookup that still comes here began earlier.
    Replaced,
}

impl<V: 'static> NameNode<V> {
    const NAME_AT: usize = std::mem::offset_of!(NameNode<V>, name_len) + 1;

    /// The block for a node with a name of `len` bytes.
    fn kind(len: usize) -> BlockKind {
        let size = (Self::NAME_AT + len).max(size_of::<Self>());
        // Cannot fail: a name has at most 255 bytes.
        BlockKind::of(Layout::from_size_align(size, align_of::<Self>()).unwrap_or(Layout::new::<Self>()))
    }

    /// A new node. Only the beginning of a name that is too long is kept.
    fn allocate(position: u64, name: &[u8], value: V, weight: u8, standing: EntryState) -> *mut Self {
        let standing = AtomicU8::new(standing as u8);
        let name = &name[..name.len().min(NAME_MAX)];
        let name_len = name.len() as u8;
        let node = Self::kind(name.len()).allocate().cast::<Self>().as_ptr();
        // SAFETY: a new block of the kind, which has room for the node and then the name, and is nobody else's.
        // The name comes second: it may begin in what is padding of the node.
        unsafe {
            node.write(NameNode { links: unlinked(), position, value, standing, weight, name_len });
            let start = node.cast::<u8>().add(Self::NAME_AT);
            ptr::copy_nonoverlapping(name.as_ptr(), start, name.len());
        }
        node
    }

    #[inline]
    fn is(&self, standing: EntryState) -> bool {
        // Acquire(standing): of an entry that arrived, that the other left; pairs with Release(standing) in stand().
        self.standing.load(Ordering::Acquire) == standing as u8
    }

    /// Whether lookups find it, without a look at any other.
    #[inline]
    pub(super) fn stands(&self) -> bool {
        self.is(EntryState::Stands)
    }

    /// Whether lookups find the entry, which is in a chain of `array` and did not [stand](Self::stands) just now. If
    /// not, lookups continue with the nodes that were behind it before the question.
    #[cold]
    pub(super) fn stands_by_now(&self, array: &Array<Self>) -> bool {
        if !self.is(EntryState::Arrives) {
            return !self.is(EntryState::Left);
        }
        // Acquire(leaving): if it is of a later move, that ours is over; pairs with Release(leaving) in set_leaving().
        let leaving = array.bucket(self.place()).leaving.load(Ordering::Acquire);
        // SAFETY: set before this entry came into the chain where the caller's section found it; what leaves, in this
        // move or in a later one, is freed a grace period after it was unlinked.
        let has_left = unsafe { leaving.as_ref() }.is_none_or(|leaving| !leaving.stands());
        has_left || !self.is(EntryState::Arrives)
    }

    /// Says how the entry, whose bucket the caller has locked, stands from now on.
    pub(super) fn stand(&self, standing: EntryState) {
        // Release(standing): what came before in the move; pairs with Acquire(standing) in is().
        self.standing.store(standing as u8, Ordering::Release);
    }

    /// The name of a node.
    ///
    /// # Safety
    /// `node` is from [`allocate`](Self::allocate) and is not freed during `'a`.
    pub(super) unsafe fn name<'a>(node: *const Self) -> &'a [u8] {
        // SAFETY: by contract; the pointer was made from the whole allocation, and the name never changes.
        unsafe { std::slice::from_raw_parts(node.cast::<u8>().add(Self::NAME_AT), (*node).name_len.into()) }
    }
}

/// The name of the node at `at`; none at the end.
pub(super) fn name_at<'b, V: Send + Sync + 'static>(
    bucket: &'b LockedBucket<'_, NameNode<V>>,
    at: ChainPlace<NameNode<V>>,
) -> Option<&'b [u8]> {
    // SAFETY: nodes of a locked chain are not freed, and are from allocate().
    bucket.get(at).map(|_| unsafe { NameNode::name(bucket.get_raw(at)) })
}

/// Puts a new entry before the node at `at`. The name is not too long.
pub(super) fn insert_at<V: Send + Sync + 'static>(
    bucket: &mut LockedBucket<'_, NameNode<V>>,
    at: ChainPlace<NameNode<V>>,
    (position, name, value, weight): (u64, &[u8], V, u8),
    standing: EntryState,
) {
    let node = NameNode::allocate(position, name, value, weight, standing);
    // SAFETY: new, and from allocate().
    unsafe { bucket.insert(at, node) }
}

impl<V: 'static> Node for NameNode<V> {
    type Bucket = NameBucket<V>;
    type Count = Count;

    const REMEMBERED: bool = true;

    fn links(&self) -> &[AtomicPtr<Self>; 2] {
        &self.links
    }

    fn place(&self) -> u64 {
        place_of(self.position)
    }

    unsafe fn free(node: *mut Self) {
        // SAFETY: from allocate(), and nobody else is left.
        unsafe {
            let kind = Self::kind((*node).name_len.into());
            ptr::drop_in_place(node);
            kind.free(NonNull::new_unchecked(node.cast()));
        }
    }

    fn carry(&self, from: &Count, to: &Count) {
        to.add(self.weight, Adder::Anybody);
        from.remove(self.weight, Adder::Anybody);
    }
}

/// A bucket on a line of its own, with what it counts.
#[repr(align(64))]
pub(super) struct NameBucket<V> {
    /// See [`Bucket::head`].
    head: AtomicPtr<NameNode<V>>,
    /// Its entries, in an array whose CPUs do not count. *see there*
    count: Count,
    /// The entry that leaves its name for one here, while one arrives here. *written under the bucket's lock; atomic
    /// (leaving)*
    leaving: AtomicPtr<NameNode<V>>,
    /// How often its lock was waited for. *written under the bucket's lock*
    waits: AtomicU32,
}

impl<V> NameBucket<V> {
    /// Records the entry, in this or another locked bucket, that is about to leave for an entry here.
    pub(super) fn set_leaving(&self, node: *const NameNode<V>) {
        // Release(leaving): that an earlier move is over; pairs with Acquire(leaving) in stands_by_now().
        self.leaving.store(node.cast_mut(), Ordering::Release);
    }

    /// Notes that its lock, which the caller has, was waited for; says how often by now.
    pub(super) fn note_wait(&self) -> u32 {
        // Relaxed, both: under the bucket's lock.
        let waits = self.waits.load(Ordering::Relaxed).saturating_add(1);
        self.waits.store(waits, Ordering::Relaxed);
        waits
    }
}

impl<V: 'static> Bucket<NameNode<V>> for NameBucket<V> {
    fn empty() -> Self {
        NameBucket {
            head: AtomicPtr::new(ptr::null_mut()),
            count: Count::default(),
            leaving: AtomicPtr::new(ptr::null_mut()),
            waits: AtomicU32::new(0),
        }
    }

    fn head(&self) -> &AtomicPtr<NameNode<V>> {
        &self.head
    }

    fn count(&self) -> &Count {
        &self.count
    }
}
