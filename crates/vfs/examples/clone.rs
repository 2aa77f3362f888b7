//! Clone: a tree of many files in a store is cloned, and the clone made durable, again and again: what each of both takes.
//!
//! `clone DIR BYTES COUNT` makes a store in DIR, which must not exist, with 342 directories of 99 files of BYTES bytes, and
//! clones them COUNT times. Its output is in milliseconds.

use sluice_vfs::Fs;
use std::error::Error;
use std::time::Instant;

const DIRECTORIES: usize = 342;
const FILES: usize = 99;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, bytes, count] = &args[..] else { return Err("clone DIR BYTES COUNT".into()) };
    let (bytes, count): (usize, usize) = (bytes.parse()?, count.parse()?);
    let fs = Fs::create_store(dir)?;
    for directory in 0..DIRECTORIES {
        fs.create_dir_all(format!("/tree/{directory}"))?;
        for file in 0..FILES {
            let byte = (directory * FILES + file) as u8;
            fs.write(format!("/tree/{directory}/{file}"), vec![byte; bytes])?;
        }
    }
    fs.sync()?;
    for clone in 0..count {
        let begun = Instant::now();
        fs.clone_tree("/tree", format!("/clone{clone}"))?;
        let cloned = begun.elapsed();
        fs.sync()?;
        let durable = begun.elapsed() - cloned;
        println!("{:.1} {:.1}", cloned.as_secs_f64() * 1e3, durable.as_secs_f64() * 1e3);
    }
    fs.superblock().close()?;
    Ok(())
}
