//! Incoherent file system: a FUSE server in the test, mounted several times over one tree in memory, with one fault or none.
//!
//! Most faults are those of real network file systems: kernels that keep names, attributes and pages for a second, that compute the
//! offset of an append, and that have locks for themselves. The server speaks the kernel's protocol as `fuse.h` of Linux has it.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A fault. All but those of the server are of the second mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    None,
    /// The kernel keeps attributes for a second.
    StaleSize,
    /// The kernel keeps names, also absent ones, for a second.
    StaleName,
    /// The offset of an append is where the kernel takes the end to be.
    LostAppend,
    /// The server makes a name that is there.
    TwoWinners,
    /// Each kernel has locks for itself.
    LockHeldTwice,
    /// The kernel keeps pages.
    OldBytes,
    /// The server remembers for a second what was in a directory.
    StaleReaddir,
    /// The server gives the new name some time before it takes the old one away.
    RenameSeenHalf,
    /// The kernel keeps names that are there for a second; attributes of a removed file are refused, opening it is not.
    UnlinkedOpens,
    /// Removed bytes come back after a millisecond.
    TruncateUndone,
    /// The names of the check are refused: no incoherence.
    Refuses,
}

const ALWAYS: u64 = 1;
const DIRECTORY: u32 = 0o040_700;
const FILE: u32 = 0o100_600;

#[derive(Default)]
struct Inode {
    is_dir: bool,
    bytes: Vec<u8>,
    names: BTreeMap<String, u64>,
    links: u32,
    /// Bytes that a truncate has removed, and when.
    removed: Option<(Instant, Vec<u8>)>,
}

#[derive(Default)]
struct Tree {
    inodes: BTreeMap<u64, Inode>,
    /// By inode and owner: whether it is exclusive.
    locks: BTreeMap<(u64, u64), bool>,
}

type Shared = Arc<Mutex<Tree>>;

/// One mount, and the thread that serves it.
pub(super) struct IncoherentMount {
    dir: PathBuf,
    server: Option<JoinHandle<()>>,
}

impl Drop for IncoherentMount {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
        self.server.take().into_iter().for_each(|server| drop(server.join()));
    }
}

/// A tree with the fault, mounted on each of `dirs`. None where that is not allowed.
pub(super) fn mounted(dirs: &[PathBuf], fault: Fault) -> Option<Vec<IncoherentMount>> {
    let tree = Shared::default();
    let root = Inode { is_dir: true, links: 1, ..Inode::default() };
    tree.lock().expect("no panic").inodes.insert(1, root);
    let mounted = |(number, dir): (usize, &PathBuf)| mount_one(dir, number, tree.clone(), fault).ok();
    dirs.iter().enumerate().map(mounted).collect()
}

fn mount_one(dir: &Path, number: usize, tree: Shared, fault: Fault) -> Result<IncoherentMount, Errno> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let options = std::ffi::CString::new(options).expect("no zero byte");
    mount("incoherent", dir, "fuse", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())?;
    let kernel = Kernel { device, tree, fault, is_second: number > 0, listed: BTreeMap::new() };
    let server = std::thread::spawn(move || kernel.serve());
    Ok(IncoherentMount { dir: dir.to_owned(), server: Some(server) })
}

/// A kernel's side of the tree.
struct Kernel {
    device: OwnedFd,
    tree: Shared,
    fault: Fault,
    is_second: bool,
    /// The entries of directories as they were read first.
    listed: BTreeMap<u64, (Instant, Vec<(String, u64)>)>,
}

/// The fields of a message after its header.
struct Body<'m>(&'m [u8]);

