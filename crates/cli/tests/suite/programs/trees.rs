//! Trees: thousands of files unpacked, compared, searched and removed.

use super::stage::{LOCK_MODES, Stage, skip};
use crate::harness::sluice;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Directories of a tree of more than 5,000 files, and of one that is large enough for a change to hide in.
const MANY: usize = 130;
const SOME: usize = 25;
const FILES_IN_EACH: usize = 40;
/// Names that programs trip over, one of them no UTF-8.
const ODD_NAMES: [&[u8]; 12] = [
    b" ",
    b"-rf",
    b"...",
    b"a\nb",
    b"tab\there",
    b"back\\slash",
    b"'quotes\"",
    b"*?[x]",
    b"trailing ",
    "pr\u{fc}fung \u{4f60}\u{597d}".as_bytes(),
    b"not-utf8-\xff\xfe",
    b".hidden",
];

/// A source tree on the host: nested directories, files of many sizes and modes, links of both kinds, odd names.
fn generate(root: &Path, directories: usize) {
    for number in 0..directories {
        let dir = root.join(format!("part-{}/group-{}/module-{number}", number % 3, number % 11));
        fs::create_dir_all(&dir).unwrap();
        for file in 0..FILES_IN_EACH {
            let path = dir.join(format!("file_{file}.rs"));
            // Empty ones, small ones, and some past a page and past the largest single write.
            let size =
                if file == 7 && number % 16 == 0 { 300_000 + number } else { file * file * (number % 5) };
            let text: Vec<u8> = (0..size).map(|i| ((i * 31 + number * 7 + file) % 251) as u8).collect();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode([0o644, 0o755, 0o600, 0o444][file % 4]))
                .unwrap();
        }
        fs::hard_link(dir.join("file_1.rs"), dir.join("hard_link.rs")).unwrap();
        symlink("file_2.rs", dir.join("symlink.rs")).unwrap();
        symlink("../../no/such/place", dir.join("dangling")).unwrap();
    }
    let odd = root.join("odd");
    fs::create_dir(&odd).unwrap();
    for name in ODD_NAMES {
        fs::write(odd.join(OsStr::from_bytes(name)), name).unwrap();
    }
    fs::write(odd.join("n".repeat(255)), "the longest name").unwrap();
    symlink("s".repeat(4095), odd.join("the longest target")).unwrap();
    let deep = root.join("d/".repeat(60));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("bottom"), "deep").unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o1777)).unwrap();
}

/// Compares `$HOST/source` with `$MNT/copy`: prints nothing when they are equal.
const COMPARE: &str = "diff -r --no-dereference $HOST/source $MNT/copy
    rsync -nacHi --delete $HOST/source/ $MNT/copy/";

#[test]
fn an_unpacked_tree_of_thousands_of_files_equals_its_source() {
    let name = "an_unpacked_tree_of_thousands_of_files_equals_its_source";
    let Some(stage) = Stage::new(name, "", &["tar", "diff", "rsync"]) else { return };
    let source = stage.host().join("source");
    fs::create_dir(&source).unwrap();
    generate(&source, MANY);
    stage.sh("mkdir copy; tar -C $HOST/source -cf $HOST/source.tar .; tar -C copy -xpf $HOST/source.tar");
    assert_eq!(stage.sh(COMPARE), "");
    // And the way back.
    stage.sh("mkdir $HOST/back; tar -cf - copy | tar -C $HOST/back -xpf -");
    assert_eq!(stage.sh("rsync -nacHi --delete $HOST/source/ $HOST/back/copy/"), "");
    // The comparison sees the smallest differences.
    stage.sh("touch -d @1 copy/odd/...");
    assert!(stage.sh(COMPARE).contains("..."), "a changed time is not seen");
    stage.sh(
        "printf X | dd of=copy/odd/... conv=notrunc status=none; touch -r $HOST/source/odd/... copy/odd/...",
    );
    assert!(!stage.outcome(COMPARE).status.success(), "a changed byte is not seen");
}

