//! The text form of `/proc/locks`.

use crate::{Kind, LeaseState, LockClass, LockEntry};
use std::collections::HashMap;
use std::fmt::Write;

/// Formats a listing exactly as Linux formats `/proc/locks`: one line for each granted lock, numbered from 1,
/// and below it one line with its number and an arrow for each request that waits for it.
///
/// `entries` may be in any order, but a request whose blocker is not among them gets a number of its own.
pub fn proc_locks(entries: &[LockEntry]) -> String {
    let ids: HashMap<u64, usize> = entries.iter().enumerate().map(|(at, entry)| (entry.id, at)).collect();
    let mut waiters = vec![Vec::new(); entries.len()];
    let mut roots = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        match entry.waits_for.and_then(|blocker| ids.get(&blocker)) {
            Some(&blocker) => waiters[blocker].push(at),
            None => roots.push(at),
        }
    }
    let mut text = String::new();
    for (number, root) in (1..).zip(roots) {
        // Depth first; a stack of our own, so that no chain of waiters is too long.
        let mut open = vec![(root, usize::from(entries[root].waits_for.is_some()))];
        while let Some((at, depth)) = open.pop() {
            line(&mut text, number, depth, &entries[at]);
            open.extend(waiters[at].iter().rev().map(|&waiter| (waiter, depth + 1)));
        }
    }
    text
}

/// One line. A waiter at depth 1 has an arrow, a waiter for a waiter has it one column further right.
fn line(text: &mut String, number: usize, depth: usize, entry: &LockEntry) {
    let (class, state) = match entry.class {
        LockClass::Posix => ("POSIX ", None),
        LockClass::Ofd => ("OFDLCK", None),
        LockClass::Flock => ("FLOCK ", None),
        LockClass::Lease(state) => ("LEASE ", Some(state)),
        LockClass::Delegation(state) => ("DELEG ", Some(state)),
    };
    let manner = match state {
        None => "ADVISORY ",
        Some(LeaseState::Active) => "ACTIVE   ",
        Some(LeaseState::Breaking(_)) => "BREAKING ",
        Some(LeaseState::Breaker) => "BREAKER  ",
    };
    let kind = match (state, entry.kind) {
        (Some(LeaseState::Breaking(None)), _) => "UNLCK",
        (Some(LeaseState::Breaking(Some(kept))), _) => word(kept),
        (_, kind) => word(kind),
    };
    let arrow = if depth > 0 { "-> " } else { "" };
    let width = arrow.len() + depth.saturating_sub(1);
    let (major, minor) = major_minor(entry.dev);
    let (pid, ino, start) = (entry.pid, entry.ino, entry.range.start());
    let end = if entry.range.to_eof() { "EOF".to_string() } else { entry.range.end().to_string() };
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{number}: {arrow:>width$}{class} {manner} {kind} {pid} {major:02x}:{minor:02x}:{ino} {start} {end}"
    );
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Shared => "READ",
        Kind::Exclusive => "WRITE",
    }
}

/// Splits a Linux `dev_t`: the 12 low bits of the major number stand above the 8 low bits of the minor number;
/// the high bits of each follow further up.
fn major_minor(dev: u64) -> (u64, u64) {
    let major = ((dev >> 8) & 0xfff) | ((dev >> 32) & 0xffff_f000);
    let minor = (dev & 0xff) | ((dev >> 12) & 0xffff_ff00);
    (major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Range;

    fn entry(id: u64, class: LockClass, kind: Kind, pid: i32, waits_for: Option<u64>) -> LockEntry {
        LockEntry { id, class, kind, pid, dev: 0x802, ino: 5678, range: Range::WHOLE, waits_for }
    }

    #[test]
    fn lines_are_those_of_proc_locks() {
        let part = LockEntry {
            range: Range::new(128, 1151).expect("a range"),
            dev: 0x10_fd03,
            ..entry(3, LockClass::Ofd, Kind::Shared, -1, None)
        };
        let entries = [
            entry(1, LockClass::Posix, Kind::Exclusive, 1234, None),
            entry(2, LockClass::Posix, Kind::Shared, 77, Some(1)),
            part,
            entry(4, LockClass::Flock, Kind::Exclusive, 9, None),
        ];
        assert_eq!(
            proc_locks(&entries),
            "1: POSIX  ADVISORY  WRITE 1234 08:02:5678 0 EOF\n\
             1: -> POSIX  ADVISORY  READ 77 08:02:5678 0 EOF\n\
             2: OFDLCK ADVISORY  READ -1 fd:103:5678 128 1151\n\
             3: FLOCK  ADVISORY  WRITE 9 08:02:5678 0 EOF\n"
        );
    }

    #[test]
    fn leases_tell_their_state_in_place_of_advisory() {
        use LeaseState::{Active, Breaker, Breaking};
        let entries = [
            entry(1, LockClass::Delegation(Active), Kind::Shared, 5, None),
            entry(2, LockClass::Lease(Breaking(None)), Kind::Exclusive, 6, None),
            entry(3, LockClass::Lease(Breaker), Kind::Exclusive, 7, Some(2)),
            entry(4, LockClass::Lease(Breaking(Some(Kind::Shared))), Kind::Exclusive, 8, None),
        ];
        assert_eq!(
            proc_locks(&entries),
            "1: DELEG  ACTIVE    READ 5 08:02:5678 0 EOF\n\
             2: LEASE  BREAKING  UNLCK 6 08:02:5678 0 EOF\n\
             2: -> LEASE  BREAKER   WRITE 7 08:02:5678 0 EOF\n\
             3: LEASE  BREAKING  READ 8 08:02:5678 0 EOF\n"
        );
    }

    #[test]
    fn device_numbers_split_as_in_glibc() {
        assert_eq!(major_minor(0x802), (8, 2));
        assert_eq!(major_minor(0xfd00), (0xfd, 0));
        // makedev(0x12345678, 0x9abcdef0)
        assert_eq!(major_minor(0x1234_59ab_cde6_78f0), (0x1234_5678, 0x9abc_def0));
    }

    #[test]
    fn waiters_stand_below_what_blocks_them_whatever_the_order() {
        let flock = |id, pid, waits_for| entry(id, LockClass::Flock, Kind::Exclusive, pid, waits_for);
        let entries =
            [flock(5, 50, Some(4)), flock(4, 40, Some(1)), flock(1, 10, None), flock(9, 90, Some(1))];
        let heads: Vec<_> = proc_locks(&entries)
            .lines()
            .map(|line| line.replace("  ADVISORY  WRITE", "").replace(" 08:02:5678 0 EOF", ""))
            .collect();
        assert_eq!(heads, ["1: FLOCK 10", "1: -> FLOCK 40", "1:  -> FLOCK 50", "1: -> FLOCK 90"]);
    }

    #[test]
    fn a_waiter_without_its_blocker_keeps_its_arrow() {
        let text = proc_locks(&[entry(2, LockClass::Posix, Kind::Shared, 7, Some(1))]);
        assert_eq!(text, "1: -> POSIX  ADVISORY  READ 7 08:02:5678 0 EOF\n");
    }
}
