//! How many objects, and how many requests for them, ten workloads of a file system make in an object store.

use crate::faults::{Node, Plan, RequestsMade, contents};
use object_store::memory::InMemory;
use sluice_bucket::Claim;
use sluice_vfs::{Fs, Options, Superblock};
use std::sync::Arc;
use std::time::{Duration, Instant};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Without a thread that pushes by age: pushes are those that the workload asks for.
fn options() -> Options {
    let mut options = Options::default();
    options.store.background = false;
    options
}

/// A file system in a store of its own.
struct Counted {
    objects: Arc<InMemory>,
    node: Arc<Node>,
    fs: Fs,
}

impl Counted {
    fn new() -> Counted {
        let objects = Arc::new(InMemory::new());
        let node = Node::new(&objects, Plan::default(), 1);
        let store = node.bucket().create(options().store).expect("a new store");
        Counted { fs: Fs::create_in(store, options()).expect("memory"), objects, node }
    }

    fn sync(&self) {
        self.fs.superblock().sync().expect("memory");
    }

    fn write(&self, prefix: &str, count: usize, len: usize) {
        for number in 0..count {
            self.fs.write(format!("/{prefix}{number}"), vec![number as u8; len]).expect("room");
        }
    }

    fn remove(&self, prefix: &str, numbers: impl Iterator<Item = usize>) {
        for number in numbers {
            self.fs.remove_file(format!("/{prefix}{number}")).expect("it is there");
        }
    }

    /// Closed and opened again: nothing is in memory.
    fn anew(self) -> Counted {
        self.in_epoch(1000)
    }

    /// Closed, and opened again in a later epoch.
    fn in_epoch(self, epoch: u64) -> Counted {
        self.fs.superblock().close().expect("memory");
        drop(self.fs);
        let node = Node::new(&self.objects, Plan::default(), epoch);
        let store = node.bucket().open(Claim::Epoch(epoch), options().store).expect("it was closed");
        let superblock = Superblock::open_in(store, options()).expect("it is sound");
        Counted { fs: Fs::with_superblock(superblock), node, ..self }
    }

    fn objects(&self) -> u64 {
        contents(&self.objects).iter().filter(|(path, _)| path.as_ref().starts_with("data/")).count() as u64
    }
}

/// Does `work`, and asserts what it makes of the object store when all is quiet: at most `most`, and so many objects with data more
/// or fewer.
fn assert_counts(name: &str, store: &Counted, most: RequestsMade, objects: i64, work: impl FnOnce()) {
    let (before, objects_before) = (store.node.of_data(), store.objects() as i64);
    work();
    let now = || {
        let now = store.node.of_data();
        (now.since(before), store.objects() as i64 - objects_before)
    };
    // Objects are deleted behind the work.
    let limit = Instant::now() + Duration::from_secs(60);
    while now().1 > objects && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(200));
    let (RequestsMade { puts, gets, deletes, lists }, more) = now();
    println!("{name}: {puts} PUTs, {gets} GETs, {deletes} DELETEs, {lists} LISTs, {more} objects more");
    assert!(
        puts <= most.puts && gets <= most.gets && deletes <= most.deletes && lists <= most.lists,
        "{name}: {puts} PUTs, {gets} GETs, {deletes} DELETEs, {lists} LISTs, and at most {most:?}"
    );
    assert!(more <= objects, "{name}: {more} objects more");
}

fn most(puts: u64, gets: u64, deletes: u64, lists: u64) -> RequestsMade {
    RequestsMade { puts, gets, deletes, lists }
}

#[test]
fn files_that_end_within_a_block_share_objects() {
    for len in [8_000, 8_192, 5_000, 4_097] {
        let store = Counted::new();
        // Eight megabytes, four to an object.
        assert_counts(&format!("1,000 files of {len} bytes"), &store, most(3, 0, 0, 1), 3, || {
            store.write("f", 1000, len);
            store.sync();
        });
        let store = store.anew();
        for number in [0, 1, 499, 998, 999] {
            let found = store.fs.read(format!("/f{number}")).expect("it was synchronised");
            assert!(found == vec![number as u8; len], "file {number} of {len} bytes");
        }
    }
}

#[test]
fn files_of_a_few_bytes_are_records() {
    let store = Counted::new();
    assert_counts("1,000 files of 500 bytes", &store, most(0, 0, 0, 0), 0, || {
        store.write("f", 1000, 500);
        store.sync();
    });
}

#[test]
fn a_small_file_that_is_synchronised_alone_is_a_record() {
    let store = Counted::new();
    assert_counts("20 files of 100 KiB, a push each", &store, most(0, 0, 0, 0), 0, || {
        for number in 0..20 {
            store.fs.write(format!("/f{number}"), vec![1; 100 * KIB]).expect("room");
            store.sync();
        }
    });
}

