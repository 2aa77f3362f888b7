//! A store in a directory of the host: threads, the store's own thread, and what is there after it was closed.

use sluice_store::disk::{HostDisk, OverlayDisk};
use sluice_store::{Extent, Look, Options, Report, Store, StoreError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Records that name no data.
struct Keys;

impl Look for Keys {
    fn see(&mut self, _: &[u8], _: &[u8], _: &mut Report) {}

    fn describe(&self, key: &[u8]) -> String {
        format!("record {key:?}")
    }

    fn extents(&self, _: &[u8], _: &[u8]) -> Vec<Extent> {
        Vec::new()
    }
}

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("sluice-store-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory for temporary files");
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options() -> Options {
    Options::default().log_size(1 << 20)
}

fn disk(dir: &Path) -> Arc<HostDisk> {
    Arc::new(HostDisk::lock(dir).expect("nobody else has it"))
}

#[test]
fn what_threads_synchronised_is_there_when_the_store_is_opened_again() {
    let scratch = Scratch::new("threads");
    let store = Store::create(disk(&scratch.0), options()).expect("an empty directory");
    const THREADS: u8 = 4;
    const ROUNDS: u32 = 60;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let mut change = store.begin(10_000).expect("the disk works");
                    // More in all than the log holds.
                    change.put(&[b'a', thread], u64::from(round), &vec![round as u8; 9_000]);
                    change.put(&[b'b', thread], u64::from(round), &round.to_le_bytes());
                    drop(change);
                    store.sync().expect("the disk works");
                }
            });
        }
    });
    let batches = store.stats().batches;
    assert!(batches > 0 && batches <= u64::from(THREADS) * u64::from(ROUNDS));
    drop(store);
    let store = Store::open(disk(&scratch.0), options()).expect("closed well");
    for thread in 0..THREADS {
        let last = (ROUNDS - 1).to_le_bytes();
        assert_eq!(store.get(&[b'b', thread]).expect("whole").as_deref(), Some(last.as_slice()));
        assert_eq!(store.get(&[b'a', thread]).expect("whole").map(|value| value[0]), Some(ROUNDS as u8 - 1));
    }
}

#[test]
fn a_store_has_one_user_at_a_time_and_is_made_once() {
    let scratch = Scratch::new("user");
    assert!(matches!(Store::open(disk(&scratch.0), options()), Err(StoreError::NotAStore)));
    let store = Store::create(disk(&scratch.0), options()).expect("an empty directory");
    assert!(
        matches!(HostDisk::lock(&scratch.0), Err(StoreError::InUse(Some(pid))) if pid == std::process::id())
    );
    drop(store);
    assert!(matches!(Store::create(disk(&scratch.0), options()), Err(StoreError::Exists)));
}

#[test]
fn a_store_that_is_only_looked_at_stays_byte_for_byte_as_it_was() {
    let scratch = Scratch::new("look");
    let bytes = || -> Vec<_> {
        let files =
            std::fs::read_dir(&scratch.0).expect("it is there").map(|file| file.expect("a file").path());
        let mut files: Vec<_> =
            files.map(|path| (path.clone(), std::fs::read(path).expect("a file"))).collect();
        files.sort();
        files
    };
    let open = options().background(false);
    let store = Store::create(disk(&scratch.0), open.clone()).expect("an empty directory");
    store.begin(100).expect("there is room").put(b"key", 1, b"value");
    store.sync().expect("the disk works");
    // As after a crash: the log has what the tree does not. The lock goes when the copy is left alone.
    let before = bytes();
    drop(store);
    for (path, bytes) in &before {
        std::fs::write(path, bytes).expect("a file");
    }
    let look = || Arc::new(HostDisk::lock_read_only(&scratch.0).expect("nobody writes"));
    let (first, second) = (Arc::new(OverlayDisk::new(look())), look());
    assert!(matches!(HostDisk::lock(&scratch.0), Err(StoreError::InUse(_))), "it is being looked at");
    let store = Store::open(first, open.clone()).expect("a store");
    assert_eq!(store.get(b"key").expect("whole").as_deref(), Some(b"value".as_slice()));
    store.begin(100).expect("there is room").put(b"key", 2, b"only in memory");
    drop(store);
    assert_eq!(Store::check(second, &mut Keys, &mut |_| ()).expect("a store").batches, 1);
    assert!(bytes() == before);
}

#[test]
fn a_change_is_made_durable_unasked_when_it_gets_old() {
    let scratch = Scratch::new("age");
    let age = Duration::from_millis(20);
    let store = Store::create(disk(&scratch.0), options().age(age)).expect("an empty directory");
    // Twice: the store's thread sleeps in between.
    for round in 1..=2 {
        let before = store.stats().batches;
        store.begin(100).expect("the disk works").put(b"key", round, b"value");
        let patience = Instant::now();
        while store.stats().batches == before {
            assert!(patience.elapsed() < Duration::from_secs(60), "nothing was pushed");
            std::thread::yield_now();
        }
        assert_eq!(store.stats().waiting_bytes, 0);
    }
}

/// A whole store in which `name` is what `replace` puts in its place.
fn with_an_intruder(dir: &Path, name: &str, replace: impl FnOnce(&Path)) -> StoreError {
    let intruder = dir.join(name);
    let aside = dir.with_extension("aside");
    std::fs::rename(&intruder, &aside).expect("the store has it");
    replace(&intruder);
    let opened = Store::open(disk(dir), options());
    let checked = Store::check(disk(dir), &mut Keys, &mut |_| ());
    if name != "super" {
        let report = checked.expect("a finding is no error");
        assert!(report.findings.iter().any(|one| one.text.contains("is not a regular file")), "{report:?}");
    }
    let _ = std::fs::remove_file(&intruder).or_else(|_| std::fs::remove_dir(&intruder));
    std::fs::rename(&aside, &intruder).expect("as before");
    opened.map(drop).expect_err("it is no store")
}

#[test]
fn a_fifo_a_directory_or_a_link_in_the_place_of_a_file_is_damage_and_holds_nobody_up() {
    let scratch = Scratch::new("irregular");
    let dir = scratch.0.join("store");
    std::fs::create_dir(&dir).expect("room");
    drop(Store::create(disk(&dir), options()).expect("an empty directory"));
    for name in ["super", "log", "tree"] {
        for error in [
            with_an_intruder(&dir, name, |path| {
                let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
                rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)
                    .expect("room");
            }),
            with_an_intruder(&dir, name, |path| std::fs::create_dir(path).expect("room")),
            with_an_intruder(&dir, name, |path| std::os::unix::fs::symlink("x", path).expect("room")),
        ] {
            assert!(
                matches!(&error, StoreError::Damaged(how) if how.contains("not a regular file")),
                "{name}: {error}"
            );
            assert_eq!(error.errno(), rustix::io::Errno::IO.raw_os_error());
        }
    }
    drop(Store::open(disk(&dir), options()).expect("whole again"));
}

#[test]
fn a_store_whose_files_were_deleted_beside_it_makes_nothing_durable() {
    let scratch = Scratch::new("deleted");
    let store = Store::create(disk(&scratch.0), options()).expect("an empty directory");
    std::fs::remove_file(scratch.0.join("log")).expect("it is there");
    store.begin(1000).expect("there is room").put(b"key", 1, b"value");
    let error = store.sync().expect_err("nobody will find it").to_string();
    assert!(error.contains("was deleted while the store was used"), "{error}");
    drop(store);
}
