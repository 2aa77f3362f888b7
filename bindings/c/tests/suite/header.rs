//! The header: made of the source, and with a declaration for each function of the library.

use crate::{library, package};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

#[test]
fn the_header_is_what_cbindgen_makes_of_the_source() {
    let config =
        cbindgen::Config::from_file(package().join("cbindgen.toml")).expect("cbindgen.toml is right");
    let made = cbindgen::Builder::new().with_crate(package()).with_config(config).generate();
    let mut text = Vec::new();
    made.expect("the source can be read").write(&mut text);
    let text = String::from_utf8(text).expect("a header is text").replace(" * ", " *").into_bytes();
    let path = package().join("include/sluice.h");
    if std::env::var_os("SLUICE_HEADER_WRITE").is_some() {
        fs::write(&path, &text).expect("the header is written");
    }
    let kept = fs::read(&path).unwrap_or_default();
    assert!(
        kept == text,
        "include/sluice.h is not of this source: run SLUICE_HEADER_WRITE=1 cargo test -p sluice-c; if functions or structures \
         changed for programs that are there, the number in build.rs grows"
    );
}

/// The functions that `text` declares.
fn declared(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '(' && c != '*');
    let names = words
        .filter_map(|word| word.strip_suffix('(').or_else(|| word.split_once('(').map(|(name, _)| name)));
    names
        .map(|name| name.trim_start_matches('*').to_owned())
        .filter(|name| name.starts_with("sluice_"))
        .collect()
}

#[test]
fn the_library_exports_the_functions_of_the_header_and_no_others() {
    let header = fs::read_to_string(package().join("include/sluice.h")).expect("the header");
    let code: Vec<_> = header.lines().filter(|line| !line.trim_start().starts_with(['*', '/'])).collect();
    let declared = declared(&code.join("\n"));
    assert!(declared.len() > 60, "{declared:?}");

    let nm = Command::new("nm").args(["-D", "--defined-only"]).arg(library().join("libsluice.so")).output();
    let nm = nm.expect("nm, of the C toolchain, runs");
    assert!(nm.status.success(), "{nm:?}");
    let symbols = String::from_utf8(nm.stdout).expect("names");
    let exported: BTreeSet<String> =
        symbols.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect();
    assert_eq!(exported, declared);
}
