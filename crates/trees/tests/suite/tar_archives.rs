//! Archives that are as they should be, from here and from the system's tar.

use super::on_host::{TempDir, abilities, on_host};
use super::trees::{Abilities, Node, Tree, assert_equal, inside, plant};
use sluice_vfs::{FileType, Fs};
use std::path::{Path, PathBuf};
use std::process::Command;

const EVERYTHING: Abilities = Abilities { root: true, user_xattrs: true, acls: true };

fn without_sockets(mut tree: Tree) -> Tree {
    tree.retain(|_, node| node.mode & 0o170_000 != FileType::Socket.mode_bits());
    tree
}

#[test]
fn a_tree_survives_being_packed() {
    let fs = Fs::new();
    plant(&fs, "/tree", EVERYTHING);
    let planted = without_sockets(inside(&fs, "/tree"));
    let fs = Fs::new();
    plant(&fs, "/tree", EVERYTHING);
    let mut archive = Vec::new();
    let packed = sluice_trees::export_tar(&fs, "/tree", &mut archive).unwrap();
    assert!(archive.len() < 4 << 20, "holes were packed: {} bytes", archive.len());
    let other = Fs::new();
    let unpacked = sluice_trees::import_tar(&other, &archive[..], "/to").unwrap();
    assert_eq!(packed, unpacked);
    assert_equal(&planted, &inside(&other, "/to"));
    assert!(other.check().is_clean());
    // Over itself: everything is replaced by its like.
    assert_eq!(sluice_trees::import_tar(&other, &archive[..], "/to").unwrap(), packed);
    assert_eq!(inside(&other, "/to").len(), planted.len());
}

#[test]
fn a_file_larger_than_a_header_can_tell_survives() {
    let fs = Fs::new();
    fs.write("/big", "x").unwrap();
    fs.process(sluice_vfs::Cred::root()).truncate("/big", 1 << 42).unwrap();
    let mut archive = Vec::new();
    sluice_trees::export_tar(&fs, "/", &mut archive).unwrap();
    let other = Fs::new();
    sluice_trees::import_tar(&other, &archive[..], "/").unwrap();
    assert_eq!(other.metadata("/big").unwrap().size, 1 << 42);
}

/// True when the system has GNU tar.
fn has_tar() -> bool {
    let found = Command::new("tar").arg("--version").output();
    let is_gnu = found.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("GNU tar"));
    if !is_gnu {
        eprintln!("SKIPPED: comparison with the system's tar, which is not GNU tar");
    }
    is_gnu
}

/// The facts that every format keeps: times to the second, and no access times, extents and extended attributes.
fn coarse(tree: &Tree) -> Tree {
    let plain = |node: &Node| Node {
        atime: None,
        mtime: (node.mtime.0, 0),
        extents: Vec::new(),
        xattrs: Default::default(),
        ..node.clone()
    };
    tree.iter().map(|(path, node)| (path.clone(), plain(node))).collect()
}

#[test]
fn archives_of_the_system_are_read() {
    if !has_tar() {
        return;
    }
    let temp = TempDir::new("tar-in");
    let mut can = abilities(&temp.0);
    can.acls = false;
    let fs = Fs::new();
    plant(&fs, "/tree", can);
    let planted = without_sockets(inside(&fs, "/tree"));
    let host = temp.0.join("tree");
    sluice_trees::export(&fs, "/tree", &host).unwrap();
    let sparse = |version: &'static str| vec!["--format=pax", "-S", version];
    let variants = [
        vec!["--format=gnu"],
        vec!["--format=gnu", "-S"],
        vec!["--format=pax", "--xattrs", "--xattrs-include=*"],
        sparse("--sparse-version=0.0"),
        sparse("--sparse-version=0.1"),
        sparse("--sparse-version=1.0"),
    ];
    for options in variants {
        let out =
            Command::new("tar").args(&options).arg("-cf-").arg("-C").arg(&host).arg(".").output().unwrap();
        assert!(out.status.success(), "{options:?}: {}", String::from_utf8_lossy(&out.stderr));
        let other = Fs::new();
        sluice_trees::import_tar(&other, &out.stdout[..], "/")
            .unwrap_or_else(|error| panic!("{options:?}: {error}"));
        let unpacked = inside(&other, "/");
        let mut expected = coarse(&planted);
        for (path, node) in &mut expected {
            // The GNU format drops the fraction of a negative time towards the other side.
            if node.mtime.0 < 0 {
                node.mtime.0 = unpacked[path].mtime.0;
            }
        }
        assert_equal(&expected, &coarse(&unpacked));
        if options.contains(&"-S") {
            assert_eq!(unpacked[Path::new("dir/holes")].extents, planted[Path::new("dir/holes")].extents);
        }
        if options.contains(&"--xattrs") {
            for (path, node) in &planted {
                assert_eq!(node.xattrs, unpacked[path].xattrs, "{path:?}");
                assert_eq!(node.mtime, unpacked[path].mtime, "{path:?}");
            }
        }
    }
}

#[test]
fn archives_from_here_are_read_by_the_system() {
    if !has_tar() {
        return;
    }
    let temp = TempDir::new("tar-out");
    let can = abilities(&temp.0);
    let fs = Fs::new();
    plant(&fs, "/tree", can);
    let planted = without_sockets(inside(&fs, "/tree"));
    let archive = temp.0.join("archive.tar");
    sluice_trees::export_tar(&fs, "/tree", std::fs::File::create(&archive).unwrap()).unwrap();
    let host = temp.0.join("out");
    std::fs::create_dir(&host).unwrap();
    let out = Command::new("tar")
        .args(["-xpf"])
        .arg(&archive)
        .args(["--numeric-owner", "--xattrs", "--xattrs-include=*", "-C"])
        .arg(&host)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let unpacked = on_host(&host);
    let comparable = |tree: &Tree| -> Tree {
        let plain = |node: &Node| Node { atime: None, ..node.clone() };
        tree.iter().map(|(path, node): (&PathBuf, _)| (path.clone(), plain(node))).collect()
    };
    assert_equal(&comparable(&planted), &comparable(&unpacked));
}
