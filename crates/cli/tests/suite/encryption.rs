//! The command line with encrypted stores: keys that open them, keys that do not, and what their files show.

use crate::harness::{Ran, SLUICE, Scratch, can_mount, skipped};
use serde_json::Value;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs `script` in `dir` without a terminal that could be asked for a passphrase; `sluice` is the program there.
pub(crate) fn sh(dir: &Path, script: &str) -> Ran {
    let path = Path::new(SLUICE).parent().expect("it is in a directory");
    let path = format!("{}:{}", path.display(), std::env::var("PATH").unwrap_or_default());
    let script = format!("set -euo pipefail; umask 077; {script}");
    let mut bash = Command::new("setsid");
    bash.args(["--wait", "bash", "-c", &script]).current_dir(dir).env("PATH", path).stdin(Stdio::null());
    Ran::from(bash.output().expect("bash starts"))
}

/// A scratch directory with an encrypted store in `s`, the key file `k`, another one `l`, and the passphrase in `p`.
fn stage() -> Scratch {
    let scratch = Scratch::new();
    let made = "
        mkdir m
        head -c 32 /dev/urandom > k; head -c 40 /dev/urandom > l; echo 'some words' > p
        sluice mkfs --encrypt --key-file k s";
    sh(&scratch.0, made).well();
    scratch
}

#[test]
fn an_encrypted_store_shows_nothing_and_all_commands_take_its_key() {
    let test = "an_encrypted_store_shows_nothing_and_all_commands_take_its_key";
    if !can_mount(test) {
        return;
    }
    let scratch = stage();
    let used = "
        sluice mount -o key_file=k s m
        mkdir m/dir-with-a-telling-name; cd m/dir-with-a-telling-name
        for n in $(seq 50); do echo \"telling contents of few words\" > telling-file-$n; done
        for n in $(seq 20000); do echo \"telling contents of many words\"; done > telling-long
        ln -s telling-target telling-link; setfattr -n user.telling -v telling-value telling-long 2>/dev/null || true
        sync -f .; cd ../..; grep -rl telling s && exit 9
        sluice snapshot create m telling-snapshot; sluice send m/.snapshots/telling-snapshot > stream
        sluice scrub m > /dev/null; sluice umount m; grep -rl telling s && exit 9
        sluice fsck --key-file k s > /dev/null
        sluice mount -o key_file=k s m; test $(wc -l < m/dir-with-a-telling-name/telling-long) = 20000
        test $(cat m/dir-with-a-telling-name/telling-file-7 | wc -w) = 5; sluice umount m
        sluice mkfs --encrypt --passphrase-file p t; sluice receive --passphrase-file p t < stream
        grep -rl telling t && exit 9
        sluice run t -o passphrase_file=p -- sh -c 'ls .snapshots'";
    let said = sh(&scratch.0, used).well();
    assert_eq!(said.trim(), "telling-snapshot");
    let info = |key: &str| {
        let said = sh(&scratch.0, &format!("sluice info --json {key} s")).well();
        serde_json::from_str::<Value>(&said).expect("JSON")
    };
    let (with, without) = (info("--key-file k"), info(""));
    assert_eq!((&with["encrypted"], &with["version"]), (&true.into(), &12.into()));
    assert!(with["data_bytes"].as_u64().is_some_and(|bytes| bytes > 0) && without["data_bytes"].is_null());
    let text = sh(&scratch.0, "sluice info s").well();
    assert!(text.contains("version  12, encrypted\n") && text.contains("a key shows its use"), "{text}");
    let plain = sh(&scratch.0, "sluice mkfs plain; sluice info --json plain").well();
    assert!(plain.contains("\"encrypted\":false"), "{plain}");
}

