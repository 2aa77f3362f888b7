//! Data: the segments of a store as objects, each of which is written once.
//!
//! # Theory
//! To the store above a segment is a file that is written from front to back. Here it is a row of *parts*, an object for each:
//! ```text
//!   data/SEGMENT/OFFSET-EPOCH-COUNT     OFFSET: where it begins; EPOCH: of the owner that made it; COUNT: its number there
//! ```
//! Writes gather in memory until they are enough for a part, or must be durable; then they are sent, a few parts at a
//! time. No object is ever written again: of two parts with the same bytes the newer one has them, by epoch and count.
//! So an owner that has lost the store and does not know it yet may write what it likes: its records do not count, and
//! nobody reads its parts.
//!
//! A listing finds the parts of a segment, when a wanted part is unknown, missing, or differs from the written bytes: a
//! store that is open for reading only may have an active owner.
//!
//! *Garbage.* A part is deleted when all its bytes were given back; what lies in a segment, or behind its end, when
//! that is given back as a whole, parts of a dead owner too. Only parts that are older than the call that gives back
//! are deleted, and none of a newer owner: so a segment may be written again at once, and an owner that has lost the
//! store deletes nothing that the next has written. It gives back only what durable records of its own named no more,
//! and what is not named is never named again. Parts that cannot be deleted, or were partly given back when the owner
//! died, stay until the segment is empty. A segment has one task for this, and a list of the bytes that it has not counted yet.
//!
//! # Lock order
//! `bucket.data`: the files in use. `bucket.data.file`: the parts of one. `bucket.data.pieces`: what was fetched. Leaves, held across no I/O.

mod part;
mod pieces;

use crate::cache::tag;
use crate::error::{failed, of_objects};
use crate::objects::Objects;
use crate::runtime::{Stop, apart, spawn};
use futures_util::StreamExt;
use futures_util::stream;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStoreExt, PutOptions, PutPayload};
use part::{PartId, SegmentPart, SegmentParts};
use pieces::{AHEAD, PIECE, Pieces};
use rustix::io::Errno;
use slatedb::bytes::Bytes;
use slatedb_common::retry::should_retry;
use sluice_store::disk::{Disk, DiskFile, HostDisk};
use sluice_store::{Cipher, StoreError};
use sluice_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, LockClass, Mutex, Weak};
use std::collections::BTreeMap;
use std::ops::Range;
use std::{fmt, io, mem};
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinHandle;

static DATA: LockClass = LockClass::new("bucket.data");
static FILE: LockClass = LockClass::new("bucket.data.file");

/// Where the parts are.
const PREFIX: &str = "data";
/// Bytes of which a part is made at once.
const PART: usize = 4 << 20;
/// Parts that are sent at a time. As many may wait.
const AT_ONCE: usize = 4;
/// A line on which a part takes longer has one at a time.
const LONG: Duration = Duration::from_secs(5);
/// Before what failed is tried again: at first, and at most.
const PAUSES: Range<Duration> = Duration::from_millis(20)..Duration::from_secs(1);

/// The segments of a store.
pub(crate) struct DataDisk {
    shared: Arc<DataShared>,
    /// The segment files in use, by number. *protected by its mutex*
    files: Mutex<BTreeMap<u32, Weak<SegmentFile>>>,
}

/// The state that all segments share.
struct DataShared {
    objects: Objects,
    /// The epoch of the owner that writes; None for segments that are only read.
    epoch: Option<u64>,
    segment_size: u64,
    /// The host's file system that the objects lie in, and bytes of it that data leave to records.
    host: Option<(Arc<HostDisk>, u64)>,
    /// *immutable*
    cipher: Option<Arc<Cipher>>,
    /// Bytes of parts that are being sent. *atomic (stands alone)*
    sending: AtomicU64,
    /// How often a request that failed is made again.
    retries: u32,
    stop: Arc<Stop>,
    /// The number of the next part. *atomic (stands alone)*
    next: AtomicU64,
    /// Parts that may be sent.
    slots: Arc<Semaphore>,
    /// A part took long, or none was sent yet: one is sent at a time. *atomic (stands alone)*
    is_slow: AtomicBool,
    /// Listings and deletions of what is given back.
    giving: Semaphore,
    pieces: Pieces,
}

/// A segment that is in use.
struct SegmentFile {
    number: u32,
    shared: Arc<DataShared>,
    state: Mutex<SegmentState>,
}

