//! Streams: trees arrive as they were sent, or not at all.

use super::random_tree::RandomTree;
use super::tree_facts::of_snapshot;
use sluice_store::Store;
use sluice_sync::random::Random;
use sluice_trees::{receive, send};
use sluice_vfs::{Cred, Fd, FileType, Fs, InodeFlags, OpenFlags, Options, RenameFlags, Superblock};
use std::io::{self, ErrorKind, Write};

/// A file system over a store in memory.
fn over_store() -> Fs {
    let store = Store::in_memory(Options::default().store.background(false)).expect("memory");
    Fs::create_in(store, Options::default()).expect("an empty store")
}

fn stream(from: &Superblock, name: &str, since: Option<&str>) -> Vec<u8> {
    let mut stream = Vec::new();
    send(from, name.as_bytes(), since.map(str::as_bytes), None, &mut stream).expect("it is there");
    stream
}

fn take(fs: &Fs, name: &str) {
    fs.superblock().take_snapshot(name.as_bytes()).expect("room");
}

fn names(fs: &Fs) -> Vec<String> {
    let names = fs.superblock().snapshots().expect("readable");
    names.into_iter().map(|name| String::from_utf8(name).expect("text")).collect()
}

/// Checks that `stream` is refused, with one line, and that `fs` has the snapshots that it had.
fn is_refused(fs: &Fs, stream: &[u8]) -> String {
    // The directory of the snapshots stays.
    drop(fs.superblock().begin_snapshot(None));
    let (before, inodes) = (names(fs), live(fs));
    let error = receive(fs.superblock(), stream).expect_err("it is wrong");
    assert_eq!(names(fs), before, "{error}");
    // What had come goes.
    drop(fs.superblock().begin_snapshot(None));
    assert_eq!(live(fs), inodes, "{error}");
    let line = error.to_string();
    assert!(!line.contains('\n') && !line.is_empty(), "{line}");
    line
}

/// How many inodes there are.
fn live(fs: &Fs) -> u64 {
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
            assert!(line.contains("cut off"), "{at}: {line}");
        }
    };
    cut(&to, &whole, &mut random);
    receive(to.superblock(), &*whole).expect("it is whole");
    cut(&to, &changes, &mut random);
    receive(to.superblock(), &*changes).expect("it is whole");
    assert_eq!(names(&to), ["one", "two"]);
}

/// Receives a part of a stream, and returns the token of the rest.
fn receives_a_part(fs: &Fs, part: &[u8]) -> String {
    let line = receive(fs.superblock(), part).expect_err("it is a part").to_string();
    let (_, token) = line.split_once("send --resume ").unwrap_or_else(|| panic!("{line}"));
    token.strip_suffix('`').expect("it is quoted").to_owned()
}

fn rest(from: &Fs, (name, since): (&str, Option<&str>), token: &str) -> Vec<u8> {
    let mut rest = Vec::new();
    let since = since.map(str::as_bytes);
    send(from.superblock(), name.as_bytes(), since, Some(token), &mut rest).expect("it is there");
    rest
}

/// A file system with two snapshots: of many files, and of what became of them, moves among it.
fn two_large_snapshots() -> Fs {
    let from = over_store();
    large_files(&from);
    let mut tree = RandomTree::new(&from, 11);
    tree.change(300);
    take(&from, "one");
    tree.rename(40);
    tree.change(100);
    from.rename("/dir", "/moved").or_else(|_| from.rename("/other", "/moved")).expect("one is there");
    take(&from, "two");
    from
}

