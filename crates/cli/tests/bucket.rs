//! The command line with stores in an object store: in a directory by `file://`, and in S3 where a server can be had.

#[path = "suite/harness/mod.rs"]
mod harness;

use harness::{Scratch, can_mount, crash, is_mounted, skipped, sluice, unmount_others, until};
use serde_json::Value;
use sluice_console::servers::ServerProcess;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// A store at an address, and the directory on which it is mounted. Unmounted when dropped, however the test ends.
struct Stored {
    url: String,
    dir: PathBuf,
    s3: Option<ServerProcess>,
}

impl Stored {
    /// A place in a directory of objects, which goes with the scratch directory; none where `test` cannot mount.
    fn in_a_directory(test: &str) -> Option<(Scratch, Stored)> {
        if !can_mount(test) {
            return None;
        }
        let scratch = Scratch::new();
        let url = format!("file://{}/store", scratch.0.display());
        let stored = Stored { url, dir: scratch.dir("m"), s3: None };
        Some((scratch, stored))
    }

    fn sluice(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(harness::SLUICE);
        if let Some(s3) = &self.s3 {
            command.env("AWS_ENDPOINT_URL", &s3.url).envs(s3.environment.iter().copied());
        }
        let ran = command.args(arguments).output().expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match ran.status.success() {
            true => Ok(text(&ran.stdout)),
            false => Err(text(&ran.stderr)),
        }
    }

    fn dir(&self) -> &str {
        self.dir.to_str().expect("a plain path")
    }

    fn mount(&self, options: &str) {
        assert_eq!(self.sluice(&["mount", "-o", options, &self.url, self.dir()]), Ok(String::new()));
    }

    fn umount(&self) {
        harness::umount(&self.dir);
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let said = self.sluice(&[arguments, &[&self.url]].concat()).expect("it is sound");
        serde_json::from_str(&said).expect("JSON")
    }

    fn assert_clean(&self) {
        let said = self.json(&["fsck", "--json"]);
        assert_eq!(said["status"], "clean", "{said}");
    }

    /// Ends the server as a crash of its process does, and takes the dead mount away.
    fn kill(&self) {
        crash(&self.dir);
        until("the server is dead", || self.json(&["info", "--json"])["in_use"] == false);
        // It says that the server had ended.
        let _ = self.sluice(&["umount", "--lazy", self.dir()]);
        assert!(!is_mounted(&self.dir));
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        if is_mounted(&self.dir) {
            let _ = self.sluice(&["umount", "--lazy", self.dir()]);
        }
    }
}

/// A server with the bucket `bucket`, whose objects are below `scratch`; none, and said so, where there is no program.
fn s3(test: &str, scratch: &Scratch) -> Option<ServerProcess> {
    let tools = std::env::var("TOOLS").map(PathBuf::from);
    let tools = tools.unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools").into());
    let s3 = ServerProcess::s3(&tools, &scratch.0, Ipv4Addr::LOCALHOST.into(), "bucket").expect("it starts");
    if s3.is_none() {
        skipped(test, "there is no versitygw (make s3-server builds it)");
    }
    s3
}

