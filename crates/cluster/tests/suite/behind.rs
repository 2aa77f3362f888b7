//! Behind: what a node writes into a directory that only it knows is answered before the owner has it, and nobody sees that.

use crate::harness::{Cluster, eventually};
use sluice_cluster::Role;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

#[test]
fn a_node_finds_what_another_has_just_written_into_a_new_directory() {
    const ROUNDS: u64 = 40;
    let Some(mut cluster) = Cluster::new() else { return };
    let (a, b) = (cluster.join(), cluster.join());
    let behind = || cluster.node(b).relay().counts().behind;
    for round in 0..ROUNDS {
        let dir = format!("d{round}");
        fs::create_dir(cluster.path(b, &dir)).expect("made");
        let files: Vec<_> = (0..4)
            .map(|number| {
                let file = File::create_new(cluster.path(b, &format!("{dir}/f{number}"))).expect("made");
                file.write_all_at(b"one", 0).expect("written");
                file.write_all_at(b"23456", 1).expect("written");
                file.set_len(3).expect("cut");
                file.set_permissions(Permissions::from_mode(0o604)).expect("it is ours");
                file
            })
            .collect();
        // By the next call, with all that is still on its way.
        for number in (0..4).rev() {
            let theirs = cluster.path(a, &format!("{dir}/f{number}"));
            assert_eq!(fs::read(&theirs).expect("it is there"), b"o23");
            let metadata = fs::metadata(&theirs).expect("it is there");
            assert_eq!((metadata.len(), metadata.permissions().mode() & 0o7777), (3, 0o604));
        }
        // From here on both know it.
        files[0].write_all_at(b"X", 0).expect("written");
        assert_eq!(fs::read(cluster.path(a, &format!("{dir}/f0"))).expect("it is there"), b"X23");
        assert_eq!(files[0].metadata().expect("open").len(), 3);
        files.iter().for_each(|file| file.sync_all().expect("durable"));
    }
    assert!(behind() >= ROUNDS, "{}", behind());
    cluster.finish();
}

#[test]
fn what_a_node_wrote_while_the_owner_left_is_there() {
    let Some(mut cluster) = Cluster::new() else { return };
    let (a, b) = (cluster.join(), cluster.join());
    let (dir, made, has_left) = (cluster.path(b, "d"), AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut after = 0;
            while after < 20 {
                after += usize::from(has_left.load(Ordering::SeqCst));
                let number = made.load(Ordering::SeqCst);
                if number % 50 == 0 {
                    fs::create_dir(dir.with_file_name(format!("d{}", number / 50))).expect("made");
                }
                let path = dir.with_file_name(format!("d{}/f{number}", number / 50));
                let mut file = File::create_new(path).expect("made");
                file.write_all(format!("contents of {number}").as_bytes()).expect("written");
                file.set_permissions(Permissions::from_mode(0o640)).expect("it is ours");
                made.store(number + 1, Ordering::SeqCst);
            }
        });
        eventually("it is at work", || made.load(Ordering::SeqCst) >= 100);
        cluster.leave(a);
        has_left.store(true, Ordering::SeqCst);
    });
    assert!(cluster.node(b).relay().counts().behind > 100);
    eventually("the other is owner", || cluster.role(b) == Role::Owner);
    let c = cluster.join();
    for number in 0..made.load(Ordering::SeqCst) {
        let path = cluster.path(c, &format!("d{}/f{number}", number / 50));
        assert_eq!(fs::read_to_string(&path).expect("it is there"), format!("contents of {number}"));
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o7777, 0o640);
    }
    cluster.finish();
}
