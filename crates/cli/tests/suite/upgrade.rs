//! `sluice upgrade`: the program that serves a mount is replaced while programs use the mount, or is not, and the mount goes on.

use crate::harness::{
    Mounted, Ran, SLUICE, can_mount, kill, processes_of, server_of, skipped, sluice, stat_field, until,
};
use crate::holder::{Kept, python, restarts, tells_loss};
use rustix::fs::{FlockOperation, flock};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The program once more, at another path.
fn copy(kept: &Kept, name: &str) -> PathBuf {
    let path = kept.scratch().0.join(name);
    if fs::hard_link(SLUICE, &path).is_err() {
        fs::copy(SLUICE, &path).expect("room");
    }
    path
}

fn upgrade_by(program: &Path, dir: &Path) -> Ran {
    let mut command = Command::new(program);
    Ran::from(command.arg("upgrade").arg(dir).stdin(Stdio::null()).output().expect("it starts"))
}

/// The program that process `pid` runs.
fn program_of(pid: u32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/exe")).expect("it runs")
}

fn holder_of(dir: &Path) -> u32 {
    stat_field(dir, "holder").parse().expect("a number")
}

/// The answer to the order to replace the server by `program`, or to the order alone.
fn order(dir: &Path, program: Option<&File>) -> String {
    let dev = fs::metadata(dir).expect("it answers").dev();
    let name = format!("sluicefs/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = socket.expect("a socket");
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("short");
    rustix::net::connect(&socket, &address).expect("the server listens");
    let mut stream = UnixStream::from(socket);
    stream.write_all(b"upgrade\n").expect("it listens");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let program: Vec<_> = program.into_iter().map(AsFd::as_fd).collect();
    if !program.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&program));
    }
    rustix::net::sendmsg(&stream, &[IoSlice::new(b"p")], &mut ancillary, SendFlags::NOSIGNAL)
        .expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// The servers of the mount on `dir`, without the holder.
fn servers(dir: &Path) -> Vec<u32> {
    let is_server = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("--held"))
    };
    processes_of(dir).into_iter().filter(is_server).collect()
}

fn number_of(variable: &str, usually: u64) -> u64 {
    std::env::var(variable).ok().and_then(|number| number.parse().ok()).unwrap_or(usually)
}

const SQLITE: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
db.execute("PRAGMA journal_mode=" + sys.argv[2]).fetchone(); db.execute("PRAGMA synchronous=FULL")
db.execute("CREATE TABLE t(n INTEGER PRIMARY KEY, b BLOB)")
print("begun", flush=True)
n = 0
import select
while not select.select([sys.stdin], [], [], 0)[0]:
    n += 1; db.execute("INSERT INTO t VALUES(?, ?)", (n, bytes([n % 251]) * 3000))
assert db.execute("SELECT count(*) FROM t").fetchone()[0] == n
assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
"#;

const MAPPING: &str = r#"
import mmap, sys
f = open(sys.argv[1], "r+b"); m = mmap.mmap(f.fileno(), 0); n = 0
print("begun", flush=True)
for line in sys.stdin:
    assert m[n:n + 4] == n.to_bytes(4, "little") if n else True
    n += 4; m[n:n + 4] = n.to_bytes(4, "little"); m.flush(); print(n, flush=True)
"#;

