//! The public interface is written down: `docs/api/CRATE.txt` has each public item of a library, a line each. A change of the
//! interface shows in a review, and nobody makes one by accident.
//!
//! The lint `unreachable_pub` keeps the word `pub` from items that no other crate can name, so the source says what is public.

use sluice_tidy::files_below;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The libraries that programs of others use.
const LIBRARIES: &[&str] = &["vfs", "fuse", "store", "locks"];
/// With this variable the test writes the files anew.
const WRITE: &str = "SLUICE_API_WRITE";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_public_interface_is_the_one_that_is_written_down() {
    for library in LIBRARIES {
        let file = root().join(format!("docs/api/{library}.txt"));
        let items = interface(&root().join("crates").join(library).join("src"));
        let text: String = items.iter().map(|item| format!("{item}\n")).collect();
        if std::env::var_os(WRITE).is_some() {
            fs::write(&file, &text).expect("docs/api is there");
        }
        let written = fs::read_to_string(&file).unwrap_or_default();
        let before: BTreeSet<String> = written.lines().map(str::to_owned).collect();
        let changes = before.difference(&items).map(|item| format!("- {item}"));
        let changes: Vec<String> =
            changes.chain(items.difference(&before).map(|item| format!("+ {item}"))).collect();
        assert!(
            changes.is_empty(),
            "the interface of {library} changed. If that is meant: {WRITE}=1 cargo test -p sluice-tidy public_interface\n{}",
            changes.join("\n")
        );
    }
}

/// The public items of the crate whose source is in `src`.
fn interface(src: &Path) -> BTreeSet<String> {
    let read = |path: &PathBuf| fs::read_to_string(path).expect("a source");
    let files: Vec<PathBuf> = files_below(src, &["tests"])
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter(|path| !path.to_string_lossy().ends_with("tests.rs"))
        .collect();
    // Modules that are public where they are declared. Others see them where what is above is public, or passes them on.
    let modules: BTreeSet<PathBuf> =
        files.iter().flat_map(|path| public_modules(path, &read(path))).collect();
    let (mut public, mut exported) = (BTreeSet::from([src.join("lib.rs")]), BTreeSet::new());
    loop {
        let names = public.iter().flat_map(|path| shown(&read(path))).map(|(_, text)| text);
        exported.extend(names.flat_map(|text| used(&text)));
        let below = public.iter().flat_map(|path| public_modules(path, &read(path)));
        let passed_on = modules.iter().filter(|path| exported.contains(&module_name(path))).cloned();
        let found: BTreeSet<PathBuf> = below.chain(passed_on).chain(public.clone()).collect();
        if found.len() == public.len() {
            break;
        }
        public = found;
    }
    files.iter().flat_map(|path| items(&read(path), &exported, public.contains(path))).collect()
}

/// The files of the modules that `source`, of the file `path`, declares public.
fn public_modules(path: &Path, source: &str) -> Vec<PathBuf> {
    let is_root = path.ends_with("lib.rs") || path.ends_with("mod.rs");
    let folder = if is_root { path.parent().unwrap_or(path).to_owned() } else { path.with_extension("") };
    let declared = shown(source).filter_map(|(_, text)| {
        text.strip_prefix("pub mod ")?.strip_suffix(';').map(|name| folder.join(name))
    });
    declared
        .map(|module| if module.is_dir() { module.join("mod.rs") } else { module.with_extension("rs") })
        .collect()
}

