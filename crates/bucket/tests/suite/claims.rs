//! Who has a store in an object store, told from other machines, other processes, and the dead.

use crate::faults::{Node, Plan, copy_without, is_push, wait};
use object_store::memory::InMemory;
use object_store::{ObjectStoreExt, PutPayload};
use sluice_bucket::{Bucket, Claim, StoreError};
use sluice_store::{Options, Store};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_millis(100);

fn quiet() -> Options {
    Options::default().log_size(1 << 20).background(false)
}

fn push(store: &Store, key: &[u8]) -> Result<(), StoreError> {
    let mut change = store.begin(64)?;
    change.put(key, 1, b"value");
    drop(change);
    store.sync()
}

fn new_store() -> (Arc<InMemory>, Bucket) {
    let objects = Arc::new(InMemory::new());
    let bucket = Bucket::over(objects.clone()).with_beat(BEAT);
    drop(bucket.create(quiet()).expect("a new store"));
    (objects, bucket)
}

/// The claim of a process on another machine.
fn claim_elsewhere(objects: &InMemory, kind: &str, beat: u64) {
    let claim = format!("open\nanother-boot\n1\nits-nonce-{kind}\npid:[1]\n7\nweb1\n{kind}\n{beat}\n");
    wait(objects.put(&"owners/00000000000000000009".into(), PutPayload::from(claim))).expect("memory");
}

/// Does `work` while a process on another machine has the store open.
fn while_one_lives_elsewhere<T>(objects: &InMemory, kind: &str, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    claim_elsewhere(objects, kind, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for beat in 1.. {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                thread::sleep(BEAT / 4);
                claim_elsewhere(objects, kind, beat);
            }
        });
        let done = work();
        is_over.store(true, Ordering::SeqCst);
        done
    })
}

/// That the store is refused, and why.
fn refusal(opened: Result<Store, StoreError>) -> String {
    match opened {
        Err(error @ StoreError::Claimed(_)) => error.to_string(),
        other => panic!("{:?}", other.map(|_| ())),
    }
}

#[test]
fn a_process_of_another_machine_that_lives_is_in_the_way_and_one_that_died_is_not() {
    let (objects, bucket) = new_store();
    let why = while_one_lives_elsewhere(&objects, "alone", || {
        let why = refusal(bucket.open(Claim::Alone, quiet()));
        assert_eq!(why, refusal(bucket.open(Claim::Epoch(90), quiet())), "nor does a cluster take it");
        assert!(matches!(bucket.user(), Ok(Some(StoreError::Claimed(_)))));
        why
    });
    let told = "the store is in use by process 1 of the machine web1 (unmount it there first; -o takeover takes the store from it)";
    assert_eq!(why, told);
    // Its claim stands still now.
    let waits = RefCell::new(Vec::new());
    let wait = |other: &StoreError| waits.borrow_mut().push(other.to_string());
    let store = bucket.open_telling(Claim::Alone, quiet(), &wait).expect("it is dead");
    assert_eq!(waits.take(), [told], "a person is told once");
    push(&store, b"a").expect("it is the owner");
    drop(store);
    drop(bucket.open_telling(Claim::Alone, quiet(), &wait).expect("it was closed"));
    assert_eq!(waits.take(), [""; 0], "a store that was closed is not waited for");
}

#[test]
fn a_store_of_a_living_cluster_is_not_taken_without_it_and_nodes_of_the_cluster_take_it_at_once() {
    let (objects, bucket) = new_store();
    while_one_lives_elsewhere(&objects, "cluster", || {
        let why = refusal(bucket.open(Claim::Alone, quiet()));
        assert!(why.contains("in use by a cluster") && why.contains("--cluster"), "{why}");
        drop(bucket.open(Claim::Epoch(90), quiet()).expect("its membership says so"));
    });
    let owner = bucket.open(Claim::Epoch(100), quiet()).expect("newer");
    let why = refusal(bucket.open(Claim::Alone, quiet()));
    assert!(why.contains(&format!("process {}", std::process::id())), "{why}");
    push(&owner, b"a").expect("it is the owner");
}

