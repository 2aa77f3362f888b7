//! Workspaces that nobody uses: they are let go, and the next call finds them as they were.

use super::{Cluster, run};
use crate::cluster::eventually;
use crate::harness::sluice;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The shortest time that the option takes.
const PARK: &[&str] = &["-o", "park=1"];
/// Longer than a workspace needs to be parked if it can be.
const LONG: Duration = Duration::from_secs(5);

impl Cluster {
    /// A cluster of so many nodes that park soon.
    fn that_parks(test: &str, nodes: usize) -> Option<Cluster> {
        let mut cluster = Cluster::over(true, test, 0)?;
        (0..nodes).for_each(|_| cluster.nodes.push(cluster.join_with(PARK)));
        Some(cluster)
    }

    fn await_role(&self, node: usize, number: u64, role: &str) {
        eventually(&format!("node {node} is {role} of workspace {number}"), || {
            self.role_in(node, number) == role
        });
    }
}

#[test]
fn a_workspace_that_nobody_uses_is_let_go_and_the_next_call_finds_it() {
    let test = "a_workspace_that_nobody_uses_is_let_go_and_the_next_call_finds_it";
    let Some(cluster) = Cluster::that_parks(test, 2) else { return };
    cluster.create(0, "a");
    let dirs = [0, 1].map(|node| cluster.path(node, "a"));
    // Node 1 first: the owner of the workspace is not that of the root.
    fs::create_dir_all(dirs[1].join("deep/er/still")).expect("made");
    fs::write(dirs[1].join("deep/er/still/file"), "kept").expect("written");
    assert!(!dirs[1].join("deep/er/none").exists() && !dirs[1].join("none").exists());
    assert_eq!(fs::read_to_string(dirs[0].join("deep/er/still/file")).expect("read"), "kept");
    for round in 0..3 {
        cluster.await_role(0, 1, "none");
        cluster.await_role(1, 1, "none");
        // Nobody has the store. All that was done is there, though nothing was flushed.
        Cluster::check_workspace(&cluster.store(), 1);
        let name = format!("round{round}");
        fs::write(dirs[round % 2].join(&name), &name).expect("written");
        assert_eq!(cluster.role_in(round % 2, 1), "owner", "the first that uses it");
        assert_eq!(fs::read_to_string(dirs[1 - round % 2].join(&name)).expect("read"), name);
        assert_eq!(fs::read_dir(dirs[0].join("deep/er/still")).expect("listed").count(), 1);
        assert!(!dirs[0].join("none").exists());
    }
    cluster.finish_with(&[], 1);
}

#[test]
fn a_workspace_with_an_open_file_or_a_lock_stays_and_a_working_directory_goes_on() {
    let test = "a_workspace_with_an_open_file_or_a_lock_stays_and_a_working_directory_goes_on";
    let Some(cluster) = Cluster::that_parks(test, 2) else { return };
    ["a", "b", "c", "d"].into_iter().for_each(|name| cluster.create(0, name));
    // In `a` a file without a name, of the owner; in `b` a lock, of a guest; in `c` a directory in which a program is, and one without a name.
    let path = cluster.path(1, "a/gone");
    let mut gone = File::options().create_new(true).read(true).write(true).open(&path).expect("made");
    gone.write_all(b"nameless").expect("written");
    fs::remove_file(&path).expect("removed");
    fs::write(cluster.path(0, "b/lock"), "").expect("written");
    let locked = File::open(cluster.path(1, "b/lock")).expect("there");
    locked.lock().expect("free");
    fs::create_dir_all(cluster.path(1, "c/sub/dir")).expect("made");
    let program = "cd sub; cd dir; read -r line; pwd -P; ls ..; echo $line > file; cat file";
    let mut shell = Command::new("sh");
    shell.args(["-c", program]).current_dir(cluster.path(1, "c"));
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    // In `d` a listing that has begun.
    for number in 0..3_000 {
        fs::write(cluster.path(0, "d").join(number.to_string()), "").expect("written");
    }
    let mut listing = fs::read_dir(cluster.path(0, "d")).expect("it is there");
    let mut listed: BTreeSet<_> =
        listing.by_ref().take(50).map(|entry| entry.expect("it stays").path()).collect();
    let start = Instant::now();
    cluster.await_role(1, 3, "none");
    thread::sleep(LONG.saturating_sub(start.elapsed()));
    assert_eq!((cluster.role_in(1, 1), cluster.role_in(1, 2)), ("owner".into(), "guest".into()));
    assert_eq!(cluster.role_in(0, 4), "owner");
    listed.extend(listing.map(|entry| entry.expect("it stays").path()));
    assert_eq!(listed.len(), 3_000, "each name");
    let mut text = String::new();
    gone.seek(SeekFrom::Start(0)).expect("a file");
    gone.read_to_string(&mut text).expect("read");
    assert_eq!((text.as_str(), gone.metadata().expect("there").nlink()), ("nameless", 0));
    let other = File::open(cluster.path(0, "b/lock")).expect("there");
    assert!(other.try_lock().is_err(), "the other node has it");
    // The other node changes what the program sees next.
    fs::create_dir(cluster.path(0, "c/sub/new")).expect("made");
    cluster.await_role(0, 3, "none");
    shell.stdin.take().expect("a pipe").write_all(b"said\n").expect("it reads");
    let said = shell.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.ends_with("/c/sub/dir\ndir\nnew\nsaid\n"), "{said}");
    drop((gone, locked, other));
    for number in 1..=4 {
        cluster.await_role(0, number, "none");
        cluster.await_role(1, number, "none");
        Cluster::check_workspace(&cluster.store(), number);
    }
    cluster.finish_with(&[], 4);
}

