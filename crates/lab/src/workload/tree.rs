//! untar, find, clone-tree and rmtree: a whole source tree comes, is looked at, is copied, and goes, as `tar x`, `find`,
//! `cp -r --reflink=auto` and `rm -r` do it.

use super::{Seat, Task, wrong};
use crate::target::{
    CallResult, Calls, Open, Target, read_file, remove_emptied, remove_tree, write_new_file,
};
use sluice_console::corpus::{Corpus, CorpusEntry, CorpusKind};
use sluice_console::failure::Result;
use sluice_sync::Arc;
use sluice_vfs::Errno;

pub(super) fn untar(seat: Seat) -> Box<dyn Task> {
    Box::new(Untar { tree: CorpusCopy::of(seat), next: 0 })
}

pub(super) fn rmtree(seat: Seat) -> Box<dyn Task> {
    Box::new(Rmtree { tree: CorpusCopy::of(seat), todo: Vec::new() })
}

pub(super) fn find(seat: Seat) -> Box<dyn Task> {
    Box::new(Find { tree: CorpusCopy::of(seat), todo: Vec::new(), found: 0, unpacked: false })
}

pub(super) fn clone(seat: Seat) -> Box<dyn Task> {
    let copy = format!("{}/copy", seat.dir);
    Box::new(CloneTree { tree: CorpusCopy::of(seat), copy, next: 0, unpacked: false })
}

/// A copy of the corpus at a place.
struct CorpusCopy {
    top: String,
    corpus: Arc<Corpus>,
}

impl CorpusCopy {
    fn of(seat: Seat) -> CorpusCopy {
        CorpusCopy { top: format!("{}/tree", seat.dir), corpus: seat.corpus }
    }

    /// Unpacks the whole tree, replacing an earlier one.
    fn unpack(&self, calls: &mut dyn Calls) -> CallResult<()> {
        remove_tree(calls, &self.top)?;
        calls.mkdir(&self.top)?;
        self.corpus.entries.iter().try_for_each(|entry| self.unpack_entry(calls, entry))
    }

    fn unpack_entry(&self, calls: &mut dyn Calls, entry: &CorpusEntry) -> CallResult<()> {
        let path = format!("{}/{}", self.top, entry.path);
        match &entry.kind {
            CorpusKind::Directory => calls.mkdir(&path),
            CorpusKind::File { mode, data } => write_new_file(calls, &path, *mode, data),
            CorpusKind::Symlink { to } => calls.symlink(to, &path),
        }
    }
}

/// Checks that `entries` lie below `top` as they were packed.
fn check_entries(calls: &mut dyn Calls, top: &str, entries: &[CorpusEntry]) -> Result<()> {
    for entry in entries {
        let path = format!("{top}/{}", entry.path);
        let same = match &entry.kind {
            CorpusKind::Directory => calls.stat(&path)?.is_dir(),
            CorpusKind::File { data, .. } => read_file(calls, &path)? == **data,
            CorpusKind::Symlink { to } => calls.readlink(&path)? == to.as_bytes(),
        };
        if !same {
            return wrong(format!("{path} is not as it was packed"));
        }
    }
    Ok(())
}

struct Find {
    tree: CorpusCopy,
    todo: Vec<(String, bool)>, // a stack of paths, and whether they are directories
    found: usize,              // entries of this pass, the top directory included
    unpacked: bool,
}

impl Task for Find {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        if !self.unpacked {
            self.tree.unpack(calls)?;
            self.unpacked = true;
        }
        self.found = 0;
        self.todo = vec![(self.tree.top.clone(), true)];
        Ok(())
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        if let Some((path, is_dir)) = self.todo.pop() {
            calls.stat(&path)?;
            self.found += 1;
            if is_dir {
                calls.read_dir(&path, &mut |name, is_dir| {
                    self.todo.push((format!("{path}/{}", String::from_utf8_lossy(name)), is_dir));
                })?;
            }
        }
        Ok(!self.todo.is_empty())
    }

    fn verify(&mut self, _: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        let all = self.tree.corpus.entries.len() + 1;
        if self.found == all || !self.todo.is_empty() {
            return Ok(());
        }
        wrong(format!("{} entries were found, of {all}", self.found))
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        remove_tree(calls, &self.tree.top)
    }
}

