//! Workspaces: directories with a store and an owner of their own, used by programs on several nodes.

mod auto;
mod parking;

use super::{Cluster, Scratch, eventually, sluice};
use rustix::fs::{AtFlags, CWD, FileType};
use rustix::process::Signal;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

impl Cluster {
    /// Makes `name` a workspace, by a command on this node.
    fn create(&self, node: usize, name: &str) {
        sluice(["workspace".as_ref(), "create".as_ref(), self.path(node, name).as_os_str()]).well();
    }

    /// The workspaces that the node uses, as its `sluice stat` shows them.
    fn workspaces(&self, node: usize) -> Value {
        let told = sluice(["stat".as_ref(), "--json".as_ref(), self.nodes[node].path().as_os_str()]).well();
        let told: Value = serde_json::from_str(&told).expect("JSON");
        told["cluster"]["workspaces"].clone()
    }

    /// The node's role in workspace `number`.
    fn role_in(&self, node: usize, number: u64) -> String {
        let told = self.workspaces(node);
        let one = told.as_array().into_iter().flatten().find(|one| one["workspace"] == number);
        one.and_then(|one| one["role"].as_str()).unwrap_or("none").to_owned()
    }

    /// `sluice fsck` of the store of workspace `number`, when no node has it.
    fn check_workspace(store: &Path, number: u64) {
        let checked = sluice(["fsck", &format!("{}/workspaces/{number}", store.display())]);
        assert_eq!(checked.status, Some(0), "{}{}", checked.stdout, checked.stderr);
    }

    /// All but `dead` leave; the stores of the root and of so many workspaces are sound.
    fn finish_with(self, dead: &[usize], workspaces: u64) {
        let store = self.store();
        let scratch = self.finish_keeping(dead);
        (1..=workspaces).for_each(|number| Cluster::check_workspace(&store, number));
        drop(scratch);
    }
}

fn number_of(path: &Path) -> u64 {
    path.symlink_metadata().expect("it is there").ino() >> 44
}

