//! Bytes that get past the kernel's page cache, against every way to read them.

use crate::harness::{Fixture, LOCK_MODES, Peer, eventually};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::pipe::SpliceFlags;
use sluice_vfs::{FallocateMode, Fd, OpenFlags, Process};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;

#[test]
fn what_an_asynchronous_direct_write_wrote_is_read() {
    for options in LOCK_MODES {
        let Some(fixture) = Fixture::new(options) else { return };
        let path = fixture.path("f").display().to_string();
        let Some(peer) = Peer::start(&["aio", &path]) else { return };
        assert_eq!(peer.finish(), "ok");
        fixture.finish();
    }
}

const PAGE: usize = 4096;
/// The byte that is looked at lies in the second of the file's four pages.
const AT: u64 = PAGE as u64 + 5;

/// Where the file is reached.
struct Ways<'a> {
    fixture: &'a Fixture,
    other: &'a Fixture,
    old: File,
    mapping: Peer,
}

impl Ways<'_> {
    /// The byte at `AT` by each way to read it.
    fn read(&mut self) -> Vec<(&'static str, u8)> {
        let path = self.fixture.path("f");
        let fresh = File::open(&path).expect("it is there");
        let (pipe_out, pipe_in) = rustix::pipe::pipe().expect("there are descriptors");
        let spliced =
            rustix::pipe::splice(&fresh, Some(&mut { AT }), &pipe_in, None, 1, SpliceFlags::empty());
        assert_eq!(spliced, Ok(1));
        let copy = File::create(self.fixture.path("copy")).expect("writable");
        rustix::fs::copy_file_range(&fresh, Some(&mut { AT }), &copy, None, 1).expect("there is room");
        let mapped = self.mapping.tell(&format!("l {AT}")).into_bytes()[0];
        vec![
            ("pread of an old descriptor", byte_of(&self.old, AT)),
            ("pread", byte_of(&fresh, AT)),
            ("direct pread", byte_of_direct(&path)),
            ("mmap", if mapped == b'0' { 0 } else { mapped }),
            ("splice", byte_of(&pipe_out, None)),
            ("copy_file_range", self.fixture.fs.read("/copy").expect("it is there")[0]),
            ("read in process", self.fixture.fs.read("/f").expect("it is there")[AT as usize]),
            ("read", fs::read(&path).expect("it is there")[AT as usize]),
        ]
    }

    /// Every way finds `byte`; at once, or, after a change by `another` mount, in the end.
    fn expect(&mut self, writer: &str, byte: u8, another: bool) {
        if another {
            eventually(&format!("each way sees what {writer} did"), || {
                self.read().iter().all(|(_, found)| *found == byte)
            });
        }
        for (reader, found) in self.read() {
            assert_eq!(found, byte, "{reader} after {writer}");
        }
        let other = self.other.path("f");
        eventually(&format!("the other mount sees what {writer} did"), || {
            byte_of(File::open(&other).expect("it is there"), AT) == byte && byte_of_direct(&other) == byte
        });
    }
}

fn byte_of(file: impl AsFd, at: impl Into<Option<u64>>) -> u8 {
    let mut byte = [0];
    let read = match at.into() {
        Some(at) => rustix::io::pread(file, &mut byte, at),
        None => rustix::io::read(file, &mut byte),
    };
    assert_eq!(read, Ok(1));
    byte[0]
}

/// A page at an address that direct I/O takes.
fn aligned(buffer: &mut [u8; 2 * PAGE]) -> &mut [u8] {
    let from = buffer.as_ptr().align_offset(PAGE);
    &mut buffer[from..from + PAGE]
}

fn open_direct(path: &Path) -> File {
    let file = rustix::fs::open(path, OFlags::RDWR | OFlags::DIRECT, Mode::empty());
    File::from(file.expect("direct I/O is served"))
}

fn byte_of_direct(path: &Path) -> u8 {
    let mut buffer = [0; 2 * PAGE];
    let page = aligned(&mut buffer);
    assert_eq!(rustix::io::pread(open_direct(path), &mut *page, PAGE as u64), Ok(PAGE));
    page[AT as usize % PAGE]
}

fn write_direct(path: &Path, byte: u8) {
    let mut buffer = [byte; 2 * PAGE];
    assert_eq!(rustix::io::pwrite(open_direct(path), aligned(&mut buffer), PAGE as u64), Ok(PAGE));
}

fn copy_in(dir: &Path, byte: u8) {
    fs::write(dir.join("source"), [byte; PAGE]).expect("writable");
    let from = File::open(dir.join("source")).expect("it is there");
    let to = File::options().write(true).open(dir.join("f")).expect("it is there");
    let copied = rustix::fs::copy_file_range(&from, None, &to, Some(&mut { PAGE as u64 }), PAGE);
    assert_eq!(copied, Ok(PAGE));
}

