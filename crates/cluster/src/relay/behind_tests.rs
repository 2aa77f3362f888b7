//! Tests of what is behind: a relay and a guest, with a kernel that is played and a way between them that can be closed.

use super::{Device, Relay, Server, Uplink};
use crate::guest::{Guest, GuestChannel, Holdings, Host, Notice, Ticket, cover_recall};
use crate::relay::tests::message;
use sluice_fuse::internal::abi;
use sluice_fuse::internal::abi::{
    CreateIn, EntryOut, Fattr, InitIn, MkdirIn, OutHeader, SetattrIn, WriteIn, WriteOut,
};
use sluice_fuse::{MountOptions, opcode};
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Condvar, Mutex, Weak};
use sluice_vfs::{Options, Superblock};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const ENOSPC: i32 = 28;
const EIO: i32 = 5;
const ENOSYS: i32 = 38;
/// After this long something is taken to hang. Nothing is measured by it.
const HANG: Duration = Duration::from_secs(60);

/// A kernel: what it asks, and what it was told.
#[derive(Default)]
struct PlayedKernel {
    asked: Mutex<VecDeque<Vec<u8>>>,
    told: Mutex<Vec<Vec<u8>>>,
    changed: Condvar,
    is_gone: AtomicBool,
}

impl Device for PlayedKernel {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut asked = self.asked.lock();
        loop {
            if self.is_gone.load(Ordering::SeqCst) {
                return Ok(None);
            }
            if let Some(message) = asked.pop_front() {
                buffer[..message.len()].copy_from_slice(&message);
                return Ok(Some(message.len()));
            }
            asked = self.changed.wait_timeout(asked, Duration::from_millis(20)).0;
        }
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        self.told.lock().push(message.to_vec());
        self.changed.notify_all();
        Ok(())
    }

    fn is_connected(&self) -> bool {
        false
    }
}

impl PlayedKernel {
    fn ask(&self, unique: u64, code: u32, nodeid: u64, body: &[&[u8]]) {
        let mut message = message(code, nodeid, body);
        message[8..16].copy_from_slice(&unique.to_ne_bytes());
        self.asked.lock().push_back(message);
        self.changed.notify_all();
    }

    fn told(&self, unique: u64) -> Option<(i32, Vec<u8>)> {
        let told = self.told.lock();
        let answers = told.iter().filter_map(|message| OutHeader::read_from_prefix(message).ok());
        let (out, body) = answers.into_iter().find(|(out, _)| out.unique == unique)?;
        Some((-out.error, body.to_vec()))
    }

    fn answer(&self, unique: u64) -> (i32, Vec<u8>) {
        eventually("an answer", || self.told(unique).is_some());
        self.told(unique).expect("it is there")
    }

    /// Notices about an inode's pages.
    fn invalidated(&self) -> usize {
        let told = self.told.lock();
        let notices = told.iter().filter_map(|message| OutHeader::read_from_prefix(message).ok());
        notices.filter(|(out, _)| out.unique == 0 && out.error == abi::flags::NOTIFY_INVAL_INODE).count()
    }
}

/// From the relay to its guest, which a thread serves. Closed, it keeps what is sent.
struct WayThere {
    guest: Arc<Guest>,
    queue: Mutex<VecDeque<(Ticket, Vec<u8>)>>,
    changed: Condvar,
    is_closed: AtomicBool,
    is_over: AtomicBool,
}

impl Uplink for WayThere {
    fn request(&self, message: &[u8]) {
        self.queue.lock().push_back((self.guest.take(message), message.to_vec()));
        self.changed.notify_all();
    }
}

impl WayThere {
    fn new(guest: Arc<Guest>) -> Arc<WayThere> {
        let (is_closed, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let way = WayThere { guest, queue: Mutex::default(), changed: Condvar::new(), is_closed, is_over };
        let way = Arc::new(way);
        let serves = way.clone();
        sluice_sync::thread::spawn(move || serves.serve());
        way
    }

    fn serve(&self) {
        let mut queue = self.queue.lock();
        while !self.is_over.load(Ordering::SeqCst) {
            let next = if self.is_closed.load(Ordering::SeqCst) { None } else { queue.pop_front() };
            let Some((ticket, mut message)) = next else {
                queue = self.changed.wait(queue);
                continue;
            };
            drop(queue);
            self.guest.serve(ticket, &mut message);
            queue = self.queue.lock();
        }
    }

    fn set(&self, what: &AtomicBool, to: bool) {
        let _queue = self.queue.lock();
        what.store(to, Ordering::SeqCst);
        self.changed.notify_all();
    }
}

/// Waits until `condition` holds.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "never happened: {what}");
        sluice_sync::thread::sleep(Duration::from_millis(1));
    }
}

