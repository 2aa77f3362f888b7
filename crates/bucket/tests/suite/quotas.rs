//! Quotas of directories in an object store: exact after the owner died at any write, and refused in stores of earlier programs.

use crate::faults::{Node, Plan, wait};
use object_store::memory::InMemory;
use object_store::{ObjectStoreExt, PutPayload};
use sluice_bucket::{Bucket, Claim};
use sluice_store::Info;
use sluice_vfs::{Errno, Fs, Options, Superblock};
use std::sync::Arc;

const PAGE: u64 = 4096;

fn options() -> Options {
    let mut options = Options::default();
    options.store.background = false;
    options
}

/// The owner in `epoch`, over `node`.
fn opened(node: &Arc<Node>, epoch: u64) -> Option<Fs> {
    let store = node.bucket().open(Claim::Epoch(epoch), options().store).ok()?;
    Superblock::open_in(store, options()).ok().map(Fs::with_superblock)
}

/// A store with ten pages in `/dir/below` and three in `/file`, closed.
fn filled() -> Arc<InMemory> {
    let objects = Arc::new(InMemory::new());
    let store = Bucket::over(objects.clone()).create(options().store).expect("a new store");
    let fs = Fs::create_in(store, options()).expect("memory");
    fs.create_dir_all("/dir/below").expect("room");
    fs.write("/dir/below/file", vec![7; 10 * PAGE as usize]).expect("room");
    fs.write("/file", vec![8; 3 * PAGE as usize]).expect("room");
    fs.superblock().close().expect("memory");
    objects
}

/// A quota comes, is used up, changes and goes: how many steps were durable.
fn use_quota(fs: &Fs) -> usize {
    let steps: [&dyn Fn() -> Result<(), Errno>; 6] = [
        &|| fs.set_quota("/dir", Some(20 * PAGE)),
        &|| fs.rename("/file", "/dir/file"),
        &|| match fs.write("/dir/more", vec![9; 8 * PAGE as usize]) {
            Err(Errno::EDQUOT) => Ok(()),
            done => done.and(Err(Errno::EIO)),
        },
        &|| fs.set_quota("/dir", Some(30 * PAGE)),
        &|| fs.remove_file("/dir/below/file"),
        &|| fs.set_quota("/dir", None),
    ];
    steps.iter().take_while(|step| step().and_then(|()| fs.superblock().sync()).is_ok()).count()
}

/// Bytes of the files below `/dir`.
fn walked(fs: &Fs) -> u64 {
    fs.walk("/dir")
        .map(|entry| entry.expect("it is there").stat)
        .filter(|stat| stat.is_file())
        .map(|stat| stat.blocks * 512)
        .sum()
}

#[test]
fn after_an_owner_died_at_any_write_a_quota_is_exact_or_not_there() {
    let whole = Node::new(&filled(), Plan::default(), 1);
    let fs = opened(&whole, 2).expect("it was closed");
    let before = whole.writes();
    assert_eq!(use_quota(&fs), 6);
    let after = whole.writes();
    assert!(after - before >= 6, "{before} {after}");
    let (mut with_quota, mut without) = (0, 0);
    for (at, dies_after) in (before..after).flat_map(|at| [(at, false), (at, true)]) {
        let objects = filled();
        let node = Node::new(&objects, Plan { dies_at: Some(at), dies_after, ..Plan::default() }, 1);
        let Some(fs) = opened(&node, 2) else { continue };
        let durable = use_quota(&fs);
        let next = Node::new(&objects, Plan::default(), 2);
        let fs = opened(&next, 100).unwrap_or_else(|| panic!("died at write {at}: it does not open"));
        let report = fs.superblock().check_idle();
        assert!(report.is_clean(), "died at write {at}: {report}");
        match fs.quota("/dir").expect("it is there") {
            Some(quota) => {
                with_quota += 1;
                assert_eq!(quota.used, walked(&fs), "died at write {at}");
                assert!(durable < 6, "died at write {at}, {durable} steps");
                let room = quota.limit - quota.used;
                fs.write("/dir/fits", vec![1; room as usize]).expect("the quota has room");
                assert_eq!(fs.write("/dir/one", vec![1; 1]), Err(Errno::EDQUOT), "died at write {at}");
            }
            None => {
                without += 1;
                assert!(durable == 0 || durable >= 5, "died at write {at}: the quota is lost");
            }
        }
        fs.superblock().close().expect("memory");
        let bucket = Bucket::over(objects);
        let report = Superblock::check_shown(|look| bucket.check(look, &mut |_| ())).expect("a store");
        assert!(report.findings.is_empty(), "died at write {at}: {report:?}");
    }
    assert!(with_quota > 0 && without > 0, "{with_quota} {without}");
}

#[test]
fn a_store_that_an_earlier_program_made_refuses_quotas() {
    let objects = filled();
    let path = object_store::path::Path::from("super");
    let bytes = wait(async { objects.get(&path).await?.bytes().await }).expect("a store");
    let info = Info { version: 11, ..Info::decode(&bytes).expect("a store") };
    wait(objects.put(&path, PutPayload::from(info.encode()))).expect("memory");
    let fs = opened(&Node::new(&objects, Plan::default(), 1), 2).expect("it is read");
    assert_eq!(fs.set_quota("/dir", Some(20 * PAGE)), Err(Errno::EOPNOTSUPP));
    assert_eq!(fs.quota("/dir"), Ok(None));
    fs.write("/dir/more", "room").expect("it is used as before");
}
