//! Superblock: one file system: its root, its limits and what its inodes share.

mod space;

pub(crate) use self::space::charged;

use self::space::ask_machine;
use crate::data::{PAGE, PAGE_SIZE};
use crate::dir::NameHasher;
use crate::durable::{Durable, close_apart};
use crate::inode::{Body, InodeInit, settle};
use crate::lock_class::{SUPERBLOCK_OBSERVERS, SUPERBLOCK_RENAME};
use crate::moment::Moments;
use crate::open_counts::OpenCounts;
use crate::open_files::Trees;
use crate::quota::Quotas;
use crate::schedule::ClockThread;
use crate::stat::{S_IALLUGO, Timestamp};
use crate::watch::{Watch, hook};
use crate::{Cred, Errno, FileType, Inode, InodeRef, NAME_MAX, Observer, ObserverId, Options, StatFs};
use sluice_locks::{DomainOptions, LockDomain};
use sluice_sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use sluice_sync::face::{Host, PerHost};
use sluice_sync::percpu::{Budget, Ida, PerCpu};
use sluice_sync::rcu::{self, RcuCell};
use sluice_sync::refcache::{self, Ref, Standing};
use sluice_sync::{Arc, CachePadded, Mutex, OnceLock, fibonacci, memory, name_fields};
use std::fmt;

/// The inode number of every root directory.
pub(crate) const ROOT_INO: u64 = 1;
/// In so many bytes space is counted: small things, such as extended attributes, need not take a page.
const UNIT: u64 = 64;
const UNITS_A_PAGE: u64 = PAGE / UNIT;
/// Memory of an inode with its first name, including its share of tables; and memory of each further name.
pub(crate) const INODE_BYTES: u64 = 1024;
const NAME_BYTES: u64 = 512;
/// Nobody looks for what is dead before so many units are in use: 64 MiB.
const SETTLES_AT_MIN: u64 = (64 << 20) / UNIT;
/// Approximate memory of a file system without its inodes and their contents.
const SUPERBLOCK_BYTES: u64 = 64 << 10;
/// Bytes that `df` shows as free in S3, which does not tell.
const OBJECT_STORE_BYTES: u64 = 1 << 50;
/// The limits of all file systems of the process together, in bytes. *Atomic, alone.*
static PROMISED: AtomicU64 = AtomicU64::new(0);

/// One file system. It lives as long as somebody holds it: a mount, or a caller.
pub struct Superblock {
    shared: Ref<Shared, Standing>,
    root: InodeRef,
    /// Where it is or was mounted. *Protected by itself.*
    trees: Trees,
    /// A [`NewSnapshot`](crate::NewSnapshot) is being made. *Atomic (stands alone).*
    pub(crate) is_receiving: AtomicBool,
    /// It takes snapshots by the clock. *Set once.*
    pub(crate) snapshot_thread: OnceLock<ClockThread>,
    /// It is scrubbed by the clock. *Set once.*
    pub(crate) scrub_thread: OnceLock<ClockThread>,
}

/// How inodes refer to what they share.
pub(crate) type SharedRef = Ref<Shared, Standing>;