/// And back. Mute, it loses answers.
struct WayBack {
    relay: Weak<Relay>,
    attachment: u64,
    is_mute: AtomicBool,
}

impl GuestChannel for WayBack {
    fn answer(&self, message: &[u8]) -> io::Result<()> {
        if let Some(relay) = self.relay.upgrade().filter(|_| !self.is_mute.load(Ordering::SeqCst)) {
            relay.answer(self.attachment, message);
        }
        Ok(())
    }

    fn announce(&self, notice: Notice) {
        drop(notice);
    }
}

struct Played {
    superblock: Arc<Superblock>,
    host: Host,
    kernel: Arc<PlayedKernel>,
    relay: Arc<Relay>,
    way: Arc<WayThere>,
    back: Arc<WayBack>,
    /// A covered directory, its file, and the handle.
    dir: u64,
    file: u64,
    fh: u64,
}

impl Drop for Played {
    fn drop(&mut self) {
        self.kernel.is_gone.store(true, Ordering::SeqCst);
        self.way.set(&self.way.is_over, true);
    }
}

impl Played {
    fn admit(host: &Host, relay: &Arc<Relay>) -> (Arc<WayThere>, Arc<WayBack>) {
        let (relay, attachment) = (Arc::downgrade(relay), relay.next_attachment());
        let back = Arc::new(WayBack { relay, attachment, is_mute: AtomicBool::new(false) });
        let guest = Arc::new(host.admit(back.clone(), true, 9).expect("admitted"));
        (WayThere::new(guest), back)
    }

    /// With a file that was just made in a directory that was just made. So many bytes are free.
    fn new(size_limit: Option<u64>) -> Played {
        let mut options = Options::default();
        options.size_limit = size_limit;
        Played::over(Superblock::new(options))
    }

    fn over(superblock: Arc<Superblock>) -> Played {
        let host = Host::new(superblock.clone());
        let kernel = Arc::new(PlayedKernel::default());
        let options = MountOptions::parse("locks=sluice,transport=classic,threads=2").expect("valid");
        let relay = Arc::new(Relay::over_kernel(kernel.clone(), &options).expect("threads start"));
        let (way, back) = Played::admit(&host, &relay);
        relay.attach(back.attachment, Server::Remote(way.clone()), &Default::default(), false);
        let init = InitIn { major: 7, minor: 45, flags: u32::MAX, flags2: u32::MAX, ..InitIn::new_zeroed() };
        kernel.ask(2, opcode::INIT, 0, &[init.as_bytes()]);
        assert_eq!(kernel.answer(2).0, 0);
        kernel.ask(4, opcode::MKDIR, 1, &[MkdirIn { mode: 0o755, umask: 0 }.as_bytes(), b"d\0"]);
        let entry = |(error, body): (i32, Vec<u8>)| {
            assert_eq!(error, 0);
            (EntryOut::read_from_prefix(&body).expect("an entry").0, body)
        };
        let dir = entry(kernel.answer(4)).0.nodeid;
        let create = CreateIn { flags: 2, mode: 0o100_644, umask: 0, open_flags: 0 };
        kernel.ask(6, opcode::CREATE, dir, &[create.as_bytes(), b"f\0"]);
        let (made, body) = entry(kernel.answer(6));
        let fh = u64::read_from_prefix(&body[size_of::<EntryOut>()..]).expect("a handle").0;
        Played { superblock, host, kernel, relay, way, back, dir, file: made.nodeid, fh }
    }

    fn write(&self, unique: u64, offset: u64, data: &[u8]) {
        let arg = WriteIn {
            fh: self.fh,
            offset,
            size: u32::try_from(data.len()).expect("short"),
            write_flags: 0,
            lock_owner: 0,
            flags: 2,
            padding: 0,
        };
        self.kernel.ask(unique, opcode::WRITE, self.file, &[arg.as_bytes(), data]);
    }

    fn truncate(&self, unique: u64, size: u64) {
        let valid = (Fattr::SIZE | Fattr::FH).bits();
        let arg = SetattrIn { valid, fh: self.fh, size, ..SetattrIn::new_zeroed() };
        self.kernel.ask(unique, opcode::SETATTR, self.file, &[arg.as_bytes()]);
    }