fn run(program: &str, arguments: &[&OsStr]) -> String {
    let output = Command::new(program).args(arguments).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_workspace_belongs_to_the_node_that_uses_it_first_and_its_work_there_sends_no_message() {
    let test = "a_workspace_belongs_to_the_node_that_uses_it_first_and_its_work_there_sends_no_message";
    let Some(cluster) = Cluster::over(true, test, 2) else { return };
    assert_eq!([0, 1].map(|node| cluster.role(node)), ["owner", "guest"]);
    cluster.create(0, "a/");
    cluster.create(0, "b");
    assert_eq!(cluster.workspaces(0), Value::Null, "making opens nothing");
    // Each uses its own first.
    fs::write(cluster.path(0, "a/file"), "of a").expect("written");
    fs::write(cluster.path(1, "b/file"), "of b").expect("written");
    assert_eq!([number_of(&cluster.path(0, "a")), number_of(&cluster.path(1, "b"))], [1, 2]);
    assert_eq!((cluster.role_in(0, 1), cluster.role_in(1, 2)), ("owner".into(), "owner".into()));
    assert_eq!((cluster.role_in(1, 1), cluster.role_in(0, 2)), ("none".into(), "none".into()));
    let counts = |node| ["requests", "awaited", "behind", "notices"].map(|field| cluster.stat(node, field));
    let before = [counts(0), counts(1)];
    for round in 0..200 {
        let dir = cluster.path(1, &format!("b/dir{round}"));
        fs::create_dir(&dir).expect("made");
        fs::write(dir.join("one"), vec![7; 5000]).expect("written");
        fs::rename(dir.join("one"), dir.join("two")).expect("renamed");
        let file = File::options().append(true).open(dir.join("two")).expect("it is there");
        file.lock().expect("free");
        file.sync_all().expect("durable");
        fs::set_permissions(dir.join("two"), fs::Permissions::from_mode(0o600)).expect("changed");
        if round % 2 == 0 {
            fs::remove_dir_all(&dir).expect("removed");
        }
    }
    assert_eq!(fs::read_dir(cluster.path(1, "b")).expect("listed").count(), 101);
    assert_eq!(
        [counts(0), counts(1)],
        before,
        "the owner of the root heard of nothing, nor did the other relay"
    );
    let told = cluster.workspaces(1);
    assert!(told[0]["requests"].as_u64() > Some(1000) && told[0]["awaited"] == 0, "{told}");
    assert_eq!(told[0]["guests"], 0);
    // Now the other uses it, too: a guest, and coherent.
    assert_eq!(fs::read_to_string(cluster.path(0, "b/file")).expect("read"), "of b");
    assert_eq!(cluster.role_in(0, 2), "guest");
    for round in 0..20 {
        let name = format!("b/shared{round}");
        fs::write(cluster.path(round % 2, &name), &name).expect("written");
        assert_eq!(fs::read_to_string(cluster.path(1 - round % 2, &name)).expect("read"), name);
        fs::remove_file(cluster.path(1 - round % 2, &name)).expect("removed");
        assert!(!cluster.path(round % 2, &name).exists());
    }
    let status = sluice(["cluster", "status", cluster.shared().to_str().expect("text")]).well();
    assert!(status.contains("workspace 1: owner") && status.contains("workspace 2: owner"), "{status}");
    let listed = sluice([
        "workspace".as_ref(),
        "list".as_ref(),
        "--json".as_ref(),
        cluster.nodes[0].path().as_os_str(),
    ]);
    let listed: Value = serde_json::from_str(&listed.well()).expect("JSON");
    let row = |at: usize| (listed[at]["workspace"].as_u64(), listed[at]["role"].as_str());
    assert_eq!([row(0), row(1)], [(Some(1), Some("owner")), (Some(2), Some("guest"))], "{listed}");
    cluster.finish_with(&[], 2);
}

#[test]
fn names_do_not_cross_the_border_of_a_workspace_and_programs_cope() {
    let test = "names_do_not_cross_the_border_of_a_workspace_and_programs_cope";
    let Some(mut cluster) = Cluster::over(true, test, 2) else { return };
    cluster.create(0, "a");
    fs::create_dir(cluster.path(0, "plain")).expect("made");
    fs::write(cluster.path(0, "plain/file"), "moved").expect("written");
    let path = |name: &str| cluster.path(1, name);
    for (from, to) in [("plain/file", "a/file"), ("plain", "a/plain")] {
        let error = fs::rename(path(from), path(to)).expect_err("it is another file system");
        assert_eq!(error.kind(), ErrorKind::CrossesDevices);
    }
    let error = fs::hard_link(path("plain/file"), path("a/file")).expect_err("likewise");
    assert_eq!(error.kind(), ErrorKind::CrossesDevices);
    run("mv", &[path("plain").as_os_str(), path("a/plain").as_os_str()]);
    assert_eq!(fs::read_to_string(cluster.path(0, "a/plain/file")).expect("read"), "moved");
    assert!(!cluster.path(0, "plain").exists());
    // Bytes are copied by the kernel's own call, too.
    assert_eq!(fs::copy(path("a/plain/file"), path("copied")).expect("copied"), 5);
    // Whole trees, by programs that look at device and inode numbers.
    let source = path("a/repository");
    run("git", &["init".as_ref(), "-q".as_ref(), source.as_os_str()]);
    for number in 0..40 {
        fs::write(source.join(format!("file{number}")), vec![number; 3000]).expect("written");
    }
    fs::hard_link(source.join("file1"), source.join("linked")).expect("within it");
    let git = |dir: &Path, arguments: &[&str]| {
        let all: Vec<&OsStr> = [
            "-C".as_ref(),
            dir.as_os_str(),
            "-c".as_ref(),
            "user.name=a".as_ref(),
            "-c".as_ref(),
            "user.email=a@b".as_ref(),
        ]
        .into_iter()
        .chain(arguments.iter().map(OsStr::new))
        .collect();
        run("git", &all)
    };
    git(&source, &["add", "-A"]);
    git(&source, &["commit", "-q", "-m", "all"]);
    let cloned = path("cloned");
    run("git", &["clone".as_ref(), "-q".as_ref(), source.as_os_str(), cloned.as_os_str()]);
    assert_eq!(git(&cloned, &["status", "--porcelain"]), "");
    let archive = cluster.scratch.0.join("tree.tar");
    let (top, file) = (path("").into_os_string(), archive.as_os_str());
    run("tar", &["-C".as_ref(), &top, "-cf".as_ref(), file, "a".as_ref(), "copied".as_ref()]);
    fs::create_dir(path("a/unpacked")).expect("made");
    run("tar", &["-C".as_ref(), path("a/unpacked").as_os_str(), "-xf".as_ref(), file]);
    assert_eq!(fs::metadata(path("a/unpacked/a/repository/file1")).expect("it is there").nlink(), 2);
    run("diff", &["-r".as_ref(), source.as_os_str(), path("a/unpacked/a/repository").as_os_str()]);
    if Command::new("rsync").arg("--version").output().is_ok() {
        let from = source.join("").into_os_string();
        run("rsync", &["-aHX".as_ref(), &from, path("synced").as_os_str()]);
        run("diff", &["-r".as_ref(), source.as_os_str(), path("synced").as_os_str()]);
    }
    // The directory itself moves, with all that is in it, and df knows each file system.
    fs::rename(path("a"), path("renamed")).expect("within the root");
    assert_eq!(fs::read_to_string(cluster.path(0, "renamed/plain/file")).expect("read"), "moved");
    assert!(!cluster.path(0, "a").exists());
    let found = run("find", &[path("").as_os_str(), "-name".as_ref(), "file39".as_ref()]);
    assert!(found.lines().count() >= 3, "{found}");
    cluster.nodes.rotate_left(0);
    cluster.finish_with(&[], 1);
}

#[test]
fn a_workspace_is_removed_when_it_is_empty_and_by_nobody_before() {
    let test = "a_workspace_is_removed_when_it_is_empty_and_by_nobody_before";
    let Some(cluster) = Cluster::over(true, test, 2) else { return };
    let odd = OsStr::from_bytes(b"odd \xff\n'name\"");
    let paths = [0, 1].map(|node| cluster.nodes[node].path().join(odd));
    fs::create_dir(&paths[0]).expect("made");
    fs::set_permissions(&paths[0], fs::Permissions::from_mode(0o1755)).expect("changed");
    std::os::unix::fs::chown(&paths[0], Some(12), Some(34)).expect("root may");
    let create = |path: &Path| sluice(["workspace".as_ref(), "create".as_ref(), path.as_os_str()]);
    fs::write(paths[0].join("file"), "in the way").expect("written");
    let refused = create(&paths[0]).complaint(1);
    assert!(refused.contains("is not empty: make the workspace beside it"), "{refused}");
    fs::remove_file(paths[0].join("file")).expect("removed");
    create(&paths[0]).well();
    for path in &paths {
        let stat = fs::metadata(path).expect("it is there");
        assert_eq!((stat.mode(), stat.uid(), stat.gid()), (0o041_755, 12, 34));
    }
    assert!(create(&paths[1]).complaint(1).contains("is a workspace already"));
    let plain = cluster.path(0, "file");
    fs::write(&plain, "").expect("written");
    assert!(create(&plain).complaint(1).contains("is no directory"));
    let delete = |path: &Path| sluice(["workspace".as_ref(), "delete".as_ref(), path.as_os_str()]);
    assert!(delete(cluster.nodes[0].path()).complaint(1).contains("is no workspace"));

    fs::write(paths[1].join("file"), "kept").expect("written");
    let mut open = File::options().read(true).append(true).open(paths[1].join("file")).expect("it is there");
    for path in &paths {
        let error = fs::remove_dir(path).expect_err("it has a file");
        assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty);
        assert!(delete(path).complaint(1).contains("is not empty"));
    }
    // Nothing else takes its name.
    fs::create_dir(cluster.path(0, "dir")).expect("made");
    let over = fs::rename(cluster.path(0, "dir"), &paths[0]).expect_err("it is in use");
    assert!(matches!(over.raw_os_error(), Some(20 | 39 | 16)), "{over}");
    fs::write(paths[0].join("other"), "still writable").expect("a refused removal changes nothing");
    fs::remove_file(paths[0].join("other")).expect("removed");
    // A file that is open has no name any more: the other node goes on with it.
    fs::remove_file(paths[0].join("file")).expect("removed");
    fs::remove_dir(&paths[0]).expect("it is empty");
    open.write_all(b" and more").expect("it is open");
    let mut bytes = [0; 13];
    open.read_exact_at(&mut bytes, 0).expect("it is open");
    assert_eq!(&bytes, b"kept and more");
    drop(open);
    for path in &paths {
        assert_eq!(path.symlink_metadata().expect_err("it is gone").kind(), ErrorKind::NotFound);
    }
    fs::write(&paths[1], "another file of that name").expect("the name is free");
    // The number is used once.
    cluster.create(1, "next");
    fs::write(cluster.path(1, "next/file"), "").expect("written");
    assert_eq!(number_of(&cluster.path(0, "next")), 2);
    cluster.finish_with(&[], 2);
}