#[test]
fn a_stream_is_written_once_in_objects_of_four_mebibytes_and_read_in_pieces_of_one() {
    let store = Counted::new();
    assert_counts("a stream of 64 MiB", &store, most(17, 0, 0, 1), 17, || {
        store.fs.write("/stream", vec![5; 64 * MIB]).expect("room");
        store.sync();
    });
    let store = store.anew();
    assert_counts("the same, read", &store, most(0, 80, 0, 2), 0, || {
        assert!(store.fs.read("/stream").expect("it is there") == vec![5; 64 * MIB]);
    });
    assert_counts("the same, read again", &store, most(0, 0, 0, 0), 0, || {
        assert!(store.fs.read("/stream").expect("it is there").len() == 64 * MIB);
    });
}

#[test]
fn files_that_are_removed_take_their_objects_with_them_by_one_request_an_object() {
    let store = Counted::new();
    store.write("f", 1000, 8_000);
    store.sync();
    let objects = store.objects() as i64;
    assert_counts("1,000 files of 8,000 bytes, removed", &store, most(0, 0, 3, 3), -objects, || {
        store.remove("f", 0..1000);
        store.sync();
        store.fs.settle();
        store.sync();
    });
}

#[test]
fn every_second_of_many_files_that_is_removed_leaves_the_objects_of_the_others() {
    let store = Counted::new();
    store.write("f", 1000, 8_000);
    store.sync();
    assert_counts("every second removed", &store, most(0, 0, 0, 3), 0, || {
        store.remove("f", (0..1000).step_by(2));
        store.sync();
        store.fs.settle();
        store.sync();
    });
    assert!(store.fs.read("/f1").expect("it is there") == vec![1; 8_000]);
}

#[test]
fn what_is_written_over_is_written_once_more() {
    let store = Counted::new();
    store.write("f", 100, 80_000);
    store.sync();
    let objects = store.objects() as i64;
    assert_counts("100 files of 80,000 bytes, written over", &store, most(3, 0, 3, 3), 3 - objects, || {
        store.write("f", 100, 80_000);
        store.sync();
        store.fs.settle();
        store.sync();
    });
}

#[test]
fn renamed_and_linked_files_move_no_data() {
    let store = Counted::new();
    store.write("f", 200, 8_000);
    store.sync();
    assert_counts("200 files, renamed and linked", &store, most(0, 0, 0, 0), 0, || {
        for number in 0..200 {
            store.fs.rename(format!("/f{number}"), format!("/g{number}")).expect("it is there");
            store.fs.hard_link(format!("/g{number}"), format!("/h{number}")).expect("it is there");
        }
        store.sync();
    });
}

/// Removes those of 3,000 files with the `numbers` after a takeover, in their order: asserts how many requests there are until all is durable. The most GETs at once.
fn removed_after_a_takeover(len: usize, numbers: impl Iterator<Item = usize>) -> u64 {
    const OWNERS: usize = 6;
    let numbers: Vec<_> = numbers.collect();
    let removed = numbers.len() as u64;
    let mut store = Counted::new();
    for part in 0..OWNERS {
        for number in part * 500..(part + 1) * 500 {
            store.fs.write(format!("/f{number}"), vec![number as u8; len]).expect("room");
        }
        store.sync();
        // Each of these owners leaves a sorted object of its own.
        store = store.in_epoch(10 + part as u64);
    }
    let before = store.node.of_contents();
    // Requests overlap, then, also on a busy machine.
    store.node.slow_down(20);
    store.remove("f", numbers.into_iter());
    store.fs.settle();
    store.sync();
    store.fs.settle();
    store.sync();
    store.node.slow_down(0);
    std::thread::sleep(Duration::from_millis(200));
    let made = store.node.of_contents().since(before);
    println!("{removed} files of {len} bytes: {made:?}, {} GETs at once", store.node.gets_at_once());
    assert!(made.gets <= 20 + removed / 15 && made.lists <= 5, "{removed} files of {len} bytes: {made:?}");
    store.node.gets_at_once()
}

#[test]
fn files_that_are_removed_after_a_takeover_cost_few_requests() {
    let at_once = [
        removed_after_a_takeover(100, (0..3000).step_by(5)),
        removed_after_a_takeover(8_000, 1000..1600),
        removed_after_a_takeover(8_000, (0..600).map(|n| (n * 1_001) % 3000)),
        removed_after_a_takeover(8_000, 0..3000),
    ];
    // A scan asks each sorted object for its first block, so that lookups one after the other make two to four GETs at
    // once (7 to 11 in the first three), depending on which sorted objects were merged meanwhile. Side by side: 14 to 22.
    assert!(at_once.iter().sum::<u64>() > 12, "a push looks up one file after the other: {at_once:?}");
}
