//! Open: making a durable file system, and coming back to one.

use super::keys::{Key, ino_of, name_of};
use super::record::{self, InodeRecord, QuotaUses, Totals};
use super::removal::Gone;
use super::shares::Shares;
use super::{Durable, errno, owners};
use crate::data::PageSet;
use crate::inode::settle;
use crate::ops::xattr::charge_of_stored;
use crate::quota::NO_QUOTA;
use crate::superblock::{ROOT_INO, Shared, SharedRef};
use crate::watch::fault::Calls;
use crate::{Errno, Fs, Inode, InodeRef, MemoryUse, Options, StoreUse, Superblock};
use sluice_store::disk::{Disk, HostDisk, UNFINISHED};
use sluice_store::{Options as StoreOptions, Store, StoreError};
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, memory, thread};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::{fs, io};

impl Superblock {
    /// Makes an empty file system that survives, in the directory `dir` of the host, which is made if need be.
    ///
    /// # Errors
    /// [`StoreError`]: there is one already, it is in use, or the host's.
    pub fn create(dir: impl AsRef<Path>, options: Options) -> Result<Arc<Superblock>, StoreError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(|error| StoreError::Io("make the store's directory", error))?;
        Superblock::create_on(host_disk(dir.as_ref())?, options)
    }

    /// Opens the file system in the directory `dir` of the host, and does what a crash left undone. Mode and owner of the root
    /// are as they were.
    ///
    /// # Errors
    /// [`StoreError`]: there is none, it is in use, damaged or of a newer program; the host's.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<Arc<Superblock>, StoreError> {
        let disk = host_disk(dir.as_ref())?;
        if disk.open(UNFINISHED).is_ok() {
            return Err(StoreError::NotAStore);
        }
        Superblock::open_on(disk, options)
    }

    /// Creates a file system in a new store on `disk`; see [`create`](Self::create).
    ///
    /// # Errors
    /// Errors of [`create`](Self::create).
    pub fn create_on(disk: Arc<dyn Disk>, options: Options) -> Result<Arc<Superblock>, StoreError> {
        Superblock::create_in(Store::create(disk, store_options(&options))?, options)
    }

    /// Creates a file system in `store`, which is new; see [`create`](Self::create).
    ///
    /// # Errors
    /// Errors of [`create`](Self::create).
    pub fn create_in(store: Store, options: Options) -> Result<Arc<Superblock>, StoreError> {
        let durable = Durable::new(store, 0, false, options.memory_limit);
        let superblock = Superblock::with_store(options, durable, 0, |shared| Ok(Shared::new_root(shared)));
        let superblock = superblock.map_err(damaged("could not be made"))?;
        let recorded = || {
            superblock.root().shared.begin(0)?.gained_name(superblock.root(), None);
            superblock.sync()
        };
        recorded().map_err(|error| StoreError::Io("make the file system", error.into()))?;
        Superblock::begin_schedule(&superblock);
        Ok(superblock)
    }

    /// Opens the file system in the store on `disk`; see [`open`](Self::open).
    ///
    /// # Errors
    /// Errors of [`open`](Self::open).
    pub fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<Arc<Superblock>, StoreError> {
        Superblock::open_in(Store::open(disk, store_options(&options))?, options)
    }

    /// Opens the file system in `store`, which is open; see [`open`](Self::open).
    ///
    /// # Errors
    /// Errors of [`open`](Self::open).
    pub fn open_in(store: Store, options: Options) -> Result<Arc<Superblock>, StoreError> {
        let common = store.get(&Key::common())?;
        let common = common.as_deref().and_then(record::decode_common);
        let (numbers, sums) = common.ok_or_else(|| damaged("has no end of its inode numbers")(Errno::EIO))?;
        let durable = Durable::new(store, numbers, sums.is_some(), options.memory_limit);
        durable.find_owners().map_err(damaged("has extents without an owner that cannot be read"))?;
        durable.finish_cutting().map_err(damaged("has contents cut off that cannot be removed"))?;
        let mut gone =
            durable.find_gone().map_err(damaged("has files without a name that cannot be deleted"))?;
        let (sums, uses) = match sums {
            Some(sums) => (sums, None),
            None => {
                let found = durable.find_remains(&mut gone).and_then(|()| durable.add_up(&gone));
                let (sums, uses) = found.map_err(damaged("has attributes that cannot be read"))?;
                (sums, Some(uses))
            }
        };
        let quotas = durable.find_quotas().map_err(damaged("has quotas that cannot be read"))?;
        durable.find_requests().map_err(damaged("has requests that cannot be read"))?;
        let superblock = Superblock::with_store(options, durable, numbers, |shared| {
            shared.durable().ok_or(Errno::EIO)?.root(shared)
        });
        let superblock = superblock.map_err(damaged("has no root directory"))?;
        let shared = &superblock.root().shared;
        shared.take_quotas(&quotas, uses.as_ref()).map_err(damaged("has quotas that cannot be read"))?;
        shared.count_found(sums.inodes.saturating_sub(1), sums.bytes);
        shared.durable().into_iter().for_each(|durable| durable.store.hold_back_anyway(sums.unwritten));
        let finished = superblock.finish_quotas(&quotas);
        finished.map_err(damaged("has a quota that cannot be completed"))?;
        Superblock::begin_schedule(&superblock);
        Ok(superblock)
    }

    /// Makes everything durable that calls did which have returned. In memory that is nothing.
    ///
    /// # Errors
    /// Errors of the store: then no caller knows which changes are durable, and further changes are refused.
    pub fn sync(&self) -> Result<(), Errno> {
        self.root().sync_all()
    }

    /// Makes everything durable and lets others open the store. Nothing can be changed any more (`EROFS`), or loaded. Dropping
    /// the superblock does the same, but some time later, and nobody is told of an error.
    ///
    /// # Errors
    /// Errors of [`sync`](Self::sync).
    pub fn close(&self) -> Result<(), Errno> {
        self.end_schedule();
        self.root().shared.close()
    }

    /// Gives up changes that are not durable, and stops waiting for a store that may never answer: current and later
    /// calls on the store fail. To be [closed](Self::close) all the same. In memory that is nothing.
    pub fn abandon(&self) {
        if let Some(durable) = self.root().shared.durable() {
            durable.store.abandon();
        }
    }

    /// Whether changes go to a store.
    pub fn is_durable(&self) -> bool {
        self.root().shared.durable().is_some()
    }

    /// How much of a durable file system is in memory. Inodes that lost their last user just now still count: call
    /// [`settle`](Self::settle) first for exact numbers.
    pub fn memory_use(&self) -> Option<MemoryUse> {
        self.root().shared.durable().map(Durable::memory_use)
    }

    /// Bytes of contents that changed and that no push to the store has collected yet, by whole chunks; nothing of a file system that
    /// has no store. Adds up a count of each CPU, and takes no lock.
    pub fn changed_bytes(&self) -> Option<u64> {
        self.root().shared.durable().map(|durable| durable.pending.changed_bytes())
    }

    /// How a durable file system keeps contents. Adds up a count of each CPU.
    pub fn store_use(&self) -> Option<StoreUse> {
        let store = &self.root().shared.durable()?.store;
        let stats = store.stats();
        Some(StoreUse {
            is_encrypted: store.is_encrypted(),
            is_compressed: store.is_compressed(),
            stored: stats.data_bytes,
            written: stats.written_bytes,
            written_stored: stats.written_data_bytes,
        })
    }

    /// So many references to inodes were given up by an observer whose users [had them](crate::Observer::memory_is_short): the
    /// inodes may leave memory, if there are too many. Called with no lock held.
    pub fn forgotten(&self, inodes: u64) {
        let shared = &self.root().shared;
        if let Some(durable) = shared.durable() {
            durable.names().count_forgotten(inodes);
            shared.let_names_leave();
        }
    }

    /// Whether an fsync means anything here: with a store, or while a test watches.
    pub fn hears_fsync(&self) -> bool {
        !self.root().shared.has_no_hooks()
    }

    /// Why nothing can be changed any more, if that is so: the store's disk failed. For people.
    pub fn failure(&self) -> Option<String> {
        self.root().shared.durable()?.store.failure()
    }
}