#[test]
fn rsync_brings_a_tree_and_keeps_it_equal() {
    let name = "rsync_brings_a_tree_and_keeps_it_equal";
    let Some(stage) = Stage::new(name, "", &["rsync", "diff"]) else { return };
    let source = stage.host().join("source");
    fs::create_dir(&source).unwrap();
    generate(&source, SOME);
    stage.sh("rsync -aH $HOST/source/ copy/");
    assert_eq!(stage.sh(COMPARE), "");
    stage.sh(
        "cd $HOST/source; rm -r part-0; mv part-1 moved; echo more >>odd/...; chmod 700 empty; mkdir new; echo x >new/x
         rsync -aH --delete --inplace $HOST/source/ $MNT/copy/",
    );
    assert_eq!(stage.sh(COMPARE), "");
}

#[test]
fn crates_from_the_registry_unpack_to_what_they_are() {
    let name = "crates_from_the_registry_unpack_to_what_they_are";
    let Some(stage) = Stage::new(name, "", &["tar", "diff", "rsync"]) else { return };
    let crates = downloaded_crates();
    let mut files = 0;
    for path in &crates {
        if files > 1500 {
            break;
        }
        let dir = path.parent().unwrap().display();
        let crate_name = path.file_name().unwrap().to_str().unwrap();
        let compared = stage.sh(&format!(
            "tar -C {dir} -cf - {crate_name} | tar -xpf -
             diff -r --no-dereference {dir}/{crate_name} {crate_name}
             rsync -nacHi --no-owner --no-group --delete {dir}/{crate_name}/ {crate_name}/"
        ));
        assert_eq!(compared, "", "{crate_name}");
        files += stage.sh(&format!("find {crate_name} -type f | wc -l")).trim().parse::<usize>().unwrap();
    }
    if files == 0 {
        skip(name, "needs crates in Cargo's cache (cure: cargo fetch)");
    }
}

/// The unpacked crates that Cargo has downloaded.
fn downloaded_crates() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home =
        home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"))).unwrap_or_default();
    let below =
        |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut crates: Vec<_> = below(home.join("registry/src")).flat_map(below).collect();
    crates.sort();
    crates
}

#[test]
fn find_meets_everything_once_and_rm_leaves_nothing() {
    let name = "find_meets_everything_once_and_rm_leaves_nothing";
    let Some(stage) = Stage::new(name, "nr_inodes=20000", &["tar", "find"]) else { return };
    let source = stage.host().join("source");
    fs::create_dir(&source).unwrap();
    generate(&source, MANY);
    stage.sh("mkdir copy; tar -C $HOST/source -cf - . | tar -C copy -xpf -");
    for question in [
        "",
        "-type f",
        "-type d",
        "-type l",
        "-links +1",
        "-perm 444",
        "-size +64k",
        "-empty",
        "-name '*_7.rs'",
    ] {
        let met =
            |dir: &str| stage.sh(&format!("cd {dir}; find . {question} -print0 | sort -z | tr '\\0' '|'"));
        // Directories differ in size from one file system to the next, and so in what is large or empty.
        let met =
            |dir: &str| if question.starts_with("-size") { met(&format!("{dir}/part-0")) } else { met(dir) };
        let here = met("$MNT/copy");
        assert!(!here.is_empty(), "{question} meets nothing");
        assert_eq!(here, met("$HOST/source"), "{question}");
    }
    let all = stage.sh("find copy | wc -l").trim().parse::<usize>().unwrap();
    assert!(all > 5000, "{all}");
    stage.sh("find copy -name '*_3.rs' -delete; find copy -type f -exec rm -f {} +");
    assert_eq!(stage.sh("find copy ! -type d ! -type l"), "");
    stage.sh("rm -rf copy");
    assert_eq!(stage.sh("ls -A"), "");
    assert_eq!(stage.sh("df --output=iused . | tail -n1").trim(), "1", "inodes are left behind");
}

