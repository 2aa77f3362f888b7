//! Read: the data of extents, each block compared with its checksum, and decompressed where they are compressed.

use super::{Extent, Segments, Span, files::name};
use crate::StoreError;
use crate::compression::decompress;
use crate::disk::DiskFile;
use crate::format::BLOCK;
use crate::mutant::Mutant;

impl Segments {
    /// Fills `buf` with what `extent` holds from `offset` on.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when the bytes differ from the written bytes; errors of the disk.
    ///
    /// # Panics
    /// When the extent ends before `buf` is full: the caller's fault.
    pub(crate) fn read(&self, extent: &Extent, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= extent.len());
        let end = end.expect("a read within the extent");
        if buf.is_empty() {
            return Ok(());
        }
        let file = self.files.get(extent.span().segment)?;
        if extent.is_compressed() {
            let mut stored = vec![0; extent.stored() as usize];
            self.read_blocks(&*file, extent, 0, &mut stored)?;
            let bytes = self.content(extent, &stored)?;
            buf.copy_from_slice(&bytes[offset as usize..][..buf.len()]);
            return Ok(());
        }
        // Whole blocks, since those have checksums.
        let start = offset / BLOCK * BLOCK;
        let end = end.next_multiple_of(BLOCK).min(extent.stored());
        if end - start == buf.len() as u64 {
            return self.read_blocks(&*file, extent, start, buf);
        }
        let mut blocks = vec![0; (end - start) as usize];
        self.read_blocks(&*file, extent, start, &mut blocks)?;
        let skip = (offset - start) as usize;
        buf.copy_from_slice(&blocks[skip..skip + buf.len()]);
        Ok(())
    }

    /// The content of each of `extents`. Adjacent extents are read with one call of the disk.
    ///
    /// # Errors
    /// Errors of [`read`](Self::read).
    pub(crate) fn read_all(&self, extents: &[&Extent]) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut all = Vec::with_capacity(extents.len());
        for run in extents.chunk_by(|one, next| one.is_before(next)) {
            let [first, .., last] = run else {
                for extent in run {
                    let mut bytes = vec![0; extent.len() as usize];
                    self.read(extent, 0, &mut bytes)?;
                    all.push(bytes);
                }
                continue;
            };
            let start = first.span().offset();
            let mut bytes = vec![0; (last.span().offset() + last.stored() - start) as usize];
            let file = self.files.get(first.span().segment)?;
            file.read_at(&mut bytes, start).map_err(unread(first.span(), 0))?;
            for extent in run {
                let at = (extent.span().offset() - start) as usize;
                let bytes = &mut bytes[at..at + extent.stored() as usize];
                self.check_or_read_anew(&*file, extent, 0, bytes)?;
                all.push(self.content(extent, bytes)?);
            }
        }
        Ok(all)
    }

    /// For each of `extents`, whether the disk itself, past all copies in memory, has its bytes. Adjacent extents are read with one
    /// call of the disk.
    pub(crate) fn verify(&self, extents: &[&Extent]) -> Vec<Result<(), StoreError>> {
        let mut outcomes = Vec::with_capacity(extents.len());
        for run in extents.chunk_by(|one, next| one.is_before(next)) {
            let start = run[0].span().offset();
            let read = |extents: &[&Extent]| {
                let (first, last) = (extents[0].span(), extents[extents.len() - 1]);
                let mut bytes = vec![0; (last.span().offset() + last.stored() - first.offset()) as usize];
                let file = self.files.get(first.segment)?;
                file.read_anew(&mut bytes, first.offset()).map_err(unread(first, 0))?;
                Ok(bytes)
            };
            // An error in one extent must not hide the others.
            match read(run) {
                Ok(mut bytes) => outcomes.extend(run.iter().map(|extent| {
                    let at = (extent.span().offset() - start) as usize;
                    self.check_all(extent, &mut bytes[at..at + extent.stored() as usize])
                })),
                Err(error) if run.len() == 1 => outcomes.push(Err(error)),
                Err(_) => {
                    outcomes.extend(run.iter().map(|extent| {
                        read(&[extent]).and_then(|mut bytes| self.check_all(extent, &mut bytes))
                    }))
                }
            }
        }
        outcomes
    }

    fn read_blocks(
        &self,
        file: &dyn DiskFile,
        extent: &Extent,
        start: u64,
        buf: &mut [u8],
    ) -> Result<(), StoreError> {
        let span = extent.span();
        file.read_at(buf, span.offset() + start).map_err(unread(span, start / BLOCK))?;
        self.check_or_read_anew(file, extent, start, buf)
    }

    /// Checks that `buf` is the content of `extent` from block `start` on; if not, reads it again past all copies.
    fn check_or_read_anew(
        &self,
        file: &dyn DiskFile,
        extent: &Extent,
        start: u64,
        buf: &mut [u8],
    ) -> Result<(), StoreError> {
        if self.check(extent, start, buf).is_ok() {
            return Ok(());
        }
        let span = extent.span();
        file.read_anew(buf, span.offset() + start).map_err(unread(span, start / BLOCK))?;
        self.check(extent, start, buf)
    }

    /// Whether `buf` is what `extent` holds from block `start` on, which is decrypted.
    fn check(&self, extent: &Extent, start: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        let span = extent.span();
        for (at, block) in buf.chunks_mut(BLOCK as usize).enumerate() {
            let number = start / BLOCK + at as u64;
            let is_right = extent.is_block(number as usize, block, self.cipher.as_deref());
            if !is_right && !self.planted.has(Mutant::DataNotChecked) {
                return Err(damaged(span, number));
            }
        }
        Ok(())
    }

    /// Whether `stored` are all bytes of `extent`, and can be decompressed if they are compressed.
    fn check_all(&self, extent: &Extent, stored: &mut [u8]) -> Result<(), StoreError> {
        self.check(extent, 0, stored)?;
        if extent.is_compressed() { self.content(extent, stored).map(drop) } else { Ok(()) }
    }

    /// The data of `extent`, whose `stored` bytes were checked.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if they do not become as many as the extent says when they are decompressed.
    fn content(&self, extent: &Extent, stored: &[u8]) -> Result<Vec<u8>, StoreError> {
        let stored = extent.unfilled(stored);
        if !extent.is_compressed() {
            return Ok(stored.to_vec());
        }
        let mut bytes = vec![0; extent.len() as usize];
        let len = decompress(stored, &mut bytes);
        if len == Some(bytes.len()) || self.planted.has(Mutant::LengthNotChecked) {
            return Ok(bytes);
        }
        let Span { segment, block, .. } = extent.span();
        let (name, len) = (name(segment), extent.len());
        Err(StoreError::Damaged(format!(
            "the data at block {block} of `{name}` do not decompress to {len} bytes"
        )))
    }
}

/// Translates a disk error that came while block `block` of `span` was read.
fn unread(span: Span, block: u64) -> impl FnOnce(std::io::Error) -> StoreError {
    move |error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => damaged(span, block),
        _ => StoreError::Io("read data", error),
    }
}

/// The error for block `block` of `span`, whose bytes differ from the written ones.
fn damaged(span: Span, block: u64) -> StoreError {
    let (block, name) = (u64::from(span.block) + block, name(span.segment));
    StoreError::Damaged(format!("block {block} of `{name}` is not what was written"))
}
