//! Scrubs: of damaged stores, of stores in use, and of stores that are mounted again meanwhile.

use super::crash_tests::shared;
use super::tests::pattern;
use crate::{File, Fs, Options, ScrubState, SnapshotPeriod, StoreOptions, Superblock, Timestamp};
use sluice_store::disk::crash::CrashDisk;
use sluice_sync::face::HOSTS_SHARE;
use sluice_sync::thread;

const CHUNK: usize = 65_536;
/// Bytes of a step: those of one chunk.
const STEP: u64 = CHUNK as u64;

fn options() -> Options {
    let store = StoreOptions::default().log_size(1 << 20).segment_size(4 << 20).background(false);
    Options { store, ..Options::default() }
}

/// A store with files `/dir/0` to `/dir/9` of two chunks each, closed.
fn filled() -> CrashDisk {
    let disk = CrashDisk::new();
    let fs = Fs::with_superblock(Superblock::create_on(shared(&disk), options()).expect("an empty disk"));
    fs.create_dir_all("/dir").expect("room");
    for number in 0..10 {
        fs.write(format!("/dir/{number}"), pattern(number * 7, 2 * CHUNK)).expect("room");
    }
    fs.superblock().close().expect("the disk works");
    disk
}

fn open(disk: &CrashDisk) -> Fs {
    Fs::with_superblock(Superblock::open_on(shared(disk), options()).expect("it was closed"))
}

/// The place in the segments of the bytes of `/dir/{number}`: its file, and the offset.
fn place_of(disk: &CrashDisk, number: usize) -> (String, usize) {
    let (bytes, files) = (pattern(number * 7, 4096), disk.files());
    let found = files.iter().filter(|(name, _)| name.starts_with("segment")).find_map(|(name, content)| {
        let at = content.windows(4096).step_by(4096).position(|page| page == bytes)?;
        Some((name.clone(), at * 4096))
    });
    found.expect("it is in a segment")
}

/// Steps until the scrub is over.
fn whole(fs: &Fs) -> ScrubState {
    loop {
        let state = fs.superblock().scrub(STEP, false).expect("the disk works");
        if state.finished.is_some() {
            return state;
        }
    }
}

#[test]
fn a_scrub_reads_all_data_once_and_finds_nothing_in_a_sound_store() {
    if !HOSTS_SHARE {
        return;
    }
    let disk = filled();
    let fs = open(&disk);
    fs.clone_tree("/dir", "/copy").expect("room");
    fs.superblock().sync().expect("the disk works");
    assert_eq!(fs.superblock().scrub(0, false).expect("a store"), ScrubState::default());
    let state = whole(&fs);
    assert_eq!((state.bytes, state.of, state.damaged), (20 * STEP, 20 * STEP, 0));
    assert!(state.started <= state.finished);
    assert_eq!(fs.superblock().scrub(0, false).expect("a store"), state);
}

/// Flips a bit at byte `at` of the contents of `/dir/{number}` on the disk, which is in use.
fn flip(disk: &CrashDisk, number: usize, at: usize) {
    let (name, start) = place_of(disk, number);
    let file = shared(disk).open(&name).expect("it is there");
    let mut byte = [0];
    file.read_at(&mut byte, (start + at) as u64).expect("within");
    file.write_at(&[byte[0] ^ 4], (start + at) as u64).expect("within");
}

