//! The source keeps its own rules: layers, headers, size, where `unsafe` may stand.

use sluice_tidy::files_below;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates above `sync`, which take everything about threads from it.
const ABOVE_SYNC: &[&str] = &[
    "locks",
    "membership",
    "dlm",
    "vfs",
    "trees",
    "store",
    "bucket",
    "fuse",
    "cluster",
    "console",
    "coherence",
    "lock-zoo",
    "lab",
    "cli",
];
/// The crates that are part of the product.
const PRODUCT: &[&str] = &[
    "locks",
    "membership",
    "dlm",
    "vfs",
    "trees",
    "store",
    "bucket",
    "fuse",
    "cluster",
    "console",
    "coherence",
    "cli",
];
/// The floors, lowest first: a crate may use only crates that come before it.
const FLOORS: &[&str] = &[
    "machine",
    "sync",
    "coherence",
    "store",
    "bucket",
    "locks",
    "membership",
    "dlm",
    "vfs",
    "trees",
    "fuse",
    "cluster",
    "console",
    "lock-zoo",
    "lab",
    "cli",
];
/// Files that may contain `unsafe`, each for the reason in its header.
const UNSAFE_FILES: &[&str] = &[
    "bindings/c/src/arguments.rs",
    "bindings/c/src/options.rs",
    "crates/console/src/closed_output.rs",
    "crates/dlm/tests/memory.rs",
    "crates/fuse/src/transport/ring.rs",
    "crates/fuse/src/transport/schedule.rs",
    "crates/lock-zoo/src/combining.rs",
    "crates/lock-zoo/src/excludes.rs",
    "crates/machine/examples/scales.rs",
    "crates/machine/src/fiber.rs",
    "crates/machine/src/heap.rs",
    "crates/machine/tests/suite/scales.rs",
    "crates/oracle/src/sys.rs",
    "crates/sync/src/face/quiet.rs",
    "crates/sync/src/face/rseq.rs",
    "crates/sync/src/face/sim/counted.rs",
    "crates/sync/src/locks/inflatable.rs",
    "crates/sync/src/memory/trim.rs",
    "crates/sync/src/locks/mutex.rs",
    "crates/sync/src/locks/small_mutex.rs",
    "crates/sync/src/locks/rwlock.rs",
    "crates/sync/src/locks/spin/lock.rs",
    "crates/sync/src/memory/blocks.rs",
    "crates/sync/src/locks/brlock.rs",
    "crates/sync/src/tables/chains/array.rs",
    "crates/sync/src/tables/chains/mod.rs",
    "crates/sync/src/tables/chains/resize.rs",
    "crates/sync/src/tables/hash_table/mod.rs",
    "crates/sync/src/tables/name_table/after.rs",
    "crates/sync/src/tables/name_table/node.rs",
    "crates/sync/src/tables/name_table/trail.rs",
    "crates/sync/src/tables/radix/mod.rs",
    "crates/sync/src/tables/radix/node.rs",
    "crates/sync/src/tables/radix/object.rs",
    "crates/sync/src/tables/radix/write.rs",
    "crates/sync/src/epoch/rcu/cell.rs",
    "crates/sync/src/epoch/rcu/work.rs",
    "crates/sync/src/locks/owner_lock.rs",
    "crates/sync-loom/tests/suite/owner_lock.rs",
    "crates/sync/src/epoch/refcache/mod.rs",
    "crates/sync/src/epoch/refcache/object.rs",
    "crates/sync/src/epoch/refcache/slot.rs",
    "crates/sync/src/epoch/refcache/world.rs",
    "crates/sync/src/locks/seq_bytes/copy.rs",
    "crates/sync/src/locks/seq_bytes/shared.rs",
    "crates/vfs/tests/allocations.rs",
];
/// Lines, past which a file surely holds a second noun.
const LINES_MAX: usize = 600;

/// Names that several types have, and how many.
const SHARED_NAMES: &str = include_str!("../shared_names.txt");

struct Source {
    path: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there")
}

