//! Pool: the few names, sizes, modes and flags from which operations are made, so that they meet each other
//! again and again.

use crate::executor::GROUPS;
use crate::word::{Bytes, CWD, Data, Fd, LockKind, LockOwner, Mode, Target, TimeArg};
use sluice_sync::random::Random;
use sluice_vfs::{AtFlags, FallocateMode, FileType, OpenFlags, RenameFlags, Whence, XattrFlags};

/// Limitations of the place that runs the operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// One process, and no path may leave its working directory (see the `host` module).
    pub confined: bool,
    /// The host refuses some uses of sticky directories that POSIX allows.
    pub no_sticky: bool,
    /// How many processes take part.
    pub processes: usize,
}

/// Draws arguments.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) random: Random,
    limits: Limits,
}

/// Names that mostly become directories, and names that mostly become something else.
const DIRECTORY_NAMES: [&[u8]; 2] = [b"a", b"b"];
const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"f"];
const PERMISSIONS: [u32; 16] = [
    0o644, 0o755, 0o777, 0o700, 0o666, 0o600, 0, 0o4755, 0o2755, 0o2777, 0o1777, 0o6777, 0o2745, 0o750,
    0o070, 0o10_7777,
];
/// Offsets and sizes around what matters: page and word boundaries, the ends of the range.
const OFFSETS: [i64; 17] =
    [0, 0, 1, 7, 100, 4095, 4096, 4097, 8192, 12_288, 12_300, 20_480, 65_536, 131_072, 1 << 32, 1 << 40, -1];
/// Not among them: offsets at which data can be written to the very last page. Linux does not find it again
/// (`SEEK_DATA` overflows).
const EXTREME_OFFSETS: [i64; 4] = [i64::MAX, i64::MIN, -4096, 1 << 62];
const LENGTHS: [usize; 12] = [0, 1, 10, 100, 511, 4095, 4096, 4097, 5000, 8192, 16_384, 70_000];
const TIMES: [(i64, u32); 7] = [
    (0, 0),
    (1, 1),
    (1_000_000_000, 123_456_789),
    (-5, 500_000_000),
    (4_000_000_000, 999_999_999),
    (1 << 33, 0),
    (77, 7),
];
const XATTRS: [&[u8]; 8] = [
    b"user.a",
    b"user.a",
    b"user.b",
    b"trusted.t",
    b"security.s",
    b"system.posix_acl_access",
    b"system.posix_acl_access",
    b"system.posix_acl_default",
];
const ODD_XATTRS: [&[u8]; 8] =
    [b"user.", b"user", b"", b"other.x", b"system.x", b"trusted.", b"security.", b"user.\xff"];

impl Pool {
    pub(crate) fn new(random: Random, limits: Limits) -> Pool {
        Pool { random, limits }
    }

    pub(crate) fn processes(&self) -> usize {
        self.limits.processes
    }

    fn name(&mut self, last: bool) -> Vec<u8> {
        match self.random.below(200) {
            0..192 if last || self.random.chance(15) => self.random.pick(&NAMES).to_vec(),
            0..192 => self.random.pick(&DIRECTORY_NAMES).to_vec(),
            192..194 => b".".to_vec(),
            194..196 if !self.limits.confined => b"..".to_vec(),
            196 => vec![b'n'; 255],
            197 => vec![b'n'; 256],
            198 => b"\xff\xfe ".to_vec(),
            _ => b"...".to_vec(),
        }
    }

    /// A path that probably names something that is no directory.
    pub(crate) fn file_path(&mut self) -> Bytes {
        let usual: [&[u8]; 10] = [b"c", b"d", b"c", b"d", b"e", b"f", b"g", b"/c", b"/d", b"a/c"];
        if !self.limits.confined && self.random.chance(75) {
            Bytes(self.random.pick(&usual).to_vec())
        } else {
            self.path()
        }
    }

    /// A path that probably names nothing yet.
    pub(crate) fn new_path(&mut self) -> Bytes {
        let mut path = self.path();
        if self.random.chance(60) && path.0.last().is_some_and(|b| matches!(b, b'a'..=b'd')) {
            path.0.pop();
            path.0.push(self.random.pick(b"efgh"));
        }
        path
    }

