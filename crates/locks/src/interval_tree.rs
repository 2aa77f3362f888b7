//! Interval tree: items in the order of their keys, found by key or by the bytes that they cover.
//!
//! # Theory
//! A B+ tree. Each inner node knows of every child its first key and the largest end below it (Cormen et al.'s
//! augmentation), so a search for what overlaps a range passes by whole subtrees that end before the range begins:
//! ```text
//!   first key   0        70                130
//!   largest end    99        120               EOF       looking for 100..=110: the first child is left out
//!              [0-9 5-99] [70-79 80-120]  [130-EOF ...]
//! ```
//! A tree of few items is one leaf, that is, one sorted vector, which keeps its memory when it gets empty: an
//! owner that locks and unlocks the same file again and again allocates nothing.
//!
//! # Invariants
//! - T1 all leaves are at one depth; no node but a root leaf is empty; none has more than [`NODE_MAX`] entries;
//! - T2 `first` and `max_end` of a child are those of its items.
//!
//! # Cost
//! n items: O(log n) for each change; O(log n + k) for k items found. Nodes are halved when full, and joined with
//! a neighbour when less than a quarter full, so an item that comes and goes at a boundary moves nothing else.
//!
//! # Sources
//! Bayer and McCreight, "Organization and maintenance of large ordered indexes" (1972); the kernel's interval
//! trees, in which file locks are not kept.

use crate::Range;
use std::mem;
use std::ops::ControlFlow;

/// The most entries of a node.
const NODE_MAX: usize = 32;

/// An item of a tree.
pub(crate) trait Item {
    /// The order of items. No two items of a tree have the same key.
    type Key: Ord + Copy;

    /// The item's key.
    fn key(&self) -> Self::Key;

    /// The bytes that it covers.
    fn range(&self) -> Range;
}

/// A sorted set of items.
pub(crate) struct Tree<T: Item> {
    root: TreeNode<T>,
    len: usize,
}

enum TreeNode<T: Item> {
    Leaf(Vec<T>),
    Inner(Vec<Child<T>>),
}

struct Child<T: Item> {
    first: T::Key,
    max_end: u64,
    node: TreeNode<T>,
}

impl<T: Item> Default for Tree<T> {
    fn default() -> Self {
        Tree { root: TreeNode::Leaf(Vec::new()), len: 0 }
    }
}

impl<T: Item> Tree<T> {
    /// How many items there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// True without items.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an item, whose key must be new.
    #[inline]
    pub(crate) fn insert(&mut self, item: T) {
        self.len += 1;
        if let Some(sibling) = self.root.insert(item) {
            self.grow(sibling);
        }
    }

    /// The root was halved: both halves get a new one.
    #[cold]
    fn grow(&mut self, sibling: Child<T>) {
        let left = mem::replace(&mut self.root, TreeNode::Inner(Vec::with_capacity(NODE_MAX + 1)));
        if let TreeNode::Inner(children) = &mut self.root {
            children.extend([Child::of(left), sibling]);
        }
    }

    /// Takes an item out.
    #[inline]
    pub(crate) fn remove(&mut self, key: T::Key) -> Option<T> {
        let item = self.root.remove(key)?;
        self.len -= 1;
        if let TreeNode::Inner(children) = &mut self.root
            && children.len() == 1
            && let Some(only) = children.pop()
        {
            self.root = only.node;
        }
        Some(item)
    }

    /// The item with this key.
    pub(crate) fn get(&self, key: T::Key) -> Option<&T> {
        let mut node = &self.root;
        loop {
            match node {
                TreeNode::Leaf(items) => {
                    return items.binary_search_by_key(&key, T::key).ok().map(|at| &items[at]);
                }
                TreeNode::Inner(children) => node = &children[child_at(children, key)].node,
            }
        }
    }

    /// The item with this key, to be changed in what is neither its key nor its range.
    pub(crate) fn get_mut(&mut self, key: T::Key) -> Option<&mut T> {
        let mut node = &mut self.root;
        loop {
            match node {
                TreeNode::Leaf(items) => {
                    return items.binary_search_by_key(&key, T::key).ok().map(|at| &mut items[at]);
                }
                TreeNode::Inner(children) => {
                    let at = child_at(children, key);
                    node = &mut children[at].node;
                }
            }
        }
    }

    /// The items, in order, until `visit` breaks.
    #[inline]
    pub(crate) fn visit_all<B>(&self, mut visit: impl FnMut(&T) -> ControlFlow<B>) -> ControlFlow<B> {
        self.root.visit_all(&mut visit)
    }

    /// The items in order, beginning with the last whose key is at most `key`, or else with the first of all,
    /// until `visit` breaks.
    #[inline]
    pub(crate) fn visit_from<B>(
        &self,
        key: T::Key,
        mut visit: impl FnMut(&T) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        self.root.visit_from(key, &mut visit)
    }

