//! A store in an object store in memory: what it keeps, who may write it, and what it makes of faults, deaths and damage.

use crate::faults::{Node, Plan, contents, wait};
use object_store::memory::InMemory;
use object_store::{ObjectStoreExt, PutPayload};
use sluice_bucket::{Bucket, Claim, DiskCache, StoreError};
use sluice_store::{Options, Store};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn quiet() -> Options {
    Options::default().log_size(1 << 20).background(false)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Writes one record and makes it durable.
fn push(store: &Store, key: u64, value: &[u8]) -> Result<(), StoreError> {
    let mut change = store.begin(value.len() as u64 + 64)?;
    change.put(format!("{key:06}").as_bytes(), key, value);
    drop(change);
    store.sync()
}

/// All records of the store, by number.
fn records(store: &Store) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
    let mut all = Vec::new();
    store.scan(b"", &[0xff], &mut |key, value| {
        let key = std::str::from_utf8(key).ok().and_then(|text| text.parse().ok()).expect("as written");
        all.push((key, value.to_vec()));
        true
    })?;
    Ok(all)
}

/// The records that [`push`] has written under `0..count`.
fn expected(count: u64) -> Vec<(u64, Vec<u8>)> {
    (0..count).map(|key| (key, value(key))).collect()
}

fn value(key: u64) -> Vec<u8> {
    vec![key as u8; 100 + key as usize]
}

#[test]
fn a_burst_of_changes_waits_for_no_merge() {
    /// More than SlateDB keeps in memory beside as many sorted objects as it leaves unmerged by itself.
    const BURST: u64 = 240 << 20;
    const PART: u64 = 1 << 20;
    let bucket = Bucket::over(Arc::new(InMemory::new()));
    let store = bucket.create(quiet().log_size(64 << 20)).expect("a new store");
    for key in 0..BURST / PART {
        push(&store, key, &vec![key as u8; PART as usize]).expect("memory");
    }
    assert_eq!(bucket.traffic().write_stalls, 0);
}

#[test]
fn a_store_whose_maker_was_killed_at_any_write_is_made_by_the_next() {
    let mut writes = 0;
    loop {
        for dies_after in [false, true] {
            let objects = Arc::new(InMemory::new());
            let plan = Plan { dies_at: Some(writes), dies_after, ..Plan::default() };
            let made = Node::new(&objects, plan, writes).bucket().create(quiet());
            if made.is_ok() && !dies_after {
                assert!(writes > 5, "{writes} writes make a store");
                return;
            }
            drop(made);
            let again = Bucket::over(objects.clone());
            let store = again.create(quiet()).unwrap_or_else(|error| panic!("write {writes}: {error}"));
            push(&store, 0, &value(0)).expect("memory");
            store.close().expect("memory");
            assert!(matches!(again.create(quiet()), Err(StoreError::Exists)));
            let store = again.open(Claim::Alone, quiet()).expect("it was closed");
            assert!(records(&store).expect("memory") == expected(1));
        }
        writes += 1;
    }
}

#[test]
fn objects_of_others_are_in_the_way_of_a_store_and_stay() {
    let objects = Arc::new(InMemory::new());
    let path = object_store::path::Path::from("photos/1.jpg");
    wait(objects.put(&path, PutPayload::from("a picture"))).expect("memory");
    let refused = Bucket::over(objects.clone()).create(quiet()).map(drop).expect_err("it is not empty");
    assert!(refused.to_string().contains("no store"), "{refused}");
    assert!(wait(objects.head(&path)).is_ok());
}

#[test]
fn what_was_synchronised_is_there_when_the_store_is_opened_again() {
    let objects = Arc::new(InMemory::new());
    let bucket = Bucket::over(objects);
    let store = bucket.create(quiet()).expect("a new store");
    for key in 0..600 {
        push(&store, key, &value(key)).expect("memory");
    }
    assert!(matches!(bucket.create(quiet()), Err(StoreError::Exists)));
    drop(store);
    let store = bucket.open(Claim::Alone, quiet()).expect("it was closed");
    assert!(records(&store).expect("memory") == expected(600));
    assert_eq!(store.get(b"000007").expect("memory"), Some(value(7)));
    let mut change = store.begin(1024).expect("room");
    change.remove(b"000007", 1000);
    drop(change);
    store.sync().expect("memory");
    assert_eq!(store.get(b"000007").expect("memory"), None);
    assert_eq!(store.stats().batches, 601);
}

