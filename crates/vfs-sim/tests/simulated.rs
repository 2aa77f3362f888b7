//! Simulated: the file system, unchanged, on the CPUs of a simulated machine.

use sluice_machine::{Machine, Report};
use sluice_vfs_sim::{Cancel, Cred, Errno, FileLock, FlockOperation, Fs, LockType, OpenFlags, Process};

#[global_allocator]
static HEAP: sluice_machine::Heap = sluice_machine::Heap;

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
    let names = fs.read_dir("/").unwrap().len();
    assert_eq!(names, 1 + cpus);
    drop(processes);
    assert!(fs.check().is_clean());
    report
}

/// What the run of a test says begins with this.
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
        let said = process.args(["--exact", "one_run_says_its_counts", "--nocapture"]).output().unwrap();
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
