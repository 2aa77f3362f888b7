//! Holes that a process has stored into through a mapping which it still has: no copy may take them for holes.

use crate::harness::{Fixture, LOCK_MODES, Peer, eventually, find_program};
use rustix::fs::{AtFlags, CWD, SeekFrom, StatxFlags};
use rustix::io::Errno;
use sluice_vfs::{Fd, OpenFlags, Process, Whence};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

const PAGE: u64 = 4096;
const SIZE: u64 = 1 << 20;
const AT: u64 = SIZE / 2;

/// A mount on which another process has mapped `f`, a hole of `SIZE` bytes, and stored 'h' at `AT`.
struct Mapped {
    fixture: Fixture,
    peer: Peer,
}

impl Mapped {
    fn new(options: &str) -> Option<Mapped> {
        let fixture = Fixture::new(options)?;
        // The server may have to serve what this test waits for: two workers at least.
        File::create(fixture.path("f")).expect("writable").set_len(SIZE).expect("nothing forbids it");
        let mut mapped =
            Mapped { peer: Peer::start(&["map", &fixture.path("f").display().to_string()])?, fixture };
        assert_eq!(mapped.peer.line(), "mapped");
        mapped.store(AT, 'h');
        Some(mapped)
    }

    fn store(&mut self, at: u64, byte: char) {
        assert_eq!(self.peer.tell(&format!("s {at} {byte}")), byte.to_string());
    }

    fn load(&mut self, at: u64) -> String {
        self.peer.tell(&format!("l {at}"))
    }

    fn finish(self) {
        self.peer.finish();
        self.fixture.finish();
    }
}

/// Calls `test` on a fresh mount in each lock mode.
fn in_each_mode(test: impl Fn(&mut Mapped)) {
    for options in LOCK_MODES {
        let Some(mut mapped) = Mapped::new(options) else { return };
        test(&mut mapped);
        mapped.finish();
    }
}

/// `copy` is what the peer has mapped: zeros but for `AT`.
fn is_right(copy: &[u8], how: &str) {
    assert_eq!(copy.len() as u64, SIZE, "{how}");
    let found: Vec<_> = copy.iter().enumerate().filter(|(_, byte)| **byte != 0).collect();
    assert_eq!(found, [(AT as usize, &b'h')], "{how}");
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    assert!(status.expect("it was found").success(), "{program} {arguments:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the test's own names are text")
}

#[test]
fn seeking_finds_what_was_stored_through_a_mapping() {
    in_each_mode(|mapped| {
        let file = File::open(mapped.fixture.path("f")).expect("it is there");
        let seek = |from| rustix::fs::seek(&file, from);
        assert_eq!(seek(SeekFrom::Data(0)), Ok(AT));
        assert_eq!(seek(SeekFrom::Hole(AT)), Ok(AT + PAGE));
        assert_eq!(seek(SeekFrom::Data(AT + PAGE)), Err(Errno::NXIO));
        // Each answer anew, from either side, and across pages that are filled one by one.
        for (number, at) in [AT + PAGE, AT + 3 * PAGE, AT + 2 * PAGE].into_iter().enumerate() {
            mapped.store(at, 'n');
            assert_eq!(seek(SeekFrom::Data(at)), Ok(at), "store {number}");
            let end = if number == 0 {
                AT + 2 * PAGE
            } else if number == 1 {
                at + PAGE
            } else {
                AT + 4 * PAGE
            };
            assert_eq!(seek(SeekFrom::Hole(at)), Ok(end), "store {number}");
        }
        assert_eq!(seek(SeekFrom::Hole(AT)), Ok(AT + 4 * PAGE));
        assert_eq!(seek(SeekFrom::Hole(0)), Ok(0));
        assert_eq!(mapped.load(AT), "h");
    });
}

#[test]
fn a_page_that_is_read_and_not_stored_into_stays_a_hole() {
    in_each_mode(|mapped| {
        assert_eq!(mapped.load(7 * PAGE), "0");
        let file = File::open(mapped.fixture.path("f")).expect("it is there");
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)), Ok(AT));
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(7 * PAGE)), Ok(7 * PAGE));
    });
}

#[test]
fn a_file_with_a_stored_page_has_blocks() {
    in_each_mode(|mapped| {
        let path = mapped.fixture.path("f");
        assert!(fs::metadata(&path).expect("it is there").blocks() > 0);
        // Blocks alone, which no read makes the kernel ask for again.
        let statx = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::BLOCKS);
        assert!(statx.expect("it is there").stx_blocks > 0);
        let untouched = mapped.fixture.path("untouched");
        File::create(&untouched).expect("writable").set_len(SIZE).expect("nothing forbids it");
        assert_eq!(fs::metadata(&untouched).expect("it is there").blocks(), 0);
    });
}

