//! Handles: files and directories that close themselves behave as those of `std::fs`.

use sluice_sync::Arc;
use sluice_vfs::{Cred, Dir, DirEntry, Errno, Fd, File, FileType, Fs, LockType, OpenFlags, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

fn text(file: &mut File) -> String {
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_file_reads_writes_and_seeks() {
    let fs = Fs::new();
    let mut file = File::create(&fs, "/f").unwrap();
    file.write_all(b"0123456789").unwrap();
    assert_eq!(file.seek(SeekFrom::End(-4)).unwrap(), 6);
    assert_eq!(file.seek(SeekFrom::Current(-2)).unwrap(), 4);
    file.write_all(b"--").unwrap();
    assert_eq!(text(&mut file), "0123--6789");
    file.write_all_at(b"ab", 1).unwrap();
    let mut two = [0; 2];
    assert_eq!(file.read_at(&mut two, 1).unwrap(), 2);
    assert_eq!(&two, b"ab");
    file.set_len(3).unwrap();
    assert_eq!(text(&mut file), "0ab");
    assert_eq!(file.read_at(&mut two, 3), Ok(0), "the end of the file");
    assert_eq!(file.read_at(&mut two, u64::MAX), Err(Errno::EINVAL));
    assert!(file.seek(SeekFrom::Start(u64::MAX)).is_err());
    assert!(file.seek(SeekFrom::Current(-100)).is_err());
    file.sync_all().unwrap();
    file.sync_data().unwrap();
}

#[test]
fn the_options_are_those_of_std() {
    let fs = Fs::new();
    let open = |set: &dyn Fn(&mut OpenOptions)| {
        let mut options = OpenOptions::new();
        set(&mut options);
        options.open(&fs, "/f").map(drop)
    };
    // The same options and the same answers as a file of the host gives.
    let host = std::env::temp_dir().join(format!("sluice-handles-{}", std::process::id()));
    let _ = std::fs::remove_file(&host);
    for bits in 0..64_u32 {
        let has = |bit: u32| bits & 1 << bit != 0;
        let ours = open(&|options| {
            options.read(has(0)).write(has(1)).append(has(2)).truncate(has(3)).create(has(4));
            options.create_new(has(5));
        });
        let mut options = std::fs::OpenOptions::new();
        options.read(has(0)).write(has(1)).append(has(2)).truncate(has(3)).create(has(4)).create_new(has(5));
        let theirs = options.open(&host).map(drop);
        let theirs = theirs.map_err(|error| match error.raw_os_error() {
            Some(number) => Errno::from_raw(number),
            None => Errno::EINVAL,
        });
        assert_eq!(ours, theirs, "{options:?}");
        if bits % 3 == 0 {
            let _ = (fs.remove_file("/f"), std::fs::remove_file(&host));
        }
    }
    let _ = std::fs::remove_file(&host);
    assert_eq!(
        open(&|options| {
            options.read(true).custom_flags(OpenFlags::DIRECTORY);
        }),
        Err(if fs.exists("/f") { Errno::ENOTDIR } else { Errno::ENOENT })
    );
}

#[test]
fn a_handle_closes_its_descriptor_and_a_clone_shares_the_position() {
    let fs = Fs::new();
    let user = Arc::new(fs.process(Cred::root()));
    for _ in 0..100 {
        let mut new = OpenOptions::new();
        let mut file = new.read(true).write(true).create(true).open_as(&user, "/f").unwrap();
        assert_eq!(file.descriptor().1, Fd(0), "the one before is closed");
        let mut clone = file.try_clone().unwrap();
        clone.write_all(b"abc").unwrap();
        assert_eq!(file.stream_position().unwrap(), 3);
        drop(file);
        clone.write_all(b"d").unwrap();
    }
    assert_eq!(fs.read("/f").unwrap(), b"abcd");
    assert_eq!(user.fstat(Fd(0)), Err(Errno::EBADF));
}

#[test]
fn a_handle_outlives_its_file_system_value_and_works_on_any_thread() {
    let mut file = File::create(&Fs::new(), "/f").unwrap();
    std::thread::spawn(move || {
        file.write_all(b"alive").unwrap();
        assert_eq!(text(&mut file), "alive");
    })
    .join()
    .unwrap();
}

#[test]
fn permissions_are_those_of_the_process() {
    let fs = Fs::new();
    fs.write("/secret", "x").unwrap();
    fs.set_permissions("/secret", 0o600).unwrap();
    let user = Arc::new(fs.process(Cred::user(1000, 1000)));
    let mut read = OpenOptions::new();
    assert_eq!(read.read(true).open_as(&user, "/secret").err(), Some(Errno::EACCES));
    File::open(&fs, "/secret").unwrap().set_permissions(0o644).unwrap();
    assert!(read.open_as(&user, "/secret").is_ok());
}

#[test]
fn locks_are_those_of_the_handle() {
    let fs = Fs::new();
    let one = File::create(&fs, "/f").unwrap();
    let mut both = OpenOptions::new();
    let other = both.read(true).write(true).open(&fs, "/f").unwrap();
    one.lock_shared().unwrap();
    other.try_lock_shared().unwrap();
    assert_eq!(one.try_lock(), Err(Errno::EAGAIN));
    other.unlock().unwrap();
    one.lock().unwrap();
    let clone = one.try_clone().unwrap();
    drop(one);
    assert_eq!(other.try_lock_shared(), Err(Errno::EAGAIN), "the clone holds it");
    drop(clone);
    other.lock().unwrap();

    let one = both.open(&fs, "/f").unwrap();
    one.lock_range(..10, LockType::Write).unwrap();
    one.lock_range(20..=29, LockType::Read).unwrap();
    other.try_lock_range(10..20, LockType::Write).unwrap();
    other.try_lock_range(25..26, LockType::Read).unwrap();
    assert_eq!(other.try_lock_range(29.., LockType::Write), Err(Errno::EAGAIN));
    other.try_lock_range(30.., LockType::Write).unwrap();
    for empty in [5..5, std::ops::Range { start: 6, end: 5 }] {
        assert_eq!(one.try_lock_range(empty, LockType::Read), Err(Errno::EINVAL));
    }
    assert_eq!(one.try_lock_range(..=u64::MAX, LockType::Read), Err(Errno::EINVAL));
}

#[test]
fn a_directory_is_a_place_to_start_from() {
    let fs = Fs::new();
    fs.create_dir("/d").unwrap();
    let dir = Dir::open(&fs, "/d").unwrap();
    dir.create_dir("sub", 0o750).unwrap();
    assert_eq!(dir.symlink_metadata("sub").unwrap().permissions(), 0o750);
    dir.open_file("sub/f", OpenOptions::new().write(true).create(true)).unwrap();
    let sub = dir.open_dir("sub").unwrap();
    assert_eq!(sub.rename("f", &dir, "g"), Ok(()));
    fs.symlink("g", "/d/link").unwrap();
    assert_eq!(dir.read_link("link").unwrap().to_str(), Some("g"));
    for _ in 0..2 {
        let entries: Result<Vec<_>, _> = dir.entries().unwrap().collect();
        let mut entries = entries.unwrap();
        entries.sort_by_key(DirEntry::file_name);
        let told = entries.iter().map(|entry| (entry.path(), entry.file_type(), entry.metadata().unwrap()));
        let told: Vec<_> =
            told.map(|(path, kind, stat)| (path, kind, stat.file_type(), stat.len())).collect();
        use FileType::{Directory, Regular, Symlink};
        let expected = [("g", Regular, 0), ("link", Symlink, 1), ("sub", Directory, 40)];
        assert_eq!(told, expected.map(|(name, kind, len)| (PathBuf::from(name), Ok(kind), kind, len)));
    }
    let stranger = Dir::open(&fs, "/d").unwrap();
    assert_eq!(dir.rename("g", &stranger, "h"), Err(Errno::EBADF));
    assert_eq!(dir.remove_dir("g"), Err(Errno::ENOTDIR));
    dir.remove_file("g").unwrap();
    dir.remove_file("link").unwrap();
    dir.remove_dir("sub").unwrap();
    fs.remove_dir("/d").unwrap();
    assert_eq!(dir.entries().err(), Some(Errno::ENOENT));
    assert_eq!(dir.metadata().unwrap().nlink, 0);
    assert_eq!(Dir::open(&fs, "/d").err(), Some(Errno::ENOENT));
    fs.write("/f", "").unwrap();
    assert_eq!(Dir::open(&fs, "/f").err(), Some(Errno::ENOTDIR));
}
