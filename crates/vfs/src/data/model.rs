//! Random operations on two files, each compared with a naive model: a vector of bytes and a state for each
//! page.

use super::tests::Meter;
use super::*;
use sluice_sync::random::{Random, fresh_seed};

/// Runs, and the operations of each. Runs share nothing: a failure replays from its run's seed.
const RUNS: u64 = 60;
const OPERATIONS: u64 = 2000;
/// Offsets and lengths stay below this number of pages.
const SPAN: u64 = 12;
/// Pages that the model can hold: inserting may double a file.
const ROOM: usize = 4 * SPAN as usize;

#[derive(Clone, Copy, PartialEq, Debug)]
enum PageState {
    Hole,
    Unwritten,
    Data,
}

#[derive(Clone)]
struct Model {
    bytes: Vec<u8>,
    pages: Vec<PageState>,
}

impl Model {
    fn new() -> Model {
        Model { bytes: Vec::new(), pages: vec![PageState::Hole; ROOM] }
    }

    fn allocated(&self) -> u64 {
        self.pages.iter().filter(|&&state| state != PageState::Hole).count() as u64
    }

    fn grow(&mut self, size: usize) {
        if size > self.bytes.len() {
            self.bytes.resize(size, 0);
        }
    }

    fn write(&mut self, free: &mut u64, offset: usize, buf: &[u8]) -> Result<usize, Errno> {
        for (done, &byte) in buf.iter().enumerate() {
            let state = &mut self.pages[(offset + done) / PAGE_SIZE];
            if *state == PageState::Hole {
                if *free == 0 {
                    return if done > 0 { Ok(done) } else { Err(Errno::ENOSPC) };
                }
                *free -= 1;
            }
            *state = PageState::Data;
            self.grow(offset + done + 1);
            self.bytes[offset + done] = byte;
        }
        Ok(buf.len())
    }

    fn zero_bytes(&mut self, offset: usize, end: usize) {
        let size = self.bytes.len();
        self.bytes[offset.min(size)..end.min(size)].fill(0);
    }

    fn punch(&mut self, free: &mut u64, offset: usize, len: usize) {
        for (index, state) in self.pages.iter_mut().enumerate() {
            let covered = index * PAGE_SIZE >= offset && (index + 1) * PAGE_SIZE <= offset + len;
            if covered && *state != PageState::Hole {
                *state = PageState::Hole;
                *free += 1;
            }
        }
        self.zero_bytes(offset, offset + len);
    }

    fn truncate(&mut self, free: &mut u64, size: usize) {
        if size <= self.bytes.len() {
            self.punch(free, size, ROOM * PAGE_SIZE);
        }
        self.bytes.resize(size, 0);
    }

    fn allocate(
        &mut self,
        free: &mut u64,
        offset: usize,
        len: usize,
        keep: bool,
        zero: bool,
    ) -> Result<(), Errno> {
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let touched = offset / PAGE_SIZE..(offset + len).div_ceil(PAGE_SIZE);
        let missing =
            self.pages[touched.clone()].iter().filter(|&&state| state == PageState::Hole).count() as u64;
        *free = free.checked_sub(missing).ok_or(Errno::ENOSPC)?;
        for index in touched {
            let covered = index * PAGE_SIZE >= offset && (index + 1) * PAGE_SIZE <= offset + len;
            if self.pages[index] == PageState::Hole || (zero && covered) {
                self.pages[index] = PageState::Unwritten;
            }
        }
        if zero {
            self.zero_bytes(offset, offset + len);
        }
        if !keep {
            self.grow(offset + len);
        }
        Ok(())
    }

    fn collapse(&mut self, free: &mut u64, offset: usize, len: usize) -> Result<(), Errno> {
        if !(offset | len).is_multiple_of(PAGE_SIZE) || len == 0 || offset + len >= self.bytes.len() {
            return Err(Errno::EINVAL);
        }
        self.punch(free, offset, len);
        self.bytes.drain(offset..offset + len);
        self.pages.drain(offset / PAGE_SIZE..(offset + len) / PAGE_SIZE);
        self.pages.resize(ROOM, PageState::Hole);
        Ok(())
    }

