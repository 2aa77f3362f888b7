//! The rules for a file's contents, one by one. `model` tries them in random order.

use super::*;
use std::cell::Cell;

const P: u64 = PAGE;

/// A space of a limited number of pages.
pub(super) struct Meter {
    pub(super) free: Cell<u64>,
}

impl Meter {
    pub(super) fn new(pages: u64) -> Meter {
        Meter { free: Cell::new(pages) }
    }
}

impl Space for Meter {
    fn reserve(&self, pages: u64) -> Result<(), Errno> {
        assert!(pages > 0, "a reservation of nothing is a wasted call");
        self.free.set(self.free.get().checked_sub(pages).ok_or(Errno::ENOSPC)?);
        Ok(())
    }

    fn release(&self, pages: u64) {
        assert!(pages > 0, "a release of nothing is a wasted call");
        self.free.set(self.free.get() + pages);
    }
}

impl FileData {
    /// Asserts the invariants of the module's header, but for I5, which needs the space.
    pub(super) fn check(&self) {
        let size = self.size();
        assert!(size <= FILE_SIZE_MAX, "I4");
        let writer = self.tree.write();
        let mut next = 0;
        while let Some((index, page)) = writer.slots().first_in(next..u64::MAX) {
            next = index + 1;
            assert!(index * PAGE < size, "I2: page {index} of a file of {size} bytes");
            assert_eq!(writer.state().count(&(index..next)), 0, "I3: page {index}");
            let mut bytes = [0; PAGE_SIZE];
            page.load_padded(0, &mut bytes);
            let used = (size - index * PAGE).min(PAGE) as usize;
            assert!(bytes[used..].iter().all(|&byte| byte == 0), "I1: page {index}");
        }
        assert!(writer.state().end() <= PAGES_MAX, "I4");
        writer.state().check();
    }

    /// The page after the last unwritten one.
    pub(super) fn unwritten_end(&self) -> u64 {
        self.tree.state().end()
    }

    /// The ranges of unwritten pages.
    fn unwritten(&self) -> Vec<(u64, u64)> {
        self.tree.state().ranges().map(|range| (range.start, range.end)).collect()
    }

    /// How many bytes page `index` has memory for.
    fn memory_of(&self, index: u64) -> usize {
        self.tree.write().slots().get(index).map_or(0, Page::len)
    }

    /// Whether page `index` is the same memory in both files.
    fn shares(&self, index: u64, other: &FileData, other_index: u64) -> bool {
        let page = |file: &FileData, index| file.tree.write().slots().get(index).map(std::ptr::from_ref);
        page(self, index).is_some() && page(self, index) == page(other, other_index)
    }
}

fn contents(file: &FileData) -> Vec<u8> {
    let mut bytes = vec![0xEE; file.size() as usize];
    assert_eq!(file.read(0, &mut bytes), Some(bytes.len()));
    bytes
}

/// A file with `bytes` at `offset`, and a space without limit worth the name.
fn written(offset: u64, bytes: &[u8]) -> (FileData, Meter) {
    let (file, space) = (FileData::new(), Meter::new(1 << 60));
    assert_eq!(file.write(&space, offset, bytes), Ok(bytes.len()));
    (file, space)
}

#[test]
fn an_empty_file_is_small() {
    let bytes = size_of::<FileData>() - sluice_sync::lock_debug::BYTES_PER_LOCK;
    assert!(bytes <= 88, "{bytes} bytes");
}

#[test]
fn the_first_page_has_memory_for_what_is_written_there_and_the_others_are_whole() {
    for (len, memory) in [(1, 48), (48, 48), (49, 112), (100, 112), (500, 1008), (1009, 4096), (4096, 4096)] {
        let (file, _) = written(0, &vec![7; len]);
        assert_eq!((file.memory_of(0), file.pages()), (memory, 1), "{len} bytes");
        assert_eq!(contents(&file), vec![7; len]);
        file.check();
    }
    assert_eq!(written(90, b"0123456789").0.memory_of(0), 112);
    assert_eq!(written(P + 10, b"x").0.memory_of(1), PAGE_SIZE);
}

#[test]
fn a_file_that_grows_byte_by_byte_gets_a_longer_page_five_times() {
    let (file, space) = (FileData::new(), Meter::new(1));
    let mut lengths = Vec::new();
    for size in 0..PAGE_SIZE {
        assert_eq!(file.append(&space, &[size as u8]), Ok((size as u64, 1)));
        lengths.push(file.memory_of(0));
    }
    lengths.dedup();
    assert_eq!(lengths, [48, 112, 240, 496, 1008, 4096]);
    assert!(contents(&file).iter().enumerate().all(|(at, byte)| *byte == at as u8));
    assert_eq!((file.pages(), space.free.get()), (1, 0), "storage is counted by pages");
    file.check();
}

