//! The command line without a mount: help, bad usage, completions, benchmarks.

use crate::harness::{SLUICE, Scratch, sluice};
use serde_json::Value;
use sluice_sync::lock_debug;
use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

const COMMANDS: [&str; 18] = [
    "demo",
    "mkfs",
    "fsck",
    "info",
    "mount",
    "umount",
    "run",
    "lock",
    "dlm",
    "locks",
    "stat",
    "top",
    "bench",
    "compare",
    "report",
    "lab",
    "completions",
    "man",
];

/// Why statistics of another process's locks are refused, or any where this build has none.
const LOCK_STATS_REFUSED: &str = if lock_debug::COMPILED_IN {
    "--on lib"
} else {
    "cargo build --release -p sluice --features lock-debug"
};

#[test]
fn bench_shows_the_statistics_of_the_locks_that_it_took() {
    let bench = ["bench", "creat-unlink", "--ops", "100", "--runs", "1", "--cpus", "1", "--lock-stats"];
    if !lock_debug::COMPILED_IN {
        assert!(sluice(bench).complaint(2).contains(LOCK_STATS_REFUSED));
        return;
    }
    // It may say that the machine is busy.
    let ran = sluice(bench);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let table = ran.stdout;
    let class =
        |name: &str| table.lines().find(|line| line.starts_with(name)).map(|line| line.split_whitespace());
    assert!(class("lock").is_some(), "{table}");
    let mut names = class("vfs.directory.names").unwrap_or_else(|| panic!("{table}"));
    let taken = names.nth(1).and_then(|taken| taken.parse::<u64>().ok());
    assert!(taken >= Some(200), "{table}");
}

#[test]
fn help_shows_every_command_and_each_command_has_an_example() {
    let help = sluice(["--help"]).well();
    for command in COMMANDS {
        assert!(help.contains(command), "{command} is not in the help");
        let own = sluice([command, "--help"]).well();
        assert!(own.contains("Example") && own.contains(&format!("sluice {command}")), "{own}");
    }
    assert!(!help.contains("child"), "what sluice starts itself for is its own business");
    assert!(sluice(["--version"]).well().starts_with("sluice "));
}

#[test]
fn bad_usage_ends_with_status_2_and_one_line_that_says_what_to_do() {
    let cases: &[(&[&str], &str)] = &[
        (&["mont", "/x"], "mount"),
        (&["mount"], "DIR"),
        (&["mount", "--ram", "/store", "/dir"], "/dir"),
        (&["mount", "-o", "turbo", "/dir"], "known are locks="),
        (&["mount", "-o", "turbo", "/dir"], "size=N"),
        (&["mount", "-o", "size=much", "/dir"], "such as 500M"),
        (&["run", "-o", "size=1G,mode=999", "--", "true"], "octal"),
        (&["run", "bash"], "COMMAND"),
        (&["locks"], "DIR"),
        (&["bench"], "WORKLOAD"),
        (&["bench", "flying"], "some of open-close"),
        (&["bench", "stat", "--on", "sim:abacus"], "there are uma-2"),
        (&["bench", "stat", "--on", "sim:uma-2", "--tasks", "9"], "leave it out"),
        (&["bench", "stat", "--processes"], "dir:PATH or mount"),
        (&["compare", "/no/such/a", "/b", "--fail-over", "much"], "such as 5%"),
        (&["report", "-o", "/tmp/page.html"], "RESULT"),
        (&["bench", "stat", "--on", "lib:"], "use lib"),
        (&["bench", "stat", "--cpus", "100000"], "--cpus 100000"),
        (&["bench", "stat", "--seconds", "-1"], "--seconds"),
        (&["bench", "stat", "--seconds", "0"], "above 0"),
        (&["bench", "stat", "--seconds", "1", "--ops", "1"], "--ops"),
        (&["bench", "stat", "--runs", "0"], "at least 1"),
        (&["bench", "stat", "--tasks", "1000000"], "at most 10000"),
        (&["bench", "stat", "--on", "dir:/tmp", "--lock-stats"], LOCK_STATS_REFUSED),
        (&["bench", "footprint", "--on", "dir:/tmp"], "--on lib"),
        (&["bench", "--exec", "true", "--on", "lib"], "dir:PATH or mount"),
        (&["bench", "--exec", "true\ntrue", "--on", "dir:/tmp"], "one line"),
        (&["bench", "stat", "--exec", "true"], "--exec"),
        (&["bench", "stat", "--against", "/no/such/program"], "sluice-lab of another build"),
        (&["bench", "stat", "--fail-over", "5%"], "--against"),
        (&["bench", "stat", "--against", SLUICE, "--fail-over", "much"], "such as 5%"),
        (&["lab"], "EXPERIMENT"),
        (&["lab", "spinning"], "there are spin"),
        (&["completions", "tcl"], "bash"),
    ];
    for (arguments, hint) in cases {
        let line = sluice(*arguments).complaint(2);
        assert!(line.contains(hint), "{arguments:?}: {line}");
    }
}

