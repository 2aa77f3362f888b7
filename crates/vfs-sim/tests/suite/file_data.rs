//! File data on simulated machines: what works in different pages of one file meets nowhere. Every figure here is
//! *simulated*.

use sluice_machine::{Machine, Report};
use sluice_vfs_sim::{Cred, FallocateMode, InodeRef, NewInode, NewKind, Options, Superblock};

const PAGE: usize = 4096;

/// A file and what it lives in.
struct File {
    superblock: sluice_sync::Arc<Superblock>,
    inode: InodeRef,
    cred: Cred,
}

impl File {
    /// A file of `pages` data pages.
    fn new(pages: usize) -> File {
        let superblock = Superblock::new(Options::default());
        let cred = Cred::root();
        let new = NewInode { kind: NewKind::Regular, mode: 0o644, umask: 0 };
        let inode = superblock.root().create(&cred, b"f", &new).expect("a fresh name");
        let file = File { superblock, inode, cred };
        (0..pages).for_each(|page| file.write(page * PAGE, &[0; PAGE]));
        file
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert_eq!(self.inode.write_at(&self.cred, offset as u64, bytes), Ok(bytes.len()));
    }

    fn read(&self, offset: usize, buf: &mut [u8]) {
        assert_eq!(self.inode.read_at(offset as u64, buf, false), Ok(buf.len()));
    }
}

/// Each of `cpus` CPUs does `op` for a while, on one file with a page for each CPU.
fn drive(machine: &str, cpus: usize, op: impl Fn(&File, usize)) -> Report {
    const CYCLES: u64 = 600_000;
    let machine = Machine::named(machine).seed(11);
    let file = machine.prepare(cpus, || File::new(cpus));
    machine.run(cpus, |cpu| {
        op(&file, cpu.id());
        while cpu.now() < CYCLES {
            op(&file, cpu.id());
            cpu.count_op();
        }
    })
}

fn assert_linear(name: &str, op: impl Fn(&File, usize)) {
    for (machine, cpus) in [("power7-64", 64), ("milan-2s", 256)] {
        let one = drive(machine, 1, &op).ops_per_s();
        let all = drive(machine, cpus, &op).ops_per_s();
        let share = all / one / cpus as f64;
        println!("{name} on {machine}: {cpus} CPUs reach {share:.3} of linear (simulated)");
        assert!(share >= 0.9, "{name} on {machine}: {cpus} CPUs reach {share:.3} of linear");
    }
}

#[test]
fn writes_to_different_pages_of_one_file_are_linear_in_the_cpus() {
    assert_linear("write4k-same", |file, me| file.write(me * PAGE, &[me as u8; PAGE]));
}

#[test]
fn writes_that_fill_holes_of_one_file_hold_its_mutex_for_a_small_part_of_their_time() {
    let fill = |cpus| {
        let machine = Machine::named("power7-64").seed(11);
        let file = machine.prepare(cpus, || File::new(0));
        let report = machine.run(cpus, |cpu| {
            for round in 0..30 {
                file.write((cpu.id() << 12 | round) * PAGE, &[7; PAGE]);
                cpu.count_op();
            }
        });
        report.ops_per_s()
    };
    let one = fill(1);
    let [few, all] = [8, 64].map(|cpus| fill(cpus) / one);
    println!("8 CPUs fill {few:.1}, 64 fill {all:.1} times as fast as one (simulated)");
    assert!(few >= 7.0 && all >= 9.0, "8 CPUs {few:.1}, 64 CPUs {all:.1}");
}

#[test]
fn reads_of_one_page_are_linear_in_the_cpus() {
    assert_linear("read4k of one page", |file, _| file.read(0, &mut [0; PAGE]));
}

#[test]
fn calls_on_different_pages_and_calls_that_change_nothing_meet_nowhere() {
    let machine = Machine::named("milan-2s").seed(3);
    let write = |file: &File, page: usize| file.write(page * PAGE, &[7; PAGE]);
    let read = |file: &File, page: usize| file.read(page * PAGE, &mut [0; PAGE]);
    let keep_length = |file: &File, _| file.inode.truncate(&file.cred, 3 * PAGE as u64).expect("it may");
    let append_nothing =
        |file: &File, _| assert_eq!(file.inode.append(&file.cred, &[]), Ok((3 * PAGE as u64, 0)));
    let append = |file: &File, _| assert_eq!(file.inode.append(&file.cred, &[1]).map(|(_, n)| n), Ok(1));
    let cut = |file: &File, pages| file.inode.truncate(&file.cred, (pages * PAGE) as u64).expect("it may");
    type Call<'a> = (&'a dyn Fn(&File, usize), usize);
    let pairs: [(&str, Call<'_>, Call<'_>); 11] = [
        ("write 0, write 1", (&write, 0), (&write, 1)),
        ("write 0, read 1", (&write, 0), (&read, 1)),
        ("read 1, write 2", (&read, 1), (&write, 2)),
        ("read 0, read 0", (&read, 0), (&read, 0)),
        ("keep the length, read 0", (&keep_length, 0), (&read, 0)),
        ("keep the length, write 1", (&keep_length, 0), (&write, 1)),
        ("keep the length, append nothing", (&keep_length, 0), (&append_nothing, 0)),
        ("append, read 2", (&append, 0), (&read, 2)),
        ("append, write 1", (&append, 0), (&write, 1)),
        ("cut 2, read 0", (&cut, 1), (&read, 0)),
        ("cut 2, write 0", (&cut, 1), (&write, 0)),
    ];
    for (name, (first, one), (second, other)) in pairs {
        let file = machine.prepare(2, || File::new(3));
        // Each CPU has done its one-time work before.
        machine.run(2, |cpu| if cpu.id() == 0 { first(&file, one) } else { second(&file, other) });
        let conflicts = machine.conflicts(|| first(&file, one), || second(&file, other)).expect("both end");
        assert!(conflicts.lines_touched > 0 && conflicts.is_empty(), "{name}: {conflicts}");
    }
}

