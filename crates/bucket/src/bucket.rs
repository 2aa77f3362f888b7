//! Bucket: the place of one store in an object store, and what is done with the store there: made, opened, looked at.

use crate::cache::{DiskCache, cached};
use crate::counted::CountedObjects;
use crate::data::DataDisk;
use crate::engine::{Opening, Records};
use crate::error::of_objects;
use crate::gaps;
use crate::line::{LineObjects, StoreLine};
use crate::looking::Looking;
use crate::objects::{self, Objects};
use crate::owner::{self, Claim, ClaimPace, Owner};
use crate::race;
use crate::runtime::Stop;
use crate::sealed::SealedObjects;
use crate::traffic::{Traffic, TrafficRecorders};
use futures_util::future::join;
use object_store::path::Path;
use sluice_store::disk::{Disk, HostDisk};
use sluice_store::engine::Engine;
use sluice_store::{
    Cipher, Gravity, Info, KeyFile, KeySlot, Look, Options, Progress, Report, Store, StoreError, StoreKey,
};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, LockClass, Mutex};
use std::cell::Cell;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;

static TRAFFIC: LockClass = LockClass::new("bucket.traffic");

/// The object that says what this is.
const SUPER: &str = "super";
/// The object with the keys of an encrypted store.
const KEYS: &str = "keys";

/// How often a request that failed is made again, with up to a second in between: for about a minute a store waits for an object
/// store that does not answer, then it fails.
const RETRIES: u32 = 60;
/// The part of the host's free space that what waits for a push may take: twice as much is kept free.
const LOG_SHARE: u64 = 8;
/// The shares of records and of data in the cache on disk.
const CACHE_RECORDS: u64 = 1;
const CACHE_DATA: u64 = 3;

/// The place of a store in an object store.
///
/// ```
/// use sluice_bucket::{Bucket, Claim, StoreError};
/// use sluice_store::Options;
///
/// # let dir = std::env::temp_dir().join(format!("sluice-bucket-doc-{}", std::process::id()));
/// # let url = format!("file://{}", dir.display());
/// let bucket = Bucket::make(&url)?;
/// bucket.create(Options::default())?.close()?;
/// let store = bucket.open(Claim::Epoch(5), Options::default())?;
/// let mut change = store.begin(1024)?;
/// change.put(b"name", 1, b"value");
/// drop(change);
/// store.sync()?;
///
/// // Another node takes over.
/// let newer = bucket.open(Claim::Epoch(7), Options::default())?;
/// assert_eq!(newer.get(b"name")?.as_deref(), Some(b"value".as_slice()));
/// let mut change = store.begin(1024)?;
/// change.put(b"name", 2, b"too late");
/// drop(change);
/// assert!(matches!(store.sync(), Err(StoreError::Superseded)));
/// # drop((store, newer));
/// # std::fs::remove_dir_all(dir).map_err(|error| StoreError::Io("clean up", error))?;
/// # Ok::<(), StoreError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Bucket {
    /// The objects as they are used.
    objects: Objects,
    /// The objects as they are stored: of an encrypted store that was [unlocked](Bucket::unlocked) others.
    stored: Objects,
    cipher: Option<Arc<Cipher>>,
    /// The host's directory that they lie in; none: they are elsewhere, and nobody tells how much room there is.
    host: Option<Arc<HostDisk>>,
    /// The way to them.
    line: Arc<StoreLine>,
    /// How often a request that failed is made again.
    retries: u32,
    /// How often its claim is renewed.
    pace: ClaimPace,
    /// This machine's cache of the objects.
    cache: Option<DiskCache>,
    /// The counters of the store that was opened last. *protected by its mutex*
    opened: Arc<Mutex<TrafficRecorders>>,
}

