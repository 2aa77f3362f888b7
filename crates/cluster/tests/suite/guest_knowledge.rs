//! Knowledge of guests: what a kernel asks of a directory that it made is answered without its server, until another looks in.

use crate::mounts::skipped;
use crate::pair::Pair;
use rustix::fs::{FlockOperation, XattrFlags, fcntl_lock, getxattr, setxattr};
use rustix::io::Errno;
use sluice_sync::thread;
use std::fs::{self, File, FileTimes, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;
use std::time::SystemTime;

const CAPABILITY: &str = "security.capability";

/// Makes a file as `tar -x` does.
fn unpack(path: &Path) {
    let mut file = File::create_new(path).expect("a fresh name");
    file.write_all(b"contents").expect("there is room");
    file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH)).expect("it is ours");
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    fchown(&file, Some(uid), Some(gid)).expect("it is ours");
    file.set_permissions(Permissions::from_mode(0o640)).expect("it is ours");
}

#[test]
fn a_guest_that_unpacks_a_tree_waits_for_its_server_no_more_than_it_must() {
    const FILES: u64 = 100;
    let Some(pair) = Pair::far() else { return };
    let (_, far) = pair.dirs();
    let waited = || pair.nodes[1].relay.counts().awaited;
    let before = waited();
    fs::create_dir(far.join("d")).expect("made");
    (0..FILES).for_each(|file| unpack(&far.join(format!("d/f{file}"))));
    let sent = waited() - before;
    println!("{sent} for {FILES} files, {} answers held", held(&pair));
    assert!(held(&pair) <= 1, "the other kernel is told of the new directory, and of nothing in it");
    // CREATE: WRITE and three SETATTR go behind.
    assert!(sent <= FILES + 10, "{sent}");
    assert!(pair.nodes[1].relay.counts().behind >= 4 * FILES);
    // The kernel asks for the directory's attributes before each further removal.
    let before = waited();
    (0..FILES).for_each(|file| fs::remove_file(far.join(format!("d/f{file}"))).expect("it is there"));
    let sent = waited() - before;
    assert!(sent <= FILES + 10, "{sent}");
    pair.finish();
}

/// Answers that waited for others.
fn held(pair: &Pair) -> u64 {
    pair.nodes[1].guest.as_ref().expect("attached").held_answers()
}

#[test]
fn a_guest_that_unpacks_a_tree_does_not_wait_for_what_others_do_elsewhere() {
    const FILES: usize = 200;
    let Some(pair) = Pair::far() else { return };
    let (near, far) = pair.dirs();
    let theirs = near.join("theirs");
    fs::create_dir(&theirs).expect("made");
    fs::create_dir(far.join("d")).expect("made");
    let before = held(&pair);
    thread::scope(|scope| {
        scope.spawn(|| {
            for file in 0..FILES {
                let (old, new) = (theirs.join(format!("{file}")), theirs.join("new"));
                fs::write(&old, "some").expect("written");
                fs::rename(&old, &new).expect("it is there");
                fs::remove_file(&new).expect("it is there");
            }
        });
        scope.spawn(|| (0..FILES).for_each(|file| unpack(&far.join(format!("d/f{file}")))));
    });
    let waited = held(&pair) - before;
    println!("{waited} answers held of {FILES} files");
    assert_eq!(waited, 0);
    pair.finish();
}

#[test]
fn another_guest_that_looks_into_a_new_directory_changes_it_under_the_eyes_of_its_maker() {
    let Some(pair) = Pair::far() else { return };
    let (near, far) = pair.dirs();
    let covered = || pair.nodes[1].guest.as_ref().expect("attached").covered();
    for round in 0..20 {
        let (a, b) = (near.join(format!("d{round}")), far.join(format!("d{round}")));
        fs::create_dir(&b).expect("made");
        fs::write(b.join("old"), "old").expect("written");
        assert!(!b.join("new").exists() && fs::metadata(&b).expect("it is there").nlink() == 2);
        assert_eq!(covered(), 1);
        // By each way in which it may find it.
        let found = if round % 2 == 0 {
            a.is_dir()
        } else {
            let mut all = fs::read_dir(near).expect("it is there").map(|entry| entry.expect("read"));
            all.any(|entry| entry.path() == a && entry.metadata().is_ok_and(|entry| entry.is_dir()))
        };
        assert!(found && covered() == 0);
        fs::write(a.join("new"), "new").expect("written");
        assert_eq!(fs::read(b.join("new")).expect("it is there"), b"new");
        fs::create_dir(a.join("sub")).expect("made");
        assert_eq!(fs::metadata(&b).expect("it is there").nlink(), 3);
        fs::remove_file(a.join("old")).expect("it is there");
        assert!(!b.join("old").exists() && b.join("sub").is_dir());
        fs::remove_dir_all(&a).expect("removed");
        assert!(!b.exists());
    }
    pair.finish();
}

