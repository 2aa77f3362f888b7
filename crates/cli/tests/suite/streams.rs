//! The command line with streams of snapshots: between stores in a directory, stores in objects, and mounts.

use crate::harness::{Ran, SLUICE, Scratch, can_mount, crash, kill, skipped, sluice, umount, until};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Runs `script` in `dir`, where `sluice` is the program; the status of a pipe is that of its first command that failed.
fn sh(dir: &Path, script: &str) -> Ran {
    let path = Path::new(SLUICE).parent().expect("it is in a directory");
    let path = format!("{}:{}", path.display(), std::env::var("PATH").unwrap_or_default());
    let script = format!("set -euo pipefail; {script}");
    let mut bash = Command::new("bash");
    let output = bash.args(["-c", &script]).current_dir(dir).env("PATH", path).stdin(Stdio::null()).output();
    Ran::from(output.expect("bash starts"))
}

/// A scratch directory with a mounted store in `m`, of which the snapshot `one` was taken, and something was changed since.
fn stage(test: &str) -> Option<Scratch> {
    if !can_mount(test) {
        return None;
    }
    if Command::new("bash").args(["-c", "true"]).status().is_err() {
        skipped(test, "there is no bash");
        return None;
    }
    let scratch = Scratch::new();
    let made = "
        mkdir m o b; sluice mkfs store; sluice mount store m; cd m
        mkdir -p dir/below many; seq 100000 > dir/numbers; ln dir/numbers dir/below/same; ln -s ../dir dir/link
        truncate -s 10M hole; echo end >> hole; mkfifo -m 600 fifo; for i in $(seq 300); do echo $i > many/$i; done
        chmod 4711 dir/numbers; touch -d @12345.678 many/7
        sluice snapshot create . one
        seq 7 > dir/new; rm -r many/1*; mv dir/below dir/moved; echo more >> hole; ln many/7 many/seven";
    sh(&scratch.0, made).well();
    Some(scratch)
}

/// A `sluice receive b` in `dir`, whose standard input is the test's.
fn receiver(dir: &Path) -> Child {
    Command::new(SLUICE)
        .args(["receive", "b"])
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("sluice starts")
}

#[test]
fn snapshots_go_from_a_directory_to_objects_and_back_whole_and_by_changes() {
    let Some(scratch) = stage("snapshots_go_from_a_directory_to_objects_and_back") else { return };
    let script = "
        sluice snapshot create m two
        sluice mkfs file://$PWD/objects; sluice mkfs back
        sluice send m/.snapshots/one | sluice receive file://$PWD/objects
        sluice send --since one m/.snapshots/two > two.stream
        sluice receive file://$PWD/objects < two.stream
        sluice mount file://$PWD/objects o
        sluice snapshot list o | awk 'NR > 1 { print $1 }'
        for name in one two; do diff -r --no-dereference -x fifo m/.snapshots/$name o/.snapshots/$name; done
        cd m/.snapshots/two; find . -printf '%p %y %m %U %G %n %T@ %l\\n' | sort > ../../../sent; cd ../../..
        cd o/.snapshots/two; find . -printf '%p %y %m %U %G %n %T@ %l\\n' | sort > ../../../there; cd ../../..
        diff sent there
        test $(stat -c %b m/.snapshots/two/hole) = $(stat -c %b o/.snapshots/two/hole)
        sluice send o/.snapshots/one | sluice receive back
        sluice umount o
        sluice receive back < two.stream
        sluice fsck back > /dev/null; sluice mount back b
        diff -r --no-dereference -x fifo m/.snapshots/two b/.snapshots/two
        test ! -e b/dir";
    assert_eq!(sh(&scratch.0, script).well(), "one\ntwo\n");
    umount(&scratch.0.join("b"));
    umount(&scratch.0.join("m"));
}

