//! Requests: which requests of kernels that others serve meanwhile were executed, kept with what they changed.
//!
//! # Theory
//! A kernel whose server has died sends what was not answered to the next one. Whether the last one executed it, and whether that is
//! durable, only the store can tell: so the first record that a request changes is accompanied by one with the request's number,
//! in the same transaction. It names the inode to which the request gave a name: another may have that name when it is asked. A mount numbers the requests that it has under way by *slots*, and a slot's record is written over by the
//! next request in it: so there are no more records than a mount ever had requests under way.
//!
//! *Standing.* One slot says that the mount has not been given up since its file locks were granted: as long as it does, no lock of it can
//! have been granted to another ([`Superblock::stand`]).
//!
//! *Stamped.* Another slot has the time of the last push, for the one mount that [asked](Superblock::stamp_pushes) for that: see `stamp.rs`.
//!
//! # Cost
//! Without guests: a load of a word that does not change, for each change of a durable file system.

use super::keys::{Key, REQUEST_LEN, name_of};
use super::stamp::PushClock;
use super::{Durable, keys, stamp};
use crate::lock_class::DURABLE_REQUESTS;
use crate::{Errno, Superblock};
use sluice_store::Transaction;
use sluice_sync::atomic::{AtomicUsize, Ordering};
use sluice_sync::{Mutex, thread};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

/// How many records are removed in one transaction.
const TOGETHER: usize = 64;
/// The slot that says that a mount stands.
const STANDING: u16 = u16::MAX;

/// The name that a mount has for one of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// The mount: a number that no other has.
    pub mount: u64,
    /// Which of the mount's requests that are under way, and not the greatest number that there is. The slot is free
    /// again once the request has been answered.
    pub slot: u16,
    /// The request: a number that the mount uses once.
    pub number: u64,
}

/// The requests of one file system.
pub(super) struct Requests {
    state: Mutex<RequestTable>,
    /// How many are being served: a thread that finds none has no need to look. *atomic (stands alone: a thread sees its own)*
    served: AtomicUsize,
}

#[derive(Default)]
struct RequestTable {
    /// The requests that threads serve.
    by_thread: HashMap<thread::ThreadId, RequestId>,
    /// Requests that have changed something, by mount and slot.
    executed: BTreeMap<(u64, u16), Executed>,
}

/// A request that has changed something.
#[derive(Clone, Copy, Default)]
pub(super) struct Executed {
    number: u64,
    /// The inode that has got a name by it; 0 if there is none, or an earlier program wrote the record.
    named: u64,
}

impl Executed {
    fn encode(self) -> [u8; 16] {
        let mut value = [0; 16];
        value[..8].copy_from_slice(&self.number.to_le_bytes());
        value[8..].copy_from_slice(&self.named.to_le_bytes());
        value
    }

    fn decode(value: &[u8]) -> Option<Executed> {
        let (number, rest) = value.split_first_chunk()?;
        let named = if rest.is_empty() { 0 } else { u64::from_le_bytes(rest.try_into().ok()?) };
        Some(Executed { number: u64::from_le_bytes(*number), named })
    }
}

/// A request that the calling thread serves, until this is dropped.
pub struct RequestServed<'s>(Option<&'s Requests>);

impl fmt::Debug for RequestServed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestServed").field("is_noted", &self.0.is_some()).finish_non_exhaustive()
    }
}

impl Default for Requests {
    fn default() -> Self {
        Requests {
            state: Mutex::with_class(&DURABLE_REQUESTS, RequestTable::default()),
            served: AtomicUsize::new(0),
        }
    }
}

impl Requests {
    /// Puts down the request that the calling thread serves, which changes something, if it was not. `named` gets a name by
    /// this change; 0 is no inode.
    #[inline]
    pub(super) fn put_down(&self, transaction: &RefCell<Transaction<'_>>, durable: &Durable, named: u64) {
        // Relaxed: see the field.
        if self.served.load(Ordering::Relaxed) > 0 {
            self.put_down_served(&mut transaction.borrow_mut(), durable.now(), named);
        }
    }

    #[cold]
    fn put_down_served(&self, transaction: &mut Transaction<'_>, version: u64, named: u64) {
        let (key, executed) = {
            let mut state = self.state.lock();
            let Some(&RequestId { mount, slot, number }) = state.by_thread.get(&thread::current().id())
            else {
                return;
            };
            if state.executed.get(&(mount, slot)).is_some_and(|known| known.number == number) {
                return;
            }
            let executed = Executed { number, named };
            state.executed.insert((mount, slot), executed);
            (Key::request(mount, slot), executed)
        };
        transaction.put(&key, version, &executed.encode());
    }
}

impl Drop for RequestServed<'_> {
    fn drop(&mut self) {
        if let Some(requests) = self.0 {
            let mut state = requests.state.lock();
            state.by_thread.remove(&thread::current().id());
            // Relaxed: see the field.
            requests.served.store(state.by_thread.len(), Ordering::Relaxed);
        }
    }
}

