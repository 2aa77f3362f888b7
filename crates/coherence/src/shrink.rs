//! Shrink: few calls of a history that have no order by themselves.
//!
//! Each step leaves a history whose calls had an order if those of the history before it had one, so that what is left proves the fault:
//! - calls that begin after the first inexplicable answer are left out, and calls that still run at that time have no answer;
//! - calls on names that no call connects with the others are left out;
//! - a call that only looks, or that was refused, is left out;
//! - of a call that changes something it is left open whether it took place. The last changes of the names and the file that the
//!   inexplicable call is about stay, though: a reader wants to see them.

use crate::call::{NAMES, SharedAnswer, SharedCall, SharedName, TimedCall};
use crate::order::{RoundRules, RoundVerdict, find_order_with};

/// The shrunken history in the order of ends, with the call last that cannot be explained. `history` must have no order.
pub fn shrink(history: &[TimedCall], rules: RoundRules) -> Vec<TimedCall> {
    let mut calls = history.to_vec();
    calls.sort_by_key(|call| call.ended.unwrap_or(u64::MAX));
    let has_none = |calls: &[TimedCall], optional: &[bool]| {
        find_order_with(calls, optional, rules) == RoundVerdict::Missing
    };
    calls = earliest(&calls, &has_none);
    let culprit = calls.iter().rposition(|call| call.known().is_some()).unwrap_or(0);
    let mut kept: Vec<TimedCall> = calls.clone();
    if rules.losses == 0 {
        let connected = connected_with(&calls, culprit);
        let apart: Vec<TimedCall> = calls
            .iter()
            .zip(&connected)
            .filter(|(_, is_connected)| **is_connected)
            .map(|(call, _)| call.clone())
            .collect();
        if has_none(&apart, &vec![false; apart.len()]) {
            kept = apart;
        }
    }
    // Looks first: without them it matters less whether a change took place.
    for at in (0..kept.len()).rev() {
        if kept[at].changed_nothing() {
            let mut fewer = kept.clone();
            fewer.remove(at);
            if has_none(&fewer, &vec![false; fewer.len()]) {
                kept = fewer;
            }
        }
    }
    let shown = last_changes(&kept);
    let mut optional = vec![false; kept.len()];
    for at in (0..kept.len()).rev() {
        if !kept[at].changed_nothing() && !shown.contains(&at) && !uses_its_descriptor(&kept, &optional, at) {
            optional[at] = true;
            optional[at] = has_none(&kept, &optional);
        }
    }
    kept.into_iter().zip(optional).filter(|(_, optional)| !optional).map(|(call, _)| call).collect()
}

/// The calls up to the first end of a call after which there is no order; calls that had not ended by then have no answer.
fn earliest(calls: &[TimedCall], has_none: &dyn Fn(&[TimedCall], &[bool]) -> bool) -> Vec<TimedCall> {
    let ends: Vec<u64> = calls.iter().filter_map(|call| call.ended).collect();
    let until = |end: u64| {
        let begun = calls.iter().filter(|call| call.begun <= end);
        let cut = |call: &TimedCall| match call.ended {
            Some(ended) if ended <= end => call.clone(),
            _ => TimedCall { ended: None, result: None, ..call.clone() },
        };
        begun.map(cut).collect::<Vec<_>>()
    };
    let fails = |end: u64| {
        let calls = until(end);
        has_none(&calls, &vec![false; calls.len()])
    };
    // A history without an order gets none by more calls.
    let first = ends.partition_point(|end| !fails(*end));
    match ends.get(first) {
        Some(end) => {
            let mut calls = until(*end);
            calls.sort_by_key(|call| call.ended.unwrap_or(u64::MAX));
            calls
        }
        None => calls.to_vec(),
    }
}