impl Inode {
    /// Whether the inode is or will be in a store: then its number finds it after it has left memory.
    pub fn is_stored(&self) -> bool {
        self.stored().is_some()
    }

    /// Makes the whole file system durable, for an fsync of one file that means all.
    ///
    /// # Errors
    /// Errors of [`Superblock::sync`].
    pub(crate) fn sync_all(&self) -> Result<(), Errno> {
        self.meet_faults(Calls::FSYNC)?;
        self.shared.sync()
    }
}

impl InodeRef {
    /// Makes the file durable, and all earlier changes of its file system with it. In memory that is nothing.
    ///
    /// # Errors
    /// Errors of [`Superblock::sync`].
    pub fn sync(&self) -> Result<(), Errno> {
        self.shared.sync_inode(self)
    }
}

impl Fs {
    /// Makes an empty file system that survives, in the directory `dir` of the host, which is made if need be. With other options:
    /// [`Options::create_store`].
    ///
    /// ```
    /// # use sluice_vfs::Fs;
    /// # let dir = std::env::temp_dir().join(format!("sluice-doc-{}", std::process::id()));
    /// let fs = Fs::create_store(&dir)?;
    /// fs.write("/kept", "for good")?;
    /// fs.sync()?;
    /// drop(fs);
    ///
    /// let fs = Fs::open_store(&dir)?;
    /// assert_eq!(fs.read_to_string("/kept")?, "for good");
    /// # drop(fs);
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`Superblock::create`].
    pub fn create_store(dir: impl AsRef<Path>) -> Result<Fs, StoreError> {
        Options::default().create_store(dir)
    }

    /// Opens the file system in the directory `dir` of the host. With other options: [`Options::open_store`].
    ///
    /// # Errors
    /// Errors of [`Superblock::open`].
    pub fn open_store(dir: impl AsRef<Path>) -> Result<Fs, StoreError> {
        Options::default().open_store(dir)
    }

    /// Makes an empty file system in a store that was just made, such as one in an object store.
    ///
    /// # Errors
    /// Errors of [`Superblock::create`].
    pub fn create_in(store: Store, options: Options) -> Result<Fs, StoreError> {
        Superblock::create_in(store, options).map(Fs::with_superblock)
    }

    /// Opens the file system in a store that was opened.
    ///
    /// # Errors
    /// Errors of [`Superblock::open`].
    pub fn open_in(store: Store, options: Options) -> Result<Fs, StoreError> {
        Superblock::open_in(store, options).map(Fs::with_superblock)
    }

    /// Makes everything durable in every file system of the tree.
    ///
    /// # Errors
    /// Errors of [`Superblock::sync`]: the first, when all were tried.
    pub fn sync(&self) -> Result<(), Errno> {
        let superblocks = self.mounts().superblocks();
        superblocks.iter().map(|superblock| superblock.sync()).fold(Ok(()), Result::and)
    }
}