#[derive(Default)]
struct SegmentState {
    parts: SegmentParts,
    /// Bytes that wait to be sent.
    waiting_bytes: usize,
    /// Parts that are being sent, and some that were.
    tasks: Vec<JoinHandle<()>>,
    /// Why one could not be sent, and the error's number.
    failed: Option<(String, i32)>,
    /// Where the last read ended.
    read_to: u64,
    /// Bytes that are given back, each with the first part that came later, and are not counted yet.
    given: Vec<(Range<u64>, PartId)>,
    /// A task counts them.
    is_giving: bool,
}

impl DataDisk {
    /// The segments of `segment_size` bytes among `objects`, for the owner in `epoch`; without one they are only looked
    /// at. A failed request is repeated up to `retries` times, until `stop` is raised.
    pub(crate) fn new(
        objects: Objects,
        epoch: Option<u64>,
        segment_size: u64,
        retries: u32,
        stop: Arc<Stop>,
    ) -> DataDisk {
        let slots = Arc::new(Semaphore::new(AT_ONCE));
        let next = AtomicU64::new(0);
        let shared = Arc::new(DataShared {
            objects,
            epoch,
            segment_size,
            host: None,
            cipher: None,
            sending: AtomicU64::new(0),
            retries,
            stop,
            next,
            slots,
            is_slow: AtomicBool::new(true),
            giving: Semaphore::new(AT_ONCE),
            pieces: Pieces::default(),
        });
        DataDisk { shared, files: Mutex::with_class(&DATA, BTreeMap::new()) }
    }

    /// On the file system of `host`, of which data leave `reserve` bytes to records. For one that nobody uses yet.
    pub(crate) fn on_host(mut self, host: Arc<HostDisk>, reserve: u64) -> DataDisk {
        Arc::get_mut(&mut self.shared).expect("nobody uses it yet").host = Some((host, reserve));
        self
    }

    /// With the cipher under which the store encrypts its data. For one that nobody uses yet.
    pub(crate) fn encrypted(mut self, cipher: Option<Arc<Cipher>>) -> DataDisk {
        Arc::get_mut(&mut self.shared).expect("nobody uses it yet").cipher = cipher;
        self
    }

    /// The segment with this file name, which need not have any part.
    fn file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let number = name.strip_prefix("segment-").and_then(|number| u32::from_str_radix(number, 16).ok());
        let number = number.ok_or(io::ErrorKind::NotFound)?;
        let mut files = self.files.lock();
        let known = files.get(&number).and_then(Weak::upgrade);
        let file = known.unwrap_or_else(|| {
            files.retain(|_, file| file.strong_count() > 0);
            let state = Mutex::with_class(&FILE, SegmentState::default());
            let file = Arc::new(SegmentFile { number, shared: self.shared.clone(), state });
            files.insert(number, Arc::downgrade(&file));
            file
        });
        Ok(Arc::new(SegmentHandle(file)))
    }
}

impl Disk for DataDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.file(name)
    }

    fn create(&self, name: &str, _len: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.file(name)
    }

    /// Nobody asks a store in an object store for the names of its segments.
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.shared.free_bytes()
    }

    fn cipher(&self) -> Option<Arc<Cipher>> {
        self.shared.cipher.clone()
    }

    /// A segment has no name beside those of its parts.
    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }
}

impl DataShared {
    /// Bytes that data and records may still take on the host, without those on their way. An object store does not tell: a write
    /// says when there is no room.
    fn free_bytes(&self) -> io::Result<u64> {
        let (host, _) = self.host.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        // Relaxed: a count. Bytes that wait to be sent are fewer than a part has.
        let unsent = self.sending.load(Ordering::Relaxed) + PART as u64;
        Ok(host.free_bytes()?.saturating_sub(unsent))
    }

    /// Does what `request` asks for, again if it fails in passing.
    async fn tried<T, R: Future<Output = object_store::Result<T>>>(
        &self,
        what: &'static str,
        request: impl Fn() -> R,
    ) -> Result<T, StoreError> {
        let mut pause = PAUSES.start;
        for _ in 0..self.retries {
            match request().await {
                Err(error @ object_store::Error::Generic { .. })
                    if !self.stop.is_raised() && should_retry(&error) => {}
                done => return done.map_err(of_objects(what)),
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSES.end);
        }
        request().await.map_err(of_objects(what))
    }

    async fn delete(&self, path: &Path) {
        // A part that stays takes room, and does no other harm.
        let _ = self.tried("delete data", || self.objects.delete(path)).await;
    }
}