    fn fsync(&self, unique: u64) -> i32 {
        self.kernel.ask(unique, opcode::FSYNC, self.file, &[self.fh.as_bytes(), &[0; 8]]);
        match self.kernel.answer(unique).0 {
            // A file system in memory has no fsync.
            ENOSYS => 0,
            error => error,
        }
    }

    fn close_way(&self, is_closed: bool) {
        self.way.set(&self.way.is_closed, is_closed);
    }

    fn contents(&self) -> Vec<u8> {
        let inode = self.way.guest.inode(self.file).expect("the kernel knows it");
        let mut bytes = vec![0; 1 << 16];
        let len = inode.read_at(0, &mut bytes, false).expect("read");
        bytes.truncate(len);
        bytes
    }

    /// The guest goes, and comes back to the same host.
    fn reattach(&mut self, may_execute: bool) {
        let holdings = Holdings::decode(&self.relay.detach().encode()).expect("whole");
        let found: BTreeMap<_, _> =
            holdings.inodes().filter_map(|nodeid| Some((nodeid, self.way.guest.inode(nodeid)?))).collect();
        let (way, back) = Played::admit(&self.host, &self.relay);
        way.guest.restore(&holdings, &found);
        way.guest.catch_up(&holdings, may_execute);
        let old = std::mem::replace(&mut self.way, way);
        old.set(&old.is_over, true);
        self.back = back;
        old.guest.give_way(&self.way.guest);
    }

    /// From here on what was not answered is sent again.
    fn attach(&self) {
        let server = Server::Remote(self.way.clone());
        self.relay.attach(self.back.attachment, server, &Default::default(), false);
    }
}

#[test]
fn writes_and_a_truncation_are_answered_at_once_and_a_recall_waits_until_they_were_executed_in_order() {
    let world = Played::new(None);
    world.close_way(true);
    world.write(10, 0, b"aaaa");
    world.write(12, 2, b"bbbb");
    world.truncate(14, 3);
    world.write(16, 3, b"cc");
    for unique in [10, 12, 16] {
        let (error, body) = world.kernel.answer(unique);
        let size = WriteOut::read_from_prefix(&body).expect("a size").0.size;
        assert_eq!((error, size), (0, if unique == 16 { 2 } else { 4 }));
    }
    let (error, body) = world.kernel.answer(14);
    let told = abi::AttrOut::read_from_prefix(&body).expect("attributes").0;
    assert_eq!((error, told.attr.size, told.attr.mode, told.attr_valid), (0, 3, 0o100_644, 0));
    let counts = world.relay.counts();
    assert_eq!((counts.behind, counts.recalls), (4, 0));
    assert!(counts.dirty_bytes > 10, "what was written, and the messages around it: {}", counts.dirty_bytes);
    assert!(world.contents().is_empty(), "nothing was executed");
    // Another guest finds the directory: it is told only when all was executed.
    let is_told = Arc::new(AtomicBool::new(false));
    let tells = is_told.clone();
    let serial = u64::MAX;
    world.relay.announce(&cover_recall(world.dir, serial), move || tells.store(true, Ordering::SeqCst));
    assert!(!is_told.load(Ordering::SeqCst));
    world.close_way(false);
    eventually("the recall is answered", || is_told.load(Ordering::SeqCst));
    assert_eq!(world.contents(), b"aabcc");
    assert_eq!(world.fsync(20), 0);
    let counts = world.relay.counts();
    assert_eq!((counts.dirty_bytes, counts.recalls), (0, 1));
}

#[test]
fn what_the_kernel_asks_in_a_directory_that_another_guest_found_is_not_answered_before_it_is_executed() {
    let world = Played::new(None);
    let serial = world.relay.0.state.lock().knowledge.serial_of(world.dir).expect("it is covered");
    let is_told = Arc::new(AtomicBool::new(false));
    let tells = is_told.clone();
    world.relay.announce(&cover_recall(world.dir, serial), move || tells.store(true, Ordering::SeqCst));
    assert!(is_told.load(Ordering::SeqCst), "nothing is behind");
    world.close_way(true);
    world.write(10, 0, b"aaaa");
    eventually("it is sent", || !world.way.queue.lock().is_empty());
    assert_eq!(world.kernel.told(10), None);
    world.close_way(false);
    assert_eq!(world.kernel.answer(10).0, 0);
}