#[test]
fn a_mount_uses_more_workspaces_than_it_may_have_open() {
    const WORKSPACES: usize = 70;
    let test = "a_mount_uses_more_workspaces_than_it_may_have_open";
    let mut cluster = match Cluster::over(true, test, 0) {
        Some(cluster) => cluster,
        None => return,
    };
    // By itself none is parked in this test.
    cluster.nodes.push(cluster.join_with(&["-o", "park=3600"]));
    let homes = cluster.path(0, "homes");
    fs::create_dir(&homes).expect("made");
    sluice(["workspace".as_ref(), "auto".as_ref(), homes.as_os_str()]).well();
    for number in 0..WORKSPACES {
        let home = homes.join(number.to_string());
        fs::create_dir(&home).expect("made");
        fs::write(home.join("file"), number.to_string()).expect("written");
    }
    for number in 0..WORKSPACES {
        let text = fs::read_to_string(homes.join(number.to_string()).join("file"));
        assert_eq!(text.expect("read"), number.to_string());
    }
    run("ls", &["-lR".as_ref(), homes.as_os_str()]);
    let open = cluster.workspaces(0).as_array().map_or(0, Vec::len);
    assert!((1..=64).contains(&open), "{open}");
    // 64 that are in use keep the next one out, and say why.
    let file = |number: usize| File::open(homes.join(number.to_string()).join("file"));
    let used: Vec<_> = (0..64).map(|number| file(number).expect("there")).collect();
    assert_eq!(file(64).expect_err("no room").raw_os_error(), Some(24), "EMFILE");
    drop(used);
    file(64).expect("there is room again");
    cluster.finish_with(&[], 0);
}

#[test]
fn programs_that_rest_as_long_as_it_takes_to_park_see_no_error_and_lose_nothing() {
    let test = "programs_that_rest_as_long_as_it_takes_to_park_see_no_error_and_lose_nothing";
    let Some(cluster) = Cluster::that_parks(test, 2) else { return };
    cluster.create(0, "a");
    cluster.create(0, "b");
    let work = |dir: &Path, name: &str| {
        for round in 0_u64..12 {
            let place = dir.join(name);
            let line = format!("{name} {round}\n");
            File::options()
                .append(true)
                .create(true)
                .open(&place)
                .and_then(|mut file| file.write_all(line.as_bytes()))
                .expect("appended");
            let new = dir.join(format!("{name}.{round}"));
            fs::create_dir(&new).expect("made");
            fs::rename(&new, new.with_extension("old")).expect("renamed");
            fs::remove_dir(new.with_extension("old")).expect("removed");
            // From before the first look at it to after the second.
            thread::sleep(Duration::from_millis(900 + round * 97 % 800));
            let text = fs::read_to_string(&place).expect("read");
            assert_eq!(text.lines().count() as u64, round + 1, "{name}");
        }
    };
    thread::scope(|scope| {
        for (node, dir, name) in [(0, "a", "one"), (1, "a", "two"), (0, "b", "three"), (1, "b", "four")] {
            let dir = cluster.path(node, dir);
            scope.spawn(move || work(&dir, name));
        }
    });
    let lines: Vec<_> = ["a/one", "a/two", "b/three", "b/four"]
        .map(|name| fs::read_to_string(cluster.path(0, name)).expect("read").lines().count())
        .to_vec();
    assert_eq!(lines, [12; 4]);
    let listed: Vec<_> =
        ["a", "b"].map(|dir| fs::read_dir(cluster.path(1, dir)).expect("listed").count()).to_vec();
    assert_eq!(listed, [2, 2]);
    let all = [0, 1].map(|node| cluster.path(node, "a").into_os_string());
    all.iter().for_each(|dir| drop(run("find", &[dir.as_os_str(), OsStr::new("-ls")])));
    cluster.finish_with(&[], 2);
}