#[test]
fn a_stream_that_was_cut_goes_on_where_it_was_cut() {
    let from = two_large_snapshots();
    for (name, since) in [("one", None), ("two", Some("one"))] {
        let whole = stream(from.superblock(), name, since);
        for part in 1..20 {
            let to = over_store();
            if let Some(since) = since {
                receive(to.superblock(), &*stream(from.superblock(), since, None)).expect("it is whole");
            }
            let token = receives_a_part(&to, &whole[..whole.len() * part / 20]);
            let missing = rest(&from, (name, since), &token);
            assert!(missing.len() <= whole.len() * (20 - part) / 20 + (1 << 18) + 1000, "{part}");
            assert!(whole.ends_with(&missing[12 + 8 + 29..]), "{name}, {part}: the same bytes follow");
            receive(to.superblock(), &*missing).expect("it goes on");
            let [sent, there] = [&from, &to].map(|fs| of_snapshot(fs.superblock(), name));
            assert!(sent == there, "{name}, {part}");
            to.settle();
            assert!(to.check().is_clean(), "{}", to.check());
            assert!(is_refused(&to, &missing).contains("no part of a stream"), "it goes on once");
        }
    }
}

#[test]
fn a_stream_may_be_cut_many_times() {
    let (from, to) = (two_large_snapshots(), over_store());
    receive(to.superblock(), &*stream(from.superblock(), "one", None)).expect("it is whole");
    let names = ("two", Some("one"));
    let whole = stream(from.superblock(), "two", Some("one"));
    let mut random = Random::new(12);
    let mut missing = whole.clone();
    let (mut cuts, mut tokens) = (0, Vec::new());
    while missing.len() > 4000 && cuts < 200 {
        // Some cuts are in the head, or in the first frame.
        let at = random.pick(&[12, 13, 60, missing.len() / 2, missing.len() - 1]);
        let line = receive(to.superblock(), &missing[..at]).expect_err("it is a part").to_string();
        let Some((_, token)) = line.split_once("send --resume ") else {
            assert!(at < 60 + whole.len() / 100, "{line}");
            continue;
        };
        missing = rest(&from, names, token.trim_end_matches('`'));
        tokens.push(token.to_owned());
        cuts += 1;
    }
    assert!(tokens.windows(2).any(|tokens| tokens[0] != tokens[1]), "{tokens:?}");
    receive(to.superblock(), &*missing).expect("it goes on");
    assert!(of_snapshot(from.superblock(), "two") == of_snapshot(to.superblock(), "two"));
}

#[test]
fn a_rest_that_is_not_the_rest_is_refused_and_the_part_stays() {
    let from = two_large_snapshots();
    let (whole, to) = (stream(from.superblock(), "one", None), over_store());
    let first = receives_a_part(&to, &whole[..whole.len() / 4]);
    let second = receives_a_part(&to, &rest(&from, ("one", None), &first)[..whole.len() / 4]);
    assert_ne!(first, second);
    // The empty stream has the token again.
    assert_eq!(receives_a_part(&to, b""), second);
    // The part that has come comes once more.
    assert_eq!(receives_a_part_elsewhere(&to, &rest(&from, ("one", None), &first)), second);
    let missing = rest(&from, ("one", None), &second);
    // Flipped: the frames before stay.
    let mut flipped = missing.clone();
    let at = missing.len() - 1000;
    flipped[at] ^= 4;
    let third = receives_a_part(&to, &flipped);
    assert_ne!(second, third);
    // Frames that come twice.
    let last = rest(&from, ("one", None), &third);
    let frame = 12 + 8 + 29;
    let len = u32::from_le_bytes(last[frame..frame + 4].try_into().expect("four bytes")) as usize;
    let twice = [&last[..frame + 8 + len], &last[frame..]].concat();
    let fourth = receives_a_part(&to, &twice);
    receive(to.superblock(), &*rest(&from, ("one", None), &fourth)).expect("it goes on");
    assert!(of_snapshot(from.superblock(), "one") == of_snapshot(to.superblock(), "one"));
    // Tokens of others.
    for (token, text) in [("", "no token"), ("x", "no token"), (&*first, "another stream")] {
        let sent = send(from.superblock(), b"two", Some(b"one"), Some(token), io::sink());
        let line = sent.expect_err("it is not its token").to_string();
        assert!(line.contains(text), "{line}");
    }
    // One that was deleted and taken again.
    from.superblock().drop_snapshot(b"one").expect("it is there");
    take(&from, "one");
    let sent = send(from.superblock(), b"one", None, Some(&first), io::sink());
    assert!(sent.expect_err("another").to_string().contains("another stream"));
}

