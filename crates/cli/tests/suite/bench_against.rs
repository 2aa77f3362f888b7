//! Benchmarks of two programs in turn, and of commands.

use crate::harness::{SLUICE, Scratch, sluice};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

fn rows_of(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
}

#[test]
fn two_programs_in_turn_have_a_row_each_with_the_fields_of_bench_and_a_ratio() {
    let scratch = Scratch::new();
    let (json, on) = (scratch.0.join("rows.json"), format!("lib,dir:{}", scratch.0.display()));
    let how = ["--cpus", "1", "--runs", "2", "--ops", "200", "--fail-over", "99%", "--json"];
    let bench = ["bench", "stat", "--on", &on, "--against", SLUICE].into_iter().chain(how);
    let ran = sluice(bench.chain([json.to_str().expect("text")]));
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let rows = rows_of(&fs::read_to_string(&json).expect("rows"));
    // A control on a tmpfs is measured beside unless the scratch directory is on one.
    assert!([4, 6].contains(&rows.len()), "{rows:?}");
    for pair in rows.chunks(2) {
        let [this, against] = pair else { panic!("{pair:?}") };
        assert!(this["variant"] == "this" && against["variant"] == "against", "{pair:?}");
        for row in pair {
            assert_eq!(
                (row["runs"].as_u64(), row["ops"].as_u64(), row["tasks"].as_u64()),
                (Some(2), Some(400), Some(1))
            );
            assert!(
                row["p50_ns"].is_u64() && row["warnings"].is_array() && row["target"] == this["target"],
                "{row}"
            );
            let command = row["command"].as_str().expect("text");
            assert!(command.starts_with("sluice bench stat --on lib,"), "{command}");
        }
        let verdict = this["verdict"].as_str().expect("a verdict");
        assert!(["faster", "slower", "no-difference", "machine-moved"].contains(&verdict), "{this}");
        let bounds = ["ratio_low", "ratio", "ratio_high"].map(|name| this[name].as_f64().expect("a number"));
        assert!(bounds.is_sorted() && against["ratio"].is_null(), "{bounds:?}");
    }
    let heads = ran.stdout.lines().find(|line| line.contains("verdict")).expect("a table of ratios");
    assert!(heads.contains("against") && heads.contains("this") && heads.contains("99% interval"), "{heads}");
    assert_eq!(scratch.names(), ["rows.json"]);
    // The report reads these rows.
    let page = scratch.0.join("page.html").display().to_string();
    sluice(["report", json.to_str().expect("text"), "-o", &page]).well();
    assert!(fs::read_to_string(&page).expect("a page").contains("this, lib"));
}

#[test]
fn a_command_is_measured_where_it_finds_its_files() {
    let scratch = Scratch::new();
    fs::write(scratch.0.join("input"), "x").expect("room");
    let on = format!("dir:{}", scratch.0.display());
    let ran = sluice(["bench", "--exec", "cat input > output", "--on", &on, "--runs", "2", "--json", "-"]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let rows = rows_of(&ran.stdout);
    assert_eq!((rows.len(), rows[0]["workload"].as_str()), (1, Some("exec:cat input > output")));
    assert_eq!((rows[0]["ops"].as_u64(), rows[0]["tasks"].as_u64()), (Some(2), Some(1)));
    assert!(rows[0]["mean_ns"].as_f64() > Some(0.0) && rows[0]["max_ns"].is_u64(), "{}", rows[0]);
    assert_eq!(fs::read_to_string(scratch.0.join("output")).expect("it ran there"), "x");
    let failed = sluice(["bench", "--exec", "exit 7", "--on", &on]).complaint(1);
    assert!(failed.contains("exit status: 7; a command must succeed to be measured"), "{failed}");
}

#[test]
fn an_interrupt_ends_both_programs_and_leaves_nothing() {
    let scratch = Scratch::new();
    let on = format!("dir:{}", scratch.0.display());
    let mut child = Command::new(SLUICE)
        .args(["bench", "stat", "--on", &on, "--against", SLUICE, "--cpus", "1", "--seconds", "1000"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("sluice starts");
    while scratch.names().is_empty() {
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        sleep(Duration::from_millis(1));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(scratch.names(), [""; 0]);
}
