//! Moved: a file that has another name than before is sent as a name.

use super::streams::{over_store, stream, take};
use super::tree_facts::of_snapshot;
use sluice_trees::receive;
use sluice_vfs::{Cred, Fd, Fs, RenameFlags};

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
pub(super) fn large_files(fs: &Fs) {
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
    type Change<'c> = (&'c str, &'c dyn Fn(&Fs));
    let changes: [Change<'_>; 14] = [
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
