//! Changes: what is told of two trees is what a comparison of all bytes finds.

use super::random_tree::RandomTree;
use super::tree_facts::{FileFacts, TreeFacts, of_tree};
use sluice_store::Store;
use sluice_trees::ChangeKind::{self, Attributes, Created, Modified, Removed};
use sluice_vfs::{FileType, Fs, InodeRef, Options};
use std::collections::BTreeSet;

type Told = BTreeSet<(Vec<u8>, ChangeKind)>;

fn told(old: &InodeRef, new: &InodeRef) -> Told {
    let mut told = Told::new();
    sluice_trees::changes(old, new, &mut |change| {
        let path = if change.path == b"." { Vec::new() } else { change.path.clone() };
        assert!(told.insert((path, change.kind)), "told twice: {change:?}");
        Ok(())
    })
    .expect("both are there");
    told
}

fn naive(old: &TreeFacts, new: &TreeFacts) -> Told {
    let paths: BTreeSet<&Vec<u8>> = old.keys().chain(new.keys()).collect();
    let mut told = Told::new();
    for path in paths {
        let mut tell = |kind| assert!(told.insert((path.clone(), kind)));
        match (old.get(path), new.get(path)) {
            (Some(was), Some(is)) if FileType::from_mode(was.mode) == FileType::from_mode(is.mode) => {
                let contents = |one: &FileFacts| (one.contents.clone(), one.data.clone(), one.rdev);
                let is_dir = FileType::from_mode(is.mode) == Some(FileType::Directory);
                let attributes = |one: &FileFacts| {
                    let mtime = (!is_dir).then_some(one.mtime);
                    (one.mode, one.owner, one.flags, one.xattrs.clone(), mtime)
                };
                if contents(was) != contents(is) {
                    tell(Modified);
                } else if attributes(was) != attributes(is) {
                    tell(Attributes);
                }
            }
            (was, is) => {
                if was.is_some() {
                    tell(Removed);
                }
                if is.is_some() {
                    tell(Created);
                }
            }
        }
    }
    told
}

#[test]
fn a_thousand_pairs_of_trees_differ_as_a_comparison_of_all_bytes_says() {
    let mut found = 0;
    for seed in 0..20 {
        let fs = if seed % 2 == 0 {
            Fs::new()
        } else {
            let store = Store::in_memory(Options::default().store.background(false)).expect("memory");
            Fs::create_in(store, Options::default()).expect("an empty store")
        };
        let mut tree = RandomTree::new(&fs, seed);
        tree.change(100);
        let mut tops: Vec<(InodeRef, TreeFacts)> = Vec::new();
        for number in 0..50 {
            let name = format!("s{number}");
            fs.superblock().take_snapshot(name.as_bytes()).expect("room");
            let top = fs.superblock().snapshot_top(name.as_bytes()).expect("it was taken");
            let facts = of_tree(&top);
            tops.push((top, facts));
            let (new, facts) = &tops[number];
            let (old, before) = &tops[tree.random.below(number as u64 + 1) as usize];
            let (told, expected) = (told(old, new), naive(before, facts));
            found += told.len();
            assert_eq!(told, expected, "seed {seed}, {name}");
            let times = 1 + tree.random.below(12);
            tree.change(times);
        }
    }
    assert!(found > 5_000, "{found}");
}

#[test]
fn a_renamed_file_says_where_it_was() {
    let fs = Fs::new();
    for dir in ["/dir/below", "/gone"] {
        fs.create_dir_all(dir).expect("room");
    }
    for file in ["/a", "/b", "/dir/below/c", "/gone/d", "/linked", "/over", "/under"] {
        fs.write(file, file).expect("room");
    }
    fs.hard_link("/linked", "/dir/linked").expect("room");
    fs.superblock().take_snapshot(b"one").expect("room");
    for (from, to) in [("/a", "/x"), ("/b", "/a"), ("/x", "/b"), ("/gone/d", "/d"), ("/over", "/under")] {
        fs.rename(from, to).expect("it is there");
    }
    fs.rename("/dir", "/renamed").expect("it is there");
    fs.remove_dir_all("/gone").expect("it is there");
    fs.rename("/linked", "/first").expect("it is there");
    fs.hard_link("/first", "/further").expect("room");
    fs.write("/new", "new").expect("room");
    fs.superblock().take_snapshot(b"two").expect("room");
    let tops =
        ["one", "two"].map(|name| fs.superblock().snapshot_top(name.as_bytes()).expect("it was taken"));
    for new in [&tops[1], fs.superblock().root()] {
        let mut told = Vec::new();
        sluice_trees::changes(&tops[0], new, &mut |change| {
            let text = |path: &[u8]| String::from_utf8(path.to_vec()).expect("text");
            told.extend(change.from.as_deref().map(|from| (change.kind, text(from), text(&change.path))));
            Ok(())
        })
        .expect("both are there");
        let expected = [
            (Modified, "b", "a"),
            (Modified, "a", "b"),
            (Created, "gone/d", "d"),
            (Created, "dir/linked", "first"),
            (Created, "dir/linked", "further"),
            (Created, "dir", "renamed"),
            (Created, "dir/below", "renamed/below"),
            (Created, "dir/below/c", "renamed/below/c"),
            (Created, "dir/linked", "renamed/linked"),
            (Modified, "over", "under"),
        ];
        assert_eq!(told, expected.map(|(kind, from, to)| (kind, from.into(), to.into())));
    }
}
