//! Sealed: the objects with the records of an encrypted store, which nobody reads, changes or exchanges unseen without the key.
//!
//! # Theory
//! SlateDB reads and writes objects as they would be without encryption. Each is stored as a row of *pieces*:
//! ```text
//!   0    16                       16400    16416
//!   | id | 16 KiB, encrypted      | tag    | id | ...  | tag | id | the rest, encrypted | tag |
//! ```
//! The last piece is shorter than the others, and may be without content: so an object that was cut between two pieces is found. A
//! piece is encrypted by itself, and a part of an object is read without the rest. Its nonce is the `id`, which is drawn for each
//! object that is written, and the piece's number. The path of the object is authenticated with each piece, and the pieces of one answer have one
//! `id`: so neither an object nor a piece stands for another.
//!
//! SlateDB itself could encrypt blocks. But it leaves the first key of each object, which holds a name, and its list of objects in the clear,
//! and does not bind a block to its place.
//!
//! SlateDB takes an object without bytes for an empty push, and does not read it: so one that seems to have none is read here.
//!
//! Objects outside `records/` pass as they are: data are encrypted by the store, and claims, `super` and `keys` are for everybody.
//!
//! # Clients must
//! - put a cache below, so that it has what is stored; a copy in it that is damaged is fetched anew once.

use crate::layout::RECORDS;
use crate::objects::Objects;
use crate::reason::{Unsealed, is_unsealed};
use futures_util::future::{join_all, try_join_all};
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use slatedb::bytes::Bytes;
use slatedb::object_store_tag::{ObjectStoreCallTag, RetryReason};
use slatedb_common::retry::NonRetryable;
use sluice_store::{Cipher, ID, TAG};
use sluice_sync::Arc;
use std::ops::Range;
use std::{fmt, io};

/// Bytes of an object in one piece.
const PIECE: u64 = 16 << 10;
/// Bytes beside them.
const BESIDE: u64 = (ID + TAG) as u64;
/// Bytes of a whole piece as it is stored.
const STORED: u64 = PIECE + BESIDE;
/// Whole pieces of a part of an upload. S3 takes no smaller parts than 5 MiB, except for the last.
const UPLOADED: u64 = 512;

/// An object store whose records are encrypted in another one.
#[derive(Clone)]
pub(crate) struct SealedObjects {
    objects: Objects,
    cipher: Arc<Cipher>,
}

fn unsealed(at: &Path) -> Error {
    failed(NonRetryable(Box::new(Unsealed(at.to_string()))))
}

fn failed(source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic { store: "sealed", source: Box::new(source) }
}

fn is_sealed(at: &Path) -> bool {
    at.prefix_matches(&Path::from(RECORDS))
}

/// Bytes of the object that is stored in so many; None: no object is.
fn opened_size(stored: u64) -> Option<u64> {
    let rest = (stored % STORED).checked_sub(BESIDE)?;
    Some(stored / STORED * PIECE + rest)
}

/// The bytes in which the bytes `of` an object are stored. The end may lie behind that of the object.
fn stored_range(of: &Range<u64>) -> Range<u64> {
    of.start / PIECE * STORED..of.end.div_ceil(PIECE) * STORED
}

impl SealedObjects {
    pub(crate) fn new(objects: Objects, cipher: Arc<Cipher>) -> SealedObjects {
        SealedObjects { objects, cipher }
    }

    /// An object or its part from its first byte on, as it is stored: whole pieces, and, if it is `whole`, the last.
    fn seal(&self, at: &Path, sealer: &mut Sealer, bytes: &mut Vec<u8>, whole: bool) -> Result<Vec<u8>> {
        let rest = if whole { 0 } else { bytes.len() % PIECE as usize };
        let rest = bytes.split_off(bytes.len() - rest);
        let mut stored =
            Vec::with_capacity(bytes.len() + (bytes.len() / PIECE as usize + 1) * BESIDE as usize);
        let last = if whole { bytes.len() / PIECE as usize + 1 } else { bytes.len() / PIECE as usize };
        for number in 0..last {
            let from = number * PIECE as usize;
            let piece = &bytes[from..bytes.len().min(from + PIECE as usize)];
            stored.extend_from_slice(&sealer.id);
            let start = stored.len();
            stored.extend_from_slice(piece);
            let about = at.as_ref().as_bytes();
            let tag = self.cipher.seal_object(&sealer.id, sealer.next, about, &mut stored[start..]);
            stored.extend_from_slice(&tag.map_err(failed)?);
            sealer.next += 1;
        }
        *bytes = rest;
        Ok(stored)
    }