struct Untar {
    tree: CorpusCopy,
    next: usize, // index of the entry to unpack next
}

impl Task for Untar {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        remove_tree(calls, &self.tree.top)?;
        self.next = 0;
        calls.mkdir(&self.tree.top)
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let entries = &self.tree.corpus.entries;
        if let Some(entry) = entries.get(self.next) {
            self.tree.unpack_entry(calls, entry)?;
            self.next += 1;
        }
        Ok(self.next < entries.len())
    }

    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        check_entries(calls, &self.tree.top, &self.tree.corpus.entries[..self.next])
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        remove_tree(calls, &self.tree.top)
    }
}

struct CloneTree {
    tree: CorpusCopy,
    copy: String,
    next: usize, // index of the entry to copy next
    unpacked: bool,
}

impl Task for CloneTree {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        if !self.unpacked {
            self.tree.unpack(calls)?;
            self.unpacked = true;
        }
        remove_tree(calls, &self.copy)?;
        self.next = 0;
        calls.mkdir(&self.copy)
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let entries = &self.tree.corpus.entries;
        if let Some(entry) = entries.get(self.next) {
            let (from, to) =
                (format!("{}/{}", self.tree.top, entry.path), format!("{}/{}", self.copy, entry.path));
            match &entry.kind {
                CorpusKind::Directory => calls.mkdir(&to)?,
                CorpusKind::Symlink { .. } => {
                    let target = calls.readlink(&from)?;
                    calls.symlink(&String::from_utf8_lossy(&target), &to)?;
                }
                CorpusKind::File { mode, data } => {
                    let from = calls.open(&from, Open::Read)?;
                    let to = calls.open(&to, Open::New(*mode))?;
                    calls.clone(from, to, data.len() as u64)?;
                    calls.close(to)?;
                    calls.close(from)?;
                }
            }
            self.next += 1;
        }
        Ok(self.next < entries.len())
    }

    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        let copied = &self.tree.corpus.entries[..self.next];
        check_entries(calls, &self.copy, copied)
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        remove_tree(calls, &self.copy)?;
        remove_tree(calls, &self.tree.top)
    }
}

struct Rmtree {
    tree: CorpusCopy,
    todo: Vec<Doomed>, // a stack: contents above their directory
}

enum Doomed {
    File(String),
    /// Not read yet.
    Directory(String),
    /// Its contents are gone by the time it comes up.
    Emptied(String),
}

impl Task for Rmtree {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        self.tree.unpack(calls)?;
        self.todo = vec![Doomed::Directory(self.tree.top.clone())];
        Ok(())
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        loop {
            match self.todo.pop() {
                Some(Doomed::Directory(path)) => {
                    let mut inside = Vec::new();
                    calls.read_dir(&path, &mut |name, is_dir| {
                        let child = format!("{path}/{}", String::from_utf8_lossy(name));
                        inside.push(if is_dir { Doomed::Directory(child) } else { Doomed::File(child) });
                    })?;
                    self.todo.push(Doomed::Emptied(path));
                    self.todo.append(&mut inside);
                }
                Some(Doomed::File(path)) => break calls.unlink(&path)?,
                Some(Doomed::Emptied(path)) => break remove_emptied(|| calls.rmdir(&path))?,
                None => return Ok(false),
            }
        }
        Ok(!self.todo.is_empty())
    }

    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        match calls.stat(&self.tree.top) {
            Err(Errno::ENOENT) => Ok(()),
            // A run that was interrupted in the middle of a pass leaves the rest.
            Ok(_) if !self.todo.is_empty() => Ok(()),
            other => wrong(format!("the removed tree still answers: {other:?}")),
        }
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        remove_tree(calls, &self.tree.top)
    }
}