/// For each call whether it is about a name or a descriptor that the call at `culprit` depends on.
fn connected_with(calls: &[TimedCall], culprit: usize) -> Vec<bool> {
    let mut names = [false; NAMES];
    let mut slots: Vec<(usize, u8)> = Vec::new();
    let mut connected = vec![false; calls.len()];
    connected[culprit] = true;
    if let SharedCall::List { dir } = calls[culprit].call {
        SharedName::in_dir(dir % 2).iter().for_each(|name| names[name.index()] = true);
    }
    let mut has_grown = true;
    while has_grown {
        has_grown = false;
        for (at, call) in calls.iter().enumerate() {
            let descriptor = call.call.slot().map(|slot| (call.process, slot));
            let touches = call.call.names().iter().any(|name| names[name.index()])
                || descriptor.is_some_and(|descriptor| slots.contains(&descriptor));
            if !touches && !connected[at] {
                continue;
            }
            connected[at] = true;
            for name in call.call.names() {
                has_grown |= !std::mem::replace(&mut names[name.index()], true);
            }
            if let Some(descriptor) = descriptor.filter(|descriptor| !slots.contains(descriptor)) {
                slots.push(descriptor);
                has_grown = true;
            }
        }
    }
    connected
}

/// Changes of a file's contents that are shown.
const SHOWN_CHANGES: usize = 2;

/// The last changes of what the last answered call is about.
fn last_changes(calls: &[TimedCall]) -> Vec<usize> {
    let Some(culprit) = calls.iter().rposition(|call| call.known().is_some()) else { return Vec::new() };
    // The names of a call, or that by which its program opened the slot.
    let names = |at: usize| {
        let call = &calls[at];
        let opens = |other: &&TimedCall| {
            let is_of_slot = other.process == call.process && other.call.slot() == call.call.slot();
            is_of_slot && other.call.opens() && other.begun <= call.begun
        };
        match call.call {
            SharedCall::List { dir } => SharedName::in_dir(dir % 2).to_vec(),
            _ if call.call.slot().is_some() => {
                let opened = calls.iter().filter(opens).max_by_key(|open| open.begun);
                opened.map(|open| open.call.names()).unwrap_or_default()
            }
            _ => call.call.names(),
        }
    };
    let about = names(culprit);
    // A rename that has not ended is seen half.
    let may_change = |call: &TimedCall| call.is_ok() || call.known().is_none();
    let touches = |at: &usize| may_change(&calls[*at]) && names(*at).iter().any(|name| about.contains(name));
    let before = || (0..calls.len()).rev().filter(|at| *at != culprit).filter(touches);
    let changes_contents = |at: &usize| {
        matches!(
            calls[*at].call,
            SharedCall::Write { .. } | SharedCall::Append { .. } | SharedCall::Truncate { .. }
        )
    };
    let changes_names = |at: &usize| {
        matches!(
            calls[*at].call,
            SharedCall::Create { .. }
                | SharedCall::Mkdir { .. }
                | SharedCall::Rename { .. }
                | SharedCall::Link { .. }
                | SharedCall::Unlink { .. }
                | SharedCall::Rmdir { .. }
        )
    };
    let contents = match calls[culprit].result {
        Some(Ok(SharedAnswer::Bytes(_) | SharedAnswer::Attr { .. })) => SHOWN_CHANGES,
        _ => 0,
    };
    // A reader that has a lock expects more.
    let (process, slot) = (calls[culprit].process, calls[culprit].call.slot());
    let is_of_lock = |at: &usize| {
        let call = &calls[*at];
        let is_of_slot = slot.is_some() && call.process == process && call.call.slot() == slot;
        is_of_slot && call.is_ok() && matches!(call.call, SharedCall::Lock { .. } | SharedCall::Unlock { .. })
    };
    let last_of_lock = (0..culprit).rev().find(is_of_lock);
    let held = last_of_lock.filter(|at| matches!(calls[*at].call, SharedCall::Lock { .. }));
    let names_and_lock = before().filter(changes_names).take(1).chain(held);
    names_and_lock.chain(before().filter(changes_contents).take(contents)).collect()
}

/// Whether a call that must take place needs the descriptor that the call at `at` opens.
fn uses_its_descriptor(calls: &[TimedCall], optional: &[bool], at: usize) -> bool {
    let opened = &calls[at];
    if !opened.call.opens() {
        return false;
    }
    let mut later: Vec<usize> = (0..calls.len())
        .filter(|other| calls[*other].process == opened.process && calls[*other].begun > opened.begun)
        .filter(|other| calls[*other].call.slot() == opened.call.slot())
        .collect();
    later.sort_by_key(|other| calls[*other].begun);
    let until_next = later.into_iter().take_while(|other| !calls[*other].call.opens());
    until_next.into_iter().any(|other| !optional[other])
}