#[test]
fn a_stream_is_received_by_a_mount_and_refused_where_it_does_not_fit() {
    let Some(scratch) = stage("a_stream_is_received_by_a_mount") else { return };
    let run = |script: &str| sh(&scratch.0, script);
    run("sluice mkfs back; sluice mount back b; sluice snapshot create m two").well();
    run("sluice send m/.snapshots/one > one.stream; sluice send --since one m/.snapshots/two > two.stream")
        .well();
    let refused = |script: &str, why: &str| {
        let line = run(script).complaint(1);
        assert!(line.contains(why), "{script}: {line}");
        assert_eq!(run("find b/.snapshots -mindepth 1").stdout, "", "{script}");
    };
    refused("sluice receive b < two.stream", "one is not here");
    refused("head -c 20000 one.stream | sluice receive b", "cut off");
    refused("sluice receive b < /dev/null", "cut off");
    refused("cat one.stream one.stream | sluice receive b", "bytes follow");
    refused("sluice receive b < b/../m/dir/numbers", "no stream");
    refused("sed 's/99999/88888/' one.stream | sluice receive b", "damaged");
    run("sluice receive b < one.stream; sluice receive b < two.stream").well();
    run("diff -r --no-dereference -x fifo m/.snapshots/two b/.snapshots/two").well();
    assert!(run("sluice receive b < one.stream").complaint(1).contains("there already"));
    assert_eq!(run("sluice snapshot list b | awk 'NR > 1 { print $1 }'").well(), "one\ntwo\n");
    run("sluice umount b; sluice mount -o ro back b").well();
    assert!(run("sluice receive b < two.stream").complaint(1).contains("the mount is read-only"));
    run("sluice umount b; sluice mount back b").well();
    // Questions are answered while a stream is under way, and a mount ends beside it.
    let mut sender = receiver(&scratch.0);
    let input = sender.stdin.take().expect("it is a pipe");
    until("the stream is being received", || run("sluice receive b < one.stream").status == Some(1));
    run("sluice stat b").well();
    umount(&scratch.0.join("b"));
    drop(input);
    let line = Ran::from(sender.wait_with_output().expect("it ends")).complaint(1);
    assert!(line.contains("the server of the mount ended before the transfer did"), "{line}");
    let fsck = sluice(["fsck".as_ref(), scratch.0.join("back").as_os_str()]);
    assert_eq!(fsck.status, Some(0), "{}", fsck.stdout);
    umount(&scratch.0.join("m"));
}

#[test]
fn a_stream_that_was_cut_goes_on_with_a_token_also_when_client_and_mount_have_ended() {
    let Some(scratch) = stage("a_stream_that_was_cut_goes_on") else { return };
    let run = |script: &str| sh(&scratch.0, script);
    run("sluice mkfs back; sluice snapshot create m two").well();
    let token = |ran: Ran| {
        let line = ran.complaint(1);
        let (_, token) = line.split_once("sluice send --resume ").unwrap_or_else(|| panic!("{line}"));
        token.trim_end().trim_end_matches('`').to_owned()
    };
    // By a store that is not mounted, and by a mount of it.
    let first = token(run("sluice send m/.snapshots/one 2> /dev/null | head -c 10000 | sluice receive back"));
    run("sluice mount back b").well();
    assert_eq!(token(run("sluice receive b < /dev/null")), first);
    let rest = format!("sluice send --resume {first} m/.snapshots/one 2> /dev/null");
    // A file that has come in part is sent anew: most of the small files come with this.
    assert_ne!(token(run(&format!("{rest} | head -c 100000 | sluice receive b"))), first);
    // A client that is killed, and a mount that ends.
    let second = token(run("sluice receive b < /dev/null"));
    let rest = format!("sluice send --resume {second} m/.snapshots/one");
    run(&format!(
        "({rest} | head -c 50000 || true; sleep 30) 2> /dev/null | sluice receive b & disown; sleep 1; kill -9 $!"
    ))
    .well();
    until("the server has seen that", || {
        let ran = run("sluice receive b < /dev/null");
        ran.stderr.contains("--resume")
    });
    let third = token(run("sluice receive b < /dev/null"));
    run("sluice umount b; sluice mount back b").well();
    run(&format!("sluice send --resume {third} m/.snapshots/one | sluice receive b")).well();
    run("diff -r --no-dereference -x fifo m/.snapshots/one b/.snapshots/one; test ! -e b/.receiving").well();
    let wrong = run(&format!("sluice send --resume {third} m/.snapshots/two > /dev/null")).complaint(1);
    assert!(wrong.contains("the token is of another stream"), "{wrong}");
    let wrong = run("sluice send --resume monday m/.snapshots/two > /dev/null").complaint(2);
    assert!(wrong.contains("no token of `sluice receive`"), "{wrong}");
    umount(&scratch.0.join("b"));
    assert!(run("sluice fsck back").status == Some(0));
    umount(&scratch.0.join("m"));
}