#[test]
fn what_a_short_page_has_no_memory_for_is_zero() {
    let (file, space) = written(0, b"short");
    assert_eq!(file.truncate(&space, 2 * P), Ok(()));
    assert_eq!(contents(&file), [&b"short"[..], &[0; 2 * PAGE_SIZE - 5]].concat());
    let mut buf = [0xEE; 20];
    assert_eq!(file.read(40, &mut buf), Some(20));
    assert_eq!(buf, [0; 20]);
    assert_eq!(file.read(2000, &mut buf), Some(20));
    assert_eq!(buf, [0; 20]);
    file.punch_hole(&space, 3, 1000);
    assert_eq!((file.memory_of(0), file.pages()), (48, 1));
    assert_eq!(
        (file.seek_data(1000), file.seek_hole(0)),
        (Some(1000), Some(P)),
        "data, as the whole page is"
    );
    assert_eq!(file.write(&space, 3000, b"far"), Ok(3));
    let expected = [&b"sho"[..], &[0; 2997], b"far", &[0; 2 * PAGE_SIZE - 3003]].concat();
    assert_eq!((contents(&file), file.memory_of(0)), (expected, PAGE_SIZE));
    file.check();
}

#[test]
fn a_file_that_is_cut_gives_back_memory_of_its_first_page() {
    let (file, space) = written(0, &[7; PAGE_SIZE + 1]);
    assert_eq!(file.truncate(&space, P), Ok(()));
    assert_eq!(file.memory_of(0), PAGE_SIZE);
    for (size, memory) in [(2000, 4096), (1000, 1008), (100, 112), (10, 48), (0, 0)] {
        assert_eq!(file.truncate(&space, size), Ok(()));
        assert_eq!((file.memory_of(0), contents(&file)), (memory, vec![7; size as usize]));
        file.check();
    }
}

#[test]
fn copies_share_a_short_page_wherever_it_goes_until_one_side_writes() {
    let (src, space) = written(0, b"shared");
    let (dst, _) = written(0, &[9; PAGE_SIZE]);
    assert_eq!(dst.copy_from(&space, P, &src, 0, 6), Ok(6));
    assert!(dst.shares(1, &src, 0));
    assert_eq!(dst.write(&space, P + 6, b"!"), Ok(1));
    assert_eq!((dst.memory_of(1), src.memory_of(0)), (PAGE_SIZE, 48), "only a first page stays short");
    assert_eq!(src.write(&space, 0, b"S"), Ok(1));
    assert_eq!((&contents(&src)[..], &contents(&dst)[PAGE_SIZE..]), (&b"Shared"[..], &b"shared!"[..]));
    let (copy, _) = (FileData::new(), src.truncate(&space, 100));
    assert_eq!(copy.copy_whole(&space, &src), Ok(()));
    assert!(copy.shares(0, &src, 0));
    assert_eq!(copy.truncate(&space, 2), Ok(()));
    assert_eq!(copy.write(&space, 60, b"x"), Ok(1));
    assert_eq!(contents(&copy), [&b"Sh"[..], &[0; 58], b"x"].concat());
    assert_eq!(contents(&src), [&b"Shared"[..], &[0; 94]].concat());
    [&src, &dst, &copy].iter().for_each(|file| file.check());
}

#[test]
fn a_short_page_that_moves_is_written_where_it_is() {
    let (file, space) = written(0, b"first");
    assert_eq!(file.insert_range(&space, 0, P), Ok(()));
    assert_eq!((file.memory_of(0), file.memory_of(1)), (0, 48));
    assert_eq!(file.write(&space, P + 1, b"I"), Ok(1));
    assert_eq!(file.memory_of(1), 48);
    assert_eq!(file.truncate(&space, 4 * P), Ok(()));
    assert_eq!(file.write(&space, P + 100, b"x"), Ok(1));
    let expected = [&[0; PAGE_SIZE][..], b"fIrst", &[0; 95], b"x", &[0; 3 * PAGE_SIZE - 101]].concat();
    assert_eq!((file.memory_of(1), contents(&file)), (PAGE_SIZE, expected.clone()));
    assert_eq!(file.collapse_range(&space, 0, P), Ok(()));
    assert_eq!(contents(&file), expected[PAGE_SIZE..]);
    file.check();
}

