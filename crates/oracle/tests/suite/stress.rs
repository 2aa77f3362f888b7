//! Stress: threads hammer shared names in process; then the tree must be whole and nothing may be left over.
//!
//! `SLUICE_STRESS_SECONDS` says for how long each test that takes its time goes on (10 s, and 3 s, unless given). The time only
//! bounds the work; nothing that is asserted depends on it.

use sluice_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sluice_sync::random::{Random, fresh_seed};
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant};
use sluice_vfs::{
    Cred, Errno, Fd, FileLock, FileType, FlockOperation, Fs, LockType, OpenFlags, Process, RenameFlags,
    Whence, XattrFlags,
};

const DIRECTORIES: [&str; 6] = ["/", "/a", "/b", "/a/c", "/b/c", "/a/c/d"];
const NAMES: [&str; 6] = ["c", "d", "e", "f", "g", "h"];
/// Operations between two checks of the whole tree.
const ROUND: u64 = 20_000;

/// Errors that come when names come and go. Anything else is a defect.
const EXPECTED: &[Errno] = &[
    Errno::ENOENT,
    Errno::EEXIST,
    Errno::ENOTDIR,
    Errno::EISDIR,
    Errno::ENOTEMPTY,
    Errno::EINVAL,
    Errno::EAGAIN,
    Errno::EBADF,
    Errno::ELOOP,
    Errno::EPERM,
    Errno::EBUSY,
    Errno::ENODATA,
    Errno::ENXIO,
    Errno::EACCES,
];

/// The state that the threads share besides the file system.
struct Shared<'a> {
    fs: &'a Fs,
    /// How many threads think that they hold the one exclusive lock.
    holders: AtomicU32,
    operations: AtomicU64,
    deadline: Instant,
}

struct Worker<'a> {
    shared: &'a Shared<'a>,
    process: Process,
    random: Random,
    open: Vec<Fd>,
    lock: Fd,
}

impl Worker<'_> {
    fn path(&mut self) -> String {
        let dir = self.random.pick(&DIRECTORIES);
        let name = self.random.pick(&NAMES);
        format!("{}/{name}", dir.trim_end_matches('/'))
    }

    fn some_open(&mut self) -> Fd {
        if self.open.is_empty() { Fd(-1) } else { self.open[self.random.below(self.open.len())] }
    }

    fn step(&mut self) -> Result<(), Errno> {
        let p = self.path();
        match self.random.below(24) {
            0..5 => {
                let flags = [
                    OpenFlags::CREAT | OpenFlags::RDWR,
                    OpenFlags::CREAT | OpenFlags::EXCL | OpenFlags::WRONLY,
                    OpenFlags::DIRECTORY,
                    OpenFlags::RDWR | OpenFlags::TRUNC,
                    OpenFlags::CREAT | OpenFlags::RDWR | OpenFlags::APPEND,
                ];
                let flags = self.random.pick(&flags);
                let fd = self.process.open(&p, flags, 0o644)?;
                self.open.push(fd);
                if self.open.len() > 8 {
                    let victim = self.random.below(self.open.len());
                    self.process.close(self.open.swap_remove(victim))?;
                }
                Ok(())
            }
            5 => self.process.mkdir(&p, 0o755),
            6..8 => self.process.unlink(&p),
            8 => self.process.rmdir(&p),
            9..13 => {
                let to = self.path();
                let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
                self.process.renameat2(Fd::CWD, &p, Fd::CWD, &to, self.random.pick(&flags))
            }
            13..15 => {
                let to = self.path();
                self.process.link(&p, &to)
            }
            15 => {
                let to = self.path();
                self.process.symlink(&p, &to)
            }
            16 => self.list(),
            17 => {
                let fd = self.some_open();
                self.process.write(fd, &[7; 5000]).map(drop)
            }
            18 => {
                let fd = self.some_open();
                self.process.lseek(fd, 0, Whence::Set)?;
                self.process.read(fd, &mut [0; 6000]).map(drop)
            }
            19 => self.lock_ranges(),
            20 => self.hold_the_lock(),
            21 => {
                let fd = self.some_open();
                let (named, open) = (self.process.lstat(&p)?, self.process.fstat(fd)?);
                assert!(named.ino != open.ino || named.file_type() == open.file_type());
                Ok(())
            }
            22 => {
                let fd = self.some_open();
                self.process.ftruncate(fd, 100)
            }
            _ => self.process.setxattr(&p, b"user.x", b"value", XattrFlags::empty()),
        }
    }

    /// A listing never names anything twice.
    fn list(&mut self) -> Result<(), Errno> {
        let dir = self.random.pick(&DIRECTORIES);
        let fd = self.process.open(dir, OpenFlags::DIRECTORY, 0)?;
        let mut names = Vec::new();
        let listed = loop {
            match self.process.getdents(fd, 3) {
                Ok(part) if part.is_empty() => break Ok(()),
                Ok(part) => {
                    names.extend(part.iter().map(|entry| (entry.position, entry.name.to_os_string())))
                }
                Err(error) => break Err(error),
            }
        };
        self.process.close(fd)?;
        assert!(names.windows(2).all(|pair| pair[0].0 < pair[1].0), "positions ascend: {names:?}");
        listed
    }

    fn lock_ranges(&mut self) -> Result<(), Errno> {
        let fd = self.some_open();
        let (start, len) = (self.random.below(50) as i64, self.random.below(20) as i64);
        let kind = self.random.pick(&[LockType::Read, LockType::Write, LockType::Unlock]);
        let lock = FileLock::range(kind, start, len);
        match self.random.below(3) {
            0 => self.process.fcntl_setlk(fd, &lock),
            1 => self.process.ofd_setlk(fd, &lock),
            _ => self.process.flock(fd, FlockOperation::Shared),
        }
    }

    /// The thread that gets the exclusive lock is alone.
    fn hold_the_lock(&mut self) -> Result<(), Errno> {
        self.process.flock(self.lock, FlockOperation::Exclusive)?;
        assert_eq!(self.shared.holders.fetch_add(1, Ordering::SeqCst), 0, "two exclusive locks");
        self.shared.holders.fetch_sub(1, Ordering::SeqCst);
        self.process.flock(self.lock, FlockOperation::Unlock)
    }
}

