//! A stranger's lock on 128 simulated CPUs: `cargo run --release -p sluice-machine --example ticket_on_128`.

use sluice_machine::atomic::{AtomicU32, Ordering};
use sluice_machine::{Machine, label, spin_loop};

#[derive(Default)]
struct Ticket {
    next: AtomicU32,
    serving: AtomicU32,
}

fn main() {
    let lock = Box::new(Ticket::default());
    label!(lock, Ticket { next, serving });
    for cpus in [1, 8, 32, 128] {
        let report = Machine::named("icelake-2s").seed(7).run(cpus, |cpu| {
            while cpu.now() < 1_000_000 {
                let mine = lock.next.fetch_add(1, Ordering::Relaxed);
                while lock.serving.load(Ordering::Acquire) != mine {
                    spin_loop();
                }
                cpu.work(100);
                lock.serving.store(mine.wrapping_add(1), Ordering::Release);
                cpu.count_op();
                cpu.work(100 + cpu.random(100));
            }
        });
        println!("{report}");
    }
}
