//! The rules of the machine, one by one, on cases small enough to work out by hand. All on opteron-32 without
//! jitter: a line from memory of the own node takes 136 cycles, from a CPU of the same node 81 (load), 83
//! (store) or 110 (rmw).

use std::cell::Cell;

use sluice_machine::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use sluice_machine::cell::{OwnLine, Tracked};
use sluice_machine::{
    Kind, Machine, Parked, cpu, cpus, is_running, membarrier, now, park, pause, run_id, spin_loop,
    spin_until, spin_until_for, unpark, work,
};

const RELAXED: Ordering = Ordering::Relaxed;

fn machine() -> Machine {
    Machine::named("opteron-32").jitter(false)
}

fn word() -> Box<OwnLine<AtomicU32>> {
    Box::default()
}

#[test]
fn n_read_modify_writes_at_once_take_n_transfers() {
    let line = word();
    let report = machine().run(8, |_| {
        line.fetch_add(1, RELAXED);
    });
    assert_eq!(report.cycles, 136 + 7 * 110);
    let mut ends: Vec<u64> = report.cpus.iter().map(|cpu| cpu.cycles).collect();
    ends.sort_unstable();
    assert_eq!(ends, (0..8).map(|n| 136 + n * 110).collect::<Vec<u64>>());
    assert_eq!(line.load(RELAXED), 8);
    assert_eq!(report.hottest[0].stall, ends.iter().sum::<u64>());
}

#[test]
fn a_cpu_that_receives_a_line_keeps_it_for_a_third_of_the_next_transfer() {
    let line = word();
    let turns = std::cell::RefCell::new(Vec::new());
    machine().run(2, |cpu| {
        for _ in 0..30 {
            line.fetch_add(1, RELAXED);
            turns.borrow_mut().push(cpu.id());
        }
    });
    // 110 / 3 is 36: additions that begin 0 and 20 cycles after the first hit, the next does not.
    let runs: Vec<usize> = turns.borrow().chunk_by(|a, b| a == b).map(<[usize]>::len).collect();
    assert!(runs[1..runs.len() - 2].iter().all(|&run| run == 3), "{runs:?}");
}

#[test]
fn a_compare_and_swap_that_failed_succeeds_when_it_is_tried_again_at_once() {
    let line = word();
    let tries = Cell::new(0);
    machine().run(8, |_| {
        for _ in 0..10 {
            let mut seen = line.load(RELAXED);
            tries.set(tries.get() + 1);
            while let Err(now) = line.compare_exchange(seen, seen + 1, RELAXED, RELAXED) {
                seen = now;
                tries.set(tries.get() + 1);
            }
            work(300);
        }
    });
    assert_eq!(line.load(RELAXED), 80);
    assert!(tries.get() <= 2 * 80, "{} tries", tries.get());
}

#[test]
fn requests_for_a_line_are_served_in_the_order_in_which_they_were_made() {
    let line = word();
    let order = std::cell::RefCell::new(Vec::new());
    machine().run(5, |cpu| {
        work(10 * (5 - cpu.id()) as u64);
        line.fetch_add(1, RELAXED);
        order.borrow_mut().push(cpu.id());
    });
    assert_eq!(*order.borrow(), [4, 3, 2, 1, 0]);
}

#[test]
fn own_lines_do_not_disturb_each_other() {
    let lines: Vec<OwnLine<AtomicU32>> = (0..32).map(|_| OwnLine::default()).collect();
    let body = |cpu: usize| (0..100).for_each(|_| lines[cpu].store(1, RELAXED));
    let alone = machine().run(1, |cpu| body(cpu.id())).cycles;
    assert_eq!(alone, 136 + 99 * 3);
    assert_eq!(machine().run(32, |cpu| body(cpu.id())).cycles, alone);
}

