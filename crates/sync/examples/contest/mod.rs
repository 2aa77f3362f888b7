//! Contest: threads that do the same thing at the same time, for the measurements of locks.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Nanoseconds per turn of `turn`, called `turns` times on each of `threads` threads, from the first one's begin to
/// the last one's end. They wait for each other awake: who is woken from sleep comes when others are done.
pub(crate) fn time(threads: usize, turns: u32, turn: impl Fn() + Sync) -> f64 {
    let ready = AtomicUsize::new(0);
    let run = || {
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < threads {
            std::thread::yield_now();
        }
        let begin = Instant::now();
        (0..turns).for_each(|_| turn());
        (begin, Instant::now())
    };
    let times: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        runs.into_iter().map(|run| run.join().expect("a measuring thread ends")).collect()
    });
    let begin = times.iter().map(|(begin, _)| *begin).min();
    let end = times.iter().map(|(_, end)| *end).max();
    let took = begin.zip(end).map_or(0.0, |(begin, end)| (end - begin).as_secs_f64());
    took * 1e9 / f64::from(turns) / threads as f64
}

/// About `n` nanoseconds of work that touches no memory.
pub(crate) fn work(n: u32) {
    for turn in 0..n {
        black_box(turn);
    }
}