    /// The pieces from `first` on, of an object whose last byte is stored before `end`.
    fn open(&self, at: &Path, first: u64, stored: Bytes) -> Option<Vec<u8>> {
        let id: &[u8; ID] = stored.first_chunk()?;
        let mut opened = Vec::with_capacity(stored.len());
        for (number, piece) in (first..).zip(stored.chunks(STORED as usize)) {
            let (of, rest) = piece.split_first_chunk::<ID>()?;
            let (content, tag) = rest.split_last_chunk::<TAG>()?;
            let start = opened.len();
            opened.extend_from_slice(content);
            let about = at.as_ref().as_bytes();
            if of != id || !self.cipher.open_object(id, number, about, &mut opened[start..], tag) {
                return None;
            }
        }
        Some(opened)
    }

    async fn head(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let mut found = self.objects.get_opts(at, options.clone()).await?;
        found.meta.size = opened_size(found.meta.size).ok_or_else(|| unsealed(at))?;
        found.range = 0..found.meta.size;
        if found.meta.size == 0 {
            Box::pin(self.get(at, GetOptions { head: false, ..options })).await?;
        }
        Ok(found)
    }

    /// The meta of a listed object, as it would be without encryption. A damaged object is not shown as empty, so that it is read.
    async fn listed(self, mut meta: ObjectMeta) -> ObjectMeta {
        if is_sealed(&meta.location) {
            meta.size = opened_size(meta.size).unwrap_or(1);
            if meta.size == 0 {
                let is_whole = self.get(&meta.location, GetOptions::default()).await.is_ok();
                meta.size = u64::from(!is_whole);
            }
        }
        meta
    }

