//! Memory: what a lock that is cached takes of the heap, on its node and at its master.

#[path = "suite/support/nodes.rs"]
mod nodes;

use nodes::{Cluster, key, options};
use sluice_dlm::{Mode, Want};
use sluice_sync::lock_debug::BYTES_PER_LOCK;
use sluice_sync::rcu::domain;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, counted.
struct Counting;

/// Bytes that are allocated now, with what an allocator adds to each piece.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// The size of an allocation: as glibc counts, with 8 bytes of its own before each, and in multiples of 16.
fn bytes_of(layout: Layout) -> u64 {
    (layout.size() as u64 + 8).next_multiple_of(16)
}

// SAFETY: all is the system's allocator's, whose promises and demands are these; what else it can do is done with
// these two.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Relaxed: a sum, read by the thread that does all of it.
        BYTES.fetch_add(bytes_of(layout), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // Relaxed: as above.
        BYTES.fetch_sub(bytes_of(layout), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

fn allocated() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

// One test, since the memory is that of the whole process.
#[test]
fn a_cached_lock_and_its_resource_take_no_more_than_this() {
    const LOCKS: u64 = 60_000;
    let mut cluster = Cluster::new(3, &options());
    // The memory of a node that has no locks.
    let idle = allocated();
    drop(cluster.nodes.pop());
    let idle = idle - allocated();
    let before = allocated();
    for n in 0..LOCKS {
        let held = cluster.lock(1, &key(&format!("memory-{n:06}")), Want::new(Mode::Ex));
        cluster.unlock(1, held);
    }
    // Tables that have grown wait until their old memory is freed.
    domain().flush();
    let both = allocated() - before;
    // Without the node that has the locks cached.
    let node = cluster.nodes.pop();
    assert_eq!(node.as_ref().map(sluice_dlm::Node::locks), Some(60_000));
    drop(node);
    let resources = allocated() + idle - before;
    let (lock, resource) = ((both - resources) / LOCKS, resources / LOCKS);
    // In a build with checks each has a mutex that is larger.
    let (lock, resource) = (lock - BYTES_PER_LOCK as u64, resource - BYTES_PER_LOCK as u64);
    println!("{lock} bytes for a lock, {resource} for its resource");
    assert!(lock <= 200 && resource <= 200, "{lock} bytes for a lock, {resource} for its resource");
}
