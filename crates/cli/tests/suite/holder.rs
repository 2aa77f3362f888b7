//! A mount outlives its server: the server of a store is killed under programs, again and again.

use crate::harness::{
    SLUICE, Scratch, can_mount, is_mounted, kernel, kill, processes_of, server_of, skipped, sluice,
    stat_field, umount, until,
};
use crate::store::Stored;
use rustix::fs::{FlockOperation, flock};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const EIO: i32 = 5;
const ENOTCONN: i32 = 107;
const ESTALE: i32 = 116;

/// A mounted store whose mount has a holder.
pub(crate) struct Kept {
    stored: Stored,
    scratch: Scratch,
}

impl Kept {
    /// None, said loudly, where that cannot be.
    pub(crate) fn new(test: &str) -> Option<Kept> {
        if !can_mount(test) {
            return None;
        }
        if kernel() < (6, 16) {
            skipped(test, "a mount outlives its server from Linux 6.16 on");
            return None;
        }
        let scratch = Scratch::new();
        let stored = Stored::new(&scratch);
        stored.mount("holder=on");
        Some(Kept { stored, scratch })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.stored.dir
    }

    pub(crate) fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    pub(crate) fn stored(&self) -> &Stored {
        &self.stored
    }

    /// Ends the server by a signal.
    pub(crate) fn hit(&self, signal: &str) {
        let server = Cell::new(None);
        until("there is a server", || {
            server.set(server_of_if_any(self.dir()));
            server.get().is_some()
        });
        // It may have ended meanwhile.
        let server = server.get().unwrap_or_default().to_string();
        let _ = Command::new("kill").args([signal, &server]).stderr(Stdio::null()).status();
    }

    /// Ends the server, and waits until the next one serves.
    fn replace(&self) {
        let before = restarts(self.dir());
        self.hit("-KILL");
        until("another server serves", || restarts(self.dir()) > before);
    }

    /// Unmounts: nothing is left running, and the store is whole.
    pub(crate) fn end(&self) {
        umount(self.dir());
        self.ended();
        self.stored.assert_clean();
    }

    pub(crate) fn force_umount(&self) {
        sluice(["umount".as_ref(), "--force".as_ref(), self.dir().as_os_str()]);
    }

    fn ended_processes(&self) {
        until("no process is left", || processes_of(self.dir()).is_empty());
    }

    fn ended(&self) {
        self.ended_processes();
        assert!(!is_mounted(self.dir()));
    }
}

impl Drop for Kept {
    /// A test that failed leaves no process behind: the holder first.
    fn drop(&mut self) {
        if is_mounted(self.dir()) {
            self.force_umount();
        }
        processes_of(self.dir()).into_iter().for_each(|pid| {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status();
        });
    }
}

/// How often the server was replaced; none while nobody answers.
pub(crate) fn restarts(dir: &Path) -> Option<u64> {
    let ran = sluice(["stat".as_ref(), "--json".as_ref(), dir.as_os_str()]);
    serde_json::from_str::<serde_json::Value>(&ran.stdout).ok()?["restarts"].as_u64()
}

/// Whether a call may fail like that when a server has died: something that was not durable is lost.
pub(crate) fn tells_loss(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(EIO | ESTALE))
}

pub(crate) fn python(script: &str, arguments: &[&Path]) -> Child {
    let mut python = Command::new("python3");
    python
        .args(["-c", script])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    python.spawn().expect("python3 starts")
}

