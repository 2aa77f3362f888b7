//! A mount outlives its server where something else has taken a place meanwhile: the store's directory, the metrics' address.

use crate::harness::{
    Scratch, can_mount, is_mounted, kernel, processes_of, skipped, sluice, stat_field, umount, until,
};
use crate::holder::restarts;
use rustix::fs::{CWD, FileType, Mode};
use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn can_hold(test: &str) -> bool {
    if kernel() < (6, 16) {
        skipped(test, "a mount outlives its server from Linux 6.16 on");
        return false;
    }
    can_mount(test)
}

fn mount(store: &str, options: &str, dir: &Path) {
    let words = ["mount", "-o", options, store].map(OsString::from);
    assert_eq!(sluice(words.into_iter().chain([dir.into()])).well(), "");
}

fn kill_server(dir: &Path) {
    let server = sluice_fuse::control::server_of(dir).expect("it answers").expect("there is one");
    let killed = Command::new("kill").args(["-KILL", &server.to_string()]).status();
    assert!(killed.expect("it starts").success());
}

fn put(dir: &Path, name: &str, text: &str) {
    let mut file = File::create(dir.join(name)).expect("made");
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).expect("durable");
}

#[test]
fn the_next_server_opens_the_store_of_the_last_one_whatever_has_its_path() {
    if !can_hold("the_next_server_opens_the_store_of_the_last_one_whatever_has_its_path") {
        return;
    }
    let scratch = Scratch::new();
    let (place, moved, dir) = (scratch.0.join("store"), scratch.0.join("moved"), scratch.dir("mnt"));
    for scheme in ["", "file://"] {
        let address = |place: &Path| format!("{scheme}{}", place.display());
        sluice(["mkfs", &address(&place)]).well();
        mount(&address(&place), "holder=on", &dir);
        put(&dir, "first", "kept");
        fs::rename(&place, &moved).expect("renamed");
        sluice(["mkfs", &address(&place)]).well();
        let before = restarts(&dir);
        kill_server(&dir);
        until("another server serves", || restarts(&dir) > before);
        assert_eq!(fs::read_to_string(dir.join("first")).expect("it was durable"), "kept", "{scheme}");
        put(&dir, "second", "kept, too");
        umount(&dir);
        // The stranger has nothing of it, and the store has all.
        mount(&address(&place), "holder=off", &dir);
        assert_eq!(fs::read_dir(&dir).expect("listed").count(), 0);
        umount(&dir);
        mount(&address(&moved), "holder=off", &dir);
        assert_eq!(fs::read_to_string(dir.join("second")).expect("it was durable"), "kept, too");
        umount(&dir);
        [&place, &moved].into_iter().for_each(|dir| fs::remove_dir_all(dir).expect("removed"));
    }
}

#[test]
fn a_key_that_became_a_pipe_keeps_no_program_waiting_and_is_read_when_it_is_back() {
    if !can_hold("a_key_that_became_a_pipe_keeps_no_program_waiting_and_is_read_when_it_is_back") {
        return;
    }
    let scratch = Scratch::new();
    let (store, dir, key, away) =
        (scratch.0.join("store"), scratch.dir("mnt"), scratch.0.join("key"), scratch.0.join("away"));
    let words =
        ["mkfs".as_ref(), "--encrypt".as_ref(), "--key-file".as_ref(), key.as_os_str(), store.as_os_str()];
    fs::write(&key, [7; 32]).expect("room");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("it is ours");
    sluice(words).well();
    mount(&store.to_string_lossy(), &format!("holder=on,key_file={}", key.display()), &dir);
    put(&dir, "first", "kept");
    fs::rename(&key, &away).expect("renamed");
    rustix::fs::mknodat(CWD, &key, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("room");
    let before = restarts(&dir);
    kill_server(&dir);
    let is_alone = || {
        std::thread::sleep(Duration::from_millis(10));
        processes_of(&dir).len() == 1
    };
    // The holder starts the first server at once, and waits before it starts another.
    until("the next server has ended", || (0..10).all(|_| is_alone()));
    fs::rename(&away, &key).expect("renamed");
    until("another server serves", || restarts(&dir) > before);
    assert_eq!(fs::read_to_string(dir.join("first")).expect("it was durable"), "kept");
    let cause = stat_field(&dir, "restart_cause");
    assert!(cause.contains("is gone or no file any more: put it back"), "{cause}");
    umount(&dir);
}

#[test]
fn an_upgrade_to_a_server_without_the_right_key_names_the_store_as_a_person_did() {
    if !can_hold("an_upgrade_to_a_server_without_the_right_key_names_the_store_as_a_person_did") {
        return;
    }
    let scratch = Scratch::new();
    let (store, dir, key) = (scratch.0.join("store"), scratch.dir("mnt"), scratch.0.join("key"));
    let write_key = |byte| {
        fs::write(&key, [byte; 32]).expect("room");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("it is ours");
    };
    write_key(7);
    let words =
        ["mkfs".as_ref(), "--encrypt".as_ref(), "--key-file".as_ref(), key.as_os_str(), store.as_os_str()];
    sluice(words).well();
    mount(&store.to_string_lossy(), &format!("holder=on,key_file={}", key.display()), &dir);
    write_key(8);
    let line = sluice(["upgrade".as_ref(), dir.as_os_str()]).complaint(1);
    assert!(line.contains(&format!("{}: the key is wrong", store.display())), "{line}");
    assert!(!line.contains("/proc/"), "{line}");
    write_key(7);
    umount(&dir);
}

#[test]
fn an_address_of_metrics_that_is_taken_meanwhile_ends_no_mount() {
    if !can_hold("an_address_of_metrics_that_is_taken_meanwhile_ends_no_mount") {
        return;
    }
    let scratch = Scratch::new();
    let (store, dir) = (scratch.0.join("store"), scratch.dir("mnt"));
    sluice(["mkfs".as_ref(), store.as_os_str()]).well();
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = free.local_addr().expect("it listens");
    drop(free);
    mount(&store.to_string_lossy(), &format!("holder=on,metrics={address}"), &dir);
    put(&dir, "first", "kept");
    let before = restarts(&dir);
    // The address goes to another process in the moment of the death.
    kill_server(&dir);
    let taken = Cell::new(None);
    until("the address is taken", || {
        taken.set(TcpListener::bind(address).ok());
        let is_taken = taken.take().map(|listener| taken.set(Some(listener))).is_some();
        is_taken || restarts(&dir) > before
    });
    until("another server serves", || restarts(&dir) > before);
    assert!(is_mounted(&dir));
    assert_eq!(fs::read_to_string(dir.join("first")).expect("it was durable"), "kept");
    put(&dir, "second", "kept, too");
    drop(taken);
    let told = || {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok().map(|_| text)
    };
    until("the metrics are told again", || told().is_some_and(|text| text.contains("sluicefs_mount_info")));
    umount(&dir);
}
