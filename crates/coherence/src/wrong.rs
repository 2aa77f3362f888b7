//! Wrong: one line that says in the field's words which promise a shrunken history breaks.

use crate::call::{EAGAIN, EEXIST, SharedAnswer, SharedCall, SharedName, TimedCall, WORD};

/// The fault of a history that [`shrink`](fn@crate::shrink) has left: the last call that was answered cannot be explained.
pub fn what_is_wrong(calls: &[TimedCall]) -> String {
    let Some(at) = calls.iter().rposition(|call| call.known().is_some()) else {
        return "the answers contradict each other".to_owned();
    };
    let (culprit, before) = (&calls[at], &calls[..at]);
    let is_renamed = calls
        .iter()
        .any(|call| call.known().is_none_or(Result::is_ok) && matches!(call.call, SharedCall::Rename { .. }));
    let about_a_name = |name: SharedName, is_there: bool| match (is_renamed, is_there) {
        (true, _) => {
            format!("a rename seen half: {name} {}", if is_there { "is still there" } else { "is missing" })
        }
        (false, true) => format!("stale name: {name} is found, although it was removed"),
        (false, false) => format!("stale name: {name} is not found, although it was made"),
    };
    match (&culprit.call, &culprit.result) {
        (SharedCall::Create { name, .. } | SharedCall::Mkdir { name }, Some(Ok(_))) => {
            let makes = |call: &SharedCall| match call {
                SharedCall::Create { name: made, .. } | SharedCall::Mkdir { name: made } => made == name,
                _ => false,
            };
            match before.iter().any(|call| call.is_ok() && makes(&call.call)) {
                true => format!("two O_EXCL winners: {name} was made twice"),
                false => about_a_name(*name, false),
            }
        }
        (SharedCall::Lock { .. }, Some(Ok(_))) => "a lock held twice".to_owned(),
        (SharedCall::Lock { .. }, Some(Err(EAGAIN))) => {
            "a lock refused, although nobody has one that excludes it".to_owned()
        }
        (SharedCall::Open { name, .. }, Some(Ok(_))) => {
            format!("an unlinked name still opens: {}", about_a_name(*name, true))
        }
        (SharedCall::ReadFile { name }, Some(Ok(_))) if is_gone(calls, *name) => {
            format!("an unlinked name still opens: {}", about_a_name(*name, true))
        }
        (SharedCall::Read { .. } | SharedCall::ReadFile { .. }, Some(Ok(SharedAnswer::Bytes(bytes)))) => {
            about_bytes(culprit, before, bytes)
        }
        (SharedCall::Stat { name }, Some(Ok(_))) if is_gone(calls, *name) => about_a_name(*name, true),
        (
            SharedCall::Stat { .. } | SharedCall::Fstat { .. },
            Some(Ok(SharedAnswer::Attr { size, links, .. })),
        ) => about_attributes(culprit, before, *size, *links),
        (SharedCall::List { .. }, _) => {
            "stale readdir: a name is listed that is not there, or is there and not listed".to_owned()
        }
        (call, Some(Err(EEXIST))) => match call.names().last() {
            Some(name) => about_a_name(*name, true),
            None => "an error that nothing explains".to_owned(),
        },
        (call, Some(Ok(_))) => match call.names().first() {
            Some(name) => about_a_name(*name, true),
            None => "an answer that nothing explains".to_owned(),
        },
        (call, _) => match call.names().first() {
            Some(name) => about_a_name(*name, false),
            None => "an error that nothing explains".to_owned(),
        },
    }
}

/// Whether the last change of `name` before took it away.
fn is_gone(before: &[TimedCall], name: SharedName) -> bool {
    let changes =
        before.iter().rev().filter(|call| call.known().is_none_or(Result::is_ok)).find_map(|call| match call
            .call
        {
            SharedCall::Unlink { name: removed } | SharedCall::Rmdir { name: removed } if removed == name => {
                Some(true)
            }
            SharedCall::Rename { old, .. } if old == name => Some(true),
            SharedCall::Rename { new, .. } | SharedCall::Link { new, .. } if new == name => Some(false),
            SharedCall::Create { name: made, .. } | SharedCall::Mkdir { name: made } if made == name => {
                Some(false)
            }
            _ => None,
        });
    changes.unwrap_or(false)
}

