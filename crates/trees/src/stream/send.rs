//! Send: a snapshot, written as a stream.
//!
//! # Theory
//! The walk goes through the older snapshot and the newer one side by side. A name that is gone is removed, one that is new is made, and a file that
//! is there in both gets what differs. The receiver is led into a directory when there is something to do there, and a directory's
//! attributes come after all in it.
//!
//! *Files of several names* are put off to the end, when all their names are known. A file that has a name at which it already was in the older
//! snapshot keeps that name; names at which something else was are removed first, and become links.
//! Directories in which that was done get their attributes once more.

use super::digest::digest;
use super::facts::InodeFacts;
use super::frame::{FrameWriter, StreamOrder};
use super::layout::{contents, differences};
use super::pairs::{EntryPair, PairStep, PairWalk};
use crate::host::failed;
use sluice_vfs::{Errno, FileType, InodeRef, Superblock};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names from the top to a directory.
type PathNames = Vec<Box<[u8]>>;

/// Writes the snapshot `name` of the file system to `out`: the changes since its older snapshot `since`, or the whole tree. The tree that
/// [`receive`](super::receive()) makes of that has all names, contents with their holes, hard links, attributes, extended attributes and
/// times; the birth times and inode numbers are new ones. An access time comes along when something else of the file has changed.
///
/// # Errors
/// `NotFound`: no such snapshot; one line with the path that met it.
pub fn send(superblock: &Superblock, name: &[u8], since: Option<&[u8]>, out: impl Write) -> io::Result<()> {
    let top = snapshot(superblock, name)?;
    let base = since.map(|since| io::Result::Ok((since, snapshot(superblock, since)?))).transpose()?;
    let sum = base.as_ref().map(|(since, older)| io::Result::Ok((*since, digest(older)?))).transpose()?;
    let mut sender = Sender { out: FrameWriter::new(out)?, at: PathNames::new(), several: Vec::new() };
    sender.out.put(&StreamOrder::Begin { name, base: sum })?;
    sender.walk(base.as_ref().map(|(_, older)| older), &top)?;
    sender.send_several()?;
    sender.out.put(&StreamOrder::End(digest(&top)?))?;
    sender.out.flush()
}

/// The top of the snapshot `name`.
pub(super) fn snapshot(superblock: &Superblock, name: &[u8]) -> io::Result<InodeRef> {
    superblock.snapshot_top(name).map_err(|errno| match errno {
        Errno::ENOENT | Errno::ENOTDIR => {
            let text = format!("no snapshot {}: see `sluice snapshot list`", shown(name));
            io::Error::new(ErrorKind::NotFound, text)
        }
        errno => errno.into(),
    })
}

pub(super) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).escape_debug().to_string()
}

struct Sender<W> {
    out: FrameWriter<W>,
    /// Where the receiver stands.
    at: PathNames,
    several: Vec<Several>,
}

/// A name of a file that has several, in one of the snapshots.
struct Several {
    dir: PathNames,
    /// The directory in the new snapshot, and the one that was there before.
    directory: (InodeRef, Option<InodeRef>),
    name: Box<[u8]>,
    old: Option<InodeRef>,
    new: InodeRef,
}

/// A directory that is being walked.
struct SentDirectory {
    new: InodeRef,
    old: Option<InodeRef>,
    /// Names in it were changed, or it is new.
    is_touched: bool,
}