#[test]
fn hits_fences_and_work_cost_what_the_machine_says() {
    let line = word();
    let report = machine().run(1, |_| {
        line.store(1, RELAXED); // 136
        line.load(RELAXED); // 3
        line.fetch_add(1, RELAXED); // 20
        line.store(2, Ordering::SeqCst); // 3 + 30
        fence(Ordering::SeqCst); // 30
        fence(Ordering::Acquire); // 0
        work(1000);
        pause(4); // 40
        now(); // 25
    });
    assert_eq!(report.cycles, 136 + 3 + 20 + 33 + 30 + 1000 + 40 + 25);
    assert_eq!((report.cpus[0].accesses, report.cpus[0].misses, report.cpus[0].spinning), (4, 1, 40));
}

#[test]
fn a_spinner_pays_one_refetch_and_is_not_idle() {
    let flag = word();
    let report = machine().run(2, |cpu| match cpu.id() {
        0 => {
            work(10_000);
            flag.store(1, Ordering::Release); // 83: from CPU 1, which has it alone
        }
        _ => assert_eq!(spin_until(&**flag, |value| value == 1), 1),
    });
    let spinner = &report.cpus[1];
    assert_eq!((spinner.accesses, spinner.misses, spinner.idle), (2, 2, 0));
    assert_eq!(spinner.busy, 136 + 81);
    assert_eq!(spinner.cycles, 10_083 + 81);
    let hot = &report.hottest[0];
    assert_eq!((hot.writers.to_string(), hot.waiters.to_string()), ("0".into(), "1".into()));
}

#[test]
fn a_plain_waiting_loop_is_recognised() {
    let flag = word();
    let rounds = Cell::new(0);
    let report = machine().run(2, |cpu| match cpu.id() {
        0 => {
            work(1_000_000);
            flag.store(1, Ordering::Release);
        }
        _ => {
            while flag.load(Ordering::Acquire) == 0 {
                rounds.set(rounds.get() + 1);
                spin_loop();
            }
        }
    });
    assert_eq!(rounds.get(), 2, "it slept after two rounds that saw the same");
    assert_eq!(report.cpus[1].cycles, 1_000_083 + 81);
    assert!(report.cpus[1].spinning > 999_000);
}

#[test]
fn a_bounded_spin_gives_up_in_time() {
    let flag = word();
    let report = machine().run(2, |cpu| match cpu.id() {
        0 => assert_eq!(spin_until_for(&**flag, 5_000, |value| value == 1), None),
        _ => {
            work(20_000);
            flag.store(1, RELAXED);
        }
    });
    assert_eq!(report.cpus[0].cycles, 5_000);
}

#[test]
fn a_loop_that_watches_the_clock_ends_on_time() {
    let flag = word();
    let report = machine().run(2, |cpu| {
        if cpu.id() == 0 {
            while flag.load(RELAXED) == 0 && now() < 3_000 {
                spin_loop();
            }
        }
    });
    assert!((3_000..3_100).contains(&report.cpus[0].cycles), "{}", report.cpus[0].cycles);
}

#[test]
fn a_loop_with_a_hidden_bound_ends_even_if_nobody_wakes_it() {
    let flag = word();
    let rounds = Cell::new(0);
    machine().run(2, |cpu| {
        if cpu.id() == 0 {
            for _ in 0..500 {
                flag.load(RELAXED);
                rounds.set(rounds.get() + 1);
                spin_loop();
            }
        }
    });
    assert_eq!(rounds.get(), 500);
}

#[test]
fn parked_time_is_idle_and_waking_has_its_price() {
    let word = word();
    let report = machine().run(2, |cpu| match cpu.id() {
        0 => {
            work(50_000);
            word.store(1, Ordering::Release); // 83
            assert_eq!(unpark(&word, 1), 1); // system call 300, wake 2,100
        }
        _ => assert_eq!(park(&word, 0, None), Parked::Woken), // 300 + 136 + 2,100
    });
    let wake = 50_000 + 83 + 300 + 2_100;
    assert_eq!(report.cpus[0].cycles, wake);
    assert_eq!(report.cpus[1].cycles, wake + 6_300);
    assert_eq!(report.cpus[1].idle, wake + 6_300 - (300 + 136 + 2_100));
    assert_eq!(report.hottest[0].parked, report.cpus[1].idle);
}

