//! Anchored: a store in a directory whose requests fail once another directory, or none, has the path of the directory.
//!
//! # Theory
//! The objects of a `file://` address are files that are reached by path. Where somebody moves the directory, requests would make the
//! directories of the path anew, and put objects where no mount looks for them. So each request looks before and after it whether the path
//! still leads to the directory that was opened. A request that began in the right directory and ended there was carried out there: only a
//! directory that is moved away and back within one request escapes the look, and then a missing object is missing in both.

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use slatedb_common::retry::NonRetryable;
use sluice_sync::Arc;
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// A directory that was opened, and its path.
#[derive(Debug)]
pub(crate) struct Anchor {
    path: PathBuf,
    /// Keeps the number of its inode its own.
    directory: File,
}

impl Anchor {
    /// # Errors
    /// The system's.
    pub(crate) fn at(path: PathBuf) -> io::Result<Arc<Anchor>> {
        let directory = File::open(&path)?;
        Ok(Arc::new(Anchor { path, directory }))
    }

    /// Fails if the path leads elsewhere.
    fn check(&self) -> Result<()> {
        let identity = |about: Metadata| (about.dev(), about.ino());
        let there = std::fs::metadata(&self.path).map(identity).ok();
        if there.is_some() && there == self.directory.metadata().map(identity).ok() {
            return Ok(());
        }
        let text = format!(
            "the directory {} was moved or replaced: put it back, unmount, and mount again",
            self.path.display()
        );
        let source = Box::new(NonRetryable(Box::new(io::Error::other(text))));
        Err(Error::Generic { store: "directory", source })
    }

    /// The outcome of `request`, if it was carried out in the directory.
    async fn within<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.check()?;
        let outcome = request.await;
        self.check()?;
        outcome
    }

    /// `items`, which end with an error if they were not all found in the directory.
    fn items<T: Send + 'static>(
        self: &Arc<Anchor>,
        items: BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        if let Err(error) = self.check() {
            return stream::iter([Err(error)]).boxed();
        }
        let anchor = self.clone();
        let end = stream::once(async move { anchor.check() });
        items.chain(end.filter_map(async |checked| checked.err().map(Err))).boxed()
    }
}

/// The objects in a directory that may not be moved.
#[derive(Debug)]
pub(crate) struct AnchoredObjects {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) anchor: Arc<Anchor>,
}

impl fmt::Display for AnchoredObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}

#[async_trait::async_trait]
impl ObjectStore for AnchoredObjects {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.anchor.within(self.objects.put_opts(at, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.anchor.within(self.objects.put_multipart_opts(at, options)).await?;
        Ok(Box::new(AnchoredUpload { upload, anchor: self.anchor.clone() }))
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.anchor.within(self.objects.get_opts(at, options)).await
    }

    fn delete_stream(&self, at: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.anchor.items(self.objects.delete_stream(at))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.anchor.items(self.objects.list(prefix))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.anchor.within(self.objects.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.anchor.within(self.objects.copy_opts(from, to, options)).await
    }
}

/// An object that is written in parts.
#[derive(Debug)]
struct AnchoredUpload {
    upload: Box<dyn MultipartUpload>,
    anchor: Arc<Anchor>,
}

#[async_trait::async_trait]
impl MultipartUpload for AnchoredUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.upload.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.anchor.within(self.upload.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}
