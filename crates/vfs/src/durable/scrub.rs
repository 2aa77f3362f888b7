//! Scrub: reads all that a store holds while it is used, past all copies in memory, and says which files are damaged.
//!
//! # Theory
//! A scrub goes through the records of the tree in the order of their keys. Each *step* reads up to so many bytes and ends at
//! a key, where the next step begins; the caller paces the steps. Steps of several callers advance one scrub.
//!
//! The tree has what was durable at its last checkpoint, and a scrub begins with a sync and a checkpoint. An extent may be freed between the
//! look at its record and the read: its blocks return to the disk only after the checkpoint that removes the record. So a
//! mismatch counts as damage if the record still stands after the read.
//!
//! The key and the counts are a record of the store, written now and then: a later mount goes on there. The findings are in memory.
//!
//! *By the clock* a scrub is due in each period, as a snapshot is ([`schedule`](crate::schedule)): if none has begun in the period, one begins,
//! and one that was left goes on. A period that begins later than now, as after the clock was set back, does not count. The thread
//! rests three times as long as it reads.
//!
//! # Cost
//! Each extent is read once from the disk, however many records name it. In memory: the records of one step, and the place of each
//! extent that several records name.

use super::chunk::{CHUNK, Chunk};
use super::keys::{self, Key, chunk_of, ino_of, name_of};
use super::record::{self, InodeRecord, ScrubRecord};
use super::{Durable, errno};
use crate::data::{CHUNK_PAGES, PAGE, PAGE_SIZE};
use crate::lock_class::DURABLE_PENDING;
use crate::superblock::ROOT_INO;
use crate::{Errno, SnapshotPeriod, Superblock, Timestamp};
use sluice_store::{Extent, StoreError};
use sluice_sync::Mutex;
use sluice_sync::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Findings that are kept; the others are counted.
const FINDINGS_MAX: usize = 1000;
/// Records that a step reads at most.
const RECORDS_MAX: usize = 1 << 14;
/// After so many bytes the place is written to the store.
const SAVED_AFTER: u64 = 1 << 30;
/// Room for the key of the record of a scrub.
const SCRUB_ROOM: usize = 64;
/// Bytes of a step by the clock, and how much longer than it reads it rests then.
const CLOCK_STEP: u64 = 1 << 20;
const CLOCK_REST: u32 = 3;
/// The most directories above a file: holders of damaged records may form a cycle.
const DEPTH_MAX: usize = 1000;

/// The state of the scrub of a store: [`Superblock::scrub`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubState {
    /// The time at which the current or last scrub began; None before the first.
    pub started: Option<Timestamp>,
    /// The time at which it ended; None while it is under way.
    pub finished: Option<Timestamp>,
    /// The time at which a scrub ended last; None if none ever did.
    pub last_end: Option<Timestamp>,
    /// Bytes of data that were read and compared with their checksums.
    pub bytes: u64,
    /// Bytes of data in the store when the scrub began.
    pub of: u64,
    /// Findings.
    pub damaged: u64,
    /// The first 1,000 findings of this process.
    pub findings: Vec<ScrubFinding>,
}

/// A damaged place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubFinding {
    /// The number of the inode; 0 if none is known.
    pub ino: u64,
    /// A path of it from the root of the file system, if one is known.
    pub path: Option<PathBuf>,
    /// The first byte of the damaged place; None for a record without contents.
    pub offset: Option<u64>,
    /// The fault.
    pub reason: String,
}

/// The state of a scrub, and where it goes on.
#[derive(Default)]
pub(super) struct ScrubProgress {
    state: ScrubState,
    /// The key at which the next step begins; None: a new scrub begins.
    place: Option<Vec<u8>>,
    /// The places of extents that several records name and that were read and are sound.
    shared: BTreeSet<u64>,
    /// Bytes that were read when the place was last written to the store.
    saved: u64,
}

/// The records of a step.
#[derive(Default)]
struct ScrubBatch {
    chunks: Vec<ScrubbedChunk>,
    /// The key at which the next step begins; None at the end of the tree.
    next: Option<Vec<u8>>,
    damaged: Vec<Damage>,
}

/// The result of a step.
struct ScrubStep {
    next: Option<Vec<u8>>,
    /// Bytes that were read.
    read: u64,
    findings: Vec<ScrubFinding>,
    /// Places of shared extents that were read and are sound: see [`ScrubProgress`].
    shared: BTreeSet<u64>,
}

