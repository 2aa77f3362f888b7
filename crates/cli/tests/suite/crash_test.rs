//! `sluice crash-test`: small programs with one mistake each, which is found and named, and right ones, which pass.

use crate::harness::{Ran, sluice};
use std::path::Path;
use std::time::{Duration, Instant};

/// Runs a test of `script` in the shell, which `sync FILE` gives an fsync.
fn tested(options: &[&str], check: &str, script: &str) -> Ran {
    let mut arguments = vec!["crash-test"];
    arguments.extend(options);
    arguments.extend(["--check", check, "--", "sh", "-ec", script]);
    sluice(arguments)
}

/// A program with a mistake, and the line that tells the cure.
struct Wrong {
    setup: &'static str,
    script: &'static str,
    check: &'static str,
    told: &'static str,
}

const OLD: &str = "echo old > f; sync f";
const OLD_OR_NEW: &str = "grep -qxE 'old|new' f";

#[test]
fn the_missing_fsync_of_each_wrong_program_is_named() {
    let programs = [
        // A rename without an fsync of the bytes.
        Wrong {
            setup: OLD,
            script: "echo new > f.tmp; mv f.tmp f; sync .",
            check: OLD_OR_NEW,
            told: "missing  fsync of /f.tmp by sh",
        },
        // A promise before the directory is durable.
        Wrong {
            setup: OLD,
            script: "echo new > f.tmp; sync f.tmp; mv f.tmp f; echo done",
            check: "if grep -q done; then grep -qx new f; fi",
            told: "missing  fsync of / by mv",
        },
        Wrong {
            setup: "mkdir d; sync .",
            script: "ln -s v2 d/new; mv -T d/new d/current; echo switched",
            check: "if grep -q switched; then test \"$(readlink d/current)\" = v2; fi",
            told: "missing  fsync of /d by mv",
        },
        Wrong {
            setup: ":",
            script: "mkdir d; echo made",
            check: "if grep -q made; then test -d d; fi",
            told: "missing  fsync of / by mkdir",
        },
        // An append without an fsync.
        Wrong {
            setup: "echo 1 > log; sync log",
            script: "echo 2 >> log; echo committed",
            check: "if grep -q committed; then grep -qx 2 log; fi",
            told: ", after: write 2 bytes at 2 of /log; before it was promised",
        },
        // The fsync comes before the write.
        Wrong {
            setup: ":",
            script: "exec 3> f; sync f; echo data >&3; echo committed",
            check: "if grep -q committed; then grep -qx data f; fi",
            told: "missing  fsync of /f by sh",
        },
        // The index before the record.
        Wrong {
            setup: "echo > index; echo > records; sync index records",
            script: "echo one >> records; echo one >> index; sync index; sync records",
            check: "for line in $(cat index); do grep -qx $line records; done",
            told: "missing  fsync of /records by sh",
        },
        // The old file goes before the new one is durable.
        Wrong {
            setup: "echo data > one; sync one",
            script: "cat one > two; rm one; sync .",
            check: "grep -qsx data one || grep -qsx data two",
            told: "missing  fsync of /two by cat",
        },
        // A log is emptied before what it holds is in its place.
        Wrong {
            setup: "echo 1 > db; echo 2 > wal; sync db wal",
            script: "cat wal > db; : > wal; sync wal; sync db",
            check: "grep -qx 2 wal || grep -qx 2 db",
            told: "missing  fsync of /db by cat",
        },
        // Two pages, and no way to tell whether both are new.
        Wrong {
            setup: "yes a | head -c 8192 > f; sync f",
            script: "yes b | head -c 8192 | dd of=f bs=8192 conv=notrunc iflag=fullblock status=none; sync f",
            check: "test \"$(sort -u f | wc -l)\" = 1",
            told: "missing  a checksum, a journal or a new file: no fsync makes a write atomic",
        },
        // A mapping without msync.
        Wrong {
            setup: "head -c 4096 /dev/zero > m; sync m",
            script: "python3 -c 'import mmap; f = open(\"m\", \"r+b\"); mmap.mmap(f.fileno(), 4096)[0:3] = b\"new\"'; echo stored",
            check: "if grep -q stored; then test \"$(head -c 3 m)\" = new; fi",
            told: "fsync of /m by the kernel, for a shared mapping",
        },
        // Written in place: a kill is enough.
        Wrong {
            setup: OLD,
            script: "echo new > f; sync f",
            check: OLD_OR_NEW,
            told: "missing  no fsync: nothing is lost here",
        },
    ];
    for Wrong { setup, script, check, told } in programs {
        let ran = tested(&["--setup", setup, "--seeds", "40"], check, script);
        assert_eq!(ran.status, Some(1), "{script}: {ran:?}");
        assert!(ran.stdout.contains(told), "{script}: {}", ran.stdout);
        assert!(ran.stdout.starts_with("the check refuses a tree after a power failure ("), "{}", ran.stdout);
    }
}

