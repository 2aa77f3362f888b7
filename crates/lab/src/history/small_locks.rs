//! folly's small-locks benchmark: a counter under each lock, 1 to 32 threads on two sockets.
//!
//! Its machine was a Xeon E5-2680 v4 of two sockets with 28 threads each; here `icelake-2s` cut to that shape,
//! with neighbouring threads on different sockets, as the operating system spreads them.

use sluice_lock_zoo_sim::{CombiningLock, Mcs, Queued, RawSpinLock, SpinLock, Tas};
use sluice_machine::cell::{OwnLine, touch_write};
use sluice_machine::{Machine, Report, Spec, machines};
use sluice_sync_sim::CachePadded;
use sluice_sync_sim::atomic::{AtomicU32, AtomicU64, Ordering};
use sluice_sync_sim::face::futex;

/// Computing between two operations: about what a round of the benchmark takes alone, 0.6 us, in cycles.
const OUTSIDE: u64 = 1_500;

/// The contestants of the benchmark, by their construction here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Small {
    /// One atomic addition.
    FetchAdd,
    /// A compare-and-exchange until it succeeds.
    CompareExchange,
    /// `std::mutex` of glibc: a futex word, no spinning.
    Futex,
    /// PicoSpin: test-and-set without back-off.
    TestAndSet,
    /// `DistributedMutex` without combining: an MCS queue.
    Queue,
    /// `DistributedMutex` with combining: the owner runs the waiters' sections.
    Combining,
}

/// Two sockets of 14 cores with two threads.
pub fn machine() -> Machine {
    let like = machines::find("icelake-2s").expect("a machine of that name");
    Machine::custom(Spec {
        name: "broadwell-2s",
        title: "2 sockets of 14 cores with 2 threads, as icelake-2s",
        cpus: 56,
        mhz: 2400,
        cpus_per_node: 28,
        distance: |a, b| usize::from(a % 2 != b % 2),
        ..like
    })
}

/// glibc's plain mutex.
struct FutexMutex {
    /// 0 free, 1 taken, 2 taken and somebody sleeps.
    word: CachePadded<AtomicU32>,
    /// The kernel's lock of the hash bucket in which the sleepers of the word are: a sleeper looks at the word under
    /// it, and a waker takes the sleeper out under it (kernel/futex/waitwake.c). The machine's parking has none.
    bucket: CachePadded<SpinLock<(), Queued>>,
}

impl FutexMutex {
    fn lock(&self) {
        if self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.word.swap(2, Ordering::Acquire) != 0 {
                let bucket = self.bucket.lock();
                let sleeps = self.word.load(Ordering::Relaxed) == 2;
                drop(bucket);
                if sleeps {
                    futex::wait(&self.word, 2, None);
                }
            }
        }
    }

    fn unlock(&self) {
        if self.word.swap(0, Ordering::Release) == 2 {
            drop(self.bucket.lock());
            futex::wake(&self.word, 1);
        }
    }
}

/// A run of `threads` threads, each on its CPU.
pub fn contend(machine: &Machine, threads: usize, small: Small) -> Report {
    let futex =
        FutexMutex { word: CachePadded::new(AtomicU32::new(0)), bucket: CachePadded::new(SpinLock::new(())) };
    let atomic = CachePadded::new(AtomicU64::new(0));
    let (tas, mcs) = (CachePadded::new(Tas::new()), CachePadded::new(Mcs::new()));
    let combining = CachePadded::new(CombiningLock::new(OwnLine::<u64>(0)));
    let counter = CachePadded::new(0u64);
    let add = || touch_write(&raw const *counter, size_of::<u64>());
    machine.run(threads, |cpu| {
        while cpu.now() < 4_000_000 {
            match small {
                Small::FetchAdd => drop(atomic.fetch_add(1, Ordering::Relaxed)),
                Small::CompareExchange => {
                    let mut seen = atomic.load(Ordering::Relaxed);
                    while let Err(now) =
                        atomic.compare_exchange(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed)
                    {
                        seen = now;
                    }
                }
                Small::Futex => {
                    futex.lock();
                    add();
                    futex.unlock();
                }
                Small::TestAndSet => {
                    tas.lock();
                    add();
                    tas.unlock(());
                }
                Small::Queue => {
                    let token = mcs.lock();
                    add();
                    mcs.unlock(token);
                }
                Small::Combining => combining.with(|counter| {
                    touch_write(&raw const counter.0, size_of::<u64>());
                    counter.0 += 1;
                }),
            }
            cpu.count_op();
            cpu.work(OUTSIDE);
        }
    })
}