/// State that all inodes of a file system share.
pub(crate) struct Shared {
    /// Device number. *Immutable.*
    pub(crate) dev: u64,
    /// Distinguishes inode numbers of different file systems in the keys of remembered paths. *Immutable.*
    pub(crate) key: u64,
    /// Limits and policies. *Immutable.*
    pub(crate) options: Options,
    /// The waits for file locks, and the list of all locks. *Immutable.*
    pub(crate) lock_domain: Arc<LockDomain>,
    /// Copies of trees. *Protected by itself.*
    pub(crate) moments: Moments,
    /// Quotas of directories. *Protected by themselves.*
    pub(crate) quotas: Quotas,
    /// Held by a rename that moves a name between directories, so that the tree's shape stands still.
    pub(crate) rename_lock: CachePadded<Mutex<()>>,
    /// *Immutable.*
    pub(crate) hasher: NameHasher,
    /// Distinguishes this file system from others in file handles: random, or the store's value. *Atomic (stands
    /// alone); written before the root is known to anybody.*
    pub(crate) identity: AtomicU64,
    /// Where changes go to last; nowhere in memory. *Immutable.*
    durable: Option<Box<Durable>>,
    /// The hooks that a call has to run: bits of [`hook`]. *Atomic (stands alone); changed under the watch's mutex.*
    hooks: AtomicU8,
    /// The watch that tests use. *Set once.*
    watch: OnceLock<Box<Watch>>,
    /// Inode numbers. *Per CPU.*
    inos: Ida,
    /// Inodes, whether in memory or in the store. *Per CPU.*
    inodes: Budget,
    /// Pages of files that lost their last name since the last look at what can be released. *Per CPU.*
    unlinked_pages: PerCpu<AtomicU64>,
    /// How often files are open, and how. *Per CPU.*
    pub(crate) opens: OpenCounts,
    /// Units of space in use. *Per CPU.*
    space: Budget,
    /// At so many units in use somebody looks for what is dead. *Atomic, alone.*
    settles_at: AtomicU64,
    /// They are told of changes. *RCU; replaced under `observing`.*
    observers: RcuCell<Vec<(ObserverId, Arc<dyn Observer>)>>,
    /// There are any: without, nobody looks at the list. *Atomic (observed); written under `observing`.*
    is_observed: AtomicBool,
    /// Observers are told before an inode loses a name. *Atomic (stands alone); set once.*
    expects: AtomicBool,
    /// Held while the list of observers is replaced.
    observing: CachePadded<Mutex<()>>,
}

impl fmt::Debug for Superblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_durable = self.is_durable();
        f.debug_struct("Superblock")
            .field("dev", &self.dev())
            .field("is_durable", &is_durable)
            .finish_non_exhaustive()
    }
}

impl Superblock {
    /// A new, empty file system in memory.
    pub fn new(options: Options) -> Arc<Superblock> {
        let shared = Shared::in_memory(options);
        let root = Shared::new_root(&shared);
        let superblock = Arc::new(Superblock::of(shared, root));
        Superblock::begin_schedule(&superblock);
        superblock
    }

    fn of(shared: SharedRef, root: InodeRef) -> Superblock {
        Superblock {
            shared,
            root,
            trees: Trees::new(),
            is_receiving: AtomicBool::new(false),
            snapshot_thread: OnceLock::new(),
            scrub_thread: OnceLock::new(),
        }
    }

    /// The file system in memory of `shared`, which has no root yet; its root gets the attributes of `root`.
    pub(crate) fn with_root(shared: SharedRef, root: InodeInit) -> Arc<Superblock> {
        let root = Inode::allocate(&shared, ROOT_INO, root, Body::new_directory(None));
        Arc::new(Superblock::of(shared, root))
    }

    /// A file system over a store, with the root that `root` makes. All numbers of its inodes are below `numbers`.
    ///
    /// # Errors
    /// Errors of `root`.
    pub(crate) fn with_store(
        options: Options,
        durable: Durable,
        numbers: u64,
        root: impl FnOnce(&SharedRef) -> Result<InodeRef, Errno>,
    ) -> Result<Arc<Superblock>, Errno> {
        let shared = Shared::new(options, Some(Box::new(durable)), numbers.max(ROOT_INO));
        let root = root(&shared)?;
        // Relaxed: see the field. A store's root is as old as the store.
        shared.identity.store(root.born().pack(), Ordering::Relaxed);
        Ok(Arc::new(Superblock::of(shared, root)))
    }

    /// The key by which names are hashed, for the [options](Options::name_key) of the next process. A user who knows it can make names that
    /// take long to be found.
    pub fn name_key(&self) -> u64 {
        self.root.shared.hasher.key()
    }

    /// The root directory.
    pub fn root(&self) -> &InodeRef {
        &self.root
    }

    /// The device number that `stat` shows for every inode here.
    pub fn dev(&self) -> u64 {
        self.shared.dev
    }

