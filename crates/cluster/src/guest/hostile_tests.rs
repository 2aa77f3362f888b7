//! Guests whose nodes send what no relay sends: no panic, each request is answered once at most, and the others are served on.
//!
//! `SLUICE_MESSAGES` sends more than usual, and `SLUICE_SEED` others.

use super::{Guest, GuestChannel, Holdings, Host, LkIn, Lost, Notice, give_back_message};
use crate::relay::message;
use sluice_fuse::opcode;
use sluice_sync::random::Random;
use sluice_sync::{Arc, Mutex};
use sluice_vfs::{Options, Superblock};
use std::io;

/// Keeps the answers, and takes each notice for delivered.
#[derive(Default)]
struct Answers(Mutex<Vec<Vec<u8>>>);

impl GuestChannel for Answers {
    fn answer(&self, message: &[u8]) -> io::Result<()> {
        self.0.lock().push(message.to_vec());
        Ok(())
    }

    fn announce(&self, notice: Notice) {
        drop(notice);
    }
}

fn variable(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// A number that mostly means something, and often stands at the end of a range.
fn number(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => random.pick(&[u64::MAX, u64::MAX - 1, 1 << 63, i64::MAX as u64, u32::MAX.into()]),
        1 => random.bits(),
        2 => (random.below(16) << 32) | random.below(16),
        _ => random.below(8),
    }
}

/// The holdings that a node may report of its kernel, damaged in one of four.
fn holdings(random: &mut Random) -> Option<Holdings> {
    let mut lock = [0; size_of::<LkIn>()];
    let mut holdings = Holdings { init: request(random, 0), ..Holdings::default() };
    for _ in 0..random.below(6) {
        holdings.nodes.push((number(random), number(random), number(random)));
        holdings.handles.push((number(random), number(random)));
        lock.as_chunks_mut().0.iter_mut().for_each(|part: &mut [u8; 8]| *part = number(random).to_le_bytes());
        holdings.locks.push((number(random), lock));
        holdings.behind.push(request(random, 0));
    }
    let mut bytes = holdings.encode();
    if random.below(4) == 0 {
        let at = random.below(bytes.len());
        bytes[at] = random.bits() as u8;
    }
    Holdings::decode(&bytes).ok()
}

/// A message of any opcode, of which one in eight is too short.
fn request(random: &mut Random, unique: u64) -> Vec<u8> {
    const TEXTS: [&[u8]; 8] = [b"a\0", b"b\0", b"user.x\0", b"..\0", b"a/b\0", b"\0", b"a", &[b'n'; 300]];
    let mut body = Vec::new();
    (0..random.below(10)).for_each(|_| body.extend(number(random).to_ne_bytes()));
    (0..random.below(3)).for_each(|_| body.extend(random.pick(&TEXTS)));
    let code = if random.below(40) == 0 { random.bits() as u32 } else { random.below(55) };
    let mut bytes = message(code, number(random), &[&body]);
    if random.below(20) == 0 {
        bytes = give_back_message(number(random), number(random), None, random.below(2) == 0);
        bytes.extend(body);
    }
    bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
    if random.below(4) == 0 {
        // Slots and marks of requests that change something.
        bytes[38..40].copy_from_slice(&(random.bits() as u16).to_ne_bytes());
    }
    if random.below(8) == 0 {
        bytes.truncate(random.below(bytes.len()));
    }
    bytes
}

fn serve(guest: &Guest, mut message: Vec<u8>) {
    let ticket = guest.take(&message);
    guest.serve(ticket, &mut message);
}

#[test]
fn a_guest_that_sends_what_no_node_sends_panics_nothing_and_keeps_no_other_waiting() {
    let seed = variable("SLUICE_SEED", 1);
    let mut random = Random::new(seed);
    let superblock = Superblock::new(Options::default());
    let host = Host::new(superblock.clone());
    let answers = Arc::new(Answers::default());
    let honest = host.admit(answers.clone(), true, 1).expect("admitted");
    for mount in 2..variable("SLUICE_MESSAGES", 10_000) / 100 {
        let what = || format!("seed {seed}, mount {mount}");
        let told = Arc::new(Answers::default());
        let guest = host.admit(told.clone(), random.below(2) == 0, mount).expect("admitted");
        if let Some(holdings) = holdings(&mut random) {
            let found = host.adopt(&holdings);
            let mut lost: Lost = guest.restore(&holdings, &found);
            guest.catch_up(&holdings, random.below(2) == 0);
            if random.below(2) == 0 {
                host.give_up(&guest);
                host.void_locks(&guest, &holdings, &mut lost);
            }
        }
        for unique in 1..100 {
            let message = request(&mut random, 2 * unique);
            told.0.lock().clear();
            serve(&guest, message);
            let of_it = |answer: &&Vec<u8>| answer[8..16] == (2 * unique).to_ne_bytes();
            assert!(told.0.lock().iter().filter(of_it).count() < 2, "{}", what());
        }
        assert!(!guest.connection.has_panicked(), "{}", what());
        serve(&honest, message(opcode::GETATTR, 1, &[&[0; 16]]));
        assert_eq!(std::mem::take(&mut *answers.0.lock()).len(), 1, "{}", what());
        drop(guest);
    }
    drop(honest);
    let found = superblock.check_idle();
    assert!(found.is_clean(), "seed {seed}: {found}");
}