fn rust_files() -> Vec<Source> {
    let root = root();
    let paths = ["crates", "bindings"].map(|folder| files_below(&root.join(folder), &[])).concat();
    let sources = paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let read = |path: &PathBuf| Source {
        path: path.strip_prefix(&root).expect("below the root").display().to_string(),
        text: fs::read_to_string(path).expect("source is text"),
    };
    let files: Vec<_> = sources.map(read).collect();
    assert!(files.len() > 20, "found only {} files: is the root right?", files.len());
    files
}

fn assert_none(rule: &str, offenders: &[String]) {
    assert!(offenders.is_empty(), "{rule}:\n  {}", offenders.join("\n  "));
}

/// The lines of a file that are code: comments, and strings that begin a line, left out.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(n, line)| (n + 1, line));
    numbered.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

#[test]
fn every_file_says_what_it_is() {
    let without: Vec<_> = (rust_files().iter())
        .filter(|file| !file.text.starts_with("//! "))
        .map(|file| file.path.clone())
        .collect();
    assert_none("these files do not begin with a //! header", &without);
}

#[test]
fn no_file_grows_past_what_one_can_hold_in_the_head() {
    let long: Vec<_> = (rust_files().iter())
        .filter(|file| file.text.lines().count() > LINES_MAX)
        .map(|file| format!("{}: {} lines", file.path, file.text.lines().count()))
        .collect();
    assert_none("look for the second noun in these files", &long);
}

