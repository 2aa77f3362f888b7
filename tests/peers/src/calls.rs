//! Calls: what is measured, as each file system has it.

use futures::executor::block_on;
use rsfs::unix_ext::FileExt as _;
use rsfs::{DirEntry as _, GenFS as _, Metadata as _, OpenOptions as _};
use sluice_vfs::{Cred, Fs, OpenFlags, Process, Whence};
use std::fs;
use std::hint::black_box;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use vfs::FileSystem as _;
use virtual_fs::FileSystem as _;

/// In the order in which [`FileSystem::calls`] has them.
pub const CALLS: [&str; 6] =
    ["creat-unlink", "open-close", "stat", "readdir 1,000", "read 4 KiB", "write 4 KiB"];

const DIRS: [&str; 4] = ["/a", "/a/b", "/a/b/c", "/many"];
/// There, with a page in it.
const FILE: &str = "/a/b/c/file";
/// Not there.
const FRESH: &str = "/a/b/c/fresh";
const MANY: &str = "/many";
const PAGE: [u8; 4096] = [7; 4096];

fn names_of_many() -> impl Iterator<Item = String> {
    (0..1000).map(|number| format!("{MANY}/file-{number}"))
}

/// One call, made again and again.
pub type Call<'a> = Box<dyn FnMut() + 'a>;

/// A file system with what is measured of it.
pub trait FileSystem {
    /// Makes the directories and files.
    fn set_up(&self);

    fn calls(&self) -> [Call<'_>; 6];
}

pub struct Sluice(Process);

impl Sluice {
    pub fn new() -> Self {
        Sluice(Fs::new().process(Cred::user(0, 0)))
    }

    fn create(&self, path: &str) -> sluice_vfs::Fd {
        self.0.open(path, OpenFlags::RDWR | OpenFlags::CREAT | OpenFlags::EXCL, 0o644).unwrap()
    }
}

impl FileSystem for Sluice {
    fn set_up(&self) {
        DIRS.iter().for_each(|dir| self.0.mkdir(dir, 0o755).unwrap());
        names_of_many().for_each(|name| self.0.close(self.create(&name)).unwrap());
        assert_eq!(self.0.pwrite(self.create(FILE), &PAGE, 0), Ok(PAGE.len()));
    }

    fn calls(&self) -> [Call<'_>; 6] {
        let process = &self.0;
        let open = |path| process.open(path, OpenFlags::RDONLY, 0).unwrap();
        let (file, many) = (process.open(FILE, OpenFlags::RDWR, 0).unwrap(), open(MANY));
        let mut page = PAGE;
        [
            Box::new(|| {
                process.close(self.create(FRESH)).unwrap();
                process.unlink(FRESH).unwrap();
            }),
            Box::new(move || process.close(open(FILE)).unwrap()),
            Box::new(|| assert_eq!(process.stat(FILE).unwrap().size, 4096)),
            Box::new(move || {
                process.lseek(many, 0, Whence::Set).unwrap();
                let mut count = 0;
                let mut visit = |_: sluice_vfs::DirEntry<'_>| {
                    count += 1;
                    true
                };
                process.visit_entries(many, &mut visit).unwrap();
                assert!(count >= 1000);
            }),
            Box::new(move || assert_eq!(process.pread(file, &mut page, 0), Ok(page.len()))),
            Box::new(move || assert_eq!(process.pwrite(file, &PAGE, 0), Ok(PAGE.len()))),
        ]
    }
}

pub struct Vfs(vfs::MemoryFS);

impl Vfs {
    pub fn new() -> Self {
        Vfs(vfs::MemoryFS::new())
    }
}

impl FileSystem for Vfs {
    fn set_up(&self) {
        DIRS.iter().for_each(|dir| self.0.create_dir(dir).unwrap());
        names_of_many().for_each(|name| drop(self.0.create_file(&name).unwrap()));
        self.0.create_file(FILE).unwrap().write_all(&PAGE).unwrap();
    }

    fn calls(&self) -> [Call<'_>; 6] {
        let fs = &self.0;
        let mut file = fs.open_file(FILE).unwrap();
        let mut page = PAGE;
        [
            Box::new(|| {
                drop(fs.create_file(FRESH).unwrap());
                fs.remove_file(FRESH).unwrap();
            }),
            Box::new(|| drop(fs.open_file(FILE).unwrap())),
            Box::new(|| assert_eq!(fs.metadata(FILE).unwrap().len, 4096)),
            Box::new(|| assert_eq!(fs.read_dir(MANY).unwrap().count(), 1000)),
            Box::new(move || {
                file.seek(SeekFrom::Start(0)).unwrap();
                file.read_exact(&mut page).unwrap();
            }),
            // Seen by others when the writer is dropped.
            Box::new(|| fs.create_file(FILE).unwrap().write_all(&PAGE).unwrap()),
        ]
    }
}

pub struct Rsfs(rsfs::mem::FS);

impl Rsfs {
    pub fn new() -> Self {
        Rsfs(rsfs::mem::FS::new())
    }
}

