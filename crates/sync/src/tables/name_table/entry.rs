//! Locked entries: what a thread may do to a name whose bucket it has locked.

use super::node::{
    EntryState, NAME_MAX, NameNode, first_position, insert_at, last_twin, name_at, place_of, same,
};
use super::tally::{Adder, Count};
use super::{BUCKETS_FIRST, NameTable, SHRINKS_FROM};
use crate::chains::{Array, ChainPlace, LockedBucket, Unlinked};
use crate::face::{Mutant, SHRUNK, cpu, seeded};
use crate::lock_debug::{Ask, Held};
use crate::rcu::Guard;

/// An array is full when it has so many entries for each bucket, ...
const LOAD_MAX: usize = 4;
/// ... and a bucket that counts its own is when it has so many: two standard deviations more, as hashes fall by chance.
const MOST_IN_BUCKET: usize = 2 * LOAD_MAX;

/// Up to so many buckets for each CPU, an array where CPUs count is full with half as many entries. Entries that share a
/// bucket are mostly of different CPUs, and a thread that adds or removes one writes to its neighbour.
const ROOMY: usize = 1024;

/// Where CPUs count, a CPU sums all counts each time it has added its share of the room seen at its last sum, or, if
/// less was left, of this fraction of all room.
const ROOM_PARTS: usize = 4;

/// An array of so many buckets grows fourfold at once: many CPUs pay more for each node that is moved than for buckets.
const LARGE: usize = 4096;

/// A bucket whose lock was waited for so often is crowded, ...
const WAITS_MAX: u32 = 4;
/// ... and the array is grown at once to so many buckets for each CPU, since a thread that waits now waits until it has grown:
/// two threads that change names side by side then seldom meet. Not beyond: the fewer names a bucket has, the more buckets a
/// listing looks at.
const CROWD_BUCKETS: usize = 64;

/// Where CPUs count, each looks whether an array of so many buckets should shrink, ...
const SHRINKS_AT_REMOVAL: usize = if SHRUNK { 4 } else { SHRINKS_FROM };
/// ... together so often while as many names go as there are buckets, ...
const LOOKS_WHILE_EMPTIED: usize = 64;
/// ... but not before one CPU has removed this many entries for each CPU whose count a sum reads.
const REMOVED_A_COUNT: usize = if SHRUNK { 1 } else { 64 };

/// How many entries an array of `buckets` where `cpus` CPUs count may have before it is grown.
fn most_in(buckets: usize, cpus: usize) -> usize {
    if buckets <= ROOMY * cpus { LOAD_MAX / 2 * buckets } else { LOAD_MAX * buckets }
}

/// After so many removals a CPU looks whether an array of `buckets` where `cpus` CPUs count should shrink.
fn removals_between_looks(buckets: usize, cpus: usize) -> usize {
    (buckets / LOOKS_WHILE_EMPTIED / cpus).max(REMOVED_A_COUNT * cpus)
}

/// How many buckets there should be in place of those of `array` if they hold `entries`, and `most` should be in there.
fn wanted<V: Send + Sync + 'static>(
    array: &Array<NameNode<V>>,
    entries: usize,
    most: usize,
) -> Option<usize> {
    let by_four = entries > 2 * most || array.len() >= LARGE;
    (entries > most).then(|| if by_four { 4 * array.len() } else { 2 * array.len() })
}

/// [`wanted`], of an array in which CPUs count, by the counts of all CPUs.
fn wanted_by_cpus<V: Send + Sync + 'static>(array: &Array<NameNode<V>>) -> Option<usize> {
    let cpus = array.cpus()?;
    let most = most_in(array.len(), cpus.len());
    // Below 0 when others were removed meanwhile.
    let entries = usize::try_from(cpus.iter().map(Count::entries).sum::<i64>()).unwrap_or(0);
    cpus.here().look_after(most.saturating_sub(entries).max(most / ROOM_PARTS).div_ceil(cpus.len()));
    wanted(array, entries, most)
}

pub(super) type Bucket<'t, V> = LockedBucket<'t, NameNode<V>>;