impl Bucket {
    /// The place at `url`: `file:///DIRECTORY` or `s3://BUCKET/PATH`. How S3 is reached, and as whom, is read from the
    /// environment (`AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, ...), the keys else from the file
    /// `AWS_SHARED_CREDENTIALS_FILE` or `~/.aws/credentials`.
    ///
    /// # Errors
    /// [`StoreError::Io`] that says what is wrong with the address; [`StoreError::NotAStore`] if there is no such directory.
    pub fn at(url: &str) -> Result<Bucket, StoreError> {
        Bucket::at_host(url, false)
    }

    /// The bucket at `url`; the directory of a `file://` is made if it is missing.
    ///
    /// # Errors
    /// Errors of [`at`](Self::at).
    pub fn make(url: &str) -> Result<Bucket, StoreError> {
        Bucket::at_host(url, true)
    }

    fn at_host(url: &str, make: bool) -> Result<Bucket, StoreError> {
        let bucket = Bucket::patient(objects::at(url, make)?);
        let dir = Bucket::directory(url.as_ref());
        Ok(Bucket { host: dir.map(HostDisk::unlocked).transpose()?.map(Arc::new), ..bucket })
    }

    /// The place that `objects` are, for tests: they are not patient.
    #[doc(hidden)]
    pub fn over(objects: Arc<dyn object_store::ObjectStore>) -> Bucket {
        Bucket { retries: 3, ..Bucket::patient(objects) }
    }

    /// The place that `objects` are, for tests, as patient as one that a URL names.
    #[doc(hidden)]
    pub fn over_patiently(objects: Arc<dyn object_store::ObjectStore>) -> Bucket {
        Bucket::patient(objects)
    }

    fn stop(&self) -> Arc<Stop> {
        Arc::new(Stop::over(self.line.clone()))
    }