impl FileSystem for Rsfs {
    fn set_up(&self) {
        DIRS.iter().for_each(|dir| self.0.create_dir(dir).unwrap());
        names_of_many().for_each(|name| drop(self.0.create_file(&name).unwrap()));
        self.0.create_file(FILE).unwrap().write_all(&PAGE).unwrap();
    }

    fn calls(&self) -> [Call<'_>; 6] {
        let fs = &self.0;
        let file = || fs.new_openopts().read(true).write(true).open(FILE).unwrap();
        let (reader, writer, mut page) = (file(), file(), PAGE);
        [
            Box::new(|| {
                drop(fs.create_file(FRESH).unwrap());
                fs.remove_file(FRESH).unwrap();
            }),
            Box::new(|| drop(fs.open_file(FILE).unwrap())),
            Box::new(|| assert_eq!(fs.metadata(FILE).unwrap().len(), 4096)),
            Box::new(|| {
                let names = fs.read_dir(MANY).unwrap().map(|entry| black_box(entry.unwrap().file_name()));
                assert_eq!(names.count(), 1000);
            }),
            Box::new(move || assert_eq!(reader.read_at(&mut page, 0).unwrap(), page.len())),
            Box::new(move || assert_eq!(writer.write_at(&PAGE, 0).unwrap(), PAGE.len())),
        ]
    }
}

pub struct VirtualFs(virtual_fs::mem_fs::FileSystem);

impl VirtualFs {
    pub fn new() -> Self {
        VirtualFs(virtual_fs::mem_fs::FileSystem::default())
    }

    fn create(&self, path: &str) -> Box<dyn virtual_fs::VirtualFile + Send + Sync> {
        self.0.new_open_options().read(true).write(true).create(true).open(path).unwrap()
    }
}

impl FileSystem for VirtualFs {
    fn set_up(&self) {
        DIRS.iter().for_each(|dir| self.0.create_dir(Path::new(dir)).unwrap());
        names_of_many().for_each(|name| drop(self.create(&name)));
        block_on(self.create(FILE).write_all(&PAGE)).unwrap();
    }

    fn calls(&self) -> [Call<'_>; 6] {
        let fs = &self.0;
        let (mut reader, mut writer, mut page) = (self.create(FILE), self.create(FILE), PAGE);
        [
            Box::new(|| {
                drop(self.create(FRESH));
                fs.remove_file(Path::new(FRESH)).unwrap();
            }),
            Box::new(|| drop(fs.new_open_options().read(true).open(FILE).unwrap())),
            Box::new(|| assert_eq!(fs.metadata(Path::new(FILE)).unwrap().len(), 4096)),
            Box::new(|| {
                let names = fs.read_dir(Path::new(MANY)).unwrap().map(|entry| black_box(entry.unwrap().path));
                assert_eq!(names.count(), 1000);
            }),
            Box::new(move || {
                block_on(async {
                    reader.seek(SeekFrom::Start(0)).await.unwrap();
                    reader.read_exact(&mut page).await.unwrap();
                });
            }),
            Box::new(move || {
                block_on(async {
                    writer.seek(SeekFrom::Start(0)).await.unwrap();
                    writer.write_all(&PAGE).await.unwrap();
                });
            }),
        ]
    }
}

/// The host's, by system calls; its directory goes with it.
pub struct Tmpfs(PathBuf);

impl Tmpfs {
    pub fn new() -> Self {
        Tmpfs(PathBuf::from(format!("/dev/shm/peers-{}", std::process::id())))
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join(&path[1..])
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Nothing to be done if it fails, and nothing depends on it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl FileSystem for Tmpfs {
    fn set_up(&self) {
        fs::create_dir(&self.0).unwrap();
        DIRS.iter().for_each(|dir| fs::create_dir(self.at(dir)).unwrap());
        names_of_many().for_each(|name| drop(fs::File::create(self.at(&name)).unwrap()));
        fs::write(self.at(FILE), PAGE).unwrap();
    }

    fn calls(&self) -> [Call<'_>; 6] {
        let (present, fresh, many) = (self.at(FILE), self.at(FRESH), self.at(MANY));
        let file = || fs::OpenOptions::new().read(true).write(true).open(&present).unwrap();
        let (reader, writer, same, mut page) = (file(), file(), present.clone(), PAGE);
        [
            Box::new(move || {
                drop(fs::File::create_new(&fresh).unwrap());
                fs::remove_file(&fresh).unwrap();
            }),
            Box::new(move || drop(fs::File::open(&present).unwrap())),
            Box::new(move || assert_eq!(fs::metadata(&same).unwrap().len(), 4096)),
            Box::new(move || {
                let names = fs::read_dir(&many).unwrap().map(|entry| black_box(entry.unwrap().file_name()));
                assert_eq!(names.count(), 1000);
            }),
            Box::new(move || reader.read_exact_at(&mut page, 0).unwrap()),
            Box::new(move || writer.write_all_at(&PAGE, 0).unwrap()),
        ]
    }
}
