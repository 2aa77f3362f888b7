//! Data in objects of their own: they are there when a record names them, whoever dies, is late, or deletes; and are gone when none does.

use crate::faults::{Node, Plan, contents, wait};
use futures_util::StreamExt;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use sluice_bucket::{Bucket, Claim, DiskCache, StoreError};
use sluice_store::{EXTENT_ROOM, Extent, Gravity, Look, Options, Report, Store};
use sluice_sync::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// Segments so small that a test fills many.
fn quiet() -> Options {
    Options::default().log_size(1 << 20).segment_size(MIB as u64).background(false)
}

/// The bytes that are written under the number `stamp`.
fn bytes_of(stamp: u64, len: usize) -> Vec<u8> {
    let mut bytes = stamp.to_le_bytes().repeat(len.div_ceil(8));
    bytes.truncate(len);
    bytes
}

/// A store with the extents that its records name: a value is a stamp and an extent.
struct World {
    store: Store,
    named: BTreeMap<u64, (u64, Extent)>,
    version: u64,
}

fn decode(value: &[u8]) -> (u64, Extent) {
    let (stamp, extent) = value.split_first_chunk().expect("a stamp");
    (u64::from_le_bytes(*stamp), Extent::decode(extent).expect("an extent").0)
}

impl World {
    /// The extents that the records of `store` name; their bytes must be those that were written.
    fn of(store: Store, version: u64) -> World {
        let mut named = BTreeMap::new();
        store
            .scan(b"", &[0xff], &mut |key, value| {
                named.insert(u64::from_be_bytes(key.try_into().expect("a number")), decode(value));
                true
            })
            .expect("it answers");
        let world = World { store, named, version };
        world.check();
        world
    }

    fn check(&self) {
        for (key, (stamp, extent)) in &self.named {
            let mut found = vec![0; extent.len() as usize];
            let read = self.store.read_extent(extent, 0, &mut found);
            read.unwrap_or_else(|error| panic!("key {key}, stamp {stamp}: {error}"));
            assert!(found == bytes_of(*stamp, found.len()), "key {key}, stamp {stamp}");
        }
    }

    /// Gives `key` data of `len` bytes, none if that is 0.
    fn put(&mut self, key: u64, len: usize) -> Result<(), StoreError> {
        self.version += 1;
        let (version, name) = (self.version, key.to_be_bytes());
        let extent = if len > 0 { Some(self.store.write_extent(&bytes_of(version, len))?) } else { None };
        let mut change = self.store.begin(8192 + 2 * EXTENT_ROOM)?;
        if let Some((_, former)) = self.named.remove(&key) {
            change.free_extent(&former);
        }
        match extent {
            Some(extent) => {
                let mut value = version.to_le_bytes().to_vec();
                extent.encode(&mut value);
                change.put(&name, version, &value);
                change.name_extent(&extent);
                self.named.insert(key, (version, extent));
            }
            None => change.remove(&name, version),
        }
        Ok(())
    }
}

fn data_objects(objects: &InMemory) -> Vec<String> {
    let paths = wait(
        objects.list(Some(&"data".into())).map(|meta| meta.expect("memory").location).collect::<Vec<_>>(),
    );
    paths.iter().map(ToString::to_string).collect()
}

