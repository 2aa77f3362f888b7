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
use crate::traffic::{Traffic, TrafficRecorders};
use futures_util::future::join;
use object_store::path::Path;
use sluice_store::disk::{Disk, HostDisk};
use sluice_store::engine::Engine;
use sluice_store::{Gravity, Info, Look, Options, Progress, Report, Store, StoreError};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, LockClass, Mutex};
use std::cell::Cell;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;

static TRAFFIC: LockClass = LockClass::new("bucket.traffic");

/// The object that says what this is.
const SUPER: &str = "super";

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
    objects: Objects,
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
    /// Whether `store` is the address of a store in an object store, and not the path of a directory.
    pub fn is_url(store: &std::path::Path) -> bool {
        store.to_str().is_some_and(|text| text.contains("://"))
    }

    /// Whether `store` is an address with too few slashes or with capitals, such as `s3:/BUCKET/PATH`, and not meant as a directory: how it
    /// is spelt.
    ///
    /// ```
    /// # use std::path::Path;
    /// use sluice_bucket::Bucket;
    /// assert_eq!(Bucket::misspelt(Path::new("s3:/b/p")).as_deref(), Some("s3://b/p"));
    /// assert_eq!(Bucket::misspelt(Path::new("S3://b/p")).as_deref(), Some("s3://b/p"));
    /// assert_eq!(Bucket::misspelt(Path::new("file:p")).as_deref(), Some("file:///p"));
    /// assert_eq!(Bucket::misspelt(Path::new("s3://b/p")), None);
    /// assert_eq!(Bucket::misspelt(Path::new("./s3:/b")), None);
    /// ```
    pub fn misspelt(store: &std::path::Path) -> Option<String> {
        let (scheme, rest) = store.to_str()?.split_once(':')?;
        let is_small = !scheme.contains(|letter: char| letter.is_ascii_uppercase());
        let scheme = scheme.to_ascii_lowercase();
        let slashes = match scheme.as_str() {
            "s3" => "//",
            "file" => "///",
            _ => return None,
        };
        (!(is_small && rest.starts_with("//")))
            .then(|| format!("{scheme}:{slashes}{}", rest.trim_start_matches('/')))
    }

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
        let dir = url.strip_prefix("file://").map(std::path::Path::new);
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
    /// That of `work`; [`StoreError::Failed`] when nothing is heard.
    fn wait<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.stop().wait(work)
    }

    fn patient(objects: Objects) -> Bucket {
        let line = Arc::new(StoreLine::default());
        let objects: Objects = Arc::new(LineObjects { objects, line: line.clone() });
        let opened = Arc::new(Mutex::with_class(&TRAFFIC, TrafficRecorders::default()));
        Bucket {
            objects,
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
            Ok(_) => return self.open_without_records(options),
        }
        let free = match &self.host {
            Some(host) => host.free_bytes().map_err(|error| StoreError::Io("ask for free room", error))?,
            None => u64::MAX,
        };
        let log_size = options.log_size.min(free / LOG_SHARE);
        let options = options.log_size(log_size);
        let info = Info::of_new(&options)?;
        self.wait(race::accept(&self.objects, &format!("race-{}", hexadecimal(&info.uuid))))?;
        // One of two processes gets the claim; it removes what a killed process left.
        let mut owner = self.wait(owner::claim(&self.objects, Claim::Alone, self.pace, &|_| ()))?;
        // The pushes of an unfinished store are removed.
        owner.pushes = 0;
        if !matches!(self.info(), Err(StoreError::NotAStore)) {
            // Made and closed since this call looked.
            self.wait(async {
                owner.close(&self.objects, 0).await;
                Ok(())
            })?;
            return Err(StoreError::Exists);
        }
        self.wait(self.remove_all_but([&owner.path(), &Path::from(UNFINISHED)]))?;
        let store = self.open_as(owner, &info, options)?;
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

    /// As [`open`](Self::open). When it has to wait until it is known whether the process that has the store lives, `waits` is called
    /// once, with the error that would come of a living one.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open).
    pub fn open_telling(
        &self,
        claim: Claim,
        options: Options,
        waits: &dyn Fn(&StoreError),
    ) -> Result<Store, StoreError> {
        let claimed = async {
            let info = self.read_info().await?;
            Ok((info, owner::claim(&self.objects, claim, self.pace, waits).await?))
        };
        let (claimed, checked) = self.wait(async { Ok(join(claimed, gaps::check(&self.objects)).await) })?;
        let (info, owner) = claimed?;
        checked?;
        self.open_as(owner, &info, options)
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
        let claimed = async {
            let info = self.read_info().await?;
            let mut owner = owner::claim(&self.objects, Claim::Alone, self.pace, &|_| ()).await?;
            gaps::cut_off(&self.objects).await?;
            // Earlier owners told of pushes that are lost.
            owner.pushes = 0;
            Ok((info, owner))
        };
        let (info, owner) = self.wait(claimed)?;
        self.open_as(owner, &info, options)
    }

    /// Opens the store to be looked at: nobody is fenced, and what is changed reaches nothing. Later writes of other
    /// nodes may show or not.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open), without the first three.
    pub fn look(&self, options: Options) -> Result<Store, StoreError> {
        let info = self.info()?;
        let opening = self.opening(&info)?;
        let records = Looking::open(&self.objects, &opening)?;
        let data = self.data(&info, &opening, None, self.stop())?;
        Store::over(Box::new(records), data, of_store(&info, options))
    }

    /// Shows each record of the store to `look`, which is not changed, and tells what is damaged.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], [`StoreError::NewerFormat`]; the object store's. Damage in the store is a finding,
    /// not an error.
    pub fn check(
        &self,
        look: &mut dyn Look,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Report, StoreError> {
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

    /// Bytes that all objects of the store take.
    ///
    /// # Errors
    /// The object store's.
    pub fn size(&self) -> Result<u64, StoreError> {
        self.wait(objects::size(&self.objects))
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
            Some(cache) => self.wait(cached(self.objects.clone(), &cache, &recorders.records))?,
            None => self.objects.clone(),
        };
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
        let counted: Objects = Arc::new(CountedObjects::new(self.objects.clone(), &opening.recorders.data));
        let objects = match &opening.data_cache {
            Some(cache) => self.wait(cached(counted, cache, &opening.recorders.data))?,
            None => counted,
        };
        let data = DataDisk::new(objects, epoch, info.segment_size, self.retries, stop);
        Ok(Some(Arc::new(match &self.host {
            Some(host) => data.on_host(host.clone(), info.log_size),
            None => data,
        })))
    }

    /// Opens a store whose maker was killed before it wrote a record. The store must be of the kind that `options` ask for.
    fn open_without_records(&self, options: Options) -> Result<Store, StoreError> {
        if self.info()?.is_compressed != options.compress {
            return Err(StoreError::Exists);
        }
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
    let options = options.log_size(info.log_size).segment_size(info.segment_size);
    options.compress(info.is_compressed).open_segments(1)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
