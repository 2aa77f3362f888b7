//! A relay whose server sends what no owner sends: no panic, and the kernel's requests are handed on.
//!
//! `SLUICE_MESSAGES` sends more than usual, and `SLUICE_SEED` others.

use super::tests::message;
use super::{Device, Relay, Server, Uplink};
use crate::guest::{cover_recall, give_back_message};
use sluice_fuse::{MountOptions, opcode};
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::random::Random;
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// After this long something is taken to hang. Nothing is measured by it.
const HANG: Duration = Duration::from_secs(60);

/// A kernel that takes everything in, and the way to a server.
#[derive(Default)]
struct Played {
    asked: Mutex<VecDeque<Vec<u8>>>,
    handed_on: Mutex<VecDeque<Vec<u8>>>,
    changed: Condvar,
    is_gone: AtomicBool,
}

impl Device for Played {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut asked = self.asked.lock();
        while !self.is_gone.load(Ordering::SeqCst) {
            if let Some(message) = asked.pop_front() {
                buffer[..message.len()].copy_from_slice(&message);
                return Ok(Some(message.len()));
            }
            asked = self.changed.wait_timeout(asked, Duration::from_millis(20)).0;
        }
        Ok(None)
    }

    fn send(&self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn is_connected(&self) -> bool {
        false
    }
}

impl Uplink for Played {
    fn request(&self, message: &[u8]) {
        self.handed_on.lock().push_back(message.to_vec());
        self.changed.notify_all();
    }
}

impl Played {
    /// The kernel asks, and whether the server hears of that: some requests are answered by the relay.
    fn ask(&self, message: Vec<u8>) {
        self.asked.lock().push_back(message);
        self.changed.notify_all();
    }

    fn await_request(&self, of: impl Fn(&[u8]) -> bool) {
        let (mut handed_on, end) = (self.handed_on.lock(), Instant::now() + HANG);
        while !handed_on.iter().any(|message| of(message)) {
            assert!(Instant::now() < end, "no request is handed on");
            handed_on = self.changed.wait_timeout(handed_on, HANG).0;
        }
    }
}

fn variable(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Numbers of which many mean something, and bytes, cut off somewhere.
fn noise(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.below(40) {
        let number = match random.below(5) {
            0 => random.bits(),
            1 => random.pick(&[u64::MAX, 1 << 63, i64::MAX as u64]),
            2 => (random.below(16) << 32) | random.below(300),
            _ => random.below(8),
        };
        bytes.extend(number.to_le_bytes());
    }
    bytes.truncate(random.below(bytes.len() + 1));
    bytes
}

/// A request of an honest kernel about few nodes, names and handles.
fn request(random: &mut Random, unique: u64) -> Vec<u8> {
    const CODES: [u32; 20] = [
        opcode::LOOKUP,
        opcode::FORGET,
        opcode::GETATTR,
        opcode::SETATTR,
        opcode::MKDIR,
        opcode::UNLINK,
        opcode::RENAME2,
        opcode::LINK,
        opcode::OPEN,
        opcode::READ,
        opcode::WRITE,
        opcode::RELEASE,
        opcode::FSYNC,
        opcode::GETXATTR,
        opcode::FLUSH,
        opcode::READDIRPLUS,
        opcode::SETLK,
        opcode::GETLK,
        opcode::CREATE,
        opcode::OPENDIR,
    ];
    let mut body = Vec::new();
    (0..random.below(12)).for_each(|_| body.extend(random.below(4_u64).to_ne_bytes()));
    body.extend_from_slice(random.pick(&[&b"a\0"[..], b"b\0", b"security.capability\0", b"a\0b\0", b""]));
    let mut bytes = message(random.pick(&CODES), random.below(4_u64), &[&body]);
    bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
    bytes
}

#[test]
fn a_server_that_sends_what_no_owner_sends_panics_no_relay_and_stops_none() {
    let seed = variable("SLUICE_SEED", 1);
    let mut random = Random::new(seed);
    let played = Arc::new(Played::default());
    let options = MountOptions::parse("locks=sluice,transport=classic").expect("valid");
    let relay = Relay::over_kernel(played.clone(), &options).expect("threads");
    let threads = relay.0.state.lock().threads;
    let attachment = relay.next_attachment();
    relay.attach(attachment, Server::Remote(played.clone()), &Default::default(), false);
    for round in 0..variable("SLUICE_MESSAGES", 10_000) {
        let what = || format!("seed {seed}, round {round}");
        // The server's answer may belong to an earlier request.
        played.ask(request(&mut random, 2 * round + 2));
        let asked = played.handed_on.lock().pop_front();
        let unique = match asked.and_then(|asked| asked.get(8..16)?.try_into().ok()) {
            Some(unique) if random.below(8) != 0 => u64::from_ne_bytes(unique),
            _ => random.below(2 * round + 3),
        };
        let error: i32 = if random.below(4) == 0 { -random.below::<i32>(200) } else { 0 };
        let mut answer = [&[0; 4], &error.to_le_bytes()[..], &unique.to_le_bytes()].concat();
        answer.extend(noise(&mut random));
        let len = if random.below(8) == 0 { random.bits() as u32 } else { answer.len() as u32 };
        answer[..4].copy_from_slice(&len.to_le_bytes());
        answer.truncate(if random.below(8) == 0 { random.below(answer.len()) } else { answer.len() });
        // Notices have codes in place of the error, and several may stand behind one another.
        let mut notices = Vec::new();
        for _ in 0..random.below(3) {
            let any = random.bits() as i32;
            let code = random.pick(&[1, 2, 3, 4, 5, 6, 7, 8, -1, i32::MAX, any]);
            let at = notices.len();
            notices.extend([&[0; 4], &code.to_le_bytes()[..], &[0; 8]].concat());
            notices.extend(noise(&mut random));
            let len = (notices.len() - at) as u32;
            notices[at..at + 4].copy_from_slice(&len.to_le_bytes());
        }
        match random.below(16) {
            0 => notices = cover_recall(random.below(4), random.below(4)),
            1 => notices = give_back_message(random.below(4), random.below(4), None, false),
            2 => notices.truncate(random.below(notices.len() + 1)),
            _ => {}
        }
        let taken = catch_unwind(AssertUnwindSafe(|| {
            relay.answer(attachment, &answer);
            relay.announce(&notices, || ());
        }));
        assert!(taken.is_ok(), "{}: {answer:?}, {notices:?}", what());
        if round % 1000 == 0 {
            // Another server, for which all is said that the kernel holds.
            let holdings = relay.detach();
            assert!(crate::Holdings::decode(&holdings.encode()).is_ok(), "{}", what());
            played.handed_on.lock().clear();
            relay.attach(attachment, Server::Remote(played.clone()), &Default::default(), round % 2000 == 0);
        }
    }
    const LAST: u64 = u64::MAX;
    let mut last = message(opcode::STATFS, 1, &[]);
    last[8..16].copy_from_slice(&LAST.to_ne_bytes());
    played.ask(last);
    played.await_request(|message| message[8..16] == LAST.to_ne_bytes());
    assert_eq!(relay.0.state.lock().threads, threads, "a thread has ended");
    played.is_gone.store(true, Ordering::SeqCst);
}