/// Waits until no more than `most` objects with data are left.
fn await_data(objects: &InMemory, most: usize) {
    let limit = Instant::now() + Duration::from_secs(60);
    while data_objects(objects).len() > most {
        assert!(Instant::now() < limit, "garbage: {:?}", data_objects(objects));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn data_are_written_once_in_few_objects_and_deleted_with_their_last_name() {
    let objects = Arc::new(InMemory::new());
    let node = Node::new(&objects, Plan::default(), 1);
    let options = quiet().segment_size(64 * MIB as u64);
    let mut world = World::of(node.bucket().create(options).expect("a new store"), 0);
    let before = node.writes();
    for key in 0..400 {
        world.put(key, 64 << 10).expect("memory");
    }
    world.store.sync().expect("memory");
    // 25 MiB, a part of 4 MiB each, and the push.
    let writes = node.writes() - before;
    assert!((7..=12).contains(&writes), "{writes} writes");
    let bytes: usize = contents(&objects).iter().map(|(_, bytes)| bytes.len()).sum();
    assert!((25 * MIB..27 * MIB).contains(&bytes), "{bytes} bytes");
    world.check();
    drop(world);
    let mut world = World::of(node.bucket().open(Claim::Epoch(9), quiet()).expect("it was closed"), 400);
    assert_eq!(world.named.len(), 400);
    (0..400).for_each(|key| world.put(key, 0).expect("memory"));
    world.store.sync().expect("memory");
    // The one that is being written is not empty before another run begins.
    drop(world);
    drop(node.bucket().open(Claim::Epoch(10), quiet()).expect("it was closed"));
    await_data(&objects, 0);
}

#[test]
fn a_compressed_store_has_smaller_objects_whoever_opens_it() {
    let objects = Arc::new(InMemory::new());
    let options = quiet().segment_size(64 * MIB as u64);
    let mut world =
        World::of(Bucket::over(objects.clone()).create(options.compress(true)).expect("a new store"), 0);
    (0..100).for_each(|key| world.put(key, 64 << 10).expect("memory"));
    world.store.sync().expect("memory");
    world.check();
    drop(world);
    let bucket = Bucket::over(objects.clone());
    let info = bucket.info().expect("a store");
    assert_eq!((info.is_compressed, info.version), (true, 12));
    // A store of another kind is not in its place, however empty it is.
    assert!(matches!(bucket.create(quiet()), Err(StoreError::Exists)));
    let mut world = World::of(bucket.open(Claim::Epoch(9), quiet()).expect("it was closed"), 100);
    assert_eq!(world.named.len(), 100);
    (100..200).for_each(|key| world.put(key, 64 << 10).expect("memory"));
    world.store.sync().expect("memory");
    drop(world);
    let data = contents(&objects).into_iter().filter(|(path, _)| path.as_ref().starts_with("data/"));
    let bytes: usize = data.map(|(_, bytes)| bytes.len()).sum();
    assert!((1..2 * MIB).contains(&bytes), "{bytes} bytes of 12 MiB");
    let world = World::of(Bucket::over(objects).open(Claim::Epoch(10), quiet()).expect("it was closed"), 200);
    assert_eq!(world.named.len(), 200);
}

#[test]
fn whoever_dies_or_is_late_no_data_are_deleted_that_a_record_names_and_no_others_stay() {
    let seeds: u64 =
        std::env::var("SLUICE_BUCKET_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    for seed in 0..seeds {
        let objects = Arc::new(InMemory::new());
        let mut random = Random::new(seed);
        let node = |n: u64| Node::new(&objects, Plan { failing: 20, ..Plan::default() }, seed * 100 + n);
        let made = quiet().compress(seed % 2 == 1);
        drop(Bucket::over(objects.clone()).create(made).expect("a new store"));
        let mut owner = World::of(node(0).bucket().open(Claim::Epoch(2), quiet()).expect("it was closed"), 0);
        let (mut synced, mut late) = (BTreeMap::new(), Vec::<World>::new());
        for epoch in 3..9 {
            for _ in 0..random.below(60) {
                let len = if random.below(4) == 0 { 0 } else { 1 + random.below(300_000) };
                owner.put(random.below(12), len).expect("the owner writes");
                if random.below(5) == 0 {
                    owner.store.sync().expect("the owner writes");
                    synced = owner.named.iter().map(|(key, (stamp, _))| (*key, *stamp)).collect();
                }
                // Former owners go on writing, and freeing extents.
                for world in &mut late {
                    if world.put(random.below(12), 1 + random.below(200_000)).is_ok() && random.below(4) == 0
                    {
                        world.store.sync().expect_err("it has lost the store");
                    }
                }
            }
            let newer = node(epoch).bucket().open(Claim::Epoch(epoch), quiet()).expect("newer");
            let newer = World::of(newer, owner.version);
            let found: BTreeMap<_, _> = newer.named.iter().map(|(key, (stamp, _))| (*key, *stamp)).collect();
            let written: BTreeMap<_, _> =
                owner.named.iter().map(|(key, (stamp, _))| (*key, *stamp)).collect();
            // Nobody had pushed the others.
            assert!(found == synced || found == written, "seed {seed}, epoch {epoch}");
            synced = found;
            late.push(std::mem::replace(&mut owner, newer));
        }
        drop(late);
        owner.check();
        drop(owner);
        // An owner without faults writes every segment that another may have begun, and empties all.
        let last = Bucket::over(objects.clone()).open(Claim::Epoch(100), quiet()).expect("it was closed");
        let mut last = World::of(last, 1 << 20);
        let mut keys = 1000..;
        let begun = data_objects(&objects)
            .iter()
            .filter_map(|path| path.split('/').nth(1)?.parse::<u64>().ok())
            .max();
        while (last.named.values().map(|(_, extent)| extent.place() >> 32).max()) <= begun {
            last.put(keys.next().expect("more"), MIB).expect("memory");
        }
        let all: Vec<u64> = last.named.keys().copied().collect();
        all.into_iter().for_each(|key| last.put(key, 0).expect("memory"));
        last.store.sync().expect("memory");
        drop(last);
        drop(Bucket::over(objects.clone()).open(Claim::Epoch(101), quiet()).expect("it was closed"));
        await_data(&objects, 0);
    }
}

#[test]
fn a_node_that_dies_at_any_write_leaves_the_data_of_all_that_was_acknowledged() {
    let work = |node: &Arc<Node>| -> BTreeMap<u64, u64> {
        let mut acknowledged = BTreeMap::new();
        let Ok(store) = node.bucket().open(Claim::Epoch(2), quiet()) else { return acknowledged };
        let mut world = World::of(store, 0);
        for round in 0..6 {
            let puts = (0..8).try_for_each(|key| world.put(key, 400_000 * (1 + (round + key) as usize % 2)));
            if puts.and_then(|()| world.store.sync()).is_err() {
                break;
            }
            acknowledged = world.named.iter().map(|(key, (stamp, _))| (*key, *stamp)).collect();
        }
        acknowledged
    };
    a_death_at_each_write_leaves_what_was_acknowledged(quiet(), &work);
    a_death_at_each_write_leaves_what_was_acknowledged(quiet().compress(true), &work);
}

/// `work` gives what it was told is durable, of the store made with these options.
fn a_death_at_each_write_leaves_what_was_acknowledged(
    options: Options,
    work: &dyn Fn(&Arc<Node>) -> BTreeMap<u64, u64>,
) {
    let made = || {
        let objects = Arc::new(InMemory::new());
        drop(Bucket::over(objects.clone()).create(options.clone()).expect("a new store"));
        objects
    };
    let whole = Node::new(&made(), Plan::default(), 1);
    assert_eq!(work(&whole).len(), 8);
    for at in 0..whole.writes() {
        for dies_after in [false, true] {
            let objects = made();
            let plan = Plan { dies_at: Some(at), dies_after, ..Plan::default() };
            let acknowledged = work(&Node::new(&objects, plan, at));
            // All that is named is read, and is what was written.
            let next = World::of(Bucket::over(objects).open(Claim::Epoch(9), quiet()).expect("newer"), 0);
            for (key, stamp) in acknowledged {
                assert!(
                    next.named.get(&key).is_some_and(|found| found.0 >= stamp),
                    "died at write {at}: key {key}"
                );
            }
        }
    }
}

#[test]
fn data_in_the_cache_on_disk_are_not_asked_of_the_object_store_and_not_believed_when_damaged() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("data-cache-{}", std::process::id()));
    let cached = |bucket: Bucket| bucket.with_cache(DiskCache { dir: dir.clone(), bytes: 64 * MIB as u64 });
    let objects = Arc::new(InMemory::new());
    let bucket = cached(Bucket::over(objects.clone()));
    let mut world = World::of(bucket.create(quiet()).expect("a new store"), 0);
    (0..40).for_each(|key| world.put(key, 100_000).expect("memory"));
    world.store.sync().expect("memory");
    drop(world);
    let mut epoch = 1;
    let mut reads = |is_cached: bool| {
        epoch += 1;
        let node = Node::new(&objects, Plan::default(), 1);
        let bucket = if is_cached { cached(node.bucket()) } else { node.bucket() };
        let world = World::of(bucket.open(Claim::Epoch(epoch), quiet()).expect("it was closed"), 40);
        assert_eq!(world.named.len(), 40);
        // The cache counts its files in the background.
        for _ in 0..1_000 {
            if !is_cached || bucket.traffic().cache_bytes >= 4_000_000 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        (node.data_reads(), bucket.traffic())
    };
    let (without, traffic) = reads(false);
    let gets = traffic.requests.iter().find(|of| of.kind == "get").expect("three kinds");
    let counted: u64 = gets.buckets.iter().map(|bucket| bucket.1).sum();
    assert!(without > 0 && counted >= without, "{without} reads, {traffic:?}");
    let (with, traffic) = reads(true);
    assert_eq!(with, 0, "{traffic:?}");
    assert!(traffic.cache_hits > 0 && traffic.cache_bytes >= 4_000_000, "{traffic:?}");
    fn damage(at: &Path) {
        for entry in std::fs::read_dir(at).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                damage(&path);
            } else {
                let mut bytes = std::fs::read(&path).expect("a copy");
                bytes.iter_mut().for_each(|byte| *byte ^= 0x40);
                std::fs::write(&path, bytes).expect("room");
            }
        }
    }
    damage(&dir);
    let (after_damage, _) = reads(true);
    assert!(after_damage > 0, "damaged copies are fetched again");
    std::fs::remove_dir_all(&dir).expect("it is there");
}

