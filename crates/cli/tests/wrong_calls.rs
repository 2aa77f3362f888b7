//! Wrong calls: the answers to mistakes of a user with README and the program alone: one line that says what to do, the right
//! exit status, and nothing done.

#[path = "suite/harness/mod.rs"]
mod harness;

use harness::{Ran, SLUICE, Scratch, Served, can_mount, is_mounted, sluice, umount};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

/// A directory with a file, a directory that holds one, an empty directory to mount on, and a store.
fn stage() -> Scratch {
    let scratch = Scratch::new();
    std::fs::write(scratch.0.join("file"), "").unwrap();
    std::fs::write(scratch.dir("full").join("x"), "").unwrap();
    std::fs::write(scratch.dir("broken").join("cluster.json"), "{").unwrap();
    std::fs::write(scratch.0.join("broken/ca.pem"), "x").unwrap();
    scratch.dir("m");
    sluice(["mkfs".as_ref(), scratch.0.join("st").as_os_str()]).well();
    scratch
}

/// A run in `stage` of `script`, in which `$S` is the program.
fn run(stage: &Scratch, script: &str) -> Ran {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).env("S", SLUICE).current_dir(&stage.0).stdin(Stdio::null());
    shell.env_remove(sluice_sync::lock_debug::RECORD).output().expect("sh starts").into()
}