#[test]
fn writers_that_synchronise_lose_nothing_when_the_server_is_killed_again_and_again() {
    let test = "writers_that_synchronise_lose_nothing_when_the_server_is_killed_again_and_again";
    let Some(kept) = Kept::new(test) else { return };
    let rounds: u64 =
        std::env::var("SLUICE_HOLD_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(12);
    const WRITERS: u64 = 3;
    let contents = |writer: u64, number: u64| {
        let len = 100 + (number * 7919 + writer) as usize % 50_000;
        vec![(number * 3 + writer) as u8; len]
    };
    let name = |writer: u64, number: u64| kept.dir().join(format!("{writer}-{}", number % 40));
    let (stop, tolds) = (AtomicBool::new(false), AtomicU64::new(0));
    let durable: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let longest = AtomicU64::new(0);
    let write = |writer: u64, number: u64| -> io::Result<()> {
        let path = name(writer, number);
        let bytes = contents(writer, number);
        let mut file = File::create(&path)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        // The name, too.
        File::open(kept.dir())?.sync_all()?;
        assert!(fs::read(&path)? == bytes, "{writer}: {number} is not what was made durable");
        Ok(())
    };
    std::thread::scope(|scope| {
        for (writer, durable) in (0..).zip(&durable) {
            let (write, stop, tolds, longest) = (&write, &stop, &tolds, &longest);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let number = durable.load(Ordering::SeqCst);
                    let began = Instant::now();
                    match write(writer, number) {
                        Ok(()) => drop(durable.fetch_add(1, Ordering::SeqCst)),
                        Err(error) if tells_loss(&error) => drop(tolds.fetch_add(1, Ordering::SeqCst)),
                        Err(error) => panic!("writer {writer}: {error}"),
                    }
                    longest.fetch_max(began.elapsed().as_millis() as u64, Ordering::SeqCst);
                }
            });
        }
        for round in 0..rounds {
            let written = || durable.iter().map(|count| count.load(Ordering::SeqCst)).sum::<u64>();
            let before = written();
            until("files are written", || written() > before + (round * 5) % 17);
            kept.hit(["-KILL", "-KILL", "-ABRT", "-SEGV"][round as usize % 4]);
        }
        stop.store(true, Ordering::SeqCst);
    });
    let check = || {
        for (writer, durable) in (0..).zip(&durable) {
            let durable = durable.load(Ordering::SeqCst);
            // The one after the last may have taken the place of the oldest.
            for number in durable.saturating_sub(39)..durable {
                let is = fs::read(name(writer, number)).expect("it was made durable");
                assert!(is == contents(writer, number), "file {number} of {writer} is wrong");
            }
        }
    };
    check();
    assert!(durable.iter().all(|count| count.load(Ordering::SeqCst) > rounds / 4));
    let _ = writeln!(
        io::stderr(),
        "{rounds} kills: {} files written, {} told of a loss, the longest file took {} ms",
        durable.iter().map(|count| count.load(Ordering::SeqCst)).sum::<u64>(),
        tolds.load(Ordering::SeqCst),
        longest.load(Ordering::SeqCst)
    );
    kept.end();
    kept.stored.mount("holder=off");
    check();
    kept.stored.umount();
}

#[test]
fn what_was_written_and_not_synchronised_is_there_or_fsync_says_that_it_is_lost_once() {
    let Some(kept) =
        Kept::new("what_was_written_and_not_synchronised_is_there_or_fsync_says_that_it_is_lost_once")
    else {
        return;
    };
    let path = kept.dir().join("f");
    let mut file = File::create(&path).expect("made");
    file.write_all(b"durable").expect("written");
    file.sync_all().expect("durable");
    let other = File::create(kept.dir().join("other")).expect("made");
    other.sync_all().expect("durable");
    let mut lost = 0;
    for round in 0..10 {
        file.set_len(7).expect("cut");
        file.sync_all().expect("durable");
        file.seek(SeekFrom::Start(7)).expect("a place");
        file.write_all(b", lost").expect("written");
        // A program that changed nothing.
        let mut watcher = python(
            "import os,sys; f=os.open(sys.argv[1],os.O_RDWR); print(flush=True); input(); os.fsync(f)",
            &[&path],
        );
        BufReader::new(watcher.stdout.take().expect("piped"))
            .read_line(&mut String::new())
            .expect("it has the file");
        kept.replace();
        // Whatever file this process synchronises first, it hears of what it lost.
        let told = if round % 2 == 0 { other.sync_all() } else { file.sync_all() };
        let is = fs::read(&path).expect("there");
        watcher.stdin.take().expect("piped").write_all(b"\n").expect("it lives");
        let mut said = String::new();
        watcher.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        let watched = watcher.wait().expect("it ends").success() || !said.contains("Errno 5");
        match told {
            Ok(()) => {
                assert_eq!(is, b"durable, lost", "round {round}: fsync said that all is durable");
                assert!(watched, "{said}");
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(EIO), "round {round}");
                assert_eq!(is, b"durable", "round {round}");
                assert!(!watched, "round {round}: the file's other user was not told");
                lost += 1;
                if round % 2 == 0 {
                    assert_eq!(file.sync_all().expect_err("the file itself").raw_os_error(), Some(EIO));
                }
            }
        }
        for file in [&file, &other] {
            file.sync_all().expect("once");
        }
    }
    assert!(lost > 0, "nothing was lost in ten rounds: the test is too slow");
    drop((file, other));
    kept.end();
}

