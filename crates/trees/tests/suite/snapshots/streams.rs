//! Streams: trees arrive as they were sent, or not at all.

use super::random_tree::RandomTree;
use super::tree_facts::of_snapshot;
use sluice_store::Store;
use sluice_sync::random::Random;
use sluice_trees::{receive, send};
use sluice_vfs::{Cred, FallocateMode, FileType, Fs, InodeFlags, OpenFlags, Options, Superblock, XattrFlags};
use std::io::{self, ErrorKind, Write};

/// A file system over a store in memory.
pub(super) fn over_store() -> Fs {
    let store = Store::in_memory(Options::default().store.background(false)).expect("memory");
    Fs::create_in(store, Options::default()).expect("an empty store")
}

pub(super) fn stream(from: &Superblock, name: &str, since: Option<&str>) -> Vec<u8> {
    let mut stream = Vec::new();
    send(from, name.as_bytes(), since.map(str::as_bytes), None, &mut stream).expect("it is there");
    stream
}

pub(super) fn take(fs: &Fs, name: &str) {
    fs.superblock().take_snapshot(name.as_bytes()).expect("room");
}

fn names(fs: &Fs) -> Vec<String> {
    let names = fs.superblock().snapshots().expect("readable");
    names.into_iter().map(|name| String::from_utf8(name).expect("text")).collect()
}

/// Checks that `stream` is refused, with one line, and that `fs` has the snapshots that it had.
pub(super) fn is_refused(fs: &Fs, stream: &[u8]) -> String {
    // The directory of the snapshots stays.
    drop(fs.superblock().begin_snapshot(None));
    let (before, inodes) = (names(fs), live(fs));
    let error = receive(fs.superblock(), stream).expect_err("it is wrong");
    assert_eq!(names(fs), before, "{error}");
    // The received part goes.
    drop(fs.superblock().begin_snapshot(None));
    assert_eq!(live(fs), inodes, "{error}");
    let line = error.to_string();
    assert!(!line.contains('\n') && !line.is_empty(), "{line}");
    line
}

/// How many inodes there are.
pub(super) fn live(fs: &Fs) -> u64 {
    fs.settle();
    fs.superblock().live_inodes()
}

/// Sends a hundred generations of a tree that `change` changes, one after the other, and checks that each arrives as it was.
fn sends_a_hundred_generations(change: fn(&mut RandomTree, u64)) {
    for (seed, from, to) in [(1, Fs::new(), over_store()), (2, over_store(), Fs::new())] {
        let mut tree = RandomTree::new(&from, seed);
        tree.change(300);
        let mut before: Option<String> = None;
        for generation in 0..100_u64 {
            let name = format!("g{generation}");
            take(&from, &name);
            let changes = stream(from.superblock(), &name, before.as_deref());
            let received = receive(to.superblock(), &*changes);
            assert_eq!(received.as_deref().map_err(ToString::to_string), Ok(name.as_bytes()), "seed {seed}");
            let (sent, there) = (of_snapshot(from.superblock(), &name), of_snapshot(to.superblock(), &name));
            for (path, facts) in &sent {
                let path = String::from_utf8_lossy(path);
                assert!(there.get(path.as_bytes()) == Some(facts), "seed {seed}, {name}: {path} differs");
            }
            assert_eq!(sent.len(), there.len(), "seed {seed}, {name}");
            if let Some(before) = before.replace(name) {
                from.superblock().drop_snapshot(before.as_bytes()).expect("it is there");
                if generation % 10 > 0 {
                    to.superblock().drop_snapshot(before.as_bytes()).expect("it is there");
                }
            }
            change(&mut tree, generation);
        }
        for fs in [&from, &to] {
            fs.settle();
            assert!(fs.check().is_clean(), "{}", fs.check());
        }
    }
}

#[test]
fn a_hundred_generations_that_are_sent_one_after_the_other_arrive_as_they_were() {
    sends_a_hundred_generations(|tree, generation| tree.change(1 + generation % 40));
}

#[test]
fn a_hundred_generations_of_renames_arrive_as_they_were() {
    sends_a_hundred_generations(|tree, generation| {
        tree.rename(1 + generation % 30);
        tree.change(generation % 3);
    });
}

/// Two snapshots, and the streams of the first one and of what changed since.
fn two_snapshots() -> (Fs, Vec<u8>, Vec<u8>) {
    let fs = Fs::new();
    let mut tree = RandomTree::new(&fs, 7);
    tree.change(120);
    take(&fs, "one");
    tree.change(60);
    take(&fs, "two");
    let (whole, changes) =
        (stream(fs.superblock(), "one", None), stream(fs.superblock(), "two", Some("one")));
    (fs, whole, changes)
}

