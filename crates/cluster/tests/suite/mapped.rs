//! Mapped: programs of two nodes that map one file, and databases that do. No row that was committed is lost, and no program dies of a signal.

use crate::harness::{Cluster, mapper};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

const ROWS: usize = 60;
/// How often a row is tried.
const TRIES: usize = 100;

/// The output of `sqlite3` for statements on a database; `None` if there is no such program.
fn sqlite(database: &Path, statements: &str) -> Option<Output> {
    let output =
        Command::new("sqlite3").args(["-cmd", ".timeout 2000"]).arg(database).arg(statements).output();
    let output = output.ok()?;
    assert_eq!(output.status.signal(), None, "a signal ended it: {statements}");
    Some(output)
}

/// The rows of `who` that were committed: each by a program of its own, which opens the database in WAL mode.
fn insert(database: &Path, who: &str) -> BTreeSet<String> {
    let insert_one = |row: usize| {
        (0..TRIES).any(|_| {
            let statement = format!("insert into t values ('{who}{row}');");
            let is_done = sqlite(database, &statement).is_some_and(|output| output.status.success());
            if !is_done {
                thread::sleep(Duration::from_millis(2));
            }
            is_done
        })
    };
    (0..ROWS).filter(|row| insert_one(*row)).map(|row| format!("{who}{row}")).collect()
}

#[test]
fn of_a_database_in_wal_mode_on_two_nodes_each_committed_row_is_there() {
    let Some(mut cluster) = Cluster::new() else { return };
    let nodes = [cluster.join(), cluster.join()];
    for round in 0..4 {
        let name = format!("db{round}");
        let paths = nodes.map(|node| cluster.path(node, &name));
        let Some(made) = sqlite(&paths[0], "pragma journal_mode=wal; create table t(row);") else {
            eprintln!("SKIPPED: no sqlite3: databases on two nodes were not tried");
            break;
        };
        assert!(made.status.success(), "{made:?}");
        let committed: BTreeSet<_> = thread::scope(|scope| {
            let writers: Vec<_> = ["a", "b"]
                .into_iter()
                .zip(&paths)
                .map(|(who, path)| scope.spawn(move || insert(path, who)))
                .collect();
            writers
                .into_iter()
                .flat_map(|writer| writer.join().expect("no program dies of a signal"))
                .collect()
        });
        assert!(committed.len() >= ROWS, "the node that maps goes on: {}", committed.len());
        for path in &paths {
            let look = sqlite(path, "pragma integrity_check; select row from t;").expect("it was there");
            let text = String::from_utf8(look.stdout).expect("text");
            let mut lines = text.lines();
            assert_eq!(lines.next(), Some("ok"));
            let rows: Vec<_> = lines.map(str::to_owned).collect();
            let found: BTreeSet<_> = rows.iter().cloned().collect();
            assert_eq!(rows.len(), found.len(), "a row is there twice");
            assert_eq!(committed.difference(&found).count(), 0, "committed rows are lost");
        }
    }
    cluster.finish();
}

#[test]
fn a_program_that_maps_a_file_at_the_size_that_it_was_told_finds_its_last_page_while_another_node_writes() {
    const PAGES: u64 = 2000;
    let Some(mut cluster) = Cluster::new() else { return };
    let nodes = [cluster.join(), cluster.join()];
    for mapping in nodes {
        let name = format!("f{mapping}");
        fs::write(cluster.path(mapping, &name), []).expect("made");
        let path = cluster.path(mapping, &name);
        let Some(child) = mapper(&["follow", path.to_str().expect("text"), &PAGES.to_string()]) else {
            break;
        };
        let other = nodes[usize::from(mapping == nodes[0])];
        let file = File::options().write(true).open(cluster.path(other, &name)).expect("it is there");
        (0..PAGES).for_each(|page| file.write_all_at(&[b'x'; 4096], page * 4096).expect("written"));
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.signal(), None, "it died of a signal");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), PAGES.to_string());
    }
    cluster.finish();
}
