//! Locks of `lock_api` under [`Scales`]: a ticket lock fails, a queue lock passes, and the worst wait is named.

use sluice_machine::atomic::{AtomicU64, Ordering};
use sluice_machine::cell::OwnLine;
use sluice_machine::{Cpu, Machine, Scales};

// The example that docs/measuring.md prints.
#[allow(dead_code)] // its main
#[path = "../../examples/scales.rs"]
mod example;

use example::{Queue as MyLock, Queue, Ticket};

#[test]
fn at_64_cpus_a_ticket_lock_fails_and_names_its_worst_wait_and_a_queue_lock_passes() {
    let scales = Scales::to(64).at_least(0.8);
    let failure =
        scales.mutex::<Ticket>().map(|scaling| scaling.to_string()).expect_err("all wait on one word");
    let place = failure.scaling.worst_wait().expect("they wait");
    assert!(place.site.file().ends_with("examples/scales.rs"), "{failure}");
    let line = include_str!("../../examples/scales.rs").lines().nth(place.site.line() as usize - 1);
    assert!(
        line.is_some_and(|line| line.contains("self.serving.load") || line.contains("spin_loop()")),
        "{failure}"
    );
    let text = failure.to_string();
    assert!(
        text.starts_with("0.80 must be kept, but Ticket: 64 CPUs of power7-64 (simulated) keep 0."),
        "{text}"
    );
    assert!(text.contains("the worst wait:") && text.contains("the worst line: Ticket"), "{text}");
    assert!(text.contains("written by 64 CPUs, most of all by the "), "{text}");
    assert_eq!(format!("{failure:?}"), text, "a test that fails prints it");
    let passed = scales.mutex::<Queue>().expect("each waits on a line of its own");
    assert!(passed.kept() >= 0.8 && passed.to_string().contains("Queue: 64 CPUs"), "{passed}");
    assert!(scales.at_least(2.0).mutex::<Queue>().is_err(), "more than can be had");
}

#[test]
fn my_lock_keeps_four_fifths_of_its_rate_on_64_cpus() {
    sluice_machine::Scales::to(64).at_least(0.8).mutex::<MyLock>().unwrap();
}

#[test]
fn the_guide_prints_a_test_that_runs_and_what_one_says_that_fails() {
    let guide = include_str!("../../../../docs/measuring.md");
    let (_, rest) = guide.split_once("### As a test of your lock").expect("the chapter");
    let part = |kind: &str| {
        let (_, part) = rest.split_once(&format!("```{kind}\n")).expect("a program, and what it says");
        part.split_once("\n```").expect("it ends").0
    };
    assert!(include_str!("scales.rs").contains(part("rust")), "this file does not run:\n{}", part("rust"));
    let failure = Scales::to(64).mutex::<Ticket>().map(|scaling| scaling.to_string()).expect_err("as above");
    // Here the example is a module of the tests.
    let said = failure.to_string().replace("tests/suite/../../", "");
    assert_eq!(part("text"), said);
}

#[test]
fn the_verdict_is_the_same_in_a_hundred_runs() {
    let scales = Scales::to(64).at_least(0.8);
    let kept = || {
        (
            scales.mutex::<Ticket>().map_err(|failure| failure.scaling.kept()),
            scales.mutex::<Queue>().map(|scaling| scaling.kept()),
        )
    };
    let describe = |(ticket, queue): (Result<_, f64>, Result<f64, _>)| (ticket.err(), queue.ok());
    let first = describe(kept());
    for run in 1..100 {
        assert_eq!(describe(kept()), first, "run {run}");
    }
}

#[test]
fn readers_of_a_lock_and_any_operation_are_judged_alike() {
    let scales = Scales::to(32);
    let failure = scales
        .readers::<Counted>()
        .map(|scaling| scaling.to_string())
        .expect_err("each reader writes the count");
    assert!(failure.to_string().contains("by the read-modify-write at"), "{failure}");
    let own = || {
        let counts: Vec<OwnLine<AtomicU64>> = (0..32).map(|_| OwnLine::default()).collect();
        move |cpu: &Cpu| {
            counts[cpu.id()].fetch_add(1, Ordering::Relaxed);
        }
    };
    let one = || {
        let count = Box::new(OwnLine(AtomicU64::new(0)));
        move |_: &Cpu| {
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    assert!(scales.operation("counts::Own", own).is_ok_and(|scaling| scaling.name == "Own"));
    let milan = scales.on(Machine::named("milan-2s").seed(3));
    let failure = milan
        .outside(1_000)
        .operation("One", one)
        .map(|scaling| scaling.to_string())
        .expect_err("all write one line");
    assert!(failure.to_string().contains("One: 32 CPUs of milan-2s (simulated) keep 0."), "{failure}");
    assert!(failure.to_string().contains(" of 32 times the rate of 1\n"), "{failure}");
}

#[test]
#[should_panic(expected = "no machine has 1000 CPUs; give 1 to 256")]
fn more_cpus_than_any_machine_has_are_refused() {
    Scales::to(1000);
}

/// A lock of readers alone, which are counted in one place.
struct Counted(AtomicU64);

// SAFETY: nobody ever has it exclusively.
unsafe impl lock_api::RawRwLock for Counted {
    const INIT: Counted = Counted(AtomicU64::new(0));
    type GuardMarker = lock_api::GuardSend;

    fn lock_shared(&self) {
        self.0.fetch_add(1, Ordering::Acquire);
    }

    fn try_lock_shared(&self) -> bool {
        self.lock_shared();
        true
    }

    unsafe fn unlock_shared(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    fn lock_exclusive(&self) {
        panic!("no test writes");
    }

    fn try_lock_exclusive(&self) -> bool {
        false
    }

    unsafe fn unlock_exclusive(&self) {}
}
