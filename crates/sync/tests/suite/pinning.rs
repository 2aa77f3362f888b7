//! CPU numbers and pinning, natively.

use sluice_sync::{cpu, thread};

#[test]
fn every_allowed_cpu_can_be_pinned_to() {
    thread::spawn(|| {
        let cpus = cpu::allowed();
        assert!(!cpus.is_empty());
        for number in cpus {
            cpu::pin(number).expect("an allowed CPU accepts the thread");
            assert_eq!(cpu::allowed(), [number]);
            assert_eq!(cpu::current(), number);
        }
    })
    .join()
    .expect("the pinned thread ends");
}
