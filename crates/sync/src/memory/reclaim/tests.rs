//! Tests of reclaim: what stays under traces of uses, which CPU pays, and that nothing is lost or let go twice.

use super::*;
use crate::Arc;
use crate::random::Random;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

const CHARGE: u64 = 512;
/// How many objects there is memory for.
const ROOM: usize = 1_000;

const LIMIT: u64 = ROOM as u64 * CHARGE;

/// A number from 0 up to about `end`, `n` about `1/n` as often as 1: as names are used (Zipf).
fn zipf(random: &mut Random, end: usize) -> usize {
    let octave = random.below(end.ilog2());
    (1 << octave) + random.below(1 << octave)
}

struct Object {
    key: u64,
    charge: u64,
    usage: Usage,
}

impl Reclaim for Object {
    fn usage(&self) -> &Usage {
        &self.usage
    }

    fn key(&self) -> u64 {
        self.key
    }

    fn charge(&self) -> u64 {
        self.charge
    }
}

/// A policy by its answers: keys used, and whether they were there.
trait Policy {
    fn is_hit(&mut self, key: usize) -> bool;
}

/// A cache before a store that has every key, used by one thread that says on which CPU it is.
struct Cache {
    here: usize,
    there: RefCell<HashMap<u64, Arc<Object>>>,
    memory: Reclaimer<Arc<Object>>,
}

impl Cache {
    fn new(cpus: usize, limit: u64) -> Cache {
        let cpus = PerCpu::with_cpus(cpus, |_| Mutex::new(Queues::new()));
        Cache { here: 0, there: RefCell::default(), memory: Reclaimer::with(cpus, limit) }
    }

    /// The object, pinned, and whether it was there.
    fn get(&self, key: u64, charge: u64) -> (Arc<Object>, bool) {
        if let Some(found) = self.there.borrow().get(&key) {
            assert!(found.usage.pin(), "what has gone is not found");
            found.usage.touch();
            return (found.clone(), true);
        }
        let object = Arc::new(Object { key, charge, usage: Usage::new() });
        self.there.borrow_mut().insert(key, object.clone());
        self.memory.enter_at(self.here, object.clone(), |gone| {
            let gone = self.there.borrow_mut().remove(&gone.key);
            assert!(gone.is_some_and(|gone| gone.usage.is_gone()), "let go once");
        });
        (object, false)
    }

    fn remove(&self, object: &Arc<Object>) -> bool {
        let removed = self.memory.remove(object);
        if removed {
            self.there.borrow_mut().remove(&object.key);
        }
        removed
    }

    fn charged(&self) -> u64 {
        self.there.borrow().values().map(|object| object.charge).sum()
    }

    /// How many handles the queues hold.
    fn queued(&self) -> usize {
        self.memory.cpus.iter().map(|queues| queues.lock().len()).sum()
    }

    /// That the books agree with what is there (C1).
    fn check(&self, limit: u64) {
        let (charged, credits) = self.memory.cpus.iter().fold((0, 0), |(charged, credits), queues| {
            let queues = queues.lock();
            (charged + queues.charged, credits + queues.credit)
        });
        assert_eq!((charged, charged), (self.charged(), self.memory.charged()));
        assert!(credits >= 0, "what is owed all owe");
        let undrawn = self.memory.undrawn.load(Ordering::Relaxed);
        assert_eq!(undrawn + credits + charged.cast_signed(), limit.cast_signed());
    }
}

impl Policy for Cache {
    fn is_hit(&mut self, key: usize) -> bool {
        let (object, was_there) = self.get(key as u64, CHARGE);
        object.usage.unpin();
        was_there
    }
}

/// First in, first out; or, if a hit moves to the end, least recently used.
struct Queue {
    moves: bool,
    keys: VecDeque<usize>,
}

impl Policy for Queue {
    fn is_hit(&mut self, key: usize) -> bool {
        let at = self.keys.iter().rposition(|there| *there == key);
        if let Some(at) = at.filter(|_| self.moves) {
            self.keys.remove(at);
        }
        if self.moves || at.is_none() {
            self.keys.push_back(key);
        }
        if self.keys.len() > ROOM {
            self.keys.pop_front();
        }
        at.is_some()
    }
}

/// How many of 1,000 uses of a working set find their object: while nothing else is used, beside a scan that uses `burst` times
/// each of four objects for each use of the working set, and after it.
fn hits_around_a_scan(policy: &mut dyn Policy, burst: usize) -> [usize; 3] {
    let (mut random, mut scanned, uses) = (Random::new(7), 1 << 32, 5 * ROOM);
    let mut hits = |scan| {
        let hits = (0..uses).filter(|_| {
            for _ in 0..scan * burst {
                policy.is_hit(scanned / burst);
                scanned += 1;
            }
            policy.is_hit(zipf(&mut random, ROOM * 3 / 4))
        });
        hits.count() * 1_000 / uses
    };
    hits(0);
    [hits(0), hits(4), hits(0)]
}

#[test]
fn what_is_used_again_and_again_is_found_beside_a_scan() {
    for burst in [1, 3] {
        let queue = |moves| Queue { moves, keys: VecDeque::new() };
        let lru = hits_around_a_scan(&mut queue(true), burst);
        let fifo = hits_around_a_scan(&mut queue(false), burst);
        let ours = hits_around_a_scan(&mut Cache::new(1, LIMIT), burst);
        println!(
            "hits of 1,000 before, beside, after a scan in bursts of {burst}: {ours:?}, LRU {lru:?}, FIFO {fifo:?}"
        );
        assert!(ours[0] >= lru[0] - 5, "{ours:?}, LRU {lru:?}");
        assert!(ours[1] >= 980 && lru[1] < 700 && fifo[1] < 600, "{ours:?}, LRU {lru:?}, FIFO {fifo:?}");
    }
}

