//! Load: bringing names, inodes and contents from the store into memory.
//!
//! Names and inodes that are loaded have not changed since the store was opened, as a change would have loaded them. So the
//! store's tree has them: what the log held was brought there when the store was opened. The same goes for where the contents of a
//! file are; from then on the file knows it itself, and chunks come from their extents.
//!
//! *Read-ahead.* A read that begins where the last one ended loads chunks behind it, too, each time twice as many.
//! Adjacent extents of a segment are read with one call of the disk.

use super::chunk::{CHUNK, Chunk, Held};
use super::kept::Kept;
use super::keys::{Key, chunk_of, name_of};
use super::record::{self, InodeRecord};
use super::resident::HeldContents;
use super::{Durable, Stored, errno};
use crate::data::{CHUNK_PAGES, PAGE};
use crate::inode::{Body, InodeInit, flag};
use crate::stat::S_IALLUGO;
use crate::superblock::SharedRef;
use crate::watch::hook;
use crate::{Errno, FileType, Inode, InodeRef};
use sluice_sync::{MutexGuard, rcu};
use std::ops::Range;

/// So many chunks are read at once, at most: 2 MiB.
const AT_ONCE: usize = 32;
/// The part of the limit of memory that is read ahead for one file, at most.
const AHEAD_SHARE: u64 = 16;

impl InodeRef {
    /// If this is a directory: loads its names, unless they are in memory. Called outside of any read section and of any
    /// [`Section`](super::Section).
    ///
    /// # Errors
    /// The store's.
    #[inline]
    pub(crate) fn load_names(&self) -> Result<(), Errno> {
        if self.has(flag::PARTIAL) && self.is_dir() { self.load_names_now(true) } else { Ok(()) }
    }

    /// Loads the names of one of several directories that a call needs together, as [`load_names`](Self::load_names) does: no
    /// others leave memory for it.
    ///
    /// # Errors
    /// The store's.
    #[inline]
    pub(crate) fn load_names_beside(&self) -> Result<(), Errno> {
        if self.has(flag::PARTIAL) && self.is_dir() { self.load_names_now(false) } else { Ok(()) }
    }

    #[cold]
    fn load_names_now(&self, others_may_leave: bool) -> Result<(), Errno> {
        let durable = self.shared.durable().ok_or(Errno::EIO)?;
        debug_assert!(!rcu::domain().is_reading(), "a section would be held up");
        if others_may_leave {
            // Comes first, because freshly loaded names must not leave at once.
            self.shared.let_names_leave();
        }
        let _loading = durable.loading.lock();
        if !self.has(flag::PARTIAL) {
            return Ok(());
        }
        let mut found = Vec::new();
        durable.scan(Key::names(self.ino()), &mut |key, value| {
            found.push((name_of(key).to_vec(), record::named(value)));
            true
        })?;
        let (names, count) = (&self.as_dir()?.names, found.len());
        for (name, ino) in found {
            let hash = self.shared.hasher.hash(&name);
            // An attempt that failed may have got so far.
            if names.get(hash, &name, &rcu::domain().read()).is_some() {
                continue;
            }
            let child = durable.child(self, ino.ok_or(Errno::EIO)?)?;
            child.set_holder(self);
            let weight = child.weight();
            {
                let mut entry = names.lock(hash, &name).ok_or(Errno::ENOENT)?;
                entry.insert(child.clone(), weight).map_err(|_| Errno::EIO)?;
            }
            durable.names().named(&child);
        }
        durable.names().enter_loaded(self, count);
        self.as_dir()?.arrived();
        self.clear_partial();
        Ok(())
    }
}