#[test]
fn a_push_is_one_write() {
    let node = Node::new(&Arc::new(InMemory::new()), Plan::default(), 1);
    let store = node.bucket().create(quiet()).expect("a new store");
    push(&store, 0, &value(0)).expect("memory");
    let before = node.writes();
    for key in 1..=100 {
        push(&store, key, &value(key)).expect("memory");
    }
    // SlateDB makes a few writes behind the pushes, the more the slower the machine is. A second write for each push would make
    // 100.
    let writes = node.writes() - before;
    assert!((100..200).contains(&writes), "{writes} writes for 100 pushes");
}

#[test]
fn the_older_of_two_writers_is_fenced_at_its_next_push_and_what_was_acknowledged_stays() {
    for seed in 0..number("SLUICE_BUCKET_SEEDS", 6) {
        let objects = Arc::new(InMemory::new());
        let plan = Plan { failing: 15, ..Plan::default() };
        let node = |n: u64| Node::new(&objects, plan, seed * 100 + n).bucket();
        drop(Bucket::over(objects.clone()).create(quiet()).expect("a new store"));
        let mut owner = node(0).open(Claim::Epoch(2), quiet()).expect("it was closed");
        let (mut acknowledged, mut epoch) = (0, 2);
        for round in 1..5 {
            for _ in 0..3 + (seed + round) % 5 {
                push(&owner, acknowledged, &value(acknowledged)).expect("the owner writes");
                acknowledged += 1;
            }
            // A change that is on its way when the next node opens the store.
            epoch += 1 + seed % 3;
            let late = std::thread::scope(|scope| {
                let late = scope.spawn(|| push(&owner, acknowledged, &value(acknowledged)));
                let next = node(round).open(Claim::Epoch(epoch), quiet()).expect("newer");
                let late = late.join().expect("no panic");
                (late, next)
            });
            let (late, next) = late;
            if late.is_ok() {
                acknowledged += 1;
            }
            for _ in 0..2 {
                let pushed = push(&owner, 999_999, b"of a fenced node");
                assert!(matches!(pushed, Err(StoreError::Superseded)), "seed {seed}: {pushed:?}");
            }
            assert!(matches!(owner.begin(10), Err(StoreError::Superseded)));
            assert!(owner.failure().is_some_and(|why| why.contains("another process")));
            let found = records(&next).expect("memory");
            let may = [expected(acknowledged), expected(acknowledged + 1)];
            assert!(may.contains(&found), "seed {seed}, round {round}: {} records", found.len());
            acknowledged = found.len() as u64;
            owner = next;
        }
    }
}

#[test]
fn a_node_of_an_older_epoch_cannot_open_the_store_and_disturbs_nobody() {
    let objects = Arc::new(InMemory::new());
    let bucket = Bucket::over(objects.clone());
    drop(bucket.create(quiet()).expect("a new store"));
    let owner = bucket.open(Claim::Epoch(9), quiet()).expect("newest");
    push(&owner, 0, &value(0)).expect("memory");
    for epoch in [1, 8, 9] {
        assert!(matches!(bucket.open(Claim::Epoch(epoch), quiet()), Err(StoreError::Superseded)));
    }
    push(&owner, 1, &value(1)).expect("nobody else has opened it");
    // A node that slept after its claim opens the records now.
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let sleeper = runtime.block_on(slatedb::Db::open("records", objects)).expect("memory");
    push(&owner, 2, &value(2)).expect("its claim is still the newest");
    let late = runtime.block_on(async {
        let written = sleeper.put(b"rubbish", b"of a sleeper").await;
        written.map(|_| ()).and(sleeper.flush().await)
    });
    late.expect_err("it is fenced in turn");
    assert!(records(&owner).expect("memory") == expected(3));
}

