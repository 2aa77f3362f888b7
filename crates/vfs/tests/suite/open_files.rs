//! Open files: what is open, by whom and where, while it is opened, passed on and closed.

use sluice_sync::thread;
use sluice_vfs::{
    Cred, Errno, Fd, FileInUse, FileType, Fs, MountFlags, OpenFlags, Options, Process, Superblock,
    UmountFlags, Whence,
};
use std::path::Path;

const CREATE: OpenFlags = OpenFlags::RDWR.union(OpenFlags::CREAT);

fn root() -> Process {
    Fs::new().process(Cred::root())
}

/// Process and number of each descriptor.
fn holders(file: &FileInUse) -> Vec<(i32, i32)> {
    file.holders.iter().map(|holder| (holder.pid, holder.fd.0)).collect()
}

#[test]
fn an_open_file_is_listed_with_its_flags_its_position_and_all_its_descriptors() {
    let process = root();
    assert_eq!(process.fs().open_files(), []);
    let fd = process.open("/f", CREATE | OpenFlags::APPEND, 0o644).unwrap();
    process.write(fd, b"abc").unwrap();
    process.lseek(fd, 2, Whence::Set).unwrap();
    let other = process.dup2(fd, Fd(70)).unwrap();
    let child = process.fork_as(Cred::user(7, 8));
    let files = process.fs().open_files();
    let [file] = files.as_slice() else { panic!("one description: {files:?}") };
    let stat = process.stat("/f").unwrap();
    assert_eq!((file.dev, file.ino, file.file_type), (stat.dev, stat.ino, FileType::Regular));
    assert_eq!((file.flags, file.position), (OpenFlags::RDWR | OpenFlags::APPEND, 2));
    let both = |of: &Process| [(of.pid(), fd.0), (of.pid(), other.0)];
    assert_eq!(holders(file), [both(&process), both(&child)].concat());
    assert_eq!((file.holders[0].uid, file.holders[3].uid, file.holders[3].gid), (0, 7, 8));
    process.close(fd).unwrap();
    process.close(other).unwrap();
    assert_eq!(holders(&process.fs().open_files()[0]), both(&child));
    drop(child);
    assert_eq!(process.fs().open_files(), []);
}

#[test]
fn two_descriptions_of_one_file_are_two_open_files() {
    let process = root();
    let [first, second] = [(); 2].map(|()| process.open("/f", CREATE, 0o644).unwrap());
    process.lseek(second, 9, Whence::Set).unwrap();
    let files = process.fs().open_files();
    let seen: Vec<_> = files.iter().map(|file| (file.position, holders(file)[0].1)).collect();
    assert_eq!(seen, [(0, first.0), (9, second.0)]);
}

#[test]
fn what_keeps_a_mount_busy_is_found_by_its_file_system_from_every_tree() {
    let [here, there] = [root(), root()];
    let shared = Superblock::new(Options::default());
    for process in [&here, &there] {
        process.mkdir("/m", 0o755).unwrap();
        process.mount(shared.clone(), "/m", MountFlags::empty()).unwrap();
    }
    here.open("/elsewhere", CREATE, 0o644).unwrap();
    let fd = there.open("/m/f", CREATE, 0o644).unwrap();
    let dir = here.open("/m", OpenFlags::PATH, 0).unwrap();
    for process in [&here, &there] {
        assert_eq!(process.umount("/m", UmountFlags::empty()), Err(Errno::EBUSY));
    }
    let users: Vec<_> = shared.open_files().iter().flat_map(holders).collect();
    assert_eq!(users, [(here.pid(), dir.0), (there.pid(), fd.0)]);
    assert_eq!(here.fs().open_files().len(), 2);
    there.umount("/m", UmountFlags::DETACH).unwrap();
    assert_eq!(shared.open_files().len(), 2, "a lazy unmount leaves its users where they are");
    there.close(fd).unwrap();
    here.close(dir).unwrap();
    assert_eq!(shared.open_files(), []);
    here.umount("/m", UmountFlags::empty()).unwrap();
}

#[test]
fn inode_numbers_lead_to_paths_but_not_of_removed_files() {
    let process = root();
    process.fs().create_dir_all("/a/b/c").unwrap();
    let ino = |path: &str| process.stat(path).unwrap().ino;
    for path in ["/a/b/f", "/a/b/c/g", "/gone"] {
        process.open(path, CREATE, 0o644).unwrap();
    }
    let gone = ino("/gone");
    process.unlink("/gone").unwrap();
    let wanted = [ino("/"), ino("/a/b/f"), ino("/a/b/c/g"), ino("/a/b/c"), gone];
    let paths = process.fs().superblock().paths(wanted);
    let found = wanted.map(|ino| paths.get(&ino).map(|path| path.as_path()));
    let named = ["/", "/a/b/f", "/a/b/c/g", "/a/b/c"].map(|path| Some(Path::new(path)));
    assert_eq!((&found[..4], found[4]), (&named[..], None));
    assert_eq!(process.fs().open_files().len(), 3, "a removed file is open all the same");
}

#[test]
fn a_process_that_another_thread_ends_while_it_is_read_leaves_nothing() {
    let process = root();
    let fd = process.open("/f", CREATE, 0o644).unwrap();
    thread::scope(|scope| {
        let forks = scope.spawn(|| (0..2_000).for_each(|_| drop(process.fork())));
        while !forks.is_finished() {
            let files = process.fs().open_files();
            let [file] = files.as_slice() else { panic!("one description: {files:?}") };
            assert!(holders(file).contains(&(process.pid(), fd.0)), "{file:?}");
        }
    });
    process.close(fd).unwrap();
    assert_eq!(process.fs().open_files(), []);
    process.unlink("/f").unwrap();
    assert_eq!(process.fs().superblock().live_inodes(), 1);
}
