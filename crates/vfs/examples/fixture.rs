//! Fixture: a tree in memory for a test. The program under test is given a file system instead of naming `std::fs`.
//!
//! `cargo run -p sluice-vfs --example fixture`

use sluice_vfs::{Errno, Fs};

/// The code under test: it counts the lines of all files with this ending below a directory.
fn count_lines(fs: &Fs, dir: &str, ending: &str) -> Result<usize, Errno> {
    let mut lines = 0;
    for entry in fs.walk(dir) {
        let entry = entry?;
        if entry.stat.is_file() && entry.path.extension().is_some_and(|extension| extension == ending) {
            lines += fs.read_to_string(&entry.path)?.lines().count();
        }
    }
    Ok(lines)
}

fn main() -> Result<(), Errno> {
    let fs = Fs::new();
    fs.create_dir_all("/project/src/parser")?;
    fs.write("/project/src/main.rs", "fn main() {\n}\n")?;
    fs.write("/project/src/parser/mod.rs", "// empty\n")?;
    fs.write("/project/README", "one\ntwo\n")?;
    assert_eq!(count_lines(&fs, "/project", "rs"), Ok(3));

    // A tree of which something is missing, and the first again: a snapshot shares all that did not change.
    let smaller = fs.snapshot("/")?;
    smaller.remove_dir_all("/project/src/parser")?;
    assert_eq!(count_lines(&smaller, "/project", "rs"), Ok(2));
    assert_eq!(count_lines(&fs, "/project", "rs"), Ok(3));

    // A disk that fails while the file is read.
    fs.inject("read:EIO:path=/project/src/main.rs".parse().expect("a rule"))?;
    assert_eq!(count_lines(&fs, "/project", "rs"), Err(Errno::EIO));
    println!("as expected");
    Ok(())
}