#[test]
fn reading_stops_at_the_end_and_sees_zeros_in_holes() {
    let (file, _) = written(2 * P + 10, b"abc");
    let mut buf = [0xEE; 20];
    assert_eq!(file.read(2 * P + 5, &mut buf), Some(8));
    assert_eq!(&buf[..9], b"\0\0\0\0\0abc\xEE");
    assert_eq!(file.read(100, &mut buf), Some(20));
    assert_eq!(buf, [0; 20]);
    assert_eq!(file.read(2 * P + 13, &mut buf), Some(0));
    assert_eq!(file.read(u64::MAX, &mut buf), Some(0));
    assert_eq!(file.pages(), 1);
}

#[test]
fn writing_nothing_does_not_grow_the_file() {
    let (file, space) = (FileData::new(), Meter::new(0));
    assert_eq!(file.write(&space, 100, b""), Ok(0));
    assert_eq!(file.write(&space, u64::MAX, b""), Ok(0));
    assert_eq!(file.size(), 0);
}

#[test]
fn writing_is_cut_at_the_size_limit_and_refused_after_it() {
    let (file, space) = (FileData::new(), Meter::new(10));
    assert_eq!(file.write(&space, FILE_SIZE_MAX - 3, b"abcdef"), Ok(3));
    assert_eq!(file.size(), FILE_SIZE_MAX);
    for offset in [FILE_SIZE_MAX, FILE_SIZE_MAX + 1, u64::MAX] {
        assert_eq!(file.write_within(&space, offset, b"abcdef"), Err(Errno::EFBIG));
        assert_eq!(file.write(&space, offset, b"x"), Err(Errno::EFBIG));
        assert_eq!(file.copy_from(&space, offset, &file, 0, 1), Err(Errno::EFBIG));
    }
    let mut tail = [0; 8];
    assert_eq!(file.read(FILE_SIZE_MAX - 4, &mut tail), Some(4));
    assert_eq!(&tail[..4], b"\0abc");
    assert_eq!(file.seek_data(0), Some((PAGES_MAX - 1) * P));
    assert_eq!(file.seek_hole(FILE_SIZE_MAX - 1), Some(FILE_SIZE_MAX));
    file.check();
}

#[test]
fn a_hole_of_exabytes_costs_nothing() {
    let (file, space) = written(0, b"start");
    assert_eq!(file.truncate(&space, FILE_SIZE_MAX), Ok(()));
    assert_eq!(file.write(&space, FILE_SIZE_MAX - 5, b"end"), Ok(3));
    assert_eq!(file.pages(), 2);
    file.punch_hole(&space, 1, u64::MAX);
    assert_eq!(file.pages(), 1);
    assert_eq!(file.seek_data(1), Some(1));
    assert_eq!(file.seek_data(P), None);
    assert_eq!(file.seek_hole(0), Some(P));
    file.check();
}

#[test]
fn reserving_a_terabyte_costs_one_range() {
    let (file, space) = written(5 * P, b"x");
    assert_eq!(file.allocate(&space, 0, 1 << 40, false), Ok(()));
    assert_eq!(file.pages(), (1 << 40) / P);
    assert_eq!(file.unwritten().len(), 2);
    assert_eq!(file.seek_data(0), Some(5 * P));
    assert_eq!(file.seek_hole(5 * P), Some(6 * P));
}

#[test]
fn shrinking_clears_what_a_later_growth_shows() {
    let (file, space) = written(0, &[7; 2 * PAGE_SIZE]);
    assert_eq!(file.truncate(&space, 100), Ok(()));
    assert_eq!(file.pages(), 1);
    assert_eq!(file.truncate(&space, 200), Ok(()));
    assert_eq!(contents(&file), [vec![7; 100], vec![0; 100]].concat());
    assert_eq!(file.truncate(&space, FILE_SIZE_MAX + 1), Err(Errno::EFBIG));
    assert_eq!(file.truncate(&space, 0), Ok(()));
    assert_eq!((file.pages(), file.size()), (0, 0));
}

#[test]
fn setting_the_size_it_has_releases_what_was_reserved_beyond() {
    let (file, space) = written(0, b"x");
    assert_eq!(file.allocate(&space, 0, 4 * P, true), Ok(()));
    assert_eq!((file.size(), file.pages()), (1, 4));
    assert_eq!(file.truncate(&space, 1), Ok(()));
    assert_eq!(file.pages(), 1);
}