impl InodeRef {
    /// The contents of this regular file for a call that changes, or needs, what is in `bytes`: those are in memory, whole
    /// chunks, and nothing leaves. Called as [`load_names`](Self::load_names).
    ///
    /// # Errors
    /// `EISDIR` for a directory, `EINVAL` for anything else that is no regular file; the store's.
    #[inline]
    pub(crate) fn contents(&self, bytes: Range<u64>) -> Result<HeldContents<'_>, Errno> {
        self.data()?;
        if self.shared.has_hook(hook::DURABLE) { self.contents_here(bytes) } else { Ok(self.all_contents()) }
    }

    #[inline(never)]
    fn contents_here(&self, bytes: Range<u64>) -> Result<HeldContents<'_>, Errno> {
        let contents = self.hold_contents(self.stored(), 0);
        if self.has(flag::PARTIAL) {
            self.bring(bytes, false)?;
        }
        Ok(contents)
    }

    /// Reads as [`FileData::read`](crate::data::FileData::read), where pages may be with the store.
    ///
    /// # Errors
    /// The store's.
    #[cold]
    pub(crate) fn read_loading(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let bytes = offset..offset.saturating_add(buf.len() as u64);
        let contents = self.hold_contents(self.stored(), 0);
        if self.has(flag::PARTIAL) {
            self.bring(bytes, true)?;
        }
        Ok(contents.read(offset, buf).unwrap_or_else(|| contents.read_here(offset, buf)))
    }

    /// Loads the chunks with a byte in `bytes`, and if it `reads_on` perhaps some behind them. The caller holds [`Stored::here`].
    #[cold]
    fn bring(&self, bytes: Range<u64>, reads_on: bool) -> Result<(), Errno> {
        let (Some(durable), Some(stored)) = (self.shared.durable(), self.stored()) else {
            return Err(Errno::EIO);
        };
        debug_assert!(!rcu::domain().is_reading(), "a section would be held up");
        let end = self.size().div_ceil(CHUNK);
        let wanted = match bytes.is_empty() {
            true => 0..0,
            false => bytes.start / CHUNK..bytes.end.div_ceil(CHUNK).min(end),
        };
        let absent = |chunks: &Range<u64>| {
            let kept = stored.kept.lock();
            let absent = kept.absent.range(chunks.start..chunks.end.max(chunks.start));
            let found =
                absent.filter_map(|(chunk, pages)| Some((*chunk, *pages, kept.extents.get(chunk)?.clone())));
            kept.is_known.then(|| found.take(AT_ONCE).collect::<Vec<_>>())
        };
        let is_here = |found: Option<Vec<_>>| found.is_some_and(|found| found.is_empty());
        if is_here(absent(&wanted)) {
            return Ok(());
        }
        let _loading = stored.loading.lock();
        if !stored.kept.lock().is_known {
            self.find_contents(durable, stored)?;
        }
        let mut chunks = wanted.clone();
        if let (true, Some((first, ..))) = (reads_on, absent(&wanted).unwrap_or_default().first()) {
            let most = (durable.pending.memory.limit / AHEAD_SHARE / CHUNK).min(AT_ONCE as u64);
            let ahead = stored.kept.lock().ahead.of(&(*first..wanted.end), most);
            chunks.end = (wanted.end + ahead).min(end);
        }
        while let Some(found) = absent(&chunks).filter(|found| !found.is_empty()) {
            let extents: Vec<_> = found.iter().map(|(_, _, held)| &held.extent).collect();
            let read = match durable.store.read_extents(&extents) {
                Ok(read) => read,
                // The damage may be in the read-ahead part only.
                Err(_) if chunks.end > wanted.end => {
                    chunks.end = wanted.end;
                    continue;
                }
                Err(error) => return Err(errno(&error)),
            };
            for ((chunk, pages, held), read) in found.into_iter().zip(read) {
                let wanted = Chunk { present: pages, held: Some(Held { patched: 0, ..held }), bytes: &[] };
                let bytes = wanted.bytes(read);
                self.data.fill_chunk(&*self.shared, chunk, pages, &bytes);
                {
                    let mut kept = stored.kept.lock();
                    kept.absent.remove(&chunk);
                    if kept.absent.is_empty() {
                        self.all_here();
                    }
                }
                durable.pending.memory.enter(self, stored, chunk);
            }
        }
        Ok(())
    }

    /// Finds out what the store has of the contents, and loads what stands in records. Called with [`Stored::loading`] locked.
    pub(super) fn find_contents(&self, durable: &Durable, stored: &Stored) -> Result<(), Errno> {
        let mut found = Kept::default();
        found.is_known = true;
        let mut is_sound = true;
        // As the inode's record says: nothing has changed since that was read.
        let (mut pages, says) = (0, self.data.data_pages());
        durable.scan(Key::chunks(self.ino()), &mut |key, value| {
            let Some((at, chunk)) = chunk_of(key).zip(Chunk::decode(value)) else {
                is_sound = false;
                return false;
            };
            pages += chunk.pages();
            // An unwritten page has no contents.
            is_sound &= !self.data.has_unwritten(at, chunk.present);
            let here = chunk.held.as_ref().map_or(chunk.present, |held| held.patched);
            self.data.fill_chunk(&*self.shared, at, here, chunk.bytes);
            if chunk.present & !here != 0 {
                found.absent.insert(at, chunk.present & !here);
            }
            let patched = chunk.held.as_ref().map_or(0, |held| held.patched);
            durable.pending.memory.count_patched(patched, 0);
            found.insert(at, chunk.present, chunk.held);
            true
        })?;
        // A record that is gone is no hole.
        if !is_sound || pages < says {
            return Err(Errno::EIO);
        }
        if found.absent.is_empty() {
            self.all_here();
        }
        durable.names().count_standing(found.standing_pages(), 0);
        let mut kept = stored.kept.lock();
        (found.has_residents, found.is_apart) = (kept.has_residents, kept.is_apart);
        *kept = found;
        Ok(())
    }

    /// Loads further contents of a file whose contents are held; see [`contents`](Self::contents).
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn more_contents(&self, _held: &HeldContents<'_>, bytes: Range<u64>) -> Result<(), Errno> {
        if self.has(flag::PARTIAL) { self.bring(bytes, false) } else { Ok(()) }
    }

    /// To be called before a change of held contents that makes holes of whole chunks which may be with the store only: while
    /// this is there no reader brings back what goes.
    pub(crate) fn before_discard(&self) -> Option<MutexGuard<'_, ()>> {
        if self.has(flag::PARTIAL) { self.stored().map(|stored| stored.loading.lock()) } else { None }
    }

    /// Forgets the absent pages of the chunks within `bytes`, which are holes now. Called in the section of that
    /// change, with what [`before_discard`](Self::before_discard) gave.
    pub(crate) fn discarded(&self, bytes: Range<u64>, alone: &Option<MutexGuard<'_, ()>>) {
        let (Some(_), Some(stored)) = (alone, self.stored()) else { return };
        let whole = bytes.start.div_ceil(CHUNK)..bytes.end / CHUNK;
        let mut kept = stored.kept.lock();
        let pages = kept.forget_absent(&whole);
        if kept.absent.is_empty() {
            self.all_here();
        }
        drop(kept);
        self.data.forget(&**self, pages);
    }

    /// The first page from `page` on that is not in memory, and whether `page` is one.
    fn first_absent(&self, page: u64) -> Option<u64> {
        let kept = self.stored()?.kept.lock();
        let (at, offset) = (page / CHUNK_PAGES, page % CHUNK_PAGES);
        let mut absent = kept.absent.range(at..).map(|(chunk, pages)| {
            let pages = if *chunk == at { pages & u16::MAX << offset } else { *pages };
            (pages != 0).then(|| chunk * CHUNK_PAGES + u64::from(pages.trailing_zeros()))
        });
        absent.find_map(|found| found)
    }

    /// The first offset with data from `offset` on, where pages may be with the store; see
    /// [`FileData::seek_data`](crate::data::FileData::seek_data).
    ///
    /// # Errors
    /// The store's.
    #[cold]
    pub(crate) fn seek_data_loading(&self, offset: u64) -> Result<Option<u64>, Errno> {
        let contents = self.contents(0..0)?;
        let absent = self.first_absent(offset / PAGE).map(|page| offset.max(page * PAGE));
        let absent = absent.filter(|at| *at < contents.size());
        Ok(contents.seek_data(offset).into_iter().chain(absent).min())
    }

    /// Whether there is a hole in `bytes`, where pages may be with the store; see [`has_hole_in`](Self::has_hole_in).
    #[cold]
    pub(crate) fn has_hole_loading(&self, bytes: Range<u64>) -> bool {
        let Ok(contents) = self.contents(0..0) else { return false };
        let pages = bytes.start / PAGE..bytes.end.min(contents.size()).div_ceil(PAGE);
        let is_hole = |page| {
            contents.has_hole_in(&(page * PAGE..(page + 1) * PAGE)) && self.first_absent(page) != Some(page)
        };
        pages.into_iter().any(is_hole)
    }

    /// The first hole from `offset` on, where pages may be with the store; see
    /// [`FileData::seek_hole`](crate::data::FileData::seek_hole).
    ///
    /// # Errors
    /// The store's.
    #[cold]
    pub(crate) fn seek_hole_loading(&self, mut offset: u64) -> Result<Option<u64>, Errno> {
        let contents = self.contents(0..0)?;
        loop {
            let Some(hole) = contents.seek_hole(offset) else { return Ok(None) };
            let page = hole / PAGE;
            if hole >= contents.size() || self.first_absent(page) != Some(page) {
                return Ok(Some(hole));
            }
            offset = (page + 1) * PAGE;
            if offset >= contents.size() {
                return Ok(Some(contents.size()));
            }
        }
    }
}