/// A damaged record, or a page of its contents.
struct Damage {
    key: Vec<u8>,
    /// The first damaged page of the chunk.
    page: Option<u64>,
    reason: String,
}

/// A record of contents, and the extent that it names.
struct ScrubbedChunk {
    key: Vec<u8>,
    value: Vec<u8>,
    extent: Extent,
}

impl Superblock {
    /// Reads up to `bytes` more of what the store holds, from the disk itself, and compares it with its checksums; begins a new scrub
    /// after the last one has ended, or if `anew`. With 0 bytes nothing is read or begun: the state alone is returned. The file system is
    /// in use meanwhile. A scrub that was left goes on where it was, also after the next mount.
    ///
    /// ```
    /// # use sluice_vfs::{Errno, Fs};
    /// let fs = Fs::new();
    /// assert_eq!(fs.superblock().scrub(1 << 20, false), Err(Errno::EOPNOTSUPP), "it is in memory");
    /// ```
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a file system in memory; the store's, if it failed or its disk cannot be reached. Damage is a finding.
    pub fn scrub(&self, bytes: u64, anew: bool) -> Result<ScrubState, Errno> {
        let durable = self.root().shared.durable().ok_or(Errno::EOPNOTSUPP)?;
        durable.scrub_step(bytes, anew, Timestamp::now()).map_err(|error| errno(&error))?;
        Ok(ScrubState::clone(&durable.scrub_progress().map_err(|error| errno(&error))?.lock().state))
    }

    /// A step of the scrub that is due in the `period` of `now`, and the rest after it; None if none is due. The thread that
    /// [`Options::scrub`](crate::Options::scrub) starts calls this.
    pub(crate) fn scrub_by_clock(
        &self,
        period: SnapshotPeriod,
        now: Timestamp,
    ) -> Result<Option<Duration>, Errno> {
        let durable = self.root().shared.durable().ok_or(Errno::EOPNOTSUPP)?;
        let progress = durable.scrub_progress().map_err(|error| errno(&error))?;
        let counts = || {
            let progress = progress.lock();
            let has_begun =
                progress.state.started.is_some_and(|began| (period.begin(now)..=now).contains(&began));
            (progress.place.is_some() || !has_begun, progress.state.damaged)
        };
        let (is_due, known) = counts();
        if !is_due {
            return Ok(None);
        }
        let begun = Instant::now();
        durable.scrub_step(CLOCK_STEP, false, now).map_err(|error| errno(&error))?;
        if known == 0 && counts().1 > 0 {
            log::error!("the scrub by the clock has found damage: `sluice scrub --status` names the files");
        }
        Ok(Some(begun.elapsed() * CLOCK_REST))
    }

    /// The state of the scrub without its findings, whose copies would cost more than the counts.
    ///
    /// # Errors
    /// Errors of [`scrub`](Self::scrub).
    pub fn scrub_counts(&self) -> Result<ScrubState, Errno> {
        let durable = self.root().shared.durable().ok_or(Errno::EOPNOTSUPP)?;
        let progress = durable.scrub_progress().map_err(|error| errno(&error))?;
        Ok(ScrubState { findings: Vec::new(), ..progress.lock().state })
    }
}

impl Durable {
    fn scrub_progress(&self) -> Result<&Mutex<ScrubProgress>, StoreError> {
        if let Some(progress) = self.scrub.get() {
            return Ok(progress);
        }
        let recorded = self.store.get(&Key::scrub())?.and_then(|value| ScrubRecord::decode(&value));
        let found = recorded.map(|ScrubRecord { started, last_end, bytes, of, damaged, place }| {
            let (started, is_over) = (Some(started), place.is_empty());
            let (finished, last_end) = (last_end.filter(|_| is_over), last_end);
            let state = ScrubState { started, finished, last_end, bytes, of, damaged, findings: Vec::new() };
            let place = (!is_over).then_some(place);
            ScrubProgress { state, place, shared: BTreeSet::new(), saved: bytes }
        });
        let found = || Mutex::with_class(&DURABLE_PENDING, found.unwrap_or_default());
        Ok(self.scrub.get_or_init(found))
    }

