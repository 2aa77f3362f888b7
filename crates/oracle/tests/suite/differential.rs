//! The differential test in process: the same operations on sluicefs and on the host's tmpfs.

use sluice_oracle::campaign::{prove, replay};
use sluice_oracle::host::{Ground, Host};
use sluice_oracle::lib_exec::InProcess;
use sluice_oracle::store_run::OnStore;
use std::path::Path;

/// Operations of the tests below unless `SLUICE_ORACLE_OPS` says otherwise.
const IN_PROCESS: usize = 200_000;
const ON_A_STORE: usize = 40_000;
const TMPFS_ITSELF: usize = 20_000;

/// Where failing sequences are written.
const FAILURES: &str = env!("CARGO_TARGET_TMPDIR");

fn tmpfs() -> Host {
    Host::new(&Ground::Tmpfs).expect("the host has a tmpfs to compare with")
}

#[test]
fn in_process_calls_agree_with_tmpfs() {
    let mut subject = InProcess { confined: tmpfs().confined() };
    prove("in process", IN_PROCESS, Path::new(FAILURES), &mut subject);
}

#[test]
fn calls_on_a_store_agree_with_tmpfs_and_it_shows_the_same_when_it_is_opened_again() {
    let mut subject = OnStore { confined: tmpfs().confined() };
    prove("on a store", ON_A_STORE, Path::new(FAILURES), &mut subject);
}

/// A difference between two tmpfs is chance, and must not be compared.
#[test]
fn tmpfs_agrees_with_itself() {
    prove("tmpfs itself", TMPFS_ITSELF, Path::new(FAILURES), &mut tmpfs());
}

#[test]
fn replay_of_the_file_that_the_environment_names() {
    let Some(file) = std::env::var_os("SLUICE_ORACLE_REPLAY") else { return };
    let mut tmpfs = tmpfs();
    let mut subject = InProcess { confined: tmpfs.confined() };
    let difference = replay(Path::new(&file), &mut tmpfs, &mut subject).expect("the file is a sequence");
    assert!(difference.is_none(), "{}", difference.map_or_else(String::new, |d| d.to_string()));
}

#[test]
fn defects_found_before_stay_repaired() {
    let mut tmpfs = tmpfs();
    if tmpfs.confined() {
        println!("SKIPPED: regressions need several users; run as root");
        return;
    }
    let mut subject = InProcess { confined: false };
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/regressions");
    let mut failures = Vec::new();
    for entry in std::fs::read_dir(&dir).expect("the directory is in the repository") {
        let file = entry.expect("the directory can be read").path();
        match replay(&file, &mut tmpfs, &mut subject) {
            Ok(None) => {}
            Ok(Some(difference)) => failures.push(format!("{}: {difference}", file.display())),
            Err(error) => failures.push(error),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
