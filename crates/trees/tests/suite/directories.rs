//! Directories of the host.

use super::on_host::{TempDir, abilities, on_host};
use super::trees::{assert_equal, inside, plant};
use sluice_trees::Transfer;
use sluice_vfs::{Cred, Errno, FileType, Fs, Timestamp};
use std::io::ErrorKind;
use std::path::Path;

#[test]
fn a_tree_survives_the_way_out_and_in() {
    let temp = TempDir::new("round-trip");
    let can = abilities(&temp.0);
    let fs = Fs::new();
    plant(&fs, "/tree", can);
    let planted = inside(&fs, "/tree");
    // `inside` touched the directories' access times: plant anew what it describes.
    let fs = Fs::new();
    plant(&fs, "/tree", can);
    let (out, again) = (temp.0.join("out"), temp.0.join("again"));
    let exported = sluice_trees::export(&fs, "/tree", &out).unwrap();
    let other = Fs::new();
    let imported = sluice_trees::import(&other, &out, "/deep/in/it").unwrap();
    assert_eq!(exported, imported);
    sluice_trees::export(&other, "/deep/in/it", &again).unwrap();
    assert_equal(&planted, &on_host(&again));
    assert_equal(&planted, &inside(&other, "/deep/in/it"));
    assert_eq!(exported.directories, 3);
    assert_eq!(exported.symlinks, 4);
    assert_eq!(exported.files, 11);
    assert_eq!(exported.others, if can.root { 4 } else { 2 });
    assert!(other.check().is_clean());
}

#[test]
fn holes_are_not_copied() {
    let temp = TempDir::new("holes");
    let fs = Fs::new();
    let p = fs.process(Cred::root());
    fs.write("/big", "x").unwrap();
    p.truncate("/big", 1 << 40).unwrap();
    let done = sluice_trees::export(&fs, "/", &temp.0).unwrap();
    assert_eq!(done, Transfer { files: 1, bytes: 4096, ..Transfer::default() });
    let back = Fs::new();
    assert_eq!(sluice_trees::import(&back, &temp.0, "/").unwrap().files, 1);
    assert_eq!(back.metadata("/big").unwrap().size, 1 << 40);
    assert!(back.metadata("/big").unwrap().blocks <= 8);
}

#[test]
fn existing_directories_are_merged_and_files_replaced() {
    let temp = TempDir::new("merge");
    let outside = temp.0.join("outside");
    std::fs::write(&outside, "untouched").unwrap();
    let out = temp.0.join("out");
    std::fs::create_dir_all(out.join("dir")).unwrap();
    std::fs::write(out.join("dir/kept"), "kept").unwrap();
    std::fs::write(out.join("dir/file"), "old and longer").unwrap();
    std::os::unix::fs::symlink(&outside, out.join("through")).unwrap();
    let fs = Fs::new();
    fs.create_dir("/dir").unwrap();
    fs.write("/dir/file", "new").unwrap();
    fs.write("/through", "new").unwrap();
    sluice_trees::export(&fs, "/", &out).unwrap();
    assert_eq!(std::fs::read(out.join("dir/kept")).unwrap(), b"kept");
    assert_eq!(std::fs::read(out.join("dir/file")).unwrap(), b"new");
    assert_eq!(std::fs::read(out.join("through")).unwrap(), b"new");
    assert_eq!(std::fs::read(&outside).unwrap(), b"untouched");

    let target = Fs::new();
    target.write("/outside", "untouched").unwrap();
    target.create_dir_all("/to/dir").unwrap();
    target.write("/to/dir/own", "own").unwrap();
    target.symlink("/outside", "/to/through").unwrap();
    sluice_trees::import(&target, &out, "/to").unwrap();
    assert_eq!(target.read("/to/dir/own").unwrap(), b"own");
    assert_eq!(target.read("/to/through").unwrap(), b"new");
    assert_eq!(target.read("/outside").unwrap(), b"untouched");
}

#[test]
fn what_is_in_the_way_is_named() {
    let temp = TempDir::new("in-the-way");
    std::fs::create_dir(temp.0.join("name")).unwrap();
    let fs = Fs::new();
    fs.write("/name", "").unwrap();
    let error = sluice_trees::export(&fs, "/", &temp.0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IsADirectory);
    assert!(error.to_string().starts_with(&format!("{}: ", temp.0.join("name").display())), "{error}");
    let error = sluice_trees::import(&fs, &temp.0, "/").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotADirectory, "{error}");

    let error = sluice_trees::import(&fs, temp.0.join("missing"), "/").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("missing"), "{error}");
    assert_eq!(sluice_trees::export(&fs, "/name", &temp.0).unwrap_err().kind(), ErrorKind::NotADirectory);
}

