//! Files through the mount: what programs rely on.

use crate::harness::{Fixture, Peer};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

#[test]
fn unlink_keeps_an_open_file_readable() {
    let Some(fixture) = Fixture::new("") else { return };
    let path = fixture.path("f");
    let mut file =
        File::options().create(true).read(true).write(true).truncate(true).open(&path).expect("writable");
    file.write_all(b"before").expect("there is room");
    fs::remove_file(&path).expect("it is there");
    file.write_all(b" and after").expect("it is open");
    file.rewind().expect("it is a regular file");
    let mut contents = String::new();
    file.read_to_string(&mut contents).expect("it is open");
    assert_eq!(contents, "before and after");
    assert_eq!(file.metadata().expect("it is open").nlink(), 0);
    assert_eq!(fixture.fs.superblock().live_inodes(), 2);
    drop(file);
    crate::harness::eventually("its storage is released", || fixture.fs.superblock().live_inodes() == 1);
    fixture.finish();
}

#[test]
fn rename_over_an_open_file_keeps_the_old_one_readable() {
    let Some(fixture) = Fixture::new("") else { return };
    fs::write(fixture.path("old"), "old").expect("writable");
    fs::write(fixture.path("new"), "new").expect("writable");
    let mut open = File::open(fixture.path("old")).expect("it is there");
    fs::rename(fixture.path("new"), fixture.path("old")).expect("both are there");
    let mut contents = String::new();
    open.read_to_string(&mut contents).expect("it is open");
    assert_eq!(contents, "old");
    assert_eq!(fs::read_to_string(fixture.path("old")).expect("it is there"), "new");
    assert!(!fixture.path("new").exists());
    drop(open);
    fixture.finish();
}

#[test]
fn renames_exchange_and_refuse_to_replace() {
    let Some(fixture) = Fixture::new("") else { return };
    let (a, b) = (fixture.path("a"), fixture.path("b"));
    fs::write(&a, "a").expect("writable");
    fs::write(&b, "b").expect("writable");
    let refused = rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::NOREPLACE);
    assert_eq!(refused, Err(Errno::EXIST));
    rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).expect("both are there");
    assert_eq!((fs::read(&a).expect("there"), fs::read(&b).expect("there")), (b"b".to_vec(), b"a".to_vec()));
    fixture.finish();
}

#[test]
fn opening_with_truncation_empties_the_file() {
    for options in crate::harness::LOCK_MODES {
        let Some(fixture) = Fixture::new(options) else { return };
        let path = fixture.path("f");
        fs::write(&path, "a long text").expect("writable");
        // Twice, since the first open teaches the kernel to open without a message.
        for _ in 0..2 {
            let file = File::options().write(true).truncate(true).open(&path).expect("it is there");
            assert_eq!(file.metadata().expect("it is open").len(), 0);
            assert_eq!(fixture.fs.read("/f").expect("it is there"), b"");
            fs::write(&path, "again").expect("writable");
        }
        fixture.finish();
    }
}

#[test]
fn mappings_are_shared_and_private() {
    let Some(fixture) = Fixture::new("") else { return };
    let path = fixture.path("f").display().to_string();
    let Some(peer) = Peer::start(&["mmap", &path]) else { return };
    assert_eq!(peer.finish(), "ok");
    let contents = fixture.fs.read("/f").expect("it is there");
    assert_eq!((contents[4096 + 3], contents[2 * 4096 + 7], contents[3 * 4096]), (b'w', b's', b'l'));
    fixture.finish();
}

#[test]
fn direct_io_agrees_with_the_page_cache() {
    for options in ["", "max_write=4096", "max_write=1048576"] {
        let Some(fixture) = Fixture::new(options) else { return };
        let path = fixture.path("f").display().to_string();
        let Some(peer) = Peer::start(&["direct", &path]) else { return };
        assert_eq!(peer.finish(), "ok");
        fixture.finish();
    }
}

#[test]
fn large_files_survive_in_pieces_of_any_size() {
    for options in ["", "max_write=4096", "max_write=5000", "max_write=1048576"] {
        let Some(fixture) = Fixture::new(options) else { return };
        let contents: Vec<u8> = (0..3_000_001_u32).map(|i| ((i * 7) >> 4) as u8).collect();
        fs::write(fixture.path("big"), &contents).expect("there is room");
        assert!(fixture.fs.read("/big").expect("it is there") == contents, "{options}");
        fixture.fs.write("/again", &contents).expect("there is room");
        assert!(fs::read(fixture.path("again")).expect("it is there") == contents, "{options}");
        fixture.finish();
    }
}

