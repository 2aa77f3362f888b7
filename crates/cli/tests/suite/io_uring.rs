//! A mount over io_uring (`-o transport=uring`), used by programs. They run only where the kernel allows it already:
//! `make uring` has it allow it for as long as they run. The server is a process of its own each time: one that is both
//! server and client of such a mount may not be ended by force.

use crate::harness::{Mounted, Scratch, can_mount, is_mounted, server_of, skipped, sluice, until};
use sluice_sync::random::Random;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";
const OPTIONS: [&str; 2] = ["transport=uring", "transport=uring,writeback"];

fn is_enabled() -> bool {
    fs::read_to_string(ENABLED).is_ok_and(|text| text.starts_with('Y'))
}

/// A mount with `options`, if the kernel allows io_uring.
fn mounted(test: &str, options: &str) -> Option<Mounted> {
    if !is_enabled() {
        // `make unit` runs these tests once more, by `tests/uring`.
        if std::env::var_os("SLUICE_URING_LATER").is_none() {
            skipped(test, &format!("{ENABLED} is not Y (cure: as root, `make uring`)"));
        }
        return None;
    }
    let mounted = Mounted::new(test, options)?;
    assert_eq!(mounted.stat()["transport"], "uring");
    Some(mounted)
}

/// Writes, removes and copies files in `dir` until it is ended, or cannot any more. The file that is copied has a hole that
/// the kernel has read, so that the copier's seeks wait.
fn hammer(dir: &Path) -> Child {
    let script = "i=0; truncate -s 64K f-sparse
        while echo $i > f$((i % 20)) && rm -f f$(((i + 10) % 20)) && cksum f-sparse && cp f-sparse f-copy; do i=$((i + 1)); done";
    let mut sh = Command::new("sh");
    sh.args(["-c", script]).current_dir(dir).stdin(Stdio::null());
    sh.stdout(Stdio::null()).stderr(Stdio::null());
    let child = sh.spawn().expect("sh starts");
    until("it is at work", || dir.join("f0").exists() || dir.join("f1").exists());
    child
}

#[test]
fn a_ring_that_cannot_be_is_refused_in_one_line_that_says_what_to_do() {
    let test = "a_ring_that_cannot_be_is_refused_in_one_line_that_says_what_to_do";
    if !can_mount(test) {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let text = dir.to_str().unwrap();
    let line = sluice(["mount", "-o", "transport=uring,locks=sluice", text]).complaint(1);
    assert!(line.contains("leave one of the two out"), "{line}");
    let line = sluice(["mount", "-o", "transport=rings", text]).complaint(2);
    assert!(line.contains("give transport=auto|uring|classic"), "{line}");
    if !is_enabled() {
        let line = sluice(["mount", "-o", "transport=uring", text]).complaint(1);
        assert!(line.contains("enable_uring") || line.contains("6.14"), "{line}");
    }
    assert!(!is_mounted(&dir));
    // Without a word, where it is not asked for.
    let mounted = Mounted::new(test, "locks=sluice").unwrap();
    assert_eq!(mounted.stat()["transport"], "classic");
    let mounted = Mounted::new(test, "transport=classic").unwrap();
    assert_eq!(mounted.stat()["transport"], "classic");
    assert!(sluice(["stat".as_ref(), mounted.dir().as_os_str()]).well().contains("transport"));
}

#[test]
fn git_and_tar_work_over_a_ring() {
    for options in OPTIONS {
        let Some(mounted) = mounted("git_and_tar_work_over_a_ring", options) else { return };
        if Command::new("git").arg("--version").output().is_err() {
            return skipped("git_and_tar_work_over_a_ring", "there is no git (cure: apt-get install git)");
        }
        mounted.run(
            "git init -q r; cd r; git config user.name n; git config user.email n@example.org
             for i in 1 2 3 4 5 6 7 8 9; do mkdir d$i; for j in 1 2 3 4 5 6 7 8 9; do echo $i $j > d$i/f$j; done; done
             git add .; git commit -qm one; git mv d1 e1; echo more >> d2/f2; git commit -qam two; git gc -q
             git fsck; test -z \"$(git status --porcelain)\"; git checkout -q HEAD~1; test -f d1/f9",
        );
        mounted.run(
            "tar cf t.tar r; mkdir u; tar xf t.tar -C u; diff -r r u/r; rm -rf r u; test \"$(ls)\" = t.tar",
        );
    }
}

#[test]
fn a_file_written_read_and_cut_at_random_is_what_it_should_be() {
    for options in OPTIONS {
        let test = "a_file_written_read_and_cut_at_random_is_what_it_should_be";
        let Some(mounted) = mounted(test, options) else { return };
        let path = mounted.path("f");
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        let mut model = Vec::new();
        let mut random = Random::new(1);
        for round in 0..1_000 {
            let (at, len) = (random.below(600_000), random.below(200_000));
            match random.below(5) {
                0 => {
                    file.set_len(at as u64).unwrap();
                    model.resize(at, 0);
                }
                1 | 2 => {
                    let bytes: Vec<u8> = (0..len).map(|i| (i + round) as u8).collect();
                    file.write_all_at(&bytes, at as u64).unwrap();
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].copy_from_slice(&bytes);
                }
                _ => {
                    let mut bytes = vec![0; len];
                    let got = file.read_at(&mut bytes, at as u64).unwrap();
                    let expected = model.get(at..).unwrap_or_default();
                    assert!(bytes[..got] == expected[..len.min(expected.len())], "{options} round {round}");
                }
            }
        }
    }
}