#[test]
fn a_wrong_key_says_so_and_changes_nothing() {
    let scratch = stage();
    let sum = || sh(&scratch.0, "cat s/* | sha256sum").well();
    let before = sum();
    let refused = |command: &str, status: i32, wanted: &str| {
        let said = sh(&scratch.0, command).complaint(status);
        assert!(said.contains(wanted), "{command}: {said}");
        assert_eq!(sum(), before, "{command}");
    };
    for (key, flag, wanted) in [
        ("key_file=l", "--key-file l", "s: the key is wrong: it opens no slot of the store"),
        ("passphrase_file=p", "--passphrase-file p", "s: the key is wrong: it opens no slot of the store"),
        ("key_file=none", "--key-file none", "none: No such file or directory"),
        ("key_file=p", "--key-file p", "p: the key file has 11 bytes, and needs 32 random ones"),
        ("ro", "", "s: the store is encrypted: give its key file or passphrase (-o key_file=FILE"),
    ] {
        refused(&format!("sluice mount -o {key} s m"), 1, wanted);
        refused(&format!("sluice fsck {flag} s"), 8, wanted);
        refused(&format!("sluice receive {flag} s"), 1, wanted);
        refused(&format!("sluice key add {flag} --new-key-file l s"), 1, wanted);
        refused(&format!("sluice key remove {flag} s 0"), 1, wanted);
        if !flag.is_empty() {
            refused(&format!("sluice info {flag} s"), 1, wanted);
        }
    }
    refused(": > empty; sluice fsck --passphrase-file empty s", 8, "empty: the passphrase is empty");
    refused("truncate -s 2M large; sluice fsck --key-file large s", 8, "large: a key file has up to 1 MiB");
    refused("sluice mount -o key_file= s m", 2, "mount option key_file=: give FILE, the path of the key");
    refused("sluice mkfs --key-file k t", 2, "a key without --encrypt");
    refused(
        "sluice mkfs --encrypt t",
        2,
        "t: there is no terminal to ask for a passphrase: give a key file or a passphrase file",
    );
    assert!(!scratch.0.join("t").exists(), "a directory that mkfs has made goes when it fails");
    refused("sluice key list file://$PWD/t", 1, "/t: this is no sluicefs store");
    refused("sluice mount --ram -o key_file=k m", 2, "mount option key_file=k: only with a store");
    refused(
        "sluice mkfs plain; sluice mount -o key_file=k plain m",
        1,
        "plain: the store is not encrypted: give no key",
    );
    sh(&scratch.0, "sluice mkfs file://$PWD/objects").well();
    for (command, status) in [("info", 1), ("receive", 1), ("fsck", 8)] {
        let command = format!("sluice {command} --key-file k file://$PWD/objects");
        refused(&command, status, "/objects: the store is not encrypted: give no key");
    }
    refused("sluice key list plain", 1, "plain: the store is not encrypted: give no key");
    let said = sh(&scratch.0, "chmod 644 k; sluice fsck --key-file k s > /dev/null");
    assert_eq!(said.status, Some(0));
    assert!(said.stderr.contains("k: other users may read this key"), "{}", said.stderr);
}

#[test]
fn keys_are_added_listed_and_removed_and_the_data_stay_as_they_are() {
    let scratch = stage();
    let script = "
        cat s/log s/tree | sha256sum > before
        sluice key add --key-file k --new-passphrase-file p s
        sluice key list s; sluice key remove --passphrase-file p s 0; sluice key list --json s
        cat s/log s/tree | sha256sum | cmp - before
        sluice fsck --passphrase-file p s > /dev/null";
    let said = sh(&scratch.0, script).well();
    assert_eq!(said, "slot 1\n0\tkey file\n1\tpassphrase\n{\"kind\":\"passphrase\",\"slot\":1}\n");
    let said = sh(&scratch.0, "sluice fsck --key-file k s").complaint(8);
    assert!(said.contains("the key is wrong"), "{said}");
    let said = sh(&scratch.0, "sluice key remove --passphrase-file p s 1").complaint(1);
    assert!(said.contains("slot 1 is that of the given key: give a key that stays"), "{said}");
    // A killed mkfs, and a store that was lost, leave nothing in the way.
    sh(&scratch.0, ": > s/mkfs-unfinished; sluice mkfs s; sluice fsck s > /dev/null; test ! -e s/keys")
        .well();
}