    /// A path that probably leads to a directory.
    pub(crate) fn directory(&mut self) -> Bytes {
        let usual: [&[u8]; 6] = [b"a", b"b", b".", b"a/b", b"b/a", b"a/"];
        if self.random.chance(85) { Bytes(self.random.pick(&usual).to_vec()) } else { self.path() }
    }

    /// A path of few components, seldom a malformed one.
    pub(crate) fn path(&mut self) -> Bytes {
        match self.random.below(200) {
            0 => return Bytes(Vec::new()),
            1 if !self.limits.confined => return Bytes(b"/".to_vec()),
            2 => return Bytes([b"a/".repeat(2047), b"a".to_vec()].concat()),
            3 => return Bytes([b"a/".repeat(2047), b"ab".to_vec()].concat()),
            4 => return Bytes(b".".to_vec()),
            5 if !self.limits.confined => return Bytes(b"..".to_vec()),
            _ => {}
        }
        let depth = [1, 1, 1, 1, 1, 2, 2, 3][self.random.below(8)];
        let mut path = Vec::new();
        if !self.limits.confined && self.random.chance(20) {
            path.push(b'/');
        }
        for level in 0..depth {
            if level > 0 {
                path.extend(if self.random.chance(3) { &b"//"[..] } else { b"/" });
            }
            path.extend(self.name(level + 1 == depth));
        }
        if self.random.chance(4) {
            path.extend(if self.random.chance(20) { &b"/."[..] } else { b"/" });
        }
        Bytes(path)
    }

    pub(crate) fn fd(&mut self) -> Fd {
        match self.random.below(100) {
            0..92 => Fd(self.random.below(5)),
            92..97 => Fd(self.random.below(12)),
            97 => Fd(-1),
            98 => Fd(CWD),
            _ => Fd(900),
        }
    }

    /// Where a relative path starts: mostly the working directory.
    pub(crate) fn at(&mut self) -> Fd {
        match self.random.below(100) {
            0..80 => Fd(CWD),
            80..93 => Fd(0),
            _ => self.fd(),
        }
    }

    pub(crate) fn mode(&mut self) -> Mode {
        let mode = self.random.pick(&PERMISSIONS);
        Mode(if self.limits.no_sticky { mode & !0o1000 } else { mode })
    }

    pub(crate) fn open_flags(&mut self) -> OpenFlags {
        let mut bits = [0, 1, 2, 2][self.random.below(4)];
        if self.random.chance(45) {
            bits |= OpenFlags::CREAT.bits();
        }
        for (flag, percent) in [
            (OpenFlags::EXCL, 8),
            (OpenFlags::TRUNC, 10),
            (OpenFlags::APPEND, 12),
            (OpenFlags::DIRECTORY, 10),
            (OpenFlags::NOFOLLOW, 12),
            (OpenFlags::NOATIME, 4),
            (OpenFlags::CLOEXEC, 10),
            (OpenFlags::NONBLOCK, 10),
            (OpenFlags::PATH, 6),
            (OpenFlags::TMPFILE, 5),
            (OpenFlags::SYNC, 3),
            (OpenFlags::DSYNC, 3),
            (OpenFlags::NOCTTY, 2),
            (OpenFlags::LARGEFILE, 2),
            (OpenFlags::DIRECT, 3),
        ] {
            if self.random.chance(percent) {
                bits |= flag.bits();
            }
        }
        match self.random.below(200) {
            0 => bits |= 3,
            1 => bits |= 0x8000_0000,
            2 => bits = self.random.bits() as u32 & 0o37_777_777,
            // A directory is opened for reading only: do that often enough.
            3..40 => bits = OpenFlags::DIRECTORY.bits(),
            _ => {}
        }
        OpenFlags::from_bits_retain(bits)
    }

    pub(crate) fn at_flags(&mut self, usual: &[AtFlags]) -> AtFlags {
        match self.random.below(100) {
            0..91 => self.random.pick(usual),
            91..98 => self.random.pick(usual) | AtFlags::EMPTY_PATH,
            _ => AtFlags::from_bits_retain(1 << self.random.below(16)),
        }
    }