#[test]
fn programs_go_on_and_lose_nothing_while_the_server_is_upgraded_again_and_again() {
    let test = "programs_go_on_and_lose_nothing_while_the_server_is_upgraded_again_and_again";
    let Some(kept) = Kept::new(test) else { return };
    let rounds = number_of("SLUICE_UPGRADE_ROUNDS", 6);
    let at = |name: &str| kept.dir().join(name);
    let programs = [copy(&kept, "one"), copy(&kept, "two")];
    let many = at("many");
    fs::create_dir(&many).expect("made");
    let expected: BTreeSet<_> = (0..2000).map(|number| format!("a-name-of-some-length-{number}")).collect();
    expected.iter().for_each(|name| drop(File::create(many.join(name)).expect("made")));
    fs::write(at("mapped"), vec![0; 65536]).expect("written");
    let databases = ["DELETE", "WAL"].map(|mode| {
        let mut program = python(SQLITE, &[&at(mode), Path::new(mode)]);
        let mut line = String::new();
        BufReader::new(program.stdout.take().expect("piped")).read_line(&mut line).expect("it has begun");
        program
    });
    let mut mapping = python(MAPPING, &[&at("mapped")]);
    let mut says = BufReader::new(mapping.stdout.take().expect("piped"));
    says.read_line(&mut String::new()).expect("it has mapped");
    let file = |name: &str| {
        File::options().create(true).truncate(true).read(true).write(true).open(at(name)).expect("made")
    };
    let (locked, deleted, unsynced) = (file("locked"), file("deleted"), file("unsynced"));
    fs::remove_file(at("deleted")).expect("removed");
    flock(&locked, FlockOperation::LockExclusive).expect("free");
    let (stop, written, longest) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let holder = holder_of(kept.dir());
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (stop, written, longest) = (&stop, &written, &longest);
            let dir = kept.dir();
            scope.spawn(move || {
                let at = |number: u64| dir.join(format!("{writer}-{}", number % 20));
                let mut number = 0;
                while !stop.load(Ordering::SeqCst) {
                    let (began, bytes) = (Instant::now(), vec![number as u8; 20_000]);
                    let mut file = File::create(at(number)).expect("made");
                    file.write_all(&bytes).expect("written");
                    if number % 2 == 0 {
                        file.sync_all().expect("durable, and nothing is lost");
                    }
                    assert!(fs::read(at(number)).expect("there") == bytes);
                    number += 1;
                    written.fetch_add(1, Ordering::SeqCst);
                    longest.fetch_max(began.elapsed().as_millis() as u64, Ordering::SeqCst);
                }
            });
        }
        for round in 0..rounds {
            let before = written.load(Ordering::SeqCst);
            until("files are written", || written.load(Ordering::SeqCst) > before + 3 + round % 5);
            let mut listing = fs::read_dir(&many).expect("listed");
            let name = |entry: io::Result<fs::DirEntry>| {
                entry.expect("an entry").file_name().into_string().expect("text")
            };
            let mut names: Vec<_> = listing.by_ref().take(500).map(name).collect();
            // Nobody has synchronised these.
            let bytes = format!("round {round}").into_bytes();
            deleted.write_all_at(&bytes, round * 100_000).expect("written");
            unsynced.write_all_at(&bytes, round * 100_000).expect("written");
            let new = at(&format!("new-{round}"));
            fs::write(&new, &bytes).expect("written");
            let program = &programs[round as usize % 2];
            let said = upgrade_by(program, kept.dir()).well();
            assert!(said.contains(": upgraded from "), "{said}");
            assert_eq!([server_of(kept.dir()), holder].map(program_of), [program.clone(), program.clone()]);
            assert_eq!(holder_of(kept.dir()), holder);
            assert_eq!(restarts(kept.dir()), Some(round + 1));
            assert!(stat_field(kept.dir(), "restart_cause").starts_with("upgraded from "));
            names.extend(listing.map(name));
            assert_eq!(names.len(), expected.len(), "round {round}: a name twice, or none");
            assert!(names.into_iter().collect::<BTreeSet<_>>() == expected, "round {round}");
            for file in [&deleted, &unsynced] {
                for earlier in 0..=round {
                    let bytes = format!("round {earlier}").into_bytes();
                    let mut is = vec![0; bytes.len()];
                    file.read_exact_at(&mut is, earlier * 100_000).expect("readable");
                    assert!(is == bytes, "round {round}: bytes of round {earlier}");
                }
            }
            assert!(fs::read(&new).expect("there") == bytes);
            for file in [&deleted, &unsynced] {
                file.sync_all().expect("nothing is lost, so that nobody is told");
            }
            assert_eq!(deleted.metadata().expect("there").nlink(), 0);
            let other = File::open(at("locked")).expect("open");
            let refused = flock(&other, FlockOperation::NonBlockingLockExclusive).expect_err("it is locked");
            assert_eq!(refused, rustix::io::Errno::WOULDBLOCK);
            mapping.stdin.as_mut().expect("piped").write_all(b"\n").expect("it lives");
            let mut line = String::new();
            says.read_line(&mut line).expect("it lives");
            assert_eq!(line.trim(), (4 * (round + 1)).to_string(), "round {round}");
        }
        stop.store(true, Ordering::SeqCst);
    });
    for mut program in databases {
        drop(program.stdin.take());
        let output = program.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
    }
    drop(mapping.stdin.take());
    assert!(mapping.wait().expect("it ends").success());
    let _ = writeln!(
        io::stderr(),
        "{rounds} upgrades: {} files written, the longest took {} ms",
        written.load(Ordering::SeqCst),
        longest.load(Ordering::SeqCst)
    );
    // A death after an upgrade is as one before: the next server is of the new program.
    kept.hit("-KILL");
    until("another server serves", || restarts(kept.dir()) == Some(rounds + 1));
    assert_eq!(program_of(server_of(kept.dir())), programs[(rounds as usize + 1) % 2]);
    assert_eq!(stat_field(kept.dir(), "restart_cause"), "signal 9 ended the server");
    drop((locked, deleted, unsynced));
    kept.end();
}