#[test]
fn a_person_is_asked_for_a_passphrase_and_no_terminal_shows_it() {
    let test = "a_person_is_asked_for_a_passphrase_and_no_terminal_shows_it";
    if Command::new("script").arg("--version").output().is_err() {
        skipped(test, "there is no script(1)");
        return;
    }
    let scratch = stage();
    let typed = |command: &str, answers: &[(&str, &str)]| {
        let mut script = Command::new("script");
        let path = Path::new(SLUICE).display();
        let mut child = script
            .args(["-qec", &format!("{path} {command}"), "/dev/null"])
            .current_dir(&scratch.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script starts");
        let (mut input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (mut said, mut answers) = (Vec::new(), answers.iter());
        let mut next = answers.next();
        for byte in std::io::BufReader::new(output).bytes() {
            said.push(byte.expect("it can be read"));
            if let Some((question, answer)) = next
                && said.ends_with(question.as_bytes())
            {
                input.write_all(answer.as_bytes()).expect("it listens");
                next = answers.next();
            }
        }
        assert_eq!(next, None, "it did not ask");
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(!said.contains("secret"), "{said}");
        (child.wait().expect("it ends").code(), said)
    };
    let (new, again, one) = ("New passphrase of t: ", "The same again of t: ", "Passphrase of t: ");
    let (status, said) = typed("mkfs --encrypt t", &[(new, "secret\n"), (again, "secret\n")]);
    assert_eq!(status, Some(0), "{said}");
    let (status, said) = typed("fsck t", &[(one, "seecret\u{7f}\u{15}secret\n")]);
    assert_eq!(status, Some(0), "{said}");
    let (status, said) = typed("fsck t", &[(one, "secrets\n")]);
    assert!(status == Some(8) && said.contains("the key is wrong"), "{status:?} {said}");
    let (status, said) = typed("fsck t", &[(one, "secret\u{3}")]);
    assert!(status == Some(8) && said.contains("interrupted"), "{status:?} {said}");
    if can_mount(test) {
        // A mount in the background opens the store by a descriptor, and names it all the same.
        let asks = format!("Passphrase of {}: ", scratch.0.join("t").display());
        let (status, said) = typed("mount t m", &[(&asks, "secret\n")]);
        assert_eq!(status, Some(0), "{said}");
        sh(&scratch.0, "sluice umount m").well();
    }
    std::fs::remove_dir_all(scratch.0.join("t")).expect("it is there");
    let (status, said) = typed("mkfs --encrypt t", &[(new, "secret\n"), (again, "secrets\n")]);
    assert!(status == Some(1) && said.contains("these are two passphrases"), "{status:?} {said}");
}

/// The commands of a file system in use, in an object store in `o`: all is unreadable without the key, also in the cache.
#[test]
fn an_encrypted_store_in_an_object_store_shows_nothing_and_all_commands_take_its_key() {
    let test = "an_encrypted_store_in_an_object_store_shows_nothing_and_all_commands_take_its_key";
    if !can_mount(test) {
        return;
    }
    let scratch = stage();
    let used = "
        o=file://$PWD/o; sluice mkfs --encrypt --compress --key-file k $o
        sluice mount -o key_file=k,cache=$PWD/c $o m
        mkdir m/telling-dir; (yes 'telling contents of many words' || true) | head -c 3000000 > m/telling-dir/telling-long
        for n in $(seq 30); do echo telling contents > m/telling-file-$n; done
        setfattr -n user.telling -v telling-value m/telling-file-7 2>/dev/null || true; sync m/telling-dir/telling-long
        sluice stat --json m > stat; sluice umount m
        grep -rl telling o c && exit 9
        sluice fsck --key-file k $o > /dev/null; sluice info --json $o > info; sluice info --key-file k $o > /dev/null
        rm -r c; sluice mount -o key_file=k,cache=$PWD/c $o m
        test $(wc -c < m/telling-dir/telling-long) = 3000000; test $(uniq m/telling-dir/telling-long | wc -l) -le 2
        test $(cat m/telling-file-7 | wc -w) = 2; sluice scrub m > /dev/null; sluice umount m
        grep -rl telling o c && exit 9; true";
    sh(&scratch.0, used).well();
    let read = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(scratch.0.join(name)).expect("it is there")).expect("JSON")
    };
    let (stat, info) = (read("stat"), read("info"));
    assert_eq!((&stat["encrypted"], &stat["compressed"]), (&true.into(), &true.into()));
    let bytes = |name: &str| stat[name].as_u64().expect("a number");
    assert!(bytes("contents_written_bytes") >= 3_000_000, "{stat}");
    assert!(bytes("contents_written_stored_bytes") < bytes("contents_written_bytes") / 4, "{stat}");
    assert_eq!((&info["encrypted"], &info["compressed"]), (&true.into(), &true.into()));
    let refused = |command: &str, status: i32, wanted: &str| {
        let said = sh(&scratch.0, &format!("o=file://$PWD/o; {command}")).complaint(status);
        assert!(said.contains(wanted), "{command}: {said}");
    };
    let (wrong, locked) =
        ("/o: the key is wrong: it opens no slot of the store", "/o: the store is encrypted: give its key");
    for (key, flag, wanted) in [
        ("key_file=l", "--key-file l", wrong),
        ("passphrase_file=p", "--passphrase-file p", wrong),
        ("ro", "", locked),
    ] {
        refused(&format!("sluice mount -o {key} $o m"), 1, wanted);
        refused(&format!("sluice fsck {flag} $o"), 8, wanted);
        refused(&format!("sluice fsck --repair {flag} $o"), 8, wanted);
        refused(&format!("sluice receive {flag} $o"), 1, wanted);
        refused(&format!("sluice key add {flag} --new-key-file l $o"), 1, wanted);
        refused(&format!("sluice key remove {flag} $o 0"), 1, wanted);
    }
    refused("sluice mkfs --encrypt --key-file k $o", 1, "there is a sluicefs store here already");
}