    /// Size and use. In memory the totals are 0 without a limit, as the kernel's tmpfs has it, and no more is free than the machine
    /// has memory left: a higher limit is not shown. In a store no more is free than its disk has beyond the reserve; S3 counts as 1 PiB. A file that lost its last name and user just now may be counted still: [`settle`](Self::settle) first, to know
    /// exactly.
    pub fn statfs(&self) -> StatFs {
        self.shared.statfs()
    }

    /// Sum of the size limits of all file systems in this process, in bytes: for a caller that chooses the next limit.
    pub fn promised_bytes() -> u64 {
        // Relaxed: a number that stands alone.
        PROMISED.load(Ordering::Relaxed)
    }

    /// The file locks of all inodes here.
    pub fn lock_domain(&self) -> &Arc<LockDomain> {
        &self.shared.lock_domain
    }

    /// Releases what has lost its last user by now, in all file systems of the process: what is counted of them is
    /// exact then. Waits for calls that are under way, and stops all counting of references for a moment: meant for a
    /// report, not for every call. Does nothing inside a callback of a call that must not wait, such as
    /// [`Process::visit_entries`](crate::Process::visit_entries).
    pub fn settle(&self) {
        settle();
    }

    /// Inodes of the file system, those included that a last user let go just now.
    pub fn inodes_used(&self) -> u64 {
        self.shared.inodes.used()
    }

    /// Inodes in memory; of a durable file system others may be in its store. [Settles](Self::settle).
    pub fn inodes_in_memory(&self) -> u64 {
        settle();
        self.shared.durable().map_or_else(|| self.shared.inodes.used(), Durable::inodes_in_memory)
    }

    /// Inodes of the file system, those without a name that somebody still holds included. [Settles](Self::settle).
    pub fn live_inodes(&self) -> u64 {
        settle();
        self.shared.inodes.used()
    }

    /// Bytes in use of those that [`Options::size_limit`] limits: file data in whole pages, the rest in small units.
    /// [Settles](Self::settle).
    pub fn bytes_used(&self) -> u64 {
        settle();
        self.shared.space.used() * UNIT
    }

    pub(crate) fn trees(&self) -> &Trees {
        &self.trees
    }

    /// Notes that a user of this file system goes, perhaps the last. Whether the caller should [`settle`], so that what is left
    /// behind is released now: because it is much together with what others left, or because a store is to be closed.
    pub(crate) fn should_settle_after(&self) -> bool {
        /// Memory that users have left behind since the last settling. *Atomic, alone.*
        static LEFT: PerHost<AtomicU64> = PerHost::new(AtomicU64::new(0));
        const LEFT_MAX: u64 = 16 << 20;
        let Shared { space, inodes, .. } = &*self.shared;
        let bytes = SUPERBLOCK_BYTES + space.used() * UNIT + inodes.used() * INODE_BYTES;
        let left = LEFT.get(Host::here());
        // Relaxed: a hint.
        let is_much = left.fetch_add(bytes, Ordering::Relaxed) + bytes >= LEFT_MAX;
        if is_much {
            left.store(0, Ordering::Relaxed);
        }
        is_much || self.shared.durable().is_some()
    }

    /// Someone knows inodes by their numbers, and will [look for them](Self::find_inode) later: from now on observers are told before
    /// an inode loses a name, since its number may lead to it no longer.
    pub fn expect_inodes(&self) {
        // Relaxed: see expects_inodes().
        self.shared.expects.store(true, Ordering::Relaxed);
    }

    /// Tells `observer` of each change from now on.
    ///
    /// # Errors
    /// `EBUSY` when this observer or an existing observer must be [alone](Observer::is_alone).
    pub fn observe(&self, observer: Arc<dyn Observer>) -> Result<ObserverId, Errno> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only uniqueness matters.
        let id = ObserverId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        let mut outcome = Err(Errno::EBUSY);
        self.shared.change_observers(|observers| {
            let meets =
                |(_, other): &(ObserverId, Arc<dyn Observer>)| other.is_alone() || observer.is_alone();
            if !observers.iter().any(meets) {
                observers.push((id, observer));
                outcome = Ok(id);
            }
        });
        outcome
    }

    /// Tells the observer `id` nothing more. A call that has begun may still be under way.
    pub fn unobserve(&self, id: ObserverId) {
        self.shared.change_observers(|observers| observers.retain(|(other, _)| *other != id));
    }
}