    fn scrub_step(&self, bytes: u64, anew: bool, now: Timestamp) -> Result<(), StoreError> {
        let progress = self.scrub_progress()?;
        if bytes == 0 {
            return Ok(());
        }
        let place = progress.lock().place.clone().filter(|_| !anew);
        let from = match place {
            Some(place) => place,
            None => self.begin_scrub(progress, now)?,
        };
        let mut batch = self.scrub_batch(&from, bytes)?;
        let (mut shared, mut unread) = (BTreeSet::new(), Vec::new());
        for chunk in std::mem::take(&mut batch.chunks) {
            let place = chunk.extent.place();
            if self.store.get(&Key::owners(place))?.is_some() {
                if progress.lock().shared.contains(&place) {
                    continue;
                }
                shared.insert(place);
            }
            unread.push(chunk);
        }
        let extents: Vec<_> = unread.iter().map(|chunk| &chunk.extent).collect();
        let read = extents.iter().map(|extent| extent.allocated()).sum();
        for (chunk, outcome) in unread.iter().zip(self.store.verify_extents(&extents)) {
            match outcome {
                Ok(()) => {}
                Err(error) if is_damage(&error) => {
                    // The pages that count may be others in the next record that names the extent.
                    shared.remove(&chunk.extent.place());
                    let key = chunk.key.clone();
                    let damage = |page| Damage { key, page: Some(page), reason: reason_of(&error) };
                    batch.damaged.extend(self.damaged_page(chunk)?.map(damage));
                }
                Err(error) => return Err(error),
            }
        }
        let mut paths = BTreeMap::new();
        let finding = |Damage { key, page, reason }: Damage| {
            let ino = ino_of(&key).unwrap_or(0);
            // A damaged file has many damaged pages, and its directory may have many names.
            let path = paths.entry(ino).or_insert_with(|| self.recorded_path(ino)).clone();
            let offset = page.and_then(|page| Some(chunk_of(&key)?.saturating_mul(CHUNK) + page * PAGE));
            ScrubFinding { ino, path, offset, reason }
        };
        let findings = batch.damaged.into_iter().map(finding).collect();
        let step = ScrubStep { next: batch.next, read, findings, shared };
        self.advance_scrub(progress, &from, step, now);
        Ok(())
    }

    /// Begins a scrub: the key of its first record.
    fn begin_scrub(&self, progress: &Mutex<ScrubProgress>, now: Timestamp) -> Result<Vec<u8>, StoreError> {
        self.store.sync()?;
        self.store.checkpoint()?;
        let of = self.store.stats().data_bytes;
        let mut progress = progress.lock();
        let last_end = progress.state.last_end;
        let state = ScrubState { started: Some(now), last_end, of, ..ScrubState::default() };
        *progress = ScrubProgress { state, place: Some(vec![0]), ..ScrubProgress::default() };
        Ok(vec![0])
    }

    /// The records from key `from` on that name so many bytes.
    fn scrub_batch(&self, from: &[u8], bytes: u64) -> Result<ScrubBatch, StoreError> {
        let (mut batch, mut records, mut taken, mut last) = (ScrubBatch::default(), 0, 0, from.to_vec());
        let seen = self.store.scan(from, &[u8::MAX], &mut |key, value| {
            if taken >= bytes || records >= RECORDS_MAX {
                batch.next = Some(key.to_vec());
                return false;
            }
            records += 1;
            taken += value.len() as u64;
            key.clone_into(&mut last);
            let is_sound = match key.first() {
                Some(&keys::DATA) => {
                    let chunk = Chunk::decode(value);
                    let is_sound = chunk.is_some();
                    if let Some(held) = chunk.and_then(|chunk| chunk.held) {
                        taken += held.extent.allocated();
                        let (key, value, extent) = (key.to_vec(), value.to_vec(), held.extent);
                        batch.chunks.push(ScrubbedChunk { key, value, extent });
                    }
                    is_sound
                }
                Some(&keys::INODE) => InodeRecord::decode(value).is_some(),
                _ => true,
            };
            if !is_sound {
                let reason = "its record cannot be read".into();
                batch.damaged.push(Damage { key: key.to_vec(), page: None, reason });
            }
            true
        });
        match seen {
            Ok(()) => {}
            // The tree does not say where the next sound record is: the scrub goes on with the next kind of record.
            Err(error) if is_damage(&error) => {
                let tag = last.first().copied().unwrap_or(0);
                let reason = format!("records from this one on cannot be read: {}", reason_of(&error));
                batch.damaged.push(Damage { key: last, page: None, reason });
                batch.next = Some(vec![tag + 1]);
            }
            Err(error) => return Err(error),
        }
        Ok(batch)
    }

