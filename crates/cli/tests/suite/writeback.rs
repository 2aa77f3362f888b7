//! A mount whose kernel collects writes (`-o writeback`), used by programs.

use crate::harness::Mounted;
use rustix::fs::{OFlags, copy_file_range};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

const PAGE: u64 = 4096;

fn read_write(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

#[test]
fn small_writes_are_collected_and_read_back_before_and_after_they_are_written_back() {
    let test = "small_writes_are_collected_and_read_back_before_and_after_they_are_written_back";
    for locks in ["locks=kernel", "locks=sluice"] {
        let Some(mounted) = Mounted::new(test, &format!("writeback,{locks}")) else { return };
        let path = mounted.path("f");
        // Write-only: to fill a page that is written in part, the kernel reads it all the same.
        let mut file = File::options().write(true).create_new(true).open(&path).unwrap();
        let line = b"a line that is no power of two long\n";
        for _ in 0..10_000 {
            file.write_all(line).unwrap();
        }
        assert!(mounted.requests("WRITE") < 1_000, "each write was a message");
        assert_eq!(fs::read(&path).unwrap(), line.repeat(10_000));
        file.sync_all().unwrap();
        file.write_all_at(b"A", 1).unwrap();
        let (size, mtime) = (file.metadata().unwrap().size(), file.metadata().unwrap().modified().unwrap());
        assert_eq!(size, 360_000);
        drop(file);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), mtime, "closing is no change");
        assert_eq!(fs::read(&path).unwrap()[..4], *b"aAli");
    }
}

#[test]
fn what_several_append_at_once_stays_whole() {
    for locks in ["locks=kernel", "locks=sluice"] {
        let Some(mounted) =
            Mounted::new("what_several_append_at_once_stays_whole", &format!("writeback,{locks}"))
        else {
            return;
        };
        let path = mounted.path("log");
        let script = "i=0; while [ $i -lt 500 ]; do echo \"$0 $i\" >> \"$1\"; i=$((i + 1)); done";
        let writers: Vec<_> = ["one", "two", "three"]
            .map(|name| Command::new("sh").args(["-c", script, name]).arg(&path).spawn().unwrap())
            .into();
        for mut writer in writers {
            assert!(writer.wait().unwrap().success());
        }
        let text = fs::read_to_string(&path).unwrap();
        for name in ["one", "two", "three"] {
            let own: Vec<_> = text.lines().filter(|line| line.starts_with(name)).collect();
            let expected: Vec<_> = (0..500).map(|i| format!("{name} {i}")).collect();
            assert_eq!(own, expected, "{locks}");
        }
    }
}

#[test]
fn a_file_is_cut_grown_and_cut_again_while_its_bytes_sit_in_the_kernel() {
    let test = "a_file_is_cut_grown_and_cut_again_while_its_bytes_sit_in_the_kernel";
    let Some(mounted) = Mounted::new(test, "writeback") else { return };
    let file = read_write(&mounted.path("f"));
    for round in 0..20 {
        file.write_all_at(&[7; 3 * PAGE as usize], 100).unwrap();
        file.set_len(PAGE + 1).unwrap();
        file.set_len(4 * PAGE).unwrap();
        let mut bytes = vec![1; 5 * PAGE as usize];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap() as u64, 4 * PAGE);
        let expected = |at: u64| if (100..=PAGE).contains(&at) { 7 } else { 0 };
        assert!((0..4 * PAGE).all(|at| bytes[at as usize] == expected(at)), "round {round}");
        file.set_len(0).unwrap();
    }
}

#[test]
fn bytes_that_sit_in_the_kernel_are_copied_whoever_copies_them() {
    let test = "bytes_that_sit_in_the_kernel_are_copied_whoever_copies_them";
    for locks in ["locks=kernel", "locks=sluice"] {
        let Some(mounted) = Mounted::new(test, &format!("writeback,{locks}")) else { return };
        // The writer stays: nothing has been flushed by a close.
        let path = mounted.path("f");
        let file = read_write(&path);
        file.set_len(1 << 20).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        file.write_all_at(b"middle", 600_000).unwrap();
        file.write_all_at(b"last", 1 << 21).unwrap();
        let size = (1 << 21) + 4;
        assert!(file.metadata().unwrap().blocks() > 0, "no blocks: taken for one hole");
        let mut expected = vec![0; size];
        expected[..5].copy_from_slice(b"first");
        expected[600_000..600_006].copy_from_slice(b"middle");
        expected[size - 4..].copy_from_slice(b"last");

        let by_call = read_write(&mounted.path("by-call"));
        let (mut from, mut to) = (0, 0);
        loop {
            let copied = copy_file_range(&file, Some(&mut from), &by_call, Some(&mut to), 100_000).unwrap();
            if copied == 0 {
                break;
            }
        }
        let text = |name: &str| mounted.path(name).display().to_string();
        run("cp", &["--sparse=auto", &text("f"), &text("by-cp")]);
        run("cp", &["-a", &text("f"), &text("by-cp-a")]);
        run("tar", &["-S", "-cf", &text("archive"), "-C", mounted.dir().to_str().unwrap(), "f"]);
        fs::create_dir(mounted.path("by-tar")).unwrap();
        run("tar", &["-xf", &text("archive"), "-C", &text("by-tar")]);
        for copy in ["by-call", "by-cp", "by-cp-a", "by-tar/f"] {
            assert!(fs::read(mounted.path(copy)).unwrap() == expected, "{copy} with {locks}");
        }
    }
}

#[test]
fn a_file_system_that_is_full_is_said_by_fsync_or_close_and_has_room_again_later() {
    let test = "a_file_system_that_is_full_is_said_by_fsync_or_close_and_has_room_again_later";
    let Some(mounted) = Mounted::new(test, "writeback,size=1M") else { return };
    let fill = |name: &str| -> std::io::Result<File> {
        let mut file = File::create(mounted.path(name))?;
        file.write_all(&vec![1; 8 << 20])?;
        file.sync_all()?;
        Ok(file)
    };
    let error = fill("too-much").expect_err("there is no room");
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    // The shell's `cat` writes and closes.
    let script = "head -c 4000000 /dev/zero | dd of=\"$0\" bs=64k status=none";
    let dd = Command::new("sh").args(["-c", script]).arg(mounted.path("by-dd")).output().unwrap();
    assert!(!dd.status.success(), "close said nothing");
    fs::remove_file(mounted.path("too-much")).unwrap();
    fs::remove_file(mounted.path("by-dd")).unwrap();
    fs::write(mounted.path("fits"), vec![2; 500_000]).unwrap();
    let mut back = Vec::new();
    File::open(mounted.path("fits")).unwrap().read_to_end(&mut back).unwrap();
    assert!(back == vec![2; 500_000]);
}

#[test]
fn direct_and_cached_writes_see_each_other() {
    let Some(mounted) = Mounted::new("direct_and_cached_writes_see_each_other", "writeback") else { return };
    let path = mounted.path("f");
    let cached = read_write(&path);
    let direct =
        File::options().read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path);
    let direct = direct.unwrap();
    for round in 0..50_u8 {
        cached.write_all_at(&[round; 2 * PAGE as usize], 0).unwrap();
        let mut bytes = vec![0; 2 * PAGE as usize];
        assert_eq!(direct.read_at(&mut bytes, 0).unwrap(), bytes.len());
        assert!(bytes.iter().all(|byte| *byte == round));
        direct.write_all_at(&[round + 100; PAGE as usize], PAGE).unwrap();
        cached.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((bytes[0], bytes[PAGE as usize]), (round, round + 100));
    }
}
