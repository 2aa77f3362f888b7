//! Duties that a local mount leaves to the kernel, and that the server has for a guest's kernel, which bypasses its page cache:
//! durable writes, capabilities, mappings. And questions of a guest whose answers it was told before.

use crate::mounts::{can_mount, fresh_superblock};
use crate::pair::{Node, Pair};
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::{Errno, ReadWriteFlags};
use sluice_cluster::Host;
use std::fs::{self, File};
use std::io::IoSlice;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const OPTIONS: &str = "locks=sluice,transport=classic";

#[test]
fn what_is_to_be_durable_is_when_the_call_returns_whatever_the_flag_the_option_and_the_node() {
    if !can_mount() {
        return;
    }
    for options in [OPTIONS, &format!("{OPTIONS},sync")] {
        let host = Host::new(fresh_superblock());
        let superblock = host.superblock().clone();
        let nodes = vec![Node::with_options(&host, 1, options), Node::far_with_options(&host, 2, options)];
        superblock.track_crashes().expect("in memory");
        let lost = || superblock.unsynced().expect("tracked");
        let is_sync = options.ends_with("sync");
        for node in &nodes {
            let path = node.path("f");
            for flag in [OFlags::empty(), OFlags::DSYNC, OFlags::SYNC] {
                for append in [OFlags::empty(), OFlags::APPEND] {
                    for of_call in [ReadWriteFlags::empty(), ReadWriteFlags::DSYNC, ReadWriteFlags::SYNC] {
                        let file = rustix::fs::open(
                            &path,
                            OFlags::CREATE | OFlags::RDWR | flag | append,
                            Mode::RUSR | Mode::WUSR,
                        );
                        let file = file.expect("opened");
                        superblock.sync().expect("in memory");
                        let size = fs::metadata(&path).expect("it is there").len();
                        let data = [IoSlice::new(b"must be there")];
                        rustix::io::pwritev2(&file, &data, size, of_call).expect("written");
                        let is_durable = is_sync || !flag.is_empty() || !of_call.is_empty();
                        let of_file = lost().into_iter().map(|lost| lost.bytes).sum::<u64>();
                        assert_eq!(of_file == 0, is_durable, "{options} {flag:?} {append:?} {of_call:?}");
                    }
                }
            }
            let names = || lost().into_iter().any(|lost| lost.name);
            fs::rename(&path, node.path("g")).expect("renamed");
            assert_eq!(names(), !is_sync, "{options}: rename");
            superblock.sync().expect("in memory");
            fs::create_dir(node.path("d")).expect("made");
            assert_eq!(names(), !is_sync, "{options}: mkdir");
            superblock.sync().expect("in memory");
            fs::remove_dir(node.path("d")).expect("removed");
            fs::remove_file(node.path("g")).expect("removed");
            assert_eq!(!lost().is_empty(), !is_sync, "{options}: removal");
        }
        Pair { host, nodes }.finish();
    }
}

#[test]
fn what_is_written_through_a_guest_loses_its_capability() {
    let Some(pair) = Pair::far() else { return };
    // CAP_NET_RAW, permitted and effective, in the layout of version 2.
    let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for node in &pair.nodes {
        for append in [false, true] {
            let path = node.path("tool");
            fs::write(&path, "x").expect("written");
            rustix::fs::setxattr(&path, "security.capability", &capability, XattrFlags::empty())
                .expect("set");
            let mut file = File::options().write(true).append(append).open(&path).expect("opened");
            std::io::Write::write_all(&mut file, b"y").expect("written");
            for other in &pair.nodes {
                let found = rustix::fs::getxattr(other.path("tool"), "security.capability", &mut [0; 64]);
                assert_eq!(found, Err(Errno::NODATA), "append: {append}");
            }
        }
    }
    pair.finish();
}

#[test]
fn an_attribute_that_is_not_there_is_asked_for_once_and_found_when_another_node_sets_it() {
    let Some(pair) = Pair::far() else { return };
    let (near, far) = (&pair.nodes[0], &pair.nodes[1]);
    let look = |path: &Path| rustix::fs::getxattr(path, "user.label", &mut [0; 64]);
    fs::write(near.path("f"), "x").expect("written");
    assert_eq!(look(&far.path("f")), Err(Errno::NODATA));
    let before = far.relay.counts().awaited;
    (0..50).for_each(|_| assert_eq!(look(&far.path("f")), Err(Errno::NODATA)));
    assert_eq!(far.relay.counts().awaited, before, "it is known");
    for round in 0..20_usize {
        let value = vec![b'v'; 1 + round];
        rustix::fs::setxattr(near.path("f"), "user.label", &value, XattrFlags::empty()).expect("set");
        assert_eq!(look(&far.path("f")), Ok(value.len()));
        rustix::fs::removexattr(far.path("f"), "user.label").expect("removed");
        assert_eq!(look(&near.path("f")), Err(Errno::NODATA));
        assert_eq!(look(&far.path("f")), Err(Errno::NODATA));
    }
    pair.finish();
}

#[test]
fn a_file_that_was_made_meanwhile_is_opened_while_another_node_removes_it_and_makes_it() {
    let Some(pair) = Pair::far() else { return };
    std::thread::scope(|scope| {
        for node in &pair.nodes {
            scope.spawn(|| {
                let path = node.path("lock");
                for _ in 0..300 {
                    let opened = File::options()
                        .read(true)
                        .write(true)
                        .create(true)
                        .truncate(false)
                        .mode(0o600)
                        .open(&path);
                    drop(opened.expect("made or opened"));
                    // The other may have removed it.
                    let _ = fs::remove_file(&path);
                }
            });
        }
    });
    pair.finish();
}