#[test]
fn a_dead_node_stops_its_own_workspaces_alone_and_what_was_durable_there_comes_back() {
    let test = "a_dead_node_stops_its_own_workspaces_alone_and_what_was_durable_there_comes_back";
    let Some(cluster) = Cluster::over(true, test, 3) else { return };
    for (node, name) in [(0, "a"), (1, "b"), (2, "c")] {
        cluster.create(0, name);
        fs::write(cluster.path(node, &format!("{name}/own")), name).expect("written");
    }
    assert_eq!([(1, 2), (2, 3)].map(|(node, number)| cluster.role_in(node, number)), ["owner", "owner"]);
    // Another node knows what the third owns, and has a file open there.
    let mut kept = File::options().append(true).create(true).open(cluster.path(1, "c/kept")).expect("made");
    kept.write_all(b"durable\n").and_then(|()| kept.sync_all()).expect("durable");
    let durable = File::create_new(cluster.path(2, "c/by-owner")).expect("made");
    durable.write_all_at(&[5; 300_000], 0).and_then(|()| durable.sync_all()).expect("durable");
    drop(durable);
    let (over, rounds) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    std::thread::scope(|scope| {
        for (node, name) in [(0, "a"), (1, "b")] {
            let (cluster, over, rounds) = (&cluster, &over, &rounds);
            scope.spawn(move || {
                // Without an error, from before the death until after the takeover.
                while !over.load(Ordering::Relaxed) {
                    let round = rounds[node].fetch_add(1, Ordering::Relaxed);
                    let path = cluster.path(node, &format!("{name}/round{round}"));
                    fs::write(&path, "text").expect("its owner lives");
                    assert_eq!(fs::read_to_string(&path).expect("its owner lives"), "text");
                    fs::remove_file(&path).expect("its owner lives");
                }
            });
        }
        let until = |more: u64| {
            let before = [0, 1].map(|at: usize| rounds[at].load(Ordering::Relaxed));
            eventually("both go on", || {
                (0..2).all(|at| rounds[at].load(Ordering::Relaxed) > before[at] + more)
            });
        };
        until(20);
        cluster.signal(2, Signal::KILL);
        // While the dead node's lease lasts.
        until(200);
        kept.write_all(b"second\n").expect("another node has taken over");
        until(20);
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(cluster.role_in(1, 3), "owner");
    kept.sync_all().expect("durable");
    for node in [0, 1] {
        assert_eq!(fs::read_to_string(cluster.path(node, "c/kept")).expect("read"), "durable\nsecond\n");
        assert_eq!(fs::read(cluster.path(node, "c/by-owner")).expect("it was durable"), [5; 300_000]);
    }
    drop(kept);
    cluster.finish_with(&[2], 3);
}

#[test]
fn a_workspace_that_is_moved_under_use_loses_nothing_and_fails_no_call() {
    let test = "a_workspace_that_is_moved_under_use_loses_nothing_and_fails_no_call";
    let Some(cluster) = Cluster::over(true, test, 3) else { return };
    cluster.create(0, "a");
    fs::write(cluster.path(0, "a/own"), "text").expect("written");
    let numbers: Vec<_> = (0..3).map(|node| cluster.stat(node, "node")).collect();
    let over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|node| {
                let (cluster, over) = (&cluster, &over);
                scope.spawn(move || {
                    let path = cluster.path(node, &format!("a/log{node}"));
                    let mut log = File::options().append(true).create(true).open(path).expect("made");
                    let mut lines = 0;
                    while !over.load(Ordering::Relaxed) {
                        writeln!(log, "line {lines}").expect("no call fails");
                        if lines % 16 == 0 {
                            log.sync_all().expect("nothing is lost");
                        }
                        lines += 1;
                        let path = cluster.path(node, &format!("a/dir{node}.{lines}"));
                        fs::create_dir(&path).expect("once");
                        fs::remove_dir(&path).expect("once");
                    }
                    log.sync_all().expect("nothing is lost");
                    lines
                })
            })
            .collect();
        for round in 0..9 {
            // By a command on any node, also to one that has not used it, and to one that has it.
            let (to, by) = ([1, 2, 2, 0][round % 4], round % 3);
            let words = ["workspace".into(), "move".into(), cluster.path(by, "a").into_os_string()];
            sluice(words.into_iter().chain([numbers[to].clone().into()])).well();
            assert_eq!(cluster.role_in(to, 1), "owner", "round {round}");
        }
        over.store(true, Ordering::Relaxed);
        writers.into_iter().map(|one| one.join().expect("no panic")).collect::<Vec<u32>>()
    });
    for (node, lines) in written.into_iter().enumerate() {
        let log = fs::read_to_string(cluster.path(2, &format!("a/log{node}"))).expect("read");
        assert!(log.lines().eq((0..lines).map(|line| format!("line {line}"))), "node {node}: {lines} lines");
    }
    let dir = cluster.path(0, "a");
    let words =
        |dir: &Path, to: &str| ["workspace".into(), "move".into(), dir.as_os_str().to_owned(), to.into()];
    assert!(
        sluice(words(&dir, "99999"))
            .complaint(1)
            .contains("there is no node 99999 (`sluice cluster status` shows the nodes)")
    );
    assert!(sluice(words(cluster.nodes[0].path(), &numbers[0])).complaint(1).contains("is no workspace"));
    cluster.finish_with(&[], 1);
}