#[test]
fn programs_copy_what_was_stored_through_a_mapping() {
    type Copier = (&'static str, fn(&Path, &Path));
    let copiers: [Copier; 5] = [
        ("cp --sparse=auto", |from, to| {
            run("cp", &["--sparse=auto", "--reflink=never", text(from), text(to)]);
        }),
        ("cp --sparse=always", |from, to| run("cp", &["--sparse=always", text(from), text(to)])),
        ("cp -a", |from, to| run("cp", &["-a", text(from), text(to)])),
        ("cp --reflink=auto", |from, to| run("cp", &["--reflink=auto", text(from), text(to)])),
        ("copy_file_range", |from, to| {
            let (from, to) = (File::open(from).expect("it is there"), File::create(to).expect("writable"));
            assert_eq!(rustix::fs::copy_file_range(&from, None, &to, None, SIZE as usize), Ok(SIZE as usize));
        }),
    ];
    for (name, copy) in copiers {
        in_each_mode(|mapped| {
            let (from, inside) = (mapped.fixture.path("f"), mapped.fixture.path("copy"));
            copy(&from, &inside);
            is_right(&fs::read(&inside).expect("it was made"), name);
            is_right(&mapped.fixture.fs.read("/copy").expect("it was made"), name);
        });
        in_each_mode(|mapped| {
            let outside = crate::harness::fresh_dir();
            // copy_file_range does not lead from one file system to another of another kind.
            if name != "copy_file_range" {
                copy(&mapped.fixture.path("f"), &outside.join("copy"));
                is_right(&fs::read(outside.join("copy")).expect("it was made"), name);
            }
            fs::remove_dir_all(outside).expect("it is ours");
        });
    }
}

#[test]
fn sparse_archives_hold_what_was_stored_through_a_mapping() {
    if !find_program("tar") {
        return crate::harness::skipped("no tar");
    }
    in_each_mode(|mapped| {
        let outside = crate::harness::fresh_dir();
        let (dir, archive) = (text(mapped.fixture.dir()), outside.join("archive"));
        // It says so, and fails, if the file's ctime moves while it reads.
        run("tar", &["-C", dir, "-S", "-cf", text(&archive), "f"]);
        run("tar", &["-C", text(&outside), "-xf", text(&archive)]);
        is_right(&fs::read(outside.join("f")).expect("it was made"), "tar -S");
        fs::remove_dir_all(outside).expect("it is ours");
    });
}

/// Calls `act` with a user in process who has `f` open.
fn in_process<R>(mapped: &Mapped, act: impl FnOnce(&Process, Fd) -> R) -> R {
    let user = mapped.fixture.fs.process(crate::harness::cred());
    let fd = user.open("/f", OpenFlags::RDWR, 0).expect("it is there");
    act(&user, fd)
}

#[test]
fn readers_in_process_see_what_was_stored_through_a_mapping() {
    in_each_mode(|mapped| {
        let fs_in_process = mapped.fixture.fs.clone();
        let mut byte = [0];
        // Also in a page that is data already: each store is newer than the bytes that were handed down before.
        for next in ['h', 'i', 'h'] {
            mapped.store(AT, next);
            in_process(mapped, |user, fd| assert_eq!(user.pread(fd, &mut byte, AT as i64), Ok(1)));
            assert_eq!(byte[0] as char, next);
        }
        is_right(&fs_in_process.read("/f").expect("it is there"), "read");
        mapped.store(AT + 3 * PAGE, 's');
        let seek = |offset: u64, whence| in_process(mapped, |user, fd| user.lseek(fd, offset as i64, whence));
        assert_eq!(seek(AT + PAGE, Whence::Data), Ok(AT + 3 * PAGE));
        assert_eq!(seek(AT + 3 * PAGE, Whence::Hole), Ok(AT + 4 * PAGE));
        in_process(mapped, |user, fd| {
            let mut moved = [0; 2];
            user.lseek(fd, AT as i64, Whence::Set).expect("it is a file");
            assert_eq!(user.read(fd, &mut moved), Ok(2));
            assert_eq!(moved, [b'h', 0]);
        });
    });
}

#[test]
fn copies_in_process_hold_what_was_stored_through_a_mapping() {
    in_each_mode(|mapped| {
        in_process(mapped, |user, from| {
            let to = user.open("/copy", OpenFlags::RDWR | OpenFlags::CREAT, 0o600).expect("writable");
            assert_eq!(user.copy_file_range(from, None, to, None, SIZE as usize), Ok(SIZE as usize));
        });
        is_right(&mapped.fixture.fs.read("/copy").expect("it was made"), "copy_file_range in process");
    });
    in_each_mode(|mapped| {
        let snapshot = mapped.fixture.fs.superblock().root().snapshot().expect("there is room");
        let snapshot = sluice_vfs::Fs::with_superblock(snapshot);
        is_right(&snapshot.read("/f").expect("it was there"), "snapshot");
    });
    in_each_mode(|mapped| {
        let outside = crate::harness::fresh_dir();
        sluice_trees::export(&mapped.fixture.fs, "/", &outside).expect("it is readable");
        is_right(&fs::read(outside.join("f")).expect("it was made"), "export");
        fs::remove_dir_all(outside).expect("it is ours");
    });
    in_each_mode(|mapped| {
        in_process(mapped, |user, fd| user.fsync(fd).expect("it is open"));
        let root = mapped.fixture.fs.superblock().root().clone();
        let inode = root.lookup(&crate::harness::cred(), b"f").expect("it is there");
        let mut byte = [0];
        assert_eq!((inode.read_at(AT, &mut byte, false), byte), (Ok(1), [b'h']), "fsync in process");
    });
}

#[test]
fn changes_in_process_keep_what_was_stored_beside_them() {
    in_each_mode(|mapped| {
        // In the page that is dirty in the kernel.
        in_process(mapped, |user, fd| assert_eq!(user.pwrite(fd, b"w", AT as i64 + 9), Ok(1)));
        assert_eq!((mapped.load(AT), mapped.load(AT + 9)), ("h".into(), "w".into()));
        mapped.store(AT + 1, 'i');
        in_process(mapped, |user, fd| user.ftruncate(fd, AT as i64 + 2).expect("it is open"));
        assert_eq!(mapped.fixture.fs.read("/f").expect("it is there")[AT as usize..], *b"hi");
        in_process(mapped, |user, fd| user.ftruncate(fd, SIZE as i64).expect("it is open"));
        // Bytes that were cut off do not come back, and the kernel's other bytes stay.
        assert_eq!((mapped.load(AT + 1), mapped.load(AT + 9)), ("i".into(), "0".into()));
        mapped.store(AT + 2 * PAGE, 'x');
        mapped.store(AT + 3 * PAGE, 'y');
        let punch = sluice_vfs::FallocateMode::PUNCH_HOLE | sluice_vfs::FallocateMode::KEEP_SIZE;
        in_process(mapped, |user, fd| {
            user.fallocate(fd, punch, (AT + 2 * PAGE) as i64, PAGE as i64).expect("it is open");
        });
        assert_eq!((mapped.load(AT + 2 * PAGE), mapped.load(AT + 3 * PAGE)), ("0".into(), "y".into()));
        mapped.store(SIZE - 1, 'z');
        in_process(mapped, |user, fd| {
            user.lseek(fd, 0, Whence::End).expect("it is a file");
            assert_eq!(user.write(fd, b"more"), Ok(4));
        });
        let contents = mapped.fixture.fs.read("/f").expect("it is there");
        assert_eq!(contents[SIZE as usize - 1..], *b"zmore");
    });
}

#[test]
fn what_is_stored_past_an_end_that_was_cut_is_gone() {
    in_each_mode(|mapped| {
        in_process(mapped, |user, fd| user.ftruncate(fd, AT as i64 + 1).expect("it is open"));
        // Still in the last page, behind the end.
        mapped.store(AT, 'k');
        mapped.store(AT + 5, 'b');
        assert_eq!(mapped.peer.tell("y"), "0");
        let path = mapped.fixture.path("f");
        assert_eq!(fs::metadata(&path).expect("it is there").len(), AT + 1);
        assert_eq!(mapped.fixture.fs.read("/f").expect("it is there")[AT as usize..], *b"k");
        in_process(mapped, |user, fd| user.ftruncate(fd, SIZE as i64).expect("it is open"));
        eventually("the kernel sees what is behind the old end", || mapped.load(AT + 5) == "0");
    });
}

/// As a database that is kept in a mapping: pages filled in no order, some of them read first, some written before, one
/// reader copying again and again while it grows.
#[test]
fn copies_of_a_live_mapped_database_hold_all_that_was_stored_before() {
    in_each_mode(|mapped| {
        let path = mapped.fixture.path("f");
        let file = File::options().write(true).open(&path).expect("it is there");
        file.write_all_at(b"written", 9 * PAGE).expect("there is room");
        let mut expected = vec![0; SIZE as usize];
        expected[AT as usize] = b'h';
        expected[9 * PAGE as usize..9 * PAGE as usize + 7].copy_from_slice(b"written");
        let outside = crate::harness::fresh_dir();
        for round in 0..40_u64 {
            let at = (round * 37 % 256) * PAGE + round;
            if round % 3 == 0 {
                mapped.load((round * 11 % 256) * PAGE);
            }
            let byte = (b'a' + (round % 26) as u8) as char;
            mapped.store(at, byte);
            expected[at as usize] = byte as u8;
            let copy = outside.join("copy");
            let _ = fs::remove_file(&copy);
            match round % 4 {
                0 => run("cp", &["--sparse=auto", text(&path), text(&copy)]),
                1 => run("cp", &["-a", text(&path), text(&copy)]),
                2 => {
                    let contents = mapped.fixture.fs.read("/f").expect("it is there");
                    fs::write(&copy, contents).expect("writable");
                }
                _ => {
                    let snapshot = mapped.fixture.fs.superblock().root().snapshot().expect("there is room");
                    let contents = sluice_vfs::Fs::with_superblock(snapshot).read("/f");
                    fs::write(&copy, contents.expect("it was there")).expect("writable");
                }
            }
            assert!(fs::read(&copy).expect("it was made") == expected, "round {round}");
        }
        fs::remove_dir_all(outside).expect("it is ours");
    });
}