#[test]
fn parking_checks_the_word_and_the_clock() {
    let word = word();
    let report = machine().run(1, |_| {
        assert_eq!(park(&word, 1, None), Parked::Changed); // 300 + 136
        assert_eq!(park(&word, 0, Some(10_000)), Parked::TimedOut); // 300 + 3 + 2,100 + 10,000
        assert_eq!(unpark(&word, 9), 0); // 300
    });
    assert_eq!(report.cycles, 436 + 12_403 + 300);
    assert_eq!(report.cpus[0].idle, 10_000);
}

#[test]
fn the_parked_are_woken_in_the_order_in_which_they_came() {
    let word = word();
    let order = std::cell::RefCell::new(Vec::new());
    machine().run(5, |cpu| match cpu.id() {
        0 => {
            work(100_000);
            for _ in 0..4 {
                assert_eq!(unpark(&word, 1), 1);
                work(50_000);
            }
        }
        id => {
            work(10_000 * (5 - id) as u64);
            park(&word, 0, None);
            order.borrow_mut().push(id);
        }
    });
    assert_eq!(*order.borrow(), [4, 3, 2, 1]);
}

#[test]
fn a_wake_up_before_the_sleep_is_not_lost_because_the_word_has_changed() {
    let word = word();
    machine().run(2, |cpu| match cpu.id() {
        0 => {
            word.store(1, Ordering::Release);
            unpark(&word, 1);
        }
        _ => {
            work(100_000);
            assert_eq!(park(&word, 0, None), Parked::Changed);
        }
    });
}

#[test]
fn a_thread_that_asks_whether_a_cpu_runs_is_woken_when_it_stops() {
    let word = word();
    let seen = Cell::new(0);
    machine().run(2, |cpu| match cpu.id() {
        0 => {
            while is_running(1) {
                spin_loop();
            }
            seen.set(cpu.now());
            work(10_000);
            assert!(!is_running(1) && is_running(0));
            word.store(1, RELAXED);
            unpark(&word, 1);
        }
        _ => {
            work(30_000);
            park(&word, 0, None);
        }
    });
    assert!((32_400..33_000).contains(&seen.get()), "saw it at {}", seen.get());
}

#[test]
fn a_barrier_interrupts_those_who_run_and_nobody_else() {
    let word = word();
    let report = machine().run(4, |cpu| match cpu.id() {
        0 => {
            work(10_000);
            membarrier(); // system call 300, two interrupts sent 2 x 200, answers after 2,000
        }
        1 => assert_eq!(park(&word, 0, Some(40_000)), Parked::TimedOut),
        _ => {
            work(5_000);
            spin_until_for(&**word, 0, |_| false);
            work(20_000);
            spin_until_for(&**word, 0, |_| false);
        }
    });
    assert_eq!(report.cpus[0].cycles, 10_000 + 300 + 400 + 2_000);
    assert_eq!(report.cpus[1].idle, 40_000);
    assert!(report.cpus[2].cycles >= 27_000);
}

#[test]
fn nobody_reads_a_value_before_it_was_written() {
    let lines: Vec<OwnLine<AtomicU64>> = (0..3).map(|_| OwnLine::default()).collect();
    for seed in 0..20 {
        lines.iter().for_each(|line| line.store(0, RELAXED));
        Machine::named("milan-2s").seed(seed).run(24, |cpu| {
            for _ in 0..300 {
                let line = &lines[cpu.random(3) as usize];
                if cpu.random(3) == 0 {
                    line.store(cpu.now(), RELAXED);
                } else {
                    let written = line.load(RELAXED);
                    assert!(written <= cpu.now(), "written at {written}, read at {}", cpu.now());
                }
                cpu.work(cpu.random(200));
            }
        });
    }
}

