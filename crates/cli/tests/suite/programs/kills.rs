//! Kills: clients that end by `kill -9` in the middle leave a mount that works.

use super::stage::{LOCK_MODES, Stage};
use crate::harness::{sluice, until};
use std::thread;
use std::time::Duration;

/// Clients that go on for ever, each in a directory `$D` of its own where `$D/started` tells that they have begun.
const CLIENTS: [(&str, &str); 6] = [
    (
        "a writer of a large file",
        "while :; do dd if=/dev/zero of=$D/started bs=64k count=64 conv=notrunc status=none; done",
    ),
    (
        "one that creates and removes",
        "n=0; while :; do echo x >$D/f$n; ln $D/f$n $D/l$n; mv $D/l$n $D/started; rm $D/f$n; n=$((n+1)); done",
    ),
    (
        "one that unpacks an archive",
        "while :; do mkdir -p $D/t; cp -r /etc/. $D/t/ 2>/dev/null || :; touch $D/started; done",
    ),
    ("one that searches", "touch $D/started; while :; do find . >/dev/null 2>&1 || :; done"),
    (
        "a holder of files without a name",
        "exec 3>$D/gone 4<.; echo x >&3; rm $D/gone; touch $D/started; while :; do echo more >&3; done",
    ),
    ("a reader of a pipe that nobody writes", "mkfifo $D/pipe; touch $D/started; read -r line <$D/pipe"),
];

#[test]
fn killed_clients_leave_a_mount_that_works() {
    let name = "killed_clients_leave_a_mount_that_works";
    for mode in LOCK_MODES {
        let Some(stage) = Stage::new(name, mode, &["find"]) else { return };
        for (number, (who, script)) in CLIENTS.iter().enumerate() {
            for round in 0..3 {
                let dir = format!("d{number}-{round}");
                // The client and its children are a session of their own, killed together.
                stage.sh(&format!(
                    "mkdir {dir}; export D={dir}
                     setsid sh -uc '{script}' & client=$!
                     while [ ! -e {dir}/started ]; do :; done
                     sleep 0.0{round}
                     kill -9 -$client; wait $client || :
                     echo alive >check; test \"$(cat check)\" = alive
                     # The last call of a child of the client may still be under way.
                     until ls -lR {dir} >/dev/null 2>&1 && rm -rf check {dir} 2>/dev/null; do :; done"
                ));
            }
            assert_eq!(stage.sh("ls -A"), "", "{who}, {mode}");
        }
        let used = || stage.sh("df --output=used . | tail -n1");
        until(&format!("{mode}: no page is left behind"), || used().trim() == "0");
    }
}

#[test]
fn the_locks_of_killed_processes_are_gone() {
    let name = "the_locks_of_killed_processes_are_gone";
    for mode in LOCK_MODES {
        let Some(stage) = Stage::new(name, mode, &["flock"]) else { return };
        let place = stage.mount().to_str().unwrap();
        stage.sh(
            "mkfifo never; sh -c 'exec 9>f; flock 9; touch held; exec 8<>never; read -r line <&8' & holder=$!
             while [ ! -e held ]; do :; done
             ! flock -n f true
             flock f true & killed=$!; flock f touch got & waiter=$!
             kill -9 $killed; wait $killed || :
             ! test -e got; kill -9 $holder; wait $holder || :; wait $waiter; test -e got; flock -n f true",
        );
        while !sluice(["locks", place]).well().is_empty() {
            thread::sleep(Duration::from_millis(2));
        }
    }
}