#[test]
fn a_file_in_another_workspace_goes_on_while_the_root_has_no_owner() {
    let test = "a_file_in_another_workspace_goes_on_while_the_root_has_no_owner";
    let Some(cluster) = Cluster::over(true, test, 3) else { return };
    cluster.create(0, "a");
    let mut log = File::options().append(true).create(true).open(cluster.path(1, "a/log")).expect("made");
    let mut of_guest = File::options().append(true).open(cluster.path(2, "a/log")).expect("it is there");
    assert_eq!([1, 2].map(|node| cluster.role_in(node, 1)), ["owner", "guest"]);
    cluster.signal(0, Signal::KILL);
    // By far sooner than its lease is over.
    for round in 0..100 {
        let file = if round % 2 == 0 { &mut log } else { &mut of_guest };
        writeln!(file, "{round}").and_then(|()| file.sync_all()).expect("its owner lives");
    }
    let lines = (0..100).map(|round| format!("{round}\n")).collect::<String>();
    assert_eq!(fs::read_to_string(cluster.path(2, "a/log")).expect("the root has an owner again"), lines);
    drop((log, of_guest));
    cluster.finish_with(&[0], 1);
}

#[test]
fn a_removal_never_takes_a_workspace_with_a_file_in_it() {
    let test = "a_removal_never_takes_a_workspace_with_a_file_in_it";
    let Some(cluster) = Cluster::over(true, test, 2) else { return };
    let mut removed = 0;
    for round in 0..6 {
        let name = format!("w{round}");
        cluster.create(round % 2, &name);
        let dirs = [0, 1].map(|node| cluster.path(node, &name));
        let made = std::thread::scope(|scope| {
            let maker = scope.spawn(|| {
                // Until the workspace is gone, or one file stays.
                (0..400).find_map(|number| {
                    let path = dirs[1].join(format!("f{number}"));
                    match File::create_new(&path) {
                        Ok(_) if number == 399 => Some(true),
                        Ok(_) => {
                            while let Err(error) = fs::remove_file(&path) {
                                assert_eq!(error.kind(), ErrorKind::PermissionDenied);
                            }
                            None
                        }
                        Err(error) if error.kind() == ErrorKind::NotFound => Some(false),
                        // For the moment in which it is looked at.
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
                            None
                        }
                    }
                })
            });
            let mut is_removed = false;
            while !maker.is_finished() && !is_removed {
                match fs::remove_dir(&dirs[0]) {
                    Ok(()) => is_removed = true,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty),
                }
            }
            removed += usize::from(is_removed);
            maker.join().expect("no panic")
        });
        let is_there = dirs[0].symlink_metadata().is_ok();
        assert!(made != Some(true) || is_there, "round {round}: a workspace with a file was removed");
    }
    println!("{removed} were removed");
    cluster.finish_with(&[], 6);
}