/// Adds `limit` to what is promised, or takes it away.
fn promise(limit: Option<u64>, add: fn(u64, u64) -> u64) {
    // Relaxed: a number that stands alone. There is always an update.
    let _ =
        PROMISED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| Some(add(sum, limit.unwrap_or(0))));
}

impl Drop for Superblock {
    /// Makes everything durable, and takes the tree apart. Memory is released by threads as they go on or become idle:
    /// a thread that drops a file system waits for no call on another file system.
    fn drop(&mut self) {
        promise(self.shared.options.size_limit, u64::wrapping_sub);
        let should_settle = self.should_settle_after();
        if self.shared.durable().is_some() && refcache::in_destructor() {
            // No destructor waits for I/O: the thread that runs it may hold locks.
            return close_apart(self.root.clone());
        }
        // An error was told to callers that asked for durability; nobody asks now.
        let _ = self.shared.close();
        self.root.clone().take_tree_apart();
        if should_settle {
            settle();
        }
    }
}

impl Shared {
    /// The shared state for the inodes of a new file system in memory.
    pub(crate) fn in_memory(options: Options) -> SharedRef {
        Shared::new(options, None, ROOT_INO)
    }

    /// The shared state for the inodes of a new file system. Numbers begin above `above`.
    fn new(options: Options, durable: Option<Box<Durable>>, above: u64) -> SharedRef {
        static LAST_DEV: PerHost<AtomicU64> = PerHost::new(AtomicU64::new(0));
        // Relaxed: only uniqueness matters.
        let minor = LAST_DEV.get(Host::here()).fetch_add(1, Ordering::Relaxed) + 1;
        let hasher = NameHasher::new(options.name_key);
        let locking = DomainOptions {
            deadlock_detection: options.deadlock_detection,
            max_locks: options.lock_limit,
            max_locks_of_owner: options.owner_lock_limit,
            ..Default::default()
        };
        let units = options.size_limit.map(|bytes| bytes / PAGE * UNITS_A_PAGE);
        let inodes = options.inode_limit;
        promise(options.size_limit, u64::wrapping_add);
        let shared = Ref::standing(Shared {
            // Major number 0: no real device, as the kernel's own memory file systems have it.
            dev: (minor & 0xff) | ((minor & 0xf_ff00) << 12),
            key: fibonacci(minor),
            options,
            lock_domain: LockDomain::new(locking),
            moments: Moments::new(),
            quotas: Quotas::new(),
            rename_lock: CachePadded::new(Mutex::with_class(&SUPERBLOCK_RENAME, ())),
            identity: AtomicU64::new(hasher.hash(&[])),
            hasher,
            hooks: AtomicU8::new(if durable.is_some() { hook::DURABLE } else { 0 }),
            durable,
            watch: OnceLock::new(),
            inos: Ida::new(above + 1..u64::MAX),
            // The root is in use.
            inodes: Budget::new(inodes, 1),
            unlinked_pages: PerCpu::default(),
            opens: OpenCounts::new(),
            space: Budget::with_grain(units, 0, UNITS_A_PAGE),
            settles_at: AtomicU64::new(SETTLES_AT_MIN),
            observers: RcuCell::new(rcu::domain(), Vec::new()),
            is_observed: AtomicBool::new(false),
            expects: AtomicBool::new(false),
            observing: CachePadded::new(Mutex::with_class(&SUPERBLOCK_OBSERVERS, ())),
        });
        name_fields!(
            shared,
            Shared { lock_domain, rename_lock, inos, inodes, unlinked_pages, opens, space, observing }
        );
        shared
    }