#[test]
fn the_newest_reads_although_an_older_node_opens_the_records_after_it() {
    let objects = Arc::new(InMemory::new());
    drop(Bucket::over(objects.clone()).create(quiet()).expect("a new store"));
    let owner = Bucket::over(objects.clone()).open(Claim::Epoch(3), quiet()).expect("it is the newest");
    push(&owner, 0, &value(0)).expect("it is the newest");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let sleeper = runtime.block_on(slatedb::Db::open("records", objects)).expect("memory");
    // SlateDB finds out by itself some time later.
    for _ in 0..40 {
        assert!(records(&owner).expect("it opens them again") == expected(1));
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(sleeper);
}

#[test]
fn the_newer_of_two_nodes_that_open_the_store_at_once_has_it() {
    for round in 0..number("SLUICE_BUCKET_SEEDS", 30) {
        let objects = Arc::new(InMemory::new());
        drop(Bucket::over(objects.clone()).create(quiet()).expect("a new store"));
        let open = |epoch| Bucket::over(objects.clone()).open(Claim::Epoch(epoch), quiet());
        std::thread::scope(|scope| {
            let older = scope.spawn(|| open(2));
            (0..round % 8).for_each(|_| std::thread::yield_now());
            let newer = open(3).unwrap_or_else(|error| panic!("round {round}: {error}"));
            push(&newer, 0, &value(0)).expect("it is the newest");
            drop(older.join().expect("no panic"));
            assert!(records(&newer).expect("memory") == expected(1));
        });
    }
}

#[test]
fn a_living_process_of_this_machine_is_in_the_way_of_one_that_comes_alone() {
    let bucket = Bucket::over(Arc::new(InMemory::new()));
    let store = bucket.create(quiet()).expect("a new store");
    let here = std::process::id();
    assert!(matches!(bucket.user(), Ok(Some(StoreError::InUse(Some(pid)))) if pid == here));
    let second = bucket.open(Claim::Alone, quiet());
    assert!(matches!(second, Err(StoreError::InUse(Some(pid))) if pid == here));
    store.close().expect("memory");
    assert!(matches!(bucket.user(), Ok(None)));
    bucket.open(Claim::Alone, quiet()).expect("it was closed");
}

#[test]
fn a_process_that_has_ended_and_that_its_parent_has_not_asked_is_in_nobodys_way() {
    let memory = Arc::new(InMemory::new());
    let bucket = Bucket::over(memory.clone());
    let store = bucket.create(quiet()).expect("a new store");
    store.close().expect("memory");
    let mut child = std::process::Command::new("true").spawn().expect("started");
    let is_over = |limit: Instant| {
        while sluice_bucket::process_runs(child.id()) {
            assert!(Instant::now() < limit, "it does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    is_over(Instant::now() + Duration::from_secs(60));
    assert!(Path::new(&format!("/proc/{}", child.id())).exists(), "nobody has asked how it ended");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux");
    let claim = format!("open\n{}\n{}\n0\n", boot.trim(), child.id());
    wait(memory.put(&"owners/00000000000000000009".into(), PutPayload::from(claim))).expect("memory");
    assert!(matches!(bucket.user(), Ok(None)));
    bucket.open(Claim::Alone, quiet()).expect("nobody is there");
    child.wait().expect("it has ended");
}

#[test]
fn a_node_that_dies_at_any_write_loses_nothing_that_was_acknowledged() {
    let work = |node: &Arc<Node>| -> (bool, u64) {
        let Ok(store) = node.bucket().create(quiet()) else { return (false, 0) };
        let pushed = (0..8).take_while(|key| push(&store, *key, &value(*key)).is_ok()).count();
        (true, pushed as u64)
    };
    let whole = Node::new(&Arc::new(InMemory::new()), Plan::default(), 1);
    assert_eq!(work(&whole), (true, 8));
    assert!(whole.writes() > 300, "the race alone has more");
    // Each writer of the race is a write; dying among them is one case.
    let race = 20 * 16;
    for at in race - 2..whole.writes() {
        for dies_after in [false, true] {
            let objects = Arc::new(InMemory::new());
            let plan = Plan { dies_at: Some(at), dies_after, ..Plan::default() };
            let node = Node::new(&objects, plan, at);
            let (is_made, acknowledged) = work(&node);
            let next = Bucket::over(objects).open(Claim::Epoch(100), quiet());
            let found = match next {
                Ok(next) => records(&next).expect("memory"),
                Err(StoreError::NotAStore) if !is_made => continue,
                Err(error) => panic!("died at write {at}: {error}"),
            };
            let may = [expected(acknowledged), expected(acknowledged + 1)];
            assert!(may.contains(&found), "died at write {at}: {} of {acknowledged}", found.len());
        }
    }
}

#[test]
fn a_damaged_object_is_an_error_and_never_another_value() {
    let objects = Arc::new(InMemory::new());
    let bucket = Bucket::over(objects.clone());
    let store = bucket.create(quiet()).expect("a new store");
    // More than one sorted object, and pushes behind.
    for key in 0..300 {
        push(&store, key, &value(key)).expect("memory");
    }
    let is_sorted = |whole: &[(object_store::path::Path, Vec<u8>)]| {
        whole.iter().any(|(path, _)| path.as_ref().contains("compacted"))
    };
    // As a crash would leave it: the pushes behind the sorted object are needed.
    let mut whole = contents(&objects);
    while !is_sorted(&whole) {
        std::thread::yield_now();
        whole = contents(&objects);
    }
    let copy = |without: &object_store::path::Path| {
        let copy = InMemory::new();
        wait(async {
            for (path, bytes) in whole.iter().filter(|(path, _)| path != without) {
                copy.put(path, PutPayload::from(bytes.clone())).await.expect("memory");
            }
        });
        copy
    };
    let (mut refused, mut cases) = (0, 0);
    let is_push = |path: &object_store::path::Path| path.as_ref().contains("/wal/");
    let pushes = whole.iter().filter(|(path, _)| is_push(path)).count();
    let some = whole.iter().filter(|(path, _)| !is_push(path));
    let last = whole.iter().filter(|(path, _)| is_push(path)).skip(pushes - 5);
    for (path, bytes) in some.chain(last) {
        let flipped = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x10;
            bytes
        };
        let strange = [
            flipped(0),
            flipped(bytes.len() / 2),
            flipped(bytes.len() - 1),
            bytes[..bytes.len() / 2].to_vec(),
            Vec::new(),
            b"something else".to_vec(),
        ];
        for (case, strange) in strange.into_iter().enumerate() {
            cases += 1;
            let strange_len = strange.len();
            let damaged = copy(path);
            wait(damaged.put(path, PutPayload::from(strange))).expect("memory");
            let bucket = Bucket::over(Arc::new(damaged));
            let found = bucket.open(Claim::Epoch(100), quiet()).and_then(|store| records(&store));
            // Without its last push a store looks as if that had not come about yet.
            let is_last = strange_len == 0
                && Some(path) == whole.iter().map(|(path, _)| path).rfind(|path| is_push(path));
            match found {
                Ok(found) if is_last && found == expected(299) => {}
                Ok(found) => {
                    assert!(found == expected(300), "`{path}`, case {case}: {} records", found.len())
                }
                Err(_) => refused += 1,
            }
        }
    }
    println!("damage: {refused} of {cases} stores refused, the others whole");
    assert!(refused > cases / 3, "much of the damage is in the way: {refused} of {cases}");
}

#[test]
fn a_push_that_is_missing_before_others_is_damage_and_not_the_end() {
    let objects = Arc::new(InMemory::new());
    let store = Bucket::over(objects.clone()).create(quiet()).expect("a new store");
    (0..12).for_each(|key| push(&store, key, &value(key)).expect("memory"));
    // As a death leaves it.
    let whole = contents(&objects);
    let is_push = |path: &object_store::path::Path| path.as_ref().contains("/wal/");
    let pushes: Vec<_> = whole.iter().map(|(path, _)| path).filter(|path| is_push(path)).collect();
    let mut refused = 0;
    for lost in &pushes[..pushes.len() - 1] {
        let bucket = || {
            let copy = InMemory::new();
            wait(async {
                for (path, bytes) in whole.iter().filter(|(path, _)| path != *lost) {
                    copy.put(path, PutPayload::from(bytes.clone())).await.expect("memory");
                }
            });
            Bucket::over(Arc::new(copy))
        };
        match bucket().open(Claim::Takeover, quiet()).and_then(|store| records(&store)) {
            Ok(found) => assert!(found == expected(12), "`{lost}`: {} records", found.len()),
            Err(error) => {
                refused += 1;
                let is_damage = matches!(error, StoreError::Damaged(_) | StoreError::DamagedLog(_));
                assert!(is_damage, "`{lost}`: {error}");
                bucket().look(quiet()).expect_err("a check finds it, too");
            }
        }
    }
    assert!(refused >= 11, "{refused} of {} refused", pushes.len());
}

#[test]
fn an_object_store_whose_conditional_writes_do_not_hold_is_refused() {
    let plan = Plan { careless: true, ..Plan::default() };
    let node = Node::new(&Arc::new(InMemory::new()), plan, 1);
    let error = node.bucket().create(quiet()).expect_err("refused").to_string();
    assert!(error.contains("conditional writes"), "{error}");
}

#[test]
fn a_place_with_something_else_is_no_place_for_a_store() {
    let objects = Arc::new(InMemory::new());
    wait(objects.put(&"notes.txt".into(), PutPayload::from_static(b"of somebody"))).expect("memory");
    let bucket = Bucket::over(objects);
    assert!(matches!(bucket.create(quiet()), Err(StoreError::Io(..))));
    assert!(matches!(bucket.open(Claim::Alone, quiet()), Err(StoreError::NotAStore)));
    for url in ["file://relative", "s3://", "ftp://host/path", "s3://key:secret@bucket/path", "nothing"] {
        assert!(matches!(Bucket::at(url), Err(StoreError::Io(..))), "{url}");
    }
}

#[test]
fn a_store_that_is_given_up_waits_no_more_for_an_object_store_that_does_not_answer() {
    let objects = Arc::new(InMemory::new());
    let node = Node::new(&objects, Plan::default(), 1);
    let store = node.bucket().create(quiet()).expect("a new store");
    push(&store, 0, &value(0)).expect("it answers");
    node.cut_off();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| push(&store, 1, &value(1)));
        while node.unheard() == 0 {
            std::thread::yield_now();
        }
        assert!(!late.is_finished(), "it waits");
        store.abandon();
        late.join().expect("no panic").expect_err("it was given up");
    });
    push(&store, 2, &value(2)).expect_err("it was given up");
    store.close().expect_err("not all is durable");
    drop(store);
    let next = Bucket::over(objects).open(Claim::Epoch(7), quiet()).expect("another node reaches it");
    assert!(records(&next).expect("memory") == expected(1));
}