#[test]
fn two_nodes_that_make_workspaces_at_once_make_two_and_a_later_mount_finds_them() {
    let test = "two_nodes_that_make_workspaces_at_once_make_two_and_a_later_mount_finds_them";
    let Some(mut cluster) = Cluster::over(true, test, 2) else { return };
    std::thread::scope(|scope| {
        for node in [0, 1] {
            let cluster = &cluster;
            scope.spawn(move || (0..3).for_each(|round| cluster.create(node, &format!("w{node}{round}"))));
        }
        // The same name from both: one is told that it exists.
        let both = [0, 1].map(|node| {
            let path = cluster.path(node, "same");
            scope.spawn(move || sluice(["workspace".as_ref(), "create".as_ref(), path.as_os_str()]).status)
        });
        let mut outcomes = both.map(|one| one.join().expect("no panic"));
        outcomes.sort_unstable();
        assert_eq!(outcomes, [Some(0), Some(1)]);
    });
    let names: Vec<_> =
        [0, 1].iter().flat_map(|node| (0..3).map(move |round| format!("w{node}{round}"))).collect();
    let mut numbers: Vec<_> = names.iter().map(|name| number_of(&cluster.path(0, name))).collect();
    numbers.push(number_of(&cluster.path(1, "same")));
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 7, "{numbers:?}");
    // One inside another.
    cluster.create(1, "w00/inner");
    fs::write(cluster.path(0, "w00/inner/deep"), "in the inner one").expect("written");
    let inner = number_of(&cluster.path(1, "w00/inner"));
    assert!(inner > 7 && number_of(&cluster.path(1, "w00/inner/deep")) == inner);
    assert_eq!(
        fs::rename(cluster.path(0, "w00/inner/deep"), cluster.path(0, "w00/deep"))
            .expect_err("a border")
            .kind(),
        ErrorKind::CrossesDevices
    );
    for node in cluster.nodes.drain(..) {
        node.unmount().expect("all is durable");
    }
    let again = cluster.join();
    cluster.nodes.push(again);
    for name in &names {
        assert!(number_of(&cluster.path(0, name)) > 0, "{name}");
    }
    assert_eq!(fs::read_to_string(cluster.path(0, "w00/inner/deep")).expect("read"), "in the inner one");
    let listed = sluice(["workspace".as_ref(), "list".as_ref(), cluster.path(0, "w00").as_os_str()]).well();
    assert!(listed.contains("w00/inner"), "{listed}");
    cluster.finish_with(&[], inner);
}