fn hammer(shared: &Shared<'_>, seed: u64, operations: u64) {
    let process = shared.fs.process(Cred::root());
    let flags = OpenFlags::CREAT | OpenFlags::RDWR;
    let lock = process.open("/the-lock", flags, 0o644).expect("nobody removes this name");
    let mut worker = Worker { shared, process, random: Random::new(seed), open: Vec::new(), lock };
    for n in 0..operations {
        if let Err(error) = worker.step() {
            assert!(EXPECTED.contains(&error), "seed {seed}: {error:?}");
        }
        shared.operations.fetch_add(1, Ordering::Relaxed);
        if n % 256 == 0 && Instant::now() >= shared.deadline {
            return;
        }
    }
}

/// How long a test goes on.
fn seconds(unless_given: u64) -> u64 {
    let given = std::env::var("SLUICE_STRESS_SECONDS").ok();
    given.map_or(unless_given, |text| text.parse().expect("SLUICE_STRESS_SECONDS is a number"))
}

#[test]
fn threads_on_shared_names_leave_a_whole_tree() {
    let seconds = seconds(10);
    let threads = sluice_sync::cpu::count().clamp(2, 8) + 1;
    let seed = fresh_seed();
    println!("seed {seed}, {threads} threads, {seconds} s");
    let mut seeds = Random::new(seed);
    let fs = Fs::new();
    let shared = Shared {
        fs: &fs,
        holders: AtomicU32::new(0),
        operations: AtomicU64::new(0),
        deadline: Instant::now() + Duration::from_secs(seconds),
    };
    let mut rounds = 0;
    while Instant::now() < shared.deadline {
        for dir in &DIRECTORIES[1..3] {
            // Renames may have put anything there; then this round goes without.
            let _ = fs.create_dir_all(dir);
        }
        thread::scope(|scope| {
            for _ in 0..threads {
                let (shared, seed) = (&shared, seeds.bits());
                scope.spawn(move || hammer(shared, seed, ROUND));
            }
        });
        let report = fs.check();
        assert!(report.is_clean(), "seed {seed}, round {rounds}: {report}");
        assert_eq!(fs.superblock().live_inodes(), report.inodes, "seed {seed}, round {rounds}: inodes leak");
        rounds += 1;
    }
    let operations = shared.operations.load(Ordering::Relaxed);
    println!("{operations} operations, {rounds} checks of the whole tree");
    assert!(rounds > 0);
}

/// Every inode that the test above can make goes when its names go.
#[test]
fn removing_everything_leaves_the_root_alone() {
    let fs = Fs::new();
    let shared = Shared {
        fs: &fs,
        holders: AtomicU32::new(0),
        operations: AtomicU64::new(0),
        deadline: Instant::now() + Duration::from_secs(600),
    };
    for dir in &DIRECTORIES[1..] {
        fs.create_dir_all(dir).expect("an empty tree takes directories");
    }
    thread::scope(|scope| {
        for seed in 0..3 {
            let shared = &shared;
            scope.spawn(move || hammer(shared, seed, 5000));
        }
    });
    for entry in fs.read_dir("/").expect("the root can be read") {
        let entry = entry.expect("an entry");
        let (path, is_dir) = (entry.path(), entry.file_type().is_ok_and(FileType::is_dir));
        let removed = if is_dir { fs.remove_dir_all(&path) } else { fs.remove_file(&path) };
        removed.expect("nobody else is there");
    }
    assert!(fs.check().is_clean());
    assert_eq!(fs.superblock().live_inodes(), 1);
}

/// Makes a chain of `depth` directories, goes back up and removes each on the way. No directory is freed while it is the working
/// directory or a part of its path, and each is freed afterwards.
fn down_and_up(depth: usize) {
    let fs = Fs::new();
    let process = fs.process(Cred::root());
    for _ in 0..depth {
        process.mkdir("d", 0o755).expect("a fresh directory is empty");
        process.chdir("d").expect("it was made");
    }
    let deepest = process.open(".", OpenFlags::RDONLY, 0).expect("it is the working directory");
    for _ in 0..depth {
        process.chdir("..").expect("it is not removed");
        process.rmdir("d").expect("it is there, and empty");
    }
    assert_eq!(fs.superblock().live_inodes(), depth as u64 + 1, "a removed directory keeps those above it");
    process.close(deepest).expect("it is open");
    assert_eq!(fs.superblock().live_inodes(), 1);
}

/// Threads that come and go, which share nothing but the epochs in which references are counted.
#[test]
fn a_directory_lives_as_long_as_somebody_is_in_it_whatever_other_threads_count() {
    let deadline = Instant::now() + Duration::from_secs(seconds(3));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let rounds = [300, 5_000, 50_000].into_iter().cycle();
                for depth in rounds.take_while(|_| Instant::now() < deadline) {
                    thread::spawn(move || down_and_up(depth)).join().expect("each call succeeds");
                }
            });
        }
    });
}