#[test]
fn keys_change_while_a_store_is_not_mounted_and_are_listed_and_refused_while_it_is() {
    let test = "keys_change_while_a_store_is_not_mounted_and_are_listed_and_refused_while_it_is";
    if !can_mount(test) {
        return;
    }
    let scratch = stage();
    sh(&scratch.0, "sluice mkfs --encrypt --key-file k file://$PWD/o").well();
    for store in ["s", "file://$PWD/o"] {
        let run = |command: &str| sh(&scratch.0, &format!("s={store}; {command}"));
        run("sluice mount -o key_file=k $s m; echo kept > m/file; sync -f m").well();
        for change in [
            "add --key-file k --new-passphrase-file p $s",
            "remove --key-file k $s 0",
            "add --key-file l --new-key-file k $s",
        ] {
            let said = run(&format!("sluice key {change}")).complaint(1);
            assert!(
                said.contains("in use by process") && said.contains("unmount it first"),
                "{store}: {said}"
            );
        }
        assert_eq!(
            run("sluice key list $s; echo more >> m/file; sync -f m; sluice umount m").well(),
            "0\tkey file\n"
        );
        let changed = "
            sluice key add --key-file k --new-passphrase-file p $s; sluice key remove --passphrase-file p $s 0
            sluice mount -o passphrase_file=p $s m; cat m/file; sluice umount m
            sluice key add --passphrase-file p --new-key-file k $s; sluice key list $s; sluice key remove --key-file k $s 1";
        assert_eq!(run(changed).well(), "slot 1\nkept\nmore\nslot 0\n0\tkey file\n1\tpassphrase\n");
        let said = run("sluice mount -o passphrase_file=p $s m").complaint(1);
        assert!(said.contains("the key is wrong"), "{store}: {said}");
    }
}

#[test]
fn nodes_of_a_cluster_share_an_encrypted_store_and_one_with_a_wrong_key_is_refused_before_it_takes_over() {
    let test = "nodes_of_a_cluster_share_an_encrypted_store_and_one_with_a_wrong_key_is_refused_before_it_takes_over";
    if !can_mount(test) {
        return;
    }
    let scratch = stage();
    let dir = &scratch.0;
    let made = "mkdir n; sluice cluster init dir:$PWD/cl; sluice mkfs --encrypt --key-file k file://$PWD/o
        sluice mount --cluster dir:$PWD/cl -o key_file=k,cache=$PWD/c file://$PWD/o m
        echo telling contents > m/telling; sync m/telling";
    sh(dir, made).well();
    for (option, wanted) in [("-o key_file=l", "the key is wrong"), ("", "the store is encrypted")] {
        let said =
            sh(dir, &format!("sluice mount --cluster dir:$PWD/cl {option} file://$PWD/o n")).complaint(1);
        assert!(said.contains(wanted), "{said}");
    }
    let taken_over = "sluice mount --cluster dir:$PWD/cl -o key_file=k file://$PWD/o n; cat n/telling
        sluice umount m; echo more >> n/telling; sync n/telling; cat n/telling; sluice umount n
        grep -rl telling o c && exit 9
        sluice fsck --key-file k file://$PWD/o > /dev/null";
    assert_eq!(sh(dir, taken_over).well(), "telling contents\ntelling contents\nmore\n");
}
