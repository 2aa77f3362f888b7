//! Writer: the right to change a radix tree, and what becomes of what it takes out.

use super::RadixTree;
use super::node::{self, HEIGHT_MAX, RadixEntry, RadixNode};
use super::object::{Object, borrowed};
use crate::MutexGuard;
use crate::face::SHRUNK;
use crate::face::atomic::{AtomicPtr, Ordering};
use crate::rcu::domain;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;

/// How many removals are worth a grace period of their own. Fewer wait for others, which costs memory for as
/// long as it lasts.
const GARBAGE_MIN: usize = if SHRUNK { 3 } else { 256 };

/// The right to change a tree.
#[must_use = "the next writer comes when this one is dropped"]
pub struct Writer<'t, O: Object, S> {
    // The mutex is unlocked before the garbage waits for readers: fields are dropped in this order.
    state: MutexGuard<'t, S>,
    garbage: RefCell<Garbage<O>>,
    tree: &'t RadixTree<O, S>,
}

/// The objects of a tree, in the hands of its writer. An object that the writer finds stays valid as long as the
/// writer, even if it removes the object.
pub struct Slots<'w, O: Object, S> {
    tree: &'w RadixTree<O, S>,
    garbage: &'w RefCell<Garbage<O>>,
}

impl<O: Object, S> Clone for Slots<'_, O, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O: Object, S> Copy for Slots<'_, O, S> {}

impl<'t, O: Object, S> Writer<'t, O, S> {
    pub(super) fn new(tree: &'t RadixTree<O, S>, state: MutexGuard<'t, S>) -> Self {
        Writer { state, garbage: RefCell::new(Garbage(Vec::new(), PhantomData)), tree }
    }

    /// The objects.
    pub fn slots(&self) -> Slots<'_, O, S> {
        Slots { tree: self.tree, garbage: &self.garbage }
    }

    /// The client's value.
    pub fn state(&self) -> &S {
        &self.state
    }

    /// The objects and the client's value.
    pub fn parts(&mut self) -> (Slots<'_, O, S>, &mut S) {
        (Slots { tree: self.tree, garbage: &self.garbage }, &mut self.state)
    }
}

