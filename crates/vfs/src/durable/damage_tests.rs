//! Random damage of a store: opening it is refused, a call says EIO, or all is as it was. Nothing is other bytes, zeros, or gone.
//!
//! `SLUICE_DAMAGE_ROUNDS` says how many damages there are, `SLUICE_DAMAGE_SEED` which.

use super::crash_tests::{are_compressed, shared};
use crate::{Cred, Errno, Fs, Options, StoreOptions, Superblock, XattrFlags};
use sluice_store::disk::crash::CrashDisk;
use sluice_sync::face::HOSTS_SHARE;
use sluice_sync::random::Random;
use std::collections::{BTreeMap, BTreeSet};

type Files = BTreeMap<String, Vec<u8>>;

const PAGE: usize = 4096;

fn options() -> Options {
    let store = StoreOptions::default().log_size(1 << 20).segment_size(1 << 20).background(false);
    Options { store, ..Options::default() }
}

fn open(files: Files) -> Result<(CrashDisk, Fs), String> {
    let disk = CrashDisk::with(files);
    let opened = Superblock::open_on(shared(&disk), options()).map_err(|error| error.to_string())?;
    Ok((disk, Fs::with_superblock(opened)))
}

/// The contents of a file system: directories with their names, files with their bytes, links, attributes.
#[derive(Default)]
struct Expected {
    dirs: BTreeMap<String, BTreeSet<String>>,
    files: BTreeMap<String, Vec<u8>>,
    links: BTreeMap<String, String>,
    xattrs: BTreeMap<String, Vec<u8>>,
}

impl Expected {
    fn name(&mut self, path: &str) {
        let (dir, name) = path.rsplit_once('/').expect("absolute");
        self.dirs.entry(dir.to_owned()).or_default().insert(name.to_owned());
    }

    fn write(&mut self, fs: &Fs, path: &str, bytes: Vec<u8>) {
        fs.write(path, &bytes).expect("room");
        self.name(path);
        self.files.insert(path.to_owned(), bytes);
    }

    /// Writes more of everything.
    fn fill(&mut self, fs: &Fs, round: usize) {
        let process = fs.process(Cred::root());
        for dir in ["/a", "/b", "/b/c"] {
            if round == 0 {
                fs.create_dir_all(dir).expect("room");
                self.name(dir);
                self.dirs.entry(dir.to_owned()).or_default();
            }
            for n in 0..12 {
                let path = format!("{dir}/file-{round}-{n}");
                let text = format!("{path} ");
                self.write(fs, &path, text.as_bytes().repeat(1 + n * n * 90));
                let value = text.into_bytes().repeat(n);
                process.setxattr(&path, b"user.says", &value, XattrFlags::empty()).expect("room");
                self.xattrs.insert(path, value);
            }
            let (link, whole) = (format!("{dir}/link-{round}"), format!("{dir}/file-{round}-11"));
            fs.symlink(&whole, &link).expect("room");
            self.name(&link);
            self.links.insert(link, whole.clone());
            fs.sync().expect("the disk works");
            let copy = format!("{dir}/copy-{round}");
            fs.copy(&whole, &copy).expect("room");
            self.name(&copy);
            self.files.insert(copy, self.files[&whole].clone());
            fs.sync().expect("the disk works");
        }
        // An older file is changed.
        let bytes = format!("round {round} ").into_bytes().repeat(9_000);
        self.write(fs, "/a/file-0-3", bytes);
        fs.sync().expect("the disk works");
    }

    /// The first difference in `fs` that is not an error; else the number of errors.
    fn differs(&self, fs: &Fs) -> Result<u64, String> {
        let process = fs.process(Cred::root());
        let mut errors = 0;
        fn right<T: PartialEq>(
            errors: &mut u64,
            found: Result<T, Errno>,
            is: &T,
            what: String,
        ) -> Result<(), String> {
            match found {
                Ok(found) if found == *is => Ok(()),
                Ok(_) => Err(format!("{what} is another")),
                Err(Errno::EIO) => {
                    *errors += 1;
                    Ok(())
                }
                Err(error) => Err(format!("{what}: {error}")),
            }
        }
        for (dir, names) in &self.dirs {
            let path = if dir.is_empty() { "/" } else { dir };
            let found = fs.read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>).map(|found| {
                let names = found.iter().map(|entry| entry.name().to_string_lossy().into_owned());
                names.filter(|name| !["last", "new", ".", ".."].contains(&&**name)).collect()
            });
            right(&mut errors, found, names, format!("the names of {path}"))?;
        }
        for (path, bytes) in &self.files {
            right(&mut errors, fs.read(path), bytes, path.clone())?;
            let size = fs.metadata(path).map(|found| found.size);
            right(&mut errors, size, &(bytes.len() as _), format!("the size of {path}"))?;
        }
        for (path, target) in &self.links {
            let found = fs.read_link(path).map(|found| found.to_string_lossy().into_owned());
            right(&mut errors, found, target, path.clone())?;
        }
        for (path, value) in &self.xattrs {
            right(&mut errors, process.getxattr(path, b"user.says"), value, format!("what {path} says"))?;
        }
        Ok(errors)
    }
}