#[test]
fn false_sharing_costs_what_sharing_costs() {
    let together = Box::new(OwnLine([AtomicU32::new(0), AtomicU32::new(0)]));
    let apart = Box::new([OwnLine(AtomicU32::new(0)), OwnLine(AtomicU32::new(0))]);
    let run = |of: &dyn Fn(usize) -> u32| {
        machine().run(2, |cpu| (0..100).for_each(|_| assert!(of(cpu.id()) < 200))).cycles
    };
    let shared = run(&|cpu| together[cpu].fetch_add(1, RELAXED));
    let padded = run(&|cpu| apart[cpu].fetch_add(1, RELAXED));
    assert_eq!(padded, 136 + 99 * 20);
    // Each transfer pays for the additions that its receiver does before the line is gone: three.
    assert_eq!(shared, 7_506);
}

#[test]
fn tracked_data_moves_line_by_line() {
    let mut data = Box::new(OwnLine(Tracked::new([0u8; 200])));
    let report = machine().run(1, |_| {
        assert_eq!(data.read()[0], 0);
    });
    assert_eq!((report.cycles, report.accesses()), (4 * 136, 4));
    data.write()[0] = 7;
    assert_eq!(data.read()[0], 7);
}

#[test]
fn a_cpu_knows_where_it_is_and_off_the_machine_there_is_none() {
    assert_eq!((cpu(), cpus(), now(), run_id()), (0, sluice_machine::CPUS_MAX, 0, 0));
    let machine = machine();
    assert_eq!(machine.prepare(12, cpus), 12);
    let runs = Cell::new(0);
    machine.run(12, |handle| {
        assert_eq!((handle.id(), handle.cpus(), cpus()), (cpu(), 12, 12));
        assert_eq!(handle.node(), handle.id() / 8);
        runs.set(run_id());
    });
    assert_ne!(runs.get(), 0);
    machine.run(1, |_| assert_ne!(run_id(), runs.get()));
}

#[test]
fn the_times_of_a_cpu_add_up() {
    let report = Machine::named("vm-16").run(16, |cpu| {
        while cpu.now() < 20_000_000 {
            work(1000 + cpu.random(100_000));
            pause(100);
            park(&AtomicU32::new(0), 0, Some(5_000));
        }
    });
    for cpu in &report.cpus {
        assert_eq!(cpu.busy + cpu.spinning + cpu.idle + cpu.preempted, cpu.cycles);
    }
    assert!(report.idle() > 0.0 && report.spinning() > 0.0 && report.preempted() > 0.0);
}

#[test]
fn a_trace_has_every_access_and_changes_nothing() {
    let line = word();
    let body = || {
        line.store(1, RELAXED);
        line.fetch_add(1, RELAXED);
        line.load(RELAXED);
    };
    let plain = machine().run(4, |_| body());
    let traced = machine().trace(1000).run(4, |_| body());
    assert_eq!(plain.cpus, traced.cpus);
    assert_eq!(traced.trace.len(), 12);
    let first = &traced.trace[0];
    assert_eq!((first.start, first.end, first.kind, first.line, first.length), (0, 136, Kind::Store, 0, 4));
    assert!(first.site.file().ends_with("rules.rs") && first.to_string().contains("store"));
    let last = machine().trace(5).run(4, |_| body()).trace;
    assert_eq!(last.len(), 5, "the ring keeps the last");
    assert_eq!(last[4].end, traced.trace[11].end);
}

#[test]
fn a_change_between_two_looks_at_one_line_is_not_slept_through() {
    // The write falls between the look at `flag` and the look at its neighbour in every phase of the loop.
    for delay in 1..400 {
        let line: Box<OwnLine<[AtomicU32; 2]>> = Box::default();
        let other = word();
        let seen = Cell::new(0);
        machine().run(2, |cpu| match cpu.id() {
            0 => {
                while line[0].load(RELAXED) == 0 {
                    work(100);
                    line[1].load(RELAXED);
                    spin_loop();
                }
                // A CPU that wakes up too late finds that the other has passed.
                other.load(RELAXED);
                seen.set(cpu.now());
            }
            _ => {
                other.store(1, RELAXED);
                work(delay);
                line[0].store(1, RELAXED);
                work(100_000);
                other.store(2, RELAXED);
            }
        });
        assert!(seen.get() < 3_000, "written at {delay}, seen at {}", seen.get());
    }
}
