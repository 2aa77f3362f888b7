//! README: its example of a lock on 128 CPUs compiles and runs as printed.

#[test]
#[rustfmt::skip]
fn the_readmes_example_runs() {
use sluice_machine::atomic::{AtomicU32, Ordering};
use sluice_machine::{Machine, spin_until};

let (next, serving) = (AtomicU32::new(0), AtomicU32::new(0));
let report = Machine::named("icelake-2s").seed(7).run(128, |cpu| {
    for _ in 0..10 {
        let mine = next.fetch_add(1, Ordering::Relaxed);
        spin_until(&serving, |now| now == mine);
        cpu.work(100);                                   // the critical section, in cycles
        serving.store(mine + 1, Ordering::Release);
        cpu.count_op();
    }
});
println!("{report}");                                    // throughput, fairness, idle share, the hottest lines: simulated

    assert_eq!(report.ops(), 1280);
}

#[test]
fn the_readme_prints_the_example_that_runs() {
    let readme = include_str!("../../../README.md");
    let (_, section) = readme.split_once("## Test your lock on 128 CPUs").expect("the section");
    let (_, example) = section.split_once("```rust\n").expect("its example");
    let (example, _) = example.split_once("```").expect("its end");
    assert!(include_str!("readme.rs").contains(example), "tests/readme.rs does not run:\n{example}");
}