#[test]
fn a_workspace_has_snapshots_of_its_own_and_is_no_part_of_those_above() {
    let test = "a_workspace_has_snapshots_of_its_own_and_is_no_part_of_those_above";
    let Some(cluster) = Cluster::over(true, test, 1) else { return };
    cluster.create(0, "a");
    fs::write(cluster.path(0, "a/file"), "old").expect("written");
    fs::write(cluster.path(0, "top"), "old").expect("written");
    let snapshot = |words: &[&str], path: &Path, name: &[&str]| {
        let words = ["snapshot"].iter().chain(words).map(OsStr::new);
        sluice(words.chain([path.as_os_str()]).chain(name.iter().map(OsStr::new))).well()
    };
    snapshot(&["create"], &cluster.path(0, "a"), &["inside"]);
    snapshot(&["create"], &cluster.path(0, ""), &["above"]);
    fs::write(cluster.path(0, "a/file"), "new").expect("written");
    fs::write(cluster.path(0, "top"), "new").expect("written");
    let read = |name: &str| fs::read_to_string(cluster.path(0, name)).expect("read");
    assert_eq!(read("a/.snapshots/inside/file"), "old");
    assert_eq!((read(".snapshots/above/top"), read("a/file")), ("old".into(), "new".into()));
    // There it leads nowhere.
    let there = cluster.path(0, ".snapshots/above/a");
    let stat = rustix::fs::statat(CWD, &there, AtFlags::SYMLINK_NOFOLLOW).expect("it is there");
    assert_eq!(FileType::from_raw_mode(stat.st_mode), FileType::CharacterDevice);
    assert!(!snapshot(&["list"], &cluster.path(0, ""), &[]).contains("inside"));
    assert!(snapshot(&["list"], &cluster.path(0, "a"), &[]).contains("inside"));
    snapshot(&["restore"], &cluster.path(0, ""), &["above"]);
    assert_eq!((read("top"), read("a/file")), ("old".into(), "new".into()));
    snapshot(&["restore"], &cluster.path(0, "a"), &["inside"]);
    assert_eq!(read("a/file"), "old");
    // A quota there counts what is there.
    fs::create_dir(cluster.path(0, "a/limited")).expect("made");
    let quota = [OsStr::new("quota"), cluster.path(0, "a/limited").as_os_str(), OsStr::new("1M")]
        .map(OsStr::to_owned);
    sluice(quota).well();
    let much = fs::write(cluster.path(0, "a/limited/much"), vec![1; 2 << 20]);
    assert_eq!(much.expect_err("it does not fit").kind(), ErrorKind::QuotaExceeded);
    cluster.finish_with(&[], 1);
}