    fn insert(&mut self, offset: usize, len: usize) -> Result<(), Errno> {
        if !(offset | len).is_multiple_of(PAGE_SIZE) || len == 0 || offset >= self.bytes.len() {
            return Err(Errno::EINVAL);
        }
        self.bytes.splice(offset..offset, vec![0; len]);
        let at = offset / PAGE_SIZE;
        self.pages.splice(at..at, vec![PageState::Hole; len / PAGE_SIZE]);
        self.pages.truncate(ROOM);
        Ok(())
    }

    fn copy(
        &mut self,
        free: &mut u64,
        to: usize,
        src: &Model,
        from: usize,
        len: usize,
    ) -> Result<u64, Errno> {
        let end = (from + len).min(src.bytes.len());
        let mut at = from;
        while at < end {
            // A run of pages without data is one hole; data goes page by page.
            let data = src.pages[at / PAGE_SIZE] == PageState::Data;
            let mut stop = (at / PAGE_SIZE + 1) * PAGE_SIZE;
            while !data && stop < end && src.pages[stop / PAGE_SIZE] != PageState::Data {
                stop += PAGE_SIZE;
            }
            let stop = stop.min(end);
            let target = to + at - from;
            if data {
                match self.write(free, target, &src.bytes[at..stop]) {
                    Ok(written) if written == stop - at => {}
                    Ok(written) => return Ok((at - from + written) as u64),
                    Err(error) if at == from => return Err(error),
                    Err(_) => return Ok((at - from) as u64),
                }
            } else {
                self.punch(free, target, stop - at);
                self.grow(target + stop - at);
            }
            at = stop;
        }
        Ok((at - from) as u64)
    }

    /// The first offset at or after `offset` whose page is data, or is not.
    fn seek(&self, offset: usize, data: bool) -> Option<u64> {
        let size = self.bytes.len();
        let wanted = |at: &usize| (self.pages[at / PAGE_SIZE] == PageState::Data) == data;
        let end = (!data && offset < size).then_some(size);
        (offset..size).find(wanted).or(end).map(|at| at as u64)
    }
}

/// An offset or length of at most `pages` pages: most often where a page begins, or a byte beside; or a small one, so that
/// first pages are short.
fn place(random: &mut Random, pages: u64) -> u64 {
    let start = random.below(pages) * PAGE;
    match random.below(8) {
        0..3 => start,
        3 => start + 1,
        4 => start + PAGE - 1,
        5 => start + random.below(PAGE),
        _ => {
            let bits = 4 + random.below(8);
            random.below(1 << bits)
        }
    }
}

/// Does one random operation on file `which` and its model, and compares the results.
fn step(
    random: &mut Random,
    space: &Meter,
    free: &mut u64,
    which: usize,
    files: &[FileData; 2],
    models: &mut [Model; 2],
) -> String {
    let [first, second] = files;
    let (file, other) = if which == 0 { (first, second) } else { (second, first) };
    let [first, second] = models;
    let (model, other_model) = if which == 0 { (first, second) } else { (second, first) };
    let (offset, len) = (place(random, SPAN), place(random, 4));
    let (at, n) = (offset as usize, len as usize);
    let keep = random.below(2) == 0;
    // Files grow by inserting; keep them within the model's room.
    let insert_fits = file.size().max(file.unwritten_end() * PAGE) < 2 * SPAN * PAGE;
    match random.below(14) {
        0..4 => {
            let buf = vec![1 + random.below(255) as u8; n];
            assert_eq!(file.write(space, offset, &buf), model.write(free, at, &buf));
            format!("write {offset} {len}")
        }
        4 => {
            assert_eq!(file.truncate(space, offset), Ok(()));
            model.truncate(free, at);
            format!("truncate {offset}")
        }
        5 => {
            assert_eq!(file.allocate(space, offset, len, keep), model.allocate(free, at, n, keep, false));
            format!("allocate {offset} {len} {keep}")
        }
        6 => {
            file.punch_hole(space, offset, len);
            model.punch(free, at, n);
            format!("punch {offset} {len}")
        }
        7 => {
            assert_eq!(file.zero_range(space, offset, len, keep), model.allocate(free, at, n, keep, true));
            format!("zero {offset} {len} {keep}")
        }
        8 => {
            assert_eq!(file.collapse_range(space, offset, len), model.collapse(free, at, n));
            format!("collapse {offset} {len}")
        }
        9 if insert_fits => {
            assert_eq!(file.insert_range(space, offset, len), model.insert(at, n));
            format!("insert {offset} {len}")
        }
        9..12 => {
            let (from, len) = (place(random, SPAN), place(random, SPAN));
            let copied = file.copy_from(space, offset, other, from, len);
            assert_eq!(copied, model.copy(free, at, other_model, from as usize, len as usize));
            format!("copy {from} {len} to {offset}")
        }
        _ => {
            let from = place(random, SPAN);
            let len = len.min(from.abs_diff(offset));
            let before = model.clone();
            let copied = file.copy_from(space, offset, file, from, len);
            assert_eq!(copied, model.copy(free, at, &before, from as usize, len as usize));
            format!("copy within {from} {len} to {offset}")
        }
    }
}

