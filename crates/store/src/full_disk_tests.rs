//! Tests of stores whose disk another program fills for a while.

use crate::Store;
use crate::crash_tests::{empty, open, options, shared};
use crate::disk::crash::CrashDisk;
use crate::disk::fault::FaultDisk;
use rustix::io::Errno;

#[test]
fn a_checkpoint_that_finds_the_disk_full_is_made_later() {
    let run = |at: u64, errno: Errno| {
        let disk = empty();
        let fault = FaultDisk::new(shared(disk.clone()), at, false, errno.raw_os_error());
        let store = Store::open(shared(fault.clone()), options()).expect("an empty store");
        for n in 0..10_u64 {
            store.begin(8_000).expect("it works").put(&[n as u8], n, &[n as u8; 3_000]);
        }
        store.sync().expect("the log is whole already");
        let before = fault.steps();
        let first = store.checkpoint();
        (disk, store, before..fault.steps(), first)
    };
    let (_, _, steps, done) = run(u64::MAX, Errno::NOSPC);
    done.expect("a whole disk");
    let mut later = 0;
    for (at, errno) in steps.flat_map(|at| [(at, Errno::NOSPC), (at, Errno::DQUOT)]) {
        let (disk, store, _, first) = run(at, errno);
        let first = first.expect_err("the step fails");
        if store.failure().is_none() {
            assert_eq!(first.errno(), errno.raw_os_error());
            later += 1;
            store.checkpoint().expect("there is room");
            store.begin(8_000).expect("it works").put(b"m", 1, b"later");
            store.sync().and_then(|()| store.checkpoint()).expect("the store goes on");
        }
        drop(store);
        let store = open(CrashDisk::with(disk.files()), None).expect("still a store");
        for n in 0..10_u64 {
            assert_eq!(store.get(&[n as u8]).expect("whole"), Some(vec![n as u8; 3_000]), "step {at}");
        }
    }
    assert!(later >= 10, "{later} steps found no room");
}