#[test]
fn a_flipped_bit_is_found_in_each_file_that_has_the_extent_although_memory_has_the_bytes() {
    if !HOSTS_SHARE {
        return;
    }
    let disk = filled();
    let fs = open(&disk);
    fs.create_dir_all("/more/below").expect("room");
    fs.clone_tree("/dir/4", "/more/below/copy").expect("room");
    fs.superblock().sync().expect("the disk works");
    for number in [2, 4] {
        assert_eq!(fs.read(format!("/dir/{number}")).expect("sound"), pattern(number * 7, 2 * CHUNK));
        flip(&disk, number, 4096 + 3);
    }
    let state = whole(&fs);
    let mut found: Vec<_> = state
        .findings
        .iter()
        .map(|finding| {
            assert!(finding.reason.contains("segment"), "{finding:?}");
            (finding.path.clone().expect("it has a name").display().to_string(), finding.offset)
        })
        .collect();
    found.sort();
    let paths = ["/dir/2", "/dir/4", "/more/below/copy"];
    assert_eq!(found, paths.map(|path| (path.to_owned(), Some(4096))));
    // The extent of two files is read for each, since it is damaged.
    assert_eq!((state.damaged, state.bytes), (3, 21 * STEP));
    let counts = fs.superblock().scrub_counts().expect("a store");
    assert_eq!(counts, ScrubState { findings: Vec::new(), ..state.clone() });
    // A second scrub finds the same; a file that is removed is damaged no more.
    assert_eq!(whole(&fs).findings, state.findings);
    fs.remove_file("/dir/2").expect("it is there");
    fs.settle();
    assert_eq!(whole(&fs).damaged, 2);
    // Its extent stays for its other pages; the damaged page is written anew.
    let file = File::options().write(true).open(&fs, "/dir/4").expect("it is there");
    file.write_all_at(&pattern(0, 4096), 4096).expect("room");
    let state = whole(&fs);
    assert_eq!(state.findings[0].path.as_deref(), Some("/more/below/copy".as_ref()));
    assert_eq!(state.damaged, 1);
}

#[test]
fn files_that_change_and_go_while_they_are_read_are_not_damaged() {
    if !HOSTS_SHARE {
        return;
    }
    let disk = filled();
    let fs = open(&disk);
    let mut finished = 0;
    for round in 0..400 {
        let path = format!("/dir/{}", round * 7 % 10);
        match round % 5 {
            0 => fs.remove_file(&path).expect("it is there"),
            1 => fs.write(format!("/dir/{}", (round - 1) * 7 % 10), pattern(round, 3 * CHUNK)).expect("room"),
            _ => fs.write(&path, pattern(round, (1 + round % 4) * CHUNK / 2)).expect("room"),
        }
        fs.settle();
        if round % 3 == 0 {
            fs.superblock().sync().expect("the disk works");
        }
        let state = fs.superblock().scrub(STEP, false).expect("the disk works");
        assert_eq!(state.findings, [], "round {round}");
        finished += u32::from(state.finished.is_some());
    }
    assert!(finished > 10, "{finished} scrubs");
    fs.superblock().close().expect("the disk works");
    let report = Superblock::check_store(shared(&disk), &mut |_| ()).expect("a store");
    assert_eq!(report.findings, []);
}

#[test]
fn a_scrub_goes_on_after_the_next_mount_and_anew_if_told_to() {
    if !HOSTS_SHARE {
        return;
    }
    let disk = filled();
    let fs = open(&disk);
    flip(&disk, 0, 100);
    let mut state = ScrubState::default();
    while state.damaged == 0 {
        state = fs.superblock().scrub(STEP, false).expect("the disk works");
    }
    fs.superblock().close().expect("the disk works");
    let fs = open(&disk);
    let resumed = fs.superblock().scrub(0, false).expect("a store");
    assert_eq!((resumed.damaged, resumed.bytes, resumed.finished), (1, state.bytes, None));
    assert_eq!(whole(&fs).bytes, 20 * STEP);
    fs.superblock().scrub(STEP, false).expect("the disk works");
    let anew = fs.superblock().scrub(STEP, true).expect("the disk works");
    assert!(anew.bytes <= 2 * STEP && anew.started >= resumed.started);
    fs.superblock().close().expect("the disk works");
    let report = Superblock::check_store(shared(&disk), &mut |_| ()).expect("a store");
    assert_eq!(report.found, 1, "{:?}", report.findings);
}