#[test]
fn a_store_that_is_taken_over_is_taken_at_once_and_who_had_it_is_told_without_writing() {
    let (_objects, bucket) = new_store();
    let first = bucket.open(Claim::Alone, quiet()).expect("it was closed");
    push(&first, b"a").expect("it is the owner");
    let second = bucket.open(Claim::Takeover, quiet()).expect("it is asked for");
    push(&second, b"b").expect("it is the owner");
    let limit = Instant::now() + Duration::from_secs(60);
    while first.get(b"a").is_ok() {
        assert!(Instant::now() < limit, "it is never told");
        thread::sleep(BEAT);
    }
    assert!(matches!(first.get(b"a"), Err(StoreError::Superseded)));
    assert!(matches!(push(&first, b"c"), Err(StoreError::Superseded)));
    assert_eq!(second.get(b"b").expect("memory").as_deref(), Some(b"value".as_slice()));
    drop(first);
    // The first one has not closed the claim of the second.
    assert!(matches!(bucket.open(Claim::Alone, quiet()), Err(StoreError::InUse(Some(_)))));
}

#[test]
fn a_claim_is_renewed_while_the_store_is_open_and_no_longer() {
    let (objects, bucket) = new_store();
    let claims = |objects: &InMemory| -> Vec<Vec<u8>> {
        let all = crate::faults::contents(objects).into_iter();
        all.filter(|(path, _)| path.as_ref().starts_with("owners/")).map(|(_, bytes)| bytes).collect()
    };
    let store = bucket.open(Claim::Alone, quiet()).expect("it was closed");
    let limit = Instant::now() + Duration::from_secs(60);
    while claims(&objects).len() > 1 {
        assert!(Instant::now() < limit, "older ones are not forgotten");
        thread::sleep(BEAT / 2);
    }
    let first = claims(&objects);
    while claims(&objects) == first {
        assert!(Instant::now() < limit, "it is not renewed");
        thread::sleep(BEAT / 2);
    }
    store.close().expect("memory");
    drop(store);
    let closed = claims(&objects);
    assert!(closed[0].starts_with(b"closed\n"), "{closed:?}");
    thread::sleep(3 * BEAT);
    assert_eq!(claims(&objects), closed);
}

#[test]
fn a_store_that_failed_is_opened_again_by_the_same_process() {
    let objects = Arc::new(InMemory::new());
    let node = Node::new(&objects, Plan::default(), 1);
    let store = node.bucket().create(quiet()).expect("a new store");
    node.cut_off();
    store.abandon();
    push(&store, b"a").expect_err("it was given up");
    drop(store);
    drop(Bucket::over(objects).open(Claim::Alone, quiet()).expect("nobody has it"));
}

#[test]
fn an_idle_store_asks_little_of_the_object_store() {
    /// In a minute, all but a few of them GETs: SlateDB looks for a newer manifest, and for work for its merges. The claim is a GET and a
    /// PUT in ten seconds.
    const MOST: u64 = 150;
    let node = Node::new(&Arc::new(InMemory::new()), Plan::default(), 1);
    let store = node.bucket().create(quiet()).expect("a new store");
    push(&store, b"a").expect("memory");
    // The push leaves work to do, which a busy machine does late: one quiet span of five is enough. A span that lasts longer has more
    // polls and does not count as busier.
    let mut told = Vec::new();
    let is_quiet = (0..5).any(|_| {
        let (before, began) = (node.requests(), Instant::now());
        thread::sleep(Duration::from_secs(11));
        let (requests, seconds) = (node.requests() - before, began.elapsed().as_secs_f64());
        told.push(format!("{requests} requests in {seconds:.1} s"));
        requests as f64 / seconds * 60.0 < MOST as f64
    });
    println!("idle: {told:?}");
    assert!(is_quiet, "{told:?}");
}

/// The numbers of pushes of which claims tell.
fn told_pushes(objects: &InMemory) -> Vec<u64> {
    let all = crate::faults::contents(objects).into_iter();
    let claims = all.filter(|(path, _)| path.as_ref().starts_with("owners/"));
    let pushes = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().nth(9)?.parse().ok();
    claims.filter_map(|(_, bytes)| pushes(&bytes)).collect()
}