#[test]
fn a_store_that_is_looked_at_finds_what_its_owner_has_written_where_other_data_were() {
    let objects = Arc::new(InMemory::new());
    let bucket = Bucket::over(objects.clone());
    let mut world = World::of(bucket.create(quiet()).expect("a new store"), 0);
    let looker = bucket.look(quiet()).expect("a store");
    let mut seen = BTreeSet::new();
    let mut are_again = 0;
    for _ in 0..4 {
        (0..4).for_each(|key| world.put(key, MIB).expect("memory"));
        world.store.sync().expect("memory");
        await_data(&objects, 4);
        for (stamp, extent) in world.named.values() {
            let mut found = vec![0; MIB];
            looker.read_extent(extent, 0, &mut found).expect("it is there");
            assert!(found == bytes_of(*stamp, MIB), "stamp {stamp}");
            are_again += usize::from(!seen.insert(extent.place()));
        }
    }
    assert!(are_again > 0, "no place was used again: {seen:?}");
}

/// Knows the records of a [`World`], and does something when it sees the first.
struct Seen<'s>(Option<Box<dyn FnOnce() + 's>>);

impl Look for Seen<'_> {
    fn see(&mut self, _key: &[u8], _value: &[u8], _report: &mut Report) {
        if let Some(then) = self.0.take() {
            then();
        }
    }

    fn describe(&self, key: &[u8]) -> String {
        format!("key {key:?}")
    }

    fn extents(&self, _key: &[u8], value: &[u8]) -> Vec<Extent> {
        vec![decode(value).1]
    }
}