/// The files of a store after a clean close, or when its machine died; older ones of the same store; and what it holds.
fn used(disk: CrashDisk, compress: bool, is_closed: bool) -> (Files, Vec<Files>, Expected) {
    let options = Options { store: options().store.compress(compress), ..options() };
    let fs = Fs::with_superblock(Superblock::create_on(shared(&disk), options).expect("an empty disk"));
    let (mut expected, mut older) = (Expected::default(), Vec::new());
    for round in 0..4 {
        expected.fill(&fs, round);
        older.push(disk.files());
        if round == 2 {
            let store = &fs.superblock().root().shared.durable().expect("a store").store;
            store.write_out().expect("the disk works");
            older.push(disk.files());
        }
    }
    // The loss of the last batch looks like a crash before that was written.
    fs.write("/last", "nobody asks for it").expect("room");
    fs.sync().expect("the disk works");
    if is_closed {
        fs.superblock().close().expect("the disk works");
    }
    let files = disk.files();
    drop(fs);
    (files, older, expected)
}

/// Damages `files`: says how.
fn damage(files: &mut Files, older: &[Files], random: &mut Random) -> String {
    let names: Vec<String> = files.keys().filter(|name| *name != "super").cloned().collect();
    let name = random.pick(&names);
    let other = random.pick(&names);
    let page_of = |bytes: &[u8], random: &mut Random| {
        // Where something was written, mostly.
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) / PAGE + 1;
        random.below(used) * PAGE
    };
    let at = page_of(&files[&name], random);
    let page = |bytes: &[u8], at: usize| bytes.get(at..at + PAGE).map(<[u8]>::to_vec);
    let put = |files: &mut Files, name: &str, at: usize, page: Option<Vec<u8>>| {
        if let Some((page, bytes)) =
            page.zip(files.get_mut(name).and_then(|file| file.get_mut(at..at + PAGE)))
        {
            bytes.copy_from_slice(&page);
        }
    };
    let old = &older[random.below(older.len())];
    match random.below(9) {
        0 | 1 => {
            let (byte, bit) = (at + random.below(PAGE), random.below(8));
            files.get_mut(&name).and_then(|file| file.get_mut(byte)).into_iter().for_each(|b| *b ^= 1 << bit);
            format!("bit {bit} of byte {byte} of {name}")
        }
        2 => {
            let len = at + random.below(PAGE);
            files.get_mut(&name).expect("it is there").truncate(len);
            format!("{name} cut to {len}")
        }
        3 => {
            put(files, &name, at, Some(vec![0; PAGE]));
            format!("page {at} of {name} wiped")
        }
        4 | 5 => {
            let to = page_of(&files[&other], random);
            let (one, two) = (page(&files[&name], at), page(&files[&other], to));
            put(files, &name, at, two);
            put(files, &other, to, one);
            format!("page {at} of {name} and {to} of {other} swapped")
        }
        6 => {
            let to = page_of(&files[&other], random);
            let one = page(&files[&name], at);
            put(files, &other, to, one);
            format!("page {at} of {name} again at {to} of {other}")
        }
        7 => {
            let stale = old.get(&name).and_then(|file| page(file, at));
            put(files, &name, at, stale);
            format!("page {at} of {name} is stale")
        }
        _ if name != "log" && old.contains_key(&name) => {
            let stale = old[&name].clone();
            files.insert(name.clone(), stale);
            format!("{name} is stale")
        }
        _ => {
            files.remove(&name);
            format!("{name} is gone")
        }
    }
}

#[test]
fn a_damaged_store_is_refused_or_says_so_or_is_right() {
    if !HOSTS_SHARE {
        return;
    }
    let number = |name: &str, usual| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let (rounds, seed) = (number("SLUICE_DAMAGE_ROUNDS", 250), number("SLUICE_DAMAGE_SEED", 44));
    let stores = [
        used(CrashDisk::new(), are_compressed(), true),
        used(CrashDisk::new(), are_compressed(), false),
        used(CrashDisk::encrypted(), false, true),
        used(CrashDisk::encrypted(), false, false),
        used(CrashDisk::new(), true, true),
        used(CrashDisk::encrypted(), true, false),
    ];
    let [mut refused, mut errors, mut right] = [0; 3];
    for round in 0..rounds {
        let (whole, older, expected) = &stores[round as usize % stores.len()];
        let mut random = Random::new(seed + round);
        let mut files = whole.clone();
        let how = damage(&mut files, older, &mut random);
        let said = |what: String| panic!("round {round}, seed {seed}, {how}: {what}");
        let Ok((disk, fs)) = open(files.clone()) else {
            refused += 1;
            continue;
        };
        let found = expected.differs(&fs).unwrap_or_else(said);
        // It is used, and opened again.
        let _ = fs.write("/new", "new");
        drop(fs);
        if let Ok((_, fs)) = open(disk.files()) {
            expected.differs(&fs).unwrap_or_else(|what| said(format!("later: {what}")));
        }
        if found == 0 {
            right += 1;
        } else {
            errors += 1;
            // A check finds it, too.
            let report = Superblock::check_store(shared(&CrashDisk::with(files)), &mut |_| ());
            if report.is_ok_and(|report| report.found == 0) {
                said("a check passes".into());
            }
        }
    }
    println!("{refused} refused, {errors} with errors, {right} right");
    assert!(rounds < 250 || refused > 10 && errors > 20 && right > 20, "{refused} {errors} {right}");
}