#[test]
fn a_stream_that_is_cut_anywhere_is_refused_and_can_be_received_again() {
    let (_, whole, changes) = two_snapshots();
    let to = over_store();
    let mut random = Random::new(3);
    let cut = |to: &Fs, stream: &[u8], random: &mut Random| {
        for at in (0..60).chain((0..60).map(|_| random.below(stream.len() as u64) as usize)) {
            let line = is_refused(to, &stream[..at.min(stream.len() - 1)]);
            assert!(line.starts_with("the stream was cut off: send it again"), "{at}: {line}");
        }
    };
    cut(&to, &whole, &mut random);
    receive(to.superblock(), &*whole).expect("it is whole");
    cut(&to, &changes, &mut random);
    receive(to.superblock(), &*changes).expect("it is whole");
    assert_eq!(names(&to), ["one", "two"]);
}

#[test]
fn a_stream_of_an_earlier_version_is_received() {
    let from = Fs::new();
    from.write("/a", "text").expect("room");
    take(&from, "one");
    let mut older = stream(from.superblock(), "one", None);
    // Without the second frame, and with checksums that fit.
    let frames = frames_of(&older);
    assert_eq!(frames[1][0], b'Y');
    older.truncate(12);
    older[8] = 1;
    let mut crc = crc32c::crc32c(&older);
    for frame in frames.iter().enumerate().filter(|(at, _)| *at != 1).map(|(_, frame)| frame) {
        let len = (frame.len() as u32).to_le_bytes();
        let head = crc32c::crc32c_append(crc32c::crc32c(&crc.to_le_bytes()), &len);
        crc = crc32c::crc32c_append(head, frame);
        older.extend_from_slice(&len);
        older.extend_from_slice(&crc.to_le_bytes());
        older.extend_from_slice(frame);
    }
    let to = Fs::new();
    assert!(!is_refused(&to, &older[..older.len() - 1]).contains("--resume"), "it has no identity");
    receive(to.superblock(), &*older).expect("it is whole");
    assert_eq!(to.read_to_string("/.snapshots/one/a"), Ok("text".into()));
}

fn frames_of(stream: &[u8]) -> Vec<Vec<u8>> {
    let (mut frames, mut at) = (Vec::new(), 12);
    while at < stream.len() {
        let len = u32::from_le_bytes(stream[at..at + 4].try_into().expect("four bytes")) as usize;
        frames.push(stream[at + 8..at + 8 + len].to_vec());
        at += 8 + len;
    }
    frames
}

#[test]
fn a_stream_of_which_any_byte_is_another_is_refused() {
    let (_, whole, _) = two_snapshots();
    let (to, mut random) = (Fs::new(), Random::new(4));
    let places: Vec<usize> = (0..200).map(|_| random.below(whole.len() as u64) as usize).collect();
    for at in (0..80).chain(places) {
        let mut stream = whole.clone();
        stream[at] ^= 1 << random.below(8);
        is_refused(&to, &stream);
    }
}

#[test]
fn parts_that_come_twice_are_missing_or_are_in_another_order_are_refused() {
    let (_, whole, changes) = two_snapshots();
    let (to, mut random) = (Fs::new(), Random::new(5));
    let mut starts = vec![12];
    while let Some(at) = starts.last().copied().filter(|at| *at < whole.len()) {
        let len = u32::from_le_bytes(whole[at..at + 4].try_into().expect("four bytes"));
        starts.push(at + 8 + len as usize);
    }
    for _ in 0..200 {
        let at = |random: &mut Random| random.pick(&starts);
        let mut places = [at(&mut random), at(&mut random), at(&mut random)];
        places.sort_unstable();
        let [first, second, third] = places;
        if first < second {
            is_refused(&to, &[&whole[..second], &whole[first..]].concat());
            is_refused(&to, &[&whole[..first], &whole[second..]].concat());
        }
        if first < second && second < third && whole[first..second] != whole[second..third] {
            let parts = [&whole[..first], &whole[second..third], &whole[first..second], &whole[third..]];
            is_refused(&to, &parts.concat());
        }
    }
    is_refused(&to, &[&*whole, &*whole].concat());
    is_refused(&to, &[&*whole, &*changes].concat());
    assert_eq!(is_refused(&to, &[&*whole, b"x"].concat()), "bytes follow the end of the stream");
}

