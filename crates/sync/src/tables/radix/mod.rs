//! Radix tree: shared objects by number, found without a lock and without a store to shared memory.
//!
//! # Theory
//! A number is looked up six bits at a time. A tree is as high as its largest number needs: none but number 0
//! needs no node at all. Low nodes stay when a higher one is put on top, so a reader that began below does not
//! notice.
//!
//! ```text
//!   root --> object 0                      height 0: only number 0
//!
//!   root --> [ . . . . ]                   height 2: numbers below 4096
//!              |     |
//!         [objects] [objects]              height 1: 64 numbers each
//! ```
//! Readers follow the slots inside an RCU read section. There is one [`Writer`] at a time; what it takes out is
//! freed a grace period after the writer is gone. The writer's mutex also protects a value of the
//! client's: what belongs to the tree's shape.
//!
//! Trees may *share* nodes, and with them all objects below: [`Slots::share_all`] returns a reference to all objects of
//! one tree, with which another tree begins, in constant time. A writer puts a copy in the place of each shared node on
//! its way before it changes something below.
//!
//! # Clients must
//! Not be inside a read section when they wait for the writer: the one before them may be waiting for readers.
//!
//! # Invariants
//! - T1: a slot changes only under the writer's mutex, and while its node has one owner;
//! - T2: what a slot led to is freed a grace period after the slot was changed, and not before its writer is gone;
//! - T3: a node that is reachable has a slot that leads somewhere.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | publish | [`Slots::insert_with`]: Release store of a slot | lookups: Acquire load of a slot | node, object |
//! | owners | `release`: Release decrement | fence after the last decrement; Acquire load of a count of 1 | what the others did with the node |
//!
//! # Cost
//! `get`: one load a level. Insert: the path to the number, at most one new node a level. Remove: the same, and
//! a share of a grace period; `GARBAGE_MIN` removals of one writer pay one of their own. The first change below a shared node: a
//! copy of it, with a count for each of its slots.
//!
//! # Sources
//! The kernel's lib/radix-tree.c and xarray.c (heights in pointers, RCU readers, one writer).

mod node;
mod object;
mod write;

pub use self::object::Object;
pub use self::write::{All, Slots, Writer};

use self::node::{RadixEntry, SLOTS};
use crate::face::atomic::{AtomicPtr, Ordering};
use crate::lock_debug::{LockClass, Watch};
use crate::rcu::{Guard, domain};
use crate::{Gap, Mutex, MutexGuard};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Objects by number, to each of which it holds a reference `O`, and what their writers share, `S`.
#[repr(C)]
pub struct RadixTree<O: Object, S> {
    /// The writer holds it.
    state: Mutex<S>,
    _who_writes: Gap<24>,
    /// *written by the writer, read by all (publish)*
    root: AtomicPtr<()>,
    marker: PhantomData<O>,
}

// SAFETY: the tree holds counted references, which may be used and dropped on any thread as `Object` says, and an `S`.
unsafe impl<O: Object, S: Send> Send for RadixTree<O, S> {}
// SAFETY: objects are handed out as `&O::Target` and as `O` on any thread, which `Object` allows; the `S`
// only under the mutex. Slots are changed by one writer (T1) and followed inside read sections (T2).
unsafe impl<O: Object, S: Send> Sync for RadixTree<O, S> {}

impl<O: Object, S> RadixTree<O, S> {
    /// An empty tree. The class of its writers' mutex is the place of this call.
    #[track_caller]
    pub fn new(state: S) -> Self {
        Self::watched(Watch::here(), state)
    }

    /// A tree without objects, whose mutex is of class `class`.
    pub fn with_class(class: &'static LockClass, state: S) -> Self {
        Self::watched(Watch::class(class), state)
    }

    fn watched(watch: Watch, state: S) -> Self {
        RadixTree {
            state: Mutex::watched(watch, state),
            _who_writes: Gap::new(),
            root: AtomicPtr::new(std::ptr::null_mut()),
            marker: PhantomData,
        }
    }

