//! Random damage of the objects of a store: opening it is refused, a call says EIO, or all is as it was. Nothing is other bytes, zeros, or
//! gone. Half of the stores are encrypted.
//!
//! `SLUICE_DAMAGE_ROUNDS` says how many damages there are, `SLUICE_DAMAGE_SEED` which; `SLUICE_DAMAGE_ROUND` asks for one of them.
//!
//! The clock is played, for all stores of this program.

#[allow(dead_code, reason = "the tests of trouble use the rest")]
#[path = "../played/troubled/mod.rs"]
mod troubled;

use crate::troubled::play;
use crate::troubled::work::{Call, Tree};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use sluice_bucket::{Bucket, Claim, wait_for};
use sluice_store::StoreKey;
use sluice_sync::random::Random;
use sluice_vfs::{Errno, Fs, Options, Superblock};
use std::collections::BTreeMap;
use std::sync::Arc;

type Objects = BTreeMap<Path, Vec<u8>>;

fn options(is_encrypted: bool) -> Options {
    let mut options = Options::default();
    options.store.key = is_encrypted.then(|| StoreKey::file(vec![7; 32]).expect("long enough"));
    options.store.background = false;
    options.store.log_size = 8 << 20;
    options.store.segment_size = 1 << 20;
    options
}

fn contents(objects: &InMemory) -> Objects {
    use futures_util::StreamExt;
    use object_store::ObjectStore;
    wait_for(async {
        let mut all = Objects::new();
        for meta in objects.list(None).collect::<Vec<_>>().await {
            let path = meta.expect("memory").location;
            let found = objects.get(&path).await.expect("memory").bytes().await.expect("memory");
            all.insert(path, found.to_vec());
        }
        all
    })
}

fn stored(all: &Objects) -> Arc<InMemory> {
    let objects = InMemory::new();
    wait_for(async {
        for (path, bytes) in all {
            objects.put(path, PutPayload::from(bytes.clone())).await.expect("memory");
        }
    });
    Arc::new(objects)
}

fn open(objects: &Arc<InMemory>, epoch: u64, options: Options) -> Result<Fs, String> {
    let bucket = Bucket::over(objects.clone());
    let store = bucket.open(Claim::Epoch(epoch), options.store.clone()).map_err(|error| error.to_string())?;
    let opened = Superblock::open_in(store, options).map_err(|error| error.to_string())?;
    Ok(Fs::with_superblock(opened))
}

/// Objects after a clean close, or when the owner died; older ones of the same store; and the tree in it.
fn used(is_closed: bool, options: &Options) -> (Objects, Vec<Objects>, Tree) {
    let objects = Arc::new(InMemory::new());
    let store = Bucket::over(objects.clone()).create(options.store.clone()).expect("memory");
    let mut fs = Fs::create_in(store, options.clone()).expect("memory");
    let (mut tree, mut older) = (Tree::new(), Vec::new());
    let mut call = |fs: &Fs, call: Call| {
        call.run(fs).expect("memory");
        call.model(&mut tree);
    };
    for round in 0..5_u8 {
        if round == 0 {
            call(&fs, Call::MakeDir("/a"));
            call(&fs, Call::MakeDir("/a/b"));
        }
        for number in 0..12 {
            let dir = ["", "/a", "/a/b"][number % 3];
            let path = format!("{dir}/file-{round}-{number}");
            call(&fs, Call::Write(path, number * number * 1_500 + 40, round * 16 + number as u8));
        }
        call(&fs, Call::Sync);
        call(&fs, Call::Write("/changed".into(), 150_000, round));
        call(&fs, Call::Copy("/changed".into(), format!("/copy-{round}")));
        call(&fs, Call::Write("/large".into(), 700_000, round));
        call(&fs, Call::Sync);
        if round > 0 {
            call(&fs, Call::Remove(format!("/copy-{}", round - 1)));
            call(&fs, Call::Rename(format!("/file-{round}-0"), format!("/a/moved-{round}")));
            call(&fs, Call::Sync);
        }
        older.push(contents(&objects));
        if round == 1 || round == 3 {
            fs.superblock().close().expect("memory");
            older.push(contents(&objects));
            fs = open(&objects, 10 + u64::from(round), options.clone()).expect("it was closed");
        }
    }
    // The loss of the last push looks like a death before that.
    fs.write("/last", "nobody asks for it").expect("memory");
    fs.sync().expect("memory");
    if is_closed {
        fs.superblock().close().expect("memory");
    }
    let whole = contents(&objects);
    drop(fs);
    (whole, older, tree)
}