#[test]
fn a_mount_whose_server_is_killed_in_the_middle_of_a_large_file_goes_on_within_it() {
    let Some(scratch) = stage("a_mount_whose_server_is_killed_in_the_middle_of_a_large_file") else { return };
    let run = |script: &str| sh(&scratch.0, script);
    run("head -c 16M /dev/urandom > m/large; sluice snapshot create m two; sluice mkfs back; sluice mount back $PWD/b").well();
    run("sluice send m/.snapshots/two > two.stream").well();
    let stream = fs::read(scratch.0.join("two.stream")).expect("it was sent");
    let mut receiver = receiver(&scratch.0);
    let mut input = receiver.stdin.take().expect("it is a pipe");
    std::io::Write::write_all(&mut input, &stream[..stream.len() / 2]).expect("it reads");
    run("sync b").well();
    crash(&scratch.0.join("b"));
    drop(input);
    let line = Ran::from(receiver.wait_with_output().expect("it ends")).complaint(1);
    assert!(line.contains("the server of the mount ended before the transfer did"), "{line}");
    run("sluice umount b; sluice fsck back").well();
    run("sluice mount back b").well();
    let line = run("sluice receive b < /dev/null").complaint(1);
    let (_, token) = line.split_once("sluice send --resume ").unwrap_or_else(|| panic!("{line}"));
    let token = token.trim_end().trim_end_matches('`');
    run(&format!("sluice send --resume {token} m/.snapshots/two > rest; sluice receive b < rest")).well();
    let rest = fs::metadata(scratch.0.join("rest")).expect("it was sent").len();
    // A pipe and the buffers between the two hold less than a quarter.
    assert!(rest < stream.len() as u64 * 3 / 4, "{rest} of {}", stream.len());
    run("diff -r --no-dereference -x fifo m/.snapshots/two b/.snapshots/two; test ! -e b/.receiving").well();
    umount(&scratch.0.join("b"));
    assert!(run("sluice fsck back").status == Some(0));
    umount(&scratch.0.join("m"));
}

#[test]
fn a_receiver_that_is_killed_leaves_the_store_as_it_was() {
    let Some(scratch) = stage("a_receiver_that_is_killed") else { return };
    let run = |script: &str| sh(&scratch.0, script);
    run("sluice mkfs back; sluice send m/.snapshots/one > one.stream").well();
    for part in [1, 3, 8] {
        let mut receiver = Command::new(SLUICE)
            .args(["receive", "back"])
            .current_dir(&scratch.0)
            .stdin(Stdio::piped())
            .spawn()
            .expect("sluice starts");
        let stream = fs::read(scratch.0.join("one.stream")).expect("it was sent");
        let mut input = receiver.stdin.take().expect("it is a pipe");
        std::io::Write::write_all(&mut input, &stream[..stream.len() * part / 9]).expect("it reads");
        kill("-KILL", receiver.id());
        receiver.wait().expect("it was started");
        let fsck = run("sluice fsck back");
        assert_eq!(fsck.status, Some(0), "{}", fsck.stdout);
        run("sluice mount back b").well();
        assert_eq!(run("sluice snapshot list b; ls b").well(), "");
        run("sluice umount b").well();
    }
    run("sluice receive back < one.stream; sluice mount back b").well();
    run("diff -r --no-dereference -x fifo m/.snapshots/one b/.snapshots/one; test ! -e b/.receiving").well();
    umount(&scratch.0.join("b"));
    umount(&scratch.0.join("m"));
}