#[test]
fn right_programs_pass_at_every_moment() {
    let programs = [
        (
            OLD,
            "echo new > f.tmp; sync f.tmp; mv f.tmp f; sync .; echo done",
            "if grep -q done; then grep -qx new f; else grep -qxE 'old|new' f; fi",
        ),
        (
            "echo 1 > log; sync log",
            "for n in 2 3 4; do echo $n >> log; sync log; echo $n; done",
            "while read -r n; do grep -qx $n log || exit 1; done",
        ),
        // A line counts if its checksum is right.
        (
            ": > log; sync log",
            "for n in a b c; do echo \"$n $(echo $n | cksum)\" >> log; sync log; echo $n; done",
            "while read -r n; do grep -qxF \"$n $(echo $n | cksum)\" log || exit 1; done",
        ),
    ];
    for (setup, script, check) in programs {
        for points in ["fsync", "all"] {
            let ran = tested(&["--setup", setup, "--points", points, "--seeds", "20"], check, script);
            assert_eq!(ran.status, Some(0), "{script}: {ran:?}");
            assert!(ran.stdout.ends_with("the check accepts all\n"), "{}", ran.stdout);
        }
    }
}

#[test]
fn what_is_found_is_told_to_programs_too() {
    let ran = tested(&["--json", "--setup", OLD], OLD_OR_NEW, "echo new > f.tmp; mv f.tmp f");
    assert_eq!(ran.status, Some(1), "{ran:?}");
    let plain = tested(&["--setup", OLD], OLD_OR_NEW, "echo new > f.tmp; mv f.tmp f");
    assert!(plain.stdout.contains("): event 3 of 3"), "{}", plain.stdout);
    let told: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let failure = &told["failure"];
    assert_eq!(failure["after"]["call"], "rename /f.tmp to /f");
    assert_eq!(failure["lost"][0]["call"], "write 4 bytes at 0 of /f.tmp");
    assert_eq!(failure["missing"][0]["path"], "/f.tmp");
    assert_eq!(failure["missing"][0]["before"], "rename /f.tmp to /f");
    assert!(told["states"].as_u64().is_some_and(|states| states > 1), "{told}");
}

#[test]
fn a_test_that_says_nothing_of_crashes_is_refused() {
    let refused = |options: &[&str], check: &str, script: &str, why: &str| {
        let ran = tested(options, check, script);
        assert_eq!(ran.status, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(why), "{}", ran.stderr);
        assert_eq!(ran.stderr.trim_end().lines().count(), 1, "one line: {}", ran.stderr);
    };
    refused(
        &[],
        "test -e f",
        ": > f",
        "the check fails before the workload has done anything: have it accept that tree, or make one with --setup",
    );
    refused(
        &[],
        "test ! -e f",
        ": > f",
        "the check fails after the workload, although nothing is lost: one of the two is wrong",
    );
    refused(&[], "true", "exit 3", "the workload ended with status 3: a test needs a run that succeeds");
    refused(&["--setup", "exit 4"], "true", "true", "--setup ended with status 4");
    let missing = sluice(["crash-test", "--check", "true", "--", "./no-such-program"]);
    assert_eq!(missing.status, Some(2), "{missing:?}");
    assert!(missing.stderr.contains("cannot run ./no-such-program"), "{}", missing.stderr);
    assert_eq!(sluice(["crash-test", "--check", "true"]).status, Some(2), "no workload");
    assert_eq!(sluice(["crash-test", "--", "true"]).status, Some(2), "no check");
}

#[test]
fn a_check_that_hangs_fails_and_nothing_is_left_behind() {
    let begun = Instant::now();
    let check = "test -e f || exit 0; test -s f || sleep 1000";
    let ran = tested(&["--timeout", "1"], check, "echo x > f; sleep 1000 & echo $!");
    assert_eq!(ran.status, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("check    not done after 1 s"), "{}", ran.stdout);
    assert!(begun.elapsed() < Duration::from_secs(500), "the workload's child does not hold it up");
    let mounts = std::fs::read_to_string("/proc/mounts").expect("proc");
    assert!(!mounts.lines().any(|line| line.starts_with("crash-test ") && !is_of_another(line)), "{mounts}");
}

/// Whether the mount in this line of the table belongs to a test that still runs.
fn is_of_another(line: &str) -> bool {
    let place = line.split(' ').nth(1).unwrap_or_default();
    let owner = place.split('/').find_map(|part| part.strip_prefix("sluice-")?.split('-').next());
    owner.is_some_and(|pid| Path::new("/proc").join(pid).exists())
}