    /// The items that [`visit_from`](Self::visit_from) visits, up to the first that is not `near`.
    #[inline]
    pub(crate) fn visit_near<B>(
        &self,
        key: T::Key,
        near: impl Fn(&T) -> bool,
        mut visit: impl FnMut(&T) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let outcome = self.visit_from(key, |item| {
            if near(item) { visit(item).map_break(Some) } else { ControlFlow::Break(None) }
        });
        match outcome {
            ControlFlow::Break(Some(value)) => ControlFlow::Break(value),
            _ => ControlFlow::Continue(()),
        }
    }

    /// Takes all items out.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        match &mut self.root {
            TreeNode::Leaf(items) => items.clear(),
            inner => *inner = TreeNode::Leaf(Vec::new()),
        }
    }
}

/// Trees ordered by first byte.
impl<T: Item<Key = (u64, K)>, K: Ord + Copy> Tree<T> {
    /// The items that have a byte in common with `range`, in order, until `visit` breaks.
    pub(crate) fn visit_overlapping<B>(
        &self,
        range: Range,
        mut visit: impl FnMut(&T) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        self.root.visit_overlapping(range, &mut visit)
    }
}

/// The child in which `key` is, if anywhere.
fn child_at<T: Item>(children: &[Child<T>], key: T::Key) -> usize {
    children.partition_point(|child| child.first <= key).saturating_sub(1)
}

impl<T: Item> Child<T> {
    fn of(node: TreeNode<T>) -> Self {
        // A node that becomes a child has entries (T1).
        let (first, max_end) = (node.first(), node.max_end());
        Child { first, max_end, node }
    }
}

impl<T: Item> TreeNode<T> {
    fn entries(&self) -> usize {
        match self {
            TreeNode::Leaf(items) => items.len(),
            TreeNode::Inner(children) => children.len(),
        }
    }

    fn first(&self) -> T::Key {
        match self {
            TreeNode::Leaf(items) => items[0].key(),
            TreeNode::Inner(children) => children[0].first,
        }
    }

    fn max_end(&self) -> u64 {
        match self {
            TreeNode::Leaf(items) => items.iter().map(|item| item.range().end()).max(),
            TreeNode::Inner(children) => children.iter().map(|child| child.max_end).max(),
        }
        .unwrap_or(0)
    }

    // The following functions are inlined for a root that is a leaf, and called for nodes below an inner node.

    /// Returns the new right neighbour if the node had to be halved.
    #[inline]
    fn insert(&mut self, item: T) -> Option<Child<T>> {
        match self {
            TreeNode::Leaf(items) => {
                let key = item.key();
                let at = items.partition_point(|other| other.key() < key);
                debug_assert!(items.get(at).is_none_or(|other| other.key() != key), "a key twice");
                items.insert(at, item);
                (items.len() > NODE_MAX).then(|| Child::of(TreeNode::Leaf(items.split_off(NODE_MAX / 2))))
            }
            TreeNode::Inner(children) => insert_below(children, item),
        }
    }

    #[inline]
    fn remove(&mut self, key: T::Key) -> Option<T> {
        match self {
            TreeNode::Leaf(items) => items.binary_search_by_key(&key, T::key).ok().map(|at| items.remove(at)),
            TreeNode::Inner(children) => remove_below(children, key),
        }
    }

    #[inline]
    fn visit_all<B>(&self, visit: &mut impl FnMut(&T) -> ControlFlow<B>) -> ControlFlow<B> {
        match self {
            TreeNode::Leaf(items) => items.iter().try_for_each(visit),
            TreeNode::Inner(children) => visit_below(children, visit),
        }
    }

    #[inline]
    fn visit_from<B>(&self, key: T::Key, visit: &mut impl FnMut(&T) -> ControlFlow<B>) -> ControlFlow<B> {
        match self {
            TreeNode::Leaf(items) => {
                let at = items.partition_point(|item| item.key() <= key).saturating_sub(1);
                items[at..].iter().try_for_each(visit)
            }
            TreeNode::Inner(children) => visit_from_below(children, key, visit),
        }
    }
}

impl<T: Item<Key = (u64, K)>, K: Ord + Copy> TreeNode<T> {
    fn visit_overlapping<B>(
        &self,
        range: Range,
        visit: &mut impl FnMut(&T) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        match self {
            TreeNode::Leaf(items) => {
                let begun = items.iter().take_while(|item| item.key().0 <= range.end());
                begun.filter(|item| item.range().end() >= range.start()).try_for_each(visit)
            }
            TreeNode::Inner(children) => {
                let begun = children.iter().take_while(|child| child.first.0 <= range.end());
                let mut reaching = begun.filter(|child| child.max_end >= range.start());
                reaching.try_for_each(|child| child.node.visit_overlapping(range, visit))
            }
        }
    }
}

fn insert_below<T: Item>(children: &mut Vec<Child<T>>, item: T) -> Option<Child<T>> {
    let (key, end) = (item.key(), item.range().end());
    let at = child_at(children, key);
    let child = &mut children[at];
    child.first = child.first.min(key);
    child.max_end = child.max_end.max(end);
    let sibling = child.node.insert(item)?;
    child.max_end = child.node.max_end();
    children.insert(at + 1, sibling);
    (children.len() > NODE_MAX).then(|| Child::of(TreeNode::Inner(children.split_off(NODE_MAX / 2))))
}