#[test]
fn a_new_program_that_cannot_serve_leaves_the_old_one_in_place() {
    let Some(kept) = Kept::new("a_new_program_that_cannot_serve_leaves_the_old_one_in_place") else { return };
    let dir = kept.dir();
    let file = File::create(dir.join("f")).expect("made");
    file.write_all_at(b"not synchronised", 0).expect("written");
    let (server, holder) = (server_of(dir), holder_of(dir));
    let open = |path: &str| File::open(path).expect("it is there");
    let told = |answer: &str, what: &str| {
        assert!(answer.starts_with("not upgraded, and the mount goes on as before: "), "{answer}");
        assert!(answer.contains(what), "{what}: {answer}");
    };
    told(
        &order(dir, Some(&open("/bin/false"))),
        "the new program cannot serve: the server ended with status 1",
    );
    let unknown = kept.scratch().0.join("text");
    fs::write(&unknown, "no program").expect("written");
    told(
        &order(dir, Some(&open(unknown.to_str().expect("text")))),
        "cannot start the serving process: Permission denied",
    );
    told(&order(dir, Some(&open("/"))), "cannot start the serving process: Permission denied");
    assert_eq!(order(dir, None), "the order came without a program\n");
    // Another version of what holder and server say.
    let mut bytes = fs::read(SLUICE).expect("it is there");
    let (ours, others) = (b"sluice holder protocol 1", b"sluice holder protocol 9");
    let places: Vec<usize> = memchr_all(&bytes, ours);
    assert!(!places.is_empty(), "the program has the name of its protocol");
    places.into_iter().for_each(|at| bytes[at..at + others.len()].copy_from_slice(others));
    let other = kept.scratch().0.join("other");
    fs::write(&other, bytes).expect("room");
    fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    let refused = upgrade_by(&other, dir).complaint(1);
    assert!(refused.contains("the holder of the mount speaks `"), "{refused}");
    assert!(refused.contains("`, and the new program `"), "{refused}");
    assert!(refused.contains("protocol 9`: unmount, and mount with the new program"), "{refused}");
    // A program that reads what the holder says, and is never prepared; meanwhile another upgrade is refused.
    let hanging = std::thread::scope(|scope| {
        let hanging = scope.spawn(|| order(dir, Some(&open("/usr/bin/xargs"))));
        until("a second program runs", || processes_of(dir).len() == 3);
        let second = sluice(["upgrade".as_ref(), dir.as_os_str()]).complaint(1);
        assert!(second.contains("another upgrade of this mount is under way"), "{second}");
        // The mount is served meanwhile.
        assert_eq!(fs::read(dir.join("f")).expect("served"), b"not synchronised");
        hanging.join().expect("no panic")
    });
    told(&hanging, "the new program was not ready within 10 s");
    until("the program that hung is gone", || processes_of(dir).len() == 2);
    // A call that takes long is not cut off, and its program hears of nothing.
    sluice(["fault".as_ref(), dir.as_os_str(), "fsync:delay=6000:times=1".as_ref()]).well();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| file.sync_all());
        std::thread::sleep(Duration::from_millis(500));
        let refused = sluice(["upgrade".as_ref(), dir.as_os_str()]).complaint(1);
        assert!(refused.contains("a call in the mount does not come to its end: try again"), "{refused}");
        assert_eq!(fs::read(dir.join("f")).expect("served"), b"not synchronised");
        slow.join().expect("no panic").expect("durable");
    });
    // A store that cannot be written, at the push before and at the one that counts.
    sluice(["fault".as_ref(), dir.as_os_str(), "fsync:EIO:times=2".as_ref()]).well();
    let refused = sluice(["upgrade".as_ref(), dir.as_os_str()]).complaint(1);
    assert!(
        refused.contains("the store cannot be written (") && refused.contains("): see sluice stat"),
        "{refused}"
    );
    until("its successor is gone", || processes_of(dir).len() == 2);
    // A mount that ends meanwhile.
    let ended = std::thread::scope(|scope| {
        let hanging = scope.spawn(|| order(dir, Some(&open("/usr/bin/xargs"))));
        until("a second program runs", || processes_of(dir).len() == 3);
        kill("-KILL", server);
        hanging.join().expect("no panic")
    });
    told(&ended, "the server ended meanwhile: signal 9 ended the server");
    until("the next server answers", || restarts(dir) == Some(1));
    assert_eq!(stat_field(dir, "restart_cause"), "signal 9 ended the server");
    let server = server_of(dir);
    assert_eq!((server_of(dir), holder_of(dir)), (server, holder));
    assert_eq!(restarts(dir), Some(1));
    file.sync_all().expect("nothing is lost");
    assert!(sluice(["upgrade".as_ref(), dir.as_os_str()]).well().contains(": upgraded from "));
    assert_eq!(fs::read(dir.join("f")).expect("there"), b"not synchronised");
    drop(file);
    kept.end();
}

