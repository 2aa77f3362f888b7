//! Hash table: readers take no lock and store nothing shared, writers lock one bucket, and it grows under both.
//!
//! # Theory
//! The nodes are in chains (`chains/`), sorted by the reversed bits of their hashes: so the low bits of a hash
//! choose the bucket, as is usual.
//!
//! # Cost
//! Find: the section's two stores to the own line, loads of the array pointer, the head and the nodes: nothing
//! shared is written. Insert, remove: one read-modify-write and one store on the bucket's head, the own CPU's
//! count; a grace period's share per removed node. Moving: `MOVE_AT_ONCE` buckets per write.
//!
//! # Used by
//! `dlm`: the locks and resources of a node by name, through the [`Reclaimer`](crate::reclaim::Reclaimer) that bounds them.

#[cfg(all(test, not(feature = "loom")))]
mod tests;

use crate::chains::{ChainPlace, Chains, LockedBucket, Node, unlinked};
use crate::face::SHRUNK;
use crate::face::atomic::AtomicPtr;
use crate::percpu::Counter;
use crate::rcu::{Domain, Guard};
use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};

/// A chain of this length makes its writer look whether the table is too small.
const LONG_CHAIN: usize = 4;
/// The fewest buckets.
const BUCKETS_MIN: usize = if SHRUNK { 1 } else { 16 };

/// An entry of the table.
#[repr(align(8))]
struct TableEntry<K, V> {
    /// See [`Node::links`].
    links: [AtomicPtr<TableEntry<K, V>>; 2],
    /// The reversed hash. *immutable*
    place: u64,
    /// *immutable*
    key: K,
    /// *immutable*
    value: V,
}

impl<K: 'static, V: 'static> Node for TableEntry<K, V> {
    type Bucket = AtomicPtr<Self>;
    type Count = ();

    fn links(&self) -> &[AtomicPtr<Self>; 2] {
        &self.links
    }

    fn place(&self) -> u64 {
        self.place
    }

    unsafe fn free(node: *mut Self) {
        // SAFETY: from `Box::into_raw` in insert(); the rest is the caller's.
        drop(unsafe { Box::from_raw(node) });
    }
}

/// A map from `K` to `V` that is read without locks.
pub struct HashTable<K: Send + Sync + 'static, V: Send + Sync + 'static, S = RandomState> {
    chains: Chains<TableEntry<K, V>>,
    /// How many nodes there are. *per CPU*
    count: Counter,
    /// *immutable*
    hasher: S,
}

impl<K: Hash + Eq + Send + Sync, V: Send + Sync> HashTable<K, V> {
    /// An empty table whose readers are those of `domain`.
    pub fn new(domain: &'static Domain) -> Self {
        HashTable::with_buckets_and_hasher(domain, 0, RandomState::new())
    }
}

impl<K: Hash + Eq + Send + Sync, V: Send + Sync, S: BuildHasher> HashTable<K, V, S> {
    /// An empty table with at least `buckets` buckets, rounded up to a power of two.
    pub fn with_buckets_and_hasher(domain: &'static Domain, buckets: usize, hasher: S) -> Self {
        let chains = Chains::new(domain);
        chains.begin(buckets.max(BUCKETS_MIN).next_power_of_two());
        HashTable { chains, count: Counter::new(0), hasher }
    }