    /// The first page of the chunk that still counts and does not match, of a chunk whose extent did not match as a whole.
    fn damaged_page(&self, chunk: &ScrubbedChunk) -> Result<Option<u64>, StoreError> {
        let ScrubbedChunk { key, value, extent } = chunk;
        let Some(Chunk { present, held: Some(held), .. }) = Chunk::decode(value) else { return Ok(None) };
        let mut damaged = None;
        let mut page = [0; PAGE_SIZE];
        for at in (0..CHUNK_PAGES as u32).filter(|at| present & !held.patched & 1 << at != 0) {
            let start = u64::from((held.pages & ((1 << at) - 1)).count_ones()) * PAGE;
            let len = extent.len().saturating_sub(start).min(PAGE);
            if self.store.read_extent(extent, start, &mut page[..len as usize]).is_err() {
                damaged = Some(u64::from(at));
                break;
            }
        }
        if damaged.is_none() || self.store.get(key)?.as_ref() != Some(value) {
            return Ok(None);
        }
        let cut_off = self.store.get(&Key::cut_off(ino_of(key).unwrap_or(0)))?;
        let is_cut_off = cut_off
            .and_then(|value| record::decode_cut_off(&value))
            .is_some_and(|chunks| chunk_of(key).is_some_and(|chunk| chunks.contains(&chunk)));
        Ok(damaged.filter(|_| !is_cut_off))
    }

    /// A path to inode `ino`, by what the tree has of its names and those of the directories above it.
    fn recorded_path(&self, mut ino: u64) -> Option<PathBuf> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        while ino != ROOT_INO {
            let holder = InodeRecord::decode(&self.store.get(&Key::inode(ino)).ok()??)?.holder?;
            let (mut name, range) = (None, Key::names(holder));
            let visited = self.store.scan(&range.start, &range.end, &mut |key, value| {
                if record::named(value) == Some(ino) {
                    name = Some(name_of(key).to_vec());
                }
                name.is_none()
            });
            // A name that cannot be read leaves the path unknown.
            names.push(visited.ok().and(name)?);
            if names.len() > DEPTH_MAX {
                return None;
            }
            ino = holder;
        }
        names.push(b"/".to_vec());
        Some(names.iter().rev().map(|name| OsStr::from_bytes(name)).collect())
    }

    /// A step that began at `from` has ended: counts it, unless the step of another caller began there, too, and ended before.
    fn advance_scrub(&self, progress: &Mutex<ScrubProgress>, from: &[u8], step: ScrubStep, now: Timestamp) {
        let record = {
            let mut guard = progress.lock();
            let progress = &mut *guard;
            let ScrubStep { next, read, findings, shared } = step;
            let is_over = next.is_none();
            if progress.place.as_deref() != Some(from) {
                return;
            }
            progress.place = next;
            progress.shared.extend(shared);
            let state = &mut progress.state;
            state.bytes += read;
            state.damaged += findings.len() as u64;
            let room = FINDINGS_MAX - state.findings.len();
            let is_found = !findings.is_empty();
            state.findings.extend(findings.into_iter().take(room));
            if is_over {
                (state.finished, state.last_end) = (Some(now), Some(now));
            }
            let is_due = is_over || is_found || state.bytes - progress.saved >= SAVED_AFTER;
            let record = is_due.then(|| ScrubRecord {
                started: state.started.unwrap_or_default(),
                last_end: state.last_end,
                bytes: state.bytes,
                of: state.of,
                damaged: state.damaged,
                place: progress.place.clone().unwrap_or_default(),
            });
            if let Some(record) = &record {
                progress.saved = record.bytes;
            }
            record
        };
        if let Some(record) = record {
            let value = record.encode();
            // A store that takes no changes is scrubbed all the same; a later mount begins further back.
            if let Ok(mut transaction) = self.store.begin((value.len() + SCRUB_ROOM) as u64) {
                transaction.put(&Key::scrub(), self.now(), &value);
            }
        }
    }
}

/// Whether an error says that the disk lost or changed bytes: another one is of a disk that cannot be asked now.
fn is_damage(error: &StoreError) -> bool {
    match error {
        StoreError::Damaged(_) => true,
        StoreError::Io(_, error) => error.raw_os_error() == Some(Errno::EIO.raw()),
        _ => false,
    }
}

/// The fault alone, of an error that [is damage](is_damage).
fn reason_of(error: &StoreError) -> String {
    match error {
        StoreError::Damaged(what) => what.clone(),
        error => error.to_string(),
    }
}