fn allocate(dir: &Path, mode: FallocateFlags) {
    let file = File::options().write(true).open(dir.join("f")).expect("it is there");
    rustix::fs::fallocate(&file, mode, PAGE as u64, PAGE as u64).expect("it is served");
}

fn cut_and_grow(dir: &Path) {
    let file = File::options().write(true).open(dir.join("f")).expect("it is there");
    file.set_len(PAGE as u64).expect("there is nothing against it");
    file.set_len(4 * PAGE as u64).expect("there is nothing against it");
}

/// The calls of a user in process.
fn in_process(fixture: &Fixture, change: impl FnOnce(&Process, Fd)) {
    let user = fixture.fs.process(crate::harness::cred());
    let fd = user.open("/f", OpenFlags::RDWR, 0).expect("it is there");
    change(&user, fd);
}

#[test]
fn every_way_past_the_cache_is_seen_by_every_way_to_read() {
    if !crate::harness::can_mount() {
        return;
    }
    type Writer = (&'static str, bool, fn(&Fixture, &Fixture, u8));
    const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
    let writers: [Writer; 13] = [
        ("a write", false, |mount, _, byte| {
            let file = File::options().write(true).open(mount.path("f")).expect("it is there");
            assert_eq!(rustix::io::pwrite(&file, &[byte], AT), Ok(1));
        }),
        ("a direct write", false, |mount, _, byte| write_direct(&mount.path("f"), byte)),
        ("copy_file_range", false, |mount, _, byte| copy_in(mount.dir(), byte)),
        ("a punched hole", false, |mount, _, _| allocate(mount.dir(), PUNCH)),
        ("a zeroed range", false, |mount, _, _| allocate(mount.dir(), FallocateFlags::ZERO_RANGE)),
        ("truncation", false, |mount, _, _| cut_and_grow(mount.dir())),
        ("a write in process", false, |mount, _, byte| {
            in_process(mount, |user, fd| {
                assert_eq!(user.pwrite(fd, &[byte], AT.cast_signed()), Ok(1));
            });
        }),
        ("copy_file_range in process", false, |mount, _, byte| {
            mount.fs.write("/source", [byte; PAGE]).expect("writable");
            in_process(mount, |user, fd| {
                let from = user.open("/source", OpenFlags::RDONLY, 0).expect("it is there");
                let copied = user.copy_file_range(from, None, fd, Some(&mut { PAGE as i64 }), PAGE);
                assert_eq!(copied, Ok(PAGE));
            });
        }),
        ("a hole punched in process", false, |mount, _, _| {
            let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
            in_process(mount, |user, fd| {
                user.fallocate(fd, mode, PAGE as i64, PAGE as i64).expect("it is served");
            });
        }),
        ("truncation in process", false, |mount, _, _| {
            in_process(mount, |user, fd| {
                user.ftruncate(fd, PAGE as i64).expect("there is nothing against it");
                user.ftruncate(fd, 4 * PAGE as i64).expect("there is nothing against it");
            });
        }),
        ("a write on another mount", true, |_, other, byte| {
            let file = File::options().write(true).open(other.path("f")).expect("it is there");
            assert_eq!(rustix::io::pwrite(&file, &[byte], AT), Ok(1));
        }),
        ("a direct write on another mount", true, |_, other, byte| write_direct(&other.path("f"), byte)),
        ("a hole punched on another mount", true, |_, other, _| allocate(other.dir(), PUNCH)),
    ];
    for options in LOCK_MODES {
        let superblock = crate::harness::fresh_superblock();
        let (fixture, other) = (Fixture::of(&superblock, options), Fixture::of(&superblock, options));
        fs::write(fixture.path("f"), [b'a'; 4 * PAGE]).expect("writable");
        let old = File::open(fixture.path("f")).expect("it is there");
        let path = fixture.path("f").display().to_string();
        let Some(mut mapping) = Peer::start(&["map", &path]) else { return };
        assert_eq!(mapping.line(), "mapped");
        let mut ways = Ways { fixture: &fixture, other: &other, old, mapping };
        ways.expect("the first write", b'a', false);
        for (number, (name, another, write)) in writers.iter().enumerate() {
            let byte = b'b' + number as u8;
            let is_hole = ["punch", "zero", "trunc"].iter().any(|what| name.contains(what));
            write(&fixture, &other, byte);
            ways.expect(name, if is_hole { 0 } else { byte }, *another);
        }
        let Ways { mapping, old, .. } = ways;
        drop(old);
        mapping.finish();
        drop(other);
        fixture.finish();
    }
}
