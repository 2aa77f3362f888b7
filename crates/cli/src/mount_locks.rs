//! Mount locks: the file locks of a mount as a table or as JSON, and the files that are locked most.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_console::failure::{Failure, Result};
use sluice_console::table::{Table, grouped};
use sluice_fuse::control::HotFile;

/// One line of the form of `/proc/locks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct MountLock {
    /// The number of the lock; a waiting request has that of the lock it waits for.
    pub(crate) number: u64,
    /// How far down a line of waiters it stands; 0: it is held.
    pub(crate) depth: usize,
    /// `POSIX`, `OFDLCK`, `FLOCK`, `LEASE`, `DELEG`.
    pub(crate) class: String,
    /// `ADVISORY`; of leases `ACTIVE`, `BREAKING`, `BREAKER`.
    pub(crate) manner: String,
    /// `READ`, `WRITE`, `UNLCK`.
    pub(crate) kind: String,
    /// The process; -1 for OFD locks, 0 when it cannot be seen from here.
    pub(crate) pid: i64,
    /// Its name.
    pub(crate) command: Option<String>,
    /// The file's inode number.
    pub(crate) inode: u64,
    /// First byte.
    pub(crate) start: u64,
    /// Last byte; null: to the end of the file.
    pub(crate) end: Option<u64>,
}

/// The lines of `text`, in the form of `/proc/locks`, with the names that `command_of` gives to processes. Lines of
/// another form are left out.
pub(crate) fn parse(text: &[u8], command_of: impl Fn(i64) -> Option<String>) -> Vec<MountLock> {
    String::from_utf8_lossy(text).lines().filter_map(|line| parse_line(line, &command_of)).collect()
}

fn parse_line(line: &str, command_of: impl Fn(i64) -> Option<String>) -> Option<MountLock> {
    let (number, rest) = line.split_once(": ")?;
    // A waiter's arrow stands one column further right for each waiter above it.
    let depth = match rest.find("->") {
        Some(spaces) => spaces + 1,
        None => 0,
    };
    let rest = if depth > 0 { &rest[depth + 1..] } else { rest };
    let mut words = rest.split_whitespace();
    let (class, manner, kind) = (words.next()?.into(), words.next()?.into(), words.next()?.into());
    let pid = words.next()?.parse().ok()?;
    let inode = words.next()?.rsplit(':').next()?.parse().ok()?;
    let start = words.next()?.parse().ok()?;
    let end = words.next()?.parse().ok();
    let number = number.trim().parse().ok()?;
    Some(MountLock { number, depth, class, manner, kind, pid, command: command_of(pid), inode, start, end })
}