#[test]
fn a_workspace_whose_store_is_gone_or_cannot_be_opened_says_so_and_keeps_nobody() {
    let test = "a_workspace_whose_store_is_gone_or_cannot_be_opened_says_so_and_keeps_nobody";
    let Some(cluster) = Cluster::over(true, test, 2) else { return };
    // A device of that number, which only root can make, that leads to no workspace.
    let nowhere = cluster.path(0, "nowhere");
    let device = u64::from(sluice_fuse::control::junction_to(77));
    rustix::fs::mknodat(CWD, &nowhere, FileType::CharacterDevice, 0o700.into(), device).expect("root may");
    for node in [0, 1] {
        let error = fs::metadata(cluster.path(node, "nowhere")).expect_err("there is no such store");
        assert_eq!(error.raw_os_error(), Some(6), "{error}");
    }
    fs::remove_dir(cluster.path(1, "nowhere")).expect("it is in nobody's way");
    assert!(nowhere.symlink_metadata().is_err());
    // A workspace that cannot be opened: its calls wait, a signal ends the wait, and the others go on.
    cluster.create(0, "broken");
    let store = cluster.scratch.0.join("store/workspaces/1/records");
    let aside = cluster.scratch.0.join("aside");
    fs::rename(&store, &aside).expect("moved");
    fs::write(&store, "in the way").expect("written");
    let mut waiting = Command::new("ls").arg(cluster.path(1, "broken")).spawn().expect("started");
    let shared = cluster.shared();
    let status = || sluice(["cluster", "status", shared.to_str().expect("text")]).well();
    eventually("it says why", || status().contains("(cannot open its store: "));
    fs::write(cluster.path(1, "file"), "the root goes on").expect("written");
    waiting.kill().expect("it waits");
    waiting.wait().expect("it has ended");
    fs::remove_file(&store).and_then(|()| fs::rename(&aside, &store)).expect("moved back");
    eventually("it is served", || fs::write(cluster.path(1, "broken/file"), "text").is_ok());
    cluster.finish_with(&[], 1);
}

#[test]
fn a_store_in_a_directory_has_no_workspaces_and_says_which_store_has() {
    let test = "a_store_in_a_directory_has_no_workspaces_and_says_which_store_has";
    let Some(cluster) = Cluster::new(test, 1) else { return };
    let refused =
        sluice(["workspace".as_ref(), "create".as_ref(), cluster.path(0, "a").as_os_str()]).complaint(1);
    assert!(refused.contains("use one in an object store (file://, s3://)"), "{refused}");
    let elsewhere = Scratch::new();
    let refused =
        sluice(["workspace".as_ref(), "create".as_ref(), elsewhere.0.join("a").as_os_str()]).complaint(1);
    assert!(refused.contains("not in a sluicefs mount"), "{refused}");
    cluster.finish(&[]);
}
