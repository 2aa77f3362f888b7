//! Hash table: readers take no lock and store nothing shared, writers lock one bucket, and it grows under both.
//!
//! # Theory
//! Buckets are singly linked lists of nodes. A reader follows them inside an RCU read section. A writer locks the
//! bucket by a bit in its head pointer, and an unlinked node is freed after a grace period.
//!
//! A resize makes a second array and moves one bucket after the other; each later insert or remove moves a
//! few. A node has two links and the arrays use them alternately, so a moved node is in its old chain *and* in
//! its new one:
//!
//! ```text
//!   old array   [ a ]--.                    [ a|MOVED ]--.  (still walked by readers who
//!                      v link 0      =>                  v   came before the mark)
//!                     N1 -> N2 -> N3                    N1 -> N2 -> N3
//!   new array   [ ] [ ]                     [ N2 -> N1 ] [ N3 ]   link 1
//! ```
//!
//! When all nodes of a bucket are in their new chains, the old head gets the mark *moved* and its chain never
//! changes again. A reader that finds the mark goes to the new array. One that came before the mark walks the
//! old chain to its end: whatever was in the bucket when it came is there. So readers neither wait nor repeat.
//!
//! When all buckets are moved, the new array becomes the current one, and the old one is freed after a grace
//! period. The next resize may begin only after that grace period, because it reuses the old chains' links.
//!
//! # Lock order
//! bucket of the old array, then bucket of the new one. Under a bucket's lock no other lock is taken and no
//! code of the client runs but `Eq` and what `update`-like closures document.
//!
//! # Invariants
//! - H1 a chain changes only under its bucket's lock, and never after its head is marked moved;
//! - H2 a node is reachable from the array in which its bucket is not moved, for as long as it is in the table;
//! - H3 an array and a node are freed a grace period after the last pointer to them is gone.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | bucket | unlock: Release store of the head | lock: Acquire exchange; readers' Acquire load | chain and nodes |
//! | chain | unlink: Release store of a link | readers' Acquire load of a link | the nodes behind it |
//! | array | Release store of `next`, `current` | Acquire load | the new array |
//!
//! # Cost
//! Find: the section's two stores to the own line, loads of the array pointer, the head and the nodes: nothing
//! shared is written. Insert, remove: one read-modify-write and one store on the bucket's head, the own CPU's
//! count; a grace period's share per removed node. Moving: `MOVE_AT_ONCE` buckets per write.
//!
//! # Sources
//! The kernel's rhashtable and its two-link ancestor (Herbert Xu's bridge multicast table, 2010); Triplett,
//! McKenney and Walpole, "Resizable, Scalable, Concurrent Hash Tables via Relativistic Programming" (2011).

mod bucket;
mod resize;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use self::bucket::{Array, Locked, Node};
use crate::Mutex;
use crate::face::atomic::{AtomicPtr, Ordering};
use crate::face::{Arc, SHRUNK};
use crate::percpu::Counter;
use crate::rcu::{Domain, GracePeriod, Guard};
use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};

/// How many buckets a writer moves while a resize is under way.
const MOVE_AT_ONCE: usize = if SHRUNK { 1 } else { 8 };
/// A chain of this length makes its writer look whether the table is too small.
const LONG_CHAIN: usize = 4;
/// The fewest buckets.
const BUCKETS_MIN: usize = if SHRUNK { 1 } else { 16 };

/// A map from `K` to `V` that is read without locks.
pub struct HashTable<K: Send + Sync + 'static, V: Send + Sync + 'static, S = RandomState> {
    /// The array that readers begin at, from `Box::into_raw`. *atomic (array)*
    current: AtomicPtr<Array<K, V>>,
    /// How many nodes there are. *per CPU*
    count: Counter,
    /// Taken for a moment to begin and to end a resize: when the previous one is surely over.
    resizing: Mutex<Option<GracePeriod>>,
    /// *immutable*
    domain: Arc<Domain>,
    /// *immutable*
    hasher: S,
}

// SAFETY: the table owns its nodes and arrays; keys and values are `Send + Sync`.
unsafe impl<K: Send + Sync, V: Send + Sync, S: Send> Send for HashTable<K, V, S> {}
// SAFETY: nodes are shared by reference inside read sections and freed on other threads, for which keys and
// values are `Send + Sync`; chains are changed under bucket locks (H1).
unsafe impl<K: Send + Sync, V: Send + Sync, S: Sync> Sync for HashTable<K, V, S> {}

impl<K: Hash + Eq + Send + Sync, V: Send + Sync> HashTable<K, V> {
    /// An empty table whose readers are those of `domain`.
    pub fn new(domain: Arc<Domain>) -> Self {
        HashTable::with_buckets_and_hasher(domain, 0, RandomState::new())
    }
}

