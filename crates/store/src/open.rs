//! Open: how a store is made, how one is opened after a clean end or a crash, and how it is closed.

use crate::cil::Cil;
use crate::disk::{Disk, DiskFile, NoDisk, OverlayDisk, VolatileDisk};
use crate::engine::{Engine, MemoryEngine, RedbEngine};
use crate::format::{BLOCK, LOG, SUPER, SUPER_SIZE, Super, TREE, VERSION};
use crate::log::{Log, Position};
use crate::mutant::Planted;
use crate::record::Batch;
use crate::recovery::{Behind, DamagedLog, recover};
use crate::room::Room;
use crate::segments::{Segments, blocks_of};
use crate::store::{Core, State, WAITING_SHARE};
use crate::why::Why;
use crate::{Options, Store, StoreError, compression, encryption};
use sluice_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sluice_sync::thread::Builder;
use sluice_sync::{Arc, Condvar, LockClass, Mutex, OnceLock};
use std::io;

static PUSH: LockClass = LockClass::new("store.push");
static CHECKPOINT: LockClass = LockClass::new("store.checkpoint");
static STATE: LockClass = LockClass::new("store.state");

/// The smallest log.
pub(crate) const LOG_MIN: u64 = 16 * BLOCK;
/// The least memory for what the tree does not have.
const MEMORY_MIN: u64 = 1 << 20;
/// Bytes of records up to which a tree is made smaller when a store is closed. A larger one waits for a store that is open for long.
const CLOSE_RECORDS: u64 = 256 << 20;

