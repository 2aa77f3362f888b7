//! Names and handles on a mount: whiteouts, positions in directories, and handles of files that the kernel has forgotten.

use crate::harness::{
    Fixture, LOCK_MODES, Peer, eventually, fresh_dir, fresh_superblock, options_of_ours, skipped,
};
use rustix::fs::{CWD, FileType, Mode, RawDir, RenameFlags, SeekFrom};
use rustix::io::Errno;
use sluice_vfs::{Fs, Superblock};
use std::collections::HashSet;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

#[test]
fn a_rename_leaves_a_whiteout_for_programs_and_in_process() {
    for options in LOCK_MODES {
        let Some(fixture) = Fixture::new(options) else { return };
        let (a, b) = (fixture.path("a"), fixture.path("b"));
        fs::write(&a, "a").expect("writable");
        let is_whiteout = |path: &Path| {
            let metadata = fs::symlink_metadata(path).expect("it is there");
            metadata.file_type().is_char_device() && (metadata.rdev(), metadata.mode() & 0o7777) == (0, 0)
        };
        let rename =
            |from, to, flags| rustix::fs::renameat_with(CWD, from, CWD, to, flags | RenameFlags::WHITEOUT);
        rename(&a, &b, RenameFlags::NOREPLACE).expect("the name is free");
        assert!(is_whiteout(&a));
        rename(&b, &a, RenameFlags::empty()).expect("it is there");
        assert!(is_whiteout(&b));
        assert_eq!(fs::read(&a).expect("it is there"), b"a");
        assert_eq!(rename(&a, &b, RenameFlags::NOREPLACE), Err(Errno::EXIST));
        assert_eq!(rename(&a, &b, RenameFlags::EXCHANGE), Err(Errno::INVAL));

        let process = fixture.fs.process(crate::harness::cred());
        let cwd = sluice_vfs::Fd::CWD;
        process.renameat2(cwd, "/a", cwd, "/c", sluice_vfs::RenameFlags::WHITEOUT).expect("it is there");
        assert!(is_whiteout(&a));
        assert_eq!(fs::read(fixture.path("c")).expect("it is there"), b"a");
        assert_eq!(
            rustix::fs::mknodat(CWD, fixture.path("w"), FileType::CharacterDevice, Mode::RUSR, 0),
            Ok(())
        );
        fixture.finish();
    }
}

/// The names behind `position`, each with the position behind it: what one getdents gives.
fn entries_behind(dir: &File, position: u64) -> Vec<(String, u64)> {
    rustix::fs::seek(dir, SeekFrom::Start(position)).expect("a position that was given");
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut reader = RawDir::new(dir, &mut buffer);
    let mut entries = Vec::new();
    loop {
        let entry = reader.next().expect("no removed directory").expect("an open directory");
        entries.push((entry.file_name().to_str().expect("text").to_string(), entry.next_entry_cookie()));
        if reader.is_buffer_empty() {
            return entries;
        }
    }
}

#[test]
fn positions_of_100_000_names_fit_a_signed_word_of_32_bits_and_lead_on() {
    let superblock = fresh_superblock();
    let process = Fs::with_superblock(superblock.clone()).process(crate::harness::cred());
    let names = 100_000;
    for number in 0..names {
        process
            .mknod(format!("/{number}"), sluice_vfs::FileType::Regular, 0o644, 0)
            .expect("the name is free");
    }
    for options in LOCK_MODES {
        if !crate::harness::can_mount() {
            return;
        }
        let fixture = Fixture::of(&superblock, options);
        let dir = File::open(fixture.dir()).expect("readable");
        let mut listed = Vec::new();
        let mut buffer = Vec::with_capacity(1 << 16);
        let mut reader = RawDir::new(&dir, buffer.spare_capacity_mut());
        while let Some(entry) = reader.next() {
            let entry = entry.expect("an open directory");
            listed.push((entry.file_name().to_str().expect("text").to_string(), entry.next_entry_cookie()));
        }
        assert_eq!(listed.len(), names + 2);
        assert_eq!(listed.iter().map(|(name, _)| name).collect::<HashSet<_>>().len(), names + 2);
        assert!(listed.is_sorted_by(|(_, a), (_, b)| a < b), "each has a position of its own");
        assert!(listed.iter().all(|(_, position)| i32::try_from(*position).is_ok()));
        for at in (0..names).step_by(97) {
            let behind = entries_behind(&dir, listed[at].1);
            assert_eq!(behind, listed[at + 1..][..behind.len()]);
        }
        drop(dir);
        fixture.finish();
    }
}

/// Makes the kernel forget all that nobody uses, and waits until the mount has heard of it. False: that is not allowed here.
fn forget(fixture: &Fixture, but: usize) -> bool {
    if let Err(error) = fs::write("/proc/sys/vm/drop_caches", "2") {
        skipped(&format!("the kernel cannot be told to forget (needs root): {error}"));
        return false;
    }
    eventually("the kernel forgets", || {
        fs::write("/proc/sys/vm/drop_caches", "2").expect("it was allowed before");
        fixture.mount().known_inodes() <= 1 + but
    });
    true
}

