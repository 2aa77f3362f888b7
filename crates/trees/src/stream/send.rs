//! Send: a snapshot, written as a stream.
//!
//! # Theory
//! The walk goes through the older snapshot and the newer one side by side. A name that is gone is removed, one that is new is made, and a file that
//! is there in both gets what differs. The receiver is led into a directory when there is something to do there, and a directory's
//! attributes come after all in it.
//!
//! *Moved files* and moved directories are [found](crate::moves) first. First the receiver puts aside what has no
//! name any more that it had in a directory that goes on. The walk then takes a directory of the newer snapshot beside the one that it goes on from,
//! wherever that was, and has files put back where they are now. So no order of names can be wrong, also where two files change places.
//!
//! *Files of several names* are put off to the end, when all their names are known. A file that has a name at which it already was in the older
//! snapshot keeps that name; names at which something else was are removed first, and become links.
//! Directories in which that was done get their attributes once more.

use super::digest::digest;
use super::facts::InodeFacts;
use super::frame::{DIGEST, FrameWriter, StreamOrder};
use super::layout::{contents, differences};
use super::pairs::{EntryPair, PairStep, PairWalk};
use super::resume::{IDENTITY, ResumePoint};
use crate::host::failed;
use crate::moves::{MovedFile, Moves, PathNames};
use sha2::{Digest, Sha256};
use sluice_vfs::{Errno, FileType, InodeRef, Superblock};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Writes the snapshot `name` of the file system to `out`: the changes since its older snapshot `since`, or the whole tree. The tree that
/// [`receive`](super::receive()) makes of that has all names, contents with their holes, hard links, attributes, extended attributes and
/// times; the birth times and inode numbers are new ones. An access time comes along when something else of the file has changed.
///
/// # Errors
/// `NotFound`: no such snapshot; one line with the path that met it.
///
/// A `resume` token is what [`receive`](super::receive()) says of a stream that was cut off, from the same two snapshots: only the rest is written then. Contents
/// that have come whole are not read again.
pub fn send(
    superblock: &Superblock,
    name: &[u8],
    since: Option<&[u8]>,
    resume: Option<&str>,
    out: impl Write,
) -> io::Result<()> {
    let top = snapshot(superblock, name)?;
    let base = since.map(|since| io::Result::Ok((since, snapshot(superblock, since)?))).transpose()?;
    let sum = base.as_ref().map(|(since, older)| io::Result::Ok((*since, digest(older)?))).transpose()?;
    let older = base.as_ref().map(|(_, older)| older);
    let moves = older.map_or(Ok(Moves::default()), |older| Moves::between(older, &top))?;
    let end = digest(&top)?;
    let base = sum.as_ref().zip(older).map(|((since, sum), older)| (*since, older, sum));
    let identity = identity((name, &top, &end), base);
    let out = match resume {
        None => FrameWriter::new(out)?,
        Some(token) => FrameWriter::going_on(out, point(token, identity)?)?,
    };
    let (at, several) = (PathNames::new(), Vec::new());
    let mut sender = Sender { out, at, several, base: older.cloned(), moves };
    sender.out.put(&StreamOrder::Begin { name, base: sum })?;
    sender.out.put(&StreamOrder::Identity(identity))?;
    sender.put_aside()?;
    sender.walk(&top)?;
    sender.send_several()?;
    sender.out.put(&StreamOrder::End(end))?;
    sender.out.flush()
}

/// A snapshot: its name, its top, its digest.
type DigestedSnapshot<'s> = (&'s [u8], &'s InodeRef, &'s [u8; DIGEST]);

/// The identity of the stream of `snapshot` since the snapshot `base`.
fn identity(snapshot: DigestedSnapshot<'_>, base: Option<DigestedSnapshot<'_>>) -> [u8; IDENTITY] {
    // Another version may put orders in another way.
    let mut hash = Sha256::new_with_prefix(env!("CARGO_PKG_VERSION"));
    for (name, top, sum) in [snapshot].into_iter().chain(base) {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        // A snapshot that was deleted and taken again is another one.
        hash.update(top.ino().to_le_bytes());
        hash.update(top.generation().to_le_bytes());
        hash.update(sum);
    }
    let sum: [u8; DIGEST] = hash.finalize().into();
    let mut identity = [0; IDENTITY];
    identity.copy_from_slice(&sum[..IDENTITY]);
    identity
}