impl Store {
    /// Makes a store on `disk` and opens it.
    ///
    /// # Errors
    /// [`StoreError::Exists`]; errors of the disk: then the partly made store stays.
    pub fn create(disk: Arc<dyn Disk>, options: Options) -> Result<Store, StoreError> {
        if disk.open(SUPER).is_ok() {
            return Err(StoreError::Exists);
        }
        if options.compress && !compression::IS_BUILT_IN {
            return Err(StoreError::NoCompression);
        }
        let disk = match &options.key {
            Some(key) => encryption::make(disk, key)?,
            None => disk,
        };
        let made = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => StoreError::Exists,
            _ => StoreError::Io("make the store", error),
        };
        let uuid = random_uuid().map_err(made)?;
        let log_size = options.log_size.max(LOG_MIN).next_multiple_of(BLOCK);
        let segment_size = options.segment_size.max(BLOCK).next_multiple_of(BLOCK);
        let log = disk.create(LOG, log_size).map_err(made)?;
        // A batch without records: a log without a batch is one that was wiped.
        let log = Log::new(log, log_size, uuid, Planted::default())?.with(disk.cipher());
        let first = log.form(Batch::default(), Position::start(), 0)?;
        log.write(&first).and_then(|()| log.flush())?;
        let behind = Behind { position: first.next, ..Behind::default() };
        let tree = disk.create(TREE, 0).map_err(made)?;
        RedbEngine::open(tree, disk.cipher(), options.cache)?.apply(&Batch::default(), &behind.encode())?;
        // Without `super` it is no store: so it comes when all else is whole.
        let mark = || {
            disk.sync_names()?;
            let file = disk.create(SUPER, SUPER_SIZE as u64)?;
            let key_id = disk.cipher().map(|cipher| cipher.id());
            let (is_volatile, is_compressed) = (false, options.compress);
            let version = VERSION;
            let made = Super { version, uuid, log_size, segment_size, is_volatile, key_id, is_compressed };
            file.write_at(&made.encode(), 0)?;
            file.sync()?;
            disk.sync_names()
        };
        mark().map_err(made)?;
        Store::open(disk, options)
    }

    /// Opens the store on `disk`, and does what a crash left undone.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<Store, StoreError> {
        Store::open_planted(disk, options, Planted::default())
    }

    /// Opens the store on `disk`, with a fault that tests plant.
    pub(crate) fn open_planted(
        disk: Arc<dyn Disk>,
        options: Options,
        planted: Planted,
    ) -> Result<Store, StoreError> {
        let disk = match &options.key {
            Some(key) if disk.cipher().is_none() => {
                let found = read_any_super(&*disk)?;
                encryption::unlocked(disk, &found, key)?
            }
            _ => disk,
        };
        let found = read_super(&*disk)?;
        if found.version < VERSION || options.volatile {
            // From now on older programs refuse the store: what is written to it they cannot read.
            mark(&*disk, Super { version: VERSION, is_volatile: options.volatile, ..found })?;
        }
        let opened = Store::open_found(disk.clone(), found, options.clone(), planted);
        if opened.is_err() && options.volatile {
            // Nothing was lost. The caller gets the error of the open.
            let _ = end_volatile(&*disk);
        }
        opened
    }

    /// Opens the store whose file `super` is `found`.
    fn open_found(
        below: Arc<dyn Disk>,
        found: Super,
        options: Options,
        planted: Planted,
    ) -> Result<Store, StoreError> {
        let disk =
            if options.volatile { shared_disk(VolatileDisk::new(below.clone())) } else { below.clone() };
        let Super { uuid, log_size, segment_size, is_compressed: compress, .. } = found;
        let log = Log::new(part(&*disk, LOG, "open the log")?, log_size, uuid, planted)?.with(disk.cipher());
        let tree = part(&*disk, TREE, "open the tree")?;
        let engine = RedbEngine::open(tree, disk.cipher(), options.cache)?.compacts(disk.clone());
        let blocks = blocks_of(segment_size);
        let behind = recover(&log, &engine, blocks, (options.memory, planted), DamagedLog::Refused)?;
        let options = Options { log_size, compress, format: VERSION, ..options };
        Store::start((disk, below, blocks), Some(log), Box::new(engine), behind, options, planted)
    }

    /// The store whose records `engine` keeps, which makes each batch durable by itself: there is no log beside it. At
    /// a push the engine gets the records that a log would hold. `options.log_size` bounds what may wait for a push.
    /// `data` has segments of `options.segment_size`, compressed with `options.compress`; without it the records have everything.
    ///
    /// # Errors
    /// [`StoreError::NotEncrypted`] with a key; [`StoreError::NoCompression`], [`StoreError::Damaged`], and the engine's.
    pub fn over(
        engine: Box<dyn Engine>,
        data: Option<Arc<dyn Disk>>,
        options: Options,
    ) -> Result<Store, StoreError> {
        if options.key.is_some() {
            return Err(StoreError::NotEncrypted);
        }
        if options.volatile {
            let unsupported = io::ErrorKind::Unsupported.into();
            return Err(StoreError::Io("use a store without files and without flushes", unsupported));
        }
        if options.compress && !compression::IS_BUILT_IN {
            return Err(StoreError::NoCompression);
        }
        let blocks = data.as_ref().map_or(0, |_| blocks_of(options.segment_size));
        let disk = data.unwrap_or_else(|| shared_disk(NoDisk));
        let behind = Behind::of(&*engine, u64::MAX, blocks)?;
        Store::start((disk.clone(), disk, blocks), None, engine, behind, options, Planted::default())
    }

    /// An empty store that forgets: its log, its data and its tree are in memory. For measurements of what stands before a disk.
    ///
    /// # Errors
    /// Errors of [`create`](Self::create).
    pub fn in_memory(options: Options) -> Result<Store, StoreError> {
        let disk: Arc<dyn Disk> = shared_disk(OverlayDisk::over_nothing());
        let log_size = options.log_size.max(LOG_MIN).next_multiple_of(BLOCK);
        let blocks = blocks_of(options.segment_size.max(BLOCK).next_multiple_of(BLOCK));
        let file = disk.create(LOG, log_size).map_err(StoreError::io("make the log"))?;
        let log = Log::new(file, log_size, [0; 16], Planted::default())?;
        let (engine, options) = (Box::new(MemoryEngine::new()), Options { log_size, ..options });
        Store::start(
            (disk.clone(), disk, blocks),
            Some(log),
            engine,
            Behind::default(),
            options,
            Planted::default(),
        )
    }

    fn start(
        (disk, below, blocks): (Arc<dyn Disk>, Arc<dyn Disk>, u32),
        log: Option<Log>,
        engine: Box<dyn Engine>,
        behind: Behind,
        options: Options,
        planted: Planted,
    ) -> Result<Store, StoreError> {
        let Behind { position: next, table } = behind;
        let state = State::since(next.sequence - 1);
        let log_size = options.log_size;
        let options = Options { memory: options.memory.max(MEMORY_MIN), ..options };
        let of_segments = (blocks, options.open_segments, options.compress);
        let waiting_max = log_size.min(options.memory) / WAITING_SHARE;
        let room = Room::new(log_size);
        room.look(&*disk);
        let core = Arc::new(Core {
            segments: Segments::open(disk.clone(), of_segments, table, planted),
            disk,
            below,
            room,
            cil: Cil::new(waiting_max, planted),
            log,
            log_size,
            waiting_max,
            engine,
            options,
            planted,
            push: Mutex::with_class(&PUSH, next),
            cuts: AtomicU64::new(0),
            applied_cut: AtomicU64::new(0),
            checkpoint: Mutex::with_class(&CHECKPOINT, ()),
            state: Mutex::with_class(&STATE, state),
            changed: Condvar::new(),
            work: Condvar::new(),
            idle: AtomicBool::new(false),
            source: OnceLock::new(),
            failed: AtomicBool::new(false),
            closed: OnceLock::new(),
        });
        let mut store = Store { core: core.clone(), background: None };
        if core.options.background {
            let thread = Builder::new().name("sluice-store".into()).spawn(move || core.run());
            store.background = Some(thread.map_err(StoreError::io("start the store's thread"))?);
        }
        Ok(store)
    }
}