impl<K: Hash + Eq + Send + Sync, V: Send + Sync, S: BuildHasher> HashTable<K, V, S> {
    /// An empty table with at least `buckets` buckets, rounded up to a power of two.
    pub fn with_buckets_and_hasher(domain: Arc<Domain>, buckets: usize, hasher: S) -> Self {
        let array = Array::new(buckets.max(BUCKETS_MIN).next_power_of_two(), 0);
        HashTable {
            current: AtomicPtr::new(Box::into_raw(Box::new(array))),
            count: Counter::new(0),
            resizing: Mutex::new(None),
            domain,
            hasher,
        }
    }

    /// Begins a read section of the table's domain, for [`get`](Self::get).
    #[inline]
    pub fn read(&self) -> Guard<'_> {
        self.domain.read()
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
        let hash = self.hasher.hash_one(key);
        let mut array = self.current(guard);
        loop {
            match array.first(hash) {
                Some(mut node) => loop {
                    // SAFETY: found in the chain inside the section `guard`: freed a grace period after it was
                    // unlinked (H3), and nobody makes a `&mut` of it before.
                    let found = (unsafe { node.as_ref() })?;
                    if found.hash == hash && found.key.borrow() == key {
                        return Some(&found.value);
                    }
                    // Acquire(chain): the nodes behind; pairs with Release(chain) in Locked::unlink().
                    node = found.links[array.link].load(Ordering::Acquire);
                },
                None => array = array.next(guard).expect("a moved bucket has an array to be moved to"),
            }
        }
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
        let hash = self.hasher.hash_one(&key);
        let (walked, buckets) = {
            let guard = self.read();
            let mut bucket = self.lock(hash, &guard);
            let (found, walked) = bucket.find(hash, &key);
            if found.is_some() {
                return Err((key, value));
            }
            bucket.push(Box::new(Node::new(hash, key, value)));
            (walked, bucket.array_len())
        };
        self.count.add(1);
        if walked >= LONG_CHAIN && self.count.at_least(i64::try_from(buckets).unwrap_or(i64::MAX)) {
            self.resize(buckets.saturating_mul(2));
        }
        self.help();
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
        let hash = self.hasher.hash_one(key);
        let unlinked = {
            let guard = self.read();
            let mut bucket = self.lock(hash, &guard);
            let (found, _) = bucket.find(hash, key);
            found.map(|found| bucket.unlink(found))
        };
        let Some(node) = unlinked else { return false };
        self.count.add(-1);
        // The bucket is unlocked and the section closed: deferring may wait.
        // SAFETY: the node is out of the chain that readers are led to; older chains are walked only by
        // sections that began before its bucket was moved (H1, H3).
        self.domain.defer(move || unsafe { node.free() });
        self.help();
        true
    }

    /// Calls `visit` for each entry, without locks. An entry that is in the table during the whole call is
    /// visited at least once; one that is moved by a resize meanwhile may be visited twice.
    pub fn for_each(&self, mut visit: impl FnMut(&K, &V)) {
        let guard = self.read();
        let mut array = Some(self.current(&guard));
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

    /// The bucket of `hash`, locked, in whichever array it is now.
    fn lock<'g>(&'g self, hash: u64, guard: &'g Guard<'_>) -> Locked<'g, K, V> {
        let mut array = self.current(guard);
        loop {
            match array.lock(hash) {
                Some(bucket) => return bucket,
                None => array = array.next(guard).expect("a moved bucket has an array to be moved to"),
            }
        }
    }
}

impl<K: Send + Sync, V: Send + Sync, S> HashTable<K, V, S> {
    #[inline]
    fn current<'g>(&'g self, guard: &'g Guard<'_>) -> &'g Array<K, V> {
        assert!(guard.is_of(&self.domain), "the read section belongs to another domain");
        // Acquire(array): the buckets; pairs with Release(array) in finish().
        // SAFETY: never null; the array was current inside the section, so it is freed after it (H3).
        unsafe { &*self.current.load(Ordering::Acquire) }
    }
}

impl<K: Send + Sync, V: Send + Sync, S> Drop for HashTable<K, V, S> {
    fn drop(&mut self) {
        // Relaxed: `&mut self`. Readers and helpers borrow the table, so none is left; a resize may be half done.
        let mut array = self.current.load(Ordering::Relaxed);
        while !array.is_null() {
            // SAFETY: from `Box::into_raw`; only this table points to it.
            let owned = unsafe { Box::from_raw(array) };
            // SAFETY: nobody else is left, and a node is freed by the array in which it is not moved (H2).
            array = unsafe { owned.free_nodes() };
        }
    }
}

impl<K: Send + Sync, V: Send + Sync, S> fmt::Debug for HashTable<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashTable").field("entries", &self.count.sum()).finish_non_exhaustive()
    }
}