/// Where the stream with this `identity` goes on, by a `token`.
fn point(token: &str, identity: [u8; IDENTITY]) -> io::Result<ResumePoint> {
    let point = ResumePoint::of_token(token).ok_or_else(|| {
        let text = "no token of `sluice receive`: give the one that it printed";
        io::Error::new(ErrorKind::InvalidInput, text)
    })?;
    if point.identity != identity {
        let text =
            "the token is of another stream: give the same snapshots as before, or send without --resume";
        return Err(io::Error::new(ErrorKind::InvalidInput, text));
    }
    Ok(point)
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
    /// The top of the older snapshot.
    base: Option<InodeRef>,
    moves: Moves,
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
    /// Has the receiver put aside what moved.
    fn put_aside(&mut self) -> io::Result<()> {
        let moves = std::mem::take(&mut self.moves);
        for (number, mut way) in moves.aside().enumerate() {
            let Some(name) = way.pop() else { return Err(Errno::EIO.into()) };
            self.go_to(&way)?;
            self.out.put(&StreamOrder::Aside { name: &name, number: number as u64 })?;
        }
        self.moves = moves;
        self.go_to(&PathNames::new())
    }

    fn walk(&mut self, new: &InodeRef) -> io::Result<()> {
        let old = self.base.clone();
        let mut walk = PairWalk::begin(old.as_ref(), new)?;
        let mut way = PathNames::new();
        let is_touched = old.is_none();
        let mut levels = vec![SentDirectory { new: new.clone(), old, is_touched }];
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
                            walk.go_beside(level.old.clone());
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
        let EntryPair { name, mut old, new } = entry;
        if old.is_some() && level.old.as_ref().is_some_and(|dir| self.moves.is_away(dir, &name)) {
            old = None;
            level.is_touched = true;
        }
        let Some(new) = new else {
            if old.is_some() {
                self.remove(way, &name)?;
                level.is_touched = true;
            }
            return Ok(SentEntry::Gone);
        };
        if new.is_dir() {
            let mut is_touched = old.is_none();
            if let Some((number, moved)) = self.moves.put_aside(self.base.as_ref(), new.ino())? {
                self.put_back(way, &name, number, old.is_some())?;
                self.at.push(name);
                is_touched = true;
                old = Some(moved);
            } else if old.is_none() {
                self.go_to(way)?;
                self.make(&name, &InodeFacts::of(&new)?)?;
                self.at.push(name);
            }
            level.is_touched |= is_touched;
            return Ok(SentEntry::Directory(SentDirectory { new, old, is_touched }));
        }
        let has_several = |inode: &InodeRef| inode.stat().nlink > 1;
        let had_several = self.moves.file(new.ino()).is_some_and(MovedFile::had_several);
        if had_several || has_several(&new) || old.as_ref().is_some_and(has_several) {
            let directory = (level.new.clone(), level.old.clone());
            self.several.push(Several { dir: way.clone(), directory, name, old, new });
            return Ok(SentEntry::Nothing);
        }
        let facts = InodeFacts::of(&new)?;
        if let Some((number, moved)) = self.moves.put_aside(self.base.as_ref(), new.ino())? {
            self.put_back(way, &name, number, old.is_some())?;
            self.change_contents(way, &name, &moved, &new)?;
            self.attributes(Some(&InodeFacts::of(&moved)?), &facts)?;
            level.is_touched = true;
            return Ok(SentEntry::Nothing);
        }
        let old = old.map(|old| io::Result::Ok((InodeFacts::of(&old)?, old))).transpose()?;
        match &old {
            Some((was, old)) if was.is_like(&facts) => {
                self.change(way, &name, (old, was), (&new, &facts))?;
            }
            _ => {
                if old.is_some() {
                    self.remove(way, &name)?;
                }
                self.go_to(way)?;
                self.create(&name, (&new, &facts))?;
                self.attributes(None, &facts)?;
                level.is_touched = true;
            }
        }
        Ok(SentEntry::Nothing)
    }

    fn remove(&mut self, way: &PathNames, name: &[u8]) -> io::Result<()> {
        self.go_to(way)?;
        self.out.put(&StreamOrder::Remove(name))
    }

    /// Has the receiver put what is aside under `number` back as `name` in the directory to which `way` leads, instead of what `is_there`.
    fn put_back(&mut self, way: &PathNames, name: &[u8], number: u64, is_there: bool) -> io::Result<()> {
        if is_there {
            self.remove(way, name)?;
        }
        self.go_to(way)?;
        self.out.put(&StreamOrder::Back { name, number })
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
            contents(new, &mut self.out)?;
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
            if let Some(file) = self.moves.file(*ino) {
                if file.aside.is_none() {
                    goes_on.insert(file.old_ino, *ino);
                    let is_it =
                        |one: &&&Several| one.old.as_ref().is_some_and(|old| old.ino() == file.old_ino);
                    kept.extend(names.iter().find(is_it).map(|one| (*ino, *one)));
                }
                continue;
            }
            for one in names {
                let is_free =
                    |old: &&InodeRef| !goes_on.contains_key(&old.ino()) && !self.moves.goes_on(old.ino());
                if let Some(old) = one.old.as_ref().filter(is_free)
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
            self.remove(&one.dir, &one.name)?;
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
        let aside = self.moves.put_aside(self.base.as_ref(), first.new.ino())?;
        if let Some((number, _)) = &aside {
            self.put_back(&first.dir, &first.name, *number, false)?;
        }
        let old = aside.map(|(_, moved)| moved).or_else(|| first.old.clone().filter(|_| is_there(first)));
        if old.is_none() {
            self.go_to(&first.dir)?;
            self.create(&first.name, (&first.new, facts))?;
        }
        let path = first.dir.iter().chain([&first.name]).map(|name| &**name).collect::<Vec<_>>().join(&b'/');
        for one in names.iter().filter(|one| !std::ptr::eq(**one, first) && !is_there(one)) {
            self.go_to(&one.dir)?;
            self.out.put(&StreamOrder::Link { name: &one.name, path: &path })?;
        }
        let was = old.map(|old| io::Result::Ok((InodeFacts::of(&old)?, old))).transpose()?;
        let is_changed = match &was {
            Some((was, old)) => {
                self.change_contents(&first.dir, &first.name, old, &first.new)?
                    || !was.is_same(facts)
                    // A name that goes moves the time of change, on the sender perhaps within a tick.
                    || old.stat().nlink != first.new.stat().nlink
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