#[test]
fn names_that_are_lost_are_gone_for_the_kernel_too() {
    let Some(kept) = Kept::new("names_that_are_lost_are_gone_for_the_kernel_too") else { return };
    let at = |name: &str| kept.dir().join(name);
    for name in ["stays", "removed", "moved"] {
        fs::write(at(name), name).expect("written");
    }
    File::open(kept.dir()).expect("open").sync_all().expect("durable");
    let mut lost = 0;
    for _ in 0..5 {
        fs::write(at("new"), "new").expect("written");
        let new = File::open(at("new")).expect("made");
        fs::remove_file(at("removed")).expect("removed");
        fs::rename(at("moved"), at("elsewhere")).expect("moved");
        kept.replace();
        let names = || -> BTreeSet<OsString> {
            fs::read_dir(kept.dir())
                .expect("listed")
                .map(|entry| entry.expect("an entry").file_name())
                .collect()
        };
        let told = File::open(kept.dir()).expect("open").sync_all();
        let [before, after] = [["moved", "removed", "stays"], ["elsewhere", "new", "stays"]]
            .map(|names| names.iter().map(OsString::from).collect::<BTreeSet<_>>());
        if told.is_ok() {
            assert_eq!(names(), after);
            fs::remove_file(at("new")).expect("there");
            fs::rename(at("elsewhere"), at("moved")).expect("there");
            fs::write(at("removed"), "removed").expect("written");
            File::open(kept.dir()).expect("open").sync_all().expect("durable");
            continue;
        }
        lost += 1;
        assert_eq!(names(), before);
        assert_eq!(fs::metadata(at("new")).expect_err("lost").kind(), ErrorKind::NotFound);
        assert_eq!(fs::metadata(at("elsewhere")).expect_err("lost").kind(), ErrorKind::NotFound);
        assert_eq!(fs::read(at("moved")).expect("it is back"), b"moved");
        assert_eq!(fs::read(at("removed")).expect("it is back"), b"removed");
        // The open file was never durable.
        let error = new.sync_all().expect_err("lost");
        assert!(tells_loss(&error), "{error}");
        let error = new.read_at(&mut [0; 3], 0).expect_err("lost");
        assert!(tells_loss(&error), "{error}");
        // A new inode does not get its number.
        let number = new.metadata().map(|metadata| metadata.ino());
        fs::write(at("another"), "another").expect("written");
        assert!(number.is_err() || number.ok() != Some(fs::metadata(at("another")).expect("there").ino()));
        fs::remove_file(at("another")).expect("removed");
        File::open(kept.dir()).expect("open").sync_all().expect("told once");
    }
    assert!(lost > 0, "nothing was lost in five rounds: the test is too slow");
    kept.end();
}

#[test]
fn open_and_deleted_files_listings_mappings_and_locks_outlive_the_server() {
    let Some(kept) = Kept::new("open_and_deleted_files_listings_mappings_and_locks_outlive_the_server")
    else {
        return;
    };
    let at = |name: &str| kept.dir().join(name);
    let many = at("many");
    fs::create_dir(&many).expect("made");
    let expected: BTreeSet<OsString> =
        (0..3000).map(|number| format!("a-name-of-some-length-{number}").into()).collect();
    expected.iter().for_each(|name| drop(File::create(many.join(name)).expect("made")));
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at / 7) as u8).collect();
    for name in ["open", "deleted", "mapped"] {
        fs::write(at(name), &bytes).expect("written");
    }
    let open = File::options().read(true).write(true).open(at("open")).expect("open");
    let deleted = File::options().read(true).write(true).open(at("deleted")).expect("open");
    let lone = fs::metadata(at("open")).expect("there").ino();
    File::open(kept.dir()).expect("open").sync_all().expect("durable");
    fs::remove_file(at("deleted")).expect("removed");
    File::open(kept.dir()).expect("open").sync_all().expect("durable");
    flock(&open, FlockOperation::LockExclusive).expect("free");
    let mut mapping = python(
        "import mmap,sys,zlib; f=open(sys.argv[1],'rb'); m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ); print(m[0],flush=True)\n\
         for line in sys.stdin: print(zlib.crc32(m[:]),flush=True)",
        &[&at("mapped")],
    );
    let mut says = BufReader::new(mapping.stdout.take().expect("piped"));
    says.read_line(&mut String::new()).expect("it has mapped");
    for round in 0..3 {
        let mut listing = fs::read_dir(&many).expect("listed");
        let mut names: Vec<OsString> =
            listing.by_ref().take(500).map(|entry| entry.expect("an entry").file_name()).collect();
        kept.replace();
        names.extend(listing.map(|entry| entry.expect("an entry").file_name()));
        assert_eq!(names.len(), expected.len(), "round {round}: a name twice, or none");
        assert!(names.into_iter().collect::<BTreeSet<_>>() == expected, "round {round}");
        for (name, file) in [("open", &open), ("deleted", &deleted)] {
            let mut is = vec![0; bytes.len()];
            file.read_exact_at(&mut is, 0).expect("readable");
            assert!(is == bytes, "round {round}: {name}");
        }
        assert_eq!(deleted.metadata().expect("there").nlink(), 0);
        assert_eq!(open.metadata().expect("there").ino(), lone);
        let other = File::open(at("open")).expect("open");
        let refused = flock(&other, FlockOperation::NonBlockingLockExclusive).expect_err("it is locked");
        assert_eq!(refused, rustix::io::Errno::WOULDBLOCK);
        mapping.stdin.as_mut().expect("piped").write_all(b"\n").expect("it lives");
        let mut sum = String::new();
        says.read_line(&mut sum).expect("it lives");
        assert_eq!(sum.trim().parse::<u32>().expect("a number"), crc32(&bytes), "round {round}");
        // They can be written, and made durable, by their old descriptors.
        open.write_all_at(&bytes[..10], 100_000).expect("written");
        open.write_all_at(&bytes[100_000..100_010], 100_000).expect("written");
        open.sync_all().expect("durable");
    }
    drop(mapping.stdin.take());
    mapping.wait().expect("it ends");
    flock(&open, FlockOperation::Unlock).expect("ours");
    drop((open, deleted));
    kept.end();
}

