//! Waiters of a file lock: all woken at each unlock, as until 2018, or in a tree of which one is woken.
//!
//! All tasks want the same range. A list under a spin lock has those that wait. Before, an unlock empties the list and
//! wakes everybody; each tries again and, but for one, queues again. With the tree a waiter hangs below another
//! that it conflicts with, so an unlock wakes the first alone, which takes those below along; to queue is to walk
//! down to a leaf.

use sluice_lock_zoo_sim::{Queued, SpinLock};
use sluice_machine::{Machine, Report};
use sluice_sync_sim::CachePadded;
use sluice_sync_sim::atomic::{AtomicU32, Ordering};
use sluice_sync_sim::face::futex;
use std::collections::VecDeque;

/// Checks and allocation of the system call around each lock and unlock, in cycles.
const CALL: u64 = 500;
/// The cost of a walk down the tree for a waiter that queues.
const WALK: u64 = 300;

#[derive(Default)]
struct LockAndWaiters {
    held: bool,
    waiters: VecDeque<usize>,
}

/// Locks and unlocks of `tasks` tasks, each on its CPU.
pub fn lock_and_unlock(machine: &Machine, tasks: usize, tree: bool) -> Report {
    let file: SpinLock<LockAndWaiters, Queued> = SpinLock::new(LockAndWaiters::default());
    let file = CachePadded::new(file);
    let asleep: Vec<CachePadded<AtomicU32>> =
        (0..tasks).map(|_| CachePadded::new(AtomicU32::new(0))).collect();
    let wake = |task: usize| {
        if asleep[task].swap(0, Ordering::Release) == 1 {
            futex::wake(&asleep[task], 1);
        }
    };
    machine.run(tasks, |cpu| {
        let me = cpu.id();
        while cpu.now() < 20_000_000 {
            cpu.work(CALL / 2 + cpu.random(CALL));
            loop {
                let mut state = file.lock();
                if !state.held {
                    state.held = true;
                    break;
                }
                if tree {
                    cpu.work(WALK);
                }
                asleep[me].store(1, Ordering::Relaxed);
                state.waiters.push_back(me);
                drop(state);
                while asleep[me].load(Ordering::Acquire) == 1 {
                    futex::wait(&asleep[me], 1, None);
                }
            }
            cpu.work(CALL / 2 + cpu.random(CALL));
            let mut state = file.lock();
            state.held = false;
            // The kernel wakes under the lock of the list.
            let woken = if tree { state.waiters.len().min(1) } else { state.waiters.len() };
            state.waiters.drain(..woken).for_each(wake);
            drop(state);
            cpu.count_op();
        }
    })
}