#[test]
fn a_symbolic_link_in_the_way_of_a_directory_is_not_followed() {
    let temp = TempDir::new("link-in-the-way");
    let (out, outside) = (temp.0.join("out"), temp.0.join("outside"));
    std::fs::create_dir(&outside).unwrap();
    std::fs::create_dir(&out).unwrap();
    std::os::unix::fs::symlink(&outside, out.join("dir")).unwrap();
    let fs = Fs::new();
    fs.create_dir("/dir").unwrap();
    fs.write("/dir/file", "").unwrap();
    assert_eq!(sluice_trees::export(&fs, "/", &out).unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn a_full_target_is_an_error_with_the_path() {
    let temp = TempDir::new("full");
    std::fs::write(temp.0.join("large"), vec![1; 1 << 20]).unwrap();
    let options = sluice_vfs::Options::default().size_limit(1 << 16);
    let fs = Fs::with_superblock(sluice_vfs::Superblock::new(options));
    let error = sluice_trees::import(&fs, &temp.0, "/").unwrap_err();
    assert_eq!(error.kind(), std::io::Error::from(Errno::ENOSPC).kind());
    assert!(error.to_string().contains("/large: "), "{error}");
}

/// Deeper than paths may be long and, by default, than a process may have descriptors.
#[test]
fn depth_has_no_limit() {
    const DEPTH: usize = 1500;
    let temp = TempDir::new("deep");
    let fs = Fs::new();
    let p = fs.process(Cred::root());
    for _ in 0..DEPTH {
        p.mkdir("directory", 0o755).unwrap();
        p.chdir("directory").unwrap();
    }
    p.mknod("leaf", FileType::Fifo, 0o600, 0).unwrap();
    let expected = Transfer { directories: DEPTH as u64, others: 1, ..Transfer::default() };
    assert_eq!(sluice_trees::export(&fs, "/", &temp.0).unwrap(), expected);
    let back = Fs::new();
    assert_eq!(sluice_trees::import(&back, &temp.0, "/").unwrap(), expected);
    let mut archive = Vec::new();
    assert_eq!(sluice_trees::export_tar(&back, "/", &mut archive).unwrap(), expected);
    let unpacked = Fs::new();
    assert_eq!(sluice_trees::import_tar(&unpacked, &archive[..], "/").unwrap(), expected);
    let p = unpacked.process(Cred::root());
    for _ in 0..DEPTH {
        p.chdir("directory").unwrap();
    }
    assert_eq!(p.lstat("leaf").unwrap().file_type(), FileType::Fifo);
}

#[test]
fn importing_leaves_access_times_of_the_host_alone() {
    let temp = TempDir::new("atime");
    let file = temp.0.join("file");
    std::fs::write(&file, "x").unwrap();
    let old = Timestamp { sec: 1_000_000_000, nsec: 7 };
    let spec = rustix::fs::Timespec { tv_sec: old.sec, tv_nsec: 7 };
    let times = rustix::fs::Timestamps { last_access: spec, last_modification: spec };
    let cwd = rustix::fs::CWD;
    rustix::fs::utimensat(cwd, &file, &times, rustix::fs::AtFlags::empty()).unwrap();
    let fs = Fs::new();
    sluice_trees::import(&fs, &temp.0, "/").unwrap();
    assert_eq!(fs.metadata("/file").unwrap().atime, old);
    assert_eq!(std::os::unix::fs::MetadataExt::atime(&std::fs::metadata(&file).unwrap()), old.sec);
}

#[test]
fn imported_names_do_not_inherit_access_control_lists() {
    let temp = TempDir::new("inherit");
    std::fs::write(temp.0.join("file"), "x").unwrap();
    let fs = Fs::new();
    let p = fs.process(Cred::root());
    let none = sluice_vfs::XattrFlags::empty();
    p.setxattr("/", b"system.posix_acl_default", super::trees::ACL, none).unwrap();
    sluice_trees::import(&fs, &temp.0, "/").unwrap();
    assert_eq!(p.getxattr(Path::new("/file"), b"system.posix_acl_access"), Err(Errno::ENODATA));
}

#[test]
fn an_owner_that_the_host_cannot_have_is_an_error() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: owners, since this is not root");
        return;
    }
    let temp = TempDir::new("owner");
    let fs = Fs::new();
    fs.write("/file", "").unwrap();
    fs.process(Cred::root()).lchown("/file", Some(u32::MAX), None).unwrap();
    let error = sluice_trees::export(&fs, "/", &temp.0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}
