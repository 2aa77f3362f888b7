//! How a mount begins and ends.

use crate::harness::server::{Server, serve_if_asked};
use crate::harness::{Fixture, Peer, can_mount, eventually, fresh_dir, is_mounted, skipped};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit};
use sluice_fuse::{Ended, Mount, MountError, control};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, LockClass, Mutex, mpsc, thread};
use sluice_vfs::{Cred, Fs, Observer, OpenFlags, Options, Superblock};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

static WAITERS: LockClass = LockClass::new("test.lifecycle.waiters");

#[test]
fn a_mount_leaves_nothing_behind() {
    let Some(fixture) = Fixture::new("") else { return };
    let dir = fixture.dir().to_path_buf();
    assert!(is_mounted(&dir));
    fs::create_dir(fixture.path("d")).expect("writable");
    fs::write(fixture.path("d/f"), "kept").expect("writable");
    let superblock = fixture.fs.superblock().clone();
    fixture.finish();
    assert!(!is_mounted(&dir));
    // The file system outlives its mount.
    let again = Fixture::of(&superblock, "");
    assert_eq!(fs::read(again.path("d/f")).expect("it is there"), b"kept");
    again.finish();
}

#[test]
fn dropping_a_mount_in_a_panic_unmounts() {
    let Some(mut fixture) = Fixture::new("") else { return };
    let mount = fixture.take_mount();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let _mount = mount;
        panic!("on purpose, while mounted");
    }));
    assert!(outcome.is_err());
    assert!(!is_mounted(fixture.dir()));
}

#[test]
fn a_mount_in_use_is_refused_and_can_be_detached() {
    let Some(mut fixture) = Fixture::new("") else { return };
    fs::write(fixture.path("f"), "still here").expect("writable");
    let mut open = File::open(fixture.path("f")).expect("it is there");
    assert!(matches!(fixture.mount().unmount(), Err(MountError::Busy(_))));
    assert!(is_mounted(fixture.dir()));
    let mount = fixture.take_mount();
    mount.unmount_lazily().expect("use does not matter");
    assert!(!is_mounted(fixture.dir()));
    let mut contents = String::new();
    open.read_to_string(&mut contents).expect("it is open");
    assert_eq!(contents, "still here");
    drop(open);
    mount.wait();
    assert_eq!(mount.known_inodes(), 1);
}

#[test]
fn somebody_else_may_unmount() {
    let Some(mut fixture) = Fixture::new("") else { return };
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can unmount by system call");
    }
    rustix::mount::unmount(fixture.dir(), rustix::mount::UnmountFlags::empty()).expect("nothing uses it");
    let mount = fixture.take_mount();
    mount.wait();
    mount.unmount().expect("there is nothing to do");
}

#[test]
fn a_panic_in_a_request_is_an_io_error_and_the_mount_goes_on() {
    struct Fragile;
    impl Observer for Fragile {
        fn entry_changed(&self, _: u64, name: &[u8], _: Option<u64>) {
            assert_ne!(name, b"boom", "on purpose, in a request");
        }
        fn attributes_changed(&self, _: u64) {}
        fn data_changed(&self, _: u64, _: u64, _: u64) {}
    }
    let Some(fixture) = Fixture::new("threads=1") else { return };
    let observer = fixture.fs.superblock().observe(Arc::new(Fragile)).expect("nobody is alone");
    // More panics than there are workers, those that stand by counted.
    for dir in 0..10 {
        let dir = fixture.path(&dir.to_string());
        fs::create_dir(&dir).expect("writable");
        let error = fs::create_dir(dir.join("boom")).expect_err("the request panics");
        assert_eq!(error.raw_os_error(), Some(5), "{error}");
    }
    fs::write(fixture.path("fine"), "fine").expect("the workers live");
    assert_eq!(fs::read(fixture.path("fine")).expect("it is there"), b"fine");
    fixture.fs.superblock().unobserve(observer);
    fixture.finish();
}