    /// Size and use of the file system: see [`Superblock::statfs`].
    pub(crate) fn statfs(&self) -> StatFs {
        let Shared { options, space, .. } = self;
        let limit = options.size_limit.map(|bytes| bytes / PAGE);
        let durable = self.durable();
        let left = match durable {
            None => memory::left(),
            Some(durable) => durable.room_bytes().unwrap_or(OBJECT_STORE_BYTES),
        } / PAGE;
        let all = left.saturating_add(space.used().div_ceil(UNITS_A_PAGE));
        let blocks = match limit {
            None if durable.is_none() => 0,
            limit => limit.map_or(all, |limit| limit.min(all)),
        };
        let within = limit.map_or(blocks, |_| space.free() / UNITS_A_PAGE);
        StatFs {
            block_size: PAGE_SIZE as u32,
            blocks,
            blocks_free: left.min(within),
            files: options.inode_limit.unwrap_or(0),
            files_free: self.inodes.free(),
            name_max: NAME_MAX as u32,
        }
    }

    /// The root directory of a new file system.
    pub(crate) fn new_root(this: &SharedRef) -> InodeRef {
        let options = &this.options;
        let (mode, uid, gid) = (options.root_mode & S_IALLUGO, options.root_uid, options.root_gid);
        let born = Timestamp::now();
        let root = InodeInit { file_type: FileType::Directory, mode, uid, gid, nlink: 2, origin: 0, born };
        Inode::allocate(this, ROOT_INO, root, Body::new_directory(None))
    }

    /// The store, if there is one.
    #[inline]
    pub(crate) fn durable(&self) -> Option<&Durable> {
        self.durable.as_deref()
    }

    /// Whether a call has to look at nothing but the tree: see [`hook`].
    #[inline]
    pub(crate) fn has_no_hooks(&self) -> bool {
        // Relaxed: the bits publish nothing. A call that comes while one is set may come before.
        self.hooks.load(Ordering::Relaxed) == 0
    }

    /// Whether one of these bits is set.
    #[inline]
    pub(crate) fn has_hook(&self, hooks: u8) -> bool {
        // Relaxed: as above.
        self.hooks.load(Ordering::Relaxed) & hooks != 0
    }

    /// Sets a bit, or clears it.
    pub(crate) fn set_hook(&self, hook: u8, is_set: bool) {
        // Relaxed: as above.
        match is_set {
            true => self.hooks.fetch_or(hook, Ordering::Relaxed),
            false => self.hooks.fetch_and(!hook, Ordering::Relaxed),
        };
    }

    /// The watch that tests use, if it was ever made.
    pub(crate) fn watch(&self) -> Option<&Watch> {
        self.watch.get().map(|watch| &**watch)
    }

    /// The watch that tests use, made if need be.
    pub(crate) fn make_watch(&self) -> &Watch {
        self.watch.get_or_init(|| Box::new(Watch::new()))
    }

    /// Counts inodes that were found in a store, and bytes of space: they were counted when they were made, and so may lead
    /// beyond a limit that was set since. The root is counted.
    pub(crate) fn count_found(&self, inodes: u64, bytes: u64) {
        self.inodes.exceed(inodes);
        self.space.exceed(bytes.div_ceil(UNIT));
    }

    /// Inodes and bytes of space that were counted.
    pub(crate) fn counted(&self) -> (u64, u64) {
        (self.inodes.used(), self.space.used() * UNIT)
    }

    /// Counts `bytes` of space, beyond the limit if need be.
    pub(crate) fn charge_loaded(&self, bytes: u64) {
        self.space.exceed(bytes.div_ceil(UNIT));
    }

    /// A new inode number, never used before; counts the inode.
    ///
    /// # Errors
    /// `ENOSPC` when no inode may be added.
    pub(crate) fn new_ino(&self) -> Result<u64, Errno> {
        self.try_after_making_room(|| {
            let passed = self.inodes.take(1)?;
            ask_machine(passed, 1, INODE_BYTES).inspect_err(|_| self.inodes.give(1))
        })?;
        self.inos.alloc().ok_or(Errno::ENOSPC)
    }

    /// An inode that holds so many `pages` lost its last name. They are released when its last user lets go, which is
    /// noticed late; when that is much, it is looked for at once. Called with no name locked, in no read section.
    pub(crate) fn release_soon(&self, pages: u64) {
        if self.should_release(pages) {
            settle();
        }
    }

