//! Models of the radix tree: what stays is found while the tree grows, what goes is freed after its readers, and
//! a thread that overwrites an object does so before it goes or not at all.

use crate::model::explore;
use loom::sync::Arc;
use loom::thread;
use sluice_sync_loom::atomic::{AtomicUsize, Ordering};
use sluice_sync_loom::rcu::domain;
use sluice_sync_loom::{RadixTree, SeqCount, SharedBytes};

/// Notes its own end where a late reader would see it.
#[repr(align(16))]
struct Canary(u64, &'static AtomicUsize);

impl Canary {
    fn new(index: u64) -> Arc<Canary> {
        Arc::new(Canary(index, Box::leak(Box::new(AtomicUsize::new(1)))))
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        assert_eq!(self.1.swap(0, Ordering::Relaxed), 1, "freed twice");
    }
}

type Tree = RadixTree<Arc<Canary>, ()>;

/// A tree that holds `indices`.
fn tree(indices: &[u64]) -> Tree {
    let tree = Tree::new(());
    let writer = tree.write();
    indices.iter().for_each(|index| writer.slots().insert(*index, Canary::new(*index)));
    drop(writer);
    tree
}

fn find(tree: &Tree, index: u64) -> bool {
    let guard = domain().read();
    let found = tree.get(&guard, index);
    found.inspect(|canary| {
        assert_eq!(canary.0, index, "another number's object");
        assert_eq!(canary.1.load(Ordering::Relaxed), 1, "freed under a reader");
    });
    found.is_some()
}

#[test]
fn what_stays_is_found_while_the_tree_grows_above_it() {
    explore(2, || {
        let tree = Arc::new(tree(&[0]));
        let other = tree.clone();
        let reader = thread::spawn(move || {
            assert!(find(&other, 0));
            find(&other, 3);
            let guard = domain().read();
            assert_eq!(other.first_in(&guard, 0..8).map(|(index, _)| index), Some(0));
        });
        tree.write().slots().insert(3, Canary::new(3));
        reader.join().expect("the reader ends");
        assert!(find(&tree, 0) && find(&tree, 3) && !find(&tree, 1));
    });
}

#[test]
fn what_is_removed_is_freed_after_its_readers() {
    explore(2, || {
        let tree = Arc::new(tree(&[0, 3]));
        let other = tree.clone();
        let reader = thread::spawn(move || {
            find(&other, 3);
        });
        tree.write().slots().remove(3);
        domain().flush();
        reader.join().expect("the reader ends");
        assert!(!find(&tree, 3) && find(&tree, 0));
    });
}

/// Each of two writers puts a copy in the place of the node that their trees share, and one of them frees it.
#[test]
fn trees_that_share_a_node_change_apart() {
    explore(2, || {
        let (one, other) = (Arc::new(tree(&[0, 1])), Arc::new(Tree::new(())));
        other.write().slots().begin_with(one.write().slots().share_all());
        let changed = other.clone();
        let writer = thread::spawn(move || {
            assert!(changed.write().slots().remove(1));
            assert!(find(&changed, 0) && !find(&changed, 1));
        });
        assert!(one.write().slots().remove(0));
        assert!(!find(&one, 0) && find(&one, 1));
        writer.join().expect("the writer ends");
        domain().flush();
        assert!(one.write().slots().is_sole(1) && other.write().slots().is_sole(0));
        assert!(!find(&one, 0) && find(&other, 0));
    });
}

/// A reader of one tree stays in the node when the other has let go of it and the first has changed.
#[test]
fn a_shared_node_stays_as_long_as_readers_of_the_tree_that_leaves_it() {
    explore(2, || {
        let (one, other) = (Arc::new(tree(&[0, 1])), Tree::new(()));
        other.write().slots().begin_with(one.write().slots().share_all());
        let read = one.clone();
        let reader = thread::spawn(move || {
            assert!(find(&read, 1));
            find(&read, 0);
        });
        assert!(one.write().slots().remove(0));
        drop(other);
        domain().flush();
        reader.join().expect("the reader ends");
        assert!(!find(&one, 0) && find(&one, 1));
    });
}

/// A page of a file: an overwriter locks the page that it found, and writes to it if it is still there and `may`.
fn overwrite(tree: &RadixTree<SharedBytes, ()>, bytes: [u8; 8], may: impl FnOnce() -> bool) -> bool {
    let guard = domain().read();
    let Some(mut page) = tree.get(&guard, 0).map(|page| page.lock()) else { return false };
    if !may() || tree.get(&guard, 0).is_none_or(|found| !page.is_of(found)) {
        return false;
    }
    page.store(0, &bytes);
    true
}

fn tree_of_a_page() -> RadixTree<SharedBytes, ()> {
    let tree = RadixTree::new(());
    tree.write().slots().insert(0, SharedBytes::with(8, 0, &[]));
    tree
}

/// The protocol of a file's pages: an overwriter locks the page that it found and looks at the layout; a rearranger
/// makes the layout odd and locks the page before it takes it out.
#[test]
fn a_page_is_overwritten_before_it_goes_or_not_at_all() {
    struct File {
        layout: SeqCount,
        tree: RadixTree<SharedBytes, ()>,
    }
    explore(2, || {
        let file = Arc::new(File { layout: SeqCount::new(), tree: tree_of_a_page() });
        let other = file.clone();
        let overwriter = thread::spawn(move || {
            let Some(layout) = other.layout.try_begin() else { return };
            overwrite(&other.tree, [1; 8], || !other.layout.retry(layout));
        });
        let writer = file.tree.write();
        let rearranging = file.layout.write();
        let page = writer.slots().share(0).expect("it is there");
        drop(page.lock());
        writer.slots().remove(0);
        let (mut now, mut later) = ([0; 8], [0; 8]);
        page.load(0, &mut now);
        drop(rearranging);
        drop(writer);
        overwriter.join().expect("the overwriter ends");
        page.load(0, &mut later);
        assert_eq!(now, later, "a page was changed that is in no file");
        drop(page);
        domain().flush();
    });
}

/// A page that is too short for what is written: the writer locks it, and puts a longer copy in its place.
#[test]
fn what_is_written_to_a_page_is_in_the_longer_one_that_takes_its_place() {
    explore(2, || {
        let tree = Arc::new(tree_of_a_page());
        let other = tree.clone();
        let overwriter = thread::spawn(move || overwrite(&other, [1; 8], || true));
        let writer = tree.write();
        let page = writer.slots().get(0).expect("it is there");
        let locked = page.lock();
        let mut longer = writer.slots().insert_with(0, SharedBytes::copy_of(page, 16), |page| page.lock());
        drop(locked);
        longer.store(8, &[2; 8]);
        drop(longer);
        drop(writer);
        let written = overwriter.join().expect("the overwriter ends");
        let guard = domain().read();
        let mut bytes = [0; 16];
        tree.get(&guard, 0).expect("it is there").load(0, &mut bytes);
        assert_eq!((&bytes[..8], &bytes[8..]), (&[u8::from(written); 8][..], &[2; 8][..]));
        drop(guard);
        domain().flush();
    });
}
