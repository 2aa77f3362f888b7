//! SQLite: two processes write transactions to one database, with a rollback journal and with a write-ahead log.
//!
//! Both ways lean on what a file system must get right: byte-range locks between processes, truncation, fsync and,
//! for the log's index, memory shared between processes through the file. The system's `sqlite3` does the work.

use sluice_console::failure::{Context, Failure, Result};
use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Transactions of each process in each mode.
const TRANSACTIONS: u32 = 50;
/// Rows that a transaction inserts.
const ROWS: u32 = 20;
/// Waits of up to a minute for the other process; the first error ends the program.
const SETTINGS: [&str; 4] = ["-batch", "-bail", "-cmd", ".timeout 60000"];

/// The reason to skip the step: the host lacks `sqlite3`.
pub(super) fn why_not() -> Option<String> {
    let found = Command::new("sqlite3").arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    (!found.is_ok_and(|status| status.success()))
        .then(|| "there is no sqlite3 here; `apt install sqlite3` installs it".to_owned())
}

fn sqlite(database: &Path) -> Command {
    let mut command = Command::new("sqlite3");
    command.args(SETTINGS).arg(database).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The answer of SQLite to `statements`, its lines joined with spaces.
fn ask(database: &Path, statements: &str) -> Result<String> {
    let output = sqlite(database).arg(statements).output().context(|| "sqlite3")?;
    if !output.status.success() {
        return Err(complaint(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().collect::<Vec<_>>().join(" "))
}

fn complaint(stderr: &[u8]) -> Failure {
    let text = String::from_utf8_lossy(stderr);
    Failure::Failed(format!("SQLite: {}", text.lines().next().unwrap_or("failed without a word")))
}

/// A process that executes the transactions of writer `number`.
fn writer(database: &Path, number: u32) -> Result<Child> {
    let mut script = String::new();
    for transaction in 0..TRANSACTIONS {
        // Writing to a String cannot fail.
        let _ = writeln!(script, "BEGIN IMMEDIATE;");
        for row in 0..ROWS {
            let text = format!("transaction {transaction}, row {row}");
            let _ = writeln!(script, "INSERT INTO entry (writer, text) VALUES ({number}, '{text}');");
        }
        let _ = writeln!(script, "UPDATE total SET rows = rows + {ROWS};\nCOMMIT;");
    }
    let mut child = sqlite(database).stdin(Stdio::piped()).spawn().context(|| "sqlite3")?;
    if let Some(mut input) = child.stdin.take() {
        // A process that ends early breaks the pipe, and says why.
        let _ = input.write_all(script.as_bytes());
    }
    Ok(child)
}

/// The load in the directory `dir`; tells the result.
pub(super) fn load(dir: &Path) -> Result<String> {
    for mode in ["delete", "wal"] {
        let database = dir.join(format!("{mode}.db"));
        one_mode(&database, mode).context(|| format!("journal_mode={mode}"))?;
    }
    Ok(format!(
        "SQLite: 2 processes, {} transactions, rollback journal and WAL, integrity ok",
        4 * TRANSACTIONS
    ))
}

fn one_mode(database: &Path, mode: &str) -> Result<()> {
    let set = ask(
        database,
        &format!(
            "PRAGMA journal_mode={mode};
             CREATE TABLE entry (id INTEGER PRIMARY KEY, writer INTEGER, text TEXT);
             CREATE INDEX by_text ON entry (text);
             CREATE TABLE total (rows INTEGER);
             INSERT INTO total VALUES (0);"
        ),
    )?;
    if set != mode {
        return Err(Failure::Failed(format!("SQLite would only use {set}")));
    }
    let writers = [writer(database, 1)?, writer(database, 2)?];
    for writer in writers {
        let output = writer.wait_with_output()?;
        if !output.status.success() {
            return Err(complaint(&output.stderr));
        }
    }
    let questions = "SELECT count(*) FROM entry; SELECT rows FROM total; PRAGMA integrity_check;";
    let (answer, rows) = (ask(database, questions)?, 2 * TRANSACTIONS * ROWS);
    let expected = format!("{rows} {rows} ok");
    if answer == expected {
        return Ok(());
    }
    Err(Failure::Failed(format!("rows, total and integrity check are {answer}, expected {expected}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_console::private_dir::PrivateDir;

    #[test]
    fn an_error_of_sqlite_is_told_in_its_words() {
        if why_not().is_some() {
            return;
        }
        let dir = PrivateDir::below(&std::env::temp_dir()).unwrap();
        let failure = ask(&dir.path().join("a.db"), "SELECT * FROM absent;").unwrap_err().to_string();
        assert!(failure.contains("no such table"), "{failure}");
    }
}