impl<V: Clone + Send + Sync + 'static> NameTable<V> {
    /// Locks the bucket of `place`. None if the table was killed.
    #[track_caller]
    #[inline]
    pub(super) fn lock_bucket(&self, place: u64, ask: Ask) -> Option<(Bucket<'_, V>, Held)> {
        let chains = &self.chains;
        loop {
            let (bucket, held) =
                self.watch.lock(ask, || chains.try_lock(place).map(Some), || chains.lock(place));
            if let Some(bucket) = bucket {
                return Some((bucket, held));
            }
            if chains.is_closed() {
                return None;
            }
            chains.begin(BUCKETS_FIRST);
        }
    }
}

/// A name whose bucket the caller has locked; unlocks it when dropped.
pub struct LockedEntry<'t, V: Clone + Send + Sync + 'static> {
    pub(super) name: Name<'t>,
    pub(super) bucket: Bucket<'t, V>,
    pub(super) _held: Held,
    /// Dropped after `bucket`.
    pub(super) aftermath: Aftermath<'t, V>,
}

/// A name in a locked bucket.
pub struct Entry<'e, 't, V: Clone + Send + Sync + 'static> {
    pub(super) name: &'e Name<'t>,
    pub(super) bucket: &'e mut Bucket<'t, V>,
    pub(super) aftermath: &'e mut Aftermath<'t, V>,
}

/// A name in a locked bucket that is there.
pub struct There<'e, 't, V: Clone + Send + Sync + 'static> {
    entry: Entry<'e, 't, V>,
    at: ChainPlace<NameNode<V>>,
}

/// The room in a locked bucket for a name that is not there.
pub struct Room<'e, 't, V: Clone + Send + Sync + 'static> {
    entry: Entry<'e, 't, V>,
    /// The first position that no name of this hash has, and what comes behind it.
    position: u64,
    behind: ChainPlace<NameNode<V>>,
}

#[derive(Clone, Copy)]
pub(super) struct Name<'t> {
    pub(super) hash: u64,
    pub(super) bytes: &'t [u8],
}

impl Name<'_> {
    pub(super) fn place(&self) -> u64 {
        place_of(first_position(self.hash))
    }
}

/// Work that follows the unlocking of the buckets.
pub(super) struct Aftermath<'t, V: Clone + Send + Sync + 'static> {
    pub(super) table: &'t NameTable<V>,
    /// Open while a bucket is locked: nobody may wait for a grace period then, and `defer` does not inside a section.
    section: Option<Guard<'t>>,
    /// To be freed.
    unlinked: Option<Unlinked<NameNode<V>>>,
    /// How many buckets there should be, if more.
    buckets: Option<usize>,
    /// It is time to look at what the CPUs have counted.
    looks: bool,
    /// It is time to look whether there are too many buckets.
    shrinks: bool,
    changed: bool,
}

impl<'t, V: Clone + Send + Sync + 'static> Aftermath<'t, V> {
    /// The aftermath of changes in a bucket of `table` that the caller has locked.
    #[inline]
    pub(super) fn new(table: &'t NameTable<V>) -> Self {
        let section = Some(table.read());
        Aftermath {
            table,
            section,
            unlinked: None,
            buckets: None,
            looks: false,
            shrinks: false,
            changed: false,
        }
    }

    /// Locks the bucket of `place` too.
    #[track_caller]
    pub(super) fn lock_another(&mut self, place: u64, ask: Ask) -> Option<(Bucket<'t, V>, Held)> {
        // A resize waits for sections, and would make this wait shorter.
        self.section = None;
        let locked = self.table.lock_bucket(place, ask);
        self.section = Some(self.table.read());
        locked
    }

    /// Notes that `bucket` is being changed, and has the array grown if many changes have waited for the lock. A thread that
    /// finds its work done by another does not count: both want the same name, which is in one bucket however many there are.
    fn note_change(&mut self, bucket: &Bucket<'_, V>) {
        self.changed = true;
        if bucket.waited() && bucket.bucket().note_wait() >= WAITS_MAX {
            self.buckets = self.buckets.max(Some((CROWD_BUCKETS * cpu::possible()).next_power_of_two()));
        }
    }

    fn free(&self, node: Unlinked<NameNode<V>>) {
        self.table.chains.free_later(node);
    }
}