/// 23:07:05 on Saturday, 28 November 2026.
const SATURDAY: i64 = 1_795_907_225;
const DAY: i64 = 24 * 60 * 60;

fn at(sec: i64) -> Timestamp {
    Timestamp { sec, nsec: 0 }
}

/// Steps by the clock at `sec` until nothing is due: how many there were.
fn by_clock(fs: &Fs, period: SnapshotPeriod, sec: i64) -> u32 {
    let step = || fs.superblock().scrub_by_clock(period, at(sec)).expect("the disk works");
    (0..).find(|_| step().is_none()).expect("it ends")
}

#[test]
fn by_the_clock_one_scrub_begins_in_each_period_and_the_store_remembers_the_last_end() {
    if !HOSTS_SHARE {
        return;
    }
    let disk = filled();
    let state = |fs: &Fs| fs.superblock().scrub_counts().expect("a store");
    let fs = open(&disk);
    assert!(by_clock(&fs, SnapshotPeriod::Weekly, SATURDAY) > 1);
    assert_eq!((state(&fs).last_end, state(&fs).bytes), (Some(at(SATURDAY)), 20 * STEP));
    // The week ends after Sunday, whatever is mounted meanwhile.
    assert_eq!(by_clock(&fs, SnapshotPeriod::Weekly, SATURDAY + DAY), 0);
    fs.superblock().close().expect("the disk works");
    let fs = open(&disk);
    assert_eq!(by_clock(&fs, SnapshotPeriod::Weekly, SATURDAY + DAY), 0);
    assert_eq!(by_clock(&fs, SnapshotPeriod::Monthly, SATURDAY + DAY), 0);
    // After a long pause there is one; it is left when something is found.
    flip(&disk, 0, 100);
    let late = SATURDAY + 100 * DAY;
    while state(&fs).damaged == 0 {
        let step = fs.superblock().scrub_by_clock(SnapshotPeriod::Weekly, at(late)).expect("the disk works");
        assert!(step.is_some());
    }
    let left = state(&fs);
    assert_eq!((left.started, left.finished, left.last_end), (Some(at(late)), None, Some(at(SATURDAY))));
    fs.superblock().close().expect("the disk works");
    let fs = open(&disk);
    assert_eq!(state(&fs), left);
    // It goes on, also in a later week, where another one begins then.
    assert!(by_clock(&fs, SnapshotPeriod::Weekly, late + 8 * DAY) > 2);
    let ended = state(&fs);
    assert_eq!((ended.started, ended.last_end), (Some(at(late + 8 * DAY)), Some(at(late + 8 * DAY))));
    // A clock that was set back has one more scrub done.
    assert!(by_clock(&fs, SnapshotPeriod::Weekly, SATURDAY) > 1);
    assert_eq!(by_clock(&fs, SnapshotPeriod::Weekly, SATURDAY), 0);
    fs.superblock().close().expect("the disk works");
    let report = Superblock::check_store(shared(&disk), &mut |_| ()).expect("a store");
    assert_eq!(report.found, 1, "{:?}", report.findings);
}

#[test]
fn the_thread_scrubs_what_is_due_at_once_and_ends_before_the_store_is_closed() {
    if !HOSTS_SHARE {
        return;
    }
    let disk = filled();
    let scrubbed = options().scrub(SnapshotPeriod::Monthly);
    let fs = Fs::with_superblock(Superblock::open_on(shared(&disk), scrubbed).expect("it was closed"));
    while fs.superblock().scrub_counts().expect("a store").last_end.is_none() {
        thread::yield_now();
    }
    assert_eq!(fs.superblock().scrub_failure(), None);
    assert_eq!(fs.superblock().scrub_counts().expect("a store").bytes, 20 * STEP);
    fs.superblock().close().expect("the disk works");
    let in_memory = Options::default().scrub(SnapshotPeriod::Monthly).build();
    assert!(in_memory.superblock().scrub_thread.get().is_none());
}