    /// A path for a call with flags: an empty path, which names the descriptor, is made as often as
    /// `EMPTY_PATH` deserves.
    pub(crate) fn path_for(&mut self, flags: AtFlags) -> Bytes {
        if flags.contains(AtFlags::EMPTY_PATH) && self.random.chance(80) {
            Bytes(Vec::new())
        } else {
            self.path()
        }
    }

    pub(crate) fn offset(&mut self) -> i64 {
        match self.random.below(100) {
            0..70 => self.random.pick(&OFFSETS),
            70..96 => self.random.below(30_000) as i64,
            _ => self.random.pick(&EXTREME_OFFSETS),
        }
    }

    /// A size for a file. Not the largest: see `EXTREME_OFFSETS`.
    pub(crate) fn size(&mut self) -> i64 {
        self.offset().min(1 << 62)
    }

    /// An offset that is seldom wrong and mostly small, for ranges that should meet.
    pub(crate) fn small_offset(&mut self) -> i64 {
        match self.random.below(100) {
            0..95 => self.random.below(40) as i64 - 5,
            _ => self.offset(),
        }
    }

    pub(crate) fn length(&mut self) -> usize {
        self.random.pick(&LENGTHS)
    }

    /// A length to read. POSIX has a read of nothing do nothing; tmpfs updates the access time.
    pub(crate) fn read_length(&mut self) -> usize {
        self.length().max(1)
    }

    pub(crate) fn data(&mut self) -> Data {
        Data { len: self.length(), seed: self.random.below(256) as u8 }
    }

    pub(crate) fn fallocate_mode(&mut self) -> FallocateMode {
        let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        match self.random.below(20) {
            0..6 => FallocateMode::empty(),
            6..11 => FallocateMode::KEEP_SIZE,
            11..18 => punch,
            18 => FallocateMode::PUNCH_HOLE,
            _ => FallocateMode::from_bits_retain(0x100),
        }
    }

    /// A range to reserve: small, since a host's tmpfs really reserves it.
    pub(crate) fn reserve_len(&mut self) -> i64 {
        match self.random.below(20) {
            0 => 0,
            1 => -1,
            2 => i64::MIN,
            _ => self.length() as i64,
        }
    }

    pub(crate) fn uid(&mut self) -> Option<u32> {
        self.random.pick(&[None, Some(0), Some(1000), Some(1001), Some(1002), None])
    }

    pub(crate) fn gid(&mut self) -> Option<u32> {
        match self.random.below(6) {
            0..2 => None,
            2 => Some(0),
            _ => Some(self.random.pick(&GROUPS)),
        }
    }

    pub(crate) fn time(&mut self) -> TimeArg {
        match self.random.below(20) {
            0..3 => TimeArg::Now,
            3..6 => TimeArg::Omit,
            6 => TimeArg::At(5, 1_000_000_000),
            _ => {
                let (sec, nsec) = self.random.pick(&TIMES);
                TimeArg::At(sec, nsec)
            }
        }
    }

    pub(crate) fn whence(&mut self) -> Whence {
        use Whence::{Cur, Data, End, Hole, Set};
        self.random.pick(&[Set, Set, Cur, End, Data, Data, Hole, Hole])
    }

    pub(crate) fn lock_whence(&mut self) -> Whence {
        use Whence::{Cur, End, Hole, Set};
        let usual = [Set, Set, Set, Set, Cur, Cur, End, End];
        if self.random.chance(2) { Hole } else { self.random.pick(&usual) }
    }

    pub(crate) fn lock_kind(&mut self) -> LockKind {
        self.random.pick(&[LockKind::Read, LockKind::Write, LockKind::Unlock])
    }

    pub(crate) fn lock_owner(&mut self) -> LockOwner {
        self.random.pick(&[LockOwner::Posix, LockOwner::Posix, LockOwner::Ofd])
    }