    /// Begins a read section of the table's domain, for [`get`](Self::get).
    #[inline]
    pub fn read(&self) -> Guard<'_> {
        self.chains.read()
    }

    /// The value of `key`, valid for as long as the section is open.
    ///
    /// # Panics
    /// If `guard` is a section of another domain.
    #[inline]
    pub fn get<'g, Q>(&'g self, key: &Q, guard: &'g Guard<'_>) -> Option<&'g V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let place = self.place(key);
        let (mut node, array) = self.chains.chain(place, guard)?;
        loop {
            // SAFETY: found in the chain inside the section `guard`: freed a grace period after it was unlinked
            // (H3), and nobody makes a `&mut` of it before.
            let found = (unsafe { node.as_ref() })?;
            if found.place >= place {
                if found.place > place {
                    return None;
                }
                if found.key.borrow() == key {
                    return Some(&found.value);
                }
            }
            node = array.following(found);
        }
    }

    #[inline]
    fn place<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key).reverse_bits()
    }

    /// Whether the table has `key`.
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.get(key, &self.read()).is_some()
    }

    /// Adds `key` with `value`.
    ///
    /// # Errors
    /// Returns both when the key is there already; the table is unchanged.
    pub fn insert(&self, key: K, value: V) -> Result<(), (K, V)> {
        let place = self.place(&key);
        let (walked, buckets) = {
            let mut bucket = self.lock(place);
            let (at, found, walked) = find(&bucket, place, &key);
            if found {
                return Err((key, value));
            }
            let node = Box::into_raw(Box::new(TableEntry { links: unlinked(), place, key, value }));
            // SAFETY: new, and from a box.
            unsafe { bucket.insert(at, node) };
            (walked, bucket.array.len())
        };
        self.count.add(1);
        if walked >= LONG_CHAIN && self.count.at_least(i64::try_from(buckets).unwrap_or(i64::MAX)) {
            self.resize(buckets.saturating_mul(2));
        }
        self.chains.help();
        Ok(())
    }

    /// Removes `key`. True if it was there. Readers that found its value keep it until their sections end.
    ///
    /// May wait for a grace period now and then: see [`Domain::defer`].
    pub fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let place = self.place(key);
        let removed = {
            let mut bucket = self.lock(place);
            let (at, found, _) = find(&bucket, place, key);
            found.then(|| bucket.unlink(at))
        };
        let Some(node) = removed else { return false };
        self.count.add(-1);
        // The bucket is unlocked: deferring may wait.
        self.chains.free_later(node);
        self.chains.help();
        true
    }

    /// Calls `visit` for each entry, without locks. An entry that is in the table during the whole call is
    /// visited at least once; one that is moved by a resize meanwhile may be visited twice.
    pub fn for_each(&self, mut visit: impl FnMut(&K, &V)) {
        let guard = self.read();
        let mut array = self.chains.current(&guard);
        while let Some(now) = array {
            now.for_each_unmoved(&guard, |node| visit(&node.key, &node.value));
            array = now.next(&guard);
        }
    }

    /// How many entries there are; exact when nobody writes meanwhile.
    pub fn len(&self) -> usize {
        usize::try_from(self.count.sum()).unwrap_or(0)
    }

    /// Whether the table is empty; exact when nobody writes meanwhile.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of buckets, or their number after the current resize.
    pub fn buckets(&self) -> usize {
        self.chains.buckets()
    }

    /// Begins to move to `buckets` buckets, rounded up to a power of two. Does nothing, and says false, if there are
    /// so many already, or if the previous resize is not over; that includes its grace period.
    pub fn resize(&self, buckets: usize) -> bool {
        self.chains.resize(buckets.max(BUCKETS_MIN).next_power_of_two())
    }

    /// Begins to move to as few buckets as the entries need; as [`resize`](Self::resize).
    pub fn shrink(&self) -> bool {
        self.len() < self.buckets() / 4 && self.resize(self.len())
    }

    /// The bucket of `place`, locked.
    fn lock(&self, place: u64) -> LockedBucket<'_, TableEntry<K, V>> {
        self.chains.lock(place).expect("the first array is made with the table, which is never closed")
    }
}

/// Finds `key` or the end of those with its place; says which, and how many nodes were passed.
fn find<K, V, Q>(
    bucket: &LockedBucket<'_, TableEntry<K, V>>,
    place: u64,
    key: &Q,
) -> (ChainPlace<TableEntry<K, V>>, bool, usize)
where
    K: Borrow<Q> + Send + Sync + 'static,
    V: Send + Sync + 'static,
    Q: Eq + ?Sized,
{
    let (mut at, mut walked) = bucket.seek(place);
    while let Some(found) = bucket.get(at)
        && found.place == place
    {
        if found.key.borrow() == key {
            return (at, true, walked);
        }
        at = bucket.step(at);
        walked += 1;
    }
    (at, false, walked)
}

impl<K: Send + Sync, V: Send + Sync, S> fmt::Debug for HashTable<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashTable").field("entries", &self.count.sum()).finish_non_exhaustive()
    }
}