#[test]
fn a_directory_can_be_removed_while_others_create_in_it() {
    let name = "a_directory_can_be_removed_while_others_create_in_it";
    let Some(stage) = Stage::new(name, "", &[]) else { return };
    stage.sh(
        "mkdir d; touch go
         work() { n=0; while [ -e go ]; do mkdir -p d/$1 2>/dev/null && echo x 2>/dev/null >d/$1/$n || :; n=$((n+1)); done; }
         work a & work b &
         i=0; while [ $i -lt 60 ]; do rm -rf d 2>/dev/null || :; mkdir -p d; i=$((i+1)); done
         rm go; wait; rm -rf d",
    );
    assert_eq!(stage.sh("ls -A"), "");
}

#[test]
fn a_clone_is_the_tree_as_it_was_whatever_happens_to_the_original() {
    for mode in LOCK_MODES {
        let Some(stage) = Stage::new("a clone of a tree", mode, &["diff"]) else { return };
        let (mount, host) = (stage.mount().to_owned(), stage.host().to_owned());
        let clone = |from: &Path, to: &Path| sluice([OsStr::new("clone"), from.as_os_str(), to.as_os_str()]);
        generate(&mount.join("a"), SOME);
        // The kernel remembers that the name is missing, and has to be told.
        stage.sh("! test -e b");
        clone(&mount.join("a"), &mount.join("b")).well();
        stage.sh("diff -r --no-dereference a b");
        stage.sh("cp -a b $HOST/saved; rm -r a/part-0; find a -type f -exec truncate -s 1 {} +");
        stage.sh("diff -r --no-dereference $HOST/saved b");
        stage.sh("find b/part-1 -type f -exec truncate -s 2 {} +; rm -r b/part-2");
        stage.sh("test -d a/part-2; test -z \"$(find a/part-1 -type f -size -1c -o -type f -size +1c)\"");

        // A name that would end a line of the question.
        clone(&mount.join("a/odd"), &mount.join("odd\ncopy")).well();
        assert!(mount.join("odd\ncopy/the longest target").is_symlink());
        let refused = |from: &Path, to: &Path, why: &str| {
            let line = clone(from, to).complaint(1);
            assert!(line.contains(why), "{line}");
        };
        refused(&mount.join("a"), &mount.join("b"), "File exists");
        refused(&mount.join("none"), &mount.join("c"), "No such file");
        refused(&mount.join("a"), &mount.join("none/c"), "No such file");
        refused(&mount.join("a"), &mount.join("n".repeat(256)), "ENAMETOOLONG");
        refused(&host.join("saved"), &mount.join("c"), "one mount");
        refused(&host.join("saved"), &host.join("c"), "`sluice mount`");
    }
}