/// As [`receives_a_part`], of a rest that begins elsewhere.
fn receives_a_part_elsewhere(fs: &Fs, rest: &[u8]) -> String {
    let line = receive(fs.superblock(), rest).expect_err("it begins elsewhere").to_string();
    let (_, token) =
        line.split_once("elsewhere: send it with `--resume ").unwrap_or_else(|| panic!("{line}"));
    token.trim_end_matches('`').to_owned()
}

#[test]
fn another_stream_takes_the_place_of_a_part() {
    let (from, to) = (two_large_snapshots(), over_store());
    receive(to.superblock(), &*stream(from.superblock(), "one", None)).expect("it is whole");
    let inodes = live(&to);
    let changes = stream(from.superblock(), "two", Some("one"));
    receives_a_part(&to, &changes[..changes.len() / 2]);
    assert!(live(&to) > inodes, "the part is there");
    let other = Fs::new();
    other.write("/a", "other").expect("room");
    take(&other, "other");
    receive(to.superblock(), &*stream(other.superblock(), "other", None)).expect("it is whole");
    to.superblock().drop_snapshot(b"other").expect("it is there");
    assert_eq!(live(&to), inodes, "the part is gone");
    // A snapshot that comes to be there meanwhile is not lost, nor is the part.
    receives_a_part(&to, &changes[..changes.len() / 2]);
    take(&to, "two");
    let token = receives_a_part(&to, b"");
    let missing = rest(&from, ("two", Some("one")), &token);
    let line = receive(to.superblock(), &*missing).expect_err("it is there").to_string();
    assert!(line.contains("there already"), "{line}");
    to.superblock().drop_snapshot(b"two").expect("it is there");
    receive(to.superblock(), &*missing).expect("it goes on");
    assert!(of_snapshot(from.superblock(), "two") == of_snapshot(to.superblock(), "two"));
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
    is_refused(&to, &[&*whole, b"x"].concat());
}

