//! File data on simulated machines: what works in different pages of one file meets nowhere. Every figure here is
//! *simulated*.

use sluice_machine::{Machine, Report};
use sluice_vfs_sim::{Cred, InodeRef, NewInode, NewKind, Options, Superblock};

#[global_allocator]
static HEAP: sluice_machine::Heap = sluice_machine::Heap;

const PAGE: usize = 4096;

/// A file and what it lives in.
struct File {
    _superblock: sluice_sync::Arc<Superblock>,
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
        let file = File { _superblock: superblock, inode, cred };
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
    const CYCLES: u64 = 300_000;
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
    type Call<'a> = (&'a dyn Fn(&File, usize), usize);
    let pairs: [(&str, Call<'_>, Call<'_>); 7] = [
        ("write 0, write 1", (&write, 0), (&write, 1)),
        ("write 0, read 1", (&write, 0), (&read, 1)),
        ("read 1, write 2", (&read, 1), (&write, 2)),
        ("read 0, read 0", (&read, 0), (&read, 0)),
        ("keep the length, read 0", (&keep_length, 0), (&read, 0)),
        ("keep the length, write 1", (&keep_length, 0), (&write, 1)),
        ("keep the length, append nothing", (&keep_length, 0), (&append_nothing, 0)),
    ];
    for (name, (first, one), (second, other)) in pairs {
        let file = machine.prepare(2, || File::new(3));
        // What each CPU does only once has been done before.
        machine.run(2, |cpu| if cpu.id() == 0 { first(&file, one) } else { second(&file, other) });
        let conflicts = machine.conflicts(|| first(&file, one), || second(&file, other)).expect("both end");
        assert!(conflicts.lines_touched > 0 && conflicts.is_empty(), "{name}: {conflicts}");
    }
}

#[test]
fn reads_beside_overlapping_writes_are_never_torn_whatever_the_schedule() {
    const LEN: usize = PAGE + 200;
    for seed in 0..60 {
        let machine = Machine::named("skylake-4").seed(seed);
        let file = machine.prepare(4, || File::new(3));
        machine.run(4, |cpu| {
            for round in 0..20 {
                cpu.work(cpu.random(400));
                if cpu.id() < 2 {
                    file.write(PAGE - 100, &[(2 * round + cpu.id()) as u8; LEN]);
                } else {
                    let mut bytes = [0; LEN];
                    file.read(PAGE - 100, &mut bytes);
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn, seed {seed}");
                }
            }
        });
    }
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