impl Core {
    /// See [`Store::close`].
    pub(crate) fn close(&self) -> Result<(), StoreError> {
        let closed = match self.write_out_all() {
            // The log has all that the tree has no room for; a store that was used without flushes has no log on the disk.
            Err(error) if error.is_full_disk() && !self.options.volatile => self.sync(),
            written => written.and_then(|()| self.compact_all(CLOSE_RECORDS)),
        };
        if closed.is_ok() {
            self.segments.trim();
        }
        self.state.lock().failed.get_or_insert_with(|| Why::Other("it was closed".into()));
        // Relaxed: see begin().
        self.failed.store(true, Ordering::Relaxed);
        self.work.notify_all();
        self.changed.notify_all();
        // A push that began before ends first; a later one sees that it was closed.
        let mut state = self.state.lock();
        while state.callers.in_flight > 0 {
            state = self.changed.wait(state);
        }
        drop(state);
        let _checkpointing = self.checkpoint.lock();
        self.engine.close();
        let is_volatile = self.options.volatile;
        let closed = closed.and_then(|()| if is_volatile { end_volatile(&*self.below) } else { Ok(()) });
        self.disk.unlock();
        closed
    }
}

/// A disk that several may use.
fn shared_disk(disk: impl Disk + 'static) -> Arc<dyn Disk> {
    Arc::from(Box::new(disk) as Box<dyn Disk>)
}

/// Lets the file `super` say this. The file is one sector, written whole or not at all.
fn mark(disk: &dyn Disk, says: Super) -> Result<(), StoreError> {
    let file = disk.open(SUPER).map_err(StoreError::io("open `super`"))?;
    file.write_at(&says.encode(), 0).and_then(|()| file.sync()).map_err(StoreError::io("write `super`"))
}

/// All of a store that was used without flushes is written to `disk`, and nothing more will be: makes it durable, and lets `super`
/// say so.
///
/// # Errors
/// The disk's: then the store counts as lost.
fn end_volatile(disk: &dyn Disk) -> Result<(), StoreError> {
    let flush = |names: Vec<String>| names.iter().try_for_each(|name| disk.open(name)?.sync());
    let flushed = disk.names().and_then(flush).and_then(|()| disk.sync_names());
    flushed.map_err(StoreError::io("flush the store"))?;
    mark(disk, Super { is_volatile: false, ..read_any_super(disk)? })
}

/// The file `super` of a usable store.
///
/// # Errors
/// [`StoreError::Lost`], [`StoreError::NoCompression`], [`StoreError::Locked`], [`StoreError::NotEncrypted`]; as [`read_any_super`].
pub(crate) fn read_super(disk: &dyn Disk) -> Result<Super, StoreError> {
    let found = read_any_super(disk)?;
    match (found.key_id, disk.cipher()) {
        _ if found.is_volatile => Err(StoreError::Lost),
        _ if found.is_compressed && !compression::IS_BUILT_IN => Err(StoreError::NoCompression),
        (Some(_), None) => Err(StoreError::Locked),
        (None, Some(_)) => Err(StoreError::NotEncrypted),
        (Some(id), Some(cipher)) if id != cipher.id() => Err(StoreError::WrongKey),
        _ => Ok(found),
    }
}

/// The content of the file `super`.
///
/// # Errors
/// [`StoreError::NotAStore`], [`StoreError::NewerFormat`], [`StoreError::Damaged`]; the disk's.
pub(crate) fn read_any_super(disk: &dyn Disk) -> Result<Super, StoreError> {
    let file = disk.open(SUPER).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => StoreError::NotAStore,
        _ => StoreError::io("open `super`")(error),
    })?;
    let mut bytes = [0; SUPER_SIZE];
    file.read_at(&mut bytes, 0).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => StoreError::NotAStore,
        _ => StoreError::Io("read `super`", error),
    })?;
    Super::decode(&bytes)
}

