//! Workspaces that come by `mkdir`, and go where they are used.

use super::{Cluster, number_of, run};
use crate::harness::{Scratch, sluice};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const USER: u32 = 1000;
const GROUP: u32 = 2000;
/// The longest that a workspace may take to go where it is used: its owner keeps it for a while.
const FOLLOWS: Duration = Duration::from_secs(120);

/// Runs a shell command as an ordinary user; what it says.
fn as_user(command: &str, dir: &Path) -> Result<String, String> {
    let mut shell = Command::new("setpriv");
    shell.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups", "sh", "-c"]);
    let output = shell.arg(command).current_dir(dir).output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn auto(dir: &Path, options: &[&str]) -> crate::harness::Ran {
    let words = ["workspace", "auto"].into_iter().chain(options.iter().copied()).map(OsString::from);
    sluice(words.chain([dir.as_os_str().to_owned()]))
}

#[test]
fn each_directory_that_is_made_in_an_auto_directory_is_a_workspace() {
    let test = "each_directory_that_is_made_in_an_auto_directory_is_a_workspace";
    let Some(cluster) = Cluster::over(true, test, 2) else { return };
    let homes = [0, 1].map(|node| cluster.path(node, "homes"));
    fs::create_dir(&homes[0]).expect("made");
    fs::set_permissions(&homes[0], fs::Permissions::from_mode(0o1777)).expect("changed");
    fs::create_dir(homes[0].join("before")).expect("made");
    auto(&homes[0], &[]).well();
    // By the owner of the root and by its guest, by root and by another user; with the mode, owner and group of the call.
    fs::create_dir(homes[0].join("a")).expect("made");
    assert_eq!(
        as_user("umask 027; mkdir b && echo mine > b/file && stat -c %a:%u:%g b", &homes[1]),
        Ok("750:1000:1000\n".into())
    );
    fs::DirBuilder::new().recursive(true).mode(0o700).create(homes[1].join("c/deep/er")).expect("made");
    let numbers = ["a", "b", "c", "c/deep/er", "before"].map(|name| number_of(&homes[0].join(name)));
    assert_eq!((numbers[0], numbers[1]), (1, 2));
    assert!(numbers[2] > 2 && numbers[3] == numbers[2] && numbers[4] == 0, "{numbers:?}");
    assert_eq!(fs::metadata(homes[0].join("c")).expect("there").mode() & 0o7777, 0o700);
    assert_eq!(fs::read_to_string(homes[0].join("b/file")).expect("read"), "mine\n");
    assert_eq!(cluster.role_in(1, 2), "owner", "the node that made the first call in it");
    // A group that directories inherit.
    let team = cluster.path(0, "team");
    fs::create_dir(&team).expect("made");
    chown(&team, None, Some(GROUP)).expect("changed");
    fs::set_permissions(&team, fs::Permissions::from_mode(0o2775)).expect("changed");
    auto(&team, &[]).well();
    fs::create_dir(team.join("job")).expect("made");
    let job = fs::metadata(team.join("job")).expect("there");
    assert_eq!((job.gid(), job.mode() & 0o2000), (GROUP, 0o2000));
    // The errors of mkdir, and no store for them.
    fs::write(homes[0].join("text"), "").expect("written");
    for name in ["a", "before", "text"] {
        assert_eq!(fs::create_dir(homes[1].join(name)).expect_err(name).kind(), ErrorKind::AlreadyExists);
    }
    let refused = as_user("mkdir theirs", &cluster.path(1, "team")).expect_err("it is not theirs");
    assert!(refused.contains("Permission denied"), "{refused}");
    fs::create_dir(homes[0].join("d")).expect("made");
    let last = number_of(&homes[1].join("d"));
    assert_eq!(
        (number_of(&team.join("job")), last),
        (4, 5),
        "numbers are those of stores, one after the other"
    );
    // Programs: copies, archives, removal.
    run("cp", &["-a".as_ref(), homes[0].join("c").as_os_str(), homes[1].join("copy").as_os_str()]);
    assert!(number_of(&homes[0].join("copy")) > last && homes[0].join("copy/deep/er").is_dir());
    run("rm", &["-r".as_ref(), homes[0].join("copy").as_os_str(), homes[0].join("d").as_os_str()]);
    assert!(!homes[1].join("copy").exists() && !homes[1].join("d").exists());
    fs::create_dir(homes[1].join("d")).expect("a removed name is free");
    assert!(number_of(&homes[0].join("d")) > last + 1, "no number is used again");
    // Off again.
    auto(&homes[1], &["--off"]).well();
    auto(&homes[1], &["--off"]).well();
    fs::create_dir(homes[0].join("plain")).expect("made");
    assert_eq!(number_of(&homes[1].join("plain")), 0);
    let refused = as_user(&format!("{} workspace auto .", env!("CARGO_BIN_EXE_sluice")), &homes[0]);
    assert!(refused.expect_err("not root").contains("only root makes workspaces"));
    assert!(auto(&homes[0].join("text"), &[]).complaint(1).contains("is no directory"));
    cluster.finish_with(&[], last + 2);
}

#[test]
fn of_two_nodes_that_make_a_workspace_of_one_name_at_once_one_is_told_that_it_exists() {
    let test = "of_two_nodes_that_make_a_workspace_of_one_name_at_once_one_is_told_that_it_exists";
    let Some(cluster) = Cluster::over(true, test, 2) else { return };
    let jobs = [0, 1].map(|node| cluster.path(node, "jobs"));
    fs::create_dir(&jobs[0]).expect("made");
    auto(&jobs[1], &[]).well();
    for round in 0..5 {
        let name = format!("job{round}");
        let outcomes = std::thread::scope(|scope| {
            let both = [0, 1].map(|node| {
                let dir = jobs[node].join(&name);
                scope.spawn(move || {
                    let made = fs::create_dir(&dir).map_err(|error| error.kind());
                    fs::write(dir.join(format!("of{node}")), "text").expect("there is one");
                    made
                })
            });
            both.map(|one| one.join().expect("no panic"))
        });
        let won = outcomes.iter().filter(|made| made.is_ok()).count();
        assert!(won == 1 && outcomes.contains(&Err(ErrorKind::AlreadyExists)), "{outcomes:?}");
        assert_eq!(fs::read_dir(jobs[round % 2].join(&name)).expect("listed").count(), 2, "both use one");
    }
    cluster.finish_with(&[], 5);
}

#[test]
fn a_store_without_workspaces_makes_no_directory_auto() {
    let Some(cluster) = Cluster::new("a_store_without_workspaces_makes_no_directory_auto", 1) else { return };
    let refused = auto(cluster.nodes[0].path(), &[]).complaint(1);
    assert!(refused.contains("use one in an object store (file://, s3://)"), "{refused}");
    let elsewhere = Scratch::new();
    assert!(auto(&elsewhere.0, &[]).complaint(1).contains("not in a sluicefs mount"));
    cluster.finish(&[]);
}

#[test]
fn a_workspace_goes_to_the_node_that_makes_most_of_its_requests() {
    let test = "a_workspace_goes_to_the_node_that_makes_most_of_its_requests";
    let Some(cluster) = Cluster::over(true, test, 2) else { return };
    cluster.create(0, "a");
    fs::write(cluster.path(0, "a/first"), "text").expect("written");
    assert_eq!(cluster.role_in(0, 1), "owner");
    // The other works there from now on, and sees no more of the hand-over than a pause.
    let (start, mut rounds) = (Instant::now(), 0);
    let mut log = File::create(cluster.path(1, "a/log")).expect("made");
    while rounds % 50 != 0 || cluster.role_in(1, 1) != "owner" {
        assert!(start.elapsed() < FOLLOWS, "it stays where nobody uses it: {}", cluster.workspaces(0));
        let dir = cluster.path(1, &format!("a/dir{rounds}"));
        fs::create_dir(&dir).expect("made");
        writeln!(log, "line {rounds}").expect("written");
        log.sync_all().expect("durable");
        fs::remove_dir(&dir).expect("removed");
        rounds += 1;
    }
    assert_eq!(cluster.role_in(0, 1), "guest");
    let text = fs::read_to_string(cluster.path(0, "a/log")).expect("read");
    assert!(text.lines().eq((0..rounds).map(|round| format!("line {round}"))));
    let awaited = cluster.workspaces(1)[0]["awaited"].clone();
    (0..100).for_each(|round| fs::create_dir(cluster.path(1, &format!("a/own{round}"))).expect("made"));
    assert_eq!(cluster.workspaces(1)[0]["awaited"], awaited, "its work sends no message");
    drop(log);
    cluster.finish_with(&[], 1);
}