fn is_truncate(call: &TimedCall) -> bool {
    call.is_ok() && matches!(call.call, SharedCall::Truncate { .. })
}

/// Whether somebody has seen the truncated file, so that the old one has come back.
fn was_seen_truncated(before: &[TimedCall]) -> bool {
    let Some(at) = before.iter().rposition(is_truncate) else { return false };
    let SharedCall::Truncate { size, .. } = before[at].call else { return false };
    before[at..].iter().any(|call| match &call.result {
        Some(Ok(SharedAnswer::Bytes(bytes))) => bytes.len() as u64 <= size,
        Some(Ok(SharedAnswer::Attr { size: seen, .. })) => *seen <= size,
        _ => false,
    })
}

fn about_bytes(culprit: &TimedCall, before: &[TimedCall], bytes: &[u8]) -> String {
    let truncates = before.iter().rev().find(|call| is_truncate(call));
    if let Some(truncate) = truncates
        && let SharedCall::Truncate { size, .. } = truncate.call
        && bytes.len() as u64 > size
        && (truncate.process == culprit.process || was_seen_truncated(before))
    {
        return "a truncate undone: bytes that it removed are back".to_owned();
    }
    let mut appended = before.iter().filter(|call| call.is_ok()).filter_map(|call| match &call.call {
        SharedCall::Append { word, .. } => Some((call.process, word)),
        _ => None,
    });
    let is_there = |word: &[u8; WORD]| bytes.chunks(WORD).any(|there| there == word);
    let written = |call: &TimedCall| match &call.call {
        SharedCall::Append { word, .. } | SharedCall::Write { word, .. } if call.is_ok() => is_there(word),
        _ => false,
    };
    // Own appends, and those before a write that is there, cannot be on their way.
    let last_there = before.iter().rposition(written);
    let is_lost = appended.any(|(process, word)| {
        let at = before
            .iter()
            .position(|call| matches!(&call.call, SharedCall::Append { word: of, .. } if of == word));
        !is_there(word) && (process == culprit.process || at < last_there)
    });
    if is_lost && truncates.is_none() {
        return "lost append: bytes that were appended are not in the file".to_owned();
    }
    let locked = before.iter().rev().filter(|call| call.process == culprit.process && call.is_ok());
    let locked = locked
        .map(|call| &call.call)
        .find(|call| matches!(call, SharedCall::Lock { .. } | SharedCall::Unlock { .. }));
    match locked {
        Some(SharedCall::Lock { .. }) => "a read of old bytes after a lock".to_owned(),
        _ => "a read of old bytes".to_owned(),
    }
}

fn about_attributes(culprit: &TimedCall, before: &[TimedCall], size: u64, links: u64) -> String {
    let changes_links = |call: &TimedCall| {
        call.is_ok()
            && matches!(
                call.call,
                SharedCall::Link { .. } | SharedCall::Unlink { .. } | SharedCall::Rename { .. }
            )
    };
    let changes_size = |call: &TimedCall| {
        let changes = matches!(
            call.call,
            SharedCall::Write { .. } | SharedCall::Append { .. } | SharedCall::Truncate { .. }
        );
        call.is_ok() && changes
    };
    let last_change = before.iter().rev().find(|call| changes_size(call));
    let is_own = |call: &TimedCall| {
        matches!(call.call, SharedCall::Truncate { size: to, .. } if size > to)
            && call.process == culprit.process
    };
    if was_seen_truncated(before) || last_change.is_some_and(is_own) {
        return format!("a truncate undone: the size is {size} again");
    }
    let appends = |call: &TimedCall| {
        call.is_ok() && call.process == culprit.process && matches!(call.call, SharedCall::Append { .. })
    };
    // By the changes that are shown the file is at least so long.
    let least = before.iter().filter(|call| call.is_ok()).fold(0, |size: u64, call| match call.call {
        SharedCall::Append { .. } => size + WORD as u64,
        SharedCall::Write { offset, .. } => size.max(offset + WORD as u64),
        SharedCall::Truncate { size, .. } => size,
        _ => size,
    });
    if before.iter().any(appends) && size < least {
        return format!("lost append: the size is {size} after it");
    }
    if before.iter().any(changes_links) && !before.iter().any(changes_size) {
        return format!("stale link count: {links}");
    }
    format!("stale size: {size}")
}