#[test]
fn two_guests_that_find_and_fill_a_directory_at_once_see_each_others_names() {
    let Some(pair) = Pair::far() else { return };
    let (near, far) = pair.dirs();
    for round in 0..100 {
        let (a, b) = (near.join(format!("d{round}")), far.join(format!("d{round}")));
        thread::scope(|scope| {
            scope.spawn(|| {
                while fs::write(a.join("theirs"), "theirs").is_err() {
                    thread::yield_now();
                }
                // Before or after the other looks: it is there from here on.
                assert!(a.join("theirs").exists());
            });
            fs::create_dir(&b).expect("made");
            (0..5).for_each(|file| fs::write(b.join(format!("{file}")), "mine").expect("written"));
        });
        assert_eq!(fs::read(b.join("theirs")).expect("it is there"), b"theirs");
        assert!((0..5).all(|file| a.join(format!("{file}")).exists()));
        assert_eq!(fs::read_dir(&b).expect("it is there").count(), 6);
    }
    pair.finish();
}

#[test]
fn a_file_that_leaves_its_new_directory_may_get_a_capability_from_another_guest() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root gives capabilities to a file");
    }
    let Some(pair) = Pair::far() else { return };
    let (near, far) = pair.dirs();
    // VFS_CAP_REVISION_2, and one capability.
    let capability = [[0, 0, 0, 2], [0, 4, 0, 0], [0; 4], [0; 4], [0; 4]].concat();
    let give = |path: &Path| setxattr(path, CAPABILITY, &capability, XattrFlags::empty()).expect("root may");
    let has = |file: &Path| match getxattr(file, CAPABILITY, &mut [0; 64][..]) {
        Ok(len) => len == capability.len(),
        Err(errno) => {
            assert_eq!(errno, Errno::NODATA);
            false
        }
    };
    let open = ["moved", "linked", "given", "found"].map(|name| {
        fs::create_dir(far.join(name)).expect("made");
        let path = far.join(name).join("f");
        let file = File::create_new(&path).expect("made");
        assert!(!has(&path));
        file
    });
    fs::rename(far.join("moved/f"), far.join("moved_f")).expect("moved");
    fs::hard_link(far.join("linked/f"), far.join("linked_f")).expect("linked");
    for (giver, given, path) in [
        (near, "moved_f", "moved_f"),
        (near, "linked_f", "linked/f"),
        (far, "given/f", "given/f"),
        (near, "found/f", "found/f"),
    ] {
        give(&giver.join(given));
        assert!(has(&far.join(path)), "{path}");
    }
    drop(open);
    pair.finish();
}

#[test]
fn a_lock_that_is_taken_after_a_copy_of_the_descriptor_was_closed_is_held_by_all() {
    let Some(pair) = Pair::far() else { return };
    let (near, far) = pair.dirs();
    for (round, (me, mine, yours)) in
        [(0, near, far), (1, far, near)].into_iter().cycle().take(20).enumerate()
    {
        let name = format!("f{round}");
        let file = File::create_new(mine.join(&name)).expect("made");
        let before = pair.nodes[me].relay.counts().awaited;
        for _ in 0..3 {
            // As a process that closes one of several.
            drop(file.try_clone().expect("copied"));
        }
        assert_eq!(pair.nodes[me].relay.counts().awaited, before, "there was nothing to say");
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).expect("it is open still, and free");
        let other = File::options().write(true).open(yours.join(&name)).expect("it is there");
        // Through the other node the same process is another lock owner.
        let try_lock = || fcntl_lock(&other, FlockOperation::NonBlockingLockExclusive);
        assert!(matches!(try_lock(), Err(Errno::AGAIN | Errno::ACCESS)));
        // The lock ends with a copy: this is said.
        drop(file.try_clone().expect("copied"));
        assert_eq!(try_lock(), Ok(()));
        drop((file, other));
    }
    pair.finish();
}
