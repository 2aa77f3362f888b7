//! An inode cache in front of a slow store, as a durable file system would build it on reclaim: threads read, change and
//! remove inodes of which a few fit into memory.

use sluice_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sluice_sync::random::Random;
use sluice_sync::reclaim::{Reclaim, Reclaimer, Usage};
use sluice_sync::{Arc, HashTable, Mutex, OnceLock, rcu, thread};

const INODES: usize = 2_000;
const CHARGE: u64 = 400;
/// A tenth of the inodes.
const LIMIT: u64 = INODES as u64 / 10 * CHARGE;

struct Inode {
    number: usize,
    /// The size in the store, and additions since. Read by the first user, for whom the others wait.
    size: OnceLock<AtomicU64>,
    usage: Usage,
}

impl Reclaim for Inode {
    fn usage(&self) -> &Usage {
        &self.usage
    }

    fn key(&self) -> u64 {
        self.number as u64
    }

    fn charge(&self) -> u64 {
        CHARGE
    }
}

/// Sizes by number, and how many inodes of each number are in memory now, which is one at most.
struct Store {
    sizes: Vec<Mutex<u64>>,
    in_memory: Vec<AtomicUsize>,
}

struct Cache {
    inodes: HashTable<usize, Arc<Inode>>,
    memory: Reclaimer<Arc<Inode>>,
    store: Store,
}

/// A user of an inode.
struct Held(Arc<Inode>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.usage.unpin();
    }
}

impl Cache {
    fn new() -> Cache {
        let store = Store {
            sizes: (0..INODES).map(|_| Mutex::new(0)).collect(),
            in_memory: (0..INODES).map(|_| AtomicUsize::new(0)).collect(),
        };
        Cache { inodes: HashTable::new(rcu::domain()), memory: Reclaimer::new(LIMIT), store }
    }

    /// The pinned inode, from memory or a new one.
    fn find(&self, number: usize) -> Held {
        loop {
            if let Some(found) = self.inodes.get(&number, &self.inodes.read()) {
                if found.usage.pin() {
                    found.usage.touch();
                    return Held(found.clone());
                }
            } else {
                let inode = Arc::new(Inode { number, size: OnceLock::new(), usage: Usage::new() });
                self.memory.enter(inode.clone(), |gone| self.let_go(gone));
                if self.inodes.insert(number, inode.clone()).is_ok() {
                    return Held(inode);
                }
                assert!(self.memory.remove(&inode), "nobody else knows it");
            }
            thread::yield_now();
        }
    }

    fn get(&self, number: usize) -> Held {
        let held = self.find(number);
        held.0.size.get_or_init(|| {
            assert_eq!(self.store.in_memory[number].fetch_add(1, Ordering::SeqCst), 0, "twice in memory");
            AtomicU64::new(*self.store.sizes[number].lock())
        });
        held
    }

    /// Writes the inode back, and then takes it out of the table.
    fn let_go(&self, inode: &Inode) {
        if let Some(size) = inode.size.get() {
            *self.store.sizes[inode.number].lock() = size.load(Ordering::Relaxed);
            assert_eq!(self.store.in_memory[inode.number].fetch_sub(1, Ordering::SeqCst), 1, "let go twice");
        }
        assert!(self.inodes.remove(&inode.number), "let go twice");
    }
}

#[test]
fn nothing_is_lost_and_no_inode_is_in_memory_twice_while_threads_change_more_of_them_than_fit() {
    let (cache, threads, turns) = (Cache::new(), 4, 20_000);
    let added: u64 = thread::scope(|scope| {
        let users = (0..threads).map(|seed| {
            let cache = &cache;
            scope.spawn(move || {
                let (mut random, mut added, mut held) = (Random::new(seed), 0, Vec::new());
                for turn in 0..turns {
                    // Half of the time one of a few, so that threads meet.
                    let among = if random.chance(50) { 50 } else { INODES };
                    let inode = cache.get(random.below(among));
                    inode.0.size.get().expect("was read").fetch_add(1, Ordering::Relaxed);
                    added += 1;
                    match turn % 10 {
                        0 => held.push(inode),
                        // Dropped from memory before its time, if nobody else uses it.
                        1 if cache.memory.remove(&inode.0) => {
                            cache.let_go(&inode.0);
                            std::mem::forget(inode);
                        }
                        _ => {}
                    }
                    if held.len() > 10 {
                        assert!(held.iter().all(|held| !held.0.usage.is_gone()));
                        held.clear();
                    }
                }
                added
            })
        });
        let users: Vec<_> = users.collect();
        users.into_iter().map(|user| user.join().expect("the user ends")).sum()
    });
    // A newcomer lets others go now, for those that were held, too.
    (0..INODES).for_each(|number| drop(cache.get(number)));
    let in_memory = cache.inodes.len();
    assert_eq!(cache.memory.charged(), in_memory as u64 * CHARGE);
    // About: the last ones, on a CPU where they are the first, may have found nobody to let go.
    let fit = INODES / 10;
    assert!((fit / 2..fit + 10).contains(&in_memory), "{in_memory} in memory");
    cache.inodes.for_each(|number, inode| {
        *cache.store.sizes[*number].lock() = inode.size.get().expect("was read").load(Ordering::Relaxed);
    });
    assert_eq!(cache.store.sizes.iter().map(|size| *size.lock()).sum::<u64>(), added);
}
