//! Listed: the object store while records are opened.
//!
//! SlateDB looks for the end of its log by asking for one push after another, each a round trip. Here one list answers these questions.
//! The list may lack the newest pushes of an owner that still writes: SlateDB then finds the number of its own empty push taken, and takes
//! the next number.

use crate::gaps;
use crate::objects::Objects;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use sluice_store::StoreError;
use sluice_sync::{Arc, LockClass, Mutex};
use std::collections::HashMap;
use std::{fmt, io};

static LISTED: LockClass = LockClass::new("bucket.listed");

/// An object store that knows which pushes exist.
pub(crate) struct ListedObjects {
    objects: Objects,
    /// The list, until the records are open. *protected by its mutex, a leaf*
    pushes: Mutex<Option<PushList>>,
}

struct PushList {
    found: HashMap<Path, ObjectMeta>,
    /// This process has written no push since.
    is_whole: bool,
}

impl ListedObjects {
    /// `objects`, of which all pushes are listed now.
    ///
    /// # Errors
    /// The object store's.
    pub(crate) async fn of(objects: &Objects) -> Result<Arc<ListedObjects>, StoreError> {
        let found = gaps::list(objects).await?.into_iter().map(|one| (one.location.clone(), one)).collect();
        let pushes = Mutex::with_class(&LISTED, Some(PushList { found, is_whole: true }));
        Ok(Arc::new(ListedObjects { objects: objects.clone(), pushes }))
    }

    /// Forgets the list.
    pub(crate) fn forget(&self) {
        let list = self.pushes.lock().take();
        drop(list);
    }

    /// The answer to the question whether there is an object `at`, if the list has it.
    fn answer(&self, at: &Path, options: &GetOptions) -> Option<Result<GetResult>> {
        if !options.head || !gaps::is_push(at) {
            return None;
        }
        let pushes = self.pushes.lock();
        let list = pushes.as_ref()?;
        match list.found.get(at) {
            Some(meta) => Some(Ok(GetResult {
                payload: GetResultPayload::Stream(stream::empty().boxed()),
                range: 0..meta.size,
                meta: meta.clone(),
                attributes: Default::default(),
                extensions: Default::default(),
            })),
            None if list.is_whole => {
                let source = io::Error::from(io::ErrorKind::NotFound).into();
                Some(Err(Error::NotFound { path: at.to_string(), source }))
            }
            None => None,
        }
    }
}

#[async_trait::async_trait]
impl ObjectStore for ListedObjects {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        if gaps::is_push(at) {
            self.pushes.lock().iter_mut().for_each(|list| list.is_whole = false);
        }
        self.objects.put_opts(at, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        match self.answer(at, &options) {
            Some(answer) => answer,
            None => self.objects.get_opts(at, options).await,
        }
    }

    fn delete_stream(&self, at: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

impl fmt::Debug for ListedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}

impl fmt::Display for ListedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}