#[test]
fn a_snapshot_is_kept_beside_the_tree_until_it_is_deleted() {
    for mode in LOCK_MODES {
        let Some(stage) = Stage::new("a snapshot of a mount", mode, &["diff"]) else { return };
        let mount = stage.mount().to_str().expect("text").to_owned();
        generate(&stage.mount().join("a"), SOME);
        stage.sh("cp -a a $HOST/saved");
        let snapshot = |arguments: &[&str]| sluice([&["snapshot"], arguments].concat());
        snapshot(&["create", &mount, "one"]).well();
        stage.sh("rm -r a/part-0 && echo new > a/new");
        snapshot(&["create", &format!("{mount}/a"), "two"]).well();
        let listed = snapshot(&["list", &mount]).well();
        let first: Vec<_> = listed.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
        assert_eq!(first, ["NAME", "one", "two"], "{listed}");
        let listed = snapshot(&["list", "--json", &mount]).well();
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        assert_eq!((&listed[0]["name"], &listed[1]["name"]), (&"one".into(), &"two".into()));
        assert!(listed[0]["private_bytes"].as_u64() > Some(0), "{listed}: a part is gone from the tree");
        assert!(listed[1]["shared_bytes"].as_u64() > Some(0), "{listed}");
        assert_eq!(listed[0]["created"].as_str().map(str::len), Some("2026-11-28T19:00:00Z".len()));
        stage.sh("diff -r --no-dereference $HOST/saved .snapshots/one/a");
        stage.sh("diff -r --no-dereference a .snapshots/two/a; ! test -e .snapshots/two/.snapshots");
        assert_eq!(stage.sh("stat -c %a .snapshots"), "700\n");
        assert_eq!(stage.sh("ls -A"), "a\n");
        assert!(snapshot(&["create", &mount, "one"]).complaint(1).contains("EEXIST"));
        assert!(snapshot(&["create", &mount, "a/b"]).complaint(2).contains("without `/`"));
        assert!(snapshot(&["delete", &mount, "three"]).complaint(1).contains("ENOENT"));
        assert!(snapshot(&["delete", &mount, ".."]).complaint(2).contains("give a name without `/`"));
        assert!(snapshot(&["restore", &mount, "one", "none"]).complaint(1).contains("ENOENT"));
        stage.sh("cat a/new; test ! -e a/part-0");
        snapshot(&["restore", &mount, "one", "a/part-0"]).well();
        stage.sh("diff -r --no-dereference $HOST/saved/part-0 a/part-0; cat a/new");
        stage.sh("echo x > other");
        snapshot(&["restore", &mount, "one"]).well();
        stage.sh("diff -r --no-dereference $HOST/saved a; test \"$(ls -A)\" = a");
        snapshot(&["delete", &mount, "one"]).well();
        assert!(!snapshot(&["list", &mount]).well().contains("one"));
        stage.sh("! test -e .snapshots/one; test -e .snapshots/two/a/new");
        assert!(
            snapshot(&["list", stage.host().to_str().expect("text")]).complaint(1).contains("sluice mount")
        );
    }
}

#[test]
fn nothing_below_a_snapshot_changes_through_a_mount() {
    for mode in LOCK_MODES {
        let Some(stage) = Stage::new("a snapshot is read-only", mode, &["cc"]) else { return };
        let mount = stage.mount().to_str().expect("text").to_owned();
        stage.sh("mkdir d; echo text > d/f; ln -s f d/link; echo outside > outside");
        sluice(["snapshot", "create", &mount, "one"]).well();
        let stats = || stage.sh("cd .snapshots/one && stat -c '%n %i %a %u %h %s %x %y %z' . d d/f d/link");
        let before = stats();
        let calls = [
            "echo x > .snapshots/one/d/f",
            "echo x | tee -a .snapshots/one/d/f",
            "truncate -s 1 .snapshots/one/d/f",
            "fallocate -l 9999 .snapshots/one/d/f",
            "chmod 0 .snapshots/one/d",
            "chown 1 .snapshots/one/d/f",
            "chown -h 1 .snapshots/one/d/link",
            "touch .snapshots/one/d/f",
            "touch .snapshots/one/new",
            "mkdir .snapshots/one/d/new",
            "ln -s x .snapshots/one/d/new",
            "mkfifo .snapshots/one/d/new",
            "ln .snapshots/one/d/f x",
            "ln outside .snapshots/one/x",
            "mv -T .snapshots/one/d/f .snapshots/one/d/g",
            "mv -T .snapshots/one/d x",
            "mv -T outside .snapshots/one/d/f",
            "rm -f .snapshots/one/d/f",
            "rmdir .snapshots/one",
            "mv -T .snapshots/one .snapshots/two",
            "mv -T .snapshots moved",
            "mkdir .snapshots/two",
            "chmod 777 .snapshots",
        ];
        for call in calls {
            let said = stage.sh(&format!("! ( {call} ) 2>&1"));
            assert!(said.contains("Read-only file system"), "{mode}: {call}: {said}");
        }
        assert_eq!(stage.sh("cat .snapshots/one/d/f outside"), "text\noutside\n");
        // A store through a mapping is refused when it is written back, and no program reads it then.
        let program = stage.compile("mappings", include_str!("mappings.c"));
        let stored = stage.sh(&format!("{} read-only .snapshots/one/d/f", program.display()));
        assert_eq!(stored, "read-only done\n");
        assert_eq!(stats(), before, "{mode}");
    }
}