#[test]
fn a_write_that_runs_out_of_space_is_short_and_then_fails() {
    let (file, space) = (FileData::new(), Meter::new(2));
    assert_eq!(file.write(&space, 100, &[1; 4 * PAGE_SIZE]), Ok(2 * PAGE_SIZE - 100));
    assert_eq!(file.size(), 2 * P);
    assert_eq!(file.write(&space, 2 * P, b"x"), Err(Errno::ENOSPC));
    assert_eq!(file.write(&space, 0, &[2; 2 * PAGE_SIZE]), Ok(2 * PAGE_SIZE), "overwriting needs no space");
    assert_eq!((file.size(), space.free.get()), (2 * P, 0));
}

#[test]
fn an_allocation_without_space_changes_nothing() {
    let space = Meter::new(3);
    let mut file = FileData::new();
    file.write(&space, P, b"x").unwrap();
    assert_eq!(file.allocate(&space, 0, 4 * P, false), Err(Errno::ENOSPC));
    assert_eq!(file.zero_range(&space, 0, 4 * P, false), Err(Errno::ENOSPC));
    assert_eq!((file.size(), file.pages(), space.free.get()), (P + 1, 1, 2));
    assert_eq!(file.allocate(&space, 0, 3 * P, true), Ok(()));
    assert_eq!(file.write(&space, 0, &[1; 3 * PAGE_SIZE]), Ok(3 * PAGE_SIZE), "reserved space is there");
    assert_eq!((file.pages(), space.free.get()), (3, 0));
    file.clear(&space);
    assert_eq!(space.free.get(), 3);
}

#[test]
fn unwritten_pages_are_storage_and_a_hole_at_once() {
    let (file, space) = written(P + 1, b"x");
    assert_eq!(file.allocate(&space, 0, 3 * P, false), Ok(()));
    assert_eq!((file.size(), file.pages()), (3 * P, 3));
    assert_eq!((file.seek_data(0), file.seek_hole(0)), (Some(P), Some(0)));
    assert_eq!((file.seek_data(P + 7), file.seek_hole(P + 7)), (Some(P + 7), Some(2 * P)));
    assert_eq!((file.seek_data(2 * P), file.seek_hole(2 * P)), (None, Some(2 * P)));
    assert_eq!((file.seek_data(3 * P), file.seek_hole(3 * P)), (None, None));
    assert_eq!(contents(&file).iter().filter(|&&byte| byte != 0).count(), 1);
}

#[test]
fn punching_frees_whole_pages_and_clears_parts() {
    let (file, space) = written(0, &[9; 4 * PAGE_SIZE]);
    file.punch_hole(&space, 10, 0);
    assert_eq!(contents(&file), [9; 4 * PAGE_SIZE]);
    file.punch_hole(&space, 100, 2 * P);
    assert_eq!((file.pages(), file.size()), (3, 4 * P));
    let expected = [vec![9; 100], vec![0; 2 * PAGE_SIZE], vec![9; 2 * PAGE_SIZE - 100]].concat();
    assert_eq!(contents(&file), expected);
    for (offset, len) in [(u64::MAX, u64::MAX), (4 * P, u64::MAX), (FILE_SIZE_MAX, 1), (u64::MAX, 1)] {
        file.punch_hole(&space, offset, len);
        assert_eq!(contents(&file), expected);
    }
}

#[test]
fn zeroing_keeps_the_storage() {
    let (file, space) = written(0, &[9; 3 * PAGE_SIZE]);
    assert_eq!(file.zero_range(&space, 100, 2 * P, true), Ok(()));
    assert_eq!(file.pages(), 3);
    assert_eq!((file.seek_hole(0), file.seek_data(P)), (Some(P), Some(2 * P)));
    assert_eq!(file.zero_range(&space, 3 * P, 10, true), Ok(()));
    assert_eq!((file.size(), file.pages()), (3 * P, 4));
    assert_eq!(file.zero_range(&space, 3 * P, 10, false), Ok(()));
    assert_eq!((file.size(), file.pages()), (3 * P + 10, 4));
    file.check();
}

