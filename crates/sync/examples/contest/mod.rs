//! Contest: threads that do the same thing at the same time, for the measurements of locks.

use sluice_sync::cpu;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The cost of a turn.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    /// Nanoseconds, of all threads together.
    pub(crate) nanos: f64,
    /// How often a thread sleeps.
    #[allow(dead_code)]
    pub(crate) sleeps: f64,
}

/// The cost of a call of `turn`, over `turns` calls on each of `threads` threads, from the first thread's start to the
/// last thread's end. They wait for each other awake: a thread woken from sleep comes when others are done. If there
/// are CPUs enough each has its own: a quiet system may leave two that begin together on one CPU until both are done.
pub(crate) fn cost_of(threads: usize, turns: u32, turn: impl Fn() + Sync) -> Cost {
    let (ready, cpus) = (AtomicUsize::new(0), cpu::allowed());
    let run = |thread: usize| {
        if threads <= cpus.len() {
            cpu::pin(cpus[thread]).expect("a CPU that was allowed a moment ago");
        }
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < threads {
            std::thread::yield_now();
        }
        let (slept, begin) = (sleeps(), Instant::now());
        (0..turns).for_each(|_| turn());
        (begin, Instant::now(), sleeps() - slept)
    };
    let times: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        runs.into_iter().map(|run| run.join().expect("a measuring thread ends")).collect()
    });
    let begin = times.iter().map(|(begin, ..)| *begin).min();
    let end = times.iter().map(|(_, end, _)| *end).max();
    let took = begin.zip(end).map_or(0.0, |(begin, end)| (end - begin).as_secs_f64());
    let all = f64::from(turns) * threads as f64;
    let slept: u64 = times.iter().map(|(.., slept)| slept).sum();
    Cost { nanos: took * 1e9 / all, sleeps: slept as f64 / all }
}

/// How often the calling thread has slept; 0 where the system does not tell.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// About `n` cycles of work that touches no shared memory. The same instructions for all locks that are compared.
#[inline(never)]
pub(crate) fn work(n: u32) {
    for turn in 0..n {
        black_box(turn);
    }
}
