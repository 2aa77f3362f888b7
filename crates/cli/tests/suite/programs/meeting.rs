//! Meeting: processes that meet through the mount: pipes, sockets, file locks.

use super::stage::{LOCK_MODES, Stage};
use crate::harness::sluice;
use rustix::net::{Shutdown, shutdown};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

#[test]
fn processes_talk_through_a_named_pipe() {
    let Some(stage) = Stage::new("processes_talk_through_a_named_pipe", "", &[]) else { return };
    let talk = "mkfifo to from; test -p to
        { read -r line <to; echo \"heard $line\" >from; } & echo hello >to; cat from; wait
        head -c 3000000 /dev/zero >to & wc -c <to; wait; test $(stat -c %s to) = 0";
    assert_eq!(stage.sh(talk), "heard hello\n3000000\n");
}

#[test]
fn processes_talk_through_a_unix_socket() {
    let Some(stage) = Stage::new("processes_talk_through_a_unix_socket", "", &[]) else { return };
    let path = stage.mount().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    assert_eq!(stage.sh("stat -c %F socket"), "socket\n");
    assert!(UnixListener::bind(&path).is_err(), "the name is taken");
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut said = [0; 5];
        stream.read_exact(&mut said).unwrap();
        stream.write_all(&said).unwrap();
        // Closing is not enough: a process that another test forks holds the sockets too until its exec.
        shutdown(&stream, Shutdown::Both).unwrap();
        shutdown(&listener, Shutdown::Both).unwrap();
    });
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(b"hello").unwrap();
    let mut heard = String::new();
    client.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "hello");
    server.join().unwrap();
    // Nobody listens any more; the name can be moved and removed.
    assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    stage.sh("mv socket other; test -S other; rm other");
    assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    let receiver = UnixDatagram::bind(stage.mount().join("datagrams")).unwrap();
    stage.sh("mv datagrams moved");
    UnixDatagram::unbound().unwrap().send_to(b"x", stage.mount().join("moved")).unwrap();
    assert_eq!(receiver.recv(&mut [0; 8]).unwrap(), 1);
}

#[test]
fn flock_excludes_waits_shares_and_can_be_interrupted() {
    let name = "flock_excludes_waits_shares_and_can_be_interrupted";
    for mode in LOCK_MODES {
        let Some(stage) = Stage::new(name, mode, &["flock"]) else { return };
        let place = stage.mount().to_str().unwrap();
        let spawn = |script: &str| {
            stage
                .command(script)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a shell starts")
        };
        let lines_of_locks = |count: usize| {
            while sluice(["locks", place]).well().lines().count() != count {
                thread::sleep(Duration::from_millis(2));
            }
        };
        let mut holder = spawn("exec flock f sh -c 'echo held; read line || :'");
        let mut said = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "held\n");
        assert_eq!(stage.outcome("flock -n f true").status.code(), Some(1), "{mode}");
        assert_eq!(stage.outcome("flock -s -n f true").status.code(), Some(1), "{mode}");
        // Two wait. One is interrupted and goes away, the other gets the lock.
        let mut patient = spawn("exec flock f echo mine");
        lines_of_locks(2);
        let mut hasty = spawn("flock f true & echo $!; wait $! || exit $?");
        let mut pid = String::new();
        BufReader::new(hasty.stdout.take().unwrap()).read_line(&mut pid).unwrap();
        lines_of_locks(3);
        stage.sh(&format!("kill -TERM {}", pid.trim()));
        assert_eq!(hasty.wait().unwrap().code(), Some(128 + 15), "{mode}");
        lines_of_locks(2);
        assert!(patient.try_wait().unwrap().is_none(), "{mode}");
        drop(holder.stdin.take());
        assert!(holder.wait().unwrap().success());
        let mut got = String::new();
        patient.stdout.take().unwrap().read_to_string(&mut got).unwrap();
        assert_eq!((got.as_str(), patient.wait().unwrap().success()), ("mine\n", true), "{mode}");
        // Shared locks, and one that a child has inherited.
        stage.sh("flock -s f flock -s -n f true; ! flock -s f flock -x -n f true
                  exec 9>g; flock 9; ! flock -n g true; ( flock -u 9 ); flock -n g true");
        lines_of_locks(0);
        // A lock makes a counter right that two would otherwise get wrong.
        stage.sh("echo 0 >n; add() { i=0; while [ $i -lt 60 ]; do flock f sh -c 'echo $(($(cat n) + 1)) >n'; i=$((i+1)); done; }
                  add & add & wait; test $(cat n) = 120");
    }
}