/// Builds `peer`, a program for such tests, in `mounted`. False, said loudly, without a compiler.
fn build_peer(test: &str, mounted: &Mounted) -> bool {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuse/tests/peer.c");
    let built =
        Command::new("cc").arg("-o").args([mounted.path("peer").as_os_str(), source.as_ref()]).status();
    match built {
        Ok(status) => assert!(status.success()),
        Err(_) => skipped(test, "there is no cc (cure: apt-get install build-essential)"),
    }
    built.is_ok()
}

#[test]
fn mappings_and_direct_io_work_over_a_ring() {
    for options in OPTIONS {
        let test = "mappings_and_direct_io_work_over_a_ring";
        let Some(mounted) = mounted(test, options) else { return };
        if build_peer(test, &mounted) {
            mounted.run("./peer mmap f; ./peer direct g");
        }
    }
}

/// More at a time than a queue has entries.
#[test]
fn seeks_of_many_clients_wait_for_the_kernels_pages_and_hold_up_nobody() {
    const SIZE: u64 = 1 << 20;
    const CLIENTS: usize = 12;
    let test = "seeks_of_many_clients_wait_for_the_kernels_pages_and_hold_up_nobody";
    let Some(mounted) = mounted(test, "transport=uring") else { return };
    let seek_anew = |file: &File| {
        // The seek before had the kernel drop the page.
        file.read_exact_at(&mut [1], SIZE / 4).unwrap();
        rustix::fs::seek(file, rustix::fs::SeekFrom::Data(0)).unwrap()
    };
    let exact: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let path = mounted.path(&client.to_string());
                scope.spawn(move || {
                    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
                    file.set_len(SIZE).unwrap();
                    file.write_all_at(b"data", SIZE / 2).unwrap();
                    let found: Vec<_> = (0..100).map(|_| seek_anew(&file)).collect();
                    assert!(found.iter().all(|&at| at == 0 || at == SIZE / 2), "{found:?}");
                    found.iter().filter(|&&at| at == SIZE / 2).count()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert!(exact > 0);
    // One at a time always waits.
    let file = File::open(mounted.path("0")).unwrap();
    for _ in 0..100 {
        assert_eq!(seek_anew(&file), SIZE / 2);
    }
}

/// Two stores, so that the second meets a file whose holes have been asked for.
#[test]
fn a_hole_that_a_process_has_stored_into_is_copied_as_what_it_is() {
    const SIZE: usize = 1 << 20;
    let test = "a_hole_that_a_process_has_stored_into_is_copied_as_what_it_is";
    for options in OPTIONS {
        let Some(mounted) = mounted(test, options) else { return };
        if !build_peer(test, &mounted) {
            return;
        }
        File::create(mounted.path("f")).unwrap().set_len(SIZE as u64).unwrap();
        let mut peer = Command::new(mounted.path("peer"));
        peer.args(["map".as_ref(), mounted.path("f").as_os_str()]);
        let mut peer = peer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it was built");
        let mut lines = BufReader::new(peer.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "mapped");
        let mut expected = vec![0; SIZE];
        for (stored, at) in [(1, SIZE / 2), (2, SIZE / 4)] {
            writeln!(peer.stdin.as_ref().unwrap(), "s {at} h").unwrap();
            assert_eq!(lines.next().unwrap().unwrap(), "h");
            expected[at] = b'h';
            mounted.run(
                "rm -rf copy; mkdir copy; cp f copy/cp; cp -a f copy/cp-a; cp --sparse=always f copy/sparse; cp --reflink=auto f copy/reflink
                 tar -cSf t.tar f; mkdir copy/tar; tar -xf t.tar -C copy/tar",
            );
            for copy in ["cp", "cp-a", "sparse", "reflink", "tar/f"] {
                assert!(
                    fs::read(mounted.path("copy").join(copy)).unwrap() == expected,
                    "{options} {at} {copy}"
                );
            }
            if !options.contains("writeback") {
                // Pages of 4 KiB, in blocks of 512 bytes.
                assert_eq!(mounted.path("copy/cp").metadata().unwrap().blocks(), stored * 8, "{at}");
            }
        }
        // Its input ends.
        drop(peer.stdin.take());
        assert!(peer.wait().unwrap().success());
        assert!(fs::read(mounted.path("f")).unwrap() == expected, "{options}");
    }
}

#[test]
fn large_attributes_and_directories_come_whole_over_a_ring_of_small_requests() {
    let test = "large_attributes_and_directories_come_whole_over_a_ring_of_small_requests";
    for max_write in [4096, 1 << 20] {
        let Some(mounted) = mounted(test, &format!("transport=uring,max_write={max_write}")) else { return };
        for number in 0..3_000 {
            File::create(mounted.path(&format!("a-name-that-is-not-short-{number}"))).unwrap();
        }
        assert_eq!(fs::read_dir(mounted.dir()).unwrap().count(), 3_000);
        let value = vec![b'v'; 60_000];
        let file = File::open(mounted.path("a-name-that-is-not-short-7")).unwrap();
        rustix::fs::fsetxattr(&file, "user.large", &value, rustix::fs::XattrFlags::empty()).unwrap();
        let mut back = vec![0; 65_536];
        assert_eq!(rustix::fs::fgetxattr(&file, "user.large", &mut back[..]).unwrap(), value.len());
        assert!(back[..value.len()] == value);
    }
}

#[test]
fn a_mount_at_work_is_not_unmounted_but_detached_and_its_clients_go_on() {
    let test = "a_mount_at_work_is_not_unmounted_but_detached_and_its_clients_go_on";
    let Some(mounted) = mounted(test, "transport=uring") else { return };
    let dir = mounted.dir();
    let mut client = hammer(dir);
    assert_eq!(sluice(["umount".as_ref(), dir.as_os_str()]).status, Some(1));
    let server = server_of(dir);
    sluice(["umount".as_ref(), "--lazy".as_ref(), dir.as_os_str()]).well();
    assert!(client.try_wait().unwrap().is_none(), "it goes on");
    client.kill().unwrap();
    client.wait().unwrap();
    until("the server ends", || has_ended(server));
}

#[test]
fn a_client_that_is_killed_at_work_leaves_a_mount_that_works() {
    let test = "a_client_that_is_killed_at_work_leaves_a_mount_that_works";
    let Some(mounted) = mounted(test, "transport=uring") else { return };
    for _ in 0..10 {
        let mut client = hammer(mounted.dir());
        client.kill().unwrap();
        client.wait().unwrap();
        // Its last command may still run.
        until("what was left can be removed", || {
            mounted.run("rm -f f*");
            fs::read_dir(mounted.dir()).unwrap().next().is_none()
        });
    }
}

#[test]
fn a_server_that_is_told_to_stop_cuts_its_clients_off() {
    let test = "a_server_that_is_told_to_stop_cuts_its_clients_off";
    let Some(mounted) = mounted(test, "transport=uring") else { return };
    let mut client = hammer(mounted.dir());
    let server = server_of(mounted.dir());
    assert!(Command::new("kill").args(["-TERM", &server.to_string()]).status().unwrap().success());
    until("the server ends", || has_ended(server));
    client.wait().unwrap();
    assert!(!is_mounted(mounted.dir()));
}

#[test]
fn a_server_that_is_killed_at_work_cuts_its_clients_off() {
    let test = "a_server_that_is_killed_at_work_cuts_its_clients_off";
    let Some(mounted) = mounted(test, "transport=uring") else { return };
    let mut client = hammer(mounted.dir());
    let server = server_of(mounted.dir());
    assert!(Command::new("kill").args(["-KILL", &server.to_string()]).status().unwrap().success());
    client.wait().unwrap();
    until("the server ends", || has_ended(server));
    sluice(["umount".as_ref(), mounted.dir().as_os_str()]).well();
    assert!(!is_mounted(mounted.dir()));
}

#[test]
fn a_server_that_is_killed_after_its_connection_was_given_up_leaves_nothing() {
    let test = "a_server_that_is_killed_after_its_connection_was_given_up_leaves_nothing";
    let Some(mounted) = mounted(test, "transport=uring") else { return };
    let dir = mounted.dir();
    let mut open = File::create(mounted.path("open")).unwrap();
    let mut client = hammer(dir);
    let server = server_of(dir);
    // FORCE has the kernel give the requests up; it is in use and stays.
    assert!(rustix::mount::unmount(dir, rustix::mount::UnmountFlags::FORCE).is_err());
    client.wait().unwrap();
    assert!(open.write_all(b"x").is_err());
    // It may have ended by itself.
    let _ = Command::new("kill").args(["-KILL", &server.to_string()]).stderr(Stdio::null()).status();
    until("the server ends", || has_ended(server));
    drop(open);
    sluice(["umount".as_ref(), "--lazy".as_ref(), dir.as_os_str()]);
    assert!(!is_mounted(dir));
}

/// True if process `pid` is no more, or waits only for somebody to ask how it ended.
fn has_ended(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z"))
}