    async fn get(&self, at: &Path, mut options: GetOptions) -> Result<GetResult> {
        let wanted = match options.range.take() {
            Some(GetRange::Suffix(len)) => {
                let size = self.head(at, GetOptions { head: true, ..options.clone() }).await?.meta.size;
                size.saturating_sub(len)..size
            }
            Some(GetRange::Offset(start)) => start..u64::MAX,
            Some(GetRange::Bounded(range)) => range,
            None => 0..u64::MAX,
        };
        let refused = || failed(io::Error::from(io::ErrorKind::InvalidInput));
        options.range = match &wanted {
            Range { start: 0, end: u64::MAX } => None,
            Range { start, end: u64::MAX } => Some(GetRange::Offset(start / PIECE * STORED)),
            range if range.is_empty() => return Err(refused()),
            range => Some(GetRange::Bounded(stored_range(range))),
        };
        let found = self.objects.get_opts(at, options).await?;
        let (range, attributes, extensions) =
            (found.range.clone(), found.attributes.clone(), found.extensions.clone());
        let size = opened_size(found.meta.size).ok_or_else(|| unsealed(at))?;
        let meta = ObjectMeta { size, ..found.meta.clone() };
        let stored = found.bytes().await?;
        if stored.len() as u64 != range.end - range.start {
            return Err(failed(io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        let first = range.start / STORED;
        let opened = self.open(at, first, stored).ok_or_else(|| unsealed(at))?;
        // The last piece shows that the object ends there.
        if wanted.start >= size.max(1) {
            return Err(refused());
        }
        let range = wanted.start..wanted.end.min(size);
        let here = range.start - first * PIECE..range.end - first * PIECE;
        if here.end > opened.len() as u64 {
            return Err(unsealed(at));
        }
        let part = Bytes::from(opened).slice(here.start as usize..here.end as usize);
        let payload = GetResultPayload::Stream(stream::once(async { Ok(part) }).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }
}

/// The nonces of an object that is being written.
struct Sealer {
    id: [u8; ID],
    /// The number of the next piece.
    next: u64,
}

impl Sealer {
    fn new() -> Result<Sealer> {
        Ok(Sealer { id: Cipher::draw_id().map_err(failed)?, next: 0 })
    }
}

fn flat(payload: &PutPayload) -> Vec<u8> {
    payload.iter().flat_map(|part| part.iter().copied()).collect()
}

#[async_trait::async_trait]
impl ObjectStore for SealedObjects {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        if !is_sealed(at) {
            return self.objects.put_opts(at, payload, options).await;
        }
        let stored = self.seal(at, &mut Sealer::new()?, &mut flat(&payload), true)?;
        self.objects.put_opts(at, stored.into(), options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.objects.put_multipart_opts(at, options).await?;
        if !is_sealed(at) {
            return Ok(upload);
        }
        let objects = SealedObjects::new(self.objects.clone(), self.cipher.clone());
        Ok(Box::new(SealedUpload {
            objects,
            at: at.clone(),
            upload,
            sealer: Sealer::new()?,
            rest: Vec::new(),
        }))
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        if !is_sealed(at) {
            return self.objects.get_opts(at, options).await;
        }
        if options.head {
            return self.head(at, options).await;
        }
        match self.get(at, options.clone()).await {
            Err(error) if is_unsealed(&error) => {
                let Some(mut tag) = ObjectStoreCallTag::from_extensions(&options.extensions) else {
                    return Err(error);
                };
                // Past the copy in a cache.
                tag.retry = Some(RetryReason::CrcMismatch);
                self.get(at, GetOptions { extensions: tag.into(), ..options }).await
            }
            done => done,
        }
    }

    fn delete_stream(&self, at: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let sealed = self.clone();
        let listed = move |found: Result<ObjectMeta>| {
            let sealed = sealed.clone();
            async move { Ok(sealed.listed(found?).await) }
        };
        self.objects.list(prefix).then(listed).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut found = self.objects.list_with_delimiter(prefix).await?;
        let listed = found.objects.into_iter().map(|one| self.clone().listed(one));
        found.objects = join_all(listed).await;
        Ok(found)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        if is_sealed(from) || is_sealed(to) {
            // A copy would bear the path of the first.
            return Err(Error::NotImplemented { operation: "copy".into(), implementer: self.to_string() });
        }
        self.objects.copy_opts(from, to, options).await
    }
}

/// An object that is sent in parts. All but the last have one size.
struct SealedUpload {
    objects: SealedObjects,
    at: Path,
    upload: Box<dyn MultipartUpload>,
    sealer: Sealer,
    /// Bytes that are not sent yet.
    rest: Vec<u8>,
}

#[async_trait::async_trait]
impl MultipartUpload for SealedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        const PART: usize = (UPLOADED * PIECE) as usize;
        self.rest.extend(flat(&data));
        let mut parts = Vec::new();
        while self.rest.len() >= PART {
            let later = self.rest.split_off(PART);
            let mut part = std::mem::replace(&mut self.rest, later);
            match self.objects.seal(&self.at, &mut self.sealer, &mut part, false) {
                Ok(stored) => parts.push(self.upload.put_part(stored.into())),
                Err(error) => return async { Err(error) }.boxed(),
            }
        }
        try_join_all(parts).map(|sent| sent.map(drop)).boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let last = self.objects.seal(&self.at, &mut self.sealer, &mut self.rest, true)?;
        self.upload.put_part(last.into()).await?;
        self.upload.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

impl fmt::Debug for SealedUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.upload.fmt(f)
    }
}

impl fmt::Debug for SealedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}

impl fmt::Display for SealedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::wait;
    use object_store::memory::InMemory;
    use object_store::{ObjectStoreExt, WriteMultipart};
    use sluice_store::{KeyFile, StoreError, StoreKey};
    use sluice_sync::random::Random;

    fn sealed() -> (Objects, Objects) {
        let key = StoreKey::file(vec![1; 32]).expect("long enough");
        let (_, cipher) = KeyFile::new(&key).expect("random bytes");
        let stored: Objects = Arc::new(InMemory::new());
        (Arc::new(SealedObjects::new(stored.clone(), Arc::new(cipher))), stored)
    }

    fn done<T>(work: impl Future<Output = T>) -> T {
        wait(async { Ok::<_, StoreError>(work.await) }).expect("threads")
    }

