//! Tests of the name table: an oracle, listings beside writers, twins, and killing beside adding.

use super::*;
use crate::atomic::{AtomicBool, Ordering};
use crate::random::Random;
use crate::rcu::tests::kept_domain;
use crate::time::Duration;
use crate::{Arc, Barrier, thread};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

fn table<V: Clone + Send + Sync>() -> NameTable<V> {
    NameTable::new(kept_domain())
}

fn name(n: u64) -> Vec<u8> {
    format!("file-{n}").into_bytes()
}

fn insert<V: Clone + Send + Sync>(table: &NameTable<V>, hash: u64, name: &[u8], value: V) -> Option<u64> {
    table.lock(hash, name)?.insert(value, 1).ok()
}

fn list<V: Clone + Send + Sync>(table: &NameTable<V>) -> Vec<(u64, Vec<u8>, V)> {
    let guard = table.read();
    table.after(0, &guard).map(|(at, name, value)| (at, name.to_vec(), value.clone())).collect()
}

/// Hashes under which all names, most names, or few names are twins.
fn hashes() -> [fn(&RandomState, &[u8]) -> u64; 3] {
    [|_, _| 7, |hasher, name| hasher.hash_one(name) & (3 << 62), |hasher, name| hasher.hash_one(name)]
}

#[test]
fn the_table_agrees_with_a_sorted_map() {
    let hasher = RandomState::new();
    for (hash, steps, names) in
        hashes().map(|hash| (hash, 3_000, 60)).into_iter().chain([(hashes()[2], 60_000, 8_000)])
    {
        let (table, mut oracle, mut random) = (table(), BTreeMap::new(), Random::new(7));
        let mut weight = 0;
        for step in 0..if SHRUNK { 60 } else { steps } {
            let [name, other] = [name(random.below(names)), name(random.below(names))];
            if random.below(8) == 0 && name != other {
                let hashes = [&name, &other].map(|name| hash(&hasher, name));
                let both = ((hashes[0], &name[..]), (hashes[1], &other[..]));
                let [from, to] = [&name, &other].map(|name| oracle.get(name).copied());
                if step % 2 == 0 {
                    let exchanged = table.with_two_locked(both.0, both.1, |pair| pair.exchange());
                    assert_eq!(exchanged, Some(from.is_some() && to.is_some()));
                    if let (Some((at, value)), Some((new_at, replaced))) = (from, to) {
                        oracle.extend([(name.clone(), (at, replaced)), (other.clone(), (new_at, value))]);
                    }
                } else {
                    let renamed = table.with_two_locked(both.0, both.1, |pair| pair.rename());
                    assert_eq!(renamed, Some(from.is_some()));
                    if let Some((_, value)) = from {
                        let new_at = table.find(hashes[1], &other, &table.read()).expect("it is there").0;
                        assert!(to.is_none_or(|(at, replaced)| {
                            weight -= replaced % 2;
                            at == new_at
                        }));
                        oracle.remove(&name);
                        oracle.insert(other.clone(), (new_at, value));
                    }
                }
                continue;
            }
            let mut entry = table.lock(hash(&hasher, &name), &name).expect("alive");
            assert_eq!(entry.entry().get(), oracle.get(&name).map(|(_, value)| value));
            match random.below(8) {
                0..5 => match entry.insert(step, (step % 2) as u8) {
                    Ok(position) => {
                        weight += step % 2;
                        assert!(position > 2 && oracle.insert(name.clone(), (position, step)).is_none());
                    }
                    Err(_) => assert!(oracle.contains_key(&name)),
                },
                _ => {
                    let removed = entry.remove();
                    weight -= removed.unwrap_or(0) % 2;
                    assert_eq!(removed, oracle.remove(&name).map(|(_, value)| value));
                }
            }
        }
        let guard = table.read();
        for (name, (position, value)) in &oracle {
            assert_eq!(table.find(hash(&hasher, name), name, &guard), Some((*position, value)));
        }
        let mut expected: Vec<_> =
            oracle.iter().map(|(name, (position, value))| (*position, name.clone(), *value)).collect();
        expected.sort();
        assert_eq!(list(&table), expected);
        assert_eq!(table.sums(), Sums { entries: oracle.len() as u64, weight: weight as u64 });
        // From any position the rest follows.
        for (at, (position, ..)) in expected.iter().enumerate().step_by(97) {
            assert_eq!(table.after(*position, &guard).count(), expected.len() - at - 1);
        }
    }
}