#[test]
fn code_above_sync_takes_threads_and_locks_from_sync() {
    let banned = ["std::sync", "std::thread", "thread_local!", "std::time::Instant", "std::time::SystemTime"];
    let mut offenders = Vec::new();
    for file in rust_files() {
        let above = ABOVE_SYNC.iter().any(|name| file.path.starts_with(&format!("crates/{name}/src/")));
        if !above {
            continue;
        }
        for (number, line) in code_lines(&file.text) {
            if banned.iter().any(|word| line.contains(word)) {
                offenders.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    assert_none("take these from sluice_sync", &offenders);
}

#[test]
fn unsafe_stands_only_in_the_files_named_for_it() {
    let mut offenders = Vec::new();
    for file in rust_files() {
        if UNSAFE_FILES.contains(&file.path.as_str()) || file.path.starts_with("crates/tidy/") {
            continue;
        }
        // The attribute gives a function its name in the C library, and lets nothing happen that safe code cannot do.
        let names_a_function =
            |line: &str| file.path.starts_with("bindings/c/src/") && line.trim() == "#[unsafe(no_mangle)]";
        for (number, line) in code_lines(&file.text).filter(|(_, line)| !names_a_function(line)) {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            if words.any(|word| word == "unsafe") {
                offenders.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    assert_none("unsafe outside the named files", &offenders);
}

#[test]
fn a_crate_uses_only_crates_on_lower_floors() {
    let mut offenders = Vec::new();
    for (floor, name) in FLOORS.iter().enumerate() {
        let manifest =
            fs::read_to_string(root().join(format!("crates/{name}/Cargo.toml"))).expect("a manifest");
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        for upper in &FLOORS[floor..] {
            if dependencies.contains(&format!("sluice-{upper}.")) {
                offenders.push(format!("{name} uses {upper}"));
            }
        }
    }
    assert_none("these dependencies go up", &offenders);
}

#[test]
fn the_program_sluice_knows_no_simulator_and_no_statistics() {
    let program = rust_files().into_iter().filter(|file| {
        let in_lab_program = file.path.starts_with("crates/cli/src/bin/");
        file.path.starts_with("crates/cli/src/") && !in_lab_program
    });
    let offenders: Vec<_> = (program)
        .filter(|file| code_lines(&file.text).any(|(_, line)| line.contains("sluice_lab::")))
        .map(|file| file.path)
        .collect();
    assert_none("the program sluice-lab measures; `sluice` only runs it", &offenders);
}

#[test]
fn a_crate_has_no_word_of_what_it_must_not_know() {
    // In small letters: the third column of the floors in ARCHITECTURE.md, as far as words show it.
    let words: [(&str, &[&str]); 1] = [(
        "store",
        &[
            "object store",
            "object_store",
            "bucket",
            "slatedb",
            "fenced",
            "fencing",
            "takeover",
            "traffic",
            "server",
        ],
    )];
    let mut offenders = Vec::new();
    for (file, words) in rust_files().iter().flat_map(|file| {
        let of_file = words.iter().filter(|(name, _)| file.path.starts_with(&format!("crates/{name}/src/")));
        of_file.map(move |(_, words)| (file, words))
    }) {
        for (number, line) in file.text.to_lowercase().lines().enumerate() {
            offenders.extend(
                words
                    .iter()
                    .filter(|word| line.contains(**word))
                    .map(|word| format!("{}:{}: `{word}`", file.path, number + 1)),
            );
        }
    }
    assert_none("a crate names what only higher floors know", &offenders);
}

#[test]
fn nothing_is_left_to_do_in_the_source() {
    let mut offenders = Vec::new();
    for file in rust_files().iter().filter(|file| !file.path.starts_with("crates/tidy/")) {
        for (number, line) in file.text.lines().enumerate() {
            if ["todo!(", "unimplemented!(", "dbg!(", "FIXME", "XXX", "#[ignore"]
                .iter()
                .any(|w| line.contains(w))
            {
                offenders.push(format!("{}:{}: {}", file.path, number + 1, line.trim()));
            }
        }
    }
    assert_none("finish these", &offenders);
}

/// The name that a line defines, if it is a type or trait of a module.
fn defined_type(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub").map_or(line, |rest| match rest.strip_prefix('(') {
        Some(rest) => rest.split_once(')').map_or(rest, |(_, rest)| rest),
        None => rest,
    });
    let line = line.strip_prefix(' ').unwrap_or(line);
    let line = line.strip_prefix("unsafe ").unwrap_or(line);
    let (keyword, rest) = line.split_once(' ')?;
    let is_type = ["struct", "enum", "union", "trait", "type"].contains(&keyword);
    is_type.then(|| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default())
}

#[test]
fn a_type_has_a_name_of_its_own_in_the_whole_workspace() {
    let listed: HashMap<&str, usize> = (SHARED_NAMES.lines())
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .map(|(name, count)| (name, count.parse().expect("a name and how many types have it")))
        .collect();
    let files = rust_files();
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.path.contains("/src/") && !is_test(&file.path)) {
        for (number, line) in file.text.lines().enumerate() {
            if let Some(name) = defined_type(line) {
                places.entry(name).or_default().push(format!("{}:{}", file.path, number + 1));
            }
        }
    }
    assert!(places.len() > 500, "found only {} types", places.len());
    let new: Vec<_> = (places.iter())
        .filter(|(name, of)| of.len() > listed.get(*name).copied().unwrap_or(1))
        .map(|(name, of)| format!("{name}: {}", of.join(", ")))
        .collect();
    assert_none("these names mean two things, which no reader wants: take another", &new);
    let gone: Vec<_> = (listed.iter())
        .map(|(name, count)| (name, count, places.get(name).map_or(0, Vec::len)))
        .filter(|(_, count, found)| found < *count)
        .map(|(name, count, found)| format!("{name} {count}: {found} are left"))
        .collect();
    assert_none("well done: say so in shared_names.txt, which only shrinks", &gone);
}

/// Whether a file of the source is a test. Its types are nobody else's.
fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("tests.rs")
}

/// The public modules of `sync`, as paths below its root, each with the names by which others use it.
fn public_modules_of_sync(files: &[Source]) -> BTreeMap<String, Vec<&str>> {
    let mut modules: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for folder in ["", "locks/", "epoch/", "tables/", "memory/", "percpu/"] {
        let root = if folder.is_empty() { "lib" } else { "mod" };
        let root = format!("crates/sync/src/{folder}{root}.rs");
        let root = files.iter().find(|file| file.path == root).expect("a root of modules");
        for statement in
            root.text.split(';').filter_map(|text| text.split_once("pub ")).map(|(_, rest)| rest.trim())
        {
            if let Some(module) = statement.strip_prefix("mod ").filter(|rest| !rest.contains('{')) {
                modules.entry(format!("{folder}{module}")).or_default().push(module);
            } else if let Some((module, list)) = statement
                .strip_prefix("use ")
                .and_then(|rest| rest.split_once("::"))
                .filter(|(_, list)| *list != "*")
            {
                let list = list.trim_matches(['{', '}']).split(',').map(str::trim);
                modules
                    .entry(format!("{folder}{module}"))
                    .or_default()
                    .extend(list.filter(|name| !name.is_empty()));
            }
        }
    }
    modules
}

/// Whether the code of `file`, without its unit tests and what it only passes on, uses one of `names`: a type by its name,
/// a module as a path.
fn uses_any_of(file: &Source, names: &[&str]) -> bool {
    let product = file.text.split("\nmod tests {").next().unwrap_or_default();
    let mut lines = code_lines(product).filter(|(_, line)| !line.starts_with("pub use "));
    lines.any(|(_, line)| {
        let imports = line.contains("use sluice_sync") || line.contains("use crate");
        let mut words =
            line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| names.contains(word));
        words.any(|word| {
            let as_path = [format!("{word}::"), format!("::{word}(")];
            imports || word.starts_with(char::is_uppercase) || as_path.iter().any(|path| line.contains(path))
        })
    })
}

#[test]
fn a_public_module_of_sync_has_a_caller_in_the_product() {
    let files: Vec<_> = rust_files().into_iter().filter(|file| !is_test(&file.path)).collect();
    let mut unreached = public_modules_of_sync(&files);
    assert!(unreached.len() > 30, "found only {} modules: {unreached:?}", unreached.len());
    // Files reached from the product: at first its own files that use `sync`, then those that these use, and so on.
    let in_product = |path: &str| PRODUCT.iter().any(|name| path.starts_with(&format!("crates/{name}/src/")));
    let mut reached: Vec<&Source> =
        (files.iter()).filter(|file| in_product(&file.path) && file.text.contains("sluice_sync")).collect();
    loop {
        let found: Vec<String> = (unreached.iter())
            .filter(|(_, names)| reached.iter().any(|file| uses_any_of(file, names)))
            .map(|(module, _)| module.clone())
            .collect();
        if found.is_empty() {
            break;
        }
        for module in found {
            unreached.remove(&module);
            let path = format!("crates/sync/src/{module}");
            let of_it = |source: &&Source| match source.path.strip_prefix(&path) {
                Some(".rs" | "/mod.rs") => true,
                Some(rest) => !["percpu", "memory"].contains(&&*module) && rest.starts_with('/'),
                None => false,
            };
            reached.extend(files.iter().filter(of_it));
        }
    }
    let unreached: Vec<_> = unreached.keys().map(|module| format!("sync/src/{module}")).collect();
    assert_none("nothing of the product uses these: they belong in lock-zoo", &unreached);
}

#[test]
fn a_crate_has_one_test_program_beside_those_listed_with_a_reason() {
    let page = fs::read_to_string(root().join("docs/testing.md")).expect("the page");
    let (_, listed) = page.split_once("## Test programs").expect("the chapter");
    let listed = listed.split("\n## ").next().unwrap_or_default();
    let files = rust_files();
    let mut programs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for path in files.iter().map(|file| file.path.as_str()) {
        let Some((krate, rest)) = path.split_once("/tests/") else { continue };
        if krate.contains("/src") {
            continue;
        }
        let program = match rest.split_once('/') {
            None => path,
            Some((dir, "main.rs")) => &path[..path.len() - rest.len() + dir.len()],
            Some(_) => continue,
        };
        if !listed.contains(&format!("| `{program}` |")) {
            programs.entry(krate).or_default().push(program);
        }
    }
    assert!(programs.len() > 10, "found only {} crates with tests", programs.len());
    let several: Vec<_> = programs.values().filter(|all| all.len() > 1).map(|all| all.join(", ")).collect();
    assert_none("make these modules of one program, which is linked once", &several);
    let rows = listed.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let gone: Vec<_> = rows.filter(|path| !root().join(path).exists()).map(str::to_owned).collect();
    assert_none("docs/testing.md lists test programs that are not there", &gone);
}

#[test]
fn each_line_of_the_security_page_names_a_test_that_is_there() {
    let page = fs::read_to_string(root().join("docs/security.md")).expect("the page");
    let files = rust_files();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| who "));
    for row in rows {
        let tests = row.trim_end_matches(" |").rsplit(" | ").next().expect("a last column");
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test in: {row}");
        for name in names {
            let test = format!("fn {name}()");
            assert!(files.iter().any(|file| file.text.contains(&test)), "docs/security.md: no test {name}");
        }
    }
}
