//! `sluice lock` and `sluice dlm status`: who has a lock, what a command is told, and what is left of those that are killed or stand still.

use crate::cluster_etcd::etcd;
use crate::harness::{Ran, SLUICE, Scratch, kill, sluice, until};
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A lease that no process loses while the machine is slow.
const LONG: &str = "600";
/// A lease whose end is awaited.
const SHORT: Duration = Duration::from_secs(3);

/// A cluster in a directory, where commands run.
struct Place {
    scratch: Scratch,
    cluster: String,
    /// Further options of `sluice lock` and `sluice dlm status`.
    options: Vec<String>,
}

impl Place {
    fn new(ttl: &str) -> Place {
        let scratch = Scratch::in_memory();
        let cluster = format!("dir:{}", scratch.0.join("cluster").display());
        sluice(["cluster", "init", "--ttl", ttl, &cluster]).well();
        Place { scratch, cluster, options: Vec::new() }
    }

    fn command(&self, name: &str, options: &[&str], script: &str) -> Command {
        let mut command = Command::new(SLUICE);
        command.args(["lock", name, "--cluster", &self.cluster]).args(&self.options).args(options);
        command.args(["--", "sh", "-c", script]).current_dir(&self.scratch.0).stdin(Stdio::null());
        command.env_remove(sluice_sync::lock_debug::RECORD);
        command
    }

    /// Runs `script` under the lock, to its end.
    fn run(&self, name: &str, options: &[&str], script: &str) -> Ran {
        self.command(name, options, script).output().expect("sluice starts").into()
    }

    /// Begins to run it.
    fn start(&self, name: &str, options: &[&str], script: &str) -> Child {
        self.command(name, options, script).stderr(Stdio::piped()).spawn().expect("sluice starts")
    }

    /// Begins to run it, and waits until it has the lock. The script is one that makes the file `name`.
    fn held(&self, name: &str, options: &[&str], script: &str) -> Child {
        let holder = self.start(name, options, script);
        self.await_file(name);
        holder
    }

    fn await_file(&self, name: &str) {
        until(name, || self.scratch.0.join(name).exists());
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.scratch.0.join(name)).expect("it was written")
    }

    fn write(&self, name: &str) {
        fs::write(self.scratch.0.join(name), "").expect("it is written");
    }

    fn status(&self, options: &[&str]) -> String {
        let command = ["dlm", "status", "--cluster", &self.cluster];
        let own = self.options.iter().map(String::as_str);
        sluice(command.into_iter().chain(own).chain(options.iter().copied())).well()
    }
}

fn end(child: Child) -> Ran {
    child.wait_with_output().expect("it ends").into()
}

/// The process that is a member for this `sluice lock`.
fn member_of(lock: &Child) -> u32 {
    let processes = fs::read_dir("/proc").expect("/proc is there").flatten();
    let is_one = |pid: &u32| {
        let read = |name| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let parent = format!("PPid:\t{}\n", lock.id());
        read("status").contains(&parent) && read("cmdline").contains("lock-member")
    };
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.into_iter().find(is_one).expect("it has one")
}

fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Eight processes count to 160, and no two tokens are the same or out of order.
fn count_together(place: &Place) {
    let script =
        "n=$(cat count 2>/dev/null || echo 0); echo $((n + 1)) > count; echo $SLUICE_LOCK_TOKEN >> tokens";
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..20).for_each(|_| drop(place.run("count", &[], script).well())));
        }
    });
    assert_eq!(place.read("count"), "160\n");
    let tokens = place.read("tokens");
    let tokens: Vec<i64> = tokens.lines().map(|line| line.parse().expect("a number")).collect();
    assert!(tokens.len() == 160 && tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[test]
fn eight_processes_count_together_and_their_tokens_grow() {
    count_together(&Place::new(LONG));
}

#[test]
fn machines_that_meet_at_an_etcd_count_together_and_are_no_nodes() {
    let test = "machines_that_meet_at_an_etcd_count_together_and_are_no_nodes";
    let Some((_etcd, cluster)) = etcd(test, 1) else { return };
    let scratch = Scratch::in_memory();
    let keys = scratch.0.join("keys").to_str().expect("a path of ours").to_owned();
    sluice(["cluster", "init", "--ttl", LONG, "--authority", &keys, &cluster]).well();
    let place = Place { scratch, cluster, options: vec!["--identity".into(), keys.clone()] };
    count_together(&place);
    let holder = place.held("a", &[], "touch a; while [ ! -e go ]; do sleep 0.02; done");
    assert!(place.status(&[]).contains("held exclusively"));
    assert_eq!(sluice(["cluster", "status", "--json", "--identity", &keys, &place.cluster]).well(), "");
    // Without an identity.
    let options = Place { options: Vec::new(), scratch: Scratch::new(), cluster: place.cluster.clone() };
    options.run("a", &[], "touch never").complaint(1);
    place.write("go");
    end(holder).well();
}

#[test]
fn shared_holders_are_together_and_an_exclusive_one_is_alone() {
    let place = Place::new(LONG);
    let wait = |name| format!("touch {name}; while [ ! -e go ]; do sleep 0.02; done");
    let together = ["one", "two"].map(|name| place.start("a", &["--shared"], &wait(name)));
    ["one", "two"].iter().for_each(|name| place.await_file(name));
    for time in ["0", "0.2"] {
        let refused = place.run("a", &["--timeout", time], "touch never").complaint(1);
        assert!(
            refused.contains(&format!("a: not locked within {time} s: others have the lock")),
            "{refused}"
        );
    }
    let waiting = place.start("a", &[], "touch alone");
    until("it is seen to wait", || place.status(&[]).contains("-> wanted exclusively by member"));
    let told = place.status(&[]);
    assert_eq!(told.matches("  held shared by member").count(), 2, "{told}");
    assert!(!place.scratch.0.join("alone").exists() && !place.scratch.0.join("never").exists());
    place.write("go");
    together.into_iter().for_each(|holder| drop(end(holder).well()));
    end(waiting).well();
    place.await_file("alone");
}

#[test]
fn the_status_names_the_holder_and_what_it_counted() {
    let place = Place::new(LONG);
    let holder =
        place.held("a", &[], "echo $SLUICE_LOCK_TOKEN > b; mv b a; while [ ! -e go ]; do sleep 0.02; done");
    let json = place.status(&["--json"]);
    let members: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [member] = &members[..] else { panic!("{json}") };
    let resource = &member["resources"][0];
    assert_eq!((&member["state"], &resource["name"]), (&"alive".into(), &"a".into()), "{json}");
    assert_eq!(resource["grants"][0]["lock_token"].to_string(), place.read("a").trim(), "{json}");
    let value = member["locks"][0]["value"].as_str().unwrap_or_default();
    assert!(value.ends_with(&format!(" {}", holder.id())), "{json}");
    assert!(member["counts"]["grants"].as_u64() >= Some(1), "{json}");
    assert!(place.status(&[]).contains(&format!("value \"{value}\"\n")), "{}", place.status(&[]));
    place.write("go");
    end(holder).well();
    assert_eq!(place.status(&["--json"]), "");
}

#[test]
fn the_exit_status_is_that_of_the_command() {
    let place = Place::new(LONG);
    assert_eq!(place.run("a", &[], "exit 7").status, Some(7));
    assert_eq!(place.run("a", &[], "kill -9 $$").status, Some(137));
    let lock = ["lock", "a", "--cluster", &place.cluster, "--"];
    let missing = sluice(lock.into_iter().chain(["no-such-command"])).complaint(127);
    assert_eq!(missing, "sluice: no-such-command: no such command\n");
    let refused = sluice(lock.into_iter().chain(["/etc/passwd"])).complaint(126);
    assert_eq!(refused, "sluice: /etc/passwd: Permission denied\n");
    // Signals are the command's.
    let script = "trap 'exit 5' TERM; touch b; while true; do sleep 0.02; done";
    let told = place.held("b", &[], script);
    kill("-TERM", told.id());
    assert_eq!(end(told).status, Some(5));
    // A waiting request is withdrawn.
    let holder = place.held("c", &[], "touch c; while [ ! -e go ]; do sleep 0.02; done");
    let waiting = place.start("c", &[], "touch never");
    until("it waits", || place.status(&[]).contains("-> wanted"));
    kill("-TERM", waiting.id());
    assert_eq!(end(waiting).status, Some(143));
    assert!(!place.status(&[]).contains("-> wanted") && !place.scratch.0.join("never").exists());
    // Also one whose member does not answer, when it is told again.
    let mut waiting = place.start("c", &[], "touch never");
    until("it waits", || place.status(&[]).contains("-> wanted"));
    kill("-STOP", member_of(&waiting));
    while waiting.try_wait().expect("it is ours").is_none() {
        kill("-TERM", waiting.id());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(end(waiting).status, Some(143));
    place.write("go");
    end(holder).well();
}

#[test]
fn names_and_times_that_cannot_be_are_refused_and_clusters_are_apart() {
    let place = Place::new(LONG);
    for name in ["", &"x".repeat(256)] {
        assert!(place.run(name, &[], "touch never").complaint(2).contains("the name of a lock has 1 to "));
    }
    for time in ["-1", "nan", "1e300"] {
        let refused = place.run("a", &["--timeout", time], "touch never").complaint(2);
        assert!(refused.contains("give the seconds to wait, 0 or more"), "{refused}");
    }
    assert!(!place.scratch.0.join("never").exists());
    for name in [&"x".repeat(255), "a\nb\x1b[2J"] {
        let script = "touch own; while [ ! -e go ]; do sleep 0.02; done";
        let holder = place.start(name, &[], script);
        place.await_file("own");
        let status = place.status(&[]);
        assert!(!status.contains('\x1b') && status.lines().count() == 5, "{status}");
        // The lock of another cluster is another lock.
        Place::new(LONG).run(name, &["--timeout", "0"], "true").well();
        let refused = place.run(name, &["--timeout", "0"], "true").complaint(1);
        assert!(refused.contains("not locked within 0 s"), "{refused}");
        place.write("go");
        end(holder).well();
        for name in ["own", "go"] {
            fs::remove_file(place.scratch.0.join(name)).expect("it is there");
        }
    }
}

#[test]
fn strangers_get_no_lock() {
    let (place, other) = (Place::new(LONG), Place::new(LONG));
    let keys = other.scratch.0.join("cluster").to_str().expect("a path of ours").to_owned();
    let refused = place.run("a", &["--identity", &keys], "touch never").complaint(1);
    assert!(refused.contains("of another cluster"), "{refused}");
    let none = place.scratch.dir("none").to_str().expect("a path of ours").to_owned();
    assert!(place.run("a", &["--identity", &none], "touch never").complaint(1).contains("no ca.key"));
    let nowhere = Place { cluster: none, options: Vec::new(), scratch: Scratch::new() };
    assert!(nowhere.run("a", &[], "touch never").complaint(1).contains("sluice cluster init"));
    let listen = place.run("a", &["--listen", "0.0.0.0:0"], "touch never").complaint(2);
    assert!(listen.contains("--listen"), "{listen}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let refused = place.run("a", &["--listen", &address], "touch never").complaint(2);
    assert!(refused.contains("give port 0, or one that nobody uses"), "{refused}");
}

/// A command that ignores SIGTERM but for a note, and has a child that it does not wait for.
const STUBBORN: &str = "(trap '' TERM; exec sleep 600) & echo $! > child.tmp; trap 'touch told' TERM; \
                        echo $$ > own; mv child.tmp child; touch a; while true; do sleep 0.02; done";

/// Asserts, as a later holder, that nothing of the earlier one runs.
fn assert_alone(place: &Place, options: &[&str]) {
    let script = "for pid in $(cat own child); do grep -q 'State:.[^Z]' /proc/$pid/status 2>/dev/null && exit 9; done; exit 0";
    place.run("a", options, script).well();
    assert!(!runs(&place.read("own")) && !runs(&place.read("child")));
}

#[test]
fn a_lock_whose_process_is_killed_is_free_when_its_command_is_dead() {
    let place = Place::new(LONG);
    let holder = place.held("a", &[], STUBBORN);
    kill("-KILL", holder.id());
    assert_alone(&place, &[]);
    end(holder);
}

#[test]
fn a_lock_whose_processes_are_all_killed_is_free_after_lease_and_fence() {
    let place = Place::new(&SHORT.as_secs().to_string());
    let holder =
        place.held("a", &[], "echo $$ > own; echo $$ > child; touch a; while true; do sleep 0.02; done");
    let began = Instant::now();
    kill("-KILL", member_of(&holder));
    kill("-KILL", holder.id());
    assert_alone(&place, &[]);
    assert!(began.elapsed() > SHORT, "{:?}", began.elapsed());
    end(holder);
}

#[test]
fn a_command_ends_before_the_lock_of_a_member_that_stands_still_is_free() {
    let place = Place::new(&SHORT.as_secs().to_string());
    let holder = place.held("a", &[], STUBBORN);
    kill("-STOP", member_of(&holder));
    assert_alone(&place, &[]);
    let lost = end(holder).complaint(125);
    assert!(lost.contains("a: the lock was lost while the command ran"), "{lost}");
    assert!(place.scratch.0.join("told").exists(), "SIGTERM came first");
}

#[test]
fn a_command_ends_when_its_member_is_killed() {
    let place = Place::new(&SHORT.as_secs().to_string());
    let holder = place.held("a", &[], "trap 'exit 0' TERM; touch a; while true; do sleep 0.02; done");
    kill("-KILL", member_of(&holder));
    end(holder).complaint(125);
}

#[test]
fn signals_to_all_processes_leave_the_end_to_the_command() {
    let place = Place::new(LONG);
    let script = "trap 'touch told' TERM; touch a; while [ ! -e go ]; do sleep 0.02; done; exit 4";
    let holder = place.held("a", &[], script);
    kill("-TERM", member_of(&holder));
    kill("-TERM", holder.id());
    place.await_file("told");
    place.run("a", &["--timeout", "0"], "true").complaint(1);
    place.write("go");
    assert_eq!(end(holder).status, Some(4));
    // As by nohup(1): the command ignores the signal, too.
    let run =
        format!("trap '' HUP; exec {SLUICE} lock b --cluster {} -- cat /proc/self/status", place.cluster);
    let status = Ran::from(Command::new("sh").args(["-c", &run]).output().expect("sh starts")).well();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("it is told");
    assert_eq!(u64::from_str_radix(ignored.trim(), 16).expect("a mask") & 1, 1, "{ignored}");
}

#[test]
fn a_job_that_is_stopped_keeps_its_lock() {
    let place = Place::new(&SHORT.as_secs().to_string());
    let holder = place.held("a", &[], "touch a; while [ ! -e go ]; do sleep 0.02; done");
    kill("-STOP", holder.id());
    let past_lease = format!("{}", SHORT.as_secs() * 3);
    place.run("a", &["--timeout", &past_lease], "true").complaint(1);
    kill("-CONT", holder.id());
    place.write("go");
    end(holder).well();
    place.run("a", &[], "true").well();
}