#[test]
fn positions_fit_a_signed_word_of_32_bits_and_each_leads_on_however_many_names_collide() {
    let hasher = RandomState::new();
    // 20 names of each hash, and as they fall.
    let hashes: [fn(u64) -> u64; 2] = [|hash| hash >> 51 << 51, |hash| hash];
    for (names, hash) in hashes.map(|hash| (if SHRUNK { 200 } else { 100_000 }, hash)) {
        let table = table();
        for n in 0..names {
            assert!(insert(&table, hash(hasher.hash_one(name(n))), &name(n), n).is_some());
        }
        let listed = list(&table);
        assert_eq!(listed.len() as u64, names);
        assert!(listed.is_sorted_by(|(a, ..), (b, ..)| a < b), "positions differ");
        assert!(listed.iter().all(|(position, ..)| (3..1 << 31).contains(position)));
        let guard = table.read();
        for pair in listed.windows(2) {
            let next = table.after(pair[0].0, &guard).next().expect("there are more");
            assert_eq!((next.0, next.1, *next.2), (pair[1].0, &pair[1].1[..], pair[1].2));
        }
        for (position, name, n) in &listed {
            assert_eq!(table.find(hash(hasher.hash_one(name)), name, &guard), Some((*position, n)));
        }
    }
}

#[test]
fn a_hash_has_room_for_256_names() {
    let table = table();
    (0..256).for_each(|n| assert!(insert(&table, 1 << 60, &name(n), n).is_some()));
    assert_eq!(insert(&table, 1 << 60, &name(256), 256), None);
    assert!(table.lock(1 << 60, &name(77)).expect("alive").remove().is_some());
    assert!(insert(&table, 1 << 60, &name(256), 256).is_some());
    // The names beside it have room of their own.
    assert!(insert(&table, (1 << 60) - 1, &name(0), 0).is_some());
    assert!(insert(&table, (1 << 60) + (1 << 41), &name(0), 0).is_some());
}

#[test]
fn an_entry_that_stays_is_listed_once_whatever_comes_and_goes() {
    let (table, hasher) = (table(), RandomState::new());
    let (stay, rounds) = if SHRUNK { (4, 20) } else { (100, 30_000) };
    for n in 0..stay {
        assert!(insert(&table, hasher.hash_one(name(n)), &name(n), n).is_some());
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let mut seen: Vec<_> = list(&table);
                assert!(seen.is_sorted_by_key(|(position, ..)| *position));
                seen.retain(|(.., value)| *value < stay);
                seen.sort_unstable_by_key(|(.., value)| *value);
                assert!(seen.iter().map(|(.., value)| *value).eq(0..stay));
            }
        });
        let writers = [1u64, 2].map(|writer| {
            let (table, hasher) = (&table, &hasher);
            scope.spawn(move || {
                let mut random = Random::new(writer);
                for _ in 0..rounds {
                    let n = writer * 1_000_000 + random.below(2_000);
                    let name = name(n);
                    let mut entry = table.lock(hasher.hash_one(&name), &name).expect("alive");
                    if entry.insert(n, 0).is_err() {
                        assert_eq!(entry.remove(), Some(n));
                    }
                    drop(entry);
                    if random.below(1_024) == 0 {
                        table.grow();
                    }
                }
            })
        });
        writers.into_iter().for_each(|writer| writer.join().expect("a writer ends"));
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(table.len(), list(&table).len());
}