/// A store is made, used, killed and used again.
fn a_life(stored: &Stored) {
    let refused = stored.sluice(&["mount", &stored.url, stored.dir()]).expect_err("there is none");
    assert!(refused.contains("no sluicefs store") && refused.trim_end().lines().count() == 1, "{refused}");
    stored.sluice(&["mkfs", &stored.url]).expect("an empty place");
    let again = stored.sluice(&["mkfs", &stored.url]).expect_err("there is one");
    assert!(again.contains("already"), "{again}");
    let contents: Vec<u8> = (0..3_000_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
    stored.mount("size=1G");
    let file = |name: &str| stored.dir.join(name);
    fs::create_dir(file("d")).expect("room");
    fs::write(file("d/kept"), &contents).expect("room");
    fs::hard_link(file("d/kept"), file("link")).expect("room");
    let busy = stored.sluice(&["mount", &stored.url, stored.dir()]).expect_err("it is mounted");
    assert!(busy.contains("in use by process"), "{busy}");
    assert_eq!(stored.json(&["info", "--json"])["in_use"], true);
    // Not synchronised: unmounting does it.
    stored.umount();
    stored.assert_clean();
    stored.mount("size=1G");
    assert!(fs::read(file("link")).expect("it is there") == contents);
    for number in 0..20_u8 {
        let mut synced = File::create(file(&format!("f{number}"))).expect("room");
        synced.write_all(&vec![number; 5_000]).and_then(|()| synced.sync_all()).expect("room");
    }
    stored.kill();
    stored.assert_clean();
    stored.mount("ro");
    for number in 0..20_u8 {
        let name = format!("f{number}");
        assert!(fs::read(file(&name)).expect("it was synchronised") == vec![number; 5_000], "{name}");
    }
    stored.umount();
    let listed = stored.sluice(&["run", &stored.url, "--", "sh", "-c", "rm f1 && ls"]).expect("it runs");
    assert!(listed.starts_with("d\nf0\nf10\n"), "{listed}");
    stored.assert_clean();
    let info = stored.json(&["info", "--json"]);
    assert!(info["size_bytes"].as_u64() > Some(contents.len() as u64) && info["in_use"] == false, "{info}");
}

#[test]
fn a_store_in_a_directory_of_objects_survives_kill_and_is_one_for_the_next_mount() {
    let test = "a_store_in_a_directory_of_objects_survives_kill_and_is_one_for_the_next_mount";
    let Some((_scratch, stored)) = Stored::in_a_directory(test) else { return };
    a_life(&stored);
}

#[test]
fn a_quota_in_an_object_store_is_exact_after_its_server_was_killed() {
    let test = "a_quota_in_an_object_store_is_exact_after_its_server_was_killed";
    let Some((_scratch, stored)) = Stored::in_a_directory(test) else { return };
    stored.sluice(&["mkfs", &stored.url]).expect("an empty place");
    stored.mount("rw");
    let dir = stored.dir.join("dir");
    fs::create_dir(&dir).expect("room");
    let text = dir.to_str().expect("a plain path");
    stored.sluice(&["quota", text, "8M"]).expect("it may have one");
    let mut file = File::create(dir.join("file")).expect("room");
    file.write_all(&[7; 5 << 20]).and_then(|()| file.sync_all()).expect("room");
    drop(file);
    let refused = fs::write(dir.join("more"), vec![8; 4 << 20]).expect_err("it does not fit");
    assert_eq!(refused.kind(), std::io::ErrorKind::QuotaExceeded);
    fs::remove_file(dir.join("more")).expect("it is there");
    File::open(&dir).and_then(|dir| dir.sync_all()).expect("room");
    stored.kill();
    stored.assert_clean();
    stored.mount("rw");
    assert_eq!(stored.sluice(&["quota", text]), Ok(format!("{text}: 5.0 MiB of 8.0 MiB used\n")));
    stored.umount();
    stored.assert_clean();
}

#[test]
fn a_store_in_use_is_checked_and_what_changes_meanwhile_is_no_damage() {
    let test = "a_store_in_use_is_checked_and_what_changes_meanwhile_is_no_damage";
    let Some((_scratch, stored)) = Stored::in_a_directory(test) else { return };
    stored.sluice(&["mkfs", &stored.url]).expect("an empty place");
    stored.mount("size=1G");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut round = 0;
            while !is_over.load(Ordering::SeqCst) {
                let dir = stored.dir.join(format!("d{}", round % 5));
                fs::create_dir_all(&dir).expect("room");
                for number in 0..8_usize {
                    let name = dir.join(format!("f{number}"));
                    let mut file = File::create(&name).expect("room");
                    file.write_all(&vec![round as u8; number * 200_000 + 1]).expect("room");
                    fs::rename(&name, dir.join("moved")).expect("it is there");
                    if number % 3 == 0 {
                        file.sync_all().expect("room");
                    }
                }
                if round % 3 == 2 {
                    fs::remove_dir_all(&dir).expect("it is there");
                }
                round += 1;
            }
            round
        });
        for _ in 0..12 {
            stored.assert_clean();
        }
        is_over.store(true, Ordering::SeqCst);
        assert!(writer.join().expect("no panic") > 0);
    });
    stored.umount();
    stored.assert_clean();
}

#[test]
fn a_store_in_s3_survives_kill_and_is_one_for_the_next_mount() {
    let name = "a_store_in_s3_survives_kill_and_is_one_for_the_next_mount";
    if !can_mount(name) {
        return;
    }
    let scratch = Scratch::new();
    let Some(s3) = s3(name, &scratch) else { return };
    a_life(&Stored { url: "s3://bucket/place/store".into(), dir: scratch.dir("m"), s3: Some(s3) });
}

/// A mount that is served by the first process of a pid namespace of its own. It ends when dropped.
struct Container(Child);