/// Damages `all`: says how, if it did.
fn damage(all: &mut Objects, older: &[Objects], random: &mut Random) -> Option<String> {
    // Each kind of object as often as the others.
    let kind = |path: &Path| {
        let path = path.as_ref();
        path.rsplit_once('/')
            .map_or("super", |(dir, _)| if dir.starts_with("data") { "data" } else { dir })
            .to_owned()
    };
    let mut kinds: Vec<String> = all.keys().map(kind).collect();
    kinds.dedup();
    kinds.sort();
    kinds.dedup();
    let chosen = random.pick(&kinds);
    let of_kind: Vec<Path> = all.keys().filter(|path| kind(path) == chosen).cloned().collect();
    let any: Vec<Path> = all.keys().cloned().collect();
    // The newest of a kind count most.
    let at = of_kind.len() - 1 - random.below(of_kind.len()) * random.below(2);
    let path = of_kind[at].clone();
    let other = match random.below(2) {
        0 => random.pick(&of_kind),
        _ => random.pick(&any),
    };
    let bytes = all[&path].clone();
    let place = |random: &mut Random| random.below(bytes.len());
    let old = &older[random.below(older.len())];
    let how = match random.below(9) {
        0 | 1 => {
            let (at, bit) = (place(random), random.below(8));
            all.get_mut(&path)
                .and_then(|bytes| bytes.get_mut(at))
                .into_iter()
                .for_each(|byte| *byte ^= 1 << bit);
            format!("bit {bit} of byte {at} of {path}")
        }
        2 => {
            let at = place(random);
            all.get_mut(&path).expect("it is there").truncate(at);
            format!("{path} cut to {at}")
        }
        3 => {
            all.insert(path.clone(), Vec::new());
            format!("{path} is empty")
        }
        4 => {
            all.remove(&path);
            format!("{path} is gone")
        }
        5 => {
            let two = all[&other].clone();
            all.insert(path.clone(), two);
            all.insert(other.clone(), bytes.clone());
            format!("{path} and {other} swapped")
        }
        6 => {
            all.insert(other.clone(), bytes.clone());
            format!("{path} again as {other}")
        }
        7 => {
            let stale = old.get(&path)?.clone();
            all.insert(path.clone(), stale);
            format!("{path} is stale")
        }
        _ => {
            let lost: Vec<&Path> = old.keys().filter(|path| !all.contains_key(*path)).collect();
            let back = (*lost.get(random.below(lost.len()))?).clone();
            all.insert(back.clone(), old[&back].clone());
            format!("{back} is there again")
        }
    };
    Some(how)
}

