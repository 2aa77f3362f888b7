//! Doubt: a receiver that died before a note carries out again what it did since the note before.

use super::{begin, digest};
use crate::stream::apply::ReceivedTree;
use crate::stream::arrived::Arrived;
use crate::stream::frame::{FrameReader, StreamOrder};
use crate::stream::resume::{IDENTITY, ResumePoint};
use crate::stream::{receive, send};
use random_tree::RandomTree;
use sluice_vfs::{Fs, Superblock};
use tree_facts::of_snapshot;

#[path = "../../tests/suite/snapshots/random_tree.rs"]
mod random_tree;
#[path = "../../tests/suite/snapshots/tree_facts.rs"]
mod tree_facts;

/// Bytes of the head of a stream, and of what stands before a frame.
const HEAD: usize = 12;
const FRAME_HEAD: usize = 8;

fn stream(from: &Superblock, name: &str, since: Option<&str>) -> Vec<u8> {
    let mut stream = Vec::new();
    send(from, name.as_bytes(), since.map(str::as_bytes), None, &mut stream).expect("it is there");
    stream
}

/// Each frame as a stream of its own, with the checksum before it.
fn frames(stream: &[u8]) -> Vec<(Vec<u8>, u32)> {
    let (head, mut rest) = stream.split_at(HEAD);
    let (mut frames, mut before) = (Vec::new(), crc32c::crc32c(head));
    while !rest.is_empty() {
        let number = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("four bytes"));
        let (len, crc) = (FRAME_HEAD + number(0) as usize, number(4));
        frames.push(([head, &rest[..len]].concat(), before));
        before = crc;
        rest = &rest[len..];
    }
    frames
}

/// Calls `look` with the order of a frame.
fn with_order<T>((frame, crc): &(Vec<u8>, u32), look: impl FnOnce(&StreamOrder<'_>) -> T) -> T {
    let mut reader = FrameReader::new(&**frame).expect("a head");
    reader.go_on(ResumePoint { identity: [0; IDENTITY], frames: 0, crc: *crc });
    look(&reader.next().expect("an order"))
}

/// Receives `stream`, of the snapshot `name`, and carries out each order behind a note a second time. Says how many orders changed names.
fn receive_doubting(to: &Superblock, stream: &[u8], name: &str) -> usize {
    let frames = frames(stream);
    let base = with_order(&frames[0], |order| match order {
        StreamOrder::Begin { base, .. } => base.map(|(base, sum)| (base.to_vec(), sum)),
        _ => panic!("{order:?}"),
    });
    let new = begin(to, name.as_bytes(), base).expect("it fits");
    let point = ResumePoint { identity: [0; IDENTITY], frames: 0, crc: 0 };
    let mut tree = ReceivedTree::new(&new);
    let mut noted: Arrived = tree.arrived(name.as_bytes(), point);
    let (mut since, mut doubted) = (Vec::new(), 0);
    for frame in &frames[2..frames.len() - 1] {
        if with_order(frame, |order| order.changes_names()) {
            let mut again = ReceivedTree::new(&new);
            again.stand(&noted).unwrap_or_else(|errno| panic!("{noted:?}: {errno}"));
            for frame in since.drain(..) {
                with_order(frame, |order| {
                    again.obey(order).unwrap_or_else(|errno| panic!("{order:?}: {errno}"));
                });
            }
            noted = again.arrived_before_names(name.as_bytes(), point);
            tree = again;
            doubted += 1;
        }
        with_order(frame, |order| tree.obey(order)).expect("it fits");
        since.push(frame);
    }
    let sum = with_order(frames.last().expect("an end"), |order| match order {
        StreamOrder::End(sum) => *sum,
        _ => panic!("{order:?}"),
    });
    assert_eq!(digest(new.top()).expect("memory"), sum, "{name}");
    new.keep(name.as_bytes()).expect("room");
    doubted
}

#[test]
fn each_order_may_be_in_doubt() {
    let mut doubted = 0;
    for seed in 0..24 {
        let (from, to) = (Fs::new(), Fs::new());
        let mut tree = RandomTree::new(&from, seed);
        tree.change(200);
        from.superblock().take_snapshot(b"one").expect("room");
        tree.rename(40);
        tree.change(60);
        from.superblock().take_snapshot(b"two").expect("room");
        for (name, since) in [("one", None), ("two", Some("one"))] {
            doubted += receive_doubting(to.superblock(), &stream(from.superblock(), name, since), name);
            let [sent, there] = [&from, &to].map(|fs| of_snapshot(fs.superblock(), name));
            assert!(sent == there, "seed {seed}, {name}");
        }
        to.settle();
        assert!(to.check().is_clean(), "{}", to.check());
        // Any other stream can go on from the tree that arrived.
        from.superblock().take_snapshot(b"three").expect("room");
        receive(to.superblock(), &*stream(from.superblock(), "three", Some("two"))).expect("it fits");
    }
    assert!(doubted > 300, "{doubted}");
}