#[test]
fn without_its_lab_sluice_says_how_to_get_it() {
    // A hard link: a copy would take seconds, and a symbolic link would lead back to the lab.
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("alone-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let alone = dir.join("sluice");
    std::fs::hard_link(SLUICE, &alone).expect("a link");
    for arguments in [&["bench", "stat"][..], &["bench", "--help"], &["help", "lab"], &["commute"]] {
        let ran = Command::new(&alone).args(arguments).env("PATH", &dir).output().expect("sluice starts");
        let line = crate::harness::Ran::from(ran).complaint(2);
        assert!(line.contains("sluice-lab") && line.contains("make build"), "{line}");
    }
    std::fs::remove_dir_all(dir).expect("removed");
}

#[test]
fn an_experiment_writes_the_fields_of_bench_and_calls_its_figures_simulated() {
    let lines = sluice(["lab", "calibrate", "--json", "-"]).well();
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(rows.len() > 40);
    for row in &rows {
        assert!(row["simulated"] == true && row["variant"].is_string() && row["p99_ns"].is_null(), "{row}");
        assert!(row["target"].as_str().is_some_and(|target| target.starts_with("sim:")), "{row}");
        assert!(row["ops_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
    }
    let text = sluice(["lab", "calibrate"]).well();
    for part in ["published", "simulated", "verdict", "folly", "XFS", "wait tree", "POWER7"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = sluice(["completions", shell]).well();
        assert!(COMMANDS.iter().all(|command| script.contains(command)), "{shell}");
    }
}

#[test]
fn each_command_has_a_manual_page_with_its_options_and_examples() {
    let scratch = Scratch::new();
    sluice(["man".as_ref(), scratch.0.as_os_str()]).well();
    let page = |name: &str| fs::read_to_string(scratch.0.join(name)).unwrap_or_default();
    for command in COMMANDS {
        let text = page(&format!("sluice-{command}.1"));
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{text}");
        // The lab's own help has the examples of its commands.
        assert!(text.contains("Example") || ["bench", "lab"].contains(&command), "{text}");
    }
    assert!(page("sluice-snapshot-create.1").contains(".SH SYNOPSIS"));
    assert!(page("sluice.1").contains("sluice\\-mount(1)") && page("sluice-child.1").is_empty());
    let nowhere = sluice(["man", "/nowhere/at/all"]).complaint(1);
    assert!(nowhere.contains("/nowhere/at/all"), "{nowhere}");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    for arguments in
        [&["completions", "bash"][..], &["--help"], &["bench", "stat", "--ops", "10", "--runs", "1"]]
    {
        let mut child = Command::new(SLUICE)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sluice starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("sluice ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("panicked"), "{arguments:?}: {said}");
    }
}

#[test]
fn bench_writes_one_json_object_per_line_with_the_agreed_fields() {
    let scratch = Scratch::new();
    let dir = format!("dir:{}", scratch.0.display());
    let on = format!("lib,{dir}");
    let ran = sluice([
        "bench",
        "creat-unlink",
        "posix02",
        "untar",
        "--on",
        &on,
        "--cpus",
        "1",
        "--tasks",
        "2",
        "--runs",
        "2",
        "--ops",
        "32",
        "--json",
        "-",
    ]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let rows: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect();
    let named: Vec<_> =
        rows.iter().map(|row| (row["workload"].as_str().unwrap(), row["target"].as_str().unwrap())).collect();
    assert_eq!(
        named,
        [
            ("creat-unlink", "lib"),
            ("creat-unlink", &*dir),
            ("posix02", "lib"),
            ("posix02", &*dir),
            ("untar", "lib"),
            ("untar", &*dir)
        ]
    );
    for row in &rows {
        let object = row.as_object().expect("an object");
        for field in [
            "workload",
            "target",
            "variant",
            "cpus",
            "tasks",
            "runs",
            "ops",
            "ops_per_s",
            "ops_per_s_sd",
            "mean_ns",
            "p50_ns",
            "p99_ns",
            "max_ns",
            "idle",
            "simulated",
            "machine",
            "kernel",
            "version",
            "warnings",
        ] {
            assert!(object.contains_key(field), "{field} is missing in {row}");
        }
        assert_eq!(
            (row["cpus"].as_u64(), row["tasks"].as_u64(), row["runs"].as_u64()),
            (Some(1), Some(2), Some(2))
        );
        assert!(row["ops_per_s"].as_f64().unwrap() > 0.0 && row["simulated"] == false);
    }
    // Two tasks, two runs, 32 operations each.
    assert_eq!(rows[0]["ops"].as_u64(), Some(128));
    assert_eq!(scratch.names(), [""; 0], "the benchmark's directory is gone");
}

#[test]
fn bench_prints_a_table_with_the_ratio_to_the_first_target() {
    let scratch = Scratch::new();
    let json = scratch.0.join("result.json");
    let on = format!("lib,dir:{}", scratch.0.display());
    let ran = sluice([
        "bench",
        "stat",
        "--on",
        &on,
        "--cpus",
        "1",
        "--runs",
        "1",
        "--ops",
        "64",
        "--json",
        json.to_str().unwrap(),
    ]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let lines: Vec<_> = ran.stdout.lines().collect();
    // A busy machine gets further lines: what its tasks stood still for.
    assert!(lines.iter().skip(3).any(|line| line.contains("a pass of their own")), "{}", ran.stdout);
    assert!(lines[0].contains("ops/s") && lines[0].contains("ratio"));
    assert!(lines[1].contains(" 1.00 "), "{}", lines[1]);
    assert!(!ran.stdout.contains('\u{1b}'), "no colours in a pipe");
    assert_eq!(std::fs::read_to_string(json).unwrap().lines().count(), 2);
}

#[test]
fn an_interrupted_benchmark_keeps_its_finished_runs_and_leaves_nothing() {
    let scratch = Scratch::new();
    let results = Scratch::new();
    let json = results.0.join("result.json");
    let on = format!("dir:{}", scratch.0.display());
    let mut child = Command::new(SLUICE)
        .args([
            "bench",
            "stat",
            "--on",
            &on,
            "--cpus",
            "1",
            "--runs",
            "1000000",
            "--seconds",
            "0.02",
            "--json",
        ])
        .arg(&json)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("sluice starts");
    // The directory of a later run is the sign that earlier ones are finished.
    let run_number = || {
        let private = scratch.names().pop()?;
        let mut runs = std::fs::read_dir(scratch.0.join(private)).ok()?;
        let name = runs.next()?.ok()?.file_name().into_string().ok()?;
        name.strip_prefix("run-")?.parse::<u32>().ok()
    };
    while run_number().is_none_or(|number| number < 3) {
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        sleep(Duration::from_millis(1));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    let row: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).expect("one row");
    assert!(row["runs"].as_u64().unwrap() >= 2, "{row}");
    assert_eq!(scratch.names(), [""; 0]);
}

#[test]
fn a_million_empty_files_take_less_than_400_bytes_each_and_tiny_ones_less_than_600() {
    let printed = sluice(["bench", "footprint", "--on", "lib", "--runs", "1", "--json", "-"]);
    assert_eq!(printed.status, Some(0), "{}", printed.stderr);
    let rows: Vec<Value> =
        printed.stdout.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    let of_row = |row: &Value| {
        assert_eq!(row["ops"].as_u64(), Some(1_000_000));
        (row["workload"].to_string(), row["bytes_per_file"].as_f64().expect("a number"))
    };
    let footprints: Vec<_> = rows.iter().map(of_row).collect();
    println!("{footprints:?}");
    assert_eq!(footprints.len(), 3);
    // In builds with assertions each lock knows its class: those of attributes and contents, and of the one page.
    for ((name, bytes), (locks, below)) in footprints.iter().zip([(2, 400.0), (3, 600.0), (3, 600.0)]) {
        let bytes = bytes - (locks * lock_debug::BYTES_PER_LOCK) as f64;
        assert!((100.0..below).contains(&bytes), "{name}: {bytes} bytes per file");
    }
}

#[test]
fn results_are_compared_and_become_pages() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.0.join(name).to_str().unwrap().to_owned();
    let (before, after, page) = (path("before.json"), path("after.json"), path("page.html"));
    let bench =
        ["bench", "stat", "--on", "sim:uma-2", "--cpus", "1,2", "--runs", "2", "--ops", "5", "--json"];
    sluice(bench.iter().copied().chain([before.as_str()])).well();
    let half = |line: &str| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        for rate in row["rates"].as_array_mut().unwrap() {
            *rate = Value::from(rate.as_f64().unwrap() / 2.0);
        }
        row["ops_per_s"] = Value::from(row["ops_per_s"].as_f64().unwrap() / 2.0);
        row.to_string() + "\n"
    };
    let lines = std::fs::read_to_string(&before).unwrap();
    std::fs::write(&after, lines.lines().map(half).collect::<String>()).unwrap();

    let same = sluice(["compare", &before, &before, "--fail-over", "5%"]).well();
    assert_eq!(same.matches("no difference shown").count(), 2, "{same}");
    let slower = sluice(["compare", &before, &after, "--fail-over", "5%", "-o", &page]);
    assert!(slower.status == Some(1) && slower.stdout.contains("slower"), "{}", slower.stdout);
    assert!(std::fs::read_to_string(&page).unwrap().contains("before: sim:uma-2"));
    sluice(["report", &before, "-o", &page]).well();
    assert!(std::fs::read_to_string(&page).unwrap().contains("(simulated)"));
    std::fs::write(&after, "{}\n").unwrap();
    let line = sluice(["compare", &before, &after]).complaint(1);
    assert!(line.contains("line 1") && line.contains("bench --json"), "{line}");
}
