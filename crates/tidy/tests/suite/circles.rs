//! Circles: files of one crate that name each other, in both directions or round a longer way.
//!
//! A file outside of circles can be read after those that it names. The files of a circle can only be read together, so a
//! circle has few files, and a crate few circles. `sluice_tidy::modules` says which names count.

use sluice_tidy::modules::{Modules, Ties};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The circles that are left in each crate, by the number of their files. The numbers only fall.
const LEFT: [(&str, &[usize]); 4] =
    [("fuse", &[2]), ("locks", &[4]), ("sync", &[2, 2, 9]), ("vfs", &[2, 49])];

/// The sets of files that reach each other.
fn circles(ties: &Ties) -> BTreeSet<BTreeSet<&Path>> {
    let mut reached: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    for (from, to) in ties.keys() {
        reached.entry(from).or_default().insert(to);
    }
    // Warshall's closure: paths through one more file at each turn.
    for through in reached.keys().copied().collect::<Vec<_>>() {
        let beyond = reached[through].clone();
        for set in reached.values_mut().filter(|set| set.contains(through)) {
            set.extend(&beyond);
        }
    }
    let leads = |from: &Path, to: &Path| reached.get(from).is_some_and(|set| set.contains(to));
    let circle_of = |file: &Path| reached[file].iter().copied().filter(|other| leads(other, file)).collect();
    reached.keys().filter(|file| leads(file, file)).map(|file| circle_of(file)).collect()
}

/// The circles with the names that tie them, as text.
fn described(circles: &BTreeSet<BTreeSet<&Path>>, ties: &Ties) -> String {
    let mut text = String::new();
    for circle in circles {
        text += &format!("  {} files:\n", circle.len());
        let inside = ties.iter().filter(|((from, to), _)| circle.contains(&**from) && circle.contains(&**to));
        for ((from, to), names) in inside {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            text += &format!("    {} -> {}: {}\n", from.display(), to.display(), names.join(", "));
        }
    }
    text
}

#[test]
fn files_of_a_crate_stand_in_few_and_small_circles() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut count, mut changed) = (0, Vec::new());
    for entry in fs::read_dir(&crates).expect("the crates") {
        let name = entry.expect("a crate").file_name().into_string().expect("a name");
        let source = crates.join(&name).join("src");
        let Some(root) = ["lib.rs", "main.rs"].into_iter().find(|root| source.join(root).exists()) else {
            continue;
        };
        let read = |path: &Path| fs::read_to_string(source.join(path)).ok();
        let ties = Modules::read(Path::new(root), &read).ties();
        count += ties.len();
        let found = circles(&ties);
        let mut sizes: Vec<usize> = found.iter().map(BTreeSet::len).collect();
        sizes.sort_unstable();
        let left = LEFT.iter().find(|(of, _)| *of == name).map_or(&[][..], |(_, sizes)| sizes);
        if sizes != left {
            changed.push(format!("{name}: {sizes:?}, not {left:?}\n{}", described(&found, &ties)));
        }
    }
    assert!(count > 1_000, "{count} pairs of files: most are not seen");
    assert!(
        changed.is_empty(),
        "break new circles; of those that you broke take the numbers down:\n{}",
        changed.join("\n")
    );
}

#[test]
fn a_circle_is_found_through_names_that_are_passed_on_and_not_through_tests() {
    let file = |path: &Path| {
        let text = match path.to_str()? {
            "lib.rs" => {
                "mod low; mod high; mod folder; mod apart; pub use folder::{Inner, inner::Deep as Other};"
            }
            "low.rs" => "use crate::high::{self, Other as High}; fn low(_: crate::Inner) { high::call() }",
            "high.rs" => {
                "/* use crate::apart::X; */ pub struct Other; pub fn call() { super::apart::X::go(); }"
            }
            "folder/mod.rs" => "pub mod inner; pub use inner::*; use crate::high::call; pub struct Outer;",
            "folder/inner.rs" => {
                "use super::Outer; pub struct Inner; pub struct Deep; fn f(_: &'_ crate::low::Low) {}"
            }
            "apart.rs" => {
                "pub struct X; const A: &str = r#\"crate::low::Low\"#; const B: [char; 2] = ['\"', '\\''];
                #[cfg(test)] use crate::low::Low; #[cfg(test)] mod tests { use crate::low::*; }"
            }
            _ => return None,
        };
        Some(text.to_owned())
    };
    let ties = Modules::read(Path::new("lib.rs"), &file).ties();
    let found = circles(&ties);
    let expected: BTreeSet<&Path> = [Path::new("folder/inner.rs"), Path::new("low.rs")].into();
    assert_eq!(found, [expected].into(), "{ties:?}");
    let names = |from: &str, to: &str| ties.get(&(PathBuf::from(from), PathBuf::from(to))).cloned();
    assert_eq!(names("low.rs", "high.rs"), Some(["Other".to_owned(), "call".to_owned()].into()));
    assert_eq!(names("high.rs", "apart.rs"), Some(["X".to_owned()].into()));
    assert_eq!(names("folder/inner.rs", "folder/mod.rs"), None, "a part of it");
}
