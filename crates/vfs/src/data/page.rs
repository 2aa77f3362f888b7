//! Page: 4 KiB of a file. Those that no file has any more are kept by their CPU for the next that needs one.

use super::PAGE_SIZE;
use sluice_sync::drain::{self, Kept};
use sluice_sync::face::{Host, PerHost};
use sluice_sync::percpu::Pool;
use sluice_sync::radix::Object;
use sluice_sync::{Arc, LockedBytes, OnceLock, SeqBytes};
use std::ops::Deref;

/// How many pages a CPU keeps: 4 MiB, beside what file systems may use.
const SPARE_MAX: usize = 1024;

type Bytes = SeqBytes<{ PAGE_SIZE / 8 }>;

/// A page that holds data.
pub(super) struct Page(Bytes);

/// A page that its holder alone may change.
pub(super) type LockedPage<'a> = LockedBytes<'a, { PAGE_SIZE / 8 }>;

/// What a call has of each page that it touches. The first stands apart from the others, so that one alone needs no memory.
pub(super) struct PerPage<T> {
    first: Option<T>,
    others: Vec<T>,
}

/// Pages that are locked together.
pub(super) type Locked<'p> = PerPage<LockedPage<'p>>;

/// New pages, for where there was none.
pub(super) type MadePages = PerPage<Option<Arc<Page>>>;

impl<T> PerPage<T> {
    pub(super) const fn new() -> PerPage<T> {
        PerPage { first: None, others: Vec::new() }
    }

    pub(super) fn push(&mut self, one: T) {
        match &self.first {
            None => self.first = Some(one),
            Some(_) => self.others.push(one),
        }
    }

    /// In the order of the pages.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.others)
    }

    /// In the order of the pages.
    pub(super) fn into_iter(self) -> impl Iterator<Item = T> {
        self.first.into_iter().chain(self.others)
    }
}

/// The pages that nobody has.
fn spare() -> &'static Pool<Arc<Page>> {
    static SPARE: PerHost<OnceLock<Pool<Arc<Page>>>> = PerHost::new(OnceLock::new());
    SPARE.get(Host::here()).get_or_init(|| {
        drain::register(&Spare);
        Pool::new(SPARE_MAX, PAGE_SIZE)
    })
}

/// The same, to be given back when nobody works.
struct Spare;

impl Kept for Spare {
    fn kept_bytes(&self) -> u64 {
        spare().kept_bytes()
    }

    fn freed_bytes(&self) -> u64 {
        spare().freed_bytes()
    }

    fn give_back(&self) {
        spare().give_back();
    }
}

impl Page {
    /// A page of zeros but for `bytes`, which begin at `at` and fit.
    pub(super) fn with(at: usize, bytes: &[u8]) -> Arc<Page> {
        Page::made(|page| page.fill(at, bytes))
    }

    /// A page with the bytes of this one, which must not change meanwhile: it is frozen, or locked.
    pub(super) fn duplicate(&self) -> Arc<Page> {
        Page::made(|page| page.fill_from(self))
    }

    /// A page that `fill` fills where it will stay.
    fn made(fill: impl FnOnce(&mut Bytes)) -> Arc<Page> {
        let mut page = spare().take().unwrap_or_else(|| Arc::new(Page(Bytes::new())));
        // Nobody else has it: it is new, or was alone when it was put away.
        if let Some(Page(bytes)) = Arc::get_mut(&mut page) {
            fill(bytes);
        }
        page
    }
}

impl Deref for Page {
    type Target = Bytes;
    fn deref(&self) -> &Bytes {
        &self.0
    }
}

impl Object for Page {
    fn release(mut this: Arc<Page>) {
        if Arc::get_mut(&mut this).is_some() {
            spare().put(this);
        }
    }
}