/// Two CPUs `change` the `LEN` bytes at `AT`, as who and in which round they are told, and two read them.
fn assert_never_torn(file: impl Fn() -> File, change: impl Fn(&File, usize, usize)) {
    for seed in 0..60 {
        let machine = Machine::named("skylake-4").seed(seed);
        let file = machine.prepare(4, &file);
        machine.run(4, |cpu| {
            for round in 0..20 {
                cpu.work(cpu.random(400));
                if cpu.id() < 2 {
                    change(&file, cpu.id(), round);
                } else {
                    let mut bytes = [0; LEN];
                    file.read(AT, &mut bytes);
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn, seed {seed}");
                }
            }
        });
        assert!(file.superblock.check().is_clean(), "seed {seed}");
    }
}

/// An offset and a length that begin and end within pages.
const AT: usize = PAGE - 100;
const LEN: usize = PAGE + 200;

fn write_round(file: &File, who: usize, round: usize) {
    file.write(AT, &[(2 * round + who) as u8; LEN]);
}

#[test]
fn reads_beside_overlapping_writes_are_never_torn_whatever_the_schedule() {
    assert_never_torn(|| File::new(3), write_round);
}

#[test]
fn reads_beside_writes_that_fill_one_hole_at_once_are_never_torn_whatever_the_schedule() {
    let sparse = || {
        let file = File::new(0);
        file.write(3 * PAGE, b"end");
        file
    };
    assert_never_torn(sparse, |file, who, round| match (who, round % 2) {
        (0, 0) => fallocate(file, FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE, AT, LEN),
        _ => write_round(file, who, round),
    });
}

/// Two CPUs write to a page that has memory for a few bytes, one to the bytes that it has and one behind them; a third cuts the
/// file, by which the page gets short again, and a fourth reads.
#[test]
fn writes_to_a_page_that_grows_are_not_lost_and_not_torn_whatever_the_schedule() {
    const LEN: usize = 8;
    let lens = [LEN, 40, 100, 300, 2000];
    for seed in 0..120 {
        let machine = Machine::named("skylake-4").seed(seed);
        let file = machine.prepare(4, || {
            let file = File::new(0);
            file.write(0, &[0; LEN]);
            file
        });
        machine.run(4, |cpu| {
            for round in 1..20 {
                cpu.work(cpu.random(400));
                match cpu.id() {
                    0 => {
                        file.write(0, &[round; LEN]);
                        let mut bytes = [0; LEN];
                        file.read(0, &mut bytes);
                        assert_eq!(bytes, [round; LEN], "lost, seed {seed}");
                    }
                    1 => file.write(LEN, &vec![round; lens[usize::from(round) % lens.len()]]),
                    2 => file.inode.truncate(&file.cred, LEN as u64).expect("it may"),
                    _ => {
                        let mut bytes = [0; 2 * LEN];
                        let len = file.inode.read_at(0, &mut bytes, false).expect("it may");
                        let (first, second) = bytes[..len].split_at(LEN);
                        assert!(first.iter().all(|byte| *byte == first[0]), "torn, seed {seed}");
                        assert!(second.is_empty() || second == [second[0]; LEN], "torn, seed {seed}");
                    }
                }
            }
        });
        assert!(file.superblock.check().is_clean(), "seed {seed}");
    }
}

