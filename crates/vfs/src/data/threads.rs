//! Threads at work in one file: what single calls promise each other.

use super::*;
use sluice_sync::atomic::AtomicBool;
use sluice_sync::thread;

/// Calls of each thread.
const ROUNDS: u64 = 4_000;
/// An offset and a length that begin and end within pages and touch three.
const OFFSET: u64 = PAGE - 100;
const LEN: usize = PAGE_SIZE + 200;

/// The same within the bytes for which a first page may have memory.
const SMALL_OFFSET: u64 = 10;
const SMALL_LEN: usize = 200;

/// A space without limit.
struct Endless;

impl Space for Endless {
    fn reserve(&self, _: u64) -> Result<(), Errno> {
        Ok(())
    }
    fn release(&self, _: u64) {}
}

fn with_file(test: impl FnOnce(&FileData)) {
    if !sluice_sync::face::HOSTS_SHARE {
        // There the CPUs of a machine share a file: `vfs-sim/tests/suite/file_data.rs`.
        return;
    }
    let mut file = FileData::new();
    test(&file);
    file.check();
    file.clear(&Endless);
}

/// Runs `others` in threads of their own until `reads` of the range that they work on have been taken by each
/// of two readers, who pass what they got to `check`.
fn read_beside(file: &FileData, others: &[&(dyn Fn(u64) + Sync)], reads: u64, check: impl Fn(&[u8]) + Sync) {
    read_range_beside::<LEN>(file, OFFSET, others, reads, check);
}

/// [`read_beside`] for the `BYTES` bytes at `offset`.
fn read_range_beside<const BYTES: usize>(
    file: &FileData,
    offset: u64,
    others: &[&(dyn Fn(u64) + Sync)],
    reads: u64,
    check: impl Fn(&[u8]) + Sync,
) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for other in others {
            let done = &done;
            scope.spawn(move || {
                (1..).take_while(|_| !done.load(Ordering::Relaxed)).for_each(other);
            });
        }
        let reader = || {
            let mut buf = [0; BYTES];
            for _ in 0..reads {
                let len = file.read(offset, &mut buf).expect("all is in memory");
                check(&buf[..len]);
            }
        };
        let second = scope.spawn(reader);
        reader();
        second.join().expect("the reader ends");
        done.store(true, Ordering::Relaxed);
    });
}

fn assert_untorn(bytes: &[u8]) {
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn");
}

fn written(file: &FileData, offset: u64, bytes: &[u8]) {
    assert_eq!(file.write(&Endless, offset, bytes), Ok(bytes.len()));
}

#[test]
fn a_read_sees_overlapping_overwrites_whole_or_not_at_all() {
    with_file(|file| {
        written(file, 0, &[0; 4 * PAGE_SIZE]);
        let write = |round| written(file, OFFSET, &[round as u8; LEN]);
        read_beside(file, &[&write, &write], ROUNDS, assert_untorn);
    });
}

#[test]
fn a_read_sees_a_write_into_holes_and_their_punching_whole_or_not_at_all() {
    with_file(|file| {
        written(file, 4 * PAGE, b"end");
        let write = |round| written(file, OFFSET, &[round as u8; LEN]);
        let punch = |_| file.punch_hole(&Endless, OFFSET, LEN as u64);
        read_beside(file, &[&write, &punch], ROUNDS, assert_untorn);
    });
}

#[test]
fn a_read_sees_an_extending_write_and_a_truncation_whole_or_not_at_all() {
    with_file(|file| {
        let write = |round| written(file, OFFSET, &[round as u8; LEN]);
        let truncate = |_| assert_eq!(file.truncate(&Endless, OFFSET), Ok(()));
        read_beside(file, &[&write, &truncate], ROUNDS, |bytes| {
            assert!(bytes.is_empty() || bytes.len() == LEN, "{} bytes", bytes.len());
            assert_untorn(bytes);
        });
    });
}

#[test]
fn a_read_sees_a_write_for_which_the_first_page_grows_whole_or_not_at_all() {
    with_file(|file| {
        written(file, 0, b"short page");
        let write = |round| written(file, SMALL_OFFSET, &[round as u8; SMALL_LEN]);
        let truncate = |_| assert_eq!(file.truncate(&Endless, SMALL_OFFSET), Ok(()));
        read_range_beside::<SMALL_LEN>(file, SMALL_OFFSET, &[&write, &truncate], ROUNDS, |bytes| {
            assert!(bytes.is_empty() || bytes.len() == SMALL_LEN, "{} bytes", bytes.len());
            assert_untorn(bytes);
        });
    });
}

