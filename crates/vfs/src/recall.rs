//! Recall: walks of paths that a thread has walked before.
//!
//! # Theory
//! A thread remembers the paths that it walks again and again, and the directories in which it walks to ever other names
//! ([`Trails`]). A walk that it remembers asks each directory whether it may be searched, and whether anything is mounted there,
//! as any walk does, but looks no name up: the entry that was found before says whether it still stands.
//!
//! Remembered is what leads on by names alone: not by ".", "..", symbolic links and mounts.
//!
//! # Cost
//! No store to shared memory. A walk's first miss stores on a line of the thread's own.

use crate::at_once::{AtOnce, WouldWait};
use crate::mount::LocationRef;
use crate::namei::{Component, Last, Namei, Parent, Walk};
use crate::{Access, InodeRef};
use sluice_sync::Ref;
use sluice_sync::face::{Host, PerHost};
use sluice_sync::name_table::{Key, Recorder, Remembered, Trail, Trails};
use sluice_sync::rcu::Guard;
use std::borrow::Cow;

/// A beginning of a path that is being walked to be remembered.
pub(crate) struct PathRecording<'g> {
    /// The key of the directory where it begins.
    from: u64,
    recorder: Recorder<'g, InodeRef>,
    /// Where it ends: behind a component and its slashes.
    end: usize,
}

/// The paths that threads remember.
#[inline]
fn trails() -> &'static Trails<InodeRef> {
    static TRAILS: PerHost<Trails<InodeRef>> = PerHost::new(Trails::new());
    TRAILS.get(Host::here())
}

/// Identifies `dir` in the keys of paths that begin there: its inode number, mixed with the key of its file system.
/// Every root has the number 1, and a snapshot has the numbers of what it was made of.
#[inline]
fn origin(dir: LocationRef<'_>) -> u64 {
    dir.inode.ino() ^ dir.inode.shared.key
}

/// The key of a path from `dir` on.
#[inline]
fn key<'p>(dir: LocationRef<'_>, path: &'p [u8]) -> Option<Key<'p>> {
    Key::new(origin(dir), path)
}

impl<'g> Namei<'g> {
    /// The file that `path` names, from `start` if relative, as [`find`](Self::find), if the thread remembers it. The
    /// path need not be checked: a remembered one was. If the path should be remembered from now on, `find` records it.
    #[inline]
    pub(crate) fn recall(
        &self,
        start: Option<LocationRef<'g>>,
        path: &[u8],
        follow: bool,
        section: &'g Guard<'_>,
    ) -> Option<LocationRef<'g>> {
        let found = self.remembered(self.start(start, path, section), path, section)?;
        let goes_on = path.ends_with(b"/") || (follow && found.inode.is_symlink());
        (found.inode.is_dir() || !goes_on).then_some(found)
    }

    /// The directory and the last component of `path`, from `start` if relative, as [`to_parent`](Self::to_parent), if
    /// the thread remembers the directory. If the path should be remembered from now on, `to_parent` records it.
    #[inline(always)]
    pub(crate) fn recall_parent<'p>(
        &self,
        start: Option<LocationRef<'g>>,
        path: &'p [u8],
        section: &'g Guard<'_>,
    ) -> Option<Parent<'p, LocationRef<'g>>> {
        let (dirs, name) = path.split_at(dir_len(path));
        if dirs.len() <= 1 || matches!(name, b"." | b"..") {
            return None;
        }
        let dir = self.recall_dir(self.start(start, path, section), dirs, section)?;
        dir.inode.access(self.cred, Access::EXEC).ok()?;
        Some(Parent { dir, last: Last::Name(Cow::Borrowed(name)), trailing_slash: false })
    }

    /// The directory to which `dirs` leads from `start`, if the thread remembers it.
    #[inline]
    fn recall_dir(
        &self,
        start: LocationRef<'g>,
        dirs: &[u8],
        section: &'g Guard<'_>,
    ) -> Option<LocationRef<'g>> {
        self.remembered(start, dirs, section).filter(|dir| dir.inode.is_dir())
    }

    /// Where the names of `path` lead from `start`, if the thread remembers it. Notes if it should from now on.
    #[inline]
    fn remembered(
        &self,
        start: LocationRef<'g>,
        path: &[u8],
        section: &'g Guard<'_>,
    ) -> Option<LocationRef<'g>> {
        match trails().find(&key(start, path)?, section) {
            Remembered::Trail(trail) => {
                let found = self.retrace(trail, start);
                // A path that has changed is recorded again.
                if found.is_none() {
                    self.should_record.set(true);
                }
                found
            }
            Remembered::Wanted => {
                self.should_record.set(true);
                None
            }
            Remembered::Unknown => None,
        }
    }

    /// Records a walk whose whole path should be remembered. Takes one that begins past all directories of its path, if the thread
    /// remembers where they lead.
    pub(crate) fn recall_dirs(&self, walk: &mut Walk<'g, '_>, section: &'g Guard<'_>) {
        if self.should_record.get() {
            return walk.record(walk.path.len(), section);
        }
        let len = dir_len(&walk.path);
        if len > walk.begin {
            match self.recall_dir(walk.dir, &walk.path[..len], section) {
                Some(dir) => (walk.dir, walk.begin) = (dir, len),
                None => self.record_dirs(walk, section),
            }
        }
    }

    /// Records a walk of whose path the directories should be remembered.
    #[inline]
    pub(crate) fn record_dirs(&self, walk: &mut Walk<'g, '_>, section: &'g Guard<'_>) {
        if self.should_record.get() {
            walk.record(dir_len(&walk.path), section);
        }
    }

    /// Where `trail` leads from `start`, if what the thread remembers still holds, and the caller may go there.
    #[inline]
    fn retrace(&self, mut trail: Trail<'g, InodeRef>, start: LocationRef<'g>) -> Option<LocationRef<'g>> {
        let (mut at, mut dir) = (start, start.inode.as_dir().ok()?);
        loop {
            at.inode.access(self.cred, Access::EXEC).ok()?;
            at.inode = trail.step(&dir.names)?;
            match at.inode.as_dir() {
                Ok(next) if next.has_mounts() => return None,
                _ if trail.is_at_end() => return Some(at),
                next => dir = next.ok()?,
            }
        }
    }

    /// Resolves the component `name` in the walk's current directory, which the caller may search, and records the
    /// step.
    #[cold]
    pub(crate) fn child_recorded(
        &self,
        walk: &mut Walk<'g, '_>,
        name: Component,
        section: &'g Guard<'_>,
    ) -> AtOnce<LocationRef<'g>> {
        let (dir, bytes) = (walk.dir, &walk.path[walk.begin..name.end]);
        let Some(mut recording) = walk.recording.take() else { return self.look_up(dir, bytes, section) };
        let found = match bytes {
            // Not by names alone. Even "." reads the current directory, which must be searchable.
            b"." | b".." => return self.look_up(dir, bytes, section),
            _ => {
                let found = dir.inode.lookup_recorded(bytes, &mut recording.recorder);
                let inode = found.inspect_err(|error| {
                    if *error == WouldWait {
                        self.want(dir.inode);
                    }
                })?;
                LocationRef { inode, ..dir }.enter(section)
            }
        };
        if Ref::ptr_eq(found.mount, dir.mount) {
            if name.after != recording.end {
                walk.recording = Some(recording);
            } else if let Some(key) = Key::new(recording.from, &walk.path[..recording.end]) {
                trails().note(&key, &recording.recorder);
            }
        }
        Ok(found)
    }
}