impl<W: Write> Sender<W> {
    fn walk(&mut self, old: Option<&InodeRef>, new: &InodeRef) -> io::Result<()> {
        let mut walk = PairWalk::begin(old, new)?;
        let mut way = PathNames::new();
        let mut levels =
            vec![SentDirectory { new: new.clone(), old: old.cloned(), is_touched: old.is_none() }];
        while let Some(step) = walk.next()? {
            match step {
                PairStep::Leave => {
                    let Some(level) = levels.pop() else { return Err(Errno::EIO.into()) };
                    self.leave(&way, &level).map_err(|error| at(&way, error))?;
                    way.pop();
                }
                PairStep::Entry(entry) => {
                    let Some(level) = levels.last_mut() else { return Err(Errno::EIO.into()) };
                    let name = entry.name.clone();
                    let below = self.entry(&way, level, entry);
                    let below = below.map_err(|error| {
                        way.push(name.clone());
                        at(&way, error)
                    })?;
                    match below {
                        SentEntry::Nothing => {}
                        SentEntry::Gone => walk.skip(),
                        SentEntry::Directory(level) => {
                            levels.push(level);
                            way.push(name);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends an entry in the directory `level`, to which `way` leads: what is below it.
    fn entry(
        &mut self,
        way: &PathNames,
        level: &mut SentDirectory,
        entry: EntryPair,
    ) -> io::Result<SentEntry> {
        let EntryPair { name, old, new } = entry;
        let Some(new) = new else {
            self.go_to(way)?;
            self.out.put(&StreamOrder::Remove(&name))?;
            level.is_touched = true;
            return Ok(SentEntry::Gone);
        };
        if new.is_dir() {
            if old.is_none() {
                self.go_to(way)?;
                self.make(&name, &InodeFacts::of(&new)?)?;
                self.at.push(name);
                level.is_touched = true;
            }
            let is_touched = old.is_none();
            return Ok(SentEntry::Directory(SentDirectory { new, old, is_touched }));
        }
        let has_several = |inode: &InodeRef| inode.stat().nlink > 1;
        if has_several(&new) || old.as_ref().is_some_and(has_several) {
            let directory = (level.new.clone(), level.old.clone());
            self.several.push(Several { dir: way.clone(), directory, name, old, new });
            return Ok(SentEntry::Nothing);
        }
        let facts = InodeFacts::of(&new)?;
        let old = old.map(|old| io::Result::Ok((InodeFacts::of(&old)?, old))).transpose()?;
        match &old {
            Some((was, old)) if was.is_like(&facts) => {
                self.change(way, &name, (old, was), (&new, &facts))?;
            }
            _ => {
                self.go_to(way)?;
                if old.is_some() {
                    self.out.put(&StreamOrder::Remove(&name))?;
                }
                self.create(&name, (&new, &facts))?;
                self.attributes(None, &facts)?;
                level.is_touched = true;
            }
        }
        Ok(SentEntry::Nothing)
    }

    /// Sends the attributes of a directory that is left, if they must come.
    fn leave(&mut self, way: &PathNames, level: &SentDirectory) -> io::Result<()> {
        let facts = InodeFacts::of(&level.new)?;
        let old = level.old.as_ref().map(InodeFacts::of).transpose()?;
        if level.is_touched || old.as_ref().is_none_or(|old| !old.is_same(&facts)) {
            self.directory(way, old.as_ref(), &facts)?;
        }
        Ok(())
    }

    /// Leads the receiver to the directory to which `way` leads.
    fn go_to(&mut self, way: &PathNames) -> io::Result<()> {
        let common = self.at.iter().zip(way).take_while(|(one, other)| one == other).count();
        while self.at.len() > common {
            self.out.put(&StreamOrder::Up)?;
            self.at.pop();
        }
        for name in &way[common..] {
            self.out.put(&StreamOrder::Down(name))?;
            self.at.push(name.clone());
        }
        Ok(())
    }

    fn make(&mut self, name: &[u8], facts: &InodeFacts) -> io::Result<()> {
        let InodeFacts { file_type, rdev, ref target, .. } = *facts;
        self.out.put(&StreamOrder::Make { name, file_type, rdev, target })
    }

    /// Sends a new file with its contents.
    fn create(&mut self, name: &[u8], (new, facts): (&InodeRef, &InodeFacts)) -> io::Result<()> {
        self.make(name, facts)?;
        let size = if facts.file_type == FileType::Regular { new.stat().size } else { 0 };
        if size > 0 {
            self.out.put(&StreamOrder::Size(size))?;
            contents(new, &mut |order| self.out.put(order))?;
        }
        Ok(())
    }

    /// Sends what differs between a file and what was there under the same name.
    fn change(
        &mut self,
        way: &PathNames,
        name: &[u8],
        (old, was): (&InodeRef, &InodeFacts),
        (new, facts): (&InodeRef, &InodeFacts),
    ) -> io::Result<()> {
        if self.change_contents(way, name, old, new)? {
            return self.attributes(Some(was), facts);
        }
        if !was.is_same(facts) {
            self.take(way, name)?;
            self.attributes(Some(was), facts)?;
        }
        Ok(())
    }

    /// Sends what differs of the contents: whether anything did. Then the receiver has taken the file.
    fn change_contents(
        &mut self,
        way: &PathNames,
        name: &[u8],
        old: &InodeRef,
        new: &InodeRef,
    ) -> io::Result<bool> {
        if new.stat().file_type() != FileType::Regular {
            return Ok(false);
        }
        let (before, size) = (old.stat().size, new.stat().size);
        let mut is_taken = false;
        if before != size {
            self.take(way, name)?;
            self.out.put(&StreamOrder::Size(size))?;
            is_taken = true;
        }
        differences(old, new, &mut |order| {
            if !is_taken {
                self.take(way, name)?;
                is_taken = true;
            }
            self.out.put(order)?;
            Ok(true)
        })?;
        Ok(is_taken)
    }

    fn take(&mut self, way: &PathNames, name: &[u8]) -> io::Result<()> {
        self.go_to(way)?;
        self.out.put(&StreamOrder::Take(name))
    }

    /// Sends the attributes of the directory to which `way` leads.
    fn directory(&mut self, way: &PathNames, old: Option<&InodeFacts>, facts: &InodeFacts) -> io::Result<()> {
        self.go_to(way)?;
        self.out.put(&StreamOrder::Here)?;
        self.attributes(old, facts)
    }

    /// Sends the attributes of the file that was taken, or of the directory.
    fn attributes(&mut self, old: Option<&InodeFacts>, facts: &InodeFacts) -> io::Result<()> {
        self.out.put(&StreamOrder::owner(facts))?;
        let none = BTreeMap::new();
        let had = old.map_or(&none, |old| &old.xattrs);
        // The order before this, and each change of contents, takes a capability away.
        let is_sent = |key: &[u8], value: &[u8]| {
            had.get(key).is_none_or(|old| old != value) || key == b"security.capability"
        };
        for (key, value) in facts.xattrs.iter().filter(|(key, value)| is_sent(key, value)) {
            self.out.put(&StreamOrder::Xattr { key, value })?;
        }
        for key in had.keys().filter(|key| !facts.xattrs.contains_key(*key)) {
            self.out.put(&StreamOrder::NoXattr(key))?;
        }
        self.out.put(&StreamOrder::Times(facts.times))
    }

    /// Sends the files of several names.
    fn send_several(&mut self) -> io::Result<()> {
        let several = std::mem::take(&mut self.several);
        let mut files: BTreeMap<u64, Vec<&Several>> = BTreeMap::new();
        several.iter().for_each(|one| files.entry(one.new.ino()).or_default().push(one));
        // Which file of the older snapshot goes on as which of the new one; and the name under which it does.
        let mut goes_on = HashMap::new();
        let mut kept = HashMap::new();
        for (ino, names) in &files {
            for one in names {
                if let Some(old) = one.old.as_ref().filter(|old| !goes_on.contains_key(&old.ino()))
                    && InodeFacts::of(old)?.is_like(&InodeFacts::of(&one.new)?)
                {
                    goes_on.insert(old.ino(), *ino);
                    kept.insert(*ino, *one);
                    break;
                }
            }
        }
        let is_there = |one: &Several| {
            one.old.as_ref().is_some_and(|old| goes_on.get(&old.ino()) == Some(&one.new.ino()))
        };
        let mut touched: BTreeMap<&PathNames, &Several> = BTreeMap::new();
        for one in several.iter().filter(|one| one.old.is_some() && !is_there(one)) {
            self.go_to(&one.dir)?;
            self.out.put(&StreamOrder::Remove(&one.name))?;
            touched.insert(&one.dir, one);
        }
        for (ino, names) in &files {
            let facts = InodeFacts::of(&names[0].new)?;
            let first = *kept.get(ino).unwrap_or(&names[0]);
            self.several_names(first, names, &is_there, &facts)
                .map_err(|error| at(&first.dir.iter().chain([&first.name]).cloned().collect(), error))?;
            touched.extend(names.iter().filter(|one| !is_there(one)).map(|one| (&one.dir, *one)));
        }
        for (dir, Several { directory: (new, old), .. }) in touched {
            let (facts, old) = (InodeFacts::of(new)?, old.as_ref().map(InodeFacts::of).transpose()?);
            self.directory(dir, old.as_ref(), &facts)?;
        }
        Ok(())
    }

    /// Sends one file with its `names`, of which it is or gets `first` first.
    fn several_names(
        &mut self,
        first: &Several,
        names: &[&Several],
        is_there: &dyn Fn(&Several) -> bool,
        facts: &InodeFacts,
    ) -> io::Result<()> {
        let old = first.old.as_ref().filter(|_| is_there(first));
        if old.is_none() {
            self.go_to(&first.dir)?;
            self.create(&first.name, (&first.new, facts))?;
        }
        let path = first.dir.iter().chain([&first.name]).map(|name| &**name).collect::<Vec<_>>().join(&b'/');
        for one in names.iter().filter(|one| !std::ptr::eq(**one, first) && !is_there(one)) {
            self.go_to(&one.dir)?;
            self.out.put(&StreamOrder::Link { name: &one.name, path: &path })?;
        }
        let was = old.map(|old| io::Result::Ok((InodeFacts::of(old)?, old))).transpose()?;
        let is_changed = match &was {
            Some((was, old)) => {
                self.change_contents(&first.dir, &first.name, old, &first.new)?
                    || !was.is_same(facts)
                    || names.iter().any(|one| !is_there(one))
            }
            None => true,
        };
        if is_changed {
            self.take(&first.dir, &first.name)?;
            self.attributes(was.as_ref().map(|(was, _)| was), facts)?;
        }
        Ok(())
    }
}

/// The tree below an entry that was sent.
enum SentEntry {
    Nothing,
    /// A directory or file that is gone.
    Gone,
    Directory(SentDirectory),
}

/// `error`, with the path that met it.
fn at(way: &PathNames, error: io::Error) -> io::Error {
    // The reader of the stream has gone, or its disk is full: no file met that.
    if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::StorageFull | ErrorKind::WriteZero) {
        return error;
    }
    let path: PathBuf = way.iter().map(|name| Path::new(OsStr::from_bytes(name))).collect();
    failed(&path, error)
}