#[test]
fn a_snapshot_beside_writes_holds_each_whole_and_none_that_comes_later_whatever_the_schedule() {
    for seed in 0..60 {
        let machine = Machine::named("skylake-4").seed(seed);
        let file = machine.prepare(4, || File::new(3));
        machine.run(4, |cpu| {
            for round in 0..10 {
                cpu.work(cpu.random(400));
                if cpu.id() < 2 {
                    write_round(&file, cpu.id(), round);
                    continue;
                }
                let snapshot = file.superblock.root().snapshot().expect("there is room");
                let copy = snapshot.root().lookup(&file.cred, b"f").expect("it is there throughout");
                let read = || {
                    let mut bytes = [0; LEN];
                    assert_eq!(copy.read_at(AT as u64, &mut bytes, false), Ok(LEN));
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn, seed {seed}");
                    bytes[0]
                };
                let first = read();
                cpu.work(cpu.random(400));
                assert_eq!(read(), first, "a later write shows in the snapshot, seed {seed}");
            }
        });
    }
}

/// A change of several pages of the file at once, and its reverse.
type Rearrangement = fn(&File);

/// How many pages hold letters; the first holds `a`s.
const LETTERS: usize = 6;

fn write_letters(file: &File) {
    (0..LETTERS).for_each(|page| file.write(page * PAGE, &[b'a' + page as u8; PAGE]));
}

fn fallocate(file: &File, mode: FallocateMode, offset: usize, len: usize) {
    file.inode.fallocate(&file.cred, mode, offset as u64, len as u64).expect("it may");
}

/// Two readers look at two pages, one after the other. A reader that saw one page as it is after a change must not see the other as
/// it was before.
fn assert_seen_at_once(name: &str, change: Rearrangement, at: [usize; 2], before: [u8; 2], after: [u8; 2]) {
    for seed in 0..80 {
        let machine = Machine::named("skylake-4").seed(seed);
        let file = machine.prepare(4, || {
            let file = File::new(0);
            write_letters(&file);
            file
        });
        machine.run(4, |cpu| match cpu.id() {
            0 => {
                cpu.work(cpu.random(3_000));
                change(&file);
            }
            // A writer of a page that stays where it is.
            1 => (0..20).for_each(|_| file.write(0, &[b'a'; PAGE])),
            reader => (0..30).for_each(|_| {
                let first = reader % 2;
                let mut seen = [0; 2];
                for one in [first, 1 - first] {
                    let mut byte = [0];
                    // Past the end there is nothing.
                    let _ = file.inode.read_at(at[one] as u64, &mut byte, false);
                    seen[one] = byte[0];
                }
                let late = 1 - first;
                let wrong = seen[first] == after[first] && seen[late] == before[late];
                assert!(!wrong, "{name}: {seen:?} where {at:?} was looked at from {first}, seed {seed}");
            }),
        });
    }
}

#[test]
fn what_changes_several_pages_is_seen_in_all_or_in_none_whatever_the_schedule() {
    let punch = |file: &File| {
        fallocate(file, FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE, PAGE + 50, 3 * PAGE - 150);
    };
    assert_seen_at_once("punch", punch, [PAGE + 60, 4 * PAGE - 200], *b"bd", [0; 2]);
    let collapse = |file: &File| fallocate(file, FallocateMode::COLLAPSE_RANGE, PAGE, PAGE);
    assert_seen_at_once("collapse", collapse, [2 * PAGE - 200, 2 * PAGE + 1], *b"bc", *b"cd");
    let insert = |file: &File| fallocate(file, FallocateMode::INSERT_RANGE, PAGE, PAGE);
    assert_seen_at_once("insert", insert, [2 * PAGE, 3 * PAGE], *b"cd", *b"bc");
    let truncate = |file: &File| file.inode.truncate(&file.cred, PAGE as u64 + 9).expect("it may");
    assert_seen_at_once("truncate", truncate, [PAGE + 20, 3 * PAGE], *b"bd", [0; 2]);
    let copy = |file: &File| {
        let copied =
            file.inode.copy_range(&file.cred, 4 * PAGE as u64, &file.inode, 2 * PAGE as u64, 2 * PAGE as u64);
        assert_eq!(copied, Ok(2 * PAGE as u64));
    };
    assert_seen_at_once("copy", copy, [2 * PAGE, 3 * PAGE], *b"cd", *b"ef");
}

#[test]
fn appends_of_many_cpus_add_up_whatever_the_schedule() {
    for seed in 0..20 {
        let machine = Machine::named("opteron-32").seed(seed);
        let file = machine.prepare(32, || File::new(0));
        machine.run(32, |cpu| {
            (0..5).for_each(|_| {
                let appended = file.inode.append(&file.cred, &[cpu.id() as u8; 1000]);
                assert_eq!(appended.map(|(_, written)| written), Ok(1000));
            });
        });
        let mut bytes = vec![0; 32 * 5 * 1000];
        assert_eq!(file.inode.stat().size, bytes.len() as u64);
        file.read(0, &mut bytes);
        let mut counts = [0; 32];
        for record in bytes.chunks_exact(1000) {
            assert!(record.iter().all(|byte| *byte == record[0]), "mixed, seed {seed}");
            counts[usize::from(record[0])] += 1;
        }
        assert_eq!(counts, [5; 32], "seed {seed}");
    }
}
