//! Open files: which files are open, and by whom, found where they are: in the descriptors of the processes.
//!
//! # Theory
//! Per-CPU lists of open files are lists that every open and every close changes. But each open file stands in a list
//! already, the descriptors of some process. So what is listed, CPU by CPU, are the processes of a tree; `open` and
//! `close` know nothing of it, and a listing of what is open looks at every descriptor of every process.
//!
//! Meanwhile a file may get a descriptor where the reader has been, by `dup` or `fork`, and lose the one that the reader
//! comes to. So the reader says that it reads, and calls that pass a file on leave a note (*passing*):
//!
//! ```text
//!   dup, fork                              reader
//!   fill the new descriptor                is_read := true
//!   is_read? then note the file            look at all descriptors, then at the notes
//! ```
//! One of the two sees the other. A file that is not noted got no descriptor while it was looked for, so the last that it
//! has at the end was there all the time.
//!
//! # Then
//! - a file that is open throughout is listed exactly once, however many descriptors it has;
//! - a descriptor that lasts throughout is listed with its file;
//! - what is said of one file is true at some moment; two files may be of different moments.
//!
//! # Cost
//! `open`, `close`: nothing. `dup`: one load of a line that only readers write. A process that begins or ends: its CPU's
//! mutex.
//!
//! # Sources
//! The per-CPU lists of open files of a superblock in Linux 2.6.36 to 3.12 (`fs/file_table.c`), which each open and close
//! edited, and which were given up for that.

use crate::lock_class::{OPEN_FILES_PASSING, OPEN_FILES_PROCESSES, SUPERBLOCK_TREES};
use crate::open_file::OpenFile;
use crate::process::FdTable;
use crate::{Fd, FileType, Fs, OpenFlags, Superblock};
use sluice_sync::atomic::{AtomicBool, Ordering, fence};
use sluice_sync::percpu::PerCpuList;
use sluice_sync::percpu::list::Handle;
use sluice_sync::{Arc, CachePadded, Mutex, Ref, Weak};
use std::collections::HashMap;

/// An open file, that is, an open file description.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileInUse {
    /// The device number of the file system.
    pub dev: u64,
    /// The inode number.
    pub ino: u64,
    /// The file type.
    pub file_type: FileType,
    /// Access mode and status flags; with `PATH` the file is not open, but the mount is in use all the same.
    pub flags: OpenFlags,
    /// Where the next read or write goes, in bytes; of a directory after which entry.
    pub position: u64,
    /// The descriptors that were seen, in the order of processes and numbers.
    pub holders: Vec<Holder>,
}

/// A descriptor, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Holder {
    /// [`Process::pid`](crate::Process::pid).
    pub pid: i32,
    /// The process's user.
    pub uid: u32,
    /// The process's group.
    pub gid: u32,
    /// The descriptor.
    pub fd: Fd,
}

impl Fs {
    /// The files that are open in this tree, in the order of devices and inode numbers.
    pub fn open_files(&self) -> Vec<FileInUse> {
        in_order(self.mounts().processes().files_in_use(|_| true))
    }
}

impl Superblock {
    /// The files of this file system that are open in any tree that has it mounted, in the order of inode numbers. Users
    /// by [`InodeRef`](crate::InodeRef)s, as a FUSE mount is, have nothing open.
    pub fn open_files(&self) -> Vec<FileInUse> {
        let here = |file: &OpenFile| file.inode().dev() == self.dev();
        in_order(self.trees().all().iter().flat_map(|tree| tree.files_in_use(here)).collect())
    }
}

fn in_order(mut files: Vec<FileInUse>) -> Vec<FileInUse> {
    files.sort_by(|a, b| (a.dev, a.ino, &a.holders).cmp(&(b.dev, b.ino, &b.holders)));
    files
}

/// The processes of one tree of mounts.
pub(crate) struct Processes {
    tables: PerCpuList<Arc<FdTable>>,
    /// Whether anybody reads. *Atomic (passing); written under `passing`.*
    is_read: CachePadded<AtomicBool>,
    passing: Mutex<Passing>,
}

/// The files that readers are told of.
#[derive(Default)]
struct Passing {
    readers: usize,
    /// The files that got a further descriptor since the first of these readers began. Shared without counting them: that
    /// may free another file, and not under a lock.
    noted: Vec<Arc<Ref<OpenFile>>>,
}

impl Processes {
    pub(crate) fn new() -> Arc<Processes> {
        Arc::new(Processes {
            tables: PerCpuList::with_class(&OPEN_FILES_PROCESSES),
            is_read: CachePadded::new(AtomicBool::new(false)),
            passing: Mutex::with_class(&OPEN_FILES_PASSING, Passing::default()),
        })
    }

