//! A server that is started again on a full disk.

use crate::harness::{
    Scratch, can_mount, is_mounted, kernel, kill, processes_of, server_of, skipped, sluice, small_disk,
    umount, until,
};
use crate::holder::restarts;
use crate::store::Stored;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

#[test]
fn a_server_that_is_started_again_on_a_full_disk_goes_on() {
    let test = "a_server_that_is_started_again_on_a_full_disk_goes_on";
    if !can_mount(test) || kernel() < (6, 16) {
        return;
    }
    let scratch = Scratch::new();
    let Some(disk) = small_disk(&scratch, "disk", "48M") else {
        return skipped(test, "no tmpfs can be mounted here");
    };
    let stored = Stored { store: disk.join("store"), dir: scratch.dir("m") };
    assert_eq!(sluice(["mkfs".as_ref(), stored.store.as_os_str()]).well(), "");
    stored.mount("holder=on");
    let path = stored.dir.join("f");
    let mut file =
        File::options().create(true).truncate(true).read(true).write(true).open(&path).expect("made");
    file.write_all(&[7; 100_000]).expect("written");
    file.sync_all().expect("durable");
    File::open(&stored.dir).expect("there").sync_all().expect("durable");
    // First the mount is full, then the disk.
    for number in 0..100 {
        let bytes: Vec<u8> =
            (0..1_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        if fs::write(stored.dir.join(format!("large-{number}")), bytes).is_err() {
            break;
        }
    }
    File::open(&stored.dir).expect("there").sync_all().expect("durable");
    let mut fill = File::create(disk.join("fill")).expect("made");
    while fill.write(&[1; 65_536]).is_ok_and(|len| len > 0) {}
    let server = server_of(&stored.dir);
    assert!(Command::new("kill").args(["-KILL", &server.to_string()]).status().expect("it runs").success());
    let mut bytes = vec![0; 100_000];
    file.read_exact_at(&mut bytes, 0).expect("the next server answers");
    assert!(bytes == [7; 100_000]);
    until("the next server answers questions", || restarts(&stored.dir) == Some(1));
    file.sync_all().expect("nothing was lost");
    drop(fill);
    fs::remove_file(disk.join("fill")).expect("ours");
    file.write_all_at(&[8; 10], 0).expect("there is room again");
    file.sync_all().expect("durable");
    drop(file);
    stored.umount();
    until("the server has ended", || sluice(["fsck".as_ref(), stored.store.as_os_str()]).status == Some(0));
    stored.assert_clean();
}

#[test]
fn a_server_that_cannot_begin_on_a_full_disk_is_tried_until_there_is_room_or_an_unmount() {
    let test = "a_server_that_cannot_begin_on_a_full_disk_is_tried_until_there_is_room_or_an_unmount";
    if !can_mount(test) || kernel() < (6, 16) {
        return;
    }
    let scratch = Scratch::new();
    let Some(disk) = small_disk(&scratch, "disk", "48M") else {
        return skipped(test, "no tmpfs can be mounted here");
    };
    // Such a store writes an object when it is opened.
    let (store, dir) = (format!("file://{}", disk.join("store").display()), scratch.dir("m"));
    sluice(["mkfs", &store]).well();
    let place = dir.to_str().expect("a name of ours");
    sluice(["mount", "-o", "holder=on", &store, place]).well();
    let mut file = File::create(dir.join("f")).expect("made");
    file.write_all(&[7; 100_000]).expect("written");
    file.sync_all().expect("durable");
    let state = || {
        let listed = sluice(["list", "--json"]).well();
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        let ours = listed.as_array().expect("a list").iter().find(|row| row["directory"] == place).cloned();
        ours.map_or_else(String::new, |row| row["state"].as_str().unwrap_or_default().to_owned())
    };
    let fill_and_kill = || {
        let mut fill = File::create(disk.join("fill")).expect("made");
        while fill.write(&[1; 65_536]).is_ok_and(|len| len > 0) {}
        kill("-KILL", server_of(&dir));
        until("the mount waits", || state() == "waits");
    };
    fill_and_kill();
    let reads = thread::spawn({
        let path = dir.join("f");
        move || fs::read(path)
    });
    let line = sluice(["stat", place]).complaint(1);
    for part in [
        "this mount has no server, and calls there wait: ",
        "No space left",
        "make room on the disk",
        "tried again every 5 s",
    ] {
        assert!(line.contains(part), "{line}");
    }
    assert!(!line.contains("-o ro"), "{line}");
    // A server that fails for another reason is given up after fourteen seconds.
    thread::sleep(Duration::from_secs(16));
    assert_eq!(state(), "waits");
    assert!(!reads.is_finished());
    fs::remove_file(disk.join("fill")).expect("ours");
    assert!(reads.join().expect("no panic").expect("it waits for the next server") == [7; 100_000]);
    until("the next server answers questions", || restarts(&dir) == Some(1));
    assert_eq!(state(), "serves");
    file.sync_all().expect("nothing was lost");
    drop(file);
    fill_and_kill();
    umount(&dir);
    until("no process is left", || processes_of(&dir).is_empty());
    assert!(!is_mounted(&dir));
    fs::remove_file(disk.join("fill")).expect("ours");
    sluice(["fsck", &store]).well();
}
