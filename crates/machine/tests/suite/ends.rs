//! How runs end badly: deadlocks, lost wake-ups, endless loops, panics, wrong requests.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sluice_machine::atomic::{AtomicU32, Ordering};
use sluice_machine::cell::OwnLine;
use sluice_machine::{Machine, Parked, RunError, Wait, halt, label, park, spin_loop, spin_until, work};

fn machine() -> Machine {
    Machine::named("opteron-32")
}

fn take(lock: &AtomicU32) {
    while lock.swap(1, Ordering::Acquire) != 0 {
        spin_until(lock, |value| value == 0);
    }
}

#[test]
fn a_deadlock_names_who_waits_for_what() {
    let locks = Box::new([OwnLine(AtomicU32::new(0)), OwnLine(AtomicU32::new(0))]);
    label(&locks[0], "Directory", "lock");
    label(&locks[1], "Inode", "lock");
    let error = machine().try_run(2, |cpu| {
        let mine = cpu.id();
        take(&locks[mine]);
        work(10_000);
        take(&locks[1 - mine]);
    });
    let Err(RunError::Stuck(stuck)) = error else { panic!("not stuck: {error:?}") };
    let names = |cpu: usize| match &stuck.waiting[cpu].how {
        Wait::Spinning(lines) => lines[0].known_by[0].clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!((names(0), names(1)), ("Inode.lock".into(), "Directory.lock".into()));
    let text = stuck.to_string();
    assert!(text.contains("cpu 0") && text.contains("ends.rs"), "{text}");
}

#[test]
fn a_lost_wake_up_is_found() {
    let word = Box::new(OwnLine(AtomicU32::new(0)));
    label(&*word, "Queue", "futex");
    let error = machine().try_run(3, |cpu| match cpu.id() {
        0 => assert_eq!(park(&word, 0, None), Parked::Woken),
        1 => halt(),
        _ => {}
    });
    let text = error.expect_err("nobody wakes them").to_string();
    assert!(text.contains("each of 2 simulated CPUs"), "{text}");
    assert!(text.contains("cpu 0") && text.contains("parked on") && text.contains("Queue.futex"), "{text}");
    assert!(text.contains("halted"), "{text}");
}

#[test]
fn a_deadlock_among_virtual_cpus_is_found_too() {
    let flag = Box::new(OwnLine(AtomicU32::new(0)));
    let error = Machine::named("vm-16").try_run(16, |_| {
        spin_until(&**flag, |value| value == 1);
    });
    assert!(matches!(error, Err(RunError::Stuck(stuck)) if stuck.waiting.len() == 16));
    let error = Machine::named("vm-16").try_run(16, |_| {
        while flag.load(Ordering::Acquire) == 0 {
            spin_loop();
        }
    });
    assert!(matches!(error, Err(RunError::Stuck(stuck)) if stuck.waiting.len() == 16));
}

#[test]
fn an_endless_loop_is_given_up() {
    let line = Box::new(OwnLine(AtomicU32::new(0)));
    let machine = machine().cycles_max(1_000_000);
    let bodies: [&dyn Fn(); 4] = [
        &|| assert!(line.fetch_add(1, Ordering::Relaxed) < u32::MAX),
        &|| assert!(line.load(Ordering::Relaxed) < u32::MAX),
        &|| work(10),
        &spin_loop,
    ];
    for body in bodies {
        for cpus in [1, 3] {
            let error = machine.try_run(cpus, |_| {
                loop {
                    body();
                }
            });
            assert_eq!(error.err(), Some(RunError::TooLong { cycles_max: 1_000_000 }));
        }
    }
}

#[test]
fn a_panic_ends_the_run_and_says_on_which_cpu() {
    struct Unlock<'a>(&'a AtomicU32);
    impl Drop for Unlock<'_> {
        fn drop(&mut self) {
            self.0.store(0, Ordering::Release);
        }
    }
    let lock = Box::new(OwnLine(AtomicU32::new(0)));
    let run = || {
        machine().cycles_max(10_000_000).run(8, |cpu| {
            for round in 0.. {
                take(&lock);
                let _unlock = Unlock(&lock);
                assert!(cpu.id() != 5 || round < 3, "broken invariant");
            }
        })
    };
    let payload = catch_unwind(AssertUnwindSafe(run)).expect_err("CPU 5 panics");
    let text = payload.downcast_ref::<String>().expect("a message");
    assert_eq!(text, "on simulated CPU 5: broken invariant");
    // The machine is usable again, on the same thread.
    assert_eq!(machine().run(2, |cpu| cpu.count_op()).ops(), 2);
}

#[test]
fn destructors_of_a_stuck_run_are_run() {
    let dropped = std::rc::Rc::new(());
    let flag = AtomicU32::new(0);
    let error = machine().try_run(4, |_| {
        let _held = std::rc::Rc::clone(&dropped);
        spin_until(&flag, |value| value == 1);
    });
    assert!(error.is_err());
    assert_eq!(std::rc::Rc::strong_count(&dropped), 1);
}

#[test]
fn wrong_requests_are_refused_in_words() {
    assert_eq!(
        machine().try_run(33, |_| {}).expect_err("too many").to_string(),
        "opteron-32 has 1 to 32 CPUs, not 33"
    );
    assert!(machine().try_run(0, |_| {}).is_err());
    let unknown = Machine::find("cray-1").expect_err("no such machine").to_string();
    assert!(unknown.contains("cray-1") && unknown.contains("opteron-32"), "{unknown}");
    let nested = catch_unwind(|| machine().run(1, |_| assert_eq!(machine().run(1, |_| {}).ops(), 0)));
    assert!(nested.is_err());
}
