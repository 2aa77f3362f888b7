//! Random tree: changes by chance, of all kinds that a tree can have.

use sluice_sync::random::Random;
use sluice_vfs::{
    AtFlags, Cred, Errno, FallocateMode, Fd, FileType, Fs, InodeFlags, OpenFlags, Process, RenameFlags,
    SetTime, Timestamp, XattrFlags,
};
use std::path::{Path, PathBuf};

/// A file system that is changed by chance.
pub(super) struct RandomTree {
    process: Process,
    pub(super) random: Random,
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "\u{e9}\n"];
const LONGEST: u64 = 300_000;

impl RandomTree {
    pub(super) fn new(fs: &Fs, seed: u64) -> RandomTree {
        let process = fs.process(Cred::root());
        process.umask(0);
        RandomTree { process, random: Random::new(seed) }
    }

    /// Makes so many changes. Calls that fail since a name is there or not are among them.
    pub(super) fn change(&mut self, times: u64) {
        for _ in 0..times {
            match self.one() {
                Ok(())
                | Err(
                    Errno::ENOENT
                    | Errno::EEXIST
                    | Errno::ENOTDIR
                    | Errno::EISDIR
                    | Errno::ENOTEMPTY
                    | Errno::EINVAL
                    | Errno::EPERM
                    | Errno::EACCES
                    | Errno::ELOOP
                    | Errno::ENXIO
                    | Errno::ENODATA
                    | Errno::EOPNOTSUPP
                    | Errno::EBUSY
                    | Errno::ENOTTY
                    | Errno::ENODEV,
                ) => {}
                Err(errno) => panic!("{errno}"),
            }
        }
    }

    /// Renames so many times, also over others, and exchanges two names.
    pub(super) fn rename(&mut self, times: u64) {
        for _ in 0..times {
            let [from, to] = [self.path(), self.path()];
            let flags = self.random.pick(&[RenameFlags::empty(), RenameFlags::EXCHANGE]);
            let (mut from, mut to) = (from, to);
            if flags.is_empty() && self.random.below(3) == 0 {
                // Away, so that its name can be another's.
                to = Path::new("/").join(format!("away-{}", self.random.below(4)));
                if self.random.below(2) == 0 {
                    std::mem::swap(&mut from, &mut to);
                }
            }
            // Most lead nowhere, or are not empty.
            let _ = self.process.renameat2(Fd::CWD, from, Fd::CWD, to, flags);
        }
    }

    fn path(&mut self) -> PathBuf {
        let depth = 1 + self.random.below(3);
        let names: Vec<&str> = (0..depth).map(|_| self.random.pick(&NAMES)).collect();
        Path::new("/").join(names.join("/"))
    }

    fn one(&mut self) -> Result<(), Errno> {
        let path = self.path();
        let nothing = AtFlags::SYMLINK_NOFOLLOW;
        match self.random.below(26) {
            0..=4 => self.write(&path),
            5..=7 => self.process.mkdir(&path, 0o755),
            8 => {
                let size = self.random.below(LONGEST) as i64;
                self.process.truncate(&path, size)
            }
            9 => self.punch(&path),
            10 | 11 => {
                let to = self.path();
                self.process.rename(&path, to)
            }
            12 | 13 => {
                let to = self.path();
                self.process.link(&path, to)
            }
            14 => self.process.unlink(&path),
            15 => self.process.rmdir(&path),
            16 => self.process.symlink(format!("target {}", self.random.below(3)), &path),
            17 => self.process.fchmodat(Fd::CWD, &path, self.random.below(0o10000) as u32, nothing),
            18 => {
                let [uid, gid] = [self.random.below(5) as u32, self.random.below(5) as u32];
                self.process.lchown(&path, Some(uid), Some(gid))
            }
            19 => {
                let time = Timestamp { sec: self.random.below(1_i64 << 33), nsec: 5 };
                let times = [None, Some(SetTime::At(time))];
                self.process.utimensat(Fd::CWD, &path, times, nothing)
            }
            20 => {
                let key = self.random.pick(&[&b"user.k"[..], b"user.with/slash", b"trusted.t"]);
                let value = vec![7; self.random.below(3000) as usize];
                self.process.lsetxattr(&path, key, &value, XattrFlags::empty())
            }
            21 => self.process.lremovexattr(&path, b"user.k"),
            22 => {
                let file_type = self.random.pick(&[
                    FileType::Fifo,
                    FileType::Socket,
                    FileType::CharDevice,
                    FileType::BlockDevice,
                ]);
                self.process.mknod(&path, file_type, 0o640, self.random.below(3) << 8 | 5)
            }
            23 => self.list(&path),
            24 => self.flags(&path),
            _ => {
                let to = self.path();
                self.process.clone_tree(&path, to)
            }
        }
    }

    fn open(
        &self,
        path: &Path,
        flags: OpenFlags,
        act: impl FnOnce(Fd) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let fd = self.process.open(path, flags | OpenFlags::NOFOLLOW | OpenFlags::NONBLOCK, 0o644)?;
        let acted = act(fd);
        self.process.close(fd)?;
        acted
    }

    fn write(&mut self, path: &Path) -> Result<(), Errno> {
        let offset = if self.random.below(2) == 0 { 0 } else { self.random.below(LONGEST) } as i64;
        let len = match self.random.below(3) {
            0 => self.random.below(100),
            1 => self.random.below(9000),
            _ => self.random.below(LONGEST / 2),
        };
        let byte = self.random.below(4) as u8;
        self.open(path, OpenFlags::WRONLY | OpenFlags::CREAT, |fd| {
            self.process.pwrite(fd, &vec![byte; len as usize], offset).map(drop)
        })
    }

    fn punch(&mut self, path: &Path) -> Result<(), Errno> {
        let [offset, len] = [self.random.below(LONGEST) as i64, 1 + self.random.below(LONGEST) as i64];
        let mode = match self.random.below(3) {
            0 => FallocateMode::KEEP_SIZE,
            _ => FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE,
        };
        self.open(path, OpenFlags::WRONLY, |fd| self.process.fallocate(fd, mode, offset, len))
    }

    /// Sets an access control list, or one that new files get.
    fn list(&mut self, path: &Path) -> Result<(), Errno> {
        let key = self.random.pick(&[&b"system.posix_acl_access"[..], b"system.posix_acl_default"]);
        let entry = |tag: u16, rights: u16, id: u32| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let user = self.random.below(9) as u32;
        let entries = [
            2_u32.to_le_bytes().to_vec(),
            entry(1, 7, u32::MAX),
            entry(2, 5, user),
            entry(4, 5, u32::MAX),
            entry(0x10, 7, u32::MAX),
            entry(0x20, 4, u32::MAX),
        ];
        self.process.lsetxattr(path, key, &entries.concat(), XattrFlags::empty())
    }

    fn flags(&mut self, path: &Path) -> Result<(), Errno> {
        let flags = self.random.pick(&[
            InodeFlags::NODUMP,
            InodeFlags::empty(),
            InodeFlags::IMMUTABLE,
            InodeFlags::APPEND,
        ]);
        self.open(path, OpenFlags::RDONLY, |fd| self.process.ioctl_setflags(fd, flags))
    }
}