#[test]
fn holes_are_found_and_made() {
    let Some(fixture) = Fixture::new("") else { return };
    let file = File::create_new(fixture.path("sparse")).expect("the name is free");
    let page = 4096;
    rustix::io::pwrite(&file, &[1; 4096], 4 * page).expect("there is room");
    rustix::io::pwrite(&file, &[2; 4096], 9 * page).expect("there is room");
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(4 * page));
    assert_eq!(seek(SeekFrom::Hole(4 * page)), Ok(5 * page));
    assert_eq!(seek(SeekFrom::Hole(9 * page)), Ok(10 * page));
    assert_eq!(seek(SeekFrom::Data(10 * page)), Err(Errno::NXIO));
    assert_eq!(file.metadata().expect("it is open").blocks(), 16);

    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4 * page, page).expect("punching is served");
    assert_eq!(seek(SeekFrom::Data(0)), Ok(9 * page));
    assert_eq!(file.metadata().expect("it is open").blocks(), 8);
    let mut byte = [7];
    rustix::io::pread(File::open(fixture.path("sparse")).expect("it is there"), &mut byte, 4 * page)
        .expect("readable");
    assert_eq!(byte, [0]);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 20 * page).expect("there is room");
    assert_eq!(file.metadata().expect("it is open").len(), 20 * page);
    drop(file);
    fixture.finish();
}

#[test]
fn copy_file_range_copies_inside_the_file_system() {
    let Some(fixture) = Fixture::new("") else { return };
    fs::write(fixture.path("from"), "0123456789").expect("writable");
    let from = File::open(fixture.path("from")).expect("it is there");
    let to = File::create(fixture.path("to")).expect("writable");
    let (mut start, mut end) = (2, 5);
    let copied = rustix::fs::copy_file_range(&from, Some(&mut start), &to, Some(&mut end), 4);
    assert_eq!((copied, start, end), (Ok(4), 6, 9));
    assert_eq!(fs::read(fixture.path("to")).expect("it is there"), b"\0\0\0\0\x002345");
    drop((from, to));
    fixture.finish();
}

#[test]
fn extended_attributes_are_kept() {
    let Some(fixture) = Fixture::new("") else { return };
    let path = fixture.path("f");
    fs::write(&path, "").expect("writable");
    rustix::fs::setxattr(&path, "user.colour", b"green", XattrFlags::CREATE).expect("there is none yet");
    let twice = rustix::fs::setxattr(&path, "user.colour", b"red", XattrFlags::CREATE);
    assert_eq!(twice, Err(Errno::EXIST));
    let mut small = [0_u8; 2];
    assert_eq!(rustix::fs::getxattr(&path, "user.colour", &mut small), Err(Errno::RANGE));
    let mut value = [0_u8; 64];
    assert_eq!(rustix::fs::getxattr(&path, "user.colour", &mut value), Ok(5));
    assert_eq!(&value[..5], b"green");
    let listed = rustix::fs::listxattr(&path, &mut value).expect("there is one");
    assert_eq!(&value[..listed], b"user.colour\0");
    rustix::fs::removexattr(&path, "user.colour").expect("there is one");
    assert_eq!(rustix::fs::getxattr(&path, "user.colour", &mut value), Err(Errno::NODATA));
    fixture.finish();
}

/// A POSIX ACL in the kernel's form: version 2, then tag, permissions and id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

#[test]
fn access_control_lists_set_the_mode_and_are_inherited() {
    const NOBODY: u32 = u32::MAX;
    let Some(fixture) = Fixture::new("") else { return };
    let (dir, file) = (fixture.path("d"), fixture.path("d/f"));
    fs::create_dir(&dir).expect("the name is free");
    // user::rwx, user:1234:r-x, group::r-x, mask::r-x, other::---
    let list = acl(&[(1, 7, NOBODY), (2, 5, 1234), (4, 5, NOBODY), (16, 5, NOBODY), (32, 0, NOBODY)]);
    rustix::fs::setxattr(&dir, "system.posix_acl_default", &list, XattrFlags::empty()).expect("root may");
    rustix::fs::setxattr(&dir, "system.posix_acl_access", &list, XattrFlags::empty()).expect("root may");
    assert_eq!(fs::metadata(&dir).expect("it is there").mode() & 0o777, 0o750);
    fs::write(&file, "").expect("writable");
    // The default list takes the place of the umask: 0666 without what it does not grant.
    assert_eq!(fs::metadata(&file).expect("it is there").mode() & 0o777, 0o640);
    let mut value = [0_u8; 128];
    let len = rustix::fs::getxattr(&file, "system.posix_acl_access", &mut value).expect("it was inherited");
    assert_eq!(len, list.len());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("root may");
    rustix::fs::getxattr(&file, "system.posix_acl_access", &mut value).expect("it is there");
    // The mask follows the group bits.
    assert_eq!(value[4 + 3 * 8 + 2], 0);
    fixture.finish();
}

#[test]
fn link_counts_are_right_under_every_name() {
    let Some(fixture) = Fixture::new("") else { return };
    let links = |name: &str| fs::symlink_metadata(fixture.path(name)).expect("it is there").nlink();
    fs::write(fixture.path("a"), "").expect("writable");
    fs::hard_link(fixture.path("a"), fixture.path("b")).expect("the name is free");
    assert_eq!((links("a"), links("b")), (2, 2));
    fs::remove_file(fixture.path("a")).expect("it is there");
    assert_eq!(links("b"), 1);
    let before = links("");
    fs::create_dir(fixture.path("d")).expect("the name is free");
    fs::create_dir(fixture.path("d/e")).expect("the name is free");
    assert_eq!((links(""), links("d")), (before + 1, 3));
    fs::rename(fixture.path("d/e"), fixture.path("e")).expect("it is there");
    assert_eq!((links(""), links("d")), (before + 2, 2));
    fs::remove_dir(fixture.path("e")).expect("it is empty");
    assert_eq!(links(""), before + 1);
    fixture.finish();
}