/// The files in `dir` and below.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn what_is_in_the_cache_on_disk_is_not_asked_of_the_object_store_and_not_believed_when_damaged() {
    const COUNT: u64 = 300;
    const MIB: u64 = 1 << 20;
    let big = |key: u64| vec![key as u8; 10_000];
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cache-{}", std::process::id()));
    let objects = Arc::new(InMemory::new());
    let node = || Node::new(&objects, Plan::default(), 1);
    let cached = |node: &Arc<Node>, bytes| node.bucket().with_cache(DiskCache { dir: dir.clone(), bytes });
    let store = cached(&node(), 64 * MIB).create(quiet()).expect("a new store");
    for key in 0..COUNT {
        push(&store, key, &big(key)).expect("memory");
    }
    drop(store);
    // Reads everything: how often an object of sorted records was read for that, and what the bucket says of its traffic.
    let mut epoch = 1;
    let mut read_all = |is_cached: bool| {
        let node = node();
        epoch += 1;
        let bucket = if is_cached { cached(&node, 64 * MIB) } else { node.bucket() };
        let store = bucket.open(Claim::Epoch(epoch), quiet()).expect("it was closed");
        let expected: Vec<_> = (0..COUNT).map(|key| (key, big(key))).collect();
        assert!(records(&store).expect("memory") == expected, "epoch {epoch}");
        (node.sorted_reads(), bucket.traffic())
    };

    let (reads, traffic) = read_all(false);
    assert!(reads > 0 && traffic.cache_lookups == 0, "{reads} reads without a cache, {traffic:?}");
    let (reads, traffic) = read_all(true);
    assert_eq!(reads, 0, "{traffic:?}");
    assert!(traffic.cache_hits > 0 && traffic.cache_bytes > COUNT * 10_000, "{traffic:?}");
    let gets = traffic.requests.iter().find(|of| of.kind == "get").expect("three kinds");
    assert!(gets.buckets.iter().map(|bucket| bucket.1).sum::<u64>() > 0, "{gets:?}");

    for file in files_below(&dir) {
        let mut bytes = std::fs::read(&file).expect("a copy");
        bytes.iter_mut().for_each(|byte| *byte ^= 0x40);
        std::fs::write(&file, bytes).expect("room");
    }
    let (reads, _) = read_all(true);
    assert!(reads > 0, "damaged copies are fetched again");

    let size =
        || files_below(&dir).iter().map(|file| file.metadata().map_or(0, |meta| meta.len())).sum::<u64>();
    assert!(size() > 2 * MIB);
    let node = node();
    let store = cached(&node, MIB).open(Claim::Epoch(100), quiet()).expect("it was closed");
    let began = Instant::now();
    while size() > 2 * MIB && began.elapsed() < Duration::from_secs(60) {
        records(&store).expect("memory");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(size() <= 2 * MIB, "{} bytes in a cache of a MiB", size());
    drop(store);
    std::fs::remove_dir_all(&dir).expect("it is there");
}

