//! Models of the per-CPU structures. There are two CPUs' values for three threads: two threads always share one,
//! as threads do that are moved between reading the CPU's number and using it.

use crate::model::explore;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};
use sluice_sync_loom::atomic::{AtomicBool, AtomicUsize, Ordering};
use sluice_sync_loom::percpu::{Counter, Ida, PerCpuList, Tally};

fn join(threads: Vec<JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
}

#[test]
fn no_addition_is_lost_when_differences_are_passed_on() {
    explore(3, || {
        let counter = Arc::new(Counter::with_batch(0, 2));
        let threads = (0..2)
            .map(|_| {
                let counter = counter.clone();
                thread::spawn(move || (0..3).for_each(|_| _ = counter.add(1)))
            })
            .collect();
        counter.add(-1);
        join(threads);
        assert_eq!(counter.sum(), 5);
    });
}

#[test]
fn a_thread_that_counts_itself_and_one_that_adds_up_do_not_miss_each_other() {
    explore(3, || {
        let shared = Arc::new((Tally::<1>::new(), AtomicBool::new(false)));
        let user = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (users, gone) = &*shared;
                users.add(0, 1);
                !gone.load(Ordering::Acquire)
            })
        };
        let (users, gone) = &*shared;
        gone.store(true, Ordering::Release);
        users.barrier();
        let unused = users.sum(0) == 0;
        assert!(!(user.join().expect("the user ends") && unused), "it goes while it is used");
    });
}

#[test]
fn an_element_is_removed_once_and_read_whole() {
    explore(2, || {
        let list = Arc::new(PerCpuList::new());
        let handle = list.add(1);
        let stays = list.add(2);
        let removed = Arc::new(AtomicUsize::new(0));
        let threads = (0..2)
            .map(|_| {
                let (list, removed) = (list.clone(), removed.clone());
                thread::spawn(move || {
                    if list.remove(handle).is_some() {
                        removed.fetch_add(1, Ordering::Relaxed);
                    }
                    list.add(3);
                })
            })
            .collect();
        let mut seen = 0;
        list.for_each(|element| seen += usize::from(*element == 2));
        assert_eq!(seen, 1, "an element that stays is seen exactly once");
        join(threads);
        assert_eq!((removed.load(Ordering::Relaxed), list.len()), (1, 3));
        assert_eq!(list.remove(stays), Some(2));
    });
}

#[test]
fn no_identifier_has_two_owners() {
    explore(2, || {
        let ida = Arc::new(Ida::new(0..3));
        let taken = Arc::new([0; 3].map(AtomicUsize::new));
        let own = |ida: &Ida, taken: &[AtomicUsize; 3]| {
            if let Some(id) = ida.alloc() {
                let at = usize::try_from(id).expect("small");
                assert_eq!(taken[at].swap(1, Ordering::Relaxed), 0, "two owners");
                taken[at].store(0, Ordering::Relaxed);
                ida.free(id);
            }
        };
        let threads = (0..2)
            .map(|_| {
                let (ida, taken) = (ida.clone(), taken.clone());
                thread::spawn(move || own(&ida, &taken))
            })
            .collect();
        own(&ida, &taken);
        join(threads);
    });
}