#[test]
fn calls_that_wait_in_the_server_hold_up_no_others() {
    const WAITING: usize = 4;
    struct Slow {
        arrived: mpsc::Sender<()>,
        may_go: Mutex<mpsc::Receiver<()>>,
    }
    impl Observer for Slow {
        fn entry_changed(&self, _: u64, name: &[u8], _: Option<u64>) {
            if name == b"slow" {
                self.arrived.send(()).expect("the test waits");
                // Its sender goes when all have arrived, or the test has failed.
                let _ = self.may_go.lock().recv();
            }
        }
        fn attributes_changed(&self, _: u64) {}
        fn data_changed(&self, _: u64, _: u64, _: u64) {}
    }
    let Some(fixture) = Fixture::new("threads=2") else { return };
    let (arrived, has_arrived) = mpsc::channel();
    let (release, may_go) = mpsc::channel();
    let slow = Slow { arrived, may_go: Mutex::with_class(&WAITERS, may_go) };
    let observer = fixture.fs.superblock().observe(Arc::new(slow)).expect("nobody is alone");
    thread::scope(|scope| {
        // The kernel lets one call at a time into a directory.
        for dir in 0..WAITING {
            let dir = fixture.path(&dir.to_string());
            fs::create_dir(&dir).expect("writable");
            scope.spawn(move || fs::create_dir(dir.join("slow")).expect("it gets there"));
        }
        let release = release;
        for waiting in 0..WAITING {
            has_arrived
                .recv_timeout(Duration::from_secs(60))
                .unwrap_or_else(|_| panic!("only {waiting} are served"));
        }
        fs::write(fixture.path("fine"), "fine").expect("a worker is free");
        drop(release);
    });
    fixture.fs.superblock().unobserve(observer);
    fixture.finish();
}

#[test]
fn a_client_killed_at_work_leaves_a_sound_tree() {
    for options in crate::harness::LOCK_MODES {
        let Some(fixture) = Fixture::new(options) else { return };
        fs::create_dir(fixture.path("d")).expect("writable");
        for round in 0..10_u64 {
            let dir = fixture.path("d").display().to_string();
            let Some(mut peer) = Peer::start(&["hammer", &dir]) else { return };
            assert_eq!(peer.line(), "asking");
            thread::sleep(sluice_sync::time::Duration::from_millis(7 * round));
            peer.kill();
        }
        fs::remove_dir_all(fixture.path("d")).expect("the mount works");
        fixture.finish();
    }
}

#[test]
fn the_kernel_collects_writes_only_where_nobody_else_can_write() {
    let Some(fixture) = Fixture::new("") else { return };
    let superblock = fixture.fs.superblock().clone();
    let dir = fresh_dir();
    let mount = |superblock: &Arc<Superblock>, writeback, dedicated| {
        let options = Mount::builder().writeback(writeback).dedicated(dedicated);
        options.mount(superblock, &dir)
    };
    let refusal = |superblock, writeback, dedicated| {
        let line = mount(superblock, writeback, dedicated).expect_err("it is refused").to_string();
        assert!(!is_mounted(&dir) && !line.contains('\n'), "{line}");
        line
    };
    // This process could write by calls. It does not, from here on.
    assert!(refusal(&superblock, true, false).contains("sets `dedicated`"));
    assert!(refusal(&superblock, true, true).contains("another mount"));
    fixture.finish();
    let alone = mount(&superblock, true, true).expect("nobody else is there");
    let second = Mount::builder().mount(&superblock, fresh_dir());
    assert!(second.expect_err("it is refused").to_string().contains("the option writeback"));
    drop(alone);
    Fixture::of(&superblock, "").finish();
    fs::remove_dir(&dir).expect("nothing is mounted there");
}

#[test]
fn what_cannot_be_mounted_is_said_in_one_line() {
    if !can_mount() {
        return;
    }
    let superblock = Superblock::new(Options::default());
    let error = |dir: &Path| {
        let error = Mount::builder().mount(&superblock, dir);
        let line = error.expect_err("this cannot be mounted on").to_string();
        assert!(!line.contains('\n'));
        line
    };
    assert!(error(Path::new("/no/such/dir")).contains("give an existing directory"));
    let dir = fresh_dir();
    fs::write(dir.join("file"), "").expect("writable");
    assert!(error(&dir.join("file")).contains("is not a directory"));
    fs::remove_dir_all(dir).expect("it was just made");
}

#[test]
fn files_that_the_library_has_open_in_the_server_are_told_of_with_their_paths() {
    let Some(fixture) = Fixture::new("") else { return };
    let told = || {
        let answer = control::library_files(fixture.dir()).expect("the server answers");
        String::from_utf8(answer.expect("there is a server")).expect("the names are ASCII")
    };
    assert_eq!(told(), "");
    let process = fixture.fs.process(Cred::root());
    process.mkdir("/d", 0o755).expect("a fresh name");
    let flags = OpenFlags::RDWR | OpenFlags::CREAT;
    let named = process.open("/d/two\nlines", flags, 0o644).expect("a fresh name");
    process.write(named, b"abc").expect("there is room");
    let ino = process.fstat(named).expect("it is open").ino;
    let pid = process.pid();
    assert_eq!(told(), format!("{pid} 0 {named} {ino} 100000 2 3 /d/two\\nlines\n"));
    process.unlink("/d/two\nlines").expect("it is there");
    assert_eq!(told(), format!("{pid} 0 {named} {ino} 100000 2 3 (deleted)\n"));
    process.close(named).expect("it is open");
    assert_eq!(told(), "");
    drop(process);
    fixture.finish();
}

