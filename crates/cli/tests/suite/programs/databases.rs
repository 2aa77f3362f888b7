//! Databases: SQLite from two processes at once, under both journals and both ways to serve locks.

use super::stage::{LOCK_MODES, Stage};

/// Rows that each process writes, one transaction each.
const ROWS: usize = 150;

fn two_writers(name: &str, journal: &str) {
    for mode in LOCK_MODES {
        let Some(stage) = Stage::new(name, mode, &["sqlite3"]) else { return };
        let made = stage.sh(&format!(
            "sqlite3 -bail db 'PRAGMA journal_mode={journal}; CREATE TABLE t(writer TEXT, n INTEGER, fill BLOB);'"
        ));
        assert_eq!(made.trim(), journal, "{mode}");
        stage.sh(&format!(
            "write() {{
                 {{ echo .timeout 200000
                 n=0; while [ $n -lt {ROWS} ]; do
                     echo \"BEGIN IMMEDIATE; INSERT INTO t VALUES('$1', $n, randomblob(3000)); COMMIT;\"
                     n=$((n+1))
                 done; }} | sqlite3 -bail db
             }}
             write a & a=$!; write b & b=$!
             wait $a; wait $b"
        ));
        let counted =
            stage.sh("sqlite3 db 'SELECT writer, count(*), count(DISTINCT n) FROM t GROUP BY writer'");
        assert_eq!(counted, format!("a|{ROWS}|{ROWS}\nb|{ROWS}|{ROWS}\n"), "{mode}");
        assert_eq!(stage.sh("sqlite3 db 'PRAGMA integrity_check'"), "ok\n", "{mode}");
        // A database that was deleted from is built anew, and a copy of it is whole as well.
        stage.sh("sqlite3 -bail db \"DELETE FROM t WHERE n % 2; VACUUM; PRAGMA wal_checkpoint(TRUNCATE);\"; cp db $HOST/db");
        assert_eq!(
            stage.sh("sqlite3 $HOST/db 'PRAGMA integrity_check; SELECT count(*) FROM t'"),
            format!("ok\n{ROWS}\n")
        );
    }
}

#[test]
fn two_processes_write_to_one_database_with_a_write_ahead_log() {
    two_writers("two_processes_write_to_one_database_with_a_write_ahead_log", "wal");
}

#[test]
fn two_processes_write_to_one_database_with_a_rollback_journal() {
    two_writers("two_processes_write_to_one_database_with_a_rollback_journal", "delete");
}

#[test]
fn a_killed_writer_leaves_a_whole_database() {
    let name = "a_killed_writer_leaves_a_whole_database";
    for (mode, journal) in LOCK_MODES.into_iter().flat_map(|mode| [(mode, "wal"), (mode, "truncate")]) {
        let Some(stage) = Stage::new(name, mode, &["sqlite3"]) else { return };
        // The writer is killed once it has committed some rows, wherever in a transaction it is then.
        stage.sh(&format!(
            "sqlite3 -bail db 'PRAGMA journal_mode={journal}; CREATE TABLE t(n INTEGER, fill BLOB);' >/dev/null
             mkfifo feed; sqlite3 db <feed & writer=$!
             {{ echo .timeout 200000; n=0; while echo \"INSERT INTO t VALUES($n, randomblob(20000));\"; do n=$((n+1)); done; }} 2>/dev/null >feed &
             feeder=$!
             while [ $(sqlite3 -cmd '.timeout 200000' db 'SELECT count(*) FROM t') -lt 20 ]; do :; done
             kill -9 $writer; wait $writer || :; kill $feeder 2>/dev/null || :; wait $feeder || :"
        ));
        let found = stage.sh(
            "sqlite3 -cmd '.timeout 200000' db 'PRAGMA integrity_check; SELECT count(*) = max(n) + 1 FROM t'",
        );
        assert_eq!(found, "ok\n1\n", "{mode} {journal}");
    }
}