/// The name of the module in the file `path`.
fn module_name(path: &Path) -> String {
    let of = if path.ends_with("mod.rs") { path.parent() } else { Some(path) };
    of.and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The names that `text` makes public, if it is a `pub use`.
fn used(text: &str) -> Vec<String> {
    let Some(path) = text.strip_prefix("pub use ") else { return Vec::new() };
    let list = path.split_once('{').map_or(path, |(_, list)| list);
    let names = list.split(',').map(|path| path.trim_matches([' ', '}', ';']));
    names
        .filter_map(|path| path.rsplit([':', ' ']).next())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The pieces of `source` that documentation shows.
fn shown(source: &str) -> impl Iterator<Item = (usize, String)> + use<> {
    let mut is_hidden = false;
    statements(source).filter(move |(_, text)| {
        let was_hidden = is_hidden;
        is_hidden = text.starts_with("#[doc(hidden)]") || was_hidden && text.starts_with("#[");
        !is_hidden && !was_hidden
    })
}

/// The pieces of `source`, each up to its brace or its end, with their indentation. Comments and tests are left out.
fn statements(source: &str) -> impl Iterator<Item = (usize, String)> + use<> {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let (mut found, mut open) = (Vec::new(), None::<(usize, String)>);
    for line in source.lines() {
        let text = line.trim();
        if text.is_empty() || text.starts_with("//") {
            continue;
        }
        let (indent, mut piece) =
            open.take().unwrap_or((line.len() - line.trim_start().len(), String::new()));
        piece += if piece.is_empty() || piece.ends_with(['(', '<', '{']) { "" } else { " " };
        piece += text;
        let is_use = piece.starts_with("pub use ");
        let ends = if is_use { text.ends_with(';') } else { text.ends_with(['{', '}', ';', ',', ']']) };
        let is_whole = piece.matches('(').count() == piece.matches(')').count();
        if ends && is_whole { found.push((indent, piece)) } else { open = Some((indent, piece)) }
    }
    found.into_iter()
}

/// The public items of one file: all items if the file `is_public`, else the `exported` ones. Implementations of traits count for
/// types that are exported.
fn items(source: &str, exported: &BTreeSet<String>, is_public: bool) -> Vec<String> {
    // The item at the margin in which others stand, and what of it is public.
    let (mut outer, mut found) = ((String::new(), ""), Vec::new());
    let mut attributes = String::new();
    for (indent, text) in shown(source) {
        if text.starts_with("#[") {
            if text.starts_with("#[derive") || text.starts_with("#[non_exhaustive") {
                attributes += &format!("{text} ");
            }
            continue;
        }
        let signature = signature(&text);
        let attributes = std::mem::take(&mut attributes);
        if indent == 0 {
            let (name, kind) = named(&signature);
            // Flags are judged by the name within, and a macro's methods are not told apart.
            let is_named = is_public || exported.contains(name) || ["flags", "macro"].contains(&kind);
            outer = (name.to_owned(), if is_named { kind } else { "" });
            let of_ours = signature.rsplit(' ').next().is_some_and(|of| exported.contains(simple(of)));
            if is_named && signature.starts_with("pub ")
                || signature.contains(" for ") && signature.starts_with("impl") && of_ours
            {
                found.push(format!("{attributes}{signature}"));
            }
            continue;
        }
        if outer.1 == "flags"
            && let (name, "struct") = named(&signature)
            && !is_public
            && !exported.contains(name)
        {
            outer.1 = "";
        }
        let is_shown = match outer.1 {
            "" => false,
            "trait" => indent == 4 && (signature.starts_with("fn ") || signature.starts_with("type ")),
            "enum" => indent == 4 && signature.starts_with(char::is_uppercase),
            _ => signature.starts_with("pub ") || signature.starts_with("const ") && outer.1 == "flags",
        };
        if is_shown {
            found.push(format!("{}: {attributes}{signature}", outer.0));
        }
    }
    found
}

/// `text` without its body and with single spaces.
fn signature(text: &str) -> String {
    let text = text.split(" {").next().unwrap_or(text);
    text.trim_end_matches(['{', ';', ','])
        .replace(", )", ")")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// The name and the kind of an item at the margin.
fn named(signature: &str) -> (&str, &'static str) {
    let after = |word: &str| signature.strip_prefix("pub ").and_then(|rest| rest.strip_prefix(word));
    let items = [
        ("fn ", "fn"),
        ("const fn ", "fn"),
        ("const ", "const"),
        ("static ", "static"),
        ("type ", "type"),
        ("mod ", "mod"),
    ];
    for (word, kind) in items {
        if let Some(rest) = after(word) {
            return (simple(rest), kind);
        }
    }
    for (word, kind) in [("struct ", "struct"), ("enum ", "enum"), ("trait ", "trait")] {
        if let Some(rest) = after(word) {
            return (simple(rest), kind);
        }
    }
    match signature {
        "bitflags!" => ("flags", "flags"),
        _ if signature.starts_with("macro_rules!") => ("", "macro"),
        _ if signature.starts_with("impl") => {
            (simple(signature.rsplit(' ').next().unwrap_or_default()), "impl")
        }
        _ => ("", ""),
    }
}

/// A type's name without its parameters and its path.
fn simple(of: &str) -> &str {
    let of = of.split(['<', '(', ' ', ':']).next().unwrap_or(of);
    of.rsplit("::").next().unwrap_or(of)
}