impl Durable {
    /// Removes what was cut off files and a crash left: nobody has read one yet.
    fn finish_cutting(&self) -> Result<(), Errno> {
        let mut is_sound = true;
        self.scan(Key::all_cut_off(), &mut |key, value| {
            match ino_of(key).zip(record::decode_cut_off(value)) {
                Some((ino, chunks)) => self.pending.removals.remove(Gone::cut_off(ino, chunks)),
                None => is_sound = false,
            }
            true
        })?;
        if self.pending.removals.are_left() {
            while self.pending.removals.are_left() {
                self.sync()?;
            }
            // Contents are loaded from the tree.
            self.store.checkpoint().map_err(|error| errno(&error))?;
        }
        if is_sound { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Finds out whether extents are shared, and which lost their last owner while a file borrowed them: no file does now, so the
    /// first push frees them.
    fn find_owners(&self) -> Result<(), Errno> {
        let (mut unowned, mut is_sound, mut are_any) = (Vec::new(), true, false);
        self.scan(Key::all_unowned(), &mut |_, value| {
            let extent = owners::decode_unowned(value);
            is_sound &= extent.is_some();
            unowned.extend(extent);
            true
        })?;
        self.scan(Key::all_owners(), &mut |_, _| {
            are_any = true;
            false
        })?;
        self.pending.owners.found(unowned, are_any);
        if is_sound { Ok(()) } else { Err(Errno::EIO) }
    }

    /// The totals of all inodes except for those in `gone`, and what they hold of quotas, from their records.
    fn add_up(&self, gone: &PageSet) -> Result<(Totals, QuotaUses), Errno> {
        let (mut sums, mut uses, mut is_sound) = (Totals::default(), QuotaUses::new(), true);
        let is_gone = |ino: u64| gone.count(&(ino..ino + 1)) > 0;
        self.scan(Key::inodes(), &mut |key, value| {
            match ino_of(key).zip(InodeRecord::decode(value)) {
                Some((ino, record)) if !is_gone(ino) => {
                    sums.inodes += 1;
                    sums.bytes = sums.bytes.saturating_add(record.charged());
                    if record.quota != NO_QUOTA {
                        let used = uses.entry(record.quota).or_default();
                        *used = used.saturating_add(record.charged());
                    }
                    let unwritten = record.unwritten().map_or(0, |unwritten| unwritten.len());
                    sums.unwritten = sums.unwritten.saturating_add(unwritten);
                }
                found => is_sound &= found.is_some(),
            }
            is_sound
        })?;
        self.scan(Key::all_xattrs(), &mut |key, value| {
            if ino_of(key).is_some_and(|ino| !is_gone(ino)) {
                sums.bytes += charge_of_stored(name_of(key), value);
            }
            true
        })?;
        if is_sound { Ok((sums, uses)) } else { Err(Errno::EIO) }
    }

    /// The root directory.
    fn root(&self, shared: &SharedRef) -> Result<InodeRef, Errno> {
        self.revive(shared, ROOT_INO, None)
    }
}

/// How many file systems are being closed by threads of their own. *Atomic (stands alone).*
static CLOSING: AtomicU64 = AtomicU64::new(0);

/// How the store is run: what it keeps in memory is no more than its share of the limit.
fn store_options(options: &Options) -> StoreOptions {
    let shares = Shares::of(limit_of(options.memory_limit), options.store.log_size);
    let cache = options.store.cache.min(usize::try_from(shares.cache).unwrap_or(usize::MAX));
    options.store.clone().cache(cache).memory(options.store.memory.min(shares.records))
}

/// Bytes that may be in memory.
pub(super) fn limit_of(memory_limit: Option<u64>) -> u64 {
    memory_limit.unwrap_or_else(|| memory::total_bytes().unwrap_or(u64::MAX) / 2)
}

/// Closes the file system of `root`, which nobody uses any more, on a thread of its own, and takes the tree apart.
pub(crate) fn close_apart(root: InodeRef) {
    CLOSING.fetch_add(1, Ordering::SeqCst);
    let close = move || {
        // No caller is left to receive an error.
        let _ = root.shared.close();
        root.take_tree_apart();
        CLOSING.fetch_sub(1, Ordering::SeqCst);
    };
    // Without a thread it is as after a crash, and the memory stays: what was synchronised is there.
    if thread::Builder::new().name("sluice-close".into()).spawn(close).is_err() {
        CLOSING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The disk in `dir`. For one whose last user in this process has let go it waits until that is closed.
fn host_disk(dir: &Path) -> Result<Arc<dyn Disk>, StoreError> {
    loop {
        settle();
        let is_closing = CLOSING.load(Ordering::SeqCst) > 0;
        match HostDisk::lock(dir) {
            Ok(disk) => return Ok(Arc::from(Box::new(disk) as Box<dyn Disk>)),
            Err(StoreError::InUse(_)) if is_closing => thread::sleep(Duration::from_millis(1)),
            Err(StoreError::Io(_, error)) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::NotAStore);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Says of the file system that it `cannot`.
fn damaged(cannot: &'static str) -> impl FnOnce(Errno) -> StoreError {
    move |error| StoreError::Damaged(format!("the file system {cannot} ({})", error.text()))
}