/// Compares a file with its model.
fn compare(random: &mut Random, file: &FileData, model: &Model) {
    file.check();
    assert_eq!((file.size(), file.pages()), (model.bytes.len() as u64, model.allocated()));
    let mut bytes = vec![0xEE; model.bytes.len() + 1];
    assert_eq!(file.read(0, &mut bytes), Some(model.bytes.len()));
    assert!(bytes[..model.bytes.len()] == model.bytes, "contents differ");
    let (offset, len) = (place(random, SPAN), place(random, 4));
    let mut part = vec![0xEE; len as usize];
    let expected = model.bytes.get(offset as usize..).unwrap_or_default();
    let expected = &expected[..expected.len().min(part.len())];
    assert_eq!(file.read(offset, &mut part), Some(expected.len()));
    assert!(&part[..expected.len()] == expected, "a part of the contents differs");
    assert_eq!(file.seek_data(offset), model.seek(offset as usize, true));
    assert_eq!(file.seek_hole(offset), model.seek(offset as usize, false));
}

/// Puts a copy of the other file in the place of file `which`, if there is space for both and the copy.
fn copy_whole(
    space: &Meter,
    free: &mut u64,
    which: usize,
    files: &mut [FileData; 2],
    models: &mut [Model; 2],
) -> String {
    let mut model = models[1 - which].clone();
    model
        .pages
        .iter_mut()
        .filter(|state| **state == PageState::Unwritten)
        .for_each(|state| *state = PageState::Hole);
    let (mut copy, fits) = (FileData::new(), model.allocated() <= *free);
    let done = copy.copy_whole(space, &files[1 - which]);
    assert_eq!(done, if fits { Ok(()) } else { Err(Errno::ENOSPC) });
    if fits {
        *free = *free + models[which].allocated() - model.allocated();
        models[which] = model;
        std::mem::swap(&mut files[which], &mut copy);
    }
    copy.clear(space);
    format!("becomes a copy of the other: {done:?}")
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    // Every other run is short of space.
    let limit = if random.below(2) == 0 { 4 + random.below(SPAN) } else { 1 << 20 };
    let (space, mut free) = (Meter::new(limit), limit);
    let mut files = [FileData::new(), FileData::new()];
    let mut models = [Model::new(), Model::new()];
    for number in 0..OPERATIONS {
        let which = random.below(2);
        let done = match random.below(16) {
            0 => copy_whole(&space, &mut free, which, &mut files, &mut models),
            _ => step(&mut random, &space, &mut free, which, &files, &mut models),
        };
        // Shown only when the test fails, so that the last line names the operation.
        println!("seed {seed} operation {number}: file {which} {done}");
        for (file, model) in files.iter().zip(&models) {
            compare(&mut random, file, model);
        }
        assert_eq!(space.free.get(), free);
        assert_eq!(limit - free, files.iter().map(FileData::pages).sum::<u64>(), "I5");
    }
    files.iter_mut().for_each(|file| file.clear(&space));
    assert_eq!(space.free.get(), limit);
}

#[test]
fn random_operations_agree_with_a_naive_model() {
    let replayed = std::env::var("SLUICE_SEED").ok().and_then(|seed| seed.parse().ok());
    let first = replayed.unwrap_or_else(fresh_seed);
    println!("to replay a failure: SLUICE_SEED=<the seed of the failing run>");
    (0..RUNS).for_each(|number| run(first.wrapping_add(number)));
}