    #[test]
    fn each_part_of_a_sealed_object_reads_as_it_was_written() {
        const P: usize = PIECE as usize;
        let (objects, stored) = sealed();
        let mut random = Random::new(7);
        for len in [0, 1, 1000, P - 1, P, P + 1, 3 * P, 5 * P + 77] {
            let bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
            let at = Path::from(format!("records/{len}"));
            done(objects.put(&at, bytes.clone().into())).expect("memory");
            let below = done(stored.head(&at)).expect("memory").size;
            assert_eq!(below, (len + (len / P + 1) * BESIDE as usize) as u64);
            assert_eq!(opened_size(below), Some(len as u64));
            assert_eq!(done(objects.head(&at)).expect("memory").size, len as u64);
            let all = done(async { objects.get(&at).await?.bytes().await });
            assert!(all.expect("memory") == bytes);
            let ends = [1, 16, P - 1, P, P + 1, 2 * P].map(|end| end.min(len));
            let ranges = (0..60).map(|_| random.below(len + 1)..random.below(len + 2 * P));
            for range in ends
                .into_iter()
                .map(|end| 0..end)
                .chain(ranges)
                .filter(|range| range.start < range.end.min(len))
            {
                let read =
                    done(objects.get_range(&at, range.start as u64..range.end as u64)).expect("within");
                assert!(read == bytes[range.start..range.end.min(len)], "{range:?} of {len}");
                for wanted in
                    [GetRange::Offset(range.start as u64), GetRange::Suffix((len - range.start) as u64)]
                {
                    let options = GetOptions { range: Some(wanted.clone()), ..GetOptions::default() };
                    let found = done(objects.get_opts(&at, options)).expect("within");
                    assert_eq!(found.range, range.start as u64..len as u64);
                    assert!(
                        done(found.bytes()).expect("memory") == bytes[range.start..],
                        "{wanted:?} of {len}"
                    );
                }
            }
            assert!(done(objects.get_range(&at, len as u64..len as u64 + 1)).is_err() || len == 0);
        }
        let listed = done(objects.list_with_delimiter(Some(&"records".into()))).expect("memory").objects;
        assert!(listed.iter().all(|one| one.location.filename() == Some(&one.size.to_string())));
        assert!(done(objects.copy(&"records/1".into(), &"records/2".into())).is_err());
    }

    #[test]
    fn other_objects_pass_as_they_are() {
        let (objects, stored) = sealed();
        done(objects.put(&"super".into(), b"plain"[..].into())).expect("memory");
        let read = done(async { stored.get(&"super".into()).await?.bytes().await }).expect("memory");
        assert_eq!(read, &b"plain"[..]);
    }

    #[test]
    fn an_upload_in_parts_is_the_same_object_and_its_parts_have_one_size() {
        let (objects, stored) = sealed();
        let mut random = Random::new(3);
        for len in [0, 1, 9 << 20, 16 << 20, (20 << 20) + 5] {
            let bytes: Vec<u8> = (0..len).map(|at: usize| (at / 7) as u8).collect();
            let at = Path::from(format!("records/{len}"));
            let sent = async {
                let mut upload =
                    WriteMultipart::new_with_chunk_size(objects.put_multipart(&at).await?, 10 << 20);
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let (now, later) = rest.split_at(rest.len().min(1 + random.below(3 << 20)));
                    upload.write(now);
                    rest = later;
                }
                upload.finish().await
            };
            done(sent).expect("memory");
            let read = done(async { objects.get(&at).await?.bytes().await }).expect("memory");
            assert!(read == bytes, "{len} bytes");
            let below = done(stored.head(&at)).expect("memory").size;
            assert_eq!(below, (len + (len / PIECE as usize + 1) * BESIDE as usize) as u64);
        }
    }

    #[test]
    fn a_piece_of_another_object_a_cut_one_and_a_flipped_bit_are_found() {
        let (objects, stored) = sealed();
        let place = |name: &str| Path::from(format!("records/{name}"));
        let put = |name: &str, byte: u8| {
            done(objects.put(&place(name), vec![byte; 40_000].into())).expect("memory")
        };
        put("one", 1);
        put("two", 2);
        let raw = |name: &str| {
            done(async { stored.get(&place(name)).await?.bytes().await }).expect("memory").to_vec()
        };
        let (one, two) = (raw("one"), raw("two"));
        put("one", 3);
        let again = raw("one");
        let read = |bytes: Vec<u8>| {
            done(stored.put(&place("one"), bytes.into())).expect("memory");
            done(async { objects.get(&place("one")).await?.bytes().await })
        };
        let piece = STORED as usize;
        assert!(read(one.clone()).expect("as written") == vec![1; 40_000]);
        let mixed = [&one[..piece], &again[piece..]].concat();
        let mut bad = vec![two, mixed, [&one[..piece], &one[..piece], &one[2 * piece..]].concat()];
        bad.extend(
            [0, 1, 31, 32, piece - 1, piece, piece + 31, piece + 32, 2 * piece, one.len() - 1]
                .map(|len| one[..len].to_vec()),
        );
        bad.push([&one[..], &[0]].concat());
        bad.extend((0..one.len()).step_by(997).map(|at| {
            let mut flipped = one.clone();
            flipped[at] ^= 1;
            flipped
        }));
        for (number, bytes) in bad.into_iter().enumerate() {
            let error = read(bytes).expect_err("it is not what was written");
            assert!(is_unsealed(&error), "{number}: {error}");
            let told = crate::error::of_objects("read")(error);
            assert!(matches!(told, StoreError::Damaged(_)), "{told}");
        }
    }
}
