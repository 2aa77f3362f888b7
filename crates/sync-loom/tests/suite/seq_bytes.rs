//! Models of the byte block: a read of two blocks is never torn, and what is frozen stays.
//!
//! The models write whole words. A part of a word is written by a load and a store, and loom, which remembers only
//! the last access to a word, would take the load for the reason that nobody else's access needs to be tried
//! after the store.

use crate::model::explore;
use loom::thread;
use sluice_sync_loom::SharedBytes;
use sluice_sync_loom::face::{Mutant, seed_mutant};
use sluice_sync_loom::radix::Object;

/// A word.
const LEN: usize = 8;

fn block() -> SharedBytes {
    SharedBytes::with(LEN, 0, &[])
}

/// Reads both blocks, as one read; none if a writer interfered.
fn read(blocks: &[SharedBytes; 2]) -> Option<[u8; 2]> {
    let mut bytes = [[0; LEN]; 2];
    let mut sequences = [0; 2];
    for n in 0..2 {
        sequences[n] = blocks[n].count().try_begin()?;
        blocks[n].load(0, &mut bytes[n]);
    }
    let same = (0..2).all(|n| !blocks[n].count().retry(sequences[n]));
    same.then_some(bytes.map(|block| block[0]))
}

fn write(blocks: &[SharedBytes; 2], byte: u8) {
    let mut locked = [blocks[0].lock(), blocks[1].lock()];
    locked.iter_mut().for_each(|block| block.store(0, &[byte; LEN]));
}

fn a_writer_of_both_blocks_beside_a_reader() {
    explore(3, || {
        let blocks: &'static _ = Box::leak(Box::new([block(), block()]));
        let writer = thread::spawn(|| write(blocks, 1));
        if let Some([one, other]) = read(blocks) {
            assert_eq!(one, other, "torn");
        }
        writer.join().expect("the writer ends");
        assert_eq!(read(blocks), Some([1, 1]));
    });
}

#[test]
fn a_read_of_two_blocks_sees_a_write_of_both_whole_or_not_at_all() {
    seed_mutant(None);
    a_writer_of_both_blocks_beside_a_reader();
}

#[test]
#[should_panic(expected = "torn")]
fn a_second_look_without_its_fence_is_found() {
    seed_mutant(Some(Mutant::RetryWithoutFence));
    a_writer_of_both_blocks_beside_a_reader();
}

#[test]
fn of_two_writers_of_both_blocks_one_comes_last() {
    explore(2, || {
        let blocks: &'static _ = Box::leak(Box::new([block(), block()]));
        let writer = thread::spawn(|| write(blocks, 1));
        write(blocks, 2);
        writer.join().expect("the writer ends");
        let [one, other] = read(blocks).expect("no writer is left");
        assert_eq!(one, other);
    });
}

#[test]
fn a_frozen_block_is_as_it_was_for_whoever_shares_it() {
    explore(3, || {
        let block: &'static _ = Box::leak(Box::new(block()));
        let writer = thread::spawn(|| {
            let mut locked = block.lock();
            if !locked.is_frozen() {
                locked.store(0, &[1; LEN]);
            }
        });
        block.lock().freeze();
        let (mut now, mut later) = ([0; LEN], [0; LEN]);
        block.load(0, &mut now);
        writer.join().expect("the writer ends");
        block.load(0, &mut later);
        assert_eq!(now, later);
    });
}

/// A thread writes to a block and gives it up; another, when it finds itself alone with it, knows what was written.
fn an_owner_gives_a_block_up_that_it_wrote_to() {
    explore(3, || {
        let (mut one, other) = (block(), block());
        let shared = one.clone();
        let writer = thread::spawn(move || {
            shared.lock().store(0, &[1; LEN]);
            drop(shared);
        });
        if one.is_sole() {
            let mut bytes = [0; LEN];
            one.load(0, &mut bytes);
            assert_eq!(bytes, [1; LEN], "not seen");
        }
        writer.join().expect("the writer ends");
        assert!(one.is_sole() && other.is_sole());
        // The last one frees it.
        one = other;
        drop(one);
    });
}

#[test]
fn the_only_owner_of_a_block_sees_what_the_others_did() {
    seed_mutant(None);
    an_owner_gives_a_block_up_that_it_wrote_to();
}

#[test]
#[should_panic(expected = "not seen")]
fn an_only_owner_that_does_not_wait_for_the_others_is_found() {
    seed_mutant(Some(Mutant::SoleWithoutFence));
    an_owner_gives_a_block_up_that_it_wrote_to();
}