#[test]
fn a_mistake_is_answered_with_one_line_that_says_what_to_do() {
    let stage = stage();
    let cases: &[(&str, i32, &str)] = &[
        ("''", 2, "unrecognized subcommand"),
        ("mkfs ''", 2, "a value is required"),
        ("mkfs file", 1, "not a directory: give an empty or a new one"),
        ("mkfs file/x", 1, "Not a directory"),
        ("mkfs full", 1, "the directory holds files that are no store"),
        ("mkfs st", 1, "there is a sluicefs store here already"),
        ("mkfs s3:/bucket", 2, "write s3://bucket; for a directory, ./s3:/bucket"),
        ("mkfs S3://bucket/x", 2, "write s3://bucket/x"),
        ("mkfs s3://", 2, "it names no bucket"),
        ("mkfs s3://b", 2, "is no name of a bucket"),
        ("mkfs http://x", 2, "it is of an unknown kind"),
        ("info \"$(printf 'a\\nb')\"", 1, "a\\nb: this is no sluicefs store"),
        ("mkfs \"$(printf 'file:///x\\377')\"", 2, "an address is text in UTF-8"),
        ("mkfs \"$(printf 's3:/b\\377')\"", 2, "write s3://b"),
        ("info file://$PWD/st", 2, "st: the store there is of another kind: give /"),
        ("mount file://$PWD/st m", 2, "st: the store there is of another kind: give /"),
        ("mount -o key_file=m/k st m", 1, "the directory of the key: give another directory to mount on"),
        ("cluster init st", 2, "st: is a store: give the cluster a directory of its own"),
        (
            "cluster init 127.0.0.1:2379/w",
            2,
            "for an etcd write http://127.0.0.1:2379/w; for a directory, ./127.",
        ),
        ("mkfs file://rel", 2, "the directory must begin with /"),
        ("info s3:/bucket", 2, "write s3://bucket"),
        ("info FILE:///x", 2, "write file:///x"),
        ("info file", 1, "this is no sluicefs store"),
        ("info nowhere", 1, "this is no sluicefs store"),
        ("fsck file:/x", 16, "write file:///x"),
        ("fsck s3://", 16, "it names no bucket"),
        ("info http://x", 2, "it is of an unknown kind"),
        ("key list s3://b", 2, "is no name of a bucket"),
        ("mount s3:// m", 2, "it names no bucket"),
        ("mount file://rel m", 2, "the directory must begin with /"),
        ("run s3:// -- true", 2, "it names no bucket"),
        ("send --resume xyz m", 2, "--resume xyz: no token of `sluice receive`"),
        ("fsck file", 8, "this is no sluicefs store"),
        ("fsck", 16, "STORE"),
        ("fsck --repair file:///tmp", 8, "no sluicefs store"),
        ("mount s3:/b m", 2, "write s3://b"),
        ("mount nowhere m", 1, "this is no sluicefs store"),
        ("mount full m", 1, "this is no sluicefs store"),
        ("mount st nowhere", 1, "give an existing directory"),
        ("mount file", 1, "give an existing directory to mount on"),
        ("mount st m x", 2, "unexpected value 'x'"),
        ("mount --ram st m", 2, "--ram takes no STORE: give only"),
        ("mount -o threads=999 m", 2, "mount option threads="),
        ("mount -o threads=0 m", 2, ": give 1 to "),
        ("mount -o max_write=1 m", 2, "mount option max_write="),
        ("mount -o fsname= m", 2, "mount option fsname: give a name"),
        ("mount -o mode=9 m", 2, "give octal digits, such as 755 or 1777"),
        ("mount -o memory=0 st m", 2, "give bytes, such as 64M; without it a store takes up to half"),
        ("mount -o uid=me m", 2, "give the number of a user"),
        ("mount -o gid=us m", 2, "give the number of a group"),
        ("mount -o uid=5 st m", 2, "only in memory"),
        ("mount -o takeover st m", 2, "only with a store in an object store"),
        ("mount -o volatile file:///usr m", 2, "only with a store in a directory"),
        ("mount -o nr_locks=5 m", 2, "only with locks=sluice"),
        ("mount -o metrics=1.2.3.4:5 m", 1, "mount option metrics=1.2.3.4:5"),
        ("mount -o lockfile=a m", 2, "add locks=sluice"),
        ("mount -o checks=sluice,allow_other m", 2, "leave out allow_other, or checks=sluice"),
        ("mount --cluster dir:full m", 2, "--cluster needs a STORE before DIR"),
        ("mount --cluster x st m", 2, "give dir:SHARED"),
        ("mount --cluster dir:full st m", 1, "no cluster: make one with `sluice cluster init`"),
        ("mount -o remount,ro m", 1, "no sluicefs is mounted there"),
        ("umount m", 1, "no sluicefs is mounted there"),
        ("umount -l -f m", 2, "cannot be used with"),
        ("run -- nowhere", 127, "no such command"),
        ("run -- /etc/passwd", 126, "Permission denied"),
        ("locks .", 1, "not in a sluicefs mount"),
        ("locks --hot .", 1, "not in a sluicefs mount"),
        ("locks --hot --json .", 2, "cannot be used with"),
        ("stat .", 1, "not in a sluicefs mount"),
        ("top .", 1, "not in a sluicefs mount"),
        ("top", 2, "give a directory of a mount"),
        ("clone file x", 1, "not in a sluicefs mount"),
        ("snapshot list .", 1, "not in a sluicefs mount"),
        ("fault .", 1, "not in a sluicefs mount"),
        ("snapshot create . a/b", 2, "give a name without `/`"),
        ("snapshot create . ..", 2, "give a name without `/`"),
        ("snapshot restore . a/b", 2, "give a name without `/`"),
        ("snapshot delete . a/b", 2, "give a name without `/`"),
        ("fault . write:EBOGUS", 2, "EBOGUS"),
        ("fault --clear=x .", 2, "give a number"),
        ("fault --crash-clone full .", 1, "not empty: give a new directory"),
        ("cluster init ''", 2, "give a directory that all nodes share"),
        ("cluster init dir:", 2, "give dir:SHARED"),
        ("cluster init ftp://x/y", 2, "give a directory that all nodes share"),
        ("cluster init file", 1, "file: "),
        ("cluster init --ttl 1 http://127.0.0.1:1/x", 2, "four seconds or more"),
        ("cluster init --ttl 0 new", 2, "give half a second or more"),
        ("cluster init --ttl 99999999999999999999 new", 2, "below a day"),
        ("cluster init 'http://127.0.0.1:1/na me'", 2, "the name of a cluster is of letters, digits"),
        ("cluster status nowhere", 1, "no cluster: make one"),
        ("cluster status broken", 1, "make the cluster anew"),
        ("cluster status http://127.0.0.1:1/x", 1, "does not answer: Connection refused"),
        ("cluster leave m", 1, "no sluicefs is mounted there"),
        ("bench stat --json nowhere/x", 1, "nowhere/x"),
        ("compare file file", 1, "no results in it"),
        ("compare m file", 1, "Is a directory"),
        ("commute --pair x", 2, "give two calls, as in --pair open,unlink"),
        ("commute --pair open,x", 2, "no call is named x"),
    ];
    for (arguments, status, hint) in cases {
        let line = run(&stage, &format!("$S {arguments}")).complaint(*status);
        assert!(line.contains(hint), "{arguments}: {line}");
        assert!(!line.contains("os error") && !line.contains("panicked"), "{arguments}: {line}");
    }
    for (variable, hint) in [
        ("AWS_REGION='a b'", " has a space, a line's end or another character"),
        ("AWS_ENDPOINT_URL=here", "AWS_ENDPOINT_URL is `here`, which is no URL: give it as http://HOST:PORT"),
        ("AWS_ENDPOINT_URL=http://u:p@h", "AWS_ENDPOINT_URL has a user or a password"),
        ("AWS_ACCESS_KEY_ID=a", "AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not"),
        (
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST=perhaps",
            "a variable AWS_... has a value that cannot be used: see `env | grep AWS_`",
        ),
        ("ETCDCTL_CACERT=/no/file", "/no/file: "),
    ] {
        let etcd = variable.starts_with("ETCD");
        let words = if etcd { "cluster status https://127.0.0.1:1/x" } else { "mkfs s3://bucket/x" };
        let line = run(&stage, &format!("env -u AWS_SECRET_ACCESS_KEY {variable} $S {words}")).complaint(2);
        assert!(line.contains(hint) && !line.contains("Generic"), "{variable}: {line}");
    }
    let line = run(&stage, "env -u ETCDCTL_CACERT $S cluster status https://127.0.0.1:1/x").complaint(2);
    assert!(line.contains("ETCDCTL_CACERT=FILE in the environment says it"), "{line}");
    let mut names = stage.names();
    names.sort();
    assert_eq!(names, ["broken", "file", "full", "m", "st"], "nothing was made");
}

