//! Processes: benchmarks whose tasks are processes of their own, which end with the benchmark however it ends.

use crate::harness::{Ran, SLUICE, Scratch, can_mount, sluice};
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

fn rows(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
}

#[test]
fn every_task_of_a_benchmark_can_be_a_process() {
    let scratch = Scratch::new();
    let on = format!("dir:{}", scratch.0.display());
    let bench = ["bench", "open1", "flock02", "creat-unlink-same", "untar", "--on", &on, "--processes"];
    let how = ["--cpus", "1", "--tasks", "3", "--runs", "2", "--ops", "32", "--json", "-"];
    // A cache of Cargo may get crates meanwhile, and each process reads it: they unpack a generated tree.
    let ran = Command::new(SLUICE).args(bench).args(how).env("CARGO_HOME", &scratch.0).output();
    let ran = Ran::from(ran.expect("it starts"));
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let rows = rows(&ran.stdout);
    assert_eq!(rows.len(), 4);
    for row in &rows {
        assert!(row["processes"] == true && row["tasks"] == 3, "{row}");
        assert!(row["ops_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
        assert!(row["p99_ns"].is_u64() && row["switches_per_op"].is_f64(), "{row}");
    }
    // Three tasks, two runs, 32 operations each; a source tree is worked through to its end.
    assert!(rows[..3].iter().all(|row| row["ops"] == 192), "{rows:?}");
    assert!(rows[3]["ops"].as_u64().is_some_and(|ops| ops % 6 == 0 && ops > 192), "{}", rows[3]);
    assert_eq!(scratch.names(), [""; 0]);
}

#[test]
fn processes_wait_for_the_locks_of_each_other_and_stop_when_the_time_is_over() {
    let scratch = Scratch::new();
    let on = format!("dir:{}", scratch.0.display());
    let bench = ["bench", "flock01", "--on", &on, "--processes", "--tasks", "8", "--cpus", "1"];
    let ran = sluice(bench.into_iter().chain(["--runs", "1", "--seconds", "1", "--json", "-"]));
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(rows(&ran.stdout)[0]["ops"].as_u64().is_some_and(|ops| ops > 0), "{}", ran.stdout);
}

#[test]
fn processes_work_on_our_own_mount() {
    if !can_mount("processes_work_on_our_own_mount") {
        return;
    }
    let ran =
        sluice(["bench", "open1", "stat", "--on", "mount", "--processes", "--ops", "16", "--runs", "1"]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("processes"), "{}", ran.stdout);
}

#[test]
fn what_a_process_cannot_do_is_told_by_its_benchmark() {
    let scratch = Scratch::new();
    let on = format!("dir:{}", scratch.0.display());
    let bench = ["bench", "lease01", "--on", &on, "--processes", "--tasks", "2", "--cpus", "1", "--ops", "4"];
    // It may say that the machine is busy.
    let ran = sluice(bench);
    let line = ran.stderr.lines().last().unwrap_or_default();
    assert!(ran.status == Some(1) && line.contains("lease01") && line.contains("not supported"), "{line}");
    assert_eq!(scratch.names(), [""; 0]);
}

/// A benchmark of two processes that takes longer than any test, in `scratch`.
fn long_benchmark(scratch: &Scratch) -> Child {
    let on = format!("dir:{}", scratch.0.display());
    let bench = ["bench", "open1", "--on", &on, "--processes", "--tasks", "2", "--cpus", "1", "--runs", "1"];
    Command::new(SLUICE)
        .args(bench.into_iter().chain(["--seconds", "120"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("sluice starts")
}

/// Its processes, once they work.
fn workers_of(benchmark: &Child) -> Vec<u32> {
    loop {
        let workers = children_of(benchmark.id());
        // They use the processor all the time once they have begun: their set-up is over in no time.
        if workers.len() == 2 && workers.iter().all(|&worker| ticks_of(worker) > 5) {
            return workers;
        }
        sleep(Duration::from_millis(5));
    }
}

/// The words of `/proc/PID/stat` after the name of the program.
fn stat_of(pid: u32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

fn children_of(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| stat_of(pid).is_some_and(|words| words[1] == parent.to_string())).collect()
}

/// Clock ticks that a process has spent in itself and in the kernel.
fn ticks_of(pid: u32) -> u64 {
    stat_of(pid).map_or(0, |words| words[11..13].iter().filter_map(|word| word.parse::<u64>().ok()).sum())
}

fn kill(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill runs").success());
}

/// Waits until they have ended; a child that nobody waits for counts as ended.
fn ended(pids: &[u32]) {
    while pids.iter().any(|&pid| stat_of(pid).is_some_and(|words| words[0] != "Z")) {
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_interrupt_ends_the_processes_and_leaves_nothing() {
    let scratch = Scratch::new();
    let mut child = long_benchmark(&scratch);
    let workers = workers_of(&child);
    kill("-INT", child.id());
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    ended(&workers);
    assert_eq!(scratch.names(), [""; 0]);
}

#[test]
fn a_process_that_is_killed_fails_the_benchmark_which_leaves_nothing() {
    let scratch = Scratch::new();
    let child = long_benchmark(&scratch);
    let workers = workers_of(&child);
    kill("-KILL", workers[0]);
    let ran = crate::harness::Ran::from(child.wait_with_output().expect("it ends"));
    let line = ran.stderr.lines().last().unwrap_or_default();
    assert!(ran.status == Some(1) && line.contains(&workers[0].to_string()), "{line}");
    assert!(line.contains("SIGKILL"), "{line}");
    ended(&workers);
    assert_eq!(scratch.names(), [""; 0]);
}

#[test]
fn processes_end_when_their_benchmark_is_killed() {
    let scratch = Scratch::new();
    let mut child = long_benchmark(&scratch);
    let workers = workers_of(&child);
    kill("-KILL", child.id());
    child.wait().expect("it ends");
    ended(&workers);
}