/// As zlib has it.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(
            sum ^ u32::from(*byte),
            |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 },
        )
    })
}

#[test]
fn a_server_that_is_killed_while_it_begins_is_replaced_and_what_happened_is_told() {
    let Some(kept) =
        Kept::new("a_server_that_is_killed_while_it_begins_is_replaced_and_what_happened_is_told")
    else {
        return;
    };
    fs::write(kept.dir().join("f"), "f").expect("written");
    File::open(kept.dir().join("f")).expect("open").sync_all().expect("durable");
    let holder = stat_field(kept.dir(), "holder");
    for _ in 0..3 {
        let mut last = server_of(kept.dir());
        kill("-KILL", last);
        // The next one, as soon as it is there.
        until("the next server", || server_of_if_any(kept.dir()).is_some_and(|server| server != last));
        last = server_of(kept.dir());
        let _ = Command::new("kill").args(["-KILL", &last.to_string()]).stderr(Stdio::null()).status();
        assert_eq!(fs::read(kept.dir().join("f")).expect("it waits for a server"), b"f");
    }
    until("the last one answers questions", || restarts(kept.dir()) >= Some(6));
    let names = kept.dir().as_os_str();
    let stat = sluice(["stat".as_ref(), names]).well();
    assert!(stat.contains("restarts") && stat.contains("the last server's end"), "{stat}");
    assert_eq!(stat_field(kept.dir(), "holder"), holder);
    assert_eq!(stat_field(kept.dir(), "restart_cause"), "signal 9 ended the server");
    let listed: serde_json::Value = serde_json::from_str(&sluice(["list", "--json"]).well()).expect("JSON");
    let row =
        listed.as_array().expect("rows").iter().find(|row| row["directory"] == names.to_str().expect("text"));
    assert_eq!(row.expect("it is mounted")["holder"].to_string(), holder);
    assert!(sluice(["list"]).well().contains(&holder));
    kept.end();
}

fn server_of_if_any(dir: &Path) -> Option<u32> {
    processes_of(dir).into_iter().find(|pid| {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("--held"))
    })
}