#[test]
fn each_command_refuses_an_argument_too_many_and_an_option_that_it_has_not() {
    let help = sluice(["--help"]).well();
    let commands = help.split("Commands:").nth(1).and_then(|rest| rest.split("Options:").next()).unwrap();
    let commands: Vec<&str> = commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() > 15, "{commands:?}");
    for command in commands {
        for (arguments, hint) in [(vec!["--turbo"], "--turbo"), (vec!["a", "b", "c", "d", "e"], "")] {
            if command == "bench" && hint.is_empty() {
                continue;
            }
            let ran = sluice([command].into_iter().chain(arguments));
            let line = ran.complaint(if command == "fsck" { 16 } else { 2 });
            assert!(line.contains(hint), "{command}: {line}");
        }
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_output_that_nobody_reads_is_none() {
    let stage = stage();
    for (command, status) in
        [("info st", 1), ("fsck st", 8), ("--help", 1), ("--version", 1), ("completions bash", 1)]
    {
        let line = run(&stage, &format!("$S {command} >/dev/full")).complaint(status);
        assert!(line.contains("cannot write to standard output: No space left on device"), "{line}");
        let line = run(&stage, &format!("$S {command} >&-")).complaint(status);
        assert!(line.contains("cannot write to standard output: Bad file descriptor"), "{line}");
        // As a daemon's standard output may be.
        run(&stage, &format!("$S {command} 1<>/dev/null")).well();
        assert_eq!(run(&stage, &format!("$S {command} 2>&- <&-")).status, Some(0));
    }
    let line = run(&stage, "$S bench --help >/dev/full").complaint(1);
    assert!(line.contains("cannot write to standard output: No space left on device"), "{line}");
    let line = run(&stage, "$S commute --pair open,stat --json - >/dev/full").complaint(1);
    assert!(line.contains("cannot write the results: "), "{line}");
}

#[test]
fn a_small_stack_is_enough() {
    let stage = stage();
    for command in ["fsck st", "info st", "mkfs fresh", "bench --help", "mount --help"] {
        let ran = run(&stage, &format!("ulimit -s 200; $S {command}"));
        assert_eq!((ran.status, &*ran.stderr), (Some(0), ""), "{command}");
    }
}

#[test]
fn a_server_that_may_open_too_few_files_does_not_begin() {
    if !can_mount("a_server_that_may_open_too_few_files_does_not_begin") {
        return;
    }
    let stage = stage();
    let _served = Served(stage.0.join("m"));
    for limit in [4, 12, 20, 63] {
        for command in ["mount m", "mount st m", "run -- true"] {
            let line = run(&stage, &format!("ulimit -n {limit}; $S {command}")).complaint(1);
            let too_few =
                ["a server needs 64", "cannot start the serving process: Too many", "Too many open files"];
            assert!(too_few.iter().any(|text| line.contains(text)), "{line}");
            assert!(!is_mounted(&stage.0.join("m")), "{command} with {limit}");
        }
    }
    run(&stage, "ulimit -n 64; $S mount st m && echo x >m/x && $S umount m").well();
}

#[test]
fn a_mount_point_is_no_store_and_gets_no_second_mount() {
    if !can_mount("a_mount_point_is_no_store_and_gets_no_second_mount") {
        return;
    }
    let stage = stage();
    let dir = stage.0.join("m");
    let served = Served(dir.clone());
    for (how, said) in [("st", "a mount of the store "), ("", "a mount of sluicefs, which is no store")] {
        run(&stage, &format!("$S mount {how} m")).well();
        for (command, status) in [("fsck m", 16), ("mkfs m", 2), ("mount m full", 2)] {
            let line = run(&stage, &format!("$S {command}")).complaint(status);
            assert!(line.contains(said), "{command}: {line}");
        }
        for command in ["mount m", "mount -o ro,allow_other m"] {
            let line = run(&stage, &format!("$S {command}")).complaint(1);
            assert!(line.contains("mounted there already") && line.contains("sluice umount"), "{line}");
        }
        let line = run(&stage, "$S mount -o remount,turbo m").complaint(2);
        assert!(line.contains("unknown mount option turbo"), "{line}");
        umount(&dir);
        assert!(!is_mounted(&dir), "it was mounted once");
    }
    drop(served);
}

#[test]
fn a_store_may_have_any_name() {
    if !can_mount("a_store_may_have_any_name") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    let _served = Served(dir.clone());
    for name in [&b"a,b"[..], b"a\\b\\040", b"a\nb", b"a b\t#", b"a\xffb", b"-o", b"a=b"] {
        let store = scratch.0.join(OsStr::from_bytes(name));
        let on = |command: &str| sluice([command.as_ref(), store.as_os_str()]);
        on("mkfs").well();
        sluice(["mount".as_ref(), store.as_os_str(), dir.as_os_str()]).well();
        // Its server knows what is in it, and by the mount it is found.
        let of_store = on("info").well();
        assert!(
            of_store.contains("data     0 bytes") && of_store.contains("in use by process"),
            "{of_store}"
        );
        assert_eq!(sluice(["info".as_ref(), dir.as_os_str()]).well(), of_store);
        umount(&dir);
        assert!(on("fsck").well().contains("clean"));
    }
    let named = scratch.0.join("x\ny");
    let line = sluice(["info".as_ref(), named.as_os_str()]).complaint(1);
    assert!(line.contains("x\\ny: this is no sluicefs store"), "{line}");
}

#[test]
fn keys_that_are_damaged_are_named() {
    let stage = stage();
    run(&stage, "$S cluster init c && $S cluster join c id").well();
    let empty = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for bytes in ["", "junk", "-----BEGIN CERTIFICATE-----\nAAAA\n", empty] {
        for file in ["id/node.key", "id/ca.pem", "c/ca.key"] {
            let path = stage.0.join(file);
            let right = std::fs::read(&path).unwrap();
            std::fs::write(&path, bytes).unwrap();
            let identity = if file.starts_with("id") { "id" } else { "c" };
            let line = run(&stage, &format!("$S cluster status c --identity {identity}")).complaint(1);
            let told = format!("{file} holds no certificate or key: bring it here again");
            assert!(line.contains(&told), "{line}");
            std::fs::write(&path, right).unwrap();
        }
    }
}

#[test]
fn a_server_that_is_no_etcd_is_told_from_one() {
    let stage = stage();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (at, stream) in listener.incoming().flatten().enumerate() {
            let mut stream = stream;
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let status = if at % 2 == 0 { "200 OK" } else { "501 Not Implemented" };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>");
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    for named in ["", "etcd at "] {
        let line = run(&stage, &format!("$S cluster status http://{address}/x")).complaint(1);
        assert!(line.contains(named), "{line}");
        assert!(line.contains(" as no etcd does: is that its address?") && !line.contains('<'), "{line}");
    }
}

#[test]
fn locks_of_another_file_system_are_not_shown() {
    let scratch = Scratch::new();
    let file = scratch.0.join("file");
    let locked = File::create(&file).unwrap();
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).unwrap();
    for form in ["--table", "--json", "--hot"] {
        let line = sluice(["locks".as_ref(), form.as_ref(), file.as_os_str()]).complaint(1);
        assert!(line.contains("not in a sluicefs mount: `sluice mount` makes one"), "{line}");
    }
}

#[test]
fn a_key_that_others_may_read_is_warned_of_where_it_is_used() {
    let stage = stage();
    run(&stage, "$S cluster init c && $S cluster join c id && $S cluster status --identity id c").well();
    for (key, commands) in [
        ("c/ca.key", ["cluster join c id", "cluster status c"]),
        ("id/node.key", ["cluster status --identity id c", "cluster status --json --identity id c"]),
    ] {
        for command in commands {
            let warned = run(&stage, &format!("chmod 640 {key}; $S {command}"));
            assert_eq!(warned.status, Some(0), "{}", warned.stderr);
            let cure = warned.stderr.trim_end().rsplit("to end that: ").next().unwrap();
            assert!(warned.stderr.contains("other users may read this key") && cure.ends_with(key), "{cure}");
            run(&stage, &format!("{cure} && $S {command}")).well();
        }
    }
}

#[test]
fn a_mount_that_hides_what_it_needs_or_stands_in_it_is_refused() {
    let stage = stage();
    run(&stage, "mkdir -p a/c/in a/keys/in a/cache/in free b; $S cluster init a/c").well();
    run(&stage, "$S mkfs a/store; $S mkfs file://$PWD/a/objects; mkdir -p a/objects/in").well();
    let cache = "mount file://$PWD/a/objects";
    let cluster = "mount file://$PWD/a/objects --cluster dir:a/c --identity a/keys";
    let elsewhere = "file://$PWD/free";
    let cases = [
        ("store", "mount a/store".to_owned(), ["a", "a/store", "."]),
        ("store", cache.to_owned(), ["a", "a/objects", "a/objects/in"]),
        ("cache", format!("mount {elsewhere} -o cache=$PWD/a/cache"), ["a", "a/cache", "a/cache/in"]),
        // It is not there yet, and would be made where the mount hides it.
        ("cache", format!("mount {elsewhere} -o ro,cache=$PWD/a/x/y"), ["a", "./a", "a/"]),
        ("cluster", format!("mount {elsewhere} --cluster dir:a/c"), ["a", "a/c", "a/c/in"]),
        (
            "node's keys",
            cluster.replace("dir:a/c", "http://127.0.0.1:1/n"),
            ["a/keys", "a/keys/in", "a/keys/"],
        ),
    ];
    for (what, command, dirs) in cases {
        for dir in dirs {
            let line = run(&stage, &format!("$S {command} {dir}")).complaint(1);
            let expected =
                format!("stands in the directory of the {what}: give another directory to mount on");
            assert!(line.contains(&expected), "{command} {dir}: {line}");
        }
    }
    // Another path of the same directory.
    let bound = |command: &str, from: &str| {
        let script = format!("mount --bind {from} b && exec $S {command} b");
        run(&stage, &format!("unshare --mount sh -c '{script}'"))
    };
    if !rustix::process::geteuid().is_root() || run(&stage, "unshare --mount true").status != Some(0) {
        return;
    }
    for (what, command, from) in [
        ("store", "mount a/store".to_owned(), "a"),
        ("store", "mount a/store".to_owned(), "a/store"),
        ("cache", format!("mount {elsewhere} -o cache=$PWD/a/cache"), "a"),
        ("cluster", format!("mount {elsewhere} --cluster dir:a/c"), "a/c"),
    ] {
        let line = bound(&command, from).complaint(1);
        assert!(line.contains(&format!("stands in the directory of the {what}")), "{command} {from}: {line}");
    }
}

#[test]
fn keys_of_an_authority_that_was_replaced_are_refused_and_before_both_serve() {
    let stage = stage();
    run(&stage, "$S cluster init c && $S cluster init next && $S cluster join c before").well();
    let other =
        run(&stage, "cp -r before with && cp next/ca.pem with && $S cluster status --identity with c");
    assert!(other.complaint(1).contains("of the authority of another cluster"));
    run(&stage, "cat next/ca.pem >> c/ca.pem && $S cluster join c of-old").well();
    run(&stage, "cp next/ca.key c && $S cluster join c of-new && test 2 = $(grep -c BEGIN of-new/ca.pem)")
        .well();
    for identity in ["before", "of-old", "of-new", "with", "c"] {
        run(&stage, &format!("$S cluster status --identity {identity} c")).well();
    }
    run(&stage, "cp next/ca.pem c && $S cluster status --identity of-new c && $S cluster join c after")
        .well();
    let refused = run(&stage, "$S cluster status --identity before c").complaint(1);
    assert!(refused.contains("of the authority of another cluster"), "{refused}");
    let refused = run(&stage, "cp before/ca.pem c && $S cluster join c wrong").complaint(1);
    assert!(refused.contains("ca.key is of no authority in ca.pem"), "{refused}");
}
