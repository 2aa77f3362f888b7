//! Messages that no kernel sends: every opcode, in any order, of any length, with plausible and with absurd arguments.
//!
//! `SLUICE_MESSAGES` sends more than usual, and `SLUICE_SEED` others.

use super::{Looked, Recorder, connection_with};
use crate::abi::{ForgetOne, opcode};
use crate::connection::Connection;
use crate::reply::Reply;
use crate::request::tests::message;
use crate::{CheckMode, LockMode, MountOptions};
use sluice_sync::random::Random;
use sluice_vfs::Errno;
use std::collections::HashSet;
use zerocopy::IntoBytes;

/// The opcodes that are never answered.
const UNANSWERED: [u32; 3] = [opcode::FORGET, opcode::BATCH_FORGET, opcode::INTERRUPT];
/// The most bytes that an answer of these tests may have: more than the file system holds, less than absurd sizes ask for.
const ANSWER_MAX: usize = 33 << 20;

fn variable(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// A number as an argument may have it: mostly one that means something, often one at the end of a range.
fn number(random: &mut Random, nodes: &[u64]) -> u64 {
    match random.below(8) {
        0 => random.pick(nodes),
        1 => random.pick(&[
            1 << 62,
            i64::MAX as u64,
            u64::MAX,
            u64::MAX - 1,
            1 << 63,
            u32::MAX.into(),
            1 << 31,
        ]),
        2 => random.bits(),
        3 => u64::MAX >> random.below(64),
        4 => random.below(1 << 20),
        // Two halves of their own: an owner, a size and flags.
        5 => (random.below(16) << 32) | random.below(16),
        6 => (u64::from(u32::MAX) << 32) | random.below(4096),
        _ => random.below(12),
    }
}

/// Numbers, then names and data, cut off somewhere in one of four.
fn body(random: &mut Random, nodes: &[u64]) -> Vec<u8> {
    const STRINGS: [&[u8]; 12] = [
        b"a\0",
        b"b\0",
        b"f\0",
        b"l\0",
        b"new\0",
        b"other\0",
        b"user.x\0",
        b"system.posix_acl_access\0",
        b"..\0",
        b".\0",
        b"a/b\0",
        b"\0",
    ];
    let mut body = Vec::new();
    (0..random.below(12)).for_each(|_| body.extend_from_slice(&number(random, nodes).to_ne_bytes()));
    (0..random.below(4)).for_each(|_| body.extend_from_slice(random.pick(&STRINGS)));
    if random.below(8) == 0 {
        body.resize(body.len() + random.below(1 << 16), random.bits() as u8);
    }
    if random.below(16) == 0 {
        body.extend(std::iter::repeat_n(b'n', 300));
    }
    if random.below(4) == 0 {
        body.truncate(random.below(body.len() + 1));
    }
    body
}

fn run(options: MountOptions, seed: u64) {
    let Looked { recorder, connection, nodes } = connection_with(options);
    let (mut random, mut reply) = (Random::new(seed), Reply::new());
    let (mut parked, mut known) = (HashSet::new(), nodes.to_vec());
    for round in 0..variable("SLUICE_MESSAGES", 30_000) {
        let opcode = match random.below(opcode::ALL.len() + 1) {
            unknown if unknown == opcode::ALL.len() => random.bits() as u32,
            at => opcode::ALL[at].0,
        };
        // Now and then only, so that there are nodes to ask for.
        if matches!(opcode, opcode::FORGET | opcode::BATCH_FORGET) && random.below(16) != 0 {
            continue;
        }
        let nodeid = number(&mut random, &known);
        let mut bytes = message(opcode, nodeid, &[&body(&mut random, &known)]);
        let unique = 2 * round + 2;
        bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
        // Some are shorter or longer than they say, and some are no message at all.
        match random.below(32) {
            0 => bytes.truncate(random.below(bytes.len() + 1)),
            1 => bytes.resize(bytes.len() + 1 + random.below(64), 0),
            _ => {}
        }
        let what =
            || format!("seed {seed}, round {round}: {} of node {nodeid}: {bytes:?}", opcode::name(opcode));
        connection.serve(&bytes, &mut reply);
        assert!(!connection.has_panicked(), "{}", what());
        let sent = std::mem::take(&mut *recorder.0.lock());
        let mut answered = 0;
        for reply in &sent {
            assert_eq!(reply[..4], (reply.len() as u32).to_ne_bytes(), "{}", what());
            assert!(reply.len() < ANSWER_MAX, "{}", what());
            let to = u64::from_ne_bytes(reply[8..16].try_into().expect("eight bytes"));
            // Notifications answer nothing, and are called 0.
            if to == 0 {
                continue;
            }
            if to == unique {
                answered += 1;
            } else {
                assert!(parked.remove(&to), "{to} is answered, which does not wait: {}", what());
            }
        }
        let is_request = bytes.len() >= 40 && !UNANSWERED.contains(&opcode);
        if opcode == opcode::SETLKW && is_request && answered == 0 {
            parked.insert(unique);
        } else {
            assert_eq!(answered, usize::from(is_request), "{}", what());
        }
        assert_eq!(connection.parked.len(), parked.len(), "{}", what());
        if let [reply] = &sent[..]
            && matches!(
                opcode,
                opcode::LOOKUP | opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::CREATE
            )
            && reply.len() >= 24
            && known.len() < 64
        {
            known.push(u64::from_ne_bytes(reply[16..24].try_into().expect("eight bytes")));
        }
    }
    end(&connection, &recorder, &nodes);
}

/// The kernel gives everything back, and the connection ends: nothing may be left.
fn end(connection: &Connection, recorder: &Recorder, nodes: &[u64]) {
    let superblock = connection.superblock.clone();
    // Below zero, too.
    for nodeid in connection.nodes.ids().into_iter().chain(nodes.iter().copied()) {
        let forget = ForgetOne { nodeid, nlookup: u64::MAX };
        connection
            .serve(&message(opcode::FORGET, nodeid, &[&forget.nlookup.to_ne_bytes()]), &mut Reply::new());
        let count = [2_u32, 0];
        let body = [count.as_bytes(), forget.as_bytes(), forget.as_bytes()];
        connection.serve(&message(opcode::BATCH_FORGET, 0, &body), &mut Reply::new());
    }
    assert_eq!(connection.nodes.len(), 1);
    connection.serve(&message(opcode::DESTROY, 0, &[]), &mut Reply::new());
    connection.close();
    assert_eq!((connection.handles.len(), connection.parked.len()), (0, 0));
    let report = superblock.check_idle();
    assert!(report.is_clean(), "{report}");
    assert!(superblock.lock_domain().list().is_empty(), "a lock is left");
    recorder.0.lock().clear();
}

#[test]
fn each_message_is_answered_once_or_never_and_leaves_nothing() {
    let seed = variable("SLUICE_SEED", 0xf00d);
    for locks in [LockMode::Kernel, LockMode::Sluice] {
        run(MountOptions { locks, ..MountOptions::default() }, seed);
    }
    run(MountOptions { checks: CheckMode::Sluice, ..MountOptions::default() }, seed + 1);
}

#[test]
fn a_batch_that_claims_more_than_it_brings_forgets_nothing_and_is_not_answered() {
    let Looked { recorder, connection, nodes } = connection_with(MountOptions::default());
    recorder.0.lock().clear();
    let forget = ForgetOne { nodeid: nodes[Looked::FILE], nlookup: 1 };
    for count in [2, u32::MAX] {
        let body = [[count, 0].as_bytes().to_vec(), forget.as_bytes().to_vec()].concat();
        connection.serve(&message(opcode::BATCH_FORGET, 0, &[&body]), &mut Reply::new());
    }
    assert!(recorder.0.lock().is_empty());
    assert!(connection.node(nodes[Looked::FILE]).is_ok());
    end(&connection, &recorder, &nodes);
    assert_eq!(connection.node(nodes[Looked::FILE]).err(), Some(Errno::ESTALE));
}