#[test]
fn two_names_are_locked_and_exchanged_from_many_threads() {
    let (table, hasher) = (table(), RandomState::new());
    let names: Vec<_> = (0..6).map(name).collect();
    let hash = |name: &Vec<u8>| hasher.hash_one(name);
    for (n, name) in names.iter().enumerate() {
        insert(&table, hash(name), name, n);
    }
    thread::scope(|scope| {
        for seed in 1..4 {
            let (table, names) = (&table, &names);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for round in 0..if SHRUNK { 20 } else { 20_000 } {
                    let [a, b] = [(); 2].map(|()| &names[random.below(6)]);
                    let exchange = |pair: &mut LockedPair<'_, _>| a == b || pair.exchange();
                    let exchanged = table.with_two_locked((hash(a), a), (hash(b), b), exchange);
                    assert_eq!(exchanged, Some(true), "both are there");
                    if round % 1_000 == 0 {
                        table.grow();
                    }
                }
            });
        }
    });
    let mut values: Vec<_> = list(&table).into_iter().map(|(.., value)| value).collect();
    values.sort_unstable();
    assert!(values.into_iter().eq(0..6));
}

#[test]
fn a_killed_table_takes_no_name_and_a_table_with_names_is_not_killed() {
    let table = table();
    assert!(insert(&table, 5, b"a", ()).is_some());
    assert!(!table.kill() && !table.is_dead());
    assert!(table.lock(5, b"a").expect("alive").remove().is_some());
    assert!(table.kill() && table.is_dead() && table.kill());
    assert!(table.lock(5, b"a").is_none() && table.with_two_locked((5, b"a"), (6, b"b"), |_| ()).is_none());
    assert!(table.get(5, b"a", &table.read()).is_none() && list(&table).is_empty() && table.is_empty());
    let never_used = self::table::<()>();
    assert!(never_used.kill() && never_used.lock(1, b"a").is_none());
}

#[test]
fn a_table_is_killed_or_a_name_is_added_but_not_both() {
    for round in 0..if SHRUNK { 5 } else { 2_000 } {
        let table = table();
        // Now and then in the middle of a resize.
        if round % 2 == 0 {
            let _ = table.lock(0, b"first").map(|mut entry| (entry.insert((), 0).is_ok(), entry.remove()));
            table.grow();
        }
        let (added, killed) = thread::scope(|scope| {
            let adder = scope.spawn(|| insert(&table, round << 50, b"name", ()).is_some());
            let killer = scope.spawn(|| table.kill());
            (adder.join().expect("ends"), killer.join().expect("ends"))
        });
        assert!(added != killed, "added {added}, killed {killed}");
        assert_eq!((list(&table).len(), table.is_dead()), (usize::from(added), killed));
    }
}

#[test]
fn a_removed_value_is_dropped_once_after_its_readers() {
    let (table, value) = (table(), Arc::new(()));
    for n in 0..10u64 {
        assert!(insert(&table, n << 60, &name(n), value.clone()).is_some());
    }
    let guard = table.read();
    let found = table.get(3 << 60, &name(3), &guard).expect("is there");
    drop(table.lock(3 << 60, &name(3)).and_then(|mut entry| entry.remove()));
    assert!(table.get(3 << 60, &name(3), &guard).is_none());
    assert_eq!(Arc::strong_count(found), 11);
    drop(guard);
    table.chains.domain.flush();
    assert_eq!(Arc::strong_count(&value), 10);
    drop(table);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn names_of_every_length_are_kept_and_longer_ones_refused() {
    let table = table();
    let lengths = || (0..=NAME_MAX).step_by(if SHRUNK { 51 } else { 1 });
    lengths().for_each(|len| assert!(insert(&table, 9 << 60, &vec![b'x'; len], len).is_some()));
    assert!(insert(&table, 8 << 60, &[b'x'; NAME_MAX + 1], 0).is_none());
    assert!(list(&table).iter().map(|(_, name, len)| (name.len(), *len)).eq(lengths().map(|len| (len, len))));
}

#[test]
fn an_entry_costs_at_most_forty_bytes_beside_its_name_and_value() {
    assert!(size_of::<NameNode<u64>>() - size_of::<u64>() <= 40);
    assert_eq!(size_of::<NameTable<u64>>() - crate::lock_debug::BYTES_PER_LOCK, 16);
}

#[test]
fn a_name_that_moves_is_never_counted_twice_nor_left_out() {
    let (table, done) = (table(), AtomicBool::new(false));
    let names = [(1u64 << 60, name(1)), (9 << 60, name(2))];
    insert(&table, names[0].0, &names[0].1, ());
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..if crate::face::SHRUNK { 10 } else { 20_000 } {
                let [(from, old), (to, new)] = [&names[round % 2], &names[(round + 1) % 2]];
                let renamed = table.with_two_locked((*from, old), (*to, new), |pair| pair.rename());
                assert_eq!(renamed, Some(true));
            }
            done.store(true, Ordering::SeqCst);
        });
        while !done.load(Ordering::SeqCst) {
            // While it moves without a pause, no moment may be caught.
            let guard = table.read();
            let array = table.chains.current(&guard).expect("there is a name");
            let looks = [(); 2].map(|()| table.add_up(array, &guard));
            if looks[0] == looks[1] && looks[1].is_settled {
                assert_eq!(looks[1].entries, 1);
            }
        }
    });
    assert_eq!(table.len(), 1);
}

