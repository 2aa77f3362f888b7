//! Conflict detection: which lines two activities shared, by type and field.

use sluice_machine::atomic::{AtomicU32, Ordering};
use sluice_machine::cell::{OwnLine, Tracked, touch_write};
use sluice_machine::{Kind, Machine, label, park, spin_until, unpark};
use std::cell::Cell;

#[derive(Default)]
#[repr(C, align(64))]
struct Inode {
    links: AtomicU32,
    refs: AtomicU32,
    size: OwnLine<AtomicU32>,
}

fn machine() -> Machine {
    Machine::named("skylake-4")
}

fn inode() -> Box<Inode> {
    let inode = Box::<Inode>::default();
    label!(inode, Inode { links, refs, size });
    inode
}

fn add(word: &AtomicU32) {
    word.fetch_add(1, Ordering::Relaxed);
}

fn look(word: &AtomicU32) {
    word.load(Ordering::Relaxed);
}

#[test]
fn two_writers_of_one_field_conflict() {
    let inode = inode();
    let conflicts = machine().conflicts(|| add(&inode.links), || add(&inode.links)).unwrap();
    assert_eq!(conflicts.lines.len(), 1);
    let conflict = &conflicts.lines[0];
    assert_eq!((conflict.labels(), conflict.is_false_sharing()), (vec!["Inode.links"], false));
    assert_eq!(conflict.touchers.len(), 2);
    assert!(
        conflict.touchers.iter().all(|by| by.kind == Kind::Rmw && by.site.file().ends_with("conflicts.rs"))
    );
    assert!(conflicts.to_string().contains("Inode.links"), "{conflicts}");
}

#[test]
fn a_reader_and_a_writer_conflict_and_two_readers_do_not() {
    let inode = inode();
    assert!(!machine().conflicts(|| look(&inode.refs), || add(&inode.refs)).unwrap().is_empty());
    let reading = machine().conflicts(|| look(&inode.refs), || look(&inode.refs)).unwrap();
    assert!(reading.is_empty());
    assert_eq!(reading.lines_touched, 1, "they were watched");
}

#[test]
fn fields_in_one_line_conflict_falsely_and_padded_ones_do_not() {
    let inode = inode();
    let conflicts = machine().conflicts(|| add(&inode.links), || look(&inode.refs)).unwrap();
    assert!(conflicts.lines[0].is_false_sharing());
    assert_eq!(conflicts.lines[0].labels().len(), 2);
    assert!(machine().conflicts(|| add(&inode.links), || add(&inode.size)).unwrap().is_empty());
}

#[test]
fn a_write_that_spans_lines_conflicts_in_each() {
    let data = Box::new(OwnLine(Tracked::new([0u8; 130])));
    let other = std::ptr::from_ref(&**data).cast::<u8>();
    let conflicts =
        machine().conflicts(|| assert_eq!(data.read()[0], 0), || touch_write(other, 130)).unwrap();
    assert_eq!(conflicts.lines.len(), 3);
    assert_eq!(conflicts.lines[2].touchers[0].length, 2);
}

#[test]
fn what_is_done_before_the_watch_does_not_count() {
    let inode = inode();
    let own: Vec<OwnLine<AtomicU32>> = (0..4).map(|_| OwnLine::default()).collect();
    let report = machine().run(4, |cpu| {
        add(&inode.links);
        cpu.watch(|| add(&own[cpu.id()]));
        add(&inode.links);
    });
    assert!(report.conflicts.is_empty());
    assert_eq!(report.conflicts.lines_touched, 4);
}

#[test]
fn watching_changes_no_clock() {
    let inode = inode();
    let body = || (0..50).for_each(|_| add(&inode.links));
    let plain = machine().run(4, |_| body());
    let watched = machine().run(4, |cpu| cpu.watch(body));
    assert_eq!(plain.cpus, watched.cpus);
}

#[test]
fn the_hottest_line_is_named_by_type_and_field() {
    let inode = inode();
    let report = machine().run(4, |_| {
        for _ in 0..100 {
            add(&inode.refs);
            look(&inode.links);
            look(&inode.size);
        }
    });
    assert_eq!(report.hottest[0].labels, ["Inode.refs", "Inode.links"]);
    assert_eq!(report.hottest[0].writers.to_string(), "0-3");
    let text = report.to_string();
    assert!(
        text.contains("Inode.refs") && text.lines().take(2).all(|line| line.starts_with("simulated")),
        "{text}"
    );
}

#[test]
fn the_costliest_place_is_known_though_none_of_its_lines_is_hot() {
    let inodes: Vec<_> = (0..100).map(|_| inode()).collect();
    let report = machine().run(4, |_| {
        inodes.iter().for_each(|inode| add(&inode.refs));
    });
    let [first, ..] = &*report.places else { panic!("no places: {report}") };
    assert_eq!(first.lines, 100);
    assert!(first.misses >= 100 && first.stall > 10 * report.hottest[0].stall, "{first:?}");
    assert!(report.places.is_sorted_by_key(|place| std::cmp::Reverse(place.cost())));
    let text = report.to_string();
    assert!(text.contains(&format!("on 100 lines at {}", first.site)), "{text}");
}

#[test]
fn a_cpu_that_spins_or_parks_is_charged_to_the_place_that_waits() {
    let (flag, word) = <(OwnLine<AtomicU32>, OwnLine<AtomicU32>)>::default();
    let (spun_at, parked_at) = (Cell::new(0), Cell::new(0));
    let report = machine().run(3, |cpu| match cpu.id() {
        0 => {
            cpu.work(1_000_000);
            flag.store(1, Ordering::Release);
            word.store(1, Ordering::Release);
            unpark(&word, 1);
        }
        1 => {
            spun_at.set(line!() + 1);
            spin_until(&*flag, |value| value == 1);
        }
        _ => {
            parked_at.set(line!() + 1);
            park(&word, 0, None);
        }
    });
    let waited = |line: u32| report.places.iter().find(|place| place.site.line() == line).unwrap().waited;
    assert!(waited(spun_at.get()) > 900_000 && waited(parked_at.get()) > 900_000, "{:?}", report.places);
    let lines: u64 = report.hottest.iter().map(|line| line.waited + line.parked).sum();
    assert_eq!(report.places.iter().map(|place| place.waited).sum::<u64>(), lines);
}
