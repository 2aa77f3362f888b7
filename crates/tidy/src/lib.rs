//! `sluice-tidy`: the rules of ARCHITECTURE.md that a program can check, as tests. Nothing else.

#![forbid(unsafe_code)]

pub mod modules;
mod rust_words;

use std::fs;
use std::path::{Path, PathBuf};

/// All files below `dir`, but not below directories with a name in `left_out`.
///
/// # Panics
/// If a directory cannot be read.
pub fn files_below(dir: &Path, left_out: &[&str]) -> Vec<PathBuf> {
    let (mut pending, mut files) = (vec![dir.to_owned()], Vec::new());
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).expect("a directory of the workspace") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true if left_out.iter().any(|name| path.ends_with(name)) => {}
                true => pending.push(path),
                false => files.push(path),
            }
        }
    }
    files
}