fn memchr_all(bytes: &[u8], wanted: &[u8]) -> Vec<usize> {
    let ends = bytes.len().saturating_sub(wanted.len());
    (0..=ends).filter(|at| bytes[*at] == wanted[0] && bytes[*at..].starts_with(wanted)).collect()
}

#[test]
fn a_mount_that_cannot_be_upgraded_says_why() {
    let test = "a_mount_that_cannot_be_upgraded_says_why";
    let refused = |dir: &Path| sluice(["upgrade".as_ref(), dir.as_os_str()]).complaint(1);
    assert!(refused(Path::new("/proc")).contains("not in a sluicefs mount"));
    assert!(refused(Path::new("/no/such/directory")).contains("No such file or directory"));
    assert!(sluice(["upgrade"]).status == Some(2));
    let Some(memory) = Mounted::new(test, "log=off") else { return };
    assert!(refused(memory.dir()).contains("what is in memory ends with its server"));
    drop(memory);
    let Some(kept) = Kept::new(test) else { return };
    let dir = kept.dir();
    let holder = holder_of(dir);
    let mut other = Command::new(SLUICE);
    let other = other.arg("upgrade").arg(dir).uid(65_534).gid(65_534).stdin(Stdio::null()).output();
    match other {
        Ok(output) => {
            let said = Ran::from(output).complaint(1);
            assert!(said.contains("only root and the user who serves the mount may ask"), "{said}");
        }
        Err(error) => skipped(test, &format!("another user cannot run the program: {error}")),
    }
    // A stream that is under way ends with its server, so that it is waited for.
    sluice(["snapshot", "create"].map(AsRef::as_ref).into_iter().chain([dir.as_os_str(), "s".as_ref()]))
        .well();
    fs::write(dir.join("large"), vec![7; 8 << 20]).expect("written");
    sluice(["snapshot", "create"].map(AsRef::as_ref).into_iter().chain([dir.as_os_str(), "large".as_ref()]))
        .well();
    let mut send = Command::new(SLUICE);
    let mut send =
        send.arg("send").arg(dir.join(".snapshots/large")).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut stream = send.stdout.take().expect("piped");
    stream.read_exact(&mut [0; 8]).expect("it has begun");
    assert!(refused(dir).contains("a stream is sent or received"));
    io::copy(&mut stream, &mut io::sink()).expect("it goes on");
    assert!(send.wait().expect("it ends").success());
    sluice(["upgrade".as_ref(), dir.as_os_str()]).well();
    // Without its holder.
    kill("-KILL", holder);
    until("the holder has ended", || processes_of(dir).len() == 1);
    assert!(refused(dir).contains("the holder of the mount has ended"));
    kept.end();
    kept.stored().mount("holder=on");
    let told = std::thread::scope(|scope| {
        let hanging = scope.spawn(|| order(dir, Some(&File::open("/usr/bin/xargs").expect("it is there"))));
        until("a second program runs", || processes_of(dir).len() == 3);
        kill("-TERM", processes_of(dir)[0]);
        hanging.join().expect("no panic")
    });
    assert!(told.contains("the mount was told to end"), "{told}");
    until("nothing is left", || processes_of(dir).is_empty());
    kept.stored().mount("holder=off");
    assert!(refused(dir).contains("no holder keeps this mount"));
    kept.stored().umount();
}