    /// Waits for `work`, as long as something is heard of the object store now and then.
    ///
    /// # Errors
    /// Errors of `work`; [`StoreError::Failed`] when nothing is heard.
    fn wait<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.stop().wait(work)
    }

    fn patient(objects: Objects) -> Bucket {
        let line = Arc::new(StoreLine::default());
        let objects: Objects = Arc::new(LineObjects { objects, line: line.clone() });
        let opened = Arc::new(Mutex::with_class(&TRAFFIC, TrafficRecorders::default()));
        Bucket {
            stored: objects.clone(),
            objects,
            cipher: None,
            host: None,
            line,
            retries: RETRIES,
            pace: ClaimPace::default(),
            cache: None,
            opened,
        }
    }

    /// The bucket with a cache on this machine's disk, for the stores that are opened from then on.
    #[must_use]
    pub fn with_cache(self, cache: DiskCache) -> Bucket {
        Bucket { cache: Some(cache), ..self }
    }

    /// The bucket with its encrypted store, which `key` opens. [`create`](Self::create), [`open`](Self::open) and [`look`](Self::look) do the
    /// same with the key of their options.
    ///
    /// # Errors
    /// [`StoreError::WrongKey`]; [`StoreError::NotEncrypted`]; errors of [`info`](Self::info).
    pub fn unlocked(&self, key: &StoreKey) -> Result<Bucket, StoreError> {
        let (_, keys) = self.wait(self.read_keys())?;
        Ok(self.with_cipher(Arc::new(keys.unlock(key)?)))
    }

    fn with_cipher(&self, cipher: Arc<Cipher>) -> Bucket {
        let objects = sealed(&self.stored, Some(&cipher));
        Bucket { objects, cipher: Some(cipher), ..self.clone() }
    }

    /// The bucket as `options` open its store.
    fn with_key_of(&self, options: &Options) -> Result<Bucket, StoreError> {
        options.key.as_ref().map_or_else(|| Ok(self.clone()), |key| self.unlocked(key))
    }

    async fn read_keys(&self) -> Result<(Info, KeyFile), StoreError> {
        let (super_path, keys_path) = (Path::from(SUPER), Path::from(KEYS));
        let both = join(objects::get(&self.stored, &super_path), objects::get(&self.stored, &keys_path));
        let (found, keys) = both.await;
        let info = Info::decode(&found?.ok_or(StoreError::NotAStore)?)?;
        let keys = KeyFile::of_store(info.key_id, keys?.as_deref())?;
        Ok((info, keys))
    }

    /// The slots of the encrypted store that are used.
    ///
    /// # Errors
    /// [`StoreError::NotEncrypted`]; errors of [`info`](Self::info).
    pub fn keys(&self) -> Result<Vec<KeySlot>, StoreError> {
        self.wait(self.read_keys()).map(|(_, keys)| keys.slots())
    }

    /// Changes the keys that open the store, which nobody else may have open. The store itself stays as it is.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::Claimed`]; those of `change`; errors of [`keys`](Self::keys).
    pub fn change_keys<T>(
        &self,
        change: impl FnOnce(&mut KeyFile) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let stop = self.stop();
        stop.wait(self.read_keys())?;
        let owner = stop.wait(owner::claim(&self.stored, Claim::Alone, self.pace, &|_| ()))?;
        let changed = stop.wait(async {
            // As they are since nobody else changes them.
            let (_, mut keys) = self.read_keys().await?;
            let done = change(&mut keys)?;
            objects::put(&self.stored, &Path::from(KEYS), keys.encode().to_vec()).await?;
            Ok(done)
        });
        stop.wait(async {
            owner.close(&self.stored, 0).await;
            Ok(())
        })?;
        changed
    }

    /// Requests of the store that was opened last by way of this value or a clone, since then.
    pub fn traffic(&self) -> Traffic {
        let opened = self.opened.lock().clone();
        opened.sum()
    }

    /// With a claim that is renewed every `beat`, and stands still for four times that when its process is dead, for tests.
    #[doc(hidden)]
    pub fn with_beat(self, beat: Duration) -> Bucket {
        Bucket { pace: ClaimPace::of(beat), ..self }
    }

    /// Makes a store and opens it, alone. The object store must pass a race of conditional writes first.
    ///
    /// # Errors
    /// [`StoreError::Exists`]; [`StoreError::Io`] with `Unsupported` if the object store cannot be trusted, with
    /// `DirectoryNotEmpty` if there is something that is no store; the object store's: the next call removes what was made by then.
    pub fn create(&self, options: Options) -> Result<Store, StoreError> {
        match self.info() {
            Err(StoreError::NotAStore) => self.begin_making()?,
            Err(error) => return Err(error),
            Ok(info) => {
                // The store must be of the kind that the options ask for.
                if info.is_compressed != options.compress || info.key_id.is_some() != options.key.is_some() {
                    return Err(StoreError::Exists);
                }
                let unlocked = self.with_key_of(&options).map_err(|error| match error {
                    StoreError::WrongKey => StoreError::Exists,
                    error => error,
                })?;
                return unlocked.open_without_records(options);
            }
        }
        let free = match &self.host {
            Some(host) => host.free_bytes().map_err(|error| StoreError::Io("ask for free room", error))?,
            None => u64::MAX,
        };
        let log_size = options.log_size.min(free / LOG_SHARE);
        let options = options.log_size(log_size);
        let keys = options.key.as_ref().map(KeyFile::new).transpose()?;
        let info = Info::of_new(&options, keys.as_ref().map(|(keys, _)| keys.id()))?;
        let race = || self.wait(race::accept(&self.objects, &format!("race-{}", hexadecimal(&info.uuid))));
        let raced = match race() {
            Err(StoreError::Io(what, error)) if error.kind() == std::io::ErrorKind::Unsupported => {
                Err(StoreError::Io(what, error))
            }
            raced => Ok(raced?),
        };
        // One of two processes gets the claim; it removes what a killed process left, and the objects of the other's race.
        let mut owner = self.wait(owner::claim(&self.objects, Claim::Alone, self.pace, &|_| ()))?;
        // The pushes of an unfinished store are removed.
        owner.pushes = 0;
        let is_free = match self.info() {
            Err(StoreError::NotAStore) => raced.or_else(|_| race()),
            // Made and closed since this call looked.
            _ => Err(StoreError::Exists),
        };
        if let Err(error) = is_free {
            self.wait(async {
                owner.close(&self.objects, 0).await;
                Ok(())
            })?;
            return Err(error);
        }
        self.wait(self.remove_all_but([&owner.path(), &Path::from(UNFINISHED)]))?;
        let store = match keys {
            Some((keys, cipher)) => {
                self.wait(objects::put(&self.stored, &Path::from(KEYS), keys.encode().to_vec()))?;
                self.with_cipher(Arc::new(cipher)).open_as(owner, &info, options)?
            }
            None => self.open_as(owner, &info, options)?,
        };
        // Without `super` it is no store: so it comes when all else is whole.
        if !self.wait(objects::create(&self.objects, &Path::from(SUPER), &info.encode()))? {
            return Err(StoreError::Exists);
        }
        self.wait(objects::delete(&self.objects, &Path::from(UNFINISHED)))?;
        Ok(store)
    }

    /// Opens the store. Older owners of the store are fenced: their pushes fail.
    ///
    /// # Errors
    /// [`StoreError::Superseded`] if a node has opened it that is newer; [`StoreError::InUse`], [`StoreError::Claimed`], see [`Claim`];
    /// [`StoreError::NotAStore`], [`StoreError::NewerFormat`], [`StoreError::Damaged`]; the object store's.
    pub fn open(&self, claim: Claim, options: Options) -> Result<Store, StoreError> {
        self.open_telling(claim, options, &|_| ())
    }

    /// Opens the store, as [`open`](Self::open) does. If it must wait to learn whether the process that has the store lives, it
    /// first calls `waits` once, with the error for a living one.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open).
    pub fn open_telling(
        &self,
        claim: Claim,
        options: Options,
        waits: &dyn Fn(&StoreError),
    ) -> Result<Store, StoreError> {
        let bucket = self.with_key_of(&options)?;
        let claimed = async {
            let info = bucket.read_usable().await?;
            Ok((info, owner::claim(&bucket.objects, claim, bucket.pace, waits).await?))
        };
        let both = bucket.wait(async { Ok(join(claimed, gaps::check(&bucket.objects)).await) });
        let (claimed, checked) = both?;
        let (info, owner) = claimed?;
        checked?;
        bucket.open_as(owner, &info, options)
    }

    fn open_as(&self, owner: Owner, info: &Info, options: Options) -> Result<Store, StoreError> {
        let opening = self.opening(info)?;
        let records = Records::open(&self.objects, owner, opening.clone())?;
        let data = self.data(info, &opening, Some(records.epoch()), records.stop())?;
        Store::over(Box::new(records), data, of_store(info, options))
    }

    /// Opens the store, alone, and gives up all changes behind the first push that is lost.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open).
    pub fn open_without_lost(&self, options: Options) -> Result<Store, StoreError> {
        let bucket = self.with_key_of(&options)?;
        let claimed = async {
            let info = bucket.read_usable().await?;
            let mut owner = owner::claim(&bucket.objects, Claim::Alone, bucket.pace, &|_| ()).await?;
            gaps::cut_off(&bucket.objects).await?;
            // Earlier owners told of pushes that are lost.
            owner.pushes = 0;
            Ok((info, owner))
        };
        let (info, owner) = bucket.wait(claimed)?;
        bucket.open_as(owner, &info, options)
    }

    /// Opens the store to be looked at: nobody is fenced, and what is changed reaches nothing. Later writes of other
    /// nodes may show or not.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open), without the first three.
    pub fn look(&self, options: Options) -> Result<Store, StoreError> {
        let bucket = self.with_key_of(&options)?;
        let info = bucket.wait(bucket.read_usable())?;
        let opening = bucket.opening(&info)?;
        let records = Looking::open(&bucket.objects, &opening)?;
        let data = bucket.data(&info, &opening, None, bucket.stop())?;
        Store::over(Box::new(records), data, of_store(&info, options))
    }

    /// Shows each record of the store to `look`, which is not changed, and tells what is damaged.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], [`StoreError::NewerFormat`]; [`StoreError::Locked`], see [`unlocked`](Self::unlocked); the object store's.
    /// Damage in the store is a finding, not an error.
    pub fn check(
        &self,
        look: &mut dyn Look,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Report, StoreError> {
        if let Err(error @ StoreError::Locked) = self.wait(self.read_usable()) {
            return Err(error);
        }
        let lost = Cell::new(None);
        let open = || -> Result<Box<dyn Engine>, StoreError> {
            let (records, what) = Looking::open_damaged(&self.objects, &self.opening(&self.info()?)?)?;
            lost.set(what);
            Ok(Box::new(records))
        };
        // The check reports an error here as a finding.
        let data = self.info().and_then(|info| {
            let disk = self.data(&info, &self.opening(&info)?, None, self.stop())?;
            Ok(disk.map(|disk| (disk, info.segment_size)))
        });
        let mut report = Store::check_over(open, data.unwrap_or_default(), look, progress)?;
        if let Some(lost) = lost.take() {
            report.find(Gravity::Damage, lost.to_string());
        }
        Ok(report)
    }

    /// The store's own description. The store may be in use.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], [`StoreError::NewerFormat`], [`StoreError::Damaged`]; the object store's.
    pub fn info(&self) -> Result<Info, StoreError> {
        self.wait(self.read_info())
    }

    async fn read_info(&self) -> Result<Info, StoreError> {
        let bytes = objects::get(&self.objects, &Path::from(SUPER)).await?;
        Info::decode(&bytes.ok_or(StoreError::NotAStore)?)
    }

    /// The description of a store that can be read.
    async fn read_usable(&self) -> Result<Info, StoreError> {
        let info = self.read_info().await?;
        match (info.key_id, &self.cipher) {
            (Some(_), None) => Err(StoreError::Locked),
            (None, Some(_)) => Err(StoreError::NotEncrypted),
            (Some(id), Some(cipher)) if id != cipher.id() => Err(StoreError::WrongKey),
            _ => Ok(info),
        }
    }

    /// Bytes that all objects of the store take.
    ///
    /// # Errors
    /// The object store's.
    pub fn size(&self) -> Result<u64, StoreError> {
        self.wait(objects::size(&self.objects))
    }

    /// The greatest epoch in which the store was opened; 0: in none.
    ///
    /// # Errors
    /// The object store's.
    pub fn newest_epoch(&self) -> Result<u64, StoreError> {
        self.wait(owner::newest(&self.objects))
    }

    /// The process that has the store open, if one has, as an error for one that wants the store: [`StoreError::InUse`] for one of
    /// this machine, [`StoreError::Claimed`] for one elsewhere, which may have died.
    ///
    /// # Errors
    /// The object store's.
    pub fn user(&self) -> Result<Option<StoreError>, StoreError> {
        self.wait(owner::user(&self.objects))
    }

    /// How the store `info` is opened. Its part of the cache is its owner's alone: contents of files are in it.
    fn opening(&self, info: &Info) -> Result<Opening, StoreError> {
        let cache = |part: &str, share: u64| -> Result<Option<DiskCache>, StoreError> {
            let Some(DiskCache { dir, bytes }) = &self.cache else { return Ok(None) };
            let dir = dir.join(hexadecimal(&info.uuid)).join(part);
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
            made.map_err(|error| StoreError::Io("make the directory of the cache", error))?;
            Ok(Some(DiskCache { dir, bytes: bytes / (CACHE_RECORDS + CACHE_DATA) * share }))
        };
        let recorders = TrafficRecorders::default();
        *self.opened.lock() = recorders.clone();
        let records = match cache("records", CACHE_RECORDS)? {
            Some(cache) => self.wait(cached(self.stored.clone(), &cache, &recorders.records))?,
            None => self.stored.clone(),
        };
        // The cache has what is stored.
        let records = sealed(&records, self.cipher.as_ref());
        Ok(Opening {
            line: self.line.clone(),
            retries: self.retries,
            pace: self.pace,
            records,
            recorders,
            data_cache: cache("data", CACHE_DATA)?,
        })
    }

    /// The segments of the store `info`, for the owner in `epoch` or to be looked at; a store of an early version has none.
    fn data(
        &self,
        info: &Info,
        opening: &Opening,
        epoch: Option<u64>,
        stop: Arc<Stop>,
    ) -> Result<Option<Arc<dyn Disk>>, StoreError> {
        if info.segment_size == 0 {
            return Ok(None);
        }
        let counted: Objects = Arc::new(CountedObjects::new(self.stored.clone(), &opening.recorders.data));
        let objects = match &opening.data_cache {
            Some(cache) => self.wait(cached(counted, cache, &opening.recorders.data))?,
            None => counted,
        };
        let data = DataDisk::new(objects, epoch, info.segment_size, self.retries, stop);
        let data = data.encrypted(self.cipher.clone());
        Ok(Some(Arc::new(match &self.host {
            Some(host) => data.on_host(host.clone(), info.log_size),
            None => data,
        })))
    }

    /// Opens a store whose maker was killed before it wrote a record.
    fn open_without_records(&self, options: Options) -> Result<Store, StoreError> {
        let must_have_none = |store: Store| {
            let mut has_records = false;
            store.scan(&[], &[u8::MAX; 32], &mut |_, _| {
                has_records = true;
                false
            })?;
            if has_records { Err(StoreError::Exists) } else { Ok(store) }
        };
        drop(must_have_none(self.look(options.clone())?)?);
        // A living maker is in the way.
        must_have_none(self.open(Claim::Alone, options)?)
    }

    /// Marks the place as a store that is being made. Objects from before must carry this mark.
    fn begin_making(&self) -> Result<(), StoreError> {
        self.wait(async {
            let unfinished = Path::from(UNFINISHED);
            let found = self.objects.list_with_delimiter(None).await;
            let found = found.map_err(of_objects("look whether there is something"))?;
            let is_empty = found.objects.is_empty() && found.common_prefixes.is_empty();
            if !is_empty && objects::get(&self.objects, &unfinished).await?.is_none() {
                // Another process may have made the store between these looks.
                if objects::get(&self.objects, &Path::from(SUPER)).await?.is_some() {
                    return Err(StoreError::Exists);
                }
                let text = "there are objects that are no store (give another address)";
                let kind = std::io::ErrorKind::DirectoryNotEmpty;
                return Err(StoreError::Io("make a store here", std::io::Error::new(kind, text)));
            }
            // Another mkfs may create or remove the marker at the same time.
            objects::create(&self.objects, &unfinished, b"a store is being made here\n").await.map(drop)
        })
    }

    /// Removes each object of the store that is being made, except those in `kept`.
    async fn remove_all_but(&self, kept: [&Path; 2]) -> Result<(), StoreError> {
        for path in objects::paths(&self.objects).await?.iter().filter(|path| !kept.contains(path)) {
            objects::delete(&self.objects, path).await?;
        }
        Ok(())
    }
}

/// The object that says that a store is being made: as long as there is no `super`, all objects beside it may be removed.
const UNFINISHED: &str = "mkfs-unfinished";

/// `options` with what the store `info` was made with. Its data are written by pushes, which come one at a time.
fn of_store(info: &Info, options: Options) -> Options {
    let mut options = options.log_size(info.log_size).segment_size(info.segment_size).format(info.version);
    // The records are decrypted by the bucket, and the data by its disk.
    options.key = None;
    options.compress(info.is_compressed).open_segments(1)
}

/// `objects` as they would be without encryption.
fn sealed(objects: &Objects, cipher: Option<&Arc<Cipher>>) -> Objects {
    match cipher {
        Some(cipher) => Arc::new(SealedObjects::new(objects.clone(), cipher.clone())),
        None => objects.clone(),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
