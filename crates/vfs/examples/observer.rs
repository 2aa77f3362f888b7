//! Observer: a program is told of each change while another part of it works.
//!
//! `cargo run -p sluice-vfs --example observer`

use sluice_vfs::{Errno, Fs, Observer};
use std::sync::{Arc, Mutex};

/// Counts changes of each kind. Observers run on the thread that makes a change, so this one only counts.
#[derive(Default)]
struct Counts(Mutex<[usize; 3]>);

impl Counts {
    fn count(&self, kind: usize) {
        self.0.lock().expect("no panic")[kind] += 1;
    }
}

impl Observer for Counts {
    fn entry_changed(&self, dir: u64, name: &[u8], child: Option<u64>) {
        let what = child.map_or("is gone".to_owned(), |ino| format!("is inode {ino}"));
        println!("in directory {dir}, {} {what}", name.escape_ascii());
        self.count(0);
    }

    fn attributes_changed(&self, _ino: u64) {
        self.count(1);
    }

    fn data_changed(&self, _ino: u64, _offset: u64, _len: u64) {
        self.count(2);
    }
}

fn main() -> Result<(), Errno> {
    let (fs, counts) = (Fs::new(), Arc::new(Counts::default()));
    let id = fs.superblock().observe(counts.clone())?;
    fs.write("/draft", "text")?;
    fs.rename("/draft", "/letter")?;
    fs.set_permissions("/letter", 0o600)?;
    fs.remove_file("/letter")?;
    fs.superblock().unobserve(id);
    fs.write("/unseen", "nobody is told")?;
    let [names, attributes, data] = *counts.0.lock().expect("no panic");
    println!("changes of names: {names}, of attributes: {attributes}, of data: {data}");
    Ok(())
}
