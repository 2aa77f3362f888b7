//! docs/measuring.md: the program that it prints compiles and runs as printed.

use sluice_machine::atomic::{AtomicU32, Ordering};
use sluice_machine::{Machine, Report, spin_until};

fn ticket_lock_on_128_cpus() -> Report {
    let (next, serving) = (AtomicU32::new(0), AtomicU32::new(0));
    Machine::named("icelake-2s").seed(7).run(128, |cpu| {
        for _ in 0..10 {
            let mine = next.fetch_add(1, Ordering::Relaxed);
            spin_until(&serving, |now| now == mine);
            cpu.work(100); // the critical section, in cycles
            serving.store(mine + 1, Ordering::Release);
            cpu.count_op();
        }
    })
}

#[test]
fn the_program_of_the_guide_runs() {
    assert_eq!(ticket_lock_on_128_cpus().ops(), 1280);
}

#[test]
fn the_guide_prints_the_program_that_runs() {
    let guide = include_str!("../../../../docs/measuring.md");
    let (_, program) = guide.split_once("```rust\n").expect("the guide has a program");
    let (program, _) = program.split_once("```").expect("the program ends");
    assert!(
        include_str!("measuring.rs").contains(program),
        "tests/suite/measuring.rs does not run:\n{program}"
    );
}