#[test]
fn the_holder_gives_up_when_no_server_can_begin_and_ends_when_the_mount_does() {
    let Some(kept) = Kept::new("the_holder_gives_up_when_no_server_can_begin_and_ends_when_the_mount_does")
    else {
        return;
    };
    fs::write(kept.dir().join("f"), "f").expect("written");
    File::open(kept.dir().join("f")).expect("open").sync_all().expect("durable");
    // No server opens a store without this file.
    let (part, away) = (kept.stored.store.join("super"), kept.stored.store.join("away"));
    // Unmounted while servers fail.
    for by in ["umount", SLUICE] {
        fs::rename(&part, &away).expect("moved");
        kept.hit("-KILL");
        std::thread::sleep(Duration::from_millis(300));
        let mut unmount = Command::new(by);
        let unmount = if by == SLUICE { unmount.arg("umount") } else { &mut unmount };
        let unmounted = unmount.arg(kept.dir()).output().expect("it starts");
        assert!(!is_mounted(kept.dir()), "{by}: {unmounted:?}");
        kept.ended();
        fs::rename(&away, &part).expect("moved back");
        kept.stored.assert_clean();
        kept.stored.mount("holder=on");
    }
    umount(kept.dir());
    kept.ended();
    // One in the foreground says why.
    let mut holder = Command::new(SLUICE);
    holder.args(["mount", "--foreground", "-o", "holder=on"]).arg(&kept.stored.store).arg(kept.dir());
    let holder = holder.stderr(Stdio::piped()).spawn().expect("sluice starts");
    until("a server serves", || restarts(kept.dir()) == Some(0));
    fs::rename(&part, &away).expect("moved");
    kept.hit("-KILL");
    // The call that waits then is aborted.
    fs::metadata(kept.dir().join("none")).expect_err("nobody serves");
    let error = fs::metadata(kept.dir().join("none")).expect_err("nobody serves");
    assert_eq!(error.raw_os_error(), Some(ENOTCONN), "{error}");
    let ended = holder.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("no server can go on with the mount, and calls there fail now"), "{said}");
    assert!(!ended.status.success());
    kept.ended_processes();
    fs::rename(&away, &part).expect("moved back");
    sluice(["umount".as_ref(), kept.dir().as_os_str()]);
    kept.stored.assert_clean();
    kept.stored.mount("holder=on");
    assert_eq!(fs::read(kept.dir().join("f")).expect("durable"), b"f");
    // A signal to the holder, and one to the server, end the mount as it should.
    kill("-TERM", stat_field(kept.dir(), "holder").parse().expect("a number"));
    until("it is unmounted", || !is_mounted(kept.dir()));
    kept.ended();
    kept.stored.mount("holder=on");
    kept.hit("-TERM");
    until("it is unmounted", || !is_mounted(kept.dir()));
    kept.ended();
    kept.stored.assert_clean();
    // The holder alone may die: then the server is as one without.
    kept.stored.mount("holder=on");
    kill("-KILL", stat_field(kept.dir(), "holder").parse().expect("a number"));
    assert_eq!(fs::read(kept.dir().join("f")).expect("it serves"), b"f");
    kept.end();
}

#[test]
fn a_holder_is_small_sleeps_and_is_there_where_it_can_be() {
    let Some(kept) = Kept::new("a_holder_is_small_sleeps_and_is_there_where_it_can_be") else { return };
    let holder = stat_field(kept.dir(), "holder");
    let read = |file: &str| fs::read_to_string(format!("/proc/{holder}/{file}")).expect("it lives");
    let figure = |file: &str, name: &str| {
        let text = read(file);
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        line.split_whitespace().next().and_then(|value| value.parse::<u64>().ok()).expect("a number")
    };
    let private = figure("smaps_rollup", "Private_Dirty:") + figure("smaps_rollup", "Private_Clean:");
    let _ = writeln!(io::stderr(), "the holder has {private} kB of its own");
    assert_eq!(figure("status", "Threads:"), 1);
    let switches = || figure("status", "voluntary_ctxt_switches:");
    let before = switches();
    for number in 0..200 {
        fs::write(kept.dir().join(format!("{number}")), "bytes").expect("written");
    }
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(switches(), before, "it has woken");
    kept.end();
    // It is the default of a mount in the background, and of no other.
    kept.stored.mount("async");
    assert_eq!(processes_of(kept.dir()).len(), 2);
    kept.stored.umount();
    kept.ended();
    kept.stored.mount("locks=sluice");
    assert_eq!(processes_of(kept.dir()).len(), 1);
    kept.stored.umount();
    let refused = |options: &str, places: &[&Path]| {
        let words = ["mount".as_ref(), "-o".as_ref(), options.as_ref()];
        sluice(words.into_iter().chain(places.iter().map(|place| place.as_os_str()))).complaint(2)
    };
    let both = [kept.stored.store.as_path(), kept.dir()];
    assert!(refused("holder=on", &[kept.dir()]).contains("what is in memory ends with its server"));
    assert!(refused("holder=on,locks=sluice", &both).contains("not with locks=sluice"));
    assert!(refused("holder=on,volatile", &both).contains("not with volatile"));
    assert!(refused("holder=on,track", &both).contains("not with track"));
}