fn io_error(error: StoreError) -> io::Error {
    match error {
        StoreError::Io(_, error) => error,
        other => io::Error::other(other.to_string()),
    }
}

impl SegmentFile {
    fn place(&self) -> Path {
        Path::from(format!("{PREFIX}/{:08x}", self.number))
    }

    fn path(&self, part: &SegmentPart) -> Path {
        self.place().join(part.name())
    }

    /// The parts that are there.
    async fn listed(&self) -> Result<Vec<SegmentPart>, StoreError> {
        let place = self.place();
        let list = || self.shared.objects.list_with_delimiter(Some(&place));
        let found = self.shared.tried("list the data", list).await?.objects;
        Ok(found.iter().filter_map(|one| SegmentPart::parse(one.location.filename()?, one.size)).collect())
    }

    /// Sends what waits, a part for each row of bytes.
    fn send(self: &Arc<Self>) -> io::Result<()> {
        let Some(epoch) = self.shared.epoch else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut state = self.state.lock();
        state.tasks.retain(|task| !task.is_finished());
        state.waiting_bytes = 0;
        for (start, bytes) in mem::take(&mut state.parts.waiting) {
            // Relaxed: only its own order counts.
            let id = (epoch, self.shared.next.fetch_add(1, Ordering::Relaxed));
            let part = SegmentPart::new(id, start, Bytes::from(bytes));
            self.shared.sending.fetch_add(part.bytes.end - part.bytes.start, Ordering::Relaxed);
            state.parts.all.push(part.clone());
            match spawn(self.clone().sent(part)) {
                Ok(task) => state.tasks.push(task),
                Err(error) => state.failed = Some((error.to_string(), error.errno())),
            }
        }
        Ok(())
    }

    async fn sent(self: Arc<Self>, part: SegmentPart) {
        let path = self.path(&part);
        let len = part.bytes.end - part.bytes.start;
        let put = async {
            // Relaxed: a hint.
            let slots = if self.shared.is_slow.load(Ordering::Relaxed) { AT_ONCE as u32 } else { 1 };
            let _slots = self.shared.slots.acquire_many(slots).await;
            let began = Instant::now();
            let payload = PutPayload::from(part.content.unwrap_or_default());
            let options = || PutOptions { extensions: tag(false), ..PutOptions::default() };
            let put = || self.shared.objects.put_opts(&path, payload.clone(), options());
            let put = self.shared.tried("write data", put).await;
            self.shared.is_slow.store(put.is_err() || began.elapsed() > LONG, Ordering::Relaxed);
            put
        };
        let put = put.await;
        self.shared.sending.fetch_sub(len, Ordering::Relaxed);
        let is_dead = {
            let mut state = self.state.lock();
            state.failed = state.failed.take().or(put.err().map(|error| (error.to_string(), error.errno())));
            state.parts.sent(part.id)
        };
        if is_dead {
            self.shared.delete(&path).await;
        }
    }

    /// Counts what was given back until nothing waits, and deletes the parts of which nothing is left. One call at a time.
    async fn give_back(self: Arc<Self>) {
        loop {
            let (given, are_listed) = {
                let mut state = self.state.lock();
                state.is_giving = !state.given.is_empty();
                if !state.is_giving {
                    return;
                }
                (mem::take(&mut state.given), state.parts.are_listed)
            };
            // Unknown parts are not deleted.
            if !are_listed || given.iter().any(|(bytes, _)| bytes.end >= self.shared.segment_size) {
                let _turn = self.shared.giving.acquire().await;
                if let Ok(listed) = self.listed().await {
                    self.state.lock().parts.learn(listed);
                }
            }
            let dead: Vec<_> = {
                let parts = &mut self.state.lock().parts;
                given.iter().flat_map(|(bytes, now)| parts.give_back(bytes, *now)).collect()
            };
            let delete = async |part: SegmentPart| {
                let _turn = self.shared.giving.acquire().await;
                self.shared.delete(&self.path(&part)).await;
            };
            stream::iter(dead).for_each_concurrent(AT_ONCE, delete).await;
        }
    }

    fn check(&self) -> io::Result<()> {
        match &self.state.lock().failed {
            Some((_, errno)) if *errno == Errno::NOSPC.raw_os_error() => Err(Errno::NOSPC.into()),
            Some((why, _)) => Err(io::Error::other(why.clone())),
            None => Ok(()),
        }
    }