/// Errors that `fs` gives for what is in `tree`, and the first thing that is neither an error nor right.
fn differs(fs: &Fs, tree: &Tree) -> Result<u64, String> {
    let mut errors = 0;
    let mut dirs = vec![String::new()];
    dirs.extend(tree.iter().filter(|(_, bytes)| bytes.is_none()).map(|(path, _)| path.clone()));
    for dir in &dirs {
        let shown = if dir.is_empty() { "/" } else { dir };
        let names: Vec<String> = match fs.read_dir(shown).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
            Ok(found) => {
                found.iter().map(|entry| format!("{dir}/{}", entry.name().to_string_lossy())).collect()
            }
            Err(Errno::EIO) => {
                errors += 1;
                continue;
            }
            Err(error) => return Err(format!("the names of {shown}: {error}")),
        };
        let is_here = |path: &&String| path.rsplit_once('/').is_some_and(|(parent, _)| parent == dir);
        if let Some(lost) = tree.keys().filter(is_here).find(|path| !names.contains(path)) {
            return Err(format!("{lost} is lost"));
        }
        let strange = |name: &&String| !tree.contains_key(*name) && !["/last", "/new"].contains(&&***name);
        if let Some(strange) = names.iter().find(strange) {
            return Err(format!("{strange} is there"));
        }
    }
    for (path, bytes) in tree.iter().filter_map(|(path, bytes)| Some((path, bytes.as_ref()?))) {
        match fs.read(path) {
            Ok(found) if found == *bytes => {}
            Ok(found) => return Err(format!("{path} has {} other bytes", found.len())),
            Err(Errno::EIO) => errors += 1,
            Err(error) => return Err(format!("{path}: {error}")),
        }
    }
    Ok(errors)
}

#[test]
fn damaged_objects_are_refused_or_an_error_or_change_nothing() {
    let number = |name: &str, usual| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let (rounds, seed) = (number("SLUICE_DAMAGE_ROUNDS", 250_u64), number("SLUICE_DAMAGE_SEED", 44_u64));
    play();
    let kinds = [false, true].map(options);
    let stores = kinds.each_ref().map(|options| [true, false].map(|is_closed| used(is_closed, options)));
    let [mut refused, mut errors, mut right] = [0; 3];
    let mut wrong = Vec::new();
    let only: Option<u64> = std::env::var("SLUICE_DAMAGE_ROUND").ok().and_then(|n| n.parse().ok());
    for round in (0..rounds).filter(|round| only.is_none_or(|only| only == *round)) {
        let kind = round as usize / 2 % 2;
        let (options, (whole, older, tree)) = (&kinds[kind], &stores[kind][round as usize % 2]);
        let mut random = Random::new(seed + round);
        let mut all = whole.clone();
        let Some(how) = damage(&mut all, older, &mut random) else { continue };
        let mut said = |what: String| {
            wrong.push(format!(
                "round {round}, closed: {}, encrypted: {}, {how}: {what}",
                round % 2 == 0,
                kind == 1
            ))
        };
        let objects = stored(&all);
        let Ok(fs) = open(&objects, 100, options.clone()) else {
            refused += 1;
            continue;
        };
        let found = match differs(&fs, tree) {
            Ok(found) => found,
            Err(what) => {
                said(what);
                continue;
            }
        };
        // It is used, and opened again.
        let _ = fs.write("/new", "new").and_then(|()| fs.sync());
        drop(fs);
        if let Ok(fs) = open(&objects, 200, options.clone())
            && let Err(what) = differs(&fs, tree)
        {
            said(format!("later: {what}"));
            continue;
        }
        if found == 0 {
            right += 1;
            continue;
        }
        errors += 1;
        let bucket = Bucket::over(stored(&all));
        let unlocked = options.store.key.as_ref().map_or(Ok(bucket.clone()), |key| bucket.unlocked(key));
        // A store that cannot be unlocked any more was refused.
        let Ok(bucket) = unlocked else { continue };
        let report = Superblock::check_shown(|look| bucket.check(look, &mut |_| ()));
        if report.is_ok_and(|report| report.found == 0) {
            said("a check passes".into());
        }
    }
    println!("{refused} refused, {errors} with errors, {right} right");
    wrong.iter().for_each(|one| println!("{one}"));
    assert!(wrong.is_empty(), "{} of {rounds} are wrong", wrong.len());
    assert!(rounds < 250 || refused > 10 && errors > 10 && right > 10, "{refused} {errors} {right}");
}