impl Container {
    fn begin(stored: &Stored, options: &str) -> Container {
        let mut command = Command::new("unshare");
        let script = format!("{}; exec \"$0\" mount --foreground -o \"$@\"", unmount_others(&stored.dir));
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script]);
        command
            .args([harness::SLUICE, options, &stored.url, stored.dir()])
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        Container(command.spawn().expect("unshare starts"))
    }

    /// It ends by itself: what it says.
    fn complaint(mut self) -> String {
        let mut said = String::new();
        let mut pipe = self.0.stderr.take().expect("a pipe");
        pipe.read_to_string(&mut said).expect("text");
        assert_ne!(self.0.wait().expect("it ends").code(), Some(0), "{said}");
        said
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Its first process dies with it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_store_of_another_container_is_not_taken_while_that_lives_and_one_whose_first_process_was_killed_is() {
    let test = "a_store_of_another_container_is_not_taken_while_that_lives_and_one_whose_first_process_was_killed_is";
    if !rustix::process::geteuid().is_root() {
        return skipped(test, "it is not root, who may make a pid namespace");
    }
    let Some((_scratch, stored)) = Stored::in_a_directory(test) else { return };
    stored.sluice(&["mkfs", &stored.url]).expect("an empty place");
    let log = |what: &str| stored.sluice(&["info", &stored.url]).expect("a store").contains(what);
    let first = Container::begin(&stored, "size=1G");
    until("the first one has it", || log("in use by process 1 of another container"));
    // The claim of the first one moves while the others watch it: number 1 is not taken for themselves.
    for second in [Container::begin(&stored, "size=1G").complaint(), {
        stored.sluice(&["mount", &stored.url, stored.dir()]).expect_err("it is mounted")
    }] {
        let [waits, refused] = second.trim_end().lines().collect::<Vec<_>>()[..] else { panic!("{second}") };
        assert!(
            waits.contains("waits until it is known who lives: the store is in use by process 1"),
            "{second}"
        );
        assert!(refused.contains("in use by process 1 of another container of this machine"), "{second}");
        assert!(refused.contains("-o takeover"), "{second}");
    }
    drop(first);
    assert!(log("unless that has died"));
    // At once, and then after the claim has not moved for long enough.
    drop({
        let third = Container::begin(&stored, "size=1G,takeover");
        until("the third one has it", || {
            fs::read_dir(stored.dir.join("../store/owners"))
                .is_ok_and(|all| all.flatten().any(|claim| claim.file_name() == *"00000000000000000003"))
        });
        third
    });
    stored.mount("size=1G");
    stored.umount();
    stored.assert_clean();
    let plain = sluice(["mount", "-o", "takeover", "--ram", stored.dir()]).complaint(2);
    assert!(plain.contains("mount option takeover: only with a store"), "{plain}");
}

#[test]
fn a_mount_whose_store_another_process_took_does_not_end_as_if_all_were_well() {
    let test = "a_mount_whose_store_another_process_took_does_not_end_as_if_all_were_well";
    let Some((scratch, stored)) = Stored::in_a_directory(test) else { return };
    stored.sluice(&["mkfs", &stored.url]).expect("an empty place");
    let second = Stored { url: stored.url.clone(), dir: scratch.dir("second"), s3: None };
    let assert_tells = |said: &str| {
        let is_told =
            said.contains("not all is durable") && said.contains("another process has opened the store");
        assert!(is_told && said.trim_end().lines().count() == 1, "{said}");
    };
    for in_foreground in [false, true] {
        let mut server = None;
        if in_foreground {
            let mut command = Command::new(harness::SLUICE);
            command.args(["mount", "--foreground", &stored.url, stored.dir()]).stderr(Stdio::piped());
            server = Some(command.spawn().expect("it starts"));
            until("it is mounted", || is_mounted(&stored.dir));
        } else {
            stored.mount("size=1G");
        }
        fs::write(stored.dir.join("kept"), "durable").expect("room");
        File::open(stored.dir.join("kept")).and_then(|file| file.sync_all()).expect("durable");
        second.mount("takeover");
        fs::write(stored.dir.join("lost"), "lost").expect("it does not know yet");
        assert_tells(&stored.sluice(&["umount", stored.dir()]).expect_err("changes are lost"));
        if let Some(mut server) = server {
            let mut said = String::new();
            server.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
            assert_eq!(server.wait().expect("it ends").code(), Some(1));
            assert_tells(said.lines().last().unwrap_or_default());
        }
        assert_eq!(fs::read_to_string(second.dir.join("kept")).expect("it was durable"), "durable");
        assert!(!second.dir.join("lost").exists());
        second.umount();
        stored.assert_clean();
    }
}

#[test]
fn a_cache_on_disk_answers_for_the_object_store_and_both_are_counted() {
    if !can_mount("a_cache_on_disk_answers_for_the_object_store_and_both_are_counted") {
        return;
    }
    let scratch = Scratch::new();
    let path = |name: &str| scratch.0.join(name).display().to_string();
    let stored = Stored { url: format!("file://{}", path("objects")), dir: scratch.dir("m"), s3: None };
    let options = format!("size=1G,cache={},cache_size=64M", path("cache"));
    let contents = vec![7; 2_000_000];
    stored.sluice(&["mkfs", &stored.url]).expect("an empty place");
    stored.mount(&options);
    fs::write(stored.dir.join("file"), &contents).expect("room");
    stored.umount();
    stored.mount(&options);
    assert!(fs::read(stored.dir.join("file")).expect("it is there") == contents);
    let stat = stored.sluice(&["stat", "--json", stored.dir()]).expect("it is mounted");
    let stat: Value = serde_json::from_str(&stat).expect("JSON");
    assert!(
        stat["cache_hits"].as_u64() > Some(0) && stat["cache_bytes"].as_u64() > Some(1_000_000),
        "{stat}"
    );
    assert!(stat["object_requests"]["get"]["ns_total"].as_u64() > Some(0), "{stat}");
    let told = stored.sluice(&["stat", stored.dir()]).expect("it is mounted");
    assert!(told.contains("object put, ") && told.contains("cache hits"), "{told}");
    stored.umount();
    let plain = path("plain");
    stored.sluice(&["mkfs", &plain]).expect("an empty place");
    let refused = stored.sluice(&["mount", "-o", &options, &plain, stored.dir()]).expect_err("it needs none");
    assert!(refused.contains("in an object store") && refused.trim_end().lines().count() == 1, "{refused}");
}

/// The one-line error of `sluice info` for a store in S3, with these settings beside usual ones.
fn complaint_with(status: i32, settings: &[(&str, &str)], url: &str) -> String {
    complaint_without("AWS_NOTHING", status, settings, url)
}

/// The error of [`complaint_with`], without one of the usual settings.
fn complaint_without(missing: &str, status: i32, settings: &[(&str, &str)], url: &str) -> String {
    let mut command = Command::new(harness::SLUICE);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    command.env("HOME", "/nowhere").env("AWS_ACCESS_KEY_ID", "k").env("AWS_SECRET_ACCESS_KEY", "s");
    command.env_remove(missing).envs(settings.iter().copied());
    let ran = command.args(["info", url]).output().expect("it starts");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.code() == Some(status) && said.trim_end().lines().count() == 1, "{said}");
    for raw in ["panicked", "Generic", "max_retries", "HTTP error", "<?xml"] {
        assert!(!said.contains(raw), "{said}");
    }
    said
}