#[test]
fn what_goes_on_from_another_snapshot_is_refused() {
    let (from, whole, changes) = two_snapshots();
    let to = Fs::new();
    let line = is_refused(&to, &changes);
    assert!(line.contains("snapshot one "), "{line}");
    assert!(line.contains("is not here, and the stream goes on from it"), "{line}");
    // One of the same name, that is not the same.
    RandomTree::new(&to, 8).change(50);
    take(&to, "one");
    let line = is_refused(&to, &changes);
    assert!(line.contains("is not the one"), "{line}");
    assert!(is_refused(&to, &whole).contains("there already"), "a name is not taken twice");
    // It differs in one time of one file.
    let to = Fs::new();
    receive(to.superblock(), &*whole).expect("it is whole");
    let other = Fs::new();
    receive(other.superblock(), &*whole).expect("it is whole");
    other.superblock().drop_snapshot(b"one").expect("it is there");
    let mut tree = RandomTree::new(&from, 7);
    tree.change(1);
    take(&from, "three");
    from.superblock().drop_snapshot(b"one").expect("it is there");
    assert!(send(from.superblock(), b"two", Some(b"one"), None, io::sink()).is_err());
    receive(to.superblock(), &*changes).expect("it fits");
    receive(to.superblock(), &*stream(from.superblock(), "three", Some("two"))).expect("it fits");
    assert_eq!(names(&to), ["one", "three", "two"]);
}

#[test]
fn what_is_no_stream_is_refused() {
    let (to, mut random) = (Fs::new(), Random::new(6));
    for len in 0..300 {
        let bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
        is_refused(&to, &bytes);
        let mut headed = stream_head();
        headed.extend_from_slice(&bytes);
        is_refused(&to, &headed);
    }
    let mut newer = stream_head();
    newer[8] = 3;
    assert!(is_refused(&to, &newer).contains("newer sluice"));
    // A frame says that it is four gigabytes long.
    let line = is_refused(&to, &[&stream_head(), &[0xff; 8][..]].concat());
    assert!(line.contains("the stream is damaged, or put together wrongly"), "{line}");
}

fn stream_head() -> Vec<u8> {
    b"sluicesn\x02\0\0\0".to_vec()
}

#[test]
fn a_full_file_system_is_as_before() {
    let from = Fs::new();
    from.write("/big", vec![1; 3 << 20]).expect("room");
    take(&from, "one");
    let to = Options::default().size_limit(2 << 20).build();
    let line = is_refused(&to, &stream(from.superblock(), "one", None));
    assert!(line.contains("No space left"), "{line}");
    assert!(to.check().is_clean());
}