impl Body<'_> {
    fn word(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    fn long(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    fn names(&self, at: usize) -> Vec<String> {
        let names = self.0[at..].split(|byte| *byte == 0);
        names.map(|name| String::from_utf8(name.to_vec()).expect("names of the test")).collect()
    }

    fn name(&self, at: usize) -> String {
        self.names(at).swap_remove(0)
    }
}

/// The fields of an answer.
#[derive(Default)]
struct Answer(Vec<u8>);

impl Answer {
    fn words(mut self, words: &[u32]) -> Answer {
        words.iter().for_each(|word| self.0.extend(word.to_ne_bytes()));
        self
    }

    fn longs(mut self, longs: &[u64]) -> Answer {
        longs.iter().for_each(|long| self.0.extend(long.to_ne_bytes()));
        self
    }

    fn attr(self, number: u64, inode: &Inode) -> Answer {
        let size = inode.bytes.len() as u64;
        let mode = if inode.is_dir { DIRECTORY } else { FILE };
        self.longs(&[number, size, 1, 0, 0, 0]).words(&[0, 0, 0, mode, inode.links, 0, 0, 0, 4096, 0])
    }
}

type Served = Result<Answer, Errno>;

impl Kernel {
    fn serve(mut self) {
        let mut buffer = vec![0; 1 << 17];
        loop {
            let length = match rustix::io::read(&self.device, &mut buffer) {
                Ok(length) => length,
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => continue,
                Err(_) => return, // It is unmounted.
            };
            let header = Body(&buffer[..40]);
            let (opcode, unique, node) = (header.word(4), header.long(8), header.long(16));
            // FORGET, INTERRUPT and BATCH_FORGET have no answer.
            if [2, 36, 42].contains(&opcode) {
                continue;
            }
            let (error, answer) = match self.answer(opcode, node, &Body(&buffer[40..length])) {
                Ok(answer) => (0, answer.0),
                Err(errno) => (-errno.raw_os_error(), Vec::new()),
            };
            let length = 16 + answer.len() as u32;
            let head = Answer::default().words(&[length, error as u32]).longs(&[unique]);
            // A caller that was killed takes no answer.
            let _ = rustix::io::write(&self.device, &[head.0, answer].concat());
        }
    }

    fn keeps(&self, faults: &[Fault]) -> u64 {
        u64::from(self.is_second && faults.contains(&self.fault))
    }

    fn answer(&mut self, opcode: u32, node: u64, body: &Body<'_>) -> Served {
        let shared = self.tree.clone();
        let mut tree = shared.lock().expect("no panic");
        let ok = Ok(Answer::default());
        match opcode {
            1 if self.fault == Fault::Refuses && ["x", "y"].contains(&&*body.name(0)) => Err(Errno::IO),
            1 => {
                let found = tree.find(node, &body.name(0));
                drop(tree);
                if self.fault == Fault::TwoWinners && found.is_err() {
                    std::thread::sleep(Duration::from_millis(2));
                }
                match found {
                    Ok(number) => self.entry(number),
                    Err(_) if self.keeps(&[Fault::StaleName]) > 0 => {
                        Ok(Answer::default().longs(&[0, 0, ALWAYS, 0]).words(&[0; 2]).longs(&[0; 11]))
                    }
                    Err(errno) => Err(errno),
                }
            }
            3 => {
                if self.fault == Fault::UnlinkedOpens && tree.of(node)?.links == 0 {
                    return Err(Errno::STALE);
                }
                tree.give_back(node);
                let keeps = self.keeps(&[Fault::StaleSize]);
                Ok(Answer::default().longs(&[keeps, 0]).attr(node, tree.of(node)?))
            }
            4 => {
                if body.word(0) & 8 != 0 {
                    let fault = self.fault;
                    let inode = tree.of_mut(node)?;
                    let size = body.long(16) as usize;
                    if fault == Fault::TruncateUndone && size < inode.bytes.len() {
                        inode.removed = Some((Instant::now(), inode.bytes[size..].to_vec()));
                    }
                    inode.bytes.resize(size, 0);
                }
                Ok(Answer::default().longs(&[0, 0]).attr(node, tree.of(node)?))
            }
            8 | 9 => {
                let at = if opcode == 8 { 16 } else { 8 };
                let number = tree.make(node, &body.name(at), opcode == 9)?;
                drop(tree);
                self.entry(number)
            }
            10 | 11 => {
                let name = body.name(0);
                let number = tree.find(node, &name)?;
                let inode = tree.of_mut(number)?;
                match (inode.is_dir, opcode == 11) {
                    (true, false) => return Err(Errno::ISDIR),
                    (false, true) => return Err(Errno::NOTDIR),
                    _ if !inode.names.is_empty() => return Err(Errno::NOTEMPTY),
                    // A file with a rename half done has a name too many.
                    _ => inode.links = inode.links.saturating_sub(1),
                }
                tree.of_mut(node)?.names.remove(&name);
                ok
            }
            12 | 45 => {
                let names = body.names(if opcode == 12 { 8 } else { 16 });
                let (to, old, new) = (body.long(0), &names[0], &names[1]);
                let moved = tree.find(node, old)?;
                if let Ok(replaced) = tree.find(to, new) {
                    if replaced == moved {
                        return ok;
                    }
                    match (tree.of(moved)?.is_dir, tree.of(replaced)?.is_dir) {
                        (true, false) => return Err(Errno::NOTDIR),
                        (false, true) => return Err(Errno::ISDIR),
                        _ => {
                            let links = &mut tree.of_mut(replaced)?.links;
                            *links = links.saturating_sub(1);
                        }
                    }
                }
                tree.of_mut(to)?.names.insert(new.clone(), moved);
                if self.fault == Fault::RenameSeenHalf {
                    drop(tree);
                    std::thread::sleep(Duration::from_millis(3));
                    tree = shared.lock().expect("no panic");
                }
                tree.of_mut(node)?.names.remove(old);
                ok
            }
            13 => {
                let (number, name) = (body.long(0), body.name(8));
                if tree.find(node, &name).is_ok() {
                    return Err(Errno::EXIST);
                }
                let inode = tree.of_mut(number)?;
                match (inode.is_dir, inode.links) {
                    (true, _) => return Err(Errno::PERM),
                    (_, 0) => return Err(Errno::NOENT),
                    _ => inode.links += 1,
                }
                tree.of_mut(node)?.names.insert(name, number);
                drop(tree);
                self.entry(number)
            }
            14 => Ok(self.opened()),
            15 => {
                tree.give_back(node);
                let (at, size) = (body.long(8) as usize, body.word(16) as usize);
                let bytes = tree.of(node)?.bytes.get(at..).unwrap_or_default();
                Ok(Answer(bytes[..bytes.len().min(size)].to_vec()))
            }
            16 => {
                let (offset, size, flags) = (body.long(8) as usize, body.word(16), body.word(32));
                let inode = tree.of_mut(node)?;
                let appends = OFlags::from_bits_retain(flags).contains(OFlags::APPEND);
                let to_the_end = appends && self.fault != Fault::LostAppend;
                let at = if to_the_end { inode.bytes.len() } else { offset };
                let data = &body.0[40..40 + size as usize];
                let end = inode.bytes.len().max(at + data.len());
                inode.bytes.resize(end, 0);
                inode.bytes[at..at + data.len()].copy_from_slice(data);
                Ok(Answer::default().words(&[size, 0]))
            }
            17 => Ok(Answer(vec![0; 80])),
            18 | 20 | 25 | 29 | 30 | 34 => ok,
            26 => {
                let locks = if self.fault == Fault::LockHeldTwice { 0 } else { 1 << 1 | 1 << 10 };
                let head = Answer::default().words(&[7, 31, 1 << 16, locks, 0, 1 << 16, 1]);
                Ok(head.words(&[0; 9]))
            }
            27 => Ok(Answer::default().longs(&[0, 0])),
            28 => {
                let mut names: Vec<_> = tree.of(node)?.names.clone().into_iter().collect();
                if self.keeps(&[Fault::StaleReaddir]) > 0 {
                    let (since, kept) =
                        self.listed.entry(node).or_insert_with(|| (Instant::now(), names.clone()));
                    if since.elapsed() > Duration::from_secs(1) {
                        (*since, *kept) = (Instant::now(), names.clone());
                    }
                    names = kept.clone();
                }
                let mut answer = Answer::default();
                for (at, (name, number)) in names.iter().enumerate().skip(body.long(8) as usize) {
                    answer = answer.longs(&[*number, at as u64 + 1]).words(&[name.len() as u32, 0]);
                    answer.0.extend(name.as_bytes());
                    let padded = answer.0.len().next_multiple_of(8);
                    answer.0.resize(padded, 0);
                }
                Ok(answer)
            }
            31..=33 => {
                let (owner, kind) = (body.long(8), body.word(32));
                let excludes = |(at, exclusive): (&(u64, u64), &bool)| {
                    at.0 == node && at.1 != owner && (*exclusive || kind == 1)
                };
                match kind {
                    2 => drop(tree.locks.remove(&(node, owner))),
                    _ if tree.locks.iter().any(excludes) => return Err(Errno::AGAIN),
                    _ => drop(tree.locks.insert((node, owner), kind == 1)),
                }
                ok
            }
            35 => {
                let name = body.name(16);
                let number = match (tree.make(node, &name, false), tree.find(node, &name)) {
                    (Err(Errno::EXIST), Ok(number)) if self.fault == Fault::TwoWinners => number,
                    (made, _) => made?,
                };
                drop(tree);
                let mut answer = self.entry(number)?;
                answer.0.extend(self.opened().0);
                Ok(answer)
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn opened(&self) -> Answer {
        // FOPEN_DIRECT_IO, or FOPEN_KEEP_CACHE.
        let flags = if self.keeps(&[Fault::OldBytes]) > 0 { 2 } else { 1 };
        Answer::default().longs(&[0]).words(&[flags, 0])
    }

    fn entry(&self, number: u64) -> Served {
        let tree = self.tree.lock().expect("no panic");
        let names = self.keeps(&[Fault::StaleName, Fault::UnlinkedOpens]);
        let attributes = self.keeps(&[Fault::StaleSize]);
        let head = Answer::default().longs(&[number, 0, names, attributes]).words(&[0, 0]);
        Ok(head.attr(number, tree.of(number)?))
    }
}

impl Tree {
    fn of(&self, number: u64) -> Result<&Inode, Errno> {
        self.inodes.get(&number).ok_or(Errno::STALE)
    }

    fn of_mut(&mut self, number: u64) -> Result<&mut Inode, Errno> {
        self.inodes.get_mut(&number).ok_or(Errno::STALE)
    }

    fn find(&self, dir: u64, name: &str) -> Result<u64, Errno> {
        self.of(dir)?.names.get(name).copied().ok_or(Errno::NOENT)
    }

    fn make(&mut self, dir: u64, name: &str, is_dir: bool) -> Result<u64, Errno> {
        if self.find(dir, name).is_ok() {
            return Err(Errno::EXIST);
        }
        let number = self.inodes.len() as u64 + 1;
        self.inodes.insert(number, Inode { is_dir, links: 1, ..Inode::default() });
        self.of_mut(dir)?.names.insert(name.to_owned(), number);
        Ok(number)
    }

    /// Undoes a truncate that is old enough.
    fn give_back(&mut self, number: u64) {
        if let Some(inode) = self.inodes.get_mut(&number)
            && let Some((_, bytes)) = inode.removed.take_if(|(at, _)| at.elapsed() > Duration::from_millis(1))
        {
            inode.bytes.extend(bytes);
        }
    }
}