#[test]
fn what_is_written_to_a_page_that_others_make_longer_or_share_stays() {
    with_file(|file| {
        written(file, 0, &[0; 8]);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    (0..20)
                        .for_each(|_| assert_eq!(file.append(&Endless, &[1; 100]).map(|(_, n)| n), Ok(100)));
                    let mut copy = FileData::new();
                    copy.copy_whole(&Endless, file).expect("there is room");
                    assert_eq!(file.truncate(&Endless, SMALL_OFFSET), Ok(()));
                    copy.clear(&Endless);
                }
            });
            for round in 0..ROUNDS {
                written(file, 0, &round.to_ne_bytes());
                let mut bytes = [0; 8];
                assert_eq!(file.read(0, &mut bytes), Some(8));
                assert_eq!(u64::from_ne_bytes(bytes), round);
            }
            done.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn a_write_to_shared_pages_is_seen_whole_and_does_not_show_in_the_copy() {
    with_file(|file| {
        written(file, 0, &[1; 4 * PAGE_SIZE]);
        let write = |round| written(file, OFFSET, &[round as u8; LEN]);
        let copy = |_| {
            let mut copy = FileData::new();
            let copied = copy.copy_from(&Endless, 0, file, 0, 4 * PAGE);
            assert_eq!(copied, Ok(4 * PAGE));
            let mut before = [0; LEN];
            assert_eq!(copy.read(OFFSET, &mut before), Some(LEN));
            assert_untorn(&before);
            thread::yield_now();
            let mut after = [0; LEN];
            assert_eq!(copy.read(OFFSET, &mut after), Some(LEN));
            assert!(before == after, "a write to the original shows in the copy");
            copy.clear(&Endless);
        };
        read_beside(file, &[&write, &copy], ROUNDS, assert_untorn);
    });
}

#[test]
fn a_write_goes_where_its_offset_is_while_pages_move() {
    with_file(|file| {
        // Page 0 is all ones, the others move up and down behind it and hold their own bytes.
        written(file, 0, &[1; PAGE_SIZE]);
        written(file, PAGE, &[2; 3 * PAGE_SIZE]);
        let shift = |_| {
            assert_eq!(file.insert_range(&Endless, PAGE, PAGE), Ok(()));
            assert_eq!(file.collapse_range(&Endless, PAGE, PAGE), Ok(()));
        };
        let write = |_| {
            written(file, 0, &[1; PAGE_SIZE]);
            written(file, 2 * PAGE, &[2; PAGE_SIZE]);
        };
        read_beside(file, &[&shift, &write], ROUNDS, |bytes| {
            assert!(bytes[..100].iter().all(|byte| *byte == 1), "page 0 holds what was written elsewhere");
            assert!(bytes[100..].iter().all(|byte| [0, 2].contains(byte)), "ones beyond page 0");
        });
    });
}

#[test]
fn appends_come_one_after_the_other_and_lose_nothing() {
    with_file(|file| {
        const THREADS: u64 = 4;
        thread::scope(|scope| {
            for name in 0..THREADS {
                scope.spawn(move || {
                    let record = [name as u8; 100];
                    (0..ROUNDS)
                        .for_each(|_| assert_eq!(file.append(&Endless, &record).map(|(_, n)| n), Ok(100)));
                });
            }
        });
        assert_eq!(file.size(), THREADS * ROUNDS * 100);
        let mut bytes = vec![0; file.size() as usize];
        assert_eq!(file.read(0, &mut bytes), Some(bytes.len()));
        let mut counts = [0; THREADS as usize];
        for record in bytes.chunks_exact(100) {
            assert_untorn(record);
            counts[usize::from(record[0])] += 1;
        }
        assert_eq!(counts, [ROUNDS; THREADS as usize]);
    });
}

#[test]
fn writers_of_neighbouring_pages_do_not_disturb_each_other() {
    with_file(|file| {
        written(file, 0, &[0; 4 * PAGE_SIZE]);
        thread::scope(|scope| {
            for page in 0..4 {
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let bytes = [round as u8; PAGE_SIZE];
                        written(file, page * PAGE, &bytes);
                        let mut read = [0; PAGE_SIZE];
                        assert_eq!(file.read(page * PAGE, &mut read), Some(PAGE_SIZE));
                        assert!(read == bytes);
                    }
                });
            }
        });
    });
}