#[test]
fn settings_of_s3_that_cannot_work_are_told_in_one_line_with_a_cure() {
    let endpoint = |status, at| complaint_with(status, &[("AWS_ENDPOINT_URL", at)], "s3://bucket/x");
    for none in ["127.0.0.1:9", "http://", "", "ftp://host", "http://a b", "http://h\n"] {
        let said = endpoint(2, none);
        assert!(said.contains("AWS_ENDPOINT_URL is `") && said.contains("http://HOST:PORT"), "{said}");
    }
    let said = endpoint(2, "http://user:hidden@127.0.0.1:9");
    assert!(said.contains("has a user or a password") && !said.contains("hidden"), "{said}");
    for missing in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
        let settings = [("AWS_ENDPOINT_URL", "http://127.0.0.1:9")];
        let said = complaint_without(missing, 2, &settings, "s3://bucket/x");
        assert!(said.contains(&format!("is set and {missing} is not: set both, or neither")), "{said}");
    }
    let said = endpoint(1, "http://127.0.0.1:9");
    assert!(said.contains("the server http://127.0.0.1:9 cannot be reached (is it there?"), "{said}");
    for name in ["AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"] {
        let settings = [(name, "a\nb"), ("AWS_ENDPOINT_URL", "http://127.0.0.1:9")];
        let said = complaint_with(2, &settings, "s3://bucket/x");
        assert!(said.contains(&format!("{name} has a space")), "{said}");
    }
}