#[test]
fn a_thread_that_waits_for_a_name_keeps_no_grace_period_waiting() {
    let domain = kept_domain();
    let table = NameTable::new(domain);
    insert(&table, 7, b"name", ());
    // As the lock of a name, without the section that its holder is in.
    let bucket = table.chains.lock(node::place_of(node::first_position(7))).expect("there is an array");
    thread::scope(|scope| {
        scope.spawn(|| drop(table.lock(7, b"name")));
        let ends = |period| {
            (0..10_000).any(|_| {
                thread::sleep(Duration::from_millis(1));
                domain.poll(period)
            })
        };
        let all_end = (0..if SHRUNK { 3 } else { 50 }).all(|_| ends(domain.start()));
        drop(bucket);
        assert!(all_end, "the waiter stays in its section");
    });
}

#[test]
fn a_thread_that_helps_to_move_a_table_keeps_no_name_of_another_one_locked() {
    let domain = kept_domain();
    let [low, high]: [NameTable<u32>; 2] = [NameTable::new(domain), NameTable::new(domain)];
    // In the first bucket, which is moved first, and in the last.
    let (first, last) = (0, u64::MAX);
    [&low, &high].iter().for_each(|table| _ = insert(table, last, b"last", 0).expect("there is room"));
    // Two buckets at least, and a resize that nobody has helped with.
    while low.buckets() == 1 {
        assert!(low.grow());
        low.help();
        domain.synchronize();
    }
    assert!(low.grow());
    let steps = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _lower = low.lock(first, b"first").expect("nobody kills it");
            steps.wait();
            // As two directories are locked: in their order, while the other thread, which has this name, leaves.
            drop(high.lock_nested(last, b"last", 1));
        });
        // That has its names in the same order, but moves the other way.
        let lower = low.lock(last, b"last").expect("nobody kills it");
        let higher = high.lock_nested(last, b"last", 1).expect("nobody kills it");
        let mut pair = LockedPair::between(higher, lower);
        assert_eq!(pair.second().remove(), Some(0));
        steps.wait();
        drop(pair);
    });
}

/// Whether the CPUs count what is in the table, and not its buckets.
fn is_counted_by_cpus<V: Clone + Send + Sync>(table: &NameTable<V>) -> bool {
    let guard = table.read();
    table.chains.current(&guard).is_some_and(|array| array.cpus().is_some())
}

