//! The header against the library, and programs in C and Go that use both.

mod header;
mod programs;

use std::path::{Path, PathBuf};

/// The folder of this package.
fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The directory with libsluice.so, which cargo built beside this program.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    let dir = program.parent().expect("a directory").to_owned();
    assert!(dir.join("libsluice.so").exists(), "no libsluice.so in {}", dir.display());
    dir
}