#[test]
fn what_goes_on_from_another_snapshot_is_refused() {
    let (from, whole, changes) = two_snapshots();
    let to = Fs::new();
    let line = is_refused(&to, &changes);
    assert!(line.contains("snapshot one is not here"), "{line}");
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
    is_refused(&to, &[&stream_head(), &[0xff; 8][..]].concat());
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

/// Takes `one`, lets `change` change the tree, takes `two`; sends both to a store, and from there on to a third file system. Returns the bytes
/// of the two streams of changes.
fn sends_on(make: impl Fn(&Fs), change: impl Fn(&Fs)) -> [usize; 2] {
    let (from, middle, last) = (over_store(), over_store(), Fs::new());
    make(&from);
    take(&from, "one");
    change(&from);
    take(&from, "two");
    let mut bytes = [0; 2];
    for (at, (sender, receiver)) in [(&from, &middle), (&middle, &last)].into_iter().enumerate() {
        receive(receiver.superblock(), &*stream(sender.superblock(), "one", None)).expect("it is whole");
        let changes = stream(sender.superblock(), "two", Some("one"));
        bytes[at] = changes.len();
        receive(receiver.superblock(), &*changes).expect("it fits");
        let [sent, there] = [&from, receiver].map(|fs| of_snapshot(fs.superblock(), "two"));
        assert!(sent == there, "from {at} on");
        receiver.settle();
        assert!(receiver.check().is_clean(), "{}", receiver.check());
    }
    bytes
}

/// A tree with large files: a renamed one that was sent whole would show.
fn large_files(fs: &Fs) {
    fs.create_dir_all("/dir/below").expect("room");
    fs.create_dir("/other").expect("room");
    for (number, name) in ["/a", "/b", "/c", "/dir/d", "/dir/below/e", "/other/f"].into_iter().enumerate() {
        fs.write(name, vec![number as u8 + 1; 1 << 20]).expect("room");
    }
}

#[test]
fn a_renamed_file_of_100_megabytes_is_sent_as_a_name() {
    let big = |fs: &Fs| fs.write("/big", vec![7; 100 << 20]).expect("room");
    let bytes = sends_on(big, |fs| fs.rename("/big", "/renamed").expect("it is there"));
    assert!(bytes.iter().all(|bytes| *bytes < 1000), "{bytes:?}");
}

#[test]
fn whatever_changes_places_is_sent_as_names() {
    let exchange = |fs: &Fs, one: &str, other: &str| {
        let process = fs.process(Cred::root());
        process.renameat2(Fd::CWD, one, Fd::CWD, other, RenameFlags::EXCHANGE).expect("both are there");
    };
    let rename = |fs: &Fs, from: &str, to: &str| fs.rename(from, to).expect("it is there");
    let changes: [(&str, &dyn Fn(&Fs)); 14] = [
        ("to another directory", &|fs| rename(fs, "/a", "/dir/below/a")),
        ("two names", &|fs| exchange(fs, "/a", "/b")),
        ("over another", &|fs| rename(fs, "/a", "/b")),
        ("a chain", &|fs| {
            for (from, to) in [("/c", "/d"), ("/b", "/c"), ("/a", "/b")] {
                rename(fs, from, to);
            }
        }),
        ("a ring", &|fs| {
            for (from, to) in [("/c", "/x"), ("/b", "/c"), ("/a", "/b"), ("/x", "/a")] {
                rename(fs, from, to);
            }
        }),
        ("a directory", &|fs| rename(fs, "/dir", "/renamed")),
        ("a directory and a file in it", &|fs| {
            rename(fs, "/dir/below/e", "/dir/below/g");
            rename(fs, "/dir", "/renamed");
        }),
        ("two directories", &|fs| exchange(fs, "/dir", "/other")),
        ("a directory and a file", &|fs| exchange(fs, "/dir", "/a")),
        ("a directory comes to stand above the one that it was in", &|fs| {
            rename(fs, "/dir/below", "/below");
            rename(fs, "/dir", "/below/dir");
        }),
        ("out of a directory that is gone", &|fs| {
            rename(fs, "/dir/below/e", "/e");
            fs.remove_dir_all("/dir").expect("it is there");
        }),
        ("into a new directory of the old name", &|fs| {
            rename(fs, "/dir", "/old");
            fs.create_dir("/dir").expect("room");
            rename(fs, "/old/d", "/dir/d");
        }),
        ("a file of two names loses both", &|fs| {
            rename(fs, "/linked", "/dir/one");
            rename(fs, "/dir/linked", "/two");
        }),
        ("a file of two names becomes one of one, and another one of two", &|fs| {
            fs.remove_file("/linked").expect("it is there");
            rename(fs, "/dir/linked", "/single");
            rename(fs, "/a", "/linked");
            fs.hard_link("/linked", "/dir/linked").expect("room");
        }),
    ];
    for (what, change) in changes {
        let make = |fs: &Fs| {
            large_files(fs);
            fs.write("/linked", vec![9; 1 << 20]).expect("room");
            fs.hard_link("/linked", "/dir/linked").expect("room");
        };
        let bytes = sends_on(make, change);
        assert!(bytes.iter().all(|bytes| *bytes < 20_000), "{what}: {bytes:?}");
    }
}

#[test]
fn a_restored_file_is_the_same_file() {
    let bytes = sends_on(large_files, |fs| {
        fs.remove_file("/a").expect("it is there");
        fs.write("/b", "other").expect("room");
        fs.superblock().restore_snapshot(b"one", b"").expect("it is there");
        fs.rename("/a", "/c").expect("it is there");
        fs.rename("/b", "/a").expect("it is there");
        // A second one of the same origin.
        fs.superblock().restore_snapshot(b"one", b"b").expect("it is there");
    });
    // The one of which there are two has no counterpart.
    assert!(bytes.iter().all(|bytes| *bytes < (1 << 20) + 20_000), "{bytes:?}");
}
