//! Programs on a mount whose server is killed every now and then.

use crate::harness::until;
use crate::holder::{Kept, python, restarts};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Kills the server every now and then, at most sixty times, until `done` says so. Returns how often.
fn harass(kept: &Kept, done: impl Fn() -> bool) -> u64 {
    let mut kills = 0;
    while !done() && kills < 60 {
        std::thread::sleep(Duration::from_millis(150 + 37 * (kills % 7)));
        // A server that serves: on a busy machine a program gets no further otherwise, and a holder gives up after twenty others.
        until("a server serves", || done() || restarts(kept.dir()).is_some());
        if !done() {
            kept.hit("-KILL");
            kills += 1;
        }
    }
    until("the program ends", done);
    kills
}

/// What `program` said, and under how many kills of the server. A mount that hangs or dies fails the test, and ends the program.
fn under_kills(kept: &Kept, program: Child) -> (u64, Output) {
    let (done, pid) = (AtomicBool::new(false), program.id().to_string());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let output = program.wait_with_output().expect("it ends");
            done.store(true, Ordering::SeqCst);
            output
        });
        let harassed = catch_unwind(AssertUnwindSafe(|| harass(kept, || done.load(Ordering::SeqCst))));
        let kills = harassed.unwrap_or_else(|failure| {
            let _ = Command::new("kill").args(["-KILL", &pid]).status();
            kept.force_umount();
            resume_unwind(failure)
        });
        (kills, waiting.join().expect("no panic"))
    })
}

#[test]
fn git_goes_on_while_the_server_is_killed() {
    let Some(kept) = Kept::new("git_goes_on_while_the_server_is_killed") else { return };
    let script = r#"
        cd "$1"; made=0
        for number in $(seq 30); do
            echo $number > file-$number; rm -f .git/index.lock
            if git add file-$number 2> err && git commit -q -m $number 2>> err; then made=$((made + 1)); continue; fi
            # Lost: what was written, a file or directory that was made, the removal of a lock. But the mount is there.
            ! grep -q 'Transport endpoint' err || { cat err; exit 1; }
            rm -f .git/*.lock .git/refs/heads/*.lock
        done
        echo made $made
    "#;
    let repository = kept.dir().join("r");
    fs::create_dir(&repository).expect("made");
    let begin = r#"
        cd "$1" && git init -q . && git config user.email a@b && git config user.name n && git config core.fsync all &&
        git config gc.auto 0 && find .. -exec sync {} +
    "#;
    let begun = Command::new("bash").args(["-c", begin, "bash"]).arg(&repository).output();
    assert!(begun.as_ref().is_ok_and(|begun| begun.status.success()), "{begun:?}");
    let mut git = Command::new("bash");
    git.args(["-c", script, "bash"]).arg(&repository).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (kills, output) = under_kills(&kept, git.spawn().expect("bash starts"));
    assert!(output.status.success(), "after {kills} kills: {output:?}");
    let made = String::from_utf8(output.stdout).expect("text");
    let made: usize = made.trim_start_matches("made ").trim().parse().expect("a number");
    let git = |arguments: &[&str]| {
        let ran =
            Command::new("git").arg("-C").arg(&repository).args(arguments).output().expect("git starts");
        assert!(ran.status.success(), "{arguments:?} after {kills} kills: {ran:?}");
        String::from_utf8(ran.stdout).expect("text")
    };
    git(&["fsck", "--strict"]);
    // It does not synchronise the name of a commit: of each kill the last one may be lost.
    let left: u64 = git(&["rev-list", "--count", "--all"]).trim().parse().expect("a number");
    assert!(left + kills >= made as u64, "of {made} commits {left} are left after {kills} kills");
    assert!(kills > 0);
    kept.end();
}

#[test]
fn sqlite_keeps_what_it_committed_while_the_server_is_killed() {
    let Some(kept) = Kept::new("sqlite_keeps_what_it_committed_while_the_server_is_killed") else { return };
    let script = r#"
import sqlite3, sys
path, mode, note = sys.argv[1], sys.argv[2], sys.argv[3]
def opened():
    while True:
        try:
            db = sqlite3.connect(path, timeout=60, isolation_level=None)
            # Less does not synchronise the removal of a journal, which is the commit.
            db.execute("PRAGMA synchronous=EXTRA"); db.execute("PRAGMA journal_mode=" + mode).fetchone()
            db.execute("CREATE TABLE IF NOT EXISTS t(n INTEGER PRIMARY KEY, b BLOB)")
            return db
        except sqlite3.OperationalError as error: told(error)
def told(error):
    assert "disk I/O error" in str(error) or "unable to open" in str(error), error
def ask(query):
    global db
    while True:
        try:
            return db.execute(query).fetchone()[0]
        except sqlite3.OperationalError as error:
            told(error); db.close(); db = opened()
db, sure = opened(), int(open(note).read())
for n in range(sure + 1, 151):
    while True:
        try:
            db.execute("INSERT OR REPLACE INTO t VALUES(?, ?)", (n, bytes([n % 251]) * 3000)); sure = n; open(note, "w").write(str(n)); break
        except sqlite3.OperationalError as error:
            told(error); db.close(); db = opened()
        have = ask("SELECT count(*) FROM t WHERE n <= %d" % sure)
        assert have == sure, (have, sure)
assert ask("PRAGMA integrity_check") == "ok"
assert ask("SELECT count(*) FROM t") == 150
"#;
    const SIGBUS: i32 = 7;
    let notes = kept.scratch().dir("notes");
    for mode in ["DELETE", "WAL"] {
        let note = notes.join(mode);
        fs::write(&note, "0").expect("on the host");
        let (mut kills, mut buses) = (0, 0);
        loop {
            let program = python(script, &[&kept.dir().join(mode), Path::new(mode), &note]);
            let (more, output) = under_kills(&kept, program);
            kills += more;
            // The file that SQLite maps beside a WAL is never synchronised: a page of it that is lost is no memory any more.
            if mode == "WAL" && output.status.signal() == Some(SIGBUS) && buses < kills {
                buses += 1;
                continue;
            }
            assert!(output.status.success(), "{mode} after {kills} kills: {output:?}");
            break;
        }
        assert!(kills > 0);
    }
    kept.end();
}
