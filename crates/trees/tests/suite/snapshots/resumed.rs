//! Resumed: a stream that was cut off goes on where it was cut.

use super::moved::large_files;
use super::random_tree::RandomTree;
use super::streams::{is_refused, live, over_store, stream, take};
use super::tree_facts::of_snapshot;
use sluice_store::disk::crash::{CrashDisk, Survivors};
use sluice_sync::random::Random;
use sluice_trees::{receive, send};
use sluice_vfs::{Fs, Options, Superblock};
use std::io::{self, Read};
use std::sync::Arc;

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
    // A snapshot that was deleted and taken again.
    from.superblock().drop_snapshot(b"one").expect("it is there");
    take(&from, "one");
    let sent = send(from.superblock(), b"one", None, Some(&first), io::sink());
    assert!(sent.expect_err("another").to_string().contains("another stream"));
}

/// The token of [`receives_a_part`], for a rest that begins elsewhere.
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

/// A stream that makes its receiver's store durable now and then.
struct Synced<'s> {
    stream: &'s [u8],
    fs: &'s Fs,
    reads: usize,
}

impl Read for Synced<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.reads += 1;
        if self.reads.is_multiple_of(50) {
            self.fs.superblock().sync()?;
        }
        self.stream.read(buf)
    }
}

#[test]
fn a_receiver_that_died_anywhere_goes_on_from_what_was_durable() {
    let mut options = Options::default();
    options.store = options.store.log_size(4 << 20).segment_size(4 << 20).background(false);
    let from = two_large_snapshots();
    for (name, since) in [("one", None), ("two", Some("one"))] {
        let (disk, whole) = (CrashDisk::new(), stream(from.superblock(), name, since));
        let made = Superblock::create_on(Arc::new(disk.clone()), options.clone());
        let to = Fs::with_superblock(made.expect("an empty disk"));
        if let Some(since) = since {
            receive(to.superblock(), &*stream(from.superblock(), since, None)).expect("it is whole");
        }
        let begun = disk.steps();
        receive(to.superblock(), Synced { stream: &whole, fs: &to, reads: 0 }).expect("it is whole");
        let (steps, mut missing_bytes) = (disk.steps() - begun, Vec::new());
        for part in 1..=20 {
            let survivors = if part % 2 == 0 { Survivors::All } else { Survivors::None };
            let crash = disk.crash(begun + steps * part / 20, survivors);
            let again = Superblock::open_on(Arc::new(crash.clone()), options.clone());
            let again = Fs::with_superblock(again.expect("a crash is no damage"));
            if again.superblock().snapshot_top(name.as_bytes()).is_err() {
                let line = receive(again.superblock(), &b""[..]).expect_err("it is empty").to_string();
                let token = line.split_once("send --resume ").map(|(_, token)| token.trim_end_matches('`'));
                let missing = token.map_or_else(|| whole.clone(), |token| rest(&from, (name, since), token));
                missing_bytes.push(missing.len());
                // It may die again.
                if part % 3 == 0 {
                    receives_a_part(&again, &missing[..missing.len() / 2]);
                    again.superblock().close().expect("the disk works");
                    drop(again);
                    let again = Superblock::open_on(Arc::new(crash.clone()), options.clone());
                    let again = Fs::with_superblock(again.expect("it was closed"));
                    let token = receives_a_part(&again, b"");
                    receive(again.superblock(), &*rest(&from, (name, since), &token)).expect("it goes on");
                    assert_arrived((&from, &again), name, part);
                    continue;
                }
                receive(again.superblock(), &*missing).expect("it goes on");
            }
            assert_arrived((&from, &again), name, part);
        }
        let shorter = missing_bytes.iter().filter(|bytes| **bytes < whole.len() * 3 / 4).count();
        assert!(shorter >= 5 && missing_bytes.is_sorted_by(|one, other| one >= other), "{missing_bytes:?}");
    }
}

fn assert_arrived((from, to): (&Fs, &Fs), name: &str, part: usize) {
    let [sent, there] = [from, to].map(|fs| of_snapshot(fs.superblock(), name));
    assert!(sent == there, "{name}, {part}");
    // If the receiver died with its snapshot there, the rest goes with the next stream.
    drop(to.superblock().begin_snapshot(None).expect("nobody receives"));
    assert!(!to.exists("/.receiving"), "{name}, {part}");
    to.settle();
    assert!(to.check().is_clean(), "{}", to.check());
}