#[test]
fn sums_are_exact_after_threads_filled_a_table_through_several_lengths() {
    let (table, hasher) = (table(), RandomState::new());
    let (threads, names) = (4, if SHRUNK { 8 } else { 15_000 });
    let own = |thread: u64| (thread * names..(thread + 1) * names).map(|n| (n, name(n)));
    let filled = Barrier::new(threads as usize);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (table, hasher, filled) = (&table, &hasher, &filled);
            scope.spawn(move || {
                for (n, name) in own(thread) {
                    let mut entry = table.lock(hasher.hash_one(&name), &name).expect("alive");
                    assert!(entry.insert(n, (n % 3) as u8).is_ok());
                }
                filled.wait();
                // The names that another thread added.
                for (n, name) in own((thread + 1) % threads) {
                    let hash = hasher.hash_one(&name);
                    match n % 4 {
                        0 => _ = table.lock(hash, &name).and_then(|mut entry| entry.remove()),
                        1 => {
                            let new = self::name(n + threads * names);
                            let names = ((hash, &name[..]), (hasher.hash_one(&new), &new[..]));
                            assert_eq!(
                                table.with_two_locked(names.0, names.1, |pair| pair.rename()),
                                Some(true)
                            );
                        }
                        // Names of different weights.
                        2 => {
                            let other = self::name(n + 1);
                            let names = ((hash, &name[..]), (hasher.hash_one(&other), &other[..]));
                            assert_eq!(
                                table.with_two_locked(names.0, names.1, |pair| pair.exchange()),
                                Some(true)
                            );
                        }
                        _ => {}
                    }
                }
            });
        }
    });
    let left = list(&table);
    let weight = left.iter().map(|(.., n)| n % 3).sum();
    assert_eq!(left.len() as u64, threads * names * 3 / 4);
    assert_eq!(table.sums(), Sums { entries: left.len() as u64, weight });
    assert!(is_counted_by_cpus(&table), "it is large by now");
    for (_, name, _) in left {
        assert!(table.lock(hasher.hash_one(&name), &name).expect("alive").remove().is_some());
    }
    assert!(table.sums() == Sums::default() && table.kill());
}

#[test]
fn one_thread_alone_makes_a_table_grow_in_time() {
    let (table, hasher) = (table(), RandomState::new());
    for n in 0..if SHRUNK { 100 } else { 150_000 } {
        let name = name(n);
        insert(&table, hasher.hash_one(&name), &name, ());
        // Four for each bucket, one more for a look that comes too early, and some while an earlier array has readers.
        assert!(n <= 8 * table.buckets() as u64, "{n} names in {} buckets", table.buckets());
    }
    assert!(is_counted_by_cpus(&table), "it is large by now");
}

#[test]
fn a_table_that_has_lost_its_names_gives_buckets_back_while_it_is_read_and_changed() {
    let (table, hasher) = (table(), RandomState::new());
    let (stay, all) = if SHRUNK { (2, 100) } else { (100, 100_000) };
    let entry = |n| (hasher.hash_one(name(n)), name(n));
    (0..all).for_each(|n| assert!(insert(&table, entry(n).0, &entry(n).1, n).is_some()));
    let most = table.buckets();
    assert!(most >= SHRINKS_FROM, "{most} buckets");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let staying: Vec<_> = list(&table).into_iter().filter(|(.., value)| *value < stay).collect();
                assert!(staying.len() as u64 == stay && staying.is_sorted_by_key(|(position, ..)| *position));
                assert!((0..stay).all(|n| table.get(entry(n).0, &entry(n).1, &table.read()) == Some(&n)));
            }
        });
        scope.spawn(|| {
            for round in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let own = entry(all + round % 1_000);
                assert!(insert(&table, own.0, &own.1, all).is_some(), "added once");
                assert!(table.lock(own.0, &own.1).expect("alive").remove().is_some(), "and removed");
            }
        });
        for n in stay..all {
            assert!(table.lock(entry(n).0, &entry(n).1).expect("alive").remove().is_some());
        }
        while !(table.buckets() < SHRINKS_FROM || table.shrink()) {
            table.chains.domain.synchronize();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(table.buckets() <= most / SHRINKS_BY);
    assert_eq!((table.len() as u64, list(&table).len() as u64), (stay, stay));
}