#[test]
fn collapsing_and_inserting_move_what_follows() {
    let (file, space) = written(0, &[1; PAGE_SIZE]);
    file.write(&space, P, &[2; PAGE_SIZE]).unwrap();
    file.write(&space, 2 * P, b"end").unwrap();
    assert_eq!(file.allocate(&space, 3 * P, P, true), Ok(()));
    assert_eq!(file.collapse_range(&space, P, P), Ok(()));
    assert_eq!(contents(&file), [vec![1; PAGE_SIZE], b"end".to_vec()].concat());
    assert_eq!(file.insert_range(&space, 0, 2 * P), Ok(()));
    assert_eq!(contents(&file), [vec![0; 2 * PAGE_SIZE], vec![1; PAGE_SIZE], b"end".to_vec()].concat());
    assert_eq!(file.pages(), 3);
    assert!(file.unwritten() == [(4, 5)], "reserved storage moves as well");
    file.check();
}

#[test]
fn collapsing_and_inserting_refuse_what_does_not_fit() {
    let (file, space) = written(0, &[1; 2 * PAGE_SIZE]);
    for (offset, len) in [(0, 0), (1, P), (0, P - 1), (P, P), (0, 4 * P)] {
        assert_eq!(file.collapse_range(&space, offset, len), Err(Errno::EINVAL), "{offset} {len}");
    }
    for (offset, len) in [(0, 0), (1, P), (0, P - 1), (2 * P, P), (8 * P, P)] {
        assert_eq!(file.insert_range(&space, offset, len), Err(Errno::EINVAL), "{offset} {len}");
    }
    let huge = (PAGES_MAX - 1) * P;
    assert_eq!(file.insert_range(&space, 0, huge), Err(Errno::EFBIG));
    assert_eq!(file.insert_range(&space, P, u64::MAX), Err(Errno::EFBIG));
    assert_eq!(file.collapse_range(&space, u64::MAX, u64::MAX), Err(Errno::EFBIG));
    assert_eq!(file.allocate(&space, FILE_SIZE_MAX - 1, 1, true), Ok(()));
    assert_eq!(file.insert_range(&space, 0, P), Err(Errno::EFBIG), "reserved storage would pass the limit");
    assert_eq!(contents(&file), [1; 2 * PAGE_SIZE]);
}

#[test]
fn ranges_that_no_file_can_hold_are_refused() {
    let (mut file, space) = (FileData::new(), Meter::new(u64::MAX));
    for keep_size in [false, true] {
        assert_eq!(file.allocate(&space, 5, 0, keep_size), Err(Errno::EINVAL));
        assert_eq!(file.zero_range(&space, 5, 0, keep_size), Err(Errno::EINVAL));
        for (offset, len) in [(FILE_SIZE_MAX, 1), (1, FILE_SIZE_MAX), (u64::MAX, u64::MAX)] {
            assert_eq!(file.allocate(&space, offset, len, keep_size), Err(Errno::EFBIG));
            assert_eq!(file.zero_range(&space, offset, len, keep_size), Err(Errno::EFBIG));
        }
    }
    assert_eq!((file.size(), file.pages()), (0, 0));
    assert_eq!(file.allocate(&space, 0, FILE_SIZE_MAX, false), Ok(()));
    assert_eq!(file.pages(), PAGES_MAX);
    file.clear(&space);
    assert_eq!(space.free.get(), u64::MAX);
}

#[test]
fn a_copy_shares_pages_until_one_side_writes() {
    let (mut src, space) = written(0, &[5; 2 * PAGE_SIZE + 10]);
    let mut dst = FileData::new();
    assert_eq!(dst.copy_from(&space, 0, &src, 0, u64::MAX), Ok(2 * P + 10));
    for index in 0..3 {
        assert!(dst.shares(index, &src, index), "page {index}, the short last one too");
    }
    assert_eq!(dst.pages(), 3, "a shared page counts for each file");
    src.write(&space, 3, b"src").unwrap();
    dst.write(&space, P, &[6; PAGE_SIZE]).unwrap();
    dst.truncate(&space, 2 * P + 5).unwrap();
    assert_eq!(contents(&src), [vec![5; 3], b"src".to_vec(), vec![5; 2 * PAGE_SIZE + 4]].concat());
    assert_eq!(contents(&dst), [vec![5; PAGE_SIZE], vec![6; PAGE_SIZE], vec![5; 5]].concat());
    src.clear(&space);
    assert_eq!(contents(&dst).len(), 2 * PAGE_SIZE + 5);
    dst.clear(&space);
    assert_eq!(space.free.get(), 1 << 60);
}