#[test]
fn a_handle_leads_to_its_file_as_long_as_that_has_a_name_or_is_open() {
    for options in LOCK_MODES.map(|locks| format!("{locks},nfs_export")) {
        let options = options.as_str();
        let Some(fixture) = Fixture::new(options) else { return };
        fs::create_dir_all(fixture.path("d/sub")).expect("writable");
        fs::create_dir(fixture.path("e")).expect("writable");
        fs::write(fixture.path("d/f"), "contents").expect("writable");
        fs::write(fixture.path("d/g"), "more").expect("writable");
        if !forget(&fixture, 0) {
            return;
        }
        let root = fixture.dir().to_str().expect("text").to_string();
        let start = |name| {
            let mut peer = Peer::start(&["handle", &root, name])?;
            let line = peer.line();
            assert_eq!(line, "handle");
            Some(peer)
        };
        let (Some(mut file), Some(mut other), Some(mut dir)) = (start("d/f"), start("d/g"), start("d/sub"))
        else {
            return;
        };
        assert_eq!(file.tell(""), "contents");
        assert!(forget(&fixture, 0));
        assert_eq!(file.tell(""), "contents");
        assert_eq!(dir.tell(""), format!("{root}/d/sub"));
        // Whatever its name is, and whether the kernel gave the name or not.
        assert!(forget(&fixture, 0));
        fixture.fs.rename("/d/f", "/e/h").expect("it is there");
        fixture.fs.rename("/d/sub", "/e/sub").expect("it is there");
        assert_eq!(file.tell(""), "contents");
        assert_eq!(dir.tell(""), format!("{root}/e/sub"));
        // Removed while a program has it open: until the program closes it.
        let open = File::open(fixture.path("e/h")).expect("it is there");
        fs::remove_file(fixture.path("e/h")).expect("it is there");
        // Its name was in a directory that is kept with it.
        assert!(forget(&fixture, 2));
        assert_eq!(file.tell(""), "contents");
        drop(open);
        assert!(forget(&fixture, 0));
        assert_eq!(file.tell(""), "error ESTALE");
        // Removed, or replaced, while the kernel does not know of it.
        assert_eq!(other.tell(""), "more");
        assert!(forget(&fixture, 0));
        fixture.fs.write("/new", "new").expect("writable");
        fixture.fs.rename("/new", "/d/g").expect("it is there");
        fixture.fs.remove_dir_all("/e").expect("it is there");
        assert_eq!(other.tell(""), "error ESTALE");
        assert_eq!(dir.tell(""), "error ESTALE");
        [file, other, dir].into_iter().for_each(|peer| drop(peer.finish()));
        fixture.finish();
    }
}

#[test]
fn a_handle_of_a_file_in_a_store_leads_to_it_after_the_next_mount() {
    if !crate::harness::can_mount() || !rustix::process::geteuid().is_root() {
        return skipped("a handle is opened by root");
    }
    for options in LOCK_MODES.map(|locks| format!("{locks},nfs_export")) {
        let options = options.as_str();
        let store = fresh_dir();
        let made = Superblock::create(&store, options_of_ours()).expect("an empty directory");
        let fixture = Fixture::of(&made, options);
        drop(made);
        for dir in ["d/sub", "e"] {
            fs::create_dir_all(fixture.path(dir)).expect("writable");
        }
        for file in ["d/f", "d/moved", "d/removed", "d/later"] {
            fs::write(fixture.path(file), file).expect("writable");
        }
        let root = fixture.dir().to_str().expect("text").to_string();
        let start = |name| {
            let mut peer = Peer::start(&["handle", &root, name])?;
            assert_eq!(peer.line(), "handle");
            // It has nothing open in the mount.
            peer.tell("/");
            Some(peer)
        };
        let peers = ["d/f", "d/moved", "d/removed", "d/later", "d/sub", "d"].map(start);
        let [
            Some(mut file),
            Some(mut moved),
            Some(mut removed),
            Some(mut later),
            Some(mut sub),
            Some(mut dir),
        ] = peers
        else {
            return;
        };
        fs::rename(fixture.path("d/moved"), fixture.path("e/moved")).expect("both are there");
        fs::remove_file(fixture.path("d/removed")).expect("it is there");
        fixture.finish();
        for _ in 0..2 {
            let opened = Superblock::open(&store, options_of_ours()).expect("it was closed");
            let fixture = Fixture::of(&opened, options);
            drop(opened);
            let root = fixture.dir().to_str().expect("text").to_string();
            assert_eq!(sub.tell(&root), format!("{root}/d/sub"));
            assert_eq!(dir.tell(&root), format!("{root}/d"));
            assert_eq!(file.tell(&root), "d/f");
            assert_eq!(moved.tell(&root), "d/moved");
            assert_eq!(removed.tell(&root), "error ESTALE");
            // The same file by its name.
            assert_eq!(fs::read_to_string(fixture.path("e/moved")).expect("it is there"), "d/moved");
            fs::write(fixture.path("d/f"), "d/f").expect("writable");
            if fixture.path("d/later").exists() {
                assert_eq!(later.tell(&root), "d/later");
                fs::remove_file(fixture.path("d/later")).expect("it is there");
            }
            assert_eq!(later.tell(&root), "error ESTALE");
            for peer in [&mut file, &mut moved, &mut removed, &mut later, &mut sub, &mut dir] {
                peer.tell("/");
            }
            fixture.finish();
        }
        [file, moved, removed, later, sub, dir].into_iter().for_each(|peer| drop(peer.finish()));
        fs::remove_dir_all(store).expect("nobody uses it");
    }
}