impl<'g> Walk<'g, '_> {
    /// Records the walk from its beginning on, as far as the first `end` bytes of its path lead.
    #[cold]
    fn record(&mut self, end: usize, section: &'g Guard<'_>) {
        let from = origin(self.dir);
        let recording = |_| PathRecording { from, recorder: Recorder::new(section), end };
        self.recording = key(self.dir, &self.path[..end]).map(recording);
    }
}

/// How long the part of `path` is that comes before its last component; 0 where that is all, or where slashes end it.
#[inline]
fn dir_len(path: &[u8]) -> usize {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) if slash + 1 < path.len() => slash + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cred, Fs, OpenFlags, Process};
    use sluice_sync::rcu::{self, Era};

    const PATH: &str = "/dir/file";
    const ROUNDS: usize = 200;

    fn create(process: &Process, path: &str) {
        let flags = OpenFlags::RDWR | OpenFlags::CREAT | OpenFlags::EXCL;
        process.close(process.open(path, flags, 0o644).expect("a fresh name")).expect("it is open");
    }

    /// A file system with a file at [`PATH`].
    fn fs() -> Fs {
        let fs = Fs::new();
        let process = fs.process(Cred::root());
        process.mkdir("/dir", 0o755).expect("a fresh name");
        create(&process, PATH);
        fs
    }

    /// Walks to [`PATH`] as a call does. The era, and whether the thread remembered the path.
    fn walk(fs: &Fs) -> (Era, bool) {
        let (cred, section) = (Cred::root(), rcu::domain().read());
        let namei = Namei::new(fs.mounts(), &cred);
        let is_hit = namei.recall(None, PATH.as_bytes(), true, &section).is_some();
        if !is_hit {
            assert!(namei.find(None, PATH.as_bytes(), true, &section).is_ok());
        }
        (section.era(), is_hit)
    }

    /// How many walks to [`PATH`], in each file system in turn, are in the era of the walk before, but do not find it remembered.
    /// Tests beside this one end eras.
    fn misses(all: &[Fs]) -> usize {
        all.iter().for_each(|fs| (0..3).for_each(|_| _ = walk(fs)));
        let mut missed = 0;
        for _ in 0..ROUNDS {
            // Three walks: the second may record, and the third in the same era finds what it did.
            let rounds = [(); 3].map(|()| all.iter().map(walk).collect::<Vec<_>>());
            let era = rounds[0][0].0;
            let is_one_era = rounds.iter().flatten().all(|(other, _)| *other == era);
            missed += rounds[2].iter().filter(|(_, is_hit)| is_one_era && !is_hit).count();
        }
        missed
    }

    #[test]
    fn two_file_systems_and_a_snapshot_are_remembered_beside_each_other() {
        // A hash chooses the place of a path, so that now and then two of the paths have the same.
        let all_are_remembered = |_| {
            let one = fs();
            let snapshot = one.snapshot("/").expect("there is memory");
            misses(&[one, snapshot, fs()]) == 0
        };
        assert!((0..8).any(all_are_remembered));
    }

    #[test]
    fn a_path_whose_file_is_replaced_is_remembered_again_in_the_same_era() {
        // The path and that of its directory have the same place once in 64 file systems, and drive each other out.
        let mut file_systems = (0..8).map(|_| fs());
        let is_remembered = |fs: &Fs| misses(std::slice::from_ref(fs)) == 0;
        let fs = file_systems.find(is_remembered).expect("a path is remembered");
        let process = fs.process(Cred::root());
        let mut replaced_in_one_era = 0;
        for _ in 0..ROUNDS {
            let before = walk(&fs).0;
            process.unlink(PATH).expect("it is there");
            create(&process, PATH);
            let walks = [(); 2].map(|()| walk(&fs));
            if walks.iter().all(|(era, _)| *era == before) {
                replaced_in_one_era += 1;
                assert!(walks[1].1, "the first walk has recorded the new file");
            }
        }
        assert!(replaced_in_one_era > 0);
    }
}