/// The command name of a process that is visible here.
pub(crate) fn command_of(pid: i64) -> Option<String> {
    let pid = u32::try_from(pid).ok().filter(|pid| *pid > 0)?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// Columns like those of `lslocks`; a waiting request stands below what it waits for, behind an arrow.
pub(crate) fn table(locks: &[MountLock]) -> String {
    let mut table = Table::with_left_columns(4);
    table.line(["COMMAND", "TYPE", "MANNER", "MODE", "PID", "START", "END", "INODE"]);
    for lock in locks {
        let indent = "   ".repeat(lock.depth.saturating_sub(1));
        let arrow = if lock.depth > 0 { "-> " } else { "" };
        let command = lock.command.as_deref().unwrap_or("-");
        table.line([
            format!("{indent}{arrow}{command}"),
            lock.class.clone(),
            lock.manner.clone(),
            lock.kind.clone(),
            lock.pid.to_string(),
            lock.start.to_string(),
            lock.end.map_or("EOF".into(), |end| end.to_string()),
            lock.inode.to_string(),
        ]);
    }
    table.render()
}

/// JSON, a line for each lock.
pub(crate) fn json(locks: &[MountLock]) -> String {
    locks.iter().map(|lock| serde_json::to_string(lock).expect("plain data") + "\n").collect()
}

/// The files that were waited for most, from what the server answers to `hot`.
///
/// # Errors
/// When the answer is of another version's form.
pub(crate) fn hot_files(answer: &[u8]) -> Result<String> {
    let lines = answer.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Ok(hot_table(&lines.map(from_server).collect::<Result<Vec<_>>>()?))
}

/// Parses the JSON of a mount's server.
///
/// # Errors
/// When it is of another version's form.
pub(crate) fn from_server<T: DeserializeOwned>(json: &[u8]) -> Result<T> {
    let text = "the mount's server answers in another form: is it of another version?";
    serde_json::from_slice(json).map_err(|_| Failure::Failed(text.into()))
}

/// Files and what happened to their locks, as a table.
pub(crate) fn hot_table(files: &[HotFile]) -> String {
    let mut table = Table::with_left_columns(0);
    table.line([
        "INODE",
        "HELD",
        "WAITING",
        "GRANTS",
        "WAITS",
        "BYPASSES",
        "MEAN WAIT us",
        "LONGEST WAIT us",
    ]);
    for file in files {
        let micros = |ns: f64| grouped(ns / 1e3);
        // Requests that still wait are not in the sum.
        let ended = file.waits.saturating_sub(file.waiting).max(1);
        table.line([
            file.inode.to_string(),
            grouped(file.held as f64),
            grouped(file.waiting as f64),
            grouped(file.grants as f64),
            grouped(file.waits as f64),
            grouped(file.bypasses as f64),
            micros(file.wait_ns_total as f64 / ended as f64),
            micros(file.wait_ns_max as f64),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"1: POSIX  ADVISORY  WRITE 7 00:2f:5678 0 EOF\n\
        1: -> POSIX  ADVISORY  READ 8 00:2f:5678 10 19\n\
        1:  -> POSIX  ADVISORY  WRITE 9 00:2f:5678 0 0\n\
        2: LEASE  BREAKING  UNLCK -1 00:2f:5 0 EOF\n\
        something else\n";

    fn locks() -> Vec<MountLock> {
        parse(TEXT, |pid| (pid == 7).then(|| "ed".to_owned()))
    }

    #[test]
    fn waiters_stand_below_what_they_wait_for_in_a_table() {
        let text = table(&locks());
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "COMMAND TYPE MANNER MODE PID START END INODE",
                "ed POSIX ADVISORY WRITE 7 0 EOF 5678",
                "-> - POSIX ADVISORY READ 8 10 19 5678",
                "-> - POSIX ADVISORY WRITE 9 0 0 5678",
                "- LEASE BREAKING UNLCK -1 0 EOF 5",
            ]
        );
        assert!(text.contains("\n-> -") && text.contains("\n   -> -"), "{text}");
    }

    #[test]
    fn json_has_one_object_for_each_lock() {
        let text = json(&locks());
        let second: serde_json::Value =
            serde_json::from_str(text.lines().nth(1).expect("four lines")).expect("JSON");
        let expected = serde_json::json!({
            "number": 1, "depth": 1, "class": "POSIX", "manner": "ADVISORY", "kind": "READ", "pid": 8,
            "command": null, "inode": 5678, "start": 10, "end": 19,
        });
        assert_eq!((text.lines().count(), second), (4, expected));
    }

    #[test]
    fn the_answer_about_hot_files_becomes_a_table() {
        let answer = br#"{"inode":12,"held":1,"waiting":1,"grants":3000,"waits":5,"bypasses":2,"wait_ns_total":8000000,"wait_ns_max":4000000}
"#;
        let text = hot_files(answer).expect("it is of this version");
        let line: Vec<&str> = text.lines().nth(1).expect("a file").split_whitespace().collect();
        assert_eq!((line.first(), line.last()), (Some(&"12"), Some(&"4,000")));
        let nonsense = hot_files(b"nonsense\n").unwrap_err().to_string();
        assert_eq!(nonsense, "the mount's server answers in another form: is it of another version?");
    }
}