#[test]
fn an_unnamed_file_can_be_given_a_name() {
    for options in crate::harness::LOCK_MODES {
        let Some(fixture) = Fixture::new(options) else { return };
        let unnamed =
            rustix::fs::open(fixture.dir(), OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(unnamed.expect("O_TMPFILE is served"));
        file.write_all(b"nameless").expect("there is room");
        assert_eq!(file.metadata().expect("it is open").nlink(), 0);
        let proc = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, proc, CWD, fixture.path("named"), AtFlags::SYMLINK_FOLLOW)
            .expect("it is linkable");
        assert_eq!(file.metadata().expect("it is open").nlink(), 1);
        assert_eq!(fs::read(fixture.path("named")).expect("it is there"), b"nameless");
        drop(file);
        fixture.finish();
    }
}

#[test]
fn large_directories_are_listed_whole_while_they_are_emptied() {
    const FILES: usize = 3000;
    let Some(fixture) = Fixture::new("") else { return };
    for number in 0..FILES {
        fixture.fs.write(format!("/file-with-a-rather-long-name-{number}"), "").expect("the name is free");
    }
    let mut names: Vec<_> = fs::read_dir(fixture.dir())
        .expect("it is a directory")
        .map(|entry| entry.expect("it is readable").file_name())
        .collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), FILES);
    let mut removed = 0;
    for entry in fs::read_dir(fixture.dir()).expect("it is a directory") {
        fs::remove_file(entry.expect("it is readable").path()).expect("each is listed once");
        removed += 1;
    }
    assert_eq!(removed, FILES);
    assert_eq!(fs::read_dir(fixture.dir()).expect("it is a directory").count(), 0);
    fixture.finish();
}

#[test]
fn set_id_bits_go_when_an_ordinary_user_changes_the_file() {
    let Some(fixture) = Fixture::new("") else { return };
    let path = fixture.path("program");
    fs::write(&path, "x").expect("writable");
    let set = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("root may");
    let mode = || fs::metadata(&path).expect("it is there").mode() & 0o7777;
    if !rustix::process::geteuid().is_root() {
        set(0o6777);
        fs::write(&path, "by one who may not keep them").expect("writable");
        assert_eq!(mode(), 0o777);
        return fixture.finish();
    }
    set(0o6777);
    std::os::unix::fs::chown(&path, Some(0), Some(0)).expect("root may");
    assert_eq!(mode(), 0o777);
    set(0o6777);
    std::os::unix::fs::chown(&path, None, None).expect("root may");
    assert_eq!(mode(), 0o777);
    set(0o6777);
    fs::write(&path, "by root, who may keep them").expect("writable");
    assert_eq!(mode(), 0o6777);
    use std::os::unix::process::CommandExt;
    let script = format!("echo x >> {}", path.display());
    let status = std::process::Command::new("sh").args(["-c", &script]).uid(65534).gid(65534).status();
    assert!(status.expect("sh runs").success());
    assert_eq!(mode(), 0o777);
    fixture.finish();
}

#[test]
fn special_files_and_symlinks_keep_their_kind() {
    let Some(fixture) = Fixture::new("") else { return };
    rustix::fs::mknodat(CWD, fixture.path("pipe"), rustix::fs::FileType::Fifo, Mode::RWXU, 0)
        .expect("anybody may");
    std::os::unix::fs::symlink("some/where", fixture.path("link")).expect("the name is free");
    assert_eq!(
        fs::read_link(fixture.path("link")).expect("it is a link"),
        std::path::Path::new("some/where")
    );
    let kind = |name: &str| fs::symlink_metadata(fixture.path(name)).expect("it is there").mode() & 0o170_000;
    assert_eq!((kind("pipe"), kind("link")), (0o010_000, 0o120_000));
    if rustix::process::geteuid().is_root() {
        let device = rustix::fs::makedev(259, 70_000);
        let made = rustix::fs::mknodat(
            CWD,
            fixture.path("dev"),
            rustix::fs::FileType::BlockDevice,
            Mode::RUSR,
            device,
        );
        made.expect("root may");
        assert_eq!(fs::metadata(fixture.path("dev")).expect("it is there").rdev(), device);
        let statx =
            rustix::fs::statx(CWD, fixture.path("dev"), AtFlags::empty(), rustix::fs::StatxFlags::ALL);
        let statx = statx.expect("it is there");
        assert_eq!((statx.stx_rdev_major, statx.stx_rdev_minor), (259, 70_000));
    }
    fixture.finish();
}