#[test]
fn a_failure_is_told_by_the_next_fsync_or_close_once_and_then_the_server_is_asked() {
    for closes in [false, true] {
        let world = Played::new(Some(4 * 4096));
        world.close_way(true);
        world.write(10, 0, &[1; 32 << 10]);
        assert_eq!(world.kernel.answer(10).0, 0);
        // Asked before it has failed.
        let unique = 12;
        world.kernel.ask(unique, opcode::FSYNC, world.file, &[world.fh.as_bytes(), &[0; 8]]);
        if closes {
            world.close_way(false);
            assert_eq!(world.kernel.answer(unique).0, EIO);
            assert_eq!(world.fsync(14), 0, "once");
        } else {
            world.close_way(false);
            assert_eq!(world.kernel.answer(unique).0, EIO);
        }
        eventually("the kernel drops pages that are not so", || world.kernel.invalidated() > 0);
        let before = world.relay.counts().awaited;
        world.write(20, 0, &[1; 32 << 10]);
        let (error, body) = world.kernel.answer(20);
        let written = WriteOut::read_from_prefix(&body).map_or(0, |(out, _)| out.size);
        assert!(error == ENOSPC || written < 32 << 10, "{error} {written}");
        assert_eq!(world.relay.counts().awaited - before, 1);
        // A truncation that waits for the owner and succeeds.
        world.truncate(22, 0);
        assert_eq!(world.kernel.answer(22).0, 0);
        assert_eq!(world.fsync(24), 0);
    }
}

#[test]
fn a_close_tells_of_a_failure_that_is_known() {
    let world = Played::new(Some(4 * 4096));
    world.write(10, 0, &[1; 32 << 10]);
    assert_eq!(world.kernel.answer(10).0, 0);
    eventually("it has failed", || world.kernel.invalidated() > 0);
    let flush = abi::FlushIn { fh: world.fh, unused: 0, padding: 0, lock_owner: 3 };
    for (unique, error) in [(12, EIO), (14, 0)] {
        world.kernel.ask(unique, opcode::FLUSH, world.file, &[flush.as_bytes()]);
        assert_eq!(world.kernel.answer(unique).0, error);
    }
    assert_eq!(world.fsync(16), 0, "it was told");
}

#[test]
fn a_server_executes_what_was_behind_before_it_serves_once_and_in_its_order() {
    for is_executed in [false, true] {
        // A store: it is what notes that a request was executed.
        let dir = std::env::temp_dir().join(format!("sluice-behind-{}-{is_executed}", std::process::id()));
        let superblock = Superblock::create(dir.clone(), Options::default()).expect("made");
        let mut world = Played::over(superblock.clone());
        if is_executed {
            world.back.is_mute.store(true, Ordering::SeqCst);
        } else {
            world.close_way(true);
        }
        world.write(10, 0, b"aaaa");
        world.write(12, 2, b"bbbb");
        world.truncate(14, 3);
        assert!([10, 12, 14].iter().all(|unique| world.kernel.answer(*unique).0 == 0));
        if is_executed {
            eventually("all was executed", || world.contents() == b"aab");
            // The relay must not overwrite a later write.
            let inode = world.way.guest.inode(world.file).expect("the kernel knows it");
            inode.write_at(&sluice_vfs::Cred::root(), 0, b"zzz").expect("written");
        }
        world.reattach(true);
        let expected: &[u8] = if is_executed { b"zzz" } else { b"aab" };
        assert_eq!(world.contents(), expected, "before it serves");
        world.attach();
        assert_eq!(world.fsync(20), 0);
        assert_eq!(world.contents(), expected);
        assert!(world.relay.holdings().behind.is_empty());
        drop(world);
        superblock.close().expect("durable");
        std::fs::remove_dir_all(dir).expect("removed");
    }
}

#[test]
fn what_is_behind_fails_where_the_server_or_the_node_itself_has_given_it_up() {
    for by_node in [false, true] {
        let mut world = Played::new(None);
        world.close_way(true);
        world.write(10, 0, b"aaaa");
        assert_eq!(world.kernel.answer(10).0, 0);
        if by_node {
            world.relay.detach();
            world.relay.give_up_behind();
        }
        world.reattach(by_node);
        world.attach();
        assert_eq!(world.fsync(20), EIO);
        assert_eq!(world.fsync(22), 0);
        assert!(world.contents().is_empty() && world.superblock.check().is_clean());
    }
}