#[test]
fn a_check_finds_data_that_are_missing_and_none_that_went_while_it_looked() {
    let objects = Arc::new(InMemory::new());
    let bucket = Bucket::over(objects.clone());
    let mut world = World::of(bucket.create(quiet()).expect("a new store"), 0);
    for key in 0..20 {
        world.put(key, MIB).expect("memory");
    }
    world.store.sync().expect("memory");
    let check = |look: &mut Seen<'_>| bucket.check(look, &mut |_| ()).expect("it answers");
    let report = check(&mut Seen(None));
    assert!(report.whole && report.extents == 20 && report.found == 0, "{report:?}");
    let report = check(&mut Seen(Some(Box::new(|| {
        (0..20).for_each(|key| world.put(key, MIB).expect("memory"));
        world.store.sync().expect("memory");
        await_data(&objects, 20);
    }))));
    assert_eq!(report.found, 0, "{report:?}");
    let one = data_objects(&objects).pop().expect("twenty");
    wait(objects.delete(&one.into())).expect("memory");
    let report = check(&mut Seen(None));
    assert!(report.found == 1 && report.worst() == Some(Gravity::Damage), "{report:?}");
}

#[test]
fn after_a_takeover_what_is_removed_is_looked_up_and_listed_a_few_times() {
    const KEYS: u64 = 200;
    let objects = Arc::new(InMemory::new());
    let options = || quiet().segment_size(64 * MIB as u64);
    let mut world = World::of(Bucket::over(objects.clone()).create(options()).expect("a new store"), 0);
    for key in 0..KEYS {
        world.put(key, 8192).expect("memory");
    }
    world.store.sync().expect("memory");
    drop(world);
    let node = Node::new(&objects, Plan::default(), 1);
    let store = node.bucket().open(Claim::Epoch(9), options()).expect("it was closed");
    let before = node.sorted_reads();
    for key in 0..KEYS {
        assert!(store.get(&key.to_be_bytes()).expect("memory").is_some());
    }
    let reads = node.sorted_reads() - before;
    assert!(reads <= 12, "{reads} reads for {KEYS} neighbours");
    let mut world = World::of(store, KEYS);
    let before = node.of_data().lists;
    // Not side by side: each is given back by itself.
    for key in (0..KEYS).step_by(2) {
        world.put(key, 0).expect("memory");
    }
    world.store.sync().expect("memory");
    for key in (1..KEYS).step_by(2) {
        world.put(key, 0).expect("memory");
    }
    world.store.sync().expect("memory");
    await_data(&objects, 0);
    let lists = node.of_data().lists - before;
    assert!(lists <= 4, "{lists} listings for {KEYS} extents of one segment");
}

