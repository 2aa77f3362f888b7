//! Order: is there an order of a history's calls, and of the takeovers in it, in which the model answers as the nodes did?
//!
//! # Theory
//! The search of Wing and Gong (JPDC 1993), with Lowe's memory (2017): take any call that no call which is still to be done
//! precedes, do it in the model, go on; step back when the answer is another. A call that has no answer may be done or not.
//!
//! *A takeover* is a step, too. Its tree is known: the harness reads it when the store is opened. It must be one that there
//! was since the last fsync that succeeded, in the order that is tried; the calls after it have not happened. If such a call
//! was answered, its answer stands; if it was not, it may happen again.
//!
//! *Two instants.* As in `lab/src/commute/linearize.rs`: `stat`, `open` and `link` find a file, and then do their work on it,
//! wherever its name is by then.
//!
//! *Twice.* A name that was made by a call whose answer was lost, and that another call has removed since, is made again: the
//! kernel asks again, as it is told `ESTALE`.
//!
//! *Errors of a takeover*: EIO and ESTALE say that a file or a lock may be lost. Before the first takeover or isolation of a
//! node they are no answers.

use super::call::{Answer, Call, Outcome, Tree};
use super::model::{EAGAIN, EIO, ESTALE, Id, Names, State};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// The kind of an event.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Call {
        node: usize,
        call: Call,
        outcome: Outcome,
    },
    /// The owner that comes found this tree.
    Takeover(usize, Tree),
    /// The node dies: what it has open and locked ends.
    Death(usize),
}

/// One event. It happened between two instants; without the second perhaps not yet.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) what: What,
    pub(crate) begun: u64,
    pub(crate) ended: Option<u64>,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = self.ended.map_or("?".into(), |ended| ended.to_string());
        write!(f, "{:5}-{ended:5} ", self.begun)?;
        match &self.what {
            What::Call { node, call, outcome } => write!(f, "node {node} {call:?}: {outcome:?}"),
            What::Takeover(node, tree) => write!(f, "takeover by node {node}: {tree:?}"),
            What::Death(node) => write!(f, "node {node} is gone"),
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut events: Vec<_> = self.events.iter().collect();
        events.sort_by_key(|event| event.begun);
        events.iter().try_for_each(|event| writeln!(f, "{event}"))?;
        writeln!(f, "shaken: {:?}", self.shaken)
    }
}

