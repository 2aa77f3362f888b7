//! Takeover: what a host reads that gets kernels from another, and what these kernels find.

use crate::mounts::{can_mount, fresh_dir};
use crate::pair::{Node, Pair};
use rustix::fs::{FileType, Mode, OFlags, fstat, mknodat, open};
use sluice_cluster::Host;
use sluice_vfs::{Options, Superblock};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const FILES: usize = 300;

/// A pair of mounts over a store in `dir`.
fn stored_pair(dir: &Path) -> Pair {
    let superblock = Superblock::create(dir.join("store"), Options::default()).expect("made");
    let host = Host::new(superblock);
    let nodes = vec![Node::new(&host, 1), Node::new(&host, 2)];
    Pair { host, nodes }
}

/// Another process has the store: what the host says for it, and how many inodes were in memory before the kernels were served.
fn take_over(pair: Pair, dir: &Path) -> (Pair, u64) {
    let Pair { host, mut nodes } = pair;
    host.superblock().sync().expect("durable");
    let held: Vec<_> = nodes.iter().map(|node| node.relay.detach()).collect();
    nodes.iter_mut().for_each(|node| drop(node.guest.take()));
    host.superblock().close().expect("durable");
    drop(host);
    let superblock = Superblock::open(dir.join("store"), Options::default()).expect("opened");
    let host = Host::new(superblock.clone());
    let restored: Vec<_> = nodes
        .iter()
        .zip(&held)
        .zip(1..)
        .map(|((node, held), mount)| {
            node.relay.restore_host(&host, held, &host.adopt(held), mount).expect("admitted")
        })
        .collect();
    let in_memory = superblock.inodes_in_memory();
    superblock.reserve_numbers().expect("durable");
    for (node, restored) in nodes.iter_mut().zip(restored) {
        node.guest = Some(node.relay.attach_restored(restored, true));
    }
    (Pair { host, nodes }, in_memory)
}

fn by_path(path: &Path) -> OwnedFd {
    open(path, OFlags::PATH, Mode::empty()).expect("it is there")
}

#[test]
fn a_host_that_takes_over_reads_what_is_open_and_nothing_that_a_kernel_only_knows() {
    if !can_mount() {
        return;
    }
    let dir = fresh_dir();
    let pair = stored_pair(&dir);
    let root = pair.nodes[0].dir.clone();
    fs::create_dir_all(root.join("d/below")).expect("made");
    fs::create_dir(root.join("empty")).expect("made");
    for file in 0..FILES {
        fs::write(root.join(format!("d/{file}")), format!("{file}")).expect("written");
    }
    // One whose record does not say where a name of it is.
    fs::hard_link(root.join("d/0"), root.join("d/below/linked")).expect("made");
    fs::remove_file(root.join("d/0")).expect("it is there");
    let fifo = root.join("d/fifo");
    mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).expect("made");
    fs::write(root.join("d/gone"), "gone").expect("written");
    let mut opened = Vec::new();
    let mut known = Vec::new();
    for node in &pair.nodes {
        for file in 1..FILES {
            fs::metadata(node.path(&format!("d/{file}"))).expect("it is there");
        }
        opened.push(["d/1", "d/gone"].map(|name| File::open(node.path(name)).expect("it is there")));
        let names = ["d/2", "d/3", "d/4", "d/below/linked", "d/fifo", "empty", "d/below"];
        known.push(names.map(|name| by_path(&node.path(name))));
    }
    pair.host.superblock().sync().expect("durable");
    fs::remove_file(root.join("d/gone")).expect("it is there");
    let (pair, in_memory) = take_over(pair, &dir);
    // The root, d, and of each open file one, though both have it.
    assert!(in_memory <= 4, "{in_memory} inodes");
    // Files that no node has looked up yet lose their names, or get others.
    fs::remove_file(root.join("d/2")).expect("it is there");
    fs::rename(root.join("d/3"), root.join("moved")).expect("it is there");
    fs::rename(root.join("d/4"), root.join("d/5")).expect("both are there");
    fs::remove_dir(root.join("empty")).expect("it is there");
    for (node, (opened, known)) in pair.nodes.iter().zip(opened.iter().zip(&known)) {
        let mut read = [0; 4];
        opened[1].read_exact_at(&mut read, 0).expect("it is open, if it has no name");
        assert_eq!((&read, opened[1].metadata().expect("open").nlink()), (b"gone", 0));
        assert_eq!(opened[0].metadata().expect("open").len(), 1);
        let links: Vec<_> =
            known.iter().map(|known| fstat(known).expect("its kernel knows it").st_nlink).collect();
        assert_eq!(links[..5], [0, 1, 1, 1, 1], "removed, moved, moved, linked, and the fifo");
        assert!(fstat(&known[6]).expect("it is there").st_ino != 0);
        for file in 6..FILES {
            let path = node.path(&format!("d/{file}"));
            assert_eq!(fs::read_to_string(path).expect("it is there"), file.to_string());
        }
        assert_eq!(fs::read_to_string(node.path("d/5")).expect("it is there"), "4");
    }
    drop((opened, known));
    end(pair, &dir);
}

#[test]
fn what_a_kernel_only_knew_is_forgotten_like_anything_else() {
    if !can_mount() {
        return;
    }
    let dir = fresh_dir();
    let pair = stored_pair(&dir);
    let root = pair.nodes[0].dir.clone();
    fs::create_dir(root.join("d")).expect("made");
    for file in 0..20 {
        fs::write(root.join(format!("d/{file}")), "").expect("written");
    }
    let known = by_path(&root.join("d/1"));
    let (pair, _) = take_over(pair, &dir);
    fs::remove_file(root.join("d/1")).expect("it is there");
    assert_eq!(fstat(&known).expect("its kernel knows it").st_nlink, 0);
    drop(known);
    fs::remove_dir_all(root.join("d")).expect("it is there");
    end(pair, &dir);
}

fn end(pair: Pair, dir: &Path) {
    let superblock = pair.host.superblock().clone();
    pair.finish();
    superblock.close().expect("durable");
    drop(superblock);
    let superblock = Superblock::open(dir.join("store"), Options::default()).expect("opened");
    assert!(superblock.check().is_clean(), "{}", superblock.check());
    superblock.close().expect("durable");
    fs::remove_dir_all(dir).expect("removed");
}
