//! Report: what a crash test found, for a person and for programs.

use super::stage::RecordedRun;
use serde::Serialize;
use sluice_console::failure::Result;
use sluice_console::program::printable;
use sluice_vfs::{CrashPoint, Losses, PastChange};
use std::fmt::Write;

/// The result of a crash test.
#[derive(Default, Serialize)]
pub(super) struct CrashReport {
    /// Trees that were shown to the check.
    pub(super) states: u64,
    /// Moments at which the power failed.
    pub(super) moments: u64,
    pub(super) failure: Option<Failing>,
}

/// A tree that the check refuses.
#[derive(Serialize)]
pub(super) struct Failing {
    /// The last call before the power failed; none if that was before all.
    after: Option<ToldCall>,
    /// Its place among all changes and synchronisations, from 1 on.
    event: usize,
    events: usize,
    /// The changes that are lost, wholly or in part. The check would accept the tree with these changes.
    lost: Vec<ToldCall>,
    /// The writes that are lost in part: no fsync can prevent that.
    torn: Vec<ToldCall>,
    missing: Vec<Missing>,
    /// The end of the check.
    check: String,
}

#[derive(Serialize)]
struct ToldCall {
    call: String,
    process: String,
}

/// A call of fsync that would have kept what was lost.
#[derive(Serialize)]
struct Missing {
    path: String,
    process: String,
    /// The call that it belongs after.
    after: String,
    /// The call that must come after the fsync; none if the workload's output must come after it.
    before: Option<String>,
}

impl Failing {
    pub(super) fn new(
        point: &CrashPoint<'_>,
        losses: &Losses,
        check: String,
        recorded: &RecordedRun,
    ) -> Failing {
        let call = |change: &PastChange| ToldCall {
            call: printable(&change.call),
            process: printable(&recorded.process_of(change)),
        };
        let last = point.last();
        // Output that came after the last call promised more than was durable.
        let has_printed = last.is_some_and(|last| {
            recorded.output_before(Some(last)).len() < recorded.output_before(point.next()).len()
        });
        let mut missing: Vec<Missing> = Vec::new();
        let (torn, lost): (Vec<_>, Vec<_>) =
            point.lost(losses).into_iter().partition(|(_, is_torn)| *is_torn);
        for (change, _) in &lost {
            let path = printable(&change.sync.to_string_lossy());
            let before =
                last.filter(|last| *last != *change && !has_printed).map(|last| printable(&last.call));
            let call = call(change);
            missing.retain(|other| other.path != path);
            missing.push(Missing { path, process: call.process, after: call.call, before });
        }
        Failing {
            after: last.map(call),
            event: point.events(),
            events: recorded.history.changes().len(),
            lost: lost.into_iter().map(|(change, _)| call(change)).collect(),
            torn: torn.into_iter().map(|(change, _)| call(change)).collect(),
            missing,
            check: printable(&check),
        }
    }
}

impl CrashReport {
    pub(super) fn json(&self) -> Result<String> {
        Ok(serde_json::to_string(self).map_err(std::io::Error::from)? + "\n")
    }

    /// In lines.
    pub(super) fn text(&self) -> String {
        let CrashReport { states, moments, failure } = self;
        let Some(failing) = failure else {
            return format!(
                "{states} trees after a power failure at {moments} moments: the check accepts all\n"
            );
        };
        let mut text =
            format!("the check refuses a tree after a power failure ({states} trees were tried)\n");
        let mut line = |name: &str, value: String| {
            // To a string: cannot fail.
            let _ = writeln!(text, "{name:9}{value}");
        };
        let Failing { after, event, events, lost, torn, missing, check } = failing;
        match after {
            Some(ToldCall { call, process }) => {
                line("after", format!("{call}, by {process}: event {event} of {events}"))
            }
            None => line("before", "the first change".into()),
        }
        lost.iter().for_each(|ToldCall { call, process }| line("lost", format!("{call}, by {process}")));
        for Missing { path, process, after, before } in missing {
            let before = match before {
                Some(call) => format!("before: {call}"),
                None => "before it was promised".to_owned(),
            };
            line("missing", format!("fsync of {path} by {process}, after: {after}; {before}"));
        }
        for ToldCall { call, process } in torn {
            line("torn", format!("{call}, by {process}"));
            line("missing", "a checksum, a journal or a new file: no fsync makes a write atomic".into());
        }
        if lost.is_empty() && torn.is_empty() {
            line(
                "missing",
                "no fsync: nothing is lost here, and the tree is one that a kill leaves as well".into(),
            );
        }
        line("check", check.clone());
        text
    }
}
