//! A takeover: how many requests it makes, and how many of them one after the other. The clock is played, and each request takes a second of it.

#[path = "suite/faults/mod.rs"]
mod faults;

use faults::{Node, Plan, contents};
use object_store::memory::InMemory;
use sluice_bucket::Claim;
use sluice_vfs::{Fs, Options, Superblock};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const REQUEST: Duration = Duration::from_secs(1);
/// Pushes that the last owner left in the log.
const PUSHES: usize = 200;
/// Mounts that the last owner served.
const MOUNTS: u64 = 3;

fn options() -> Options {
    let mut options = Options::default();
    options.store.background = false;
    options
}

#[test]
fn a_takeover_asks_for_little_one_after_the_other_and_pushes_once() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let clock = runtime.handle().clone();
    sluice_bucket::run_on(runtime);
    let now = || {
        let _inside = clock.enter();
        Instant::now()
    };
    let objects = Arc::new(InMemory::new());
    let bucket = Node::new(&objects, Plan::default(), 1).bucket();
    let new = Fs::create_in(bucket.create(options().store).expect("a new store"), options()).expect("memory");
    new.superblock().close().expect("memory");
    let old = bucket.open(Claim::Epoch(10), options().store).expect("it was closed");
    let old = Fs::open_in(old, options()).expect("memory");
    (0..MOUNTS).for_each(|mount| old.superblock().stand(mount).expect("memory"));
    for number in 0..PUSHES {
        old.write(format!("/f{number}"), b"contents").expect("room");
        old.superblock().sync().expect("memory");
    }
    let pushes = |objects: &InMemory| {
        contents(objects).iter().filter(|(path, _)| path.as_ref().contains("/wal/")).count()
    };
    let pushed = pushes(&objects);
    // The last owner stands still.
    let node = Node::new(&objects, Plan::default(), 2);
    node.slow_down(REQUEST.as_millis() as u64);
    let began = now();
    let store = node.bucket().open(Claim::Epoch(1000), options().store).expect("a later epoch");
    let opened = now() - began;
    let superblock = Superblock::open_in(store, options()).expect("it is sound");
    let found = now() - began;
    // As the owner of a cluster does before it serves.
    superblock.fall(&[0].into()).expect("memory");
    superblock.reserve_numbers().expect("memory");
    (1..MOUNTS).for_each(|mount| superblock.stand(mount).expect("memory"));
    let served = now() - began;
    let requests = node.of_all();
    println!(
        "opened {opened:?}, file system {found:?}, served {served:?} of a second a request: {requests:?}"
    );
    assert_eq!(
        pushes(&objects) - pushed,
        2,
        "an empty one that fences the last owner, and one of this owner"
    );
    assert!(served <= 24 * REQUEST, "{served:?}");
    // Each push of the last owner is read once.
    assert!(requests.gets <= PUSHES as u64 + 40, "{requests:?}");
    assert!(requests.puts <= 12 && requests.lists <= 12, "{requests:?}");
    let fs = Fs::with_superblock(superblock);
    assert_eq!(fs.read("/f0").expect("it was synchronised"), b"contents");
    drop(old);
}