#[test]
fn a_scan_alone_pushes_out_nothing_that_was_found_before() {
    let set = ROOM * 3 / 4;
    let hits = |policy: &mut dyn Policy, keys: Range<usize>| keys.filter(|key| policy.is_hit(*key)).count();
    let found_after = |policy: &mut dyn Policy, burst: usize| {
        // A few others come after it, so that it is not new when it is found.
        let rounds = [0..set, ROOM..ROOM * 6 / 5, 0..set];
        assert_eq!(rounds.map(|keys| hits(policy, keys)), [0, 0, set]);
        (1 << 32..(1 << 32) + 10 * ROOM).for_each(|key| (0..burst).for_each(|_| _ = policy.is_hit(key)));
        hits(policy, 0..set)
    };
    for burst in [1, 3] {
        assert_eq!(found_after(&mut Queue { moves: true, keys: VecDeque::new() }, burst), 0);
        assert_eq!(found_after(&mut Cache::new(1, LIMIT), burst), set);
    }
}

#[test]
fn a_new_working_set_takes_the_place_of_the_old_one() {
    let mut cache = Cache::new(1, LIMIT);
    let mut round = |from: usize| (from..from + ROOM * 3 / 4).filter(|key| cache.is_hit(*key)).count();
    for set in [0, 1 << 20] {
        let hits = [(); 8].map(|()| round(set));
        assert_eq!(hits[0], 0);
        // Used in turn, none is found while it is on probation: but its ghost is.
        assert!(hits[7] > ROOM * 7 / 10, "{hits:?}");
    }
}

#[test]
fn a_thread_that_moves_to_another_cpu_finds_room_there_and_a_scan_of_its_own_does_not_rob_the_others() {
    let mut cache = Cache::new(4, LIMIT);
    let mut round = |here: usize, from: usize, len: usize| {
        cache.here = here;
        (from..from + len).filter(|key| cache.is_hit(*key)).count()
    };
    // CPU 0 fills the memory and rests; what CPU 1 uses is more than a share of it.
    assert_eq!([(); 2].map(|()| round(0, 0, ROOM)), [0, ROOM]);
    let hits = [(); 12].map(|()| round(1, 1 << 20, ROOM * 3 / 4));
    assert!(hits[11] > ROOM * 6 / 10, "{hits:?}");
    // CPU 2 scans while CPU 1 goes on.
    let hits = (2..102).map(|n| {
        assert_eq!(round(2, n << 20, ROOM / 10), 0);
        round(1, 1 << 20, ROOM / 2)
    });
    let hits: usize = hits.sum();
    assert!(hits >= 99 * ROOM / 2, "{hits}");
}

#[test]
fn what_is_pinned_stays_beyond_the_limit_and_goes_when_it_is_not() {
    let mut cache = Cache::new(2, LIMIT);
    let held: Vec<_> = (0..2 * ROOM as u64).map(|key| cache.get(key, CHARGE).0).collect();
    assert_eq!(cache.charged(), 2 * LIMIT);
    cache.check(LIMIT);
    held.iter().for_each(|object| object.usage.unpin());
    // A newcomer pays now, on whatever CPU.
    cache.here = 1;
    for key in 1 << 20.. {
        cache.get(key, CHARGE).0.usage.unpin();
        if cache.charged() <= LIMIT {
            break;
        }
        assert!(key < (1 << 20) + ROOM as u64, "each newcomer lets more go than it brings");
    }
    cache.check(LIMIT);
}

#[test]
fn what_is_removed_gives_its_bytes_back_and_leaves_no_garbage() {
    let cache = Cache::new(2, LIMIT);
    let stays = cache.get(1, CHARGE).0;
    for key in 2..100 * ROOM as u64 {
        let object = cache.get(key, CHARGE).0;
        assert!(object.usage.pin() && !cache.remove(&object), "another has it");
        object.usage.unpin();
        assert!(cache.remove(&object) && !object.usage.pin());
        assert!(cache.queued() < 8);
    }
    assert_eq!((cache.charged(), stays.usage.is_gone()), (CHARGE, false));
    cache.check(LIMIT);
}

#[test]
fn under_random_calls_the_books_agree_and_nothing_is_lost() {
    for seed in 1..40 {
        let limit = LIMIT / seed;
        let (mut cache, mut random) = (Cache::new(4, limit), Random::new(seed));
        let mut held: Vec<Arc<Object>> = Vec::new();
        for step in 0..5_000 {
            cache.here = random.below(4);
            let key = zipf(&mut random, 4 * ROOM) as u64;
            match random.below(8) {
                0 if held.len() < 20 => held.push(cache.get(key, 100 * (1 + key % 9)).0),
                1 if !held.is_empty() => held.swap_remove(random.below(held.len())).usage.unpin(),
                2 => {
                    let object = cache.get(key, 100 * (1 + key % 9)).0;
                    let alone = !held.iter().any(|other| Arc::ptr_eq(other, &object));
                    assert_eq!(cache.remove(&object), alone);
                    if !alone {
                        object.usage.unpin();
                    }
                }
                _ => cache.get(key, 100 * (1 + key % 9)).0.usage.unpin(),
            }
            assert!(held.iter().all(|object| !object.usage.is_gone()), "let go while it was held");
            // Beyond the limit: what is held, and what was passed by since it had just been found.
            let pinned: u64 = held.iter().map(|object| object.charge).sum();
            assert!(cache.charged() <= limit + pinned + u64::from(LOOKS) * 900, "seed {seed}, step {step}");
        }
        cache.check(limit);
    }
}