/// The record of a world.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) events: Vec<Event>,
    /// When answers may have been lost.
    pub(crate) disturbed: Vec<u64>,
    /// From when on the locks of a node may have ended, and its files be lost: by node.
    pub(crate) shaken: Vec<(usize, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Progress {
    Before,
    /// It has found this file.
    Found(Id),
    /// It has made a name, and its answer was lost.
    Unheard,
    Done,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Point {
    progress: Vec<Progress>,
    state: State,
    /// The trees since the last one that is durable for certain, each with the event that made it.
    since: Vec<(usize, Arc<Names>)>,
}

struct Search<'h> {
    history: &'h History,
    seen: HashSet<Point>,
    /// The furthest that was reached, for the report.
    best: (usize, Vec<usize>),
    order: Vec<usize>,
}

/// The event before all.
const START: usize = usize::MAX;
/// More is not looked at: the seed counts as not decided.
const POINTS_MAX: usize = 400_000;

/// Whether there is an order. An error says how far one goes.
///
/// # Errors
/// There is none, or it was not found in time.
pub(crate) fn check(history: &History) -> Result<(), String> {
    let state = State::default();
    let since = vec![(START, state.tree.clone())];
    let progress = vec![Progress::Before; history.events.len()];
    let mut search = Search { history, seen: HashSet::new(), best: (0, Vec::new()), order: Vec::new() };
    if search.succeeds(Point { progress, state, since }) {
        return Ok(());
    }
    if search.seen.len() >= POINTS_MAX {
        eprintln!("not decided: too many orders");
        return Ok(());
    }
    let (_, order) = &search.best;
    let mut text = String::from("no order explains the answers; the longest that does:\n");
    let line = |number: usize| format!("{}\n", history.events[number]);
    order.iter().for_each(|number| text += &line(*number));
    text += "left:\n";
    let mut left: Vec<_> = (0..history.events.len()).filter(|number| !order.contains(number)).collect();
    left.sort_by_key(|number| history.events[*number].begun);
    left.iter().for_each(|number| text += &line(*number));
    Err(format!("{text}shaken: {:?}\n", history.shaken))
}

impl Search<'_> {
    fn succeeds(&mut self, point: Point) -> bool {
        let events = &self.history.events;
        if (0..events.len())
            .all(|number| point.progress[number] == Progress::Done || !is_needed(&events[number]))
        {
            return true;
        }
        if self.seen.len() >= POINTS_MAX || !self.seen.insert(point.clone()) {
            return false;
        }
        let done = point.progress.iter().filter(|progress| **progress == Progress::Done).count();
        if done > self.best.0 {
            self.best = (done, self.order.clone());
        }
        // Nothing that has ended before this may be left.
        let limit = (0..events.len()).filter(|number| point.progress[*number] != Progress::Done);
        let limit = limit.filter_map(|number| events[number].ended).min().unwrap_or(u64::MAX);
        let mut ready: Vec<usize> = (0..events.len())
            .filter(|number| point.progress[*number] != Progress::Done && events[*number].begun < limit)
            .collect();
        // The call that was answered first comes first.
        ready.sort_by_key(|number| events[*number].ended.unwrap_or(u64::MAX));
        for number in ready {
            for next in self.steps(number, &point) {
                self.order.push(number);
                if self.succeeds(next) {
                    return true;
                }
                self.order.pop();
            }
        }
        false
    }

    /// Where an event can lead.
    fn steps(&self, number: usize, point: &Point) -> Vec<Point> {
        let event = &self.history.events[number];
        match &event.what {
            What::Takeover(_, tree) => self.takeovers(number, tree, point),
            What::Death(node) => {
                let mut next = point.clone();
                next.state.open.retain(|handle, _| handle.0 != *node);
                next.state.locks.retain(|_, holder| holder.0 != *node);
                next.progress[number] = Progress::Done;
                vec![next]
            }
            What::Call { node, call, outcome } => self.calls(number, *node, call, outcome, point),
        }
    }

    fn calls(&self, number: usize, node: usize, call: &Call, outcome: &Outcome, point: &Point) -> Vec<Point> {
        let event = &self.history.events[number];
        let until = event.ended.unwrap_or(u64::MAX);
        let may_steal = |of: usize| self.history.shaken.iter().any(|(node, at)| *node == of && *at < until);
        let mut found = Vec::new();
        let mut add = |state: State, to: Progress, is_durable: bool| {
            let mut next = point.clone();
            next.progress[number] = to;
            if is_durable {
                next.since = vec![(number, state.tree.clone())];
            } else if matches!(to, Progress::Done | Progress::Unheard) && next.state.tree != state.tree {
                next.since.push((number, state.tree.clone()));
            }
            next.state = state;
            found.push(next);
        };
        let events = self.history.events.len();
        let is_first = point.progress[number] == Progress::Before;
        let mut after = point.state.clone();
        let answer = match point.progress[number] {
            Progress::Found(file) => after.found(node, call, file),
            // The file that is made now is another one.
            Progress::Unheard => after.perform(node, number + events, call, &may_steal),
            _ => after.perform(node, number, call, &may_steal),
        };
        let is_vague = |slot: &u8| {
            let opened = point.state.open.get(&(node, *slot));
            opened.is_none_or(|opened| {
                point.state.tree.files.get(&opened.file).is_none_or(|file| file.is_vague)
            })
        };
        match (outcome, &answer) {
            // Nobody was told.
            (None, _) => {
                if answer.is_ok() && point.progress[number] == Progress::Before {
                    add(after, Progress::Done, false);
                }
                return found;
            }
            (Some(Ok(Answer::Bytes(_))), Ok(_)) if matches!(call, Call::Read(slot) if is_vague(slot)) => {
                add(after, Progress::Done, false);
            }
            (Some(Ok(Answer::Attr(told))), Ok(Answer::Attr(is))) if told.is_dir && is.is_dir => {
                add(after, Progress::Done, false);
            }
            (Some(told), is) if told == is => {
                let mut unheard = after.clone();
                add(after, Progress::Done, matches!((call, told), (Call::Fsync(_), Ok(_))));
                let makes = matches!(call, Call::Make(..) | Call::Link(..) | Call::Mkdir(_));
                if makes && is.is_ok() && is_first && self.is_disturbed(until) {
                    // Nobody has the file open.
                    if let Call::Make(slot, ..) = call {
                        unheard.open.remove(&(node, *slot));
                    }
                    add(unheard, Progress::Unheard, false);
                }
            }
            // The lock may have ended by then, or not.
            (Some(Err(EAGAIN)), Ok(_)) if matches!(call, Call::TryLock(slot) if self.is_held(node, *slot, point)) =>
            {
                add(point.state.clone(), Progress::Done, false);
            }
            (Some(Err(EIO | ESTALE)), _) if self.is_shaken(node, until) => {
                let mut without = point.state.clone();
                if let Call::Fsync(slot) = call
                    && let Some(opened) = without.open.get_mut(&(node, *slot))
                {
                    opened.owes_error = false;
                }
                add(without, Progress::Done, false);
                if answer.is_ok() && !matches!(call, Call::Fsync(_) | Call::TryLock(_)) {
                    add(after, Progress::Done, false);
                }
            }
            _ => {}
        }
        if point.progress[number] == Progress::Before
            && let Call::Stat(path) | Call::Open(_, path, _) | Call::Link(path, _) | Call::Rename(path, _) =
                call
            && let Some(file) = point.state.tree.names.get(path)
        {
            add(point.state.clone(), Progress::Found(*file), false);
        }
        found
    }

    /// Another node has the lock, or had it.
    fn is_held(&self, node: usize, slot: u8, point: &Point) -> bool {
        let file = point.state.open.get(&(node, slot)).map(|opened| opened.file);
        file.is_some_and(|file| {
            point.state.stolen.contains(&file)
                || point.state.locks.get(&file).is_some_and(|holder| *holder != (node, slot))
        })
    }

    /// Whether an answer may have been lost by then.
    fn is_disturbed(&self, until: u64) -> bool {
        self.history.disturbed.iter().any(|at| *at < until)
    }

    /// Whether something may be lost for the node by then.
    fn is_shaken(&self, node: usize, until: u64) -> bool {
        let is_takeover = |event: &Event| matches!(event.what, What::Takeover(..));
        self.history.events.iter().any(|event| is_takeover(event) && event.begun < until)
            || self.history.shaken.iter().any(|(of, at)| *of == node && *at < until)
    }

    fn takeovers(&self, number: usize, tree: &Tree, point: &Point) -> Vec<Point> {
        let begun = self.history.events[number].begun;
        let mut found: Vec<Point> = Vec::new();
        for (at, (_, durable)) in point.since.iter().enumerate().rev() {
            if durable.seen() != *tree {
                continue;
            }
            let mut next = point.clone();
            next.progress[number] = Progress::Done;
            for pair in point.since[at..].windows(2) {
                let (before, (lost, after)) = (&pair[0].1, &pair[1]);
                let event = &self.history.events[*lost];
                if event.ended.is_none_or(|ended| ended > begun) {
                    // It was not answered: it may be done again.
                    next.progress[*lost] = Progress::Before;
                } else if let What::Call { node, call: Call::Write(..) | Call::Truncate(..), .. } = event.what
                {
                    // By now its slot may have another file.
                    let is_lost = |file| before.files.get(&file) != after.files.get(&file);
                    let of = next.state.open.iter_mut().filter(|(handle, _)| handle.0 == node);
                    of.filter(|(_, opened)| is_lost(opened.file))
                        .for_each(|(_, opened)| opened.owes_error = true);
                }
            }
            next.state.take_over(durable);
            next.since = vec![(number, next.state.tree.clone())];
            if !found.contains(&next) {
                found.push(next);
            }
        }
        found
    }
}

/// Whether an event must have a place in the order.
fn is_needed(event: &Event) -> bool {
    match &event.what {
        What::Call { outcome, .. } => outcome.is_some(),
        What::Takeover(..) => true,
        What::Death(_) => false,
    }
}

impl State {
    /// A call goes on with the file that it has found.
    fn found(&mut self, node: usize, call: &Call, file: Id) -> Result<Answer, i32> {
        match *call {
            Call::Stat(_) if self.tree.files.contains_key(&file) => Ok(Answer::Attr(self.attr(file))),
            Call::Open(slot, _, appends) => self.open_found(node, slot, file, appends),
            Call::Link(_, new) => self.link_found(file, new),
            // Both names led to one file, each when it was looked at: nothing moves.
            Call::Rename(_, new) if self.tree.names.get(&new) == Some(&file) => Ok(Answer::Done),
            _ => Err(0),
        }
    }
}