    /// Object number `index`, which stays valid as long as the section is open.
    ///
    /// # Panics
    /// If `guard` is no section of [`domain()`].
    #[inline]
    pub fn get<'g>(&'g self, guard: &'g Guard<'_>, index: u64) -> Option<&'g O::Target> {
        assert!(guard.is_of(domain()), "the read section belongs to another domain");
        // SAFETY: found inside the section and T2.
        NonNull::new(self.find(index)).map(|object| unsafe { O::target(object) })
    }

    /// The first object whose number is in `range`, with its number.
    ///
    /// # Panics
    /// In the cases of [`get`](Self::get).
    pub fn first_in<'g>(&'g self, guard: &'g Guard<'_>, range: Range<u64>) -> Option<(u64, &'g O::Target)> {
        assert!(guard.is_of(domain()), "the read section belongs to another domain");
        let (index, object) = self.find_in(range)?;
        // SAFETY: as in get().
        Some((index, unsafe { O::target(object) }))
    }

    /// Whether the tree shares all its objects, and the nodes that lead to them, with another.
    ///
    /// # Panics
    /// In the cases of [`get`](Self::get).
    pub fn are_shared(&self, guard: &Guard<'_>) -> bool {
        assert!(guard.is_of(domain()), "the read section belongs to another domain");
        // SAFETY: found inside the section and T2.
        unsafe { self.has_shared_root() }
    }

    /// Waits for other writers.
    pub fn write(&self) -> Writer<'_, O, S> {
        Writer::new(self, self.state.lock())
    }

    /// The client's value, for reading, or for changes that touch no object.
    pub fn state(&self) -> MutexGuard<'_, S> {
        self.state.lock()
    }

    /// The client's value, as [`state`](Self::state); None while somebody else has it.
    pub fn try_state(&self) -> Option<MutexGuard<'_, S>> {
        self.state.try_lock()
    }

    /// The client's value of a tree that nobody else has.
    pub fn state_mut(&mut self) -> &mut S {
        self.state.get_mut()
    }

    /// Whether another tree has the same root, which is a node.
    ///
    /// # Safety
    /// As for `find`.
    unsafe fn has_shared_root(&self) -> bool {
        // Acquire(publish): the node; pairs with Release(publish) in insert_with().
        let root = self.root.load(Ordering::Acquire);
        // SAFETY: the caller keeps it from being freed.
        node::height(root) > 0 && unsafe { node::node(root) }.is_shared()
    }

    /// The entry of object number `index`, or null. The caller keeps what it leads to from being freed: it is
    /// inside a read section, or the writer.
    #[inline]
    fn find(&self, index: u64) -> RadixEntry {
        // Acquire(publish): what the entry leads to, also below; pairs with Release(publish) in insert_with().
        let mut entry = self.root.load(Ordering::Acquire);
        let mut height = node::height(entry);
        if !node::reaches(height, index) {
            return std::ptr::null_mut();
        }
        while height > 0 && !entry.is_null() {
            // SAFETY: the caller keeps nodes that it can reach from being freed.
            let node = unsafe { node::node(entry) };
            entry = node.slot(node::slot_of(index, height)).load(Ordering::Acquire);
            height -= 1;
        }
        entry
    }

    /// The first object with a number in `range`. The caller's obligation is that of `find`.
    fn find_in(&self, range: Range<u64>) -> Option<(u64, NonNull<()>)> {
        let mut index = range.start;
        while index < range.end {
            // Acquire(publish): as in find().
            let mut entry = self.root.load(Ordering::Acquire);
            let mut height = node::height(entry);
            if entry.is_null() || !node::reaches(height, index) {
                return None;
            }
            while height > 0 {
                // SAFETY: as in find().
                let node = unsafe { node::node(entry) };
                let shift = node::BITS * (height - 1);
                // The next slot of this node that leads somewhere, or else what is behind the node or the range.
                let from = node::slot_of(index, height);
                let rest = ((range.end - 1) >> shift) - (index >> shift);
                let end = SLOTS.min(from + rest.min(SLOTS as u64) as usize + 1);
                let full =
                    |slot: &AtomicPtr<()>| Some(slot.load(Ordering::Acquire)).filter(|to| !to.is_null());
                let found = (from..end).find_map(|at| full(node.slot(at)).map(|entry| (at, entry)));
                let (at, below) = found.unwrap_or((end, std::ptr::null_mut()));
                if at > from {
                    index = ((index >> shift) + (at - from) as u64) << shift;
                }
                entry = below;
                if entry.is_null() {
                    break;
                }
                height -= 1;
            }
            if let Some(object) = NonNull::new(entry) {
                return (index < range.end).then_some((index, object));
            }
        }
        None
    }
}

impl<O: Object, S> Drop for RadixTree<O, S> {
    fn drop(&mut self) {
        // Relaxed: `&mut self`.
        let root = self.root.load(Ordering::Relaxed);
        // SAFETY: readers and writers borrow the tree, so none is left; the slots hold the tree's references.
        unsafe { node::release::<O>(root) };
    }
}