fn remove_below<T: Item>(children: &mut Vec<Child<T>>, key: T::Key) -> Option<T> {
    let at = child_at(children, key);
    let child = &mut children[at];
    let item = child.node.remove(key)?;
    match child.node.entries() {
        0 => drop(children.remove(at)),
        entries => {
            if key == child.first {
                child.first = child.node.first();
            }
            // The largest end of many is seldom the one that left.
            if item.range().end() == child.max_end {
                child.max_end = child.node.max_end();
            }
            if entries < NODE_MAX / 4 {
                join(children, at);
            }
        }
    }
    Some(item)
}

fn visit_below<T: Item, B>(
    children: &[Child<T>],
    visit: &mut impl FnMut(&T) -> ControlFlow<B>,
) -> ControlFlow<B> {
    children.iter().try_for_each(|child| child.node.visit_all(visit))
}

fn visit_from_below<T: Item, B>(
    children: &[Child<T>],
    key: T::Key,
    visit: &mut impl FnMut(&T) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let at = child_at(children, key);
    children[at].node.visit_from(key, visit)?;
    visit_below(&children[at + 1..], visit)
}

/// Joins a nearly empty child with a neighbour, if both fit in one node with room to grow.
fn join<T: Item>(children: &mut Vec<Child<T>>, at: usize) {
    let fits = |left: usize| {
        let pair = children.get(left..left + 2)?;
        (pair[0].node.entries() + pair[1].node.entries() <= NODE_MAX * 3 / 4).then_some(left)
    };
    let Some(left) = fits(at).or_else(|| at.checked_sub(1).and_then(fits)) else { return };
    let right = children.remove(left + 1);
    let child = &mut children[left];
    match (&mut child.node, right.node) {
        (TreeNode::Leaf(items), TreeNode::Leaf(more)) => items.extend(more),
        (TreeNode::Inner(items), TreeNode::Inner(more)) => items.extend(more),
        _ => unreachable!("all leaves are at one depth (T1)"),
    }
    child.max_end = child.max_end.max(right.max_end);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{range, seeded};

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Span(Range, u32);

    impl Item for Span {
        type Key = (u64, u32);

        fn key(&self) -> (u64, u32) {
            (self.0.start(), self.1)
        }

        fn range(&self) -> Range {
            self.0
        }
    }

    /// T1 and T2. Returns the depth of the leaves.
    fn check<T: Item>(node: &TreeNode<T>, is_root: bool) -> usize {
        assert!(is_root || node.entries() > 0);
        assert!(node.entries() <= NODE_MAX);
        match node {
            TreeNode::Leaf(items) => {
                assert!(items.is_sorted_by(|a, b| a.key() < b.key()));
                0
            }
            TreeNode::Inner(children) => {
                assert!(children.is_sorted_by(|a, b| a.first < b.first));
                let depth = check(&children[0].node, false);
                for child in children {
                    assert!(child.first == child.node.first() && child.max_end == child.node.max_end());
                    assert_eq!(check(&child.node, false), depth);
                }
                depth + 1
            }
        }
    }

    fn overlapping(tree: &Tree<Span>, range: Range) -> Vec<Span> {
        let mut found = Vec::new();
        let _ = tree.visit_overlapping(range, |span| {
            found.push(*span);
            ControlFlow::<()>::Continue(())
        });
        found
    }

    #[test]
    fn random_changes_agree_with_a_sorted_list() {
        let mut random = seeded("interval tree");
        let mut tree = Tree::default();
        let mut list: Vec<Span> = Vec::new();
        for step in 0..30_000 {
            // Waves: the tree grows to a depth of three and shrinks to nothing.
            let growing = step / 5_000 % 2 == 0;
            let from = random.below(2_000);
            let span = Span(range(from, from + random.below(40)), random.below(4));
            let at = list.partition_point(|other| other.key() < span.key());
            let is_there = list.get(at).is_some_and(|other| other.key() == span.key());
            if is_there {
                assert_eq!(tree.get(span.key()), Some(&list[at]));
            }
            if growing && !is_there {
                tree.insert(span);
                list.insert(at, span);
            } else if !growing && !list.is_empty() {
                let gone = list.remove(at.min(list.len() - 1));
                assert_eq!(tree.remove(gone.key()), Some(gone));
                assert_eq!(tree.remove(gone.key()), None);
            }
            assert_eq!(tree.len(), list.len());
            if step % 64 == 0 {
                check(&tree.root, true);
                let wanted: Vec<_> = list.iter().copied().filter(|span| span.0.overlaps(span.0)).collect();
                assert_eq!(overlapping(&tree, Range::WHOLE), wanted);
                let near = range(from, from + 10);
                let wanted: Vec<_> = list.iter().copied().filter(|other| other.0.overlaps(near)).collect();
                assert_eq!(overlapping(&tree, near), wanted);
                let first = tree.visit_from(span.key(), |found| ControlFlow::Break(*found));
                let at = list.partition_point(|other| other.key() <= span.key()).saturating_sub(1);
                assert_eq!(first.break_value(), list.get(at).copied());
            }
        }
    }
}