impl<V: Clone + Send + Sync + 'static> Drop for Aftermath<'_, V> {
    fn drop(&mut self) {
        let chains = &self.table.chains;
        let mut helps = false;
        if let Some(section) = self.section.take()
            && self.changed
            && let Some(array) = chains.current(&section)
        {
            if self.looks {
                self.buckets = self.buckets.max(wanted_by_cpus(array));
            }
            helps = array.next(&section).is_some();
        }
        if let Some(node) = self.unlinked.take() {
            self.free(node);
        }
        if let Some(buckets) = self.buckets {
            helps |= self.table.grow_to(buckets);
        }
        if helps {
            chains.help();
        } else if self.shrinks {
            self.table.shrink();
        }
    }
}

impl<'t, V: Clone + Send + Sync + 'static> LockedEntry<'t, V> {
    #[track_caller]
    pub(super) fn new(table: &'t NameTable<V>, hash: u64, bytes: &'t [u8], level: u8) -> Option<Self> {
        let name = Name { hash, bytes };
        let (bucket, _held) = table.lock_bucket(name.place(), Ask::BUCKET.at(level))?;
        Some(LockedEntry { name, bucket, _held, aftermath: Aftermath::new(table) })
    }

    /// Calls `act` with a name of `table`, unless that takes waiting for long, or the table was killed.
    #[track_caller]
    #[inline]
    pub(super) fn try_with<R>(
        table: &'t NameTable<V>,
        hash: u64,
        bytes: &'t [u8],
        act: impl FnOnce(&mut LockedEntry<'t, V>) -> R,
    ) -> Option<R> {
        let name = Name { hash, bytes };
        let bucket = table.chains.lock_soon(name.place())?;
        let _held = table.watch.tried(Ask::BUCKET);
        Some(act(&mut LockedEntry { name, bucket, _held, aftermath: Aftermath::new(table) }))
    }

    /// The name in its bucket.
    pub fn entry(&mut self) -> Entry<'_, 't, V> {
        Entry { name: &self.name, bucket: &mut self.bucket, aftermath: &mut self.aftermath }
    }

    /// The name, if it is there.
    pub fn there(&mut self) -> Option<There<'_, 't, V>> {
        self.entry().there()
    }

    /// The room for the name, if the name is absent.
    pub fn room(&mut self) -> Option<Room<'_, 't, V>> {
        self.entry().room()
    }

    /// Adds the name, which counts as one entry of `weight`. Returns its position.
    ///
    /// # Errors
    /// Returns `value` if the name is there, if it is longer than [`NAME_MAX`], or if 256 names have its hash.
    pub fn insert(&mut self, value: V, weight: u8) -> Result<u64, V> {
        self.entry().insert(value, weight)
    }

    /// Removes the name; returns its value. Readers that have it may keep it until their sections end.
    pub fn remove(&mut self) -> Option<V> {
        self.entry().remove()
    }
}

/// The place of `name` in its bucket, preferring an arriving entry. The end if it is not there: two words, which
/// registers hold.
pub(super) fn find<V: Send + Sync + 'static>(
    bucket: &Bucket<'_, V>,
    name: &Name<'_>,
) -> ChainPlace<NameNode<V>> {
    let first = first_position(name.hash);
    let (mut at, _) = bucket.seek(place_of(first));
    while bucket.get(at).is_some_and(|node| node.position <= last_twin(first)) {
        if name_at(bucket, at).is_some_and(|bytes| same(bytes, name.bytes)) {
            return at;
        }
        at = bucket.step(at);
    }
    ChainPlace::END
}

