//! Models of the radix tree: what stays is found while the tree grows, what goes is freed after its readers, and
//! a thread that overwrites an object does so before it goes or not at all.

mod model;

use loom::sync::Arc;
use loom::thread;
use model::explore;
use sluice_sync_loom::atomic::{AtomicUsize, Ordering};
use sluice_sync_loom::radix::Object;
use sluice_sync_loom::rcu::domain;
use sluice_sync_loom::{RadixTree, SeqBytes, SeqCount};

/// Notes its own end where a late reader would see it.
#[repr(align(16))]
struct Canary(u64, &'static AtomicUsize);

impl Canary {
    fn new(index: u64) -> Arc<Canary> {
        Arc::new(Canary(index, Box::leak(Box::new(AtomicUsize::new(1)))))
    }
}

impl Object for Canary {}

impl Drop for Canary {
    fn drop(&mut self) {
        assert_eq!(self.1.swap(0, Ordering::Relaxed), 1, "freed twice");
    }
}

type Tree = RadixTree<Canary, ()>;

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

/// The protocol of a file's pages: an overwriter locks the page that it found and looks at the layout; a rearranger
/// makes the layout odd and locks the page before it takes it out.
#[test]
fn a_page_is_overwritten_before_it_goes_or_not_at_all() {
    struct Block(SeqBytes<1>);
    impl Object for Block {}
    struct File {
        layout: SeqCount,
        tree: RadixTree<Block, ()>,
    }
    explore(2, || {
        let file = Arc::new(File { layout: SeqCount::new(), tree: RadixTree::new(()) });
        file.tree.write().slots().insert(0, Arc::new(Block(SeqBytes::new())));
        let other = file.clone();
        let overwriter = thread::spawn(move || {
            let guard = domain().read();
            let Some(layout) = other.layout.try_begin() else { return };
            let Some(mut page) = other.tree.get(&guard, 0).map(|block| block.0.lock()) else { return };
            if !other.layout.retry(layout) {
                page.store(0, &[1; 8]);
            }
        });
        let writer = file.tree.write();
        let rearranging = file.layout.write();
        let page = writer.slots().share(0).expect("it is there");
        drop(page.0.lock());
        writer.slots().remove(0);
        let (mut now, mut later) = ([0; 8], [0; 8]);
        page.0.load(0, &mut now);
        drop(rearranging);
        drop(writer);
        overwriter.join().expect("the overwriter ends");
        page.0.load(0, &mut later);
        assert_eq!(now, later, "a page was changed that is in no file");
        drop(page);
        domain().flush();
    });
}