    pub(crate) fn special_kind(&mut self) -> (FileType, u64) {
        match self.random.below(12) {
            0..3 => (FileType::Fifo, 0),
            3..5 => (FileType::Socket, 0),
            5..8 => (FileType::Regular, 0),
            // No driver has this major number, so that opening one cannot do harm.
            8 if self.random.chance(50) => (FileType::CharDevice, libc::makedev(4000, 7)),
            // A whiteout, which everybody may make.
            8 => (FileType::CharDevice, 0),
            9 => (FileType::BlockDevice, libc::makedev(4000, 8)),
            10 => (FileType::Directory, 0),
            _ => (FileType::Symlink, 0),
        }
    }

    pub(crate) fn rename_flags(&mut self) -> RenameFlags {
        match self.random.below(20) {
            0..11 => RenameFlags::empty(),
            11..13 => RenameFlags::NOREPLACE,
            13..16 => RenameFlags::EXCHANGE,
            16..18 => RenameFlags::WHITEOUT,
            18 => RenameFlags::WHITEOUT | RenameFlags::NOREPLACE,
            _ => RenameFlags::from_bits_retain(3 + self.random.below(6) as u32),
        }
    }

    pub(crate) fn target(&mut self) -> Target {
        match self.random.below(10) {
            0..3 => Target::File(self.file_path()),
            3..5 => Target::File(self.path()),
            5..7 => Target::Link(self.file_path()),
            _ => Target::Fd(match self.fd() {
                // Linux 6.13 takes this for the working directory, by accident.
                Fd(CWD) => Fd(-1),
                fd => fd,
            }),
        }
    }

    pub(crate) fn xattr_name(&mut self) -> Bytes {
        Bytes(match self.random.below(60) {
            0 => [b"user.".to_vec(), vec![b'x'; 250]].concat(),
            1 => [b"user.".to_vec(), vec![b'x'; 251]].concat(),
            2..8 => self.random.pick(&ODD_XATTRS).to_vec(),
            _ => self.random.pick(&XATTRS).to_vec(),
        })
    }

    pub(crate) fn xattr_value(&mut self) -> Bytes {
        Bytes(match self.random.below(40) {
            0 => vec![b'v'; 65_536],
            1 => vec![b'v'; 65_537],
            2..8 => Vec::new(),
            8..14 => vec![b'w'; 1000],
            _ => vec![b'v'; self.random.below(20)],
        })
    }

    pub(crate) fn xattr_flags(&mut self) -> XattrFlags {
        match self.random.below(20) {
            0..15 => XattrFlags::empty(),
            15..17 => XattrFlags::CREATE,
            17 => XattrFlags::REPLACE,
            18 => XattrFlags::CREATE | XattrFlags::REPLACE,
            _ => XattrFlags::from_bits_retain(8),
        }
    }

    /// A POSIX ACL in the binary form of Linux: version 2, then tag, permissions and id of each entry.
    /// Mostly a valid one, sometimes with an entry missing, double or out of order.
    pub(crate) fn acl(&mut self) -> Bytes {
        const NO_ID: u32 = u32::MAX;
        let rwx = |pool: &mut Pool| pool.random.below(8) as u16;
        let mut entries = vec![(1_u16, rwx(self), NO_ID)];
        let mut named = false;
        for uid in [1000, 1001] {
            if self.random.chance(40) {
                entries.push((2, rwx(self), uid));
                named = true;
            }
        }
        entries.push((4, rwx(self), NO_ID));
        for gid in GROUPS {
            if self.random.chance(25) {
                entries.push((8, rwx(self), gid));
                named = true;
            }
        }
        if named || self.random.chance(30) {
            entries.push((16, rwx(self), NO_ID));
        }
        entries.push((32, rwx(self), NO_ID));
        match self.random.below(40) {
            0 => drop(entries.remove(self.random.below(entries.len()))),
            1 => entries.push(entries[0]),
            2 => entries.swap(0, 1),
            3 => entries[0].1 = 9,
            4 => entries.clear(),
            _ => {}
        }
        let version = if self.random.chance(2) { 3_u32 } else { 2 };
        let mut bytes = version.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        if self.random.chance(2) {
            bytes.pop();
        }
        Bytes(bytes)
    }
}