impl<'e, 't, V: Clone + Send + Sync + 'static> Entry<'e, 't, V> {
    /// The value of the name, if present.
    pub fn get(&self) -> Option<&V> {
        Some(&self.bucket.get(find(self.bucket, self.name))?.value)
    }

    /// The name, if it is there.
    #[inline]
    pub fn there(self) -> Option<There<'e, 't, V>> {
        let at = find(self.bucket, self.name);
        self.bucket.get(at)?;
        Some(There { entry: self, at })
    }

    /// The room for the name, if the name is absent.
    #[inline]
    pub fn room(self) -> Option<Room<'e, 't, V>> {
        let first = first_position(self.name.hash);
        let (mut at, _) = self.bucket.seek(place_of(first));
        // The first position that no name of this hash has, and where it is in the chain.
        let (mut position, mut gap) = (first, None);
        while let Some(node) = self.bucket.get(at)
            && node.position <= last_twin(first)
        {
            if name_at(self.bucket, at) == Some(self.name.bytes) {
                return None;
            }
            if gap.is_none() && node.position == position {
                position += 1;
            } else {
                gap = gap.or(Some(at));
            }
            at = self.bucket.step(at);
        }
        Some(Room { entry: self, position, behind: gap.unwrap_or(at) })
    }

    /// Adds the name, which counts as one entry of `weight`. Returns its position.
    ///
    /// # Errors
    /// Gives `value` back if the name is there, if it is longer than [`NAME_MAX`], or if 256 names have its hash.
    pub fn insert(self, value: V, weight: u8) -> Result<u64, V> {
        match self.room() {
            Some(room) => room.fill(value, weight),
            None => Err(value),
        }
    }

    /// Removes the name; returns what it stood for. Readers that have it may keep it until their sections end.
    pub fn remove(self) -> Option<V> {
        Some(self.there()?.remove().clone())
    }

    pub(super) fn discard(&mut self, node: Unlinked<NameNode<V>>) {
        self.aftermath.note_change(self.bucket);
        if let Some(earlier) = self.aftermath.unlinked.replace(node) {
            self.aftermath.free(earlier);
        }
    }
}

impl<'e, V: Clone + Send + Sync + 'static> There<'e, '_, V> {
    /// The value of the name.
    pub fn get(&self) -> &V {
        &found(self.entry.bucket, self.at).value
    }

    /// Removes the name; returns what it stood for. Readers that have it may keep it until their sections end.
    pub fn remove(self) -> &'e V {
        let There { entry: mut name, at } = self;
        let node = found(name.bucket, at);
        if !seeded(Mutant::RemovedUnmarked) {
            // For threads that remember it. Before it is out of the chain: a thread that has missed it there finds it nowhere.
            node.stand(EntryState::Left);
        }
        let array = name.bucket.array;
        let count = array.count(place_of(node.position));
        count.remove(node.weight, Adder::to(array));
        if array.len() >= SHRINKS_AT_REMOVAL
            && let Some(cpus) = array.cpus()
        {
            let between = removals_between_looks(array.len(), cpus.len());
            name.aftermath.shrinks |= count.has_removed_multiple_of(between);
        }
        let unlinked = name.bucket.unlink(at);
        name.discard(unlinked);
        // Not freed before the section ends in which the bucket was locked.
        &found(name.bucket, at).value
    }
}

/// The node at `at`, where there is one for as long as the bucket is locked.
fn found<'b, V: Send + Sync + 'static>(
    bucket: &'b Bucket<'_, V>,
    at: ChainPlace<NameNode<V>>,
) -> &'b NameNode<V> {
    bucket.get(at).expect("a node was found there")
}

impl<V: Clone + Send + Sync + 'static> Room<'_, '_, V> {
    /// Adds the name, which counts as one entry of `weight`. Returns its position.
    ///
    /// # Errors
    /// Gives `value` back if the name is longer than [`NAME_MAX`], or if 256 names have its hash.
    pub fn fill(self, value: V, weight: u8) -> Result<u64, V> {
        self.fill_as(value, weight, EntryState::Stands)
    }

    pub(super) fn fill_as(self, value: V, weight: u8, standing: EntryState) -> Result<u64, V> {
        let Room { entry: Entry { name, bucket, aftermath }, position, behind } = self;
        if position > last_twin(first_position(name.hash)) || name.bytes.len() > NAME_MAX {
            return Err(value);
        }
        insert_at(bucket, behind, (position, name.bytes, value, weight), standing);
        let array = bucket.array;
        let count = array.count(place_of(position));
        count.add(weight, Adder::to(array));
        match array.cpus() {
            None => {
                let entries = usize::try_from(count.entries()).unwrap_or(0);
                aftermath.buckets = aftermath.buckets.max(wanted(array, entries, MOST_IN_BUCKET));
            }
            Some(cpus) => {
                // Until it has looked, a CPU takes the array for empty.
                aftermath.looks |= count.should_look(most_in(array.len(), cpus.len()) / cpus.len());
            }
        }
        aftermath.note_change(bucket);
        Ok(position)
    }
}