impl Durable {
    /// Finds what was executed before the store was opened.
    pub(super) fn find_requests(&self) -> Result<(), Errno> {
        let mut executed = BTreeMap::new();
        self.scan(Key::requests(), &mut |key, value| {
            executed.extend(executed_of(key, value));
            true
        })?;
        self.requests.state.lock().executed = executed;
        Ok(())
    }
}

/// Decodes the record of a request: mount and slot, and the executed request.
pub(super) fn executed_of(key: &[u8], value: &[u8]) -> Option<((u64, u16), Executed)> {
    let slot = name_of(key).try_into().ok().map(u16::from_be_bytes)?;
    Some(((keys::ino_of(key)?, slot), Executed::decode(value)?))
}

impl Superblock {
    /// The calling thread serves this request, until what is returned is dropped: if it changes something, the store says so in
    /// the same push. In a file system without a store it is nothing.
    pub fn serve_request(&self, id: RequestId) -> RequestServed<'_> {
        let Some(durable) = self.root().shared.durable() else { return RequestServed(None) };
        let requests = &durable.requests;
        let mut state = requests.state.lock();
        state.by_thread.insert(thread::current().id(), id);
        // Relaxed: see the field.
        requests.served.store(state.by_thread.len(), Ordering::Relaxed);
        RequestServed(Some(requests))
    }

    /// The requests of `mount` that were executed and have changed something, by this process, or by one whose change
    /// was durable: their numbers, each with the number of the inode that has got a name by it, or 0. Requests whose
    /// slots were used again are left out.
    pub fn executed_requests(&self, mount: u64) -> BTreeMap<u64, u64> {
        let Some(durable) = self.root().shared.durable() else { return BTreeMap::new() };
        let state = durable.requests.state.lock();
        let all = state.executed.range((mount, 0)..(mount, stamp::SLOT));
        all.map(|(_, executed)| (executed.number, executed.named)).collect()
    }

    /// Adds the time of `clock` to each later push, in a record of `mount`, until the mount's requests are
    /// [forgotten](Self::forget_requests). Has no effect in a file system without a store.
    pub fn stamp_pushes(&self, mount: u64, clock: PushClock) {
        if let Some(durable) = self.root().shared.durable() {
            durable.requests.state.lock().executed.entry((mount, stamp::SLOT)).or_default();
            durable.pending.stamp.set(mount, clock);
        }
    }

    /// The time of the last push of this process, durable or not; 0 before the first. A change that ended before, and none that
    /// began later, is in that push or an earlier one.
    #[inline]
    pub fn push_stamp(&self) -> u64 {
        self.root().shared.durable().map_or(0, |durable| durable.pending.stamp.last())
    }

    /// The time of the last push that was durable when the store was opened, as an earlier process stamped it for `mount`; 0 if none was.
    pub fn durable_stamp(&self, mount: u64) -> u64 {
        let Some(durable) = self.root().shared.durable() else { return 0 };
        let state = durable.requests.state.lock();
        state.executed.get(&(mount, stamp::SLOT)).map_or(0, |executed| executed.number)
    }

    /// The mounts for which an earlier process stamped pushes.
    pub fn stamped_mounts(&self) -> BTreeSet<u64> {
        let Some(durable) = self.root().shared.durable() else { return BTreeSet::new() };
        let state = durable.requests.state.lock();
        state.executed.keys().filter(|(_, slot)| *slot == stamp::SLOT).map(|(mount, _)| *mount).collect()
    }

    /// The mounts that stand: those that [stood](Self::stand) and [fell](Self::fall) not since, by this process or one before.
    pub fn standing_mounts(&self) -> BTreeSet<u64> {
        let Some(durable) = self.root().shared.durable() else { return BTreeSet::new() };
        let state = durable.requests.state.lock();
        state.executed.keys().filter(|(_, slot)| *slot == STANDING).map(|(mount, _)| *mount).collect()
    }

    /// A mount stands from here on: a later process that opens the store knows that the mount has its locks still. Durable when it
    /// returns. In a file system without a store it is nothing.
    ///
    /// # Errors
    /// As any change.
    pub fn stand(&self, mount: u64) -> Result<(), Errno> {
        let Some(durable) = self.root().shared.durable() else { return Ok(()) };
        let stands = Executed::default();
        if durable.requests.state.lock().executed.insert((mount, STANDING), stands).is_some() {
            return Ok(());
        }
        let mut transaction = durable.begin(2 * REQUEST_LEN as u64)?;
        transaction.put(&Key::request(mount, STANDING), durable.now(), &stands.encode());
        drop(transaction);
        durable.sync()
    }

    /// Records that these mounts stand no more: other mounts may have had their locks. It is durable with the next
    /// sync.
    ///
    /// # Errors
    /// As any change.
    pub fn fall(&self, mounts: &BTreeSet<u64>) -> Result<(), Errno> {
        self.forget(|mount, slot| slot == STANDING && mounts.contains(&mount))
    }

    /// The mounts that have such requests, or stand.
    pub fn requesting_mounts(&self) -> BTreeSet<u64> {
        let Some(durable) = self.root().shared.durable() else { return BTreeSet::new() };
        durable.requests.state.lock().executed.keys().map(|(mount, _)| *mount).collect()
    }

    /// Forgets the requests of these mounts, which send none again, and do not stand any more.
    ///
    /// # Errors
    /// As any change.
    pub fn forget_requests(&self, mounts: &BTreeSet<u64>) -> Result<(), Errno> {
        self.forget(|mount, _| mounts.contains(&mount))
    }

    fn forget(&self, is_gone: impl Fn(u64, u16) -> bool) -> Result<(), Errno> {
        let Some(durable) = self.root().shared.durable() else { return Ok(()) };
        durable.pending.stamp.end(|mount| is_gone(mount, stamp::SLOT));
        let gone: Vec<_> = {
            let mut state = durable.requests.state.lock();
            let gone =
                state.executed.keys().filter(|(mount, slot)| is_gone(*mount, *slot)).copied().collect();
            state.executed.retain(|(mount, slot), _| !is_gone(*mount, *slot));
            gone
        };
        for some in gone.chunks(TOGETHER) {
            let mut transaction = durable.begin((some.len() * 2 * REQUEST_LEN) as u64)?;
            for &(mount, slot) in some {
                transaction.remove(&Key::request(mount, slot), durable.now());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cred, Fs, Options};
    use sluice_store::disk::{Disk, HostDisk};

    #[test]
    fn a_request_that_changed_something_is_known_when_its_change_is_and_no_other() {
        let dir = std::env::temp_dir().join(format!("sluice-requests-{}", std::process::id()));
        let fs = Fs::create_store(&dir).expect("made");
        let superblock = fs.superblock().clone();
        let serve = |slot, number| superblock.serve_request(RequestId { mount: 7, slot, number });
        {
            let _served = serve(1, 10);
            fs.create_dir("/d").expect("made");
        }
        {
            let _served = serve(2, 11);
            assert!(fs.create_dir("/d").is_err(), "it is there");
        }
        {
            let _served = serve(1, 12);
            fs.write("/d/f", b"contents").expect("written");
        }
        let file =
            superblock.root().lookup(&Cred::root(), b"d").and_then(|dir| dir.lookup(&Cred::root(), b"f"));
        let expected = BTreeMap::from([(12, file.expect("made").ino())]);
        fs.create_dir("/e").expect("made by nobody's request");
        drop(superblock.serve_request(RequestId { mount: 8, slot: 0, number: 1 }));
        let known = |superblock: &Superblock| superblock.executed_requests(7);
        assert_eq!(
            known(&superblock),
            expected,
            "of each slot the last that changed something, with what it made"
        );
        superblock.close().expect("durable");
        drop((superblock, fs));
        let again = Superblock::open(&dir, Options::default()).expect("opened");
        assert_eq!(known(&again), expected);
        assert!(again.check().is_clean(), "{}", again.check());
        assert_eq!(again.requesting_mounts(), [7].into());
        again.stand(7).expect("durable");
        again.stand(9).expect("durable");
        again.fall(&[9].into()).expect("a change");
        again.close().expect("durable");
        drop(again);
        let again = Superblock::open(&dir, Options::default()).expect("opened");
        assert_eq!((again.standing_mounts(), known(&again)), ([7].into(), expected));
        again.forget_requests(&[7].into()).expect("forgotten");
        again.close().expect("durable");
        drop(again);
        let again = Superblock::open(&dir, Options::default()).expect("opened");
        assert!(known(&again).is_empty() && again.requesting_mounts().is_empty());
        drop(again);
        let disk = HostDisk::lock_read_only(&dir).expect("free");
        let disk = sluice_sync::Arc::from(Box::new(disk) as Box<dyn Disk>);
        let report = Superblock::check_store(disk, &mut |_| ()).expect("it can be read");
        assert!(report.findings.is_empty(), "{report:?}");
        std::fs::remove_dir_all(dir).expect("removed");
    }

    #[test]
    fn a_record_says_what_was_named_and_one_of_an_earlier_program_and_a_damaged_one_are_known_as_such() {
        let executed = Executed { number: 7, named: 9 };
        let read = |value: &[u8]| Executed::decode(value).map(|executed| (executed.number, executed.named));
        assert_eq!(read(&executed.encode()), Some((7, 9)));
        assert_eq!(read(&7_u64.to_le_bytes()), Some((7, 0)));
        for len in (0..20).filter(|len| ![8, 16].contains(len)) {
            assert_eq!(read(&vec![1; len]), None);
        }
    }
}