/// The file `name`, which each store has. `what`: what failed, if it cannot be opened.
fn part(disk: &dyn Disk, name: &str, what: &'static str) -> Result<Arc<dyn DiskFile>, StoreError> {
    disk.open(name).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => StoreError::Damaged(format!("`{name}` is missing")),
        _ => StoreError::io(what)(error),
    })
}

/// Sixteen random bytes, marked as a random UUID.
pub(crate) fn random_uuid() -> io::Result<[u8; 16]> {
    let mut uuid = [0; 16];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut uuid)?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

#[cfg(all(test, not(feature = "sim")))]
mod tests {
    use super::*;
    use crate::disk::crash::CrashDisk;

    #[test]
    fn an_older_store_is_read_and_from_then_on_not_for_older_programs() {
        let disk = Arc::new(CrashDisk::new());
        let store = Store::create(disk.clone(), Options::default()).expect("an empty disk");
        store.begin(100).expect("room").put(b"key", 1, b"value");
        drop(store);
        let older = Super { version: 1, ..read_super(&*disk).expect("a store") };
        let file = disk.open(SUPER).expect("it is there");
        file.write_at(&older.encode(), 0).expect("memory");
        assert_eq!(Store::info(&*disk).expect("a store").version, 1);
        let store = Store::open(disk.clone(), Options::default()).expect("an older one");
        assert_eq!(store.get(b"key").expect("the disk works").as_deref(), Some(b"value".as_slice()));
        assert_eq!(read_super(&*disk).expect("a store"), Super { version: VERSION, ..older });
    }

    #[test]
    fn a_store_without_its_log_or_its_tree_is_damaged() {
        for name in [LOG, TREE] {
            let disk = CrashDisk::new();
            drop(Store::create(Arc::new(disk.clone()), Options::default()).expect("an empty disk"));
            disk.remove(name).expect("it is there");
            let error = Store::open(Arc::new(disk), Options::default()).expect_err("no store").to_string();
            assert!(error.contains(&format!("`{name}` is missing")), "{error}");
        }
    }

    #[test]
    fn a_store_in_memory_writes_its_log_and_checkpoints() {
        let options = Options { log_size: LOG_MIN, background: false, ..Options::default() };
        let store = Store::in_memory(options).expect("memory");
        for round in 0..100_u32 {
            store.begin(100).expect("room").put(b"key", u64::from(round), &round.to_le_bytes());
            store.sync().expect("memory");
        }
        let stats = store.stats();
        assert_eq!(stats.batches, 100, "the log has room for sixteen");
        assert!((BLOCK..=LOG_MIN).contains(&stats.log_used), "{stats:?}");
        store.checkpoint().expect("memory");
        assert_eq!(store.stats().log_used, 0);
        assert_eq!(store.get(b"key").expect("memory").as_deref(), Some(99_u32.to_le_bytes().as_slice()));
    }

    #[test]
    fn a_push_that_is_asked_for_soon_comes_unasked_otherwise() {
        let age = sluice_sync::time::Duration::from_secs(3600);
        let store = Store::in_memory(Options { age, ..Options::default() }).expect("memory");
        for push in 1..20 {
            store.begin(100).expect("room").put(b"key", push, b"value");
            store.push_soon();
            while store.stats().batches < push {
                sluice_sync::thread::yield_now();
            }
        }
    }

    #[test]
    fn what_the_tree_lacks_takes_no_more_memory_than_it_may_and_is_all_there() {
        let options = Options { memory: MEMORY_MIN, background: false, ..Options::default() };
        let disk = Arc::new(CrashDisk::new());
        let store = Store::create(disk.clone(), options.clone()).expect("an empty disk");
        let (value, mut largest) = ([7; 1000], 0);
        for key in 0..8_000_u32 {
            store.begin(2000).expect("room").put(&key.to_be_bytes(), 1, &value);
            if key % 100 == 99 {
                store.sync().expect("memory");
            }
            let stats = store.stats();
            assert!(stats.log_memory <= MEMORY_MIN && stats.waiting_bytes <= MEMORY_MIN / 4, "{stats:?}");
            largest = largest.max(stats.log_memory);
        }
        assert!(largest > MEMORY_MIN / 2, "{largest}");
        drop(store);
        let store = Store::open(disk, options).expect("a store");
        let all = (0..8_000_u32).all(|key| store.get(&key.to_be_bytes()).expect("memory").is_some());
        assert!(all);
    }
}