#[test]
fn the_control_socket_answers_its_own_mount() {
    let Some(fixture) = Fixture::new("locks=sluice") else { return };
    fs::create_dir(fixture.path("d")).expect("writable");
    let inside = fixture.path("d");
    let stat = control::stat(&inside).expect("the server answers").expect("there is a server");
    let stat = String::from_utf8(stat).expect("it is JSON");
    assert!(stat.starts_with("{\"requests_total\":") && stat.contains("\"MKDIR\":1"), "{stat}");
    assert_eq!(control::locks(&inside).expect("the server answers"), Some(Vec::new()));
    let file = File::create(fixture.path("f")).expect("writable");
    file.lock().expect("nobody else has it");
    let locks = String::from_utf8(control::all_locks(&inside).expect("the server answers")).expect("ASCII");
    let (major, minor) = fixture.mount().device();
    assert!(locks.starts_with("1: FLOCK  ADVISORY  WRITE "), "{locks}");
    assert!(locks.contains(&format!("{major:02x}:{minor:02x}:")), "{locks}");
    drop(file);
    fixture.finish();
}

#[test]
fn a_slow_client_of_the_control_socket_does_not_keep_the_mount() {
    use std::os::linux::net::SocketAddrExt;
    let Some(fixture) = Fixture::new("") else { return };
    let (major, minor) = fixture.mount().device();
    let name = std::os::unix::net::SocketAddr::from_abstract_name(format!("sluicefs/{major}:{minor}"));
    let mut silent =
        std::os::unix::net::UnixStream::connect_addr(&name.expect("a short name")).expect("it listens");
    silent.write_all(b"stat").expect("it listens");
    fixture.finish();
}

#[test]
fn a_server_that_had_no_descriptors_for_a_while_answers_again() {
    const NAME: &str = "lifecycle::a_server_that_had_no_descriptors_for_a_while_answers_again";
    if serve_if_asked() || !can_mount() {
        return;
    }
    let mut server = Server::start(NAME, rustix::process::geteuid().as_raw());
    assert_eq!(server.status(), "serving");
    let pid = Some(rustix::process::Pid::from_child(&server.child));
    let limit_descriptors = |to: Rlimit| prlimit(pid, Resource::Nofile, to).expect("the server runs");
    let before = limit_descriptors(Rlimit { current: Some(0), ..getrlimit(Resource::Nofile) });
    let dir = server.dir.clone();
    let asking = thread::spawn(move || control::stat(&dir));
    thread::sleep(Duration::from_millis(100));
    limit_descriptors(before);
    let answer = asking.join().expect("no panic").expect("it answers").expect("it is a mount");
    assert!(answer.starts_with(b"{"));
    server.signal(Signal::TERM);
    assert_eq!(server.status(), format!("{:?}", Ended::Unmounted));
}

#[test]
fn signals_unmount() {
    if serve_if_asked() || !can_mount() {
        return;
    }
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut server = Server::start("lifecycle::signals_unmount", rustix::process::geteuid().as_raw());
        assert_eq!(server.status(), "serving");
        fs::write(server.dir.join("f"), "x").expect("writable");
        server.signal(signal);
        assert_eq!(server.status(), format!("{:?}", Ended::Unmounted));
        assert!(!is_mounted(&server.dir));
        assert!(server.child.wait().expect("it is a child").success());
    }
}

#[test]
fn a_signal_detaches_a_mount_in_use() {
    if serve_if_asked() || !can_mount() {
        return;
    }
    let mut server =
        Server::start("lifecycle::a_signal_detaches_a_mount_in_use", rustix::process::geteuid().as_raw());
    assert_eq!(server.status(), "serving");
    let mut open = File::create(server.dir.join("f")).expect("writable");
    server.signal(Signal::TERM);
    assert_eq!(server.status(), format!("{:?}", Ended::Detached));
    assert!(!is_mounted(&server.dir));
    assert!(server.child.wait().expect("it is a child").success());
    eventually("the open file is cut off", || open.write_all(b"x").is_err());
}

#[test]
fn a_dead_server_is_explained() {
    if serve_if_asked() || !can_mount() {
        return;
    }
    let mut server =
        Server::start("lifecycle::a_dead_server_is_explained", rustix::process::geteuid().as_raw());
    assert_eq!(server.status(), "serving");
    server.signal(Signal::KILL);
    server.child.wait().expect("it is a child");
    let error = Mount::new(&Fs::new(), &server.dir);
    let line = error.expect_err("the dead mount is still there").to_string();
    assert!(line.contains("unmount it first"), "{line}");
}