impl<O: Object, S> fmt::Debug for RadixTree<O, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let height = node::height(self.root.load(Ordering::Relaxed));
        f.debug_struct("RadixTree").field("height", &height).field("slots", &SLOTS).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::atomic::AtomicUsize;
    use crate::face::Arc;
    use crate::random::Random;
    use std::collections::BTreeMap;

    #[repr(align(16))]
    struct Object(u64, Option<Arc<AtomicUsize>>);

    impl Drop for Object {
        fn drop(&mut self) {
            if let Some(dropped) = &self.1 {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    type Tree = RadixTree<Arc<Object>, ()>;

    fn object(value: u64) -> Arc<Object> {
        Arc::new(Object(value, None))
    }

    #[test]
    fn random_changes_agree_with_an_ordered_map() {
        let (tree, mut map) = (Tree::new(()), BTreeMap::new());
        let mut random = Random::new(1);
        for round in 0..if crate::face::SHRUNK { 60 } else { 20_000 } {
            // Numbers near 0, near the ends of nodes, and far away.
            let index = random.below(7) * random.pick(&[1, 64, 4096, 1 << 50]);
            let writer = tree.write();
            if random.below(16) < 7 {
                writer.slots().remove(index);
                map.remove(&index);
            } else {
                writer.slots().insert(index, object(round));
                map.insert(index, round);
            }
            assert_eq!(writer.slots().get(index).map(|found| found.0), map.get(&index).copied());
            drop(writer);
            let guard = domain().read();
            for range in [0..u64::MAX, 0..index, index..index + 64, index + 1..u64::MAX, u64::MAX..u64::MAX] {
                let from = range.start;
                assert_eq!(tree.get(&guard, from).map(|found| found.0), map.get(&from).copied());
                let first = tree.first_in(&guard, range.clone()).map(|(index, found)| (index, found.0));
                assert_eq!(first, map.range(range).next().map(|(index, value)| (*index, *value)));
            }
        }
        map.keys().for_each(|index| assert!(tree.write().slots().remove(*index)));
        assert!(tree.root.load(Ordering::Relaxed).is_null(), "an empty tree has no nodes");
    }

    #[test]
    fn what_is_removed_lives_as_long_as_a_reader_that_found_it() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let tree = Tree::new(());
        let numbers = 0..if crate::face::SHRUNK { 10 } else { 1_000 };
        for index in numbers.clone() {
            tree.write().slots().insert(index, Arc::new(Object(index, Some(dropped.clone()))));
        }
        let guard = domain().read();
        let found = tree.get(&guard, 3);
        let writer = tree.write();
        numbers.clone().for_each(|index| assert!(writer.slots().remove(index)));
        drop(writer);
        assert_eq!((found.map(|object| object.0), dropped.load(Ordering::Relaxed)), (Some(3), 0));
        drop(guard);
        domain().flush();
        assert_eq!(dropped.load(Ordering::Relaxed) as u64, numbers.end);
    }

    #[test]
    fn an_object_that_another_tree_has_too_is_not_the_only_one() {
        let (one, other) = (Tree::new(()), Tree::new(()));
        let (first, second) = (one.write(), other.write());
        first.slots().insert(5, object(5));
        assert!(first.slots().is_sole(5));
        let shared = first.slots().share(5).expect("it is there");
        second.slots().insert(7, shared);
        assert!(!first.slots().is_sole(5) && !second.slots().is_sole(7));
        drop((first, second));
        drop(other);
        assert!(one.write().slots().is_sole(5));
    }

    #[test]
    fn trees_that_share_all_change_apart() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let counted = |value| Arc::new(Object(value, Some(dropped.clone())));
        let height = if crate::face::SHRUNK { 4 } else { 5_000 };
        for numbers in [vec![0], vec![0, 1], vec![1, 3, height], (0..height).step_by(7).collect()] {
            let (one, other, third) = (Tree::new(()), Tree::new(()), Tree::new(()));
            let numbers: Vec<u64> = numbers;
            numbers.iter().for_each(|index| one.write().slots().insert(*index, counted(*index)));
            other.write().slots().begin_with(one.write().slots().share_all());
            third.write().slots().begin_with(other.write().slots().share_all());
            assert!(numbers.iter().all(|index| !one.write().slots().is_sole(*index)));
            let found = |tree: &Tree| {
                let numbers = numbers.iter().chain([&2]);
                let writer = tree.write();
                numbers.map(|index| writer.slots().get(*index).map(|found| found.0)).collect::<Vec<_>>()
            };
            let before = found(&one);
            assert_eq!((found(&other), found(&third)), (before.clone(), before.clone()));
            let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
            other.write().slots().insert(last, counted(77));
            other.write().slots().insert(2, counted(78));
            assert!(other.write().slots().is_sole(last) && other.write().slots().is_sole(2));
            assert!(third.write().slots().remove(first));
            assert_eq!(found(&one), before);
            assert_ne!(found(&other), before);
            assert_eq!((found(&third)[0], &found(&third)[1..]), (None, &before[1..]));
            drop((other, third));
            domain().flush();
            assert!(numbers.iter().all(|index| one.write().slots().is_sole(*index)), "{numbers:?}");
            assert_eq!(found(&one), before);
            let made = numbers.len() + 2;
            drop(one);
            domain().flush();
            assert_eq!(dropped.swap(0, Ordering::Relaxed), made);
        }
    }

    #[test]
    fn all_that_no_tree_begins_with_is_given_up() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let tree = Tree::new(());
        tree.write().slots().insert(1, Arc::new(Object(1, Some(dropped.clone()))));
        let all = tree.write().slots().share_all();
        drop(tree);
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
        drop(all);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }

    #[test]
    #[should_panic(expected = "no place for number")]
    fn a_number_beyond_the_largest_is_refused() {
        Tree::new(()).write().slots().insert(1 << 60, object(0));
    }
}
