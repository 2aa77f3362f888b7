//! The one lock order: what a workload takes while it holds something else is in the order that ARCHITECTURE.md states.

use sluice_sync::lock_debug::{COMPILED_IN, Dependency, RECORD, check_order, observed_order};
use sluice_sync::{Arc, thread};
use sluice_vfs::{
    Cancel, Cred, Fd, FileLock, FlockOperation, Fs, LockType, MountFlags, Observer, OpenFlags, Options,
    Process, RenameFlags, Superblock, UmountFlags, Whence, XattrFlags,
};
use std::collections::BTreeSet;

/// The level of names whose file system dies in a destructor. No thread can reach these locks, so none is waited for, and a
/// destructor may take them under any lock under which references are counted.
const DYING_IN_DESTRUCTOR: u8 = 7;

/// Locks within `sync` come after all others, and mostly have no name.
fn is_within_sync(class: &str) -> bool {
    class.starts_with("crates/sync/") || class.starts_with("sync.")
}

/// The lines of ARCHITECTURE.md's lock order.
fn stated_order() -> Vec<&'static str> {
    let text = include_str!("../../../ARCHITECTURE.md");
    let chapter = text.split("## The one lock order").nth(1).expect("the chapter is there");
    chapter.split("```").nth(1).expect("it states the order as a block").lines().collect()
}

#[test]
fn locks_are_taken_in_the_order_that_is_stated() {
    check_order(true);
    let fs = Fs::new();
    thread::scope(|scope| {
        for n in 0..3 {
            let fs = &fs;
            scope.spawn(move || (0..20).for_each(|round| work(&fs.process(Cred::root()), n, round)));
        }
    });
    assert!(fs.check().is_clean());
    let edges = observed_order();
    check_against_what_is_stated(&edges);
    let renames = |edge: &Dependency| edge.before == "vfs.superblock.rename";
    assert!(!COMPILED_IN || edges.iter().any(renames), "nothing was observed: {edges:?}");
}