#[test]
fn a_node_whose_clock_is_behind_writes_all_the_same() {
    let objects = Arc::new(InMemory::new());
    let bucket = Bucket::over(objects.clone());
    push(&bucket.create(quiet()).expect("a new store"), 0, &value(0)).expect("memory");
    // The clock of another node is hours ahead.
    wait(async {
        let clock = Arc::new(Ahead(slatedb_common::clock::DefaultSystemClock::new()));
        let db = slatedb::Db::builder("records", objects.clone()).with_system_clock(clock).build().await;
        let db = db.expect("memory");
        let position = db.get(b"p").await.expect("memory").expect("it was opened");
        let mut all = slatedb::WriteBatch::new();
        all.put(b"p", position);
        db.write(all).await.expect("memory");
        db.close().await.expect("memory");
    });
    for round in 1..4 {
        let store = bucket.open(Claim::Epoch(10 + round), quiet()).expect("newer");
        push(&store, round, &value(round)).expect("time goes on where the other node's was");
        assert_eq!(records(&store).expect("memory"), expected(round + 1));
    }
}

/// A clock that is hours ahead.
#[derive(Debug)]
struct Ahead(slatedb_common::clock::DefaultSystemClock);

impl slatedb_common::clock::SystemClock for Ahead {
    fn now(&self) -> chrono::DateTime<chrono::Utc> {
        self.0.now() + chrono::TimeDelta::hours(5)
    }

    fn sleep<'a>(&'a self, time: Duration) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.0.sleep(time)
    }

    fn ticker<'a>(&'a self, time: Duration) -> slatedb_common::clock::SystemClockTicker<'a> {
        slatedb_common::clock::SystemClockTicker::new(self, time)
    }
}