#[test]
fn a_whole_copy_shares_every_page_keeps_holes_and_fails_without_space() {
    let (src, _) = written(P, &[5; PAGE_SIZE + 10]);
    src.write(&Meter::new(1), 5 * P, b"x").unwrap();
    src.truncate(&Meter::new(0), 9 * P + 1).unwrap();
    let (dst, space) = (FileData::new(), Meter::new(3));
    assert_eq!(dst.copy_whole(&space, &src), Ok(()));
    assert!([1, 2, 5].iter().all(|&index| dst.shares(index, &src, index)));
    assert_eq!((dst.size(), dst.pages(), space.free.get()), (9 * P + 1, 3, 0));
    assert!(contents(&dst) == contents(&src));
    assert_eq!((dst.seek_hole(P), dst.seek_data(3 * P)), (Some(3 * P), Some(5 * P)));
    dst.check();
    assert_eq!(FileData::new().copy_whole(&Meter::new(2), &src), Err(Errno::ENOSPC));
    assert_eq!(FileData::new().copy_whole(&Meter::new(0), &src), Err(Errno::ENOSPC));
    assert_eq!(FileData::new().copy_whole(&Meter::new(0), &FileData::new()), Ok(()));
}

#[test]
fn the_short_last_page_is_not_shared_over_bytes_that_must_stay() {
    let (src, space) = written(0, b"short");
    let (dst, _) = written(0, b"longer text that stays");
    assert_eq!(dst.copy_from(&space, 0, &src, 0, 100), Ok(5));
    assert_eq!(contents(&dst), b"shortr text that stays");
}

#[test]
fn a_copied_hole_is_a_hole() {
    let (src, space) = written(0, &[1; PAGE_SIZE]);
    src.allocate(&space, P, P, false).unwrap();
    src.write(&space, 3 * P, &[4; PAGE_SIZE]).unwrap();
    src.truncate(&space, 9 * P).unwrap();
    let (dst, _) = written(0, &[9; 4 * PAGE_SIZE]);
    let before = space.free.get();
    assert_eq!(dst.copy_from(&space, 0, &src, 0, 9 * P), Ok(9 * P));
    assert_eq!((dst.size(), dst.pages()), (9 * P, 2));
    assert_eq!(space.free.get(), before + 2, "two pages of the destination became holes");
    assert_eq!(
        (dst.seek_hole(0), dst.seek_data(P), dst.seek_hole(3 * P)),
        (Some(P), Some(3 * P), Some(4 * P))
    );
    assert_eq!(contents(&dst), contents(&src));
}

#[test]
fn a_copy_that_runs_out_of_space_is_short_and_then_fails() {
    let (src, _) = written(0, &[3; 3 * PAGE_SIZE]);
    for skew in [0, 100] {
        let (space, dst) = (Meter::new(2), FileData::new());
        assert_eq!(dst.copy_from(&space, skew, &src, 0, 3 * P), Ok(2 * P - skew));
        assert_eq!(dst.size(), 2 * P);
        assert_eq!(dst.copy_from(&space, 2 * P, &src, 0, 1), Err(Errno::ENOSPC));
        assert_eq!(dst.copy_from(&space, 0, &src, src.size(), 1), Ok(0));
    }
}

#[test]
fn copying_within_a_file_reads_it_as_it_was() {
    let (file, space) = written(0, b"abcdef");
    assert_eq!(file.copy_from(&space, 6, &file, 0, 6), Ok(6));
    assert_eq!(contents(&file), b"abcdefabcdef");
    assert_eq!(file.copy_from(&space, P, &file, 0, u64::MAX), Ok(12));
    assert!(file.shares(0, &file, 1));
    assert_eq!(file.write(&space, 0, b"X"), Ok(1));
    assert_eq!(contents(&file)[PAGE_SIZE..], *b"abcdefabcdef");
    assert_eq!(file.copy_from(&space, 0, &file, u64::MAX, u64::MAX), Ok(0));
    file.check();
}

#[test]
fn a_reader_that_locks_pages_meets_one_page_in_two_places() {
    let (space, file) = (Meter::new(100), FileData::new());
    file.write(&space, 0, &[7; 2 * PAGE_SIZE]).expect("room");
    file.copy_from(&space, 2 * P, &file, 0, P).expect("room");
    file.copy_from(&space, 3 * P, &file, 0, P).expect("room");
    let mut read = [0; 4 * PAGE_SIZE];
    assert_eq!(file.read_here(0, &mut read), 4 * PAGE_SIZE);
    assert!(read.iter().all(|byte| *byte == 7));
}