/// A tmpfs of 64 MiB, unmounted when dropped.
struct SmallHost(std::path::PathBuf);

impl SmallHost {
    fn new(test: &str) -> Option<SmallHost> {
        let dir = std::env::temp_dir().join(format!("{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let mut mount = std::process::Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=64m", "none"]).arg(&dir).output();
        let is_mounted = mounted.is_ok_and(|mounted| mounted.status.success());
        is_mounted.then_some(SmallHost(dir))
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_full_disk_below_a_file_url_refuses_data_and_the_store_goes_on_with_room() {
    let test = "a_full_disk_below_a_file_url";
    let Some(host) = SmallHost::new(test) else { return println!("skipped: no tmpfs can be mounted") };
    let bucket = Bucket::make(&format!("file://{}/s", host.0.display())).expect("a directory");
    let store = bucket.create(Options::default().background(false)).expect("a new store");
    let bytes = bytes_of(1, MIB);
    let (mut named, mut version) = (Vec::new(), 0_u64);
    let refused = loop {
        match store.write_extent(&bytes) {
            Ok(extent) => {
                version += 1;
                let mut value = Vec::new();
                extent.encode(&mut value);
                let mut change = store.begin(value.len() as u64 + 100 + EXTENT_ROOM).expect("there is room");
                change.put(&version.to_be_bytes(), version, &value);
                change.name_extent(&extent);
                drop(change);
                store.sync().expect("records have room");
                named.push(extent);
            }
            Err(error) => break error,
        }
    };
    assert_eq!(refused.errno(), rustix::io::Errno::NOSPC.raw_os_error());
    assert!(named.len() > 30 && !store.has_room(), "{} MiB", named.len());
    // Deletions have room, again and again, and make it.
    for (key, extent) in named.drain(1..).enumerate() {
        version += 1;
        let mut change = store.begin(100 + EXTENT_ROOM).expect("there is room");
        change.remove(&(key as u64 + 2).to_be_bytes(), version);
        change.free_extent(&extent);
        drop(change);
        store.sync().expect("a deletion has room");
    }
    store.write_out().expect("there is room");
    let until = Instant::now() + Duration::from_secs(60);
    while !store.has_room() {
        assert!(Instant::now() < until, "what was deleted takes room for good");
        std::thread::sleep(Duration::from_millis(50));
    }
    store.write_extent(&bytes).expect("there is room again");
    store.close().expect("there is room");
    bucket.open(Claim::Alone, Options::default()).expect("it is whole").close().expect("it is whole");
}
