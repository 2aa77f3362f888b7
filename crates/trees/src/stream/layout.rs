//! Layout: the holes and the data of a file, and how its contents differ from another's.

use super::frame::{CONTENTS_MAX, FrameWriter, StreamOrder};
use crate::host::moved;
use sluice_vfs::{Errno, InodeRef};
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

/// The unit of holes, in bytes.
const PAGE: u64 = 4096;

/// The parts of a file that have data, asked for in order.
struct Layout<'i> {
    inode: &'i InodeRef,
    /// The first part that does not end before what was asked for last.
    data: Range<u64>,
}

impl<'i> Layout<'i> {
    fn of(inode: &'i InodeRef) -> Layout<'i> {
        Layout { inode, data: 0..0 }
    }

    /// The first part with data that ends behind `offset`; an empty one at the end.
    fn part(&mut self, offset: u64) -> Result<Range<u64>, Errno> {
        if self.data.end <= offset {
            let none = u64::MAX..u64::MAX;
            self.data = match self.inode.seek_data(offset) {
                Ok(start) => start..self.inode.seek_hole(start)?,
                Err(Errno::ENXIO) => none,
                Err(errno) => return Err(errno),
            };
        }
        Ok(self.data.clone())
    }

    /// Whether the page at `offset` has data.
    fn has_data(&mut self, offset: u64) -> Result<bool, Errno> {
        Ok(self.part(offset)?.contains(&offset))
    }
}

/// Reads `bytes` of `inode`; what is behind its end is zeros.
fn read(inode: &InodeRef, bytes: &Range<u64>, to: &mut Vec<u8>) -> Result<(), Errno> {
    to.clear();
    to.resize((bytes.end - bytes.start) as usize, 0);
    let mut done = 0;
    while done < to.len() {
        match inode.read_at(bytes.start + done as u64, &mut to[done..], false)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(())
}

/// Writes the orders to `out` that give an empty file of its size the contents of `new`. Contents that `out` leaves out are not
/// read.
///
/// # Errors
/// Errors of `out`; the store's; the file becomes shorter meanwhile.
pub(super) fn contents(new: &InodeRef, out: &mut FrameWriter<impl Write>) -> io::Result<()> {
    let (mut layout, mut buf, size) = (Layout::of(new), Vec::new(), new.stat().size);
    let mut offset = 0;
    loop {
        let part = layout.part(offset)?;
        let start = part.start.max(offset);
        let end = part.end.min(size).min(start.saturating_add(CONTENTS_MAX as u64));
        if start >= end {
            return Ok(());
        }
        if !out.leaves_out() {
            read(new, &(start..end), &mut buf)?;
            out.put(&StreamOrder::Contents { offset: start, bytes: &buf })?;
        }
        offset = end;
    }
}

/// A run of pages that differ in the same way.
struct PageRun {
    start: u64,
    is_hole: bool,
}

/// Calls `put` with the orders that give `old` the contents of `new`, when it has its size; until `put` says false. Shared contents are
/// not read.
///
/// # Errors
/// Errors of `put`; the store's.
pub(super) fn differences(
    old: &InodeRef,
    new: &InodeRef,
    put: &mut dyn FnMut(&StreamOrder<'_>) -> io::Result<bool>,
) -> io::Result<()> {
    let size = new.stat().size;
    let (mut was, mut is) = (Layout::of(old), Layout::of(new));
    let (mut before, mut now) = (Vec::new(), Vec::new());
    let mut from = 0;
    while let Some(pages) = new.first_difference(old, from)? {
        if pages.start < from || pages.is_empty() {
            return Err(moved(Path::new("a file")));
        }
        from = pages.end;
        let bytes = pages.start..pages.end.min(size);
        if bytes.is_empty() {
            return Ok(());
        }
        read(old, &bytes, &mut before)?;
        read(new, &bytes, &mut now)?;
        let mut run: Option<PageRun> = None;
        let mut offset = bytes.start;
        while offset <= bytes.end {
            // The page behind the last one ends each run.
            let kind = if offset == bytes.end {
                None
            } else {
                let page =
                    (offset - bytes.start) as usize..((offset + PAGE).min(bytes.end) - bytes.start) as usize;
                let (had, has) = (was.has_data(offset)?, is.has_data(offset)?);
                let differs = had != has || has && before[page.clone()] != now[page];
                differs.then_some(!has)
            };
            if let Some(ended) = run.take_if(|run| kind != Some(run.is_hole)) {
                let part = (ended.start - bytes.start) as usize..(offset - bytes.start) as usize;
                // The hole at the end of a file is a whole page, too.
                let order = match ended.is_hole {
                    true => StreamOrder::Hole {
                        offset: ended.start,
                        len: (offset - ended.start).next_multiple_of(PAGE),
                    },
                    false => StreamOrder::Contents { offset: ended.start, bytes: &now[part] },
                };
                if !put(&order)? {
                    return Ok(());
                }
            }
            if let (None, Some(is_hole)) = (&run, kind) {
                run = Some(PageRun { start: offset, is_hole });
            }
            if offset == bytes.end {
                break;
            }
            offset = (offset + PAGE).min(bytes.end);
        }
    }
    Ok(())
}

/// Whether contents or holes of two files of one size differ.
///
/// # Errors
/// The store's.
pub(crate) fn are_different(old: &InodeRef, new: &InodeRef) -> io::Result<bool> {
    let mut differ = false;
    differences(old, new, &mut |_| {
        differ = true;
        Ok(false)
    })?;
    Ok(differ)
}