#[test]
fn what_a_server_of_s3_refuses_is_told_by_its_code_with_a_cure() {
    let name = "what_a_server_of_s3_refuses_is_told_by_its_code_with_a_cure";
    let scratch = Scratch::new();
    let Some(s3) = s3(name, &scratch) else { return };
    let ask = |settings: &[(&'static str, &'static str)], url: &str| {
        let mut all = s3.environment.clone();
        all.extend_from_slice(settings);
        all.push(("AWS_ENDPOINT_URL", &s3.url));
        complaint_with(1, &all, url)
    };
    let told = |said: &str, code: &str, cure: &str| {
        assert!(said.contains(&format!("{} says {code} (", s3.url)) && said.contains(cure), "{said}");
    };
    told(&ask(&[], "s3://another/x"), "NoSuchBucket", "make the bucket first");
    told(
        &ask(&[("AWS_SECRET_ACCESS_KEY", "x")], "s3://bucket/x"),
        "SignatureDoesNotMatch",
        "AWS_SECRET_ACCESS_KEY",
    );
    told(&ask(&[("AWS_ACCESS_KEY_ID", "x")], "s3://bucket/x"), "XAdminUserNotFound", "AWS_ACCESS_KEY_ID");
    told(&ask(&[], "s3://Bucket_/x"), "InvalidBucketName", "small letters");
    let said = ask(&[], "s3://bucket/x");
    assert!(said.contains("no sluicefs store"), "{said}");
}

#[test]
fn an_address_that_is_none_is_refused_in_one_line() {
    for url in ["ftp://host/path", "file://relative", "s3://"] {
        let said = sluice(["info", url]).complaint(2);
        assert!(said.contains("file:///DIRECTORY or s3://BUCKET/PATH"), "{said}");
    }
    let said = sluice(["info", "s3://my bucket/x"]).complaint(2);
    assert!(said.contains("`my bucket` is no name of a bucket"), "{said}");
    for (url, right) in
        [("s3:/bucket/x", "s3://bucket/x"), ("S3:bucket", "s3://bucket"), ("file:/tmp/x", "file:///tmp/x")]
    {
        for command in [vec!["mkfs", url], vec!["mount", url, "/nowhere"]] {
            let said = sluice(command).complaint(2);
            assert!(said.contains(&format!("write {right}; for a directory, ./{url}")), "{said}");
        }
    }
    let said = sluice(["fsck", "file:///nowhere/at/all"]).complaint(8);
    assert!(said.contains("no sluicefs store"), "{said}");
}

#[test]
fn a_push_that_the_object_store_lost_is_given_up_by_a_repair_with_all_after_it() {
    let name = "a_push_that_the_object_store_lost_is_given_up_by_a_repair_with_all_after_it";
    let Some((scratch, stored)) = Stored::in_a_directory(name) else { return };
    stored.sluice(&["mkfs", &stored.url]).expect("an empty place");
    stored.mount("size=1G");
    for number in 0..6 {
        let mut file = File::create(stored.dir.join(number.to_string())).expect("room");
        file.write_all(&[number; 5000]).and_then(|()| file.sync_all()).expect("room");
    }
    stored.kill();
    let pushes = scratch.0.join("store/records/wal");
    let mut pushes: Vec<_> =
        fs::read_dir(pushes).expect("some").map(|entry| entry.expect("ours").path()).collect();
    pushes.sort_unstable();
    fs::remove_file(&pushes[pushes.len() - 3]).expect("ours");
    let refused = stored.sluice(&["mount", &stored.url, stored.dir()]).expect_err("it is damaged");
    assert!(refused.contains("fsck --repair") && refused.lines().count() == 1, "{refused}");
    let fsck = |options: &[&str]| {
        let ran = Command::new(harness::SLUICE)
            .arg("fsck")
            .args(options)
            .arg(&stored.url)
            .output()
            .expect("it starts");
        (ran.status.code(), String::from_utf8_lossy(&ran.stdout).into_owned())
    };
    let (status, said) = fsck(&[]);
    assert!(
        status == Some(4) && said.contains("is missing") && said.contains("sluice fsck --repair"),
        "{said}"
    );
    let (status, said) = fsck(&["--repair"]);
    assert!(status == Some(1) && said.contains("repaired"), "{said}");
    stored.assert_clean();
    stored.mount("size=1G");
    for number in 0..6 {
        let found = fs::read(stored.dir.join(number.to_string())).ok();
        assert!(found.is_none_or(|found| found == [number; 5000]), "{number}");
    }
    assert!(stored.dir.join("2").exists() && !stored.dir.join("5").exists());
    fs::write(stored.dir.join("new"), "new").expect("room");
    stored.umount();
    stored.assert_clean();
}