    /// Lists the descriptors of a process, and notes the files that it was made with.
    pub(crate) fn add(&self, table: &Arc<FdTable>) -> Handle {
        let handle = self.tables.add(table.clone());
        // A reader that has passed this list has said so before, and its mutex lets us see it.
        if self.is_read.load(Ordering::SeqCst) {
            table.files().for_each(|(_, file)| self.note(file));
        }
        handle
    }

    /// Ends what [`add`](Self::add) began, when all descriptors are closed.
    pub(crate) fn remove(&self, handle: Handle) {
        self.tables.remove(handle);
    }

    /// To be called when `file` has got a further descriptor.
    #[inline]
    pub(crate) fn passed_on(&self, file: impl FnOnce() -> Option<Ref<OpenFile>>) {
        // SeqCst(passing): pairs with the fence in files_in_use(); the descriptor was filled before, SeqCst too.
        if self.is_read.load(Ordering::SeqCst)
            && let Some(file) = file()
        {
            self.note(file);
        }
    }

    #[cold]
    fn note(&self, file: Ref<OpenFile>) {
        // Not dropped under the lock: it may be the last reference.
        let file = Arc::new(file);
        let mut passing = self.passing.lock();
        if passing.readers > 0 {
            passing.noted.push(file.clone());
        }
    }

    fn files_in_use(&self, wanted: impl Fn(&OpenFile) -> bool) -> Vec<FileInUse> {
        let reading = Reading::begin(self);
        // SeqCst(passing): the looks below come after what begin() stored; pairs with passed_on().
        fence(Ordering::SeqCst);
        let mut tables = Vec::new();
        self.tables.for_each(|table| tables.push(table.clone()));
        let mut found = FilesFound::default();
        for table in tables {
            let owner = table.owner();
            for (fd, file) in table.files().filter(|(_, file)| wanted(file)) {
                found.add(file).push(Holder { pid: owner.pid, uid: owner.uid, gid: owner.gid, fd });
            }
        }
        for file in reading.end().iter().filter(|file| wanted(file)) {
            found.add(Ref::clone(file));
        }
        found.files.into_iter().filter_map(|(file, holders)| file.in_use(holders)).collect()
    }
}

/// Somebody reads, until it is dropped.
struct Reading<'p>(&'p Processes);

impl Reading<'_> {
    fn begin(processes: &Processes) -> Reading<'_> {
        let mut passing = processes.passing.lock();
        passing.readers += 1;
        processes.is_read.store(true, Ordering::SeqCst);
        Reading(processes)
    }

    /// The files that were noted meanwhile, and perhaps somewhat before.
    fn end(self) -> Vec<Arc<Ref<OpenFile>>> {
        self.0.passing.lock().noted.clone()
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut passing = self.0.passing.lock();
        passing.readers -= 1;
        if passing.readers == 0 {
            self.0.is_read.store(false, Ordering::SeqCst);
            let noted = std::mem::take(&mut passing.noted);
            drop(passing);
            drop(noted);
        }
    }
}

/// The files found so far, each once.
#[derive(Default)]
struct FilesFound {
    /// Where in `files` a description is, by what it is called as an owner of locks: nobody else's while we hold it.
    places: HashMap<u64, usize>,
    files: Vec<(Ref<OpenFile>, Vec<Holder>)>,
}

impl FilesFound {
    /// The holders of `file` known so far.
    fn add(&mut self, file: Ref<OpenFile>) -> &mut Vec<Holder> {
        let place = *self.places.entry(file.id()).or_insert(self.files.len());
        if place == self.files.len() {
            self.files.push((file, Vec::new()));
        }
        &mut self.files[place].1
    }
}

impl OpenFile {
    /// The report on this description, unless its last descriptor was closed.
    fn in_use(&self, mut holders: Vec<Holder>) -> Option<FileInUse> {
        if self.is_closed() {
            return None;
        }
        let inode = self.inode();
        holders.sort_unstable();
        Some(FileInUse {
            dev: inode.dev(),
            ino: inode.ino(),
            file_type: inode.file_type(),
            flags: self.flags(),
            position: self.cursor.last(),
            holders,
        })
    }
}

/// The trees of mounts that a file system is or was a part of.
pub(crate) struct Trees(Mutex<Vec<Weak<Processes>>>);

impl Trees {
    pub(crate) fn new() -> Trees {
        Trees(Mutex::with_class(&SUPERBLOCK_TREES, Vec::new()))
    }

    /// The file system becomes a part of the tree of these processes.
    pub(crate) fn add(&self, tree: &Arc<Processes>) {
        let mut trees = self.0.lock();
        let mut is_known = false;
        trees.retain(|one| {
            one.upgrade().is_some_and(|one| {
                is_known |= Arc::ptr_eq(&one, tree);
                true
            })
        });
        if !is_known {
            trees.push(Arc::downgrade(tree));
        }
    }

    fn all(&self) -> Vec<Arc<Processes>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }
}
