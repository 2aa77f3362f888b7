//! SQLite: two processes write transactions to one database, with a rollback journal and with a write-ahead log.
//!
//! Both ways lean on what a file system must get right: byte-range locks between processes, truncation, fsync and,
//! for the log's index, memory shared between processes through the file.

use crate::failure::{Context, Failure, Result};
use rusqlite::{Connection, TransactionBehavior};
use sluice_sync::time::Duration;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Transactions of each process in each mode.
const TRANSACTIONS: u32 = 50;
/// Rows that a transaction inserts.
const ROWS: u32 = 20;

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Failure {
        Failure::Failed(format!("SQLite: {error}"))
    }
}

fn connect(database: &Path) -> Result<Connection> {
    let connection = Connection::open(database)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    Ok(connection)
}

/// The hidden command of one writing process.
///
/// # Errors
/// SQLite's.
pub fn write_transactions(database: &Path) -> Result<()> {
    let mut connection = connect(database)?;
    for number in 0..TRANSACTIONS {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for row in 0..ROWS {
            let text = format!("transaction {number}, row {row}");
            transaction
                .execute("INSERT INTO entry (writer, text) VALUES (?1, ?2)", (std::process::id(), text))?;
        }
        transaction.execute("UPDATE total SET rows = rows + ?1", [ROWS])?;
        transaction.commit()?;
    }
    Ok(())
}

/// The load in the directory `dir`; tells what came out.
pub(super) fn load(program: &Path, dir: &Path) -> Result<String> {
    for mode in ["delete", "wal"] {
        let database = dir.join(format!("{mode}.db"));
        one_mode(program, &database, mode).context(|| format!("journal_mode={mode}"))?;
    }
    Ok(format!(
        "SQLite: 2 processes, {} transactions, rollback journal and WAL, integrity ok",
        4 * TRANSACTIONS
    ))
}

fn one_mode(program: &Path, database: &Path, mode: &str) -> Result<()> {
    let connection = connect(database)?;
    let set: String = connection.query_row(&format!("PRAGMA journal_mode={mode}"), [], |row| row.get(0))?;
    if set != mode {
        return Err(Failure::Failed(format!("SQLite would only use {set}")));
    }
    connection.execute_batch(
        "CREATE TABLE entry (id INTEGER PRIMARY KEY, writer INTEGER, text TEXT);
         CREATE INDEX by_text ON entry (text);
         CREATE TABLE total (rows INTEGER);
         INSERT INTO total VALUES (0);",
    )?;
    let writers: Vec<Child> = (0..2)
        .map(|_| {
            Command::new(program).args(["child", "sqlite-writer"]).arg(database).stdin(Stdio::null()).spawn()
        })
        .collect::<std::io::Result<_>>()?;
    let mut failed = false;
    for mut writer in writers {
        failed |= !writer.wait()?.success();
    }
    if failed {
        return Err(Failure::Failed("a writing process failed".into()));
    }
    let rows: u32 = connection.query_row("SELECT count(*) FROM entry", [], |row| row.get(0))?;
    let total: u32 = connection.query_row("SELECT rows FROM total", [], |row| row.get(0))?;
    let check: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    let expected = 2 * TRANSACTIONS * ROWS;
    if (rows, total, check.as_str()) == (expected, expected, "ok") {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{rows} rows, a total of {total}, expected {expected}; integrity check: {check}"
    )))
}