impl<'w, O: Object, S> Slots<'w, O, S> {
    /// Object number `index`.
    pub fn get(self, index: u64) -> Option<&'w O::Target> {
        // SAFETY: the writer's garbage is freed after its last borrow, which is after 'w; nobody else frees (T1).
        NonNull::new(self.tree.find(index)).map(|object| unsafe { O::target(object) })
    }

    /// The first object whose number is in `range`, with its number.
    pub fn first_in(self, range: Range<u64>) -> Option<(u64, &'w O::Target)> {
        let (index, object) = self.tree.find_in(range)?;
        // SAFETY: as in get().
        Some((index, unsafe { O::target(object) }))
    }

    /// Another reference to object number `index`.
    pub fn share(self, index: u64) -> Option<O> {
        let object = NonNull::new(self.tree.find(index))?;
        // SAFETY: the tree's reference, as in get().
        Some(O::clone(&*unsafe { borrowed::<O>(object) }))
    }

    /// Whether object number `index` is there and the tree's reference to it is the only one. If so, threads with
    /// former references are done with the object.
    pub fn is_sole(self, index: u64) -> bool {
        // Relaxed: nobody else writes (T1).
        let mut entry = self.tree.root.load(Ordering::Relaxed);
        if !node::reaches(node::height(entry), index) {
            return false;
        }
        for height in (1..=node::height(entry)).rev() {
            if entry.is_null() {
                return false;
            }
            // SAFETY: reachable, so not freed: as in get().
            let node: &RadixNode = unsafe { node::node(entry) };
            if node.is_shared() {
                return false;
            }
            entry = node.slot(node::slot_of(index, height)).load(Ordering::Relaxed);
        }
        // SAFETY: as in share().
        NonNull::new(entry).is_some_and(|object| unsafe { borrowed::<O>(object) }.is_sole())
    }

    /// Whether the tree shares all its objects, and the nodes that lead to them, with another.
    pub fn are_shared(self) -> bool {
        // SAFETY: reachable, so not freed: as in get().
        unsafe { self.tree.has_shared_root() }
    }

    /// All objects, for another tree to [begin with](Self::begin_with).
    pub fn share_all(self) -> All<O> {
        // Relaxed: nobody else writes (T1).
        let root = self.tree.root.load(Ordering::Relaxed);
        // SAFETY: the tree's reference.
        unsafe { node::share::<O>(root) };
        All(root, PhantomData)
    }

    /// Puts all objects of another tree into this one, which is empty.
    ///
    /// # Panics
    /// If it is not.
    pub fn begin_with(self, all: All<O>) {
        // Relaxed: nobody else writes (T1).
        assert!(self.tree.root.load(Ordering::Relaxed).is_null(), "the tree has objects");
        // Release(publish): nodes and objects; pairs with Acquire(publish) in find().
        self.tree.root.store(ManuallyDrop::new(all).0, Ordering::Release);
    }

    /// Makes `object` number `index`, in the place of what was.
    ///
    /// # Panics
    /// If `index` is 2^60 or more.
    pub fn insert(self, index: u64, object: O) {
        self.insert_with(index, object, |_| ());
    }

    /// Makes `object` number `index`, as [`insert`](Self::insert) does; calls `prepare` before anybody can find the object, and
    /// returns its result.
    ///
    /// # Panics
    /// If `index` is 2^60 or more.
    pub fn insert_with<R>(self, index: u64, object: O, prepare: impl FnOnce(&'w O::Target) -> R) -> R {
        assert!(node::reaches(HEIGHT_MAX, index), "no place for number {index}");
        let object = object.into_raw();
        // SAFETY: the reference is the tree's from now on: dropped with the garbage, as in get().
        let prepared = prepare(unsafe { O::target(object) });
        let (slot, parent) = self.slot(index);
        // Release(publish): the object; pairs with Acquire(publish) in find(). Nobody else writes the slot (T1).
        let old = slot.load(Ordering::Relaxed);
        slot.store(object.as_ptr(), Ordering::Release);
        if !old.is_null() {
            self.discard(old);
        } else if let Some(parent) = parent {
            parent.count_up();
        }
        prepared
    }

    /// Takes object number `index` out; false if there is none.
    pub fn remove(self, index: u64) -> bool {
        if self.tree.find(index).is_null() {
            return false;
        }
        let mut path: [Option<(&RadixNode, &AtomicPtr<()>)>; HEIGHT_MAX as usize] =
            [None; HEIGHT_MAX as usize];
        let mut slot = &self.tree.root;
        // Relaxed: nobody else writes (T1).
        let mut entry = slot.load(Ordering::Relaxed);
        for height in (1..=node::height(entry)).rev() {
            let parent = self.own(slot, entry, height);
            path[height as usize - 1] = Some((parent, slot));
            slot = parent.slot(node::slot_of(index, height));
            entry = slot.load(Ordering::Relaxed);
        }
        self.empty(slot);
        // Upwards as long as that was a node's last (T3).
        for (node, slot) in path.into_iter().flatten() {
            if !node.count_down() {
                break;
            }
            self.empty(slot);
        }
        true
    }

    /// Makes `slot` lead nowhere.
    fn empty(self, slot: &AtomicPtr<()>) {
        let old = slot.load(Ordering::Relaxed);
        // Relaxed: there is nothing behind it to publish.
        slot.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.discard(old);
    }

    /// The node of `height` to which `slot` leads by `entry`, or in its place a copy, if it is shared.
    fn own(self, slot: &AtomicPtr<()>, entry: RadixEntry, height: u32) -> &'w RadixNode {
        // SAFETY: reachable, so not freed: as in get().
        let found: &'w RadixNode = unsafe { node::node(entry) };
        if !found.is_shared() {
            return found;
        }
        let copy = found.copy::<O>().into_entry(height);
        // Release(publish): the copy; pairs with Acquire(publish) in find().
        slot.store(copy, Ordering::Release);
        self.discard(entry);
        // SAFETY: reachable now.
        unsafe { node::node(copy) }
    }

    fn discard(self, entry: RadixEntry) {
        self.garbage.borrow_mut().0.push(entry);
    }

    /// The slot for number `index`, and the node that it is in: makes the tree as high as it must be, and the
    /// nodes on the way.
    fn slot(self, index: u64) -> (&'w AtomicPtr<()>, Option<&'w RadixNode>) {
        // Relaxed, as all loads here: nobody else writes (T1).
        let mut root = self.tree.root.load(Ordering::Relaxed);
        let mut height = node::height(root);
        while !node::reaches(height, index) {
            height += 1;
            if !root.is_null() {
                let top = RadixNode::new();
                top.slot(0).store(root, Ordering::Relaxed);
                top.count_up();
                root = top.into_entry(height);
                // Release(publish): the node; pairs with Acquire(publish) in find().
                self.tree.root.store(root, Ordering::Release);
            }
        }
        let (mut slot, mut parent): (_, Option<&RadixNode>) = (&self.tree.root, None);
        for height in (1..=height).rev() {
            let mut entry = slot.load(Ordering::Relaxed);
            if entry.is_null() {
                entry = RadixNode::new().into_entry(height);
                // Release(publish): as above.
                slot.store(entry, Ordering::Release);
                parent.into_iter().for_each(RadixNode::count_up);
            }
            let child = self.own(slot, entry, height);
            (slot, parent) = (child.slot(node::slot_of(index, height)), Some(child));
        }
        (slot, parent)
    }
}