impl Durable {
    /// Visits the records with keys in `keys`, until `visit` says false.
    pub(super) fn scan(
        &self,
        keys: Range<Key>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Errno> {
        self.store.scan(&keys.start, &keys.end, visit).map_err(|error| errno(&error))
    }

    /// The inode `ino`, to which a name in `dir` leads.
    fn child(&self, dir: &InodeRef, ino: u64) -> Result<InodeRef, Errno> {
        match self.names().find(ino) {
            Some(apart) => Ok(apart),
            None => self.revive(&dir.shared, ino, Some(dir.clone())),
        }
    }

    /// The inode `ino` as the store has it, without names and contents. If it is a directory, `parent` holds its name.
    pub(super) fn revive(
        &self,
        shared: &SharedRef,
        ino: u64,
        parent: Option<InodeRef>,
    ) -> Result<InodeRef, Errno> {
        let bytes = self.store.get(&Key::inode(ino)).map_err(|error| errno(&error))?.ok_or(Errno::EIO)?;
        self.revive_from(shared, ino, parent, InodeRecord::decode(&bytes).ok_or(Errno::EIO)?)
    }

    /// The inode `ino` with this `record`; see [`revive`](Self::revive).
    pub(super) fn revive_from(
        &self,
        shared: &SharedRef,
        ino: u64,
        parent: Option<InodeRef>,
        record: InodeRecord,
    ) -> Result<InodeRef, Errno> {
        let file_type = FileType::from_mode(record.mode).ok_or(Errno::EIO)?;
        let body = match file_type {
            FileType::Regular => Body::Regular,
            FileType::Directory => Body::new_directory(parent),
            FileType::Symlink => Body::Symlink(record.tail.into()),
            file_type => Body::Special { file_type, rdev: record.rdev },
        };
        let nlink = if file_type == FileType::Directory { 2 } else { record.nlink };
        let (mode, uid, gid) = (record.mode & S_IALLUGO, record.uid, record.gid);
        let InodeRecord { origin, born, .. } = record;
        let init = InodeInit { file_type, mode, uid, gid, nlink, origin, born };
        let inode = Inode::allocate(shared, ino, init, body);
        inode.times.set(Some(record.atime), Some(record.mtime));
        if let Some(stored) = inode.stored() {
            stored.put_down(record.atime);
            stored.set_holder(record.holder.unwrap_or(0));
        }
        inode.change_ctime(record.ctime);
        inode.put_flags(record.flags);
        inode.set_quota_number(record.quota);
        inode.raise(if record.is_read_only { flag::READ_ONLY } else { 0 });
        if file_type == FileType::Regular && (record.size > 0 || !record.tail.is_empty()) {
            let unwritten = record.unwritten().ok_or(Errno::EIO)?;
            inode.data.preset(record.size, record.pages, unwritten);
        }
        let is_partial = file_type == FileType::Directory || record.pages > 0;
        inode.raise(flag::RECORDED | if is_partial { flag::PARTIAL } else { 0 });
        if record.has_xattrs {
            let mut restored = Ok(());
            self.scan(Key::xattrs(ino), &mut |key, value| {
                restored = inode.restore_xattr(name_of(key), value, false);
                restored.is_ok()
            })?;
            restored?;
        }
        Ok(inode)
    }
}