#[test]
fn the_newest_push_that_an_object_store_lost_is_missed_after_a_death() {
    let (objects, bucket) = new_store();
    let store = bucket.open(Claim::Alone, quiet()).expect("it was closed");
    [b"a", b"b", b"c"].iter().for_each(|key| push(&store, *key).expect("it is the owner"));
    let limit = Instant::now() + Duration::from_secs(60);
    while !told_pushes(&objects).contains(&3) {
        assert!(Instant::now() < limit, "{:?}", told_pushes(&objects));
        thread::sleep(BEAT);
    }
    // As a death leaves it.
    let whole = crate::faults::contents(&objects);
    let newest =
        whole.iter().map(|(path, _)| path.as_ref()).filter(|path| is_push(path)).max().expect("some");
    let bucket = copy_without(&objects, |path| path == newest);
    let why = bucket.look(quiet()).expect_err("a check finds it").to_string();
    assert!(why.contains("push 2 was durable and is missing"), "{why}");
    for _ in 0..2 {
        let why = bucket.open(Claim::Takeover, quiet()).expect_err("it is refused, each time").to_string();
        assert!(why.contains("push 2 was durable and is missing"), "{why}");
    }
    let whole = copy_without(&objects, |_| false).open(Claim::Takeover, quiet()).expect("nothing is lost");
    assert!(whole.get(b"c").expect("memory").is_some());
    // As `sluice fsck --repair` does.
    let bucket = copy_without(&objects, |path| path == newest);
    drop(store);
    let store = bucket.open_without_lost(quiet()).expect("its process has closed it");
    assert!(store.get(b"b").expect("memory").is_some() && store.get(b"c").expect("memory").is_none());
}

#[test]
fn any_object_that_is_lost_after_a_clean_end_is_missed_or_held_nothing() {
    let (objects, bucket) = new_store();
    for keys in [[b"a", b"b"], [b"c", b"d"]] {
        let store = bucket.open(Claim::Alone, quiet()).expect("it was closed");
        keys.iter().for_each(|key| push(&store, *key).expect("it is the owner"));
        store.close().expect("memory");
    }
    assert!(told_pushes(&objects).contains(&4), "{:?}", told_pushes(&objects));
    let lost_of = |bucket: &Bucket, what: &str| -> Result<(), String> {
        let store = bucket.open(Claim::Takeover, quiet()).map_err(|error| error.to_string())?;
        let is_lost = |key: &&[u8; 1]| store.get(*key).is_ok_and(|found| found.is_none());
        let lost: Vec<_> = [b"a", b"b", b"c", b"d"].into_iter().filter(is_lost).collect();
        assert!(lost.is_empty(), "{what}: {lost:?}");
        Ok(())
    };
    let all: Vec<_> =
        crate::faults::contents(&objects).into_iter().map(|(path, _)| path.to_string()).collect();
    let mut refused = 0;
    for path in all.iter().filter(|path| path.starts_with("records/")) {
        let bucket = copy_without(&objects, |other| other == path);
        refused += usize::from(lost_of(&bucket, path).is_err());
    }
    assert!(refused > 0);
    // The pushes, which are no longer needed, and the lists of sorted objects from each one on.
    let lists: Vec<_> = all.iter().filter(|path| path.ends_with(".manifest")).collect();
    let without_from = |from: &str| {
        copy_without(&objects, |path| is_push(path) || path.ends_with(".manifest") && path >= from)
    };
    let refusals = lists[1..].iter().filter_map(|from| lost_of(&without_from(from), from).err());
    let told = refusals.filter(|why| why.contains("was durable and is missing")).count();
    assert!(told > 0, "{lists:?}");
}

#[test]
fn of_several_that_make_a_store_at_once_one_does_and_the_others_are_told_so() {
    for _ in 0..8 {
        let objects = Arc::new(InMemory::new());
        let made: Vec<_> = thread::scope(|scope| {
            let make = || Bucket::over(objects.clone()).with_beat(BEAT).create(quiet());
            let calls = [(); 4].map(|()| scope.spawn(make));
            calls.into_iter().map(|call| call.join().expect("no panic")).collect()
        });
        let refusals: Vec<_> = made.iter().filter_map(|made| made.as_ref().err()).collect();
        let is_told = |error: &&StoreError| matches!(error, StoreError::Exists | StoreError::InUse(_));
        assert!(refusals.len() == 3 && refusals.iter().all(is_told), "{refusals:?}");
    }
}