/// The objects of a tree, as they were at one moment.
#[must_use = "it is for another tree"]
pub struct All<O: Object>(RadixEntry, PhantomData<O>);

// SAFETY: a counted reference to a node or an object, which any thread may use and drop.
unsafe impl<O: Object> Send for All<O> {}

impl<O: Object> Drop for All<O> {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, from share().
        unsafe { node::release::<O>(self.0) };
    }
}

/// Nodes and objects that a writer took out, freed when no reader can reach them.
struct Garbage<O: Object>(Vec<RadixEntry>, PhantomData<O>);

// SAFETY: entries are owned nodes and counted references, which any thread may drop.
unsafe impl<O: Object> Send for Garbage<O> {}

impl<O: Object> Garbage<O> {
    /// # Safety
    /// A grace period must have passed since the last entry was taken out.
    unsafe fn free(self) {
        let mut entries = ManuallyDrop::new(self);
        for entry in entries.0.drain(..) {
            // SAFETY: the writer moved the tree's reference here when it changed the slot; readers are excluded by the
            // caller. Children of an unshared node were taken out separately (T3).
            unsafe { node::release::<O>(entry) };
        }
        drop(std::mem::take(&mut entries.0));
    }

    /// How much memory it takes.
    fn bytes(&self) -> usize {
        // SAFETY: reachable from here alone, and freed by free().
        self.0.iter().map(|entry| unsafe { node::bytes::<O>(*entry) }).sum()
    }

    /// Lets what is there be freed.
    #[inline(never)]
    fn let_go(&mut self) {
        let garbage = Garbage(std::mem::take(&mut self.0), PhantomData::<O>);
        if garbage.0.len() >= GARBAGE_MIN && !domain().is_reading() {
            domain().synchronize();
            // SAFETY: a grace period has passed.
            unsafe { garbage.free() };
        } else {
            domain().defer_sized(garbage.bytes(), move || {
                // The closure takes the whole `Garbage`, not its field, so that it is `Send`.
                let garbage = garbage;
                // SAFETY: runs after a grace period.
                unsafe { garbage.free() }
            });
        }
    }
}

impl<O: Object> Drop for Garbage<O> {
    #[inline]
    fn drop(&mut self) {
        if !self.0.is_empty() {
            self.let_go();
        }
    }
}