#[test]
fn a_reader_that_leaves_is_told_by_its_error() {
    struct Leaving(usize);
    impl Write for Leaving {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (from, whole, _) = two_snapshots();
    for room in [0, 12, 100, whole.len() - 1] {
        let error = send(from.superblock(), b"one", None, None, Leaving(room)).expect_err("nobody reads");
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
    }
}

#[test]
fn one_stream_is_received_at_a_time() {
    let (_, whole, _) = two_snapshots();
    let to = Fs::new();
    let begun = to.superblock().begin_snapshot(None).expect("room");
    assert!(is_refused(&to, &whole).contains("another stream"));
    assert!(to.read_dir("/").expect("readable").next().is_none(), "no listing has it");
    take(&to, "meanwhile");
    assert!(of_snapshot(to.superblock(), "meanwhile").len() == 1, "no snapshot has it");
    drop(begun);
    to.create_dir_all("/.receiving/of-a-user").expect("room");
    assert!(is_refused(&to, &whole).contains("is in the way"));
    to.rename("/.receiving", "/renamed").expect("it is a user's");
    receive(to.superblock(), &*whole).expect("it is whole");
    assert!(to.exists("/renamed/of-a-user"));
}

#[test]
fn a_change_sends_what_changed() {
    let fs = over_store();
    fs.write("/big", vec![1; 8 << 20]).expect("room");
    fs.hard_link("/big", "/other").expect("room");
    fs.create_dir_all("/dir/below").expect("room");
    take(&fs, "one");
    let process = fs.process(Cred::root());
    let fd = process.open("/big", OpenFlags::WRONLY, 0).expect("it is there");
    process.pwrite(fd, &[2; 4096], 4 << 20).expect("room");
    process.close(fd).expect("it is open");
    fs.hard_link("/other", "/dir/below/third").expect("room");
    fs.write("/dir/new", "few").expect("room");
    take(&fs, "two");
    let changes = stream(fs.superblock(), "two", Some("one"));
    assert!(changes.len() < 10_000, "{} bytes", changes.len());
    let to = Fs::new();
    receive(to.superblock(), &*stream(fs.superblock(), "one", None)).expect("it is whole");
    receive(to.superblock(), &*changes).expect("it is whole");
    assert!(of_snapshot(fs.superblock(), "two") == of_snapshot(to.superblock(), "two"));
}

#[test]
fn flags_that_files_have_from_their_directory_arrive() {
    let fs = Fs::new();
    let process = fs.process(Cred::root());
    fs.create_dir("/dir").expect("room");
    let fd = process.open("/dir", OpenFlags::RDONLY, 0).expect("it is there");
    let set = |flags| process.ioctl_setflags(fd, flags).expect("root may");
    let make = |name: &str| {
        process.symlink("target", format!("/dir/link-{name}")).expect("room");
        process.mknod(format!("/dir/fifo-{name}"), FileType::Fifo, 0o600, 0).expect("room");
        fs.write(format!("/dir/file-{name}"), "text").expect("room");
    };
    make("plain");
    set(InodeFlags::NODUMP);
    make("nodump");
    take(&fs, "one");
    make("more");
    set(InodeFlags::NOATIME);
    make("noatime");
    take(&fs, "two");
    let to = over_store();
    for (name, since) in [("one", None), ("two", Some("one"))] {
        receive(to.superblock(), &*stream(fs.superblock(), name, since)).expect("it is whole");
        assert!(of_snapshot(fs.superblock(), name) == of_snapshot(to.superblock(), name), "{name}");
    }
}

#[test]
fn files_that_may_not_be_changed_arrive_and_change() {
    let fs = Fs::new();
    fs.create_dir("/fixed").expect("room");
    fs.write("/fixed/file", "one").expect("room");
    let process = fs.process(Cred::root());
    let set = |flags: InodeFlags| {
        for path in ["/fixed/file", "/fixed"] {
            let fd = process.open(path, OpenFlags::RDONLY, 0).expect("it is there");
            process.ioctl_setflags(fd, flags).expect("root may");
            process.close(fd).expect("it is open");
        }
    };
    set(InodeFlags::IMMUTABLE);
    take(&fs, "one");
    set(InodeFlags::empty());
    fs.write("/fixed/file", "two").expect("it may change");
    fs.write("/fixed/new", "new").expect("it may change");
    set(InodeFlags::IMMUTABLE);
    take(&fs, "two");
    let to = over_store();
    for (name, since) in [("one", None), ("two", Some("one"))] {
        receive(to.superblock(), &*stream(fs.superblock(), name, since)).expect("it is whole");
        assert!(of_snapshot(fs.superblock(), name) == of_snapshot(to.superblock(), name), "{name}");
    }
}

#[test]
fn a_file_capability_that_stays_the_same_arrives_with_other_contents_and_another_owner() {
    let value = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let fs = Fs::new();
    let root = fs.process(Cred::root());
    let names = ["/contents", "/size", "/hole", "/owner", "/mode", "/same", "/linked"];
    let set = || {
        for name in names {
            root.setxattr(name, b"security.capability", &value, XattrFlags::empty()).expect("root may");
        }
    };
    names.iter().for_each(|name| fs.write(name, vec![7; 100_000]).expect("room"));
    fs.hard_link("/linked", "/second").expect("room");
    set();
    take(&fs, "one");
    let fd = root.open("/hole", OpenFlags::WRONLY, 0).expect("it is there");
    let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    fs.write("/contents", vec![8; 100_000]).expect("room");
    fs.append("/linked", "more").expect("room");
    root.truncate("/size", 5).expect("root may");
    root.fallocate(fd, punch, 0, 65_536).expect("room");
    root.chown("/owner", Some(5), None).expect("root may");
    root.chmod("/mode", 0o711).expect("root may");
    set();
    take(&fs, "two");
    let to = over_store();
    for (name, since) in [("one", None), ("two", Some("one"))] {
        receive(to.superblock(), &*stream(fs.superblock(), name, since)).expect("it is whole");
        assert!(of_snapshot(fs.superblock(), name) == of_snapshot(to.superblock(), name), "{name}");
    }
}

#[test]
fn a_file_that_lost_a_name_within_a_tick_of_the_clock_arrives() {
    for round in 0..20 {
        let (from, to) = (Fs::new(), over_store());
        from.create_dir("/gone").expect("room");
        from.write("/kept", "text").expect("room");
        from.hard_link("/kept", "/gone/name").expect("room");
        take(&from, "one");
        from.remove_dir_all("/gone").expect("it is there");
        take(&from, "two");
        for (name, since) in [("one", None), ("two", Some("one"))] {
            let sent = stream(from.superblock(), name, since);
            receive(to.superblock(), &*sent).unwrap_or_else(|error| panic!("round {round}, {name}: {error}"));
        }
        assert!(of_snapshot(from.superblock(), "two") == of_snapshot(to.superblock(), "two"));
    }
}