/// Memory that waits for a grace period is freed by a later call, in which names lose their references: not under a lock that is
/// a leaf.
#[test]
fn what_is_freed_late_is_freed_under_no_leaf() {
    struct Deaf;
    impl Observer for Deaf {
        fn entry_changed(&self, _: u64, _: &[u8], _: Option<u64>) {}
        fn attributes_changed(&self, _: u64) {}
        fn data_changed(&self, _: u64, _: u64, _: u64) {}
    }
    check_order(true);
    let fs = Fs::new();
    let p = fs.process(Cred::root());
    p.mkdir("/d", 0o755).unwrap();
    // Owner, a named user, owning group, mask, others.
    let entries = [(1_u16, u32::MAX), (2, 7), (4, u32::MAX), (16, u32::MAX), (32, u32::MAX)];
    let entry =
        |(tag, id): (u16, u32)| [&tag.to_le_bytes()[..], &6_u16.to_le_bytes(), &id.to_le_bytes()].concat();
    let acl = [2_u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat();
    // Which of the calls comes to free what the others left depends on how many there are of each.
    for round in 0..3_000 {
        for n in 0..round % 4 {
            let file = p.open(format!("/{n}"), OpenFlags::RDWR | OpenFlags::CREAT, 0o644).unwrap();
            p.close(file).unwrap();
            p.unlink(format!("/{n}")).unwrap();
        }
        match round % 3 {
            0 => p.setxattr("/d", b"system.posix_acl_default", &acl, XattrFlags::empty()).unwrap(),
            1 => p.setxattr("/d", b"system.posix_acl_access", &acl, XattrFlags::empty()).unwrap(),
            _ => {
                let observer = fs.superblock().observe(Arc::new(Deaf)).unwrap();
                fs.superblock().unobserve(observer);
            }
        }
    }
    let edges = observed_order();
    let names = |edge: &Dependency| edge.before == "vfs.directory.names" && edge.after == "refcache.dead";
    assert!(!COMPILED_IN || edges.iter().any(names), "nothing was freed: {edges:?}");
    check_against_what_is_stated(&edges);
}

/// `make unit` lets all its programs record what they see, and then runs this.
#[test]
fn locks_were_taken_in_that_order_by_all_test_programs_that_left_a_record() {
    let Some(path) = std::env::var_os(RECORD) else { return };
    // Not there yet: this is the first of them.
    let record = std::fs::read_to_string(&path).unwrap_or_default();
    let edges: BTreeSet<_> = record.lines().filter_map(Dependency::from_record).collect();
    // Tests have locks of their own.
    let is_ours = |class: &str| {
        [
            "vfs.",
            "refcache.",
            "locks.",
            "fuse.",
            "guest.",
            "relay.",
            "cluster.",
            "store.",
            "membership.",
            "dlm.",
        ]
        .iter()
        .any(|of| class.starts_with(of))
    };
    let edges: Vec<_> =
        edges.into_iter().filter(|edge| is_ours(&edge.before) && is_ours(&edge.after)).collect();
    println!("{} orders of two classes, of all programs", edges.len());
    check_against_what_is_stated(&edges);
}

fn check_against_what_is_stated(edges: &[Dependency]) {
    let order = stated_order();
    let place = |class: &str| {
        // Crates and modules whose locks stand together.
        let group = ["fuse", "guest"].into_iter().find(|group| class.split('.').next() == Some(group));
        let names = |line: &&str| line.split([' ', ',', ':']).any(|word| word == group.unwrap_or(class));
        order
            .iter()
            .position(names)
            .unwrap_or_else(|| panic!("{class} is not in ARCHITECTURE.md's lock order"))
    };
    let unreachable =
        |edge: &Dependency| edge.after == "vfs.directory.names" && edge.after_level == DYING_IN_DESTRUCTOR;
    for edge in edges.iter().filter(|edge| !is_within_sync(&edge.after) && !unreachable(edge)) {
        assert!(!is_within_sync(&edge.before), "out of sync's own locks: {edge:?}");
        let downwards = place(&edge.before) < place(&edge.after);
        let by_level = edge.before == edge.after && edge.before_level < edge.after_level;
        assert!(downwards || by_level, "against the stated order: {edge:?}");
    }
}

/// A little of everything, beside other threads that do the same.
fn work(p: &Process, n: usize, round: usize) {
    let dir = format!("/{n}-{round}");
    let at = |name: &str| format!("{dir}/{name}");
    let rw = OpenFlags::RDWR | OpenFlags::CREAT;
    p.mkdir(&dir, 0o755).unwrap();
    p.mkdir(at("d"), 0o755).unwrap();
    p.mkdir(at("e"), 0o755).unwrap();
    let shared = p.open("/shared", rw, 0o644).unwrap();
    let fd = p.open(at("f"), rw, 0o644).unwrap();
    for fd in [shared, fd] {
        p.write(fd, &[n as u8; 10_000]).unwrap();
        p.lseek(fd, 0, Whence::Set).unwrap();
        p.read(fd, &mut [0; 5_000]).unwrap();
        p.ftruncate(fd, 7_000).unwrap();
        p.fchmod(fd, 0o600).unwrap();
        p.fsetxattr(fd, b"user.a", b"1", XattrFlags::empty()).unwrap();
        let lock = FileLock::range(LockType::Write, 0, 10);
        p.fcntl_setlkw(fd, &lock, &Cancel::default()).unwrap();
        p.flock_wait(fd, FlockOperation::Exclusive, &Cancel::default()).unwrap();
        p.flock(fd, FlockOperation::Unlock).unwrap();
    }
    p.copy_file_range(fd, Some(&mut 0), shared, Some(&mut 0), 5_000).unwrap();
    p.link(at("f"), at("l")).unwrap();
    p.rename(at("l"), at("d/l")).unwrap();
    p.rename(at("d"), at("e/d")).unwrap();
    p.renameat2(Fd::CWD, at("e"), Fd::CWD, at("f"), RenameFlags::EXCHANGE).unwrap();
    p.chdir(at("f/d")).unwrap();
    p.getcwd().unwrap();
    p.chdir("/").unwrap();
    p.mount(Superblock::new(Options::default()), at("f/d"), MountFlags::empty()).unwrap();
    p.mkdir(at("f/d/in"), 0o755).unwrap();
    p.umount(at("f/d"), UmountFlags::empty()).unwrap();
    p.unlink(at("f/d/l")).unwrap();
    p.rmdir(at("f/d")).unwrap();
    p.close(fd).unwrap();
    p.close(shared).unwrap();
    p.statfs("/").unwrap();
}