#[test]
fn a_kill_at_any_step_of_an_upgrade_leaves_a_mount_that_serves() {
    let test = "a_kill_at_any_step_of_an_upgrade_leaves_a_mount_that_serves";
    if !can_mount(test) {
        return;
    }
    let Some(kept) = Kept::new(test) else { return };
    let rounds = number_of("SLUICE_UPGRADE_KILLS", 16);
    let dir = kept.dir();
    let (stop, written, tolds) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (mut upgraded, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        let (stop, written, tolds) = (&stop, &written, &tolds);
        let writer = scope.spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                let number = written.load(Ordering::SeqCst);
                let write = || {
                    let mut file = File::create(dir.join("f"))?;
                    file.write_all(&number.to_le_bytes())?;
                    file.sync_all()?;
                    File::open(dir)?.sync_all()
                };
                match write() {
                    Ok(()) => {
                        assert_eq!(fs::read(dir.join("f")).expect("there"), number.to_le_bytes());
                        written.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(error) if tells_loss(&error) => drop(tolds.fetch_add(1, Ordering::SeqCst)),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        for round in 0..rounds {
            let before = written.load(Ordering::SeqCst);
            until("a file is written", || written.load(Ordering::SeqCst) > before || writer.is_finished());
            until("there is a server", || !servers(dir).is_empty());
            let server = servers(dir)[0];
            let mut command = Command::new(SLUICE);
            command
                .arg("upgrade")
                .arg(dir)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let command = command.spawn().expect("it starts");
            // From the start of the command to the end of the upgrade.
            std::thread::sleep(Duration::from_millis(17 * (round * 7 % 16)));
            let next = servers(dir).into_iter().find(|pid| *pid != server);
            let victim = [Some(server), next, Some(command.id())][round as usize % 3];
            if let Some(victim) = victim {
                let _ =
                    Command::new("kill").args(["-KILL", &victim.to_string()]).stderr(Stdio::null()).status();
            }
            match command.wait_with_output().expect("it ends").status.code() {
                Some(0) => upgraded += 1,
                Some(1) => refused += 1,
                _ => {}
            }
            until("the mount answers", || restarts(dir).is_some());
        }
        stop.store(true, Ordering::SeqCst);
        writer.join().expect("no ENOTCONN, no wrong byte");
    });
    let _ = writeln!(
        io::stderr(),
        "{rounds} kills: {upgraded} upgrades went well, {refused} did not; {} files written, {} told of a loss",
        written.load(Ordering::SeqCst),
        tolds.load(Ordering::SeqCst)
    );
    // The holder, at any step: its server or the next one goes on.
    let last = written.load(Ordering::SeqCst) - 1;
    for round in 0..rounds / 2 {
        let mut command = Command::new(SLUICE);
        let command = command.arg("upgrade").arg(dir).stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        let holder = processes_of(dir)[0];
        std::thread::sleep(Duration::from_millis(29 * (round * 3 % 8)));
        kill("-KILL", holder);
        assert_eq!(fs::read(dir.join("f")).expect("it is served"), last.to_le_bytes(), "round {round}");
        command.expect("it starts").wait_with_output().expect("it ends");
        until("one server is left", || processes_of(dir).len() == 1);
        fs::write(dir.join("g"), "g").expect("it is served");
        File::open(dir.join("g")).expect("there").sync_all().expect("durable");
        kept.end();
        kept.stored().mount("holder=on");
    }
    kept.end();
}