    /// Whether a caller in a read section should [`settle`] after it; see [`release_soon`](Self::release_soon).
    #[inline]
    pub(crate) fn should_release(&self, pages: u64) -> bool {
        // Looking interrupts all CPUs and takes their caches from them. With 1 MiB two threads that remove trees of small
        // files were slower together than one.
        const PAGES_MAX: u64 = (16 << 20) / PAGE;
        if pages == 0 {
            return false;
        }
        let waiting = self.unlinked_pages.here();
        // Relaxed: a hint; the CPU's own line.
        let is_much = waiting.fetch_add(pages, Ordering::Relaxed) + pages >= PAGES_MAX;
        if is_much {
            waiting.store(0, Ordering::Relaxed);
        }
        is_much
    }

    /// Counts an inode that is no more.
    pub(crate) fn uncount_inode(&self) {
        self.inodes.give(1);
    }

    fn change_observers(&self, change: impl FnOnce(&mut Vec<(ObserverId, Arc<dyn Observer>)>)) {
        // Dropped after the lock, a leaf: what waits for a grace period beside it may count references.
        let _replaced;
        let _alone = self.observing.lock();
        let mut observers = self.observers.load(&self.observers.read()).clone();
        change(&mut observers);
        let is_observed = !observers.is_empty();
        _replaced = self.observers.swap(observers);
        // Release(observed): the list; pairs with Acquire(observed) in is_observed().
        self.is_observed.store(is_observed, Ordering::Release);
    }

    /// Whether anybody is told of changes.
    #[inline]
    pub(crate) fn is_observed(&self) -> bool {
        // Acquire(observed): the list; pairs with Release(observed) in change_observers().
        self.is_observed.load(Ordering::Acquire)
    }

    /// Whether a change of names waits for nobody and is told to nobody: there are no hooks, observers and delegations.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.has_no_hooks() && self.is_told_to_nobody()
    }

    /// Whether a change of names goes to a store, but waits for nobody else and is told to nobody.
    #[inline]
    pub(crate) fn is_quiet_over_store(&self) -> bool {
        // Relaxed: as in has_no_hooks().
        self.hooks.load(Ordering::Relaxed) == hook::DURABLE && self.is_told_to_nobody()
    }

    #[inline]
    fn is_told_to_nobody(&self) -> bool {
        !self.is_observed() && !self.opens.are_leases_used()
    }

    /// Calls `tell` for each observer but the one on whose behalf the change was made.
    #[inline]
    pub(crate) fn notify(&self, cred: &Cred, tell: impl Fn(&dyn Observer)) {
        if self.is_observed() {
            self.notify_but(cred.via, tell);
        }
    }

    /// Whether observers are told of an inode before it loses a name.
    #[inline]
    pub(crate) fn expects_inodes(&self) -> bool {
        // Relaxed: an observer that starts to expect an inode now may miss it, as if its name had been removed earlier.
        self.expects.load(Ordering::Relaxed)
    }

    /// Tells all observers that `inode` is about to lose a name.
    pub(crate) fn notify_name_leaves(&self, inode: &InodeRef) {
        self.notify_but(None, |observer| observer.name_leaves(inode));
    }

    /// Tells all observers that inode `ino` lost a name.
    #[inline]
    pub(crate) fn notify_name_lost(&self, ino: u64) {
        if self.is_observed() {
            self.notify_but(None, |observer| observer.name_lost(ino));
        }
    }

    /// Tells all observers that these inodes should be forgotten.
    pub(crate) fn notify_memory_is_short(&self, inos: &[u64]) {
        if self.is_observed() && !inos.is_empty() {
            self.notify_but(None, |observer| observer.memory_is_short(inos));
        }
    }

    /// Calls `tell` for each observer but `except`.
    #[inline(never)]
    pub(crate) fn notify_but(&self, except: Option<ObserverId>, tell: impl Fn(&dyn Observer)) {
        let told: Vec<_> = {
            let section = self.observers.read();
            self.observers
                .load(&section)
                .iter()
                .filter(|(id, _)| except != Some(*id))
                .map(|(_, observer)| observer.clone())
                .collect()
        };
        for observer in told {
            tell(&*observer);
        }
    }
}
