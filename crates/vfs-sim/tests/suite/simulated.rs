//! Simulated: the file system, unchanged, on the CPUs of a simulated machine.

use sluice_machine::{Machine, Report};
use sluice_vfs_sim::{Cancel, Cred, Errno, FileLock, FlockOperation, Fs, LockType, OpenFlags, Process};

const RW_CREATE: OpenFlags = OpenFlags::RDWR.union(OpenFlags::CREAT);

/// A little of everything, on files of one's own and on files of all.
fn work(process: &Process, me: usize) {
    let dir = format!("/d{me}");
    process.mkdir(&dir, 0o755).unwrap();
    let (old, new) = (format!("{dir}/old"), format!("{dir}/new"));
    let own = process.open(&old, RW_CREATE, 0o644).unwrap();
    assert_eq!(process.write(own, b"abc"), Ok(3));
    process.rename(&old, &new).unwrap();
    assert_eq!(process.stat(&old), Err(Errno::ENOENT));
    let mut buf = [0; 8];
    assert_eq!(process.pread(own, &mut buf, 1), Ok(2));
    process.close(own).unwrap();

    let shared = process.open("/shared", OpenFlags::RDWR | OpenFlags::APPEND, 0).unwrap();
    for _ in 0..10 {
        process.fcntl_setlkw(shared, &FileLock::whole(LockType::Write), &Cancel::never()).unwrap();
        assert_eq!(process.write(shared, &[b'x'; 10]), Ok(10));
        process.fcntl_setlk(shared, &FileLock::whole(LockType::Unlock)).unwrap();
    }
    process.flock_wait(shared, FlockOperation::Shared, &Cancel::never()).unwrap();
    process.close(shared).unwrap();
    process.rename(&new, format!("/n{me}")).unwrap();
    process.rmdir(&dir).unwrap();
}

fn run(cpus: usize) -> Report {
    let machine = Machine::named("skylake-4").seed(5);
    let (fs, processes) = machine.prepare(cpus, || {
        let fs = Fs::new();
        fs.write("/shared", "").unwrap();
        let processes: Vec<Process> = (0..cpus).map(|_| fs.process(Cred::root())).collect();
        (fs, processes)
    });
    let report = machine.run(cpus, |cpu| work(&processes[cpu.id()], cpu.id()));
    assert_eq!(processes[0].stat("/shared").unwrap().size, 100 * cpus as u64);
    let names = fs.read_dir("/").unwrap().count();
    assert_eq!(names, 1 + cpus);
    drop(processes);
    assert!(fs.check().is_clean());
    report
}

/// The beginning of the line with a test's counts.
const COUNTS: &str = "counts: ";

#[test]
fn one_run_says_its_counts() {
    let report = run(4);
    assert!(report.accesses() > 1_000, "the machine saw the file system: {report}");
    println!("\n{COUNTS}{:?}", report.cpus);
}

#[test]
fn four_cpus_share_a_file_system_and_take_the_same_cycles_in_every_process() {
    // A second run in one process begins with what the first left to be freed later.
    let counts = || {
        let mut process = std::process::Command::new(std::env::current_exe().unwrap());
        let said =
            process.args(["--exact", "simulated::one_run_says_its_counts", "--nocapture"]).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        said.lines().find(|line| line.starts_with(COUNTS)).expect("it says its counts").to_owned()
    };
    assert_eq!(counts(), counts());
}

#[test]
fn times_of_files_are_the_time_of_the_machine() {
    let machine = Machine::named("uma-2");
    let process = machine.prepare(1, || Fs::new().process(Cred::root()));
    machine.run(1, |cpu| {
        process.mkdir("/a", 0o755).unwrap();
        cpu.work(10 * sluice_machine::cycles_per_us() * 1000);
        process.mkdir("/b", 0o755).unwrap();
    });
    let time = |path: &str| process.stat(path).unwrap().mtime;
    assert!(time("/a").sec == time("/b").sec, "{:?} {:?}", time("/a"), time("/b"));
    let apart = time("/b").nsec - time("/a").nsec;
    // The clock of files ticks every 4 ms.
    assert!([8_000_000, 12_000_000].contains(&apart), "{apart} ns apart after 10 ms of work");
}

#[test]
fn a_snapshot_never_has_a_call_without_those_that_were_answered_before_whatever_the_schedule() {
    for seed in 0..40 {
        let machine = Machine::named("skylake-4").seed(seed);
        let (fs, processes) = machine.prepare(4, || {
            let fs = Fs::new();
            ["/early", "/late", "/late/moved"].iter().for_each(|dir| fs.create_dir(dir).unwrap());
            let processes: Vec<Process> = (0..4).map(|_| fs.process(Cred::root())).collect();
            (fs, processes)
        });
        machine.run(4, |cpu| {
            let (me, process) = (cpu.id(), &processes[cpu.id()]);
            for round in 0..6 {
                cpu.work(cpu.random(500));
                if me > 0 {
                    // The second file is made when the first is whole.
                    for dir in ["/late/moved", "/early"] {
                        let path = format!("{dir}/{me}-{round}");
                        let fd = process.open(&path, RW_CREATE, 0o644).unwrap();
                        assert_eq!(process.write(fd, b"abc"), Ok(3));
                        process.close(fd).unwrap();
                    }
                    continue;
                }
                let snapshot = fs.snapshot("/").unwrap();
                for writer in 1..4 {
                    let has = |dir: &str, round| snapshot.read(format!("{dir}/{writer}-{round}"));
                    for at in 0..6 {
                        let (first, second) = (has("/late/moved", at), has("/early", at));
                        assert!(
                            second.is_err() || first == Ok(b"abc".to_vec()),
                            "seed {seed}, {writer}-{at}"
                        );
                        let is_there = second.as_ref().is_ok_and(|bytes| bytes == b"abc");
                        assert!(
                            is_there || has("/late/moved", at + 1).is_err(),
                            "seed {seed}, {writer}-{at}"
                        );
                    }
                }
            }
        });
        drop(processes);
        assert!(fs.check().is_clean(), "seed {seed}");
    }
}
