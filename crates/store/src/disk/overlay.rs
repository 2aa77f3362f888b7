//! OverlayDisk: a disk of which nothing is changed: what is written stays in memory. For a store that is only looked at.

use super::{Disk, DiskFile, NoDisk, shared};
use crate::encryption::Cipher;
use sluice_sync::{Arc, LockClass, Mutex};
use std::collections::BTreeMap;
use std::io;

static OVERLAY: LockClass = LockClass::new("store.disk.overlay");

/// The unit in which changes are kept.
const PAGE: u64 = 4096;

/// A disk on top of another disk, which stays unchanged.
#[derive(Debug)]
pub struct OverlayDisk {
    below: Arc<dyn Disk>,
    files: Mutex<BTreeMap<String, Arc<Mutex<Content>>>>,
}

/// A file in its former state, and the later writes.
#[derive(Debug)]
struct Content {
    below: Option<Arc<dyn DiskFile>>,
    /// Bytes of `below` that still count.
    kept: u64,
    size: u64,
    pages: BTreeMap<u64, Box<[u8]>>,
}

#[derive(Debug)]
struct OverlayFile(Arc<Mutex<Content>>);

impl OverlayDisk {
    /// A disk that looks like `below` now.
    pub fn new(below: Arc<dyn Disk>) -> OverlayDisk {
        OverlayDisk { below, files: Mutex::with_class(&OVERLAY, BTreeMap::new()) }
    }

    /// A disk in memory alone.
    pub(crate) fn over_nothing() -> OverlayDisk {
        OverlayDisk::new(Arc::from(Box::new(NoDisk) as Box<dyn Disk>))
    }

    fn file(&self, name: &str, below: Option<Arc<dyn DiskFile>>, size: u64) -> Arc<dyn DiskFile> {
        let content = Content { below, kept: size, size, pages: BTreeMap::new() };
        let content = Arc::new(Mutex::with_class(&OVERLAY, content));
        shared(OverlayFile(self.files.lock().entry(name.to_owned()).or_insert(content).clone()))
    }
}

impl Content {
    /// Page `number` as it is now.
    fn page(&self, number: u64) -> io::Result<Box<[u8]>> {
        if let Some(page) = self.pages.get(&number) {
            return Ok(page.clone());
        }
        let mut page = vec![0; PAGE as usize].into_boxed_slice();
        let start = number * PAGE;
        let len = self.kept.saturating_sub(start).min(PAGE) as usize;
        if let Some(below) = &self.below
            && len > 0
        {
            below.read_at(&mut page[..len], start)?;
        }
        Ok(page)
    }

    /// Calls `work` with each page that `len` bytes from `offset` touch, and the bytes of those that it touches.
    fn each_page(
        offset: u64,
        len: usize,
        mut work: impl FnMut(u64, usize, usize, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let inner = (at % PAGE) as usize;
            let part = (PAGE as usize - inner).min(len - done);
            work(at / PAGE, inner, done, part)?;
            done += part;
        }
        Ok(())
    }
}

impl Disk for OverlayDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(content) = self.files.lock().get(name) {
            return Ok(shared(OverlayFile(content.clone())));
        }
        let below = self.below.open(name)?;
        let size = below.size()?;
        Ok(self.file(name, Some(below), size))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        if self.open(name).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(self.file(name, None, len))
    }

    fn cipher(&self) -> Option<Arc<Cipher>> {
        self.below.cipher()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = self.below.names()?;
        names.extend(self.files.lock().keys().cloned());
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.below.free_bytes()
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for OverlayFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.lock().size)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        let mut content = self.0.lock();
        if size < content.size {
            // Bytes that are cut off do not come back when the file grows again.
            if !size.is_multiple_of(PAGE) {
                let mut page = content.page(size / PAGE)?;
                page[(size % PAGE) as usize..].fill(0);
                content.pages.insert(size / PAGE, page);
            }
            content.pages.split_off(&size.div_ceil(PAGE));
            content.kept = content.kept.min(size);
        }
        content.size = size;
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut content = self.0.lock();
        content.size = content.size.max(offset.saturating_add(len));
        Ok(())
    }

    fn punch(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let content = self.0.lock();
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > content.size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Content::each_page(offset, buf.len(), |page, inner, done, len| {
            buf[done..done + len].copy_from_slice(&content.page(page)?[inner..inner + len]);
            Ok(())
        })
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut content = self.0.lock();
        Content::each_page(offset, buf.len(), |number, inner, done, len| {
            let mut page = content.page(number)?;
            page[inner..inner + len].copy_from_slice(&buf[done..done + len]);
            content.pages.insert(number, page);
            Ok(())
        })?;
        content.size = content.size.max(offset + buf.len() as u64);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::crash::CrashDisk;

    #[test]
    fn it_reads_as_written_and_the_disk_below_stays_as_it_was() {
        let disk = CrashDisk::new();
        disk.create("f", 0).and_then(|file| file.write_at(&[1; 10_000], 0)).expect("memory");
        let (before, steps) = (disk.files(), disk.steps());
        let overlay = OverlayDisk::new(shared_disk(disk.clone()));
        let file = overlay.open("f").expect("it is there");
        file.write_at(&[2; 3000], 4000).expect("memory");
        file.set_size(9000).expect("memory");
        file.set_size(12_000).expect("memory");
        let mut found = vec![9; 12_000];
        overlay.open("f").and_then(|file| file.read_at(&mut found, 0)).expect("whole");
        let mut expected = vec![1; 9000];
        expected[4000..7000].fill(2);
        expected.resize(12_000, 0);
        assert_eq!(found, expected);
        assert!(file.read_at(&mut [0], 12_000).is_err(), "the end");
        assert!(overlay.create("f", 0).is_err() && overlay.create("new", 7).is_ok());
        assert_eq!(overlay.names().expect("memory"), ["f", "new"]);
        assert!(disk.files() == before && disk.steps() == steps);
    }

    fn shared_disk(disk: CrashDisk) -> Arc<dyn Disk> {
        Arc::from(Box::new(disk) as Box<dyn Disk>)
    }
}