#[test]
fn senders_say_when_nobody_takes_what_they_send() {
    let Some(scratch) = stage("senders_say_when_nobody_takes_what_they_send") else { return };
    let run = |script: &str| sh(&scratch.0, script);
    for what in ["send", "export"] {
        let closed = run(&format!("exec 3>&1; sluice {what} m/.snapshots/one | head -c 10 > /dev/null"));
        assert!(closed.complaint(1).contains("standard output"), "{what}");
        let full = run(&format!("sluice {what} m/.snapshots/one > /dev/full")).complaint(1);
        assert!(full.contains("No space left"), "{what}: {full}");
        let missing = run(&format!("sluice {what} m/.snapshots/none > /dev/null")).complaint(1);
        assert!(missing.contains("none"), "{what}: {missing}");
        let no_snapshot = run(&format!("sluice {what} m/dir > /dev/null")).complaint(2);
        assert!(no_snapshot.contains("DIR/.snapshots/NAME"), "{what}: {no_snapshot}");
    }
    let line = run("sluice send --since none m/.snapshots/one > /dev/null").complaint(1);
    assert!(line.contains("no snapshot none"), "{line}");
    assert!(run("sluice receive nothing < /dev/null").complaint(1).contains("nothing"));
    assert_eq!(run("sluice diff m/.snapshots/one | head -n 1 > /dev/null").status, Some(0));
    run("sluice export m/.snapshots/one | tar --extract -C o; diff -r --no-dereference -x fifo m/.snapshots/one o").well();
    umount(&scratch.0.join("m"));
}

#[test]
fn diff_tells_what_changed() {
    let Some(scratch) = stage("diff_tells_what_changed") else { return };
    let run = |script: &str| sh(&scratch.0, script);
    let lines = run("rm m/many/2* m/many/7; chmod 600 m/many/3; sluice diff m/.snapshots/one").well();
    let wanted = "removed\t0\tdir/below
removed\t588895\tdir/below/same
created\t0\tdir/moved
created\t588895\tdir/moved/same
created\t14\tdir/new
modified\t10485764 -> 10485769\thole
";
    assert!(lines.starts_with(wanted), "{lines}");
    assert!(lines.contains("\nattributes\t2\tmany/3\n"), "{lines}");
    assert!(
        lines.contains("\nremoved\t2\tmany/7\n") && lines.contains("\ncreated\t2\tmany/seven\n"),
        "{lines}"
    );
    let names = run("sluice diff -0 m/.snapshots/one m").well();
    assert!(names.starts_with("dir/below\0dir/below/same\0"), "{names:?}");
    assert_eq!(names.matches('\0').count(), lines.lines().count());
    let json = run("sluice diff --json m/.snapshots/one").well();
    let objects: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(objects.len(), lines.lines().count());
    let hole = objects.iter().find(|object| object["path"] == "hole").expect("it changed");
    let told = ["change", "type", "old_size", "size"].map(|field| hole[field].clone());
    assert_eq!(told, [Value::from("modified"), "file".into(), 10_485_764.into(), 10_485_769.into()]);
    let from = |path: &str| {
        objects.iter().find(|object| object["path"] == path).expect("it is told")["from"].clone()
    };
    assert_eq!([from("dir/moved/same"), from("many/seven")], ["dir/below/same", "many/7"]);
    assert_eq!([from("dir/new"), from("hole"), from("many/7")], [Value::Null, Value::Null, Value::Null]);
    run("sluice snapshot create m two").well();
    assert_eq!(run("sluice diff m/.snapshots/two m").well(), "");
    assert_eq!(run("sluice diff m/.snapshots/two/many m/many").well(), "");
    assert!(run("sluice diff m/dir").complaint(2).contains("DIR/.snapshots/NAME"));
    assert!(run("sluice diff m/.snapshots/one o").complaint(1).contains("one mount"));
    umount(&scratch.0.join("m"));
}