    /// The bytes `range` of an object.
    async fn get(&self, part: &SegmentPart, range: Range<u64>, anew: bool) -> Result<Bytes, StoreError> {
        let path = self.path(part);
        let options = || GetOptions {
            range: Some(range.clone().into()),
            extensions: tag(anew),
            ..GetOptions::default()
        };
        let get = || async { self.shared.objects.get_opts(&path, options()).await?.bytes().await };
        let found = self.shared.tried("read data", get).await?;
        match found.len() as u64 == range.end - range.start {
            true => Ok(found),
            false => Err(StoreError::Io("read data", io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// The piece of a part with this number, which may have been fetched, or be on its way.
    async fn piece(
        self: Arc<Self>,
        part: SegmentPart,
        number: u64,
        kept: Arc<OnceCell<Bytes>>,
    ) -> Result<Bytes, StoreError> {
        let len = part.bytes.end - part.bytes.start;
        let range = number * PIECE..((number + 1) * PIECE).min(len);
        kept.get_or_try_init(|| self.get(&part, range, false)).await.cloned()
    }

    /// The bytes `at` of the segment, which are in `part`, and are read in a row with those before: what comes next is fetched, too.
    fn get_in_a_row(
        self: &Arc<Self>,
        part: &SegmentPart,
        at: &Range<u64>,
        to: &mut [u8],
    ) -> Result<(), StoreError> {
        let piece_of = |part: &SegmentPart, at: u64| (at - part.bytes.start) / PIECE;
        let kept = |part: &SegmentPart, number| self.shared.pieces.piece((self.number, part.id, number));
        let (first, last) = (piece_of(part, at.start), piece_of(part, at.end - 1));
        let wanted: Vec<_> = (first..=last).map(|number| (number, kept(part, number).0)).collect();
        let (mut part_there, mut next) = (part.clone(), part.bytes.start + (last + 1) * PIECE);
        for _ in 0..AHEAD {
            if next >= part_there.bytes.end {
                next = part_there.bytes.end;
                match self.state.lock().parts.newest_with(next) {
                    Some(part) if part.content.is_none() => part_there = part.clone(),
                    _ => break,
                }
            }
            let number = piece_of(&part_there, next);
            if let (kept, true) = kept(&part_there, number) {
                let piece = self.clone().piece(part_there.clone(), number, kept);
                // A thread that asks for the piece later gets the error.
                apart(async { drop(piece.await) });
            }
            next = part_there.bytes.start + (number + 1) * PIECE;
        }
        for (number, kept) in wanted {
            let piece = self.shared.stop.wait(self.clone().piece(part.clone(), number, kept))?;
            let start = part.bytes.start + number * PIECE;
            let here = at.start.max(start)..at.end.min(start + piece.len() as u64);
            to[(here.start - at.start) as usize..(here.end - at.start) as usize]
                .copy_from_slice(&piece[(here.start - start) as usize..(here.end - start) as usize]);
        }
        Ok(())
    }

    /// Finds out which parts there are. A read-only reader drops parts that the owner has deleted.
    fn look(&self) -> io::Result<()> {
        let listed = self.shared.stop.wait(self.listed()).map_err(io_error)?;
        let mut state = self.state.lock();
        if self.shared.epoch.is_none() {
            state.parts = SegmentParts::default();
        }
        state.parts.learn(listed);
        Ok(())
    }

    /// Fills `buf` from `offset` on; copies that are nearer count unless it is `anew`.
    fn read(self: &Arc<Self>, buf: &mut [u8], offset: u64, anew: bool) -> io::Result<()> {
        let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        match if anew { Err(io::ErrorKind::NotFound.into()) } else { self.read_known(buf, offset, anew) } {
            Err(error) if is_missing(&error) => {}
            done => return done,
        }
        self.look()?;
        self.read_known(buf, offset, anew).map_err(|error| match is_missing(&error) {
            true => io::ErrorKind::UnexpectedEof.into(),
            false => error,
        })
    }

    /// Reads from the known parts; `NotFound` if a part is unknown or missing.
    fn read_known(self: &Arc<Self>, buf: &mut [u8], offset: u64, anew: bool) -> io::Result<()> {
        let (elsewhere, is_in_a_row) = {
            let mut state = self.state.lock();
            let elsewhere = state.parts.find(buf, offset).ok_or(io::ErrorKind::NotFound)?;
            let before = mem::replace(&mut state.read_to, offset + buf.len() as u64);
            (elsewhere, before == offset && !anew)
        };
        for (part, at) in elsewhere {
            let to = &mut buf[(at.start - offset) as usize..(at.end - offset) as usize];
            let found = if is_in_a_row {
                self.get_in_a_row(&part, &at, to)
            } else {
                let range = at.start - part.bytes.start..at.end - part.bytes.start;
                self.shared.stop.wait(self.get(&part, range, anew)).map(|found| to.copy_from_slice(&found))
            };
            found.map_err(io_error)?;
        }
        Ok(())
    }
}

/// A segment as the store has it open.
#[derive(Debug)]
struct SegmentHandle(Arc<SegmentFile>);

impl DiskFile for SegmentHandle {
    /// As far as the parts go that are known.
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.state.lock().parts.all.iter().map(|part| part.bytes.end).max().unwrap_or(0))
    }

    fn set_size(&self, _size: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Data may take what records do not need: a record that finds no room fails the store. An object store says that it has no room
    /// when a part is sent.
    fn allocate(&self, _offset: u64, len: u64) -> io::Result<()> {
        let Some((_, reserve)) = &self.0.shared.host else { return Ok(()) };
        match self.0.shared.free_bytes()? < reserve.saturating_add(len) {
            true => Err(Errno::NOSPC.into()),
            false => Ok(()),
        }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let file = self.0.clone();
        let Some(epoch) = file.shared.epoch else { return Ok(()) };
        // Relaxed: parts that are made later belong to writes after this call.
        let now = (epoch, file.shared.next.load(Ordering::Relaxed));
        let is_giving = {
            let mut state = file.state.lock();
            match state.given.last_mut() {
                Some((before, then)) if before.end == offset && *then == now => before.end += len,
                _ => state.given.push((offset..offset + len, now)),
            }
            mem::replace(&mut state.is_giving, true)
        };
        if !is_giving {
            apart(file.give_back());
        }
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read(buf, offset, false)
    }

    fn read_anew(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read(buf, offset, true)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.check()?;
        if self.0.shared.epoch.is_none() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let is_enough = {
            let mut state = self.0.state.lock();
            state.parts.write(offset, buf);
            state.waiting_bytes += buf.len();
            state.waiting_bytes >= PART
        };
        if is_enough {
            self.0.send()?;
            // Memory is bounded by the parts that may be sent at once, and as many waiting parts.
            let slot = async { Ok(self.0.shared.slots.acquire().await) };
            drop(self.0.shared.stop.wait(slot).map_err(io_error)?);
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.0.send()?;
        let tasks = mem::take(&mut self.0.state.lock().tasks);
        for task in tasks {
            let sent = async { task.await.map_err(|_| failed("data could not be sent")) };
            self.0.shared.stop.wait(sent).map_err(io_error)?;
        }
        self.0.check()
    }
}

impl fmt::Debug for SegmentFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place().fmt(f)
    }
}

impl fmt::Debug for DataDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.objects.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::wait;
    use object_store::memory::InMemory;

    #[test]
    fn what_is_given_back_waits_in_one_task_of_its_segment() {
        const EXTENTS: u64 = 1000;
        const LEN: u64 = 4096;
        let objects: Objects = Arc::new(InMemory::new());
        let disk = DataDisk::new(objects.clone(), Some(1), 256 << 20, 1, Arc::default());
        let handle = SegmentHandle(Arc::new(SegmentFile {
            number: 0,
            shared: disk.shared.clone(),
            state: Mutex::with_class(&FILE, SegmentState::default()),
        }));
        handle.write_at(&vec![1; (EXTENTS * LEN) as usize], 0).expect("memory");
        handle.sync().expect("memory");
        let left = || wait(async { Ok(objects.list(None).collect::<Vec<_>>().await.len()) }).expect("memory");
        assert_eq!(left(), 1, "one write is one part");
        // Nothing is listed or deleted meanwhile.
        let held =
            wait(async { Ok(disk.shared.giving.acquire_many(AT_ONCE as u32).await) }).expect("threads");
        for extent in (0..EXTENTS).step_by(2).chain((1..EXTENTS).step_by(2)) {
            handle.punch(extent * LEN, LEN).expect("memory");
        }
        assert_eq!(Arc::strong_count(&handle.0), 2, "its handle, and one task");
        drop(held);
        while handle.0.state.lock().is_giving {
            sluice_sync::thread::yield_now();
        }
        assert_eq!(left(), 0);
    }
}
