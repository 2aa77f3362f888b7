//! Order: the search for an order of a history's calls in which the model answers as the mounts did.
//!
//! # Theory
//! Take any call that no call which is still to be done precedes, do it in the model, go on; step back if the answer is another. A set
//! of calls done and a state that were reached before are not looked at again. A call that only looks, or is refused, is taken as soon as
//! its answer fits: no other call hears of the moment.
//!
//! *Instants.* A call has one instant between its begin and its end, with these exceptions, which kernels have on one machine, too:
//! - the two names of a directory are listed each at its own instant (POSIX has it so);
//! - of a read each word of eight bytes and the length, of a stat the size and the number of links have instants of their own: no lock
//!   keeps a reader from a page that is written to;
//! - the length of a read during which another program changes a size is any: Linux's FUSE client goes on with the size that it knew,
//!   if a notice comes while it asks for the attributes; bytes beyond the end are zeros, and bytes before the end may be zeros then;
//! - a `stat` may show the size that a write or truncate gives which has not returned, before any read shows the bytes: a FUSE file system
//!   that keeps pages has one size at the server and one in the kernel meanwhile;
//! - `stat`, `link`, `rename` and the reading of a file find a file, and do their work on it later, wherever its name is by then.
//!
//! *Unknown answers.* A call with no answer, or with an error that the model does not have, takes place once after its begin, or never.
//! Locks of a program with such a call may have ended.
//!
//! *Losses.* Where [`RoundRules::losses`] allows it, names and contents go back to a state since the last fsync of that order: a server
//! has failed, and changes that no fsync had confirmed are lost. The next fsync of a descriptor through which lost bytes were written
//! must fail. A call that had no answer by then may take place again.

use crate::call::{DIRS, EAGAIN, EIO, SharedAnswer, SharedCall, SharedName, TimedCall, WORD};
use crate::model::{ModelFileId, ModelState, ModelTree, NO_DESCRIPTOR};
use sluice_sync::Arc;
use std::collections::HashSet;

/// The outcome of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundVerdict {
    /// There is an order.
    Found,
    /// There is none.
    Missing,
    /// The search was given up.
    Undecided,
}

/// The rules for a history.
#[derive(Clone, Copy, Debug)]
pub struct RoundRules {
    /// How often changes that no fsync has confirmed may be lost.
    pub losses: u8,
    /// States after which the search is given up.
    pub states_max: usize,
}

/// Whether a history has an order.
pub fn find_order(history: &[TimedCall], rules: RoundRules) -> RoundVerdict {
    let optional = vec![false; history.len()];
    find_order_with(history, &optional, rules)
}

/// Whether a history has an order; each call with `optional` may or may not have taken place.
pub(crate) fn find_order_with(history: &[TimedCall], optional: &[bool], rules: RoundRules) -> RoundVerdict {
    let is_shaken =
        |process: usize| history.iter().any(|call| call.process == process && call.known().is_none());
    let shaken = history.iter().map(|call| is_shaken(call.process)).collect();
    let state = ModelState::default();
    let point = SearchPoint {
        progress: vec![OrderProgress::Before; history.len()],
        since: vec![(usize::MAX, state.tree.clone())],
        state,
        losses: rules.losses,
    };
    let mut search = OrderSearch { history, optional, shaken, rules, seen: HashSet::new() };
    match search.succeeds(point) {
        true => RoundVerdict::Found,
        false if search.seen.len() >= rules.states_max => RoundVerdict::Undecided,
        false => RoundVerdict::Missing,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OrderProgress {
    Before,
    /// The call has found this file; these pieces of its answer have had their instants.
    Begun(ModelFileId, u128),
    Done,
}

/// The place of a file where a call needs none.
const NO_FILE: ModelFileId = usize::MAX;

#[derive(Clone, PartialEq, Eq, Hash)]
struct SearchPoint {
    progress: Vec<OrderProgress>,
    state: ModelState,
    /// The trees since the last fsync, each with the call that made it. One tree, if nothing may be lost.
    since: Vec<(usize, Arc<ModelTree>)>,
    losses: u8,
}

struct OrderSearch<'h> {
    history: &'h [TimedCall],
    /// Calls that need not take place.
    optional: &'h [bool],
    /// For each call whether its program has had an unknown answer.
    shaken: Vec<bool>,
    rules: RoundRules,
    seen: HashSet<SearchPoint>,
}

impl OrderSearch<'_> {
    fn succeeds(&mut self, mut point: SearchPoint) -> bool {
        self.take_what_changes_nothing(&mut point);
        let is_left =
            |number: &usize| point.progress[*number] != OrderProgress::Done && self.is_needed(*number);
        if !(0..self.history.len()).any(|number| is_left(&number)) {
            return true;
        }
        if self.seen.len() >= self.rules.states_max || !self.seen.insert(point.clone()) {
            return false;
        }
        let mut ready = self.ready(&point);
        ready.sort_by_key(|number| self.history[*number].ended.unwrap_or(u64::MAX));
        for &number in &ready {
            if let Some(next) = self.performed(number, &point)
                && self.succeeds(next)
            {
                return true;
            }
        }
        for &number in &ready {
            if let Some(next) = self.begun(number, &point)
                && self.succeeds(next)
            {
                return true;
            }
        }
        self.after_losses(&point).into_iter().any(|next| self.succeeds(next))
    }

    fn is_needed(&self, number: usize) -> bool {
        !self.optional[number] && self.history[number].known().is_some()
    }

    /// The calls that may take place now: none that is left has ended before they began.
    fn ready(&self, point: &SearchPoint) -> Vec<usize> {
        let is_left = |number: &usize| point.progress[*number] != OrderProgress::Done;
        let limit = (0..self.history.len()).filter(is_left).filter(|number| self.is_needed(*number));
        let limit = limit.filter_map(|number| self.history[number].ended).min().unwrap_or(u64::MAX);
        (0..self.history.len())
            .filter(is_left)
            .filter(|number| self.history[*number].begun <= limit)
            .filter(|number| self.is_in_time(*number, point))
            .collect()
    }

    /// A call that need not take place does so before its end, or not at all, unless its answer is unknown: then its work may come late.
    fn is_in_time(&self, number: usize, point: &SearchPoint) -> bool {
        let end = match self.history[number].known() {
            Some(_) if self.optional[number] => self.history[number].ended.unwrap_or(u64::MAX),
            _ => return true,
        };
        // Looks are taken early, and say nothing of the time.
        let changes = self.history.iter().zip(&point.progress).filter(|(call, _)| !call.changed_nothing());
        changes.into_iter().all(|(call, progress)| *progress != OrderProgress::Done || call.begun <= end)
    }

    /// Takes all calls that fit and change nothing, and the pieces of answers that fit.
    fn take_what_changes_nothing(&self, point: &mut SearchPoint) {
        let mut is_settled = false;
        while !is_settled {
            is_settled = true;
            for number in self.ready(point) {
                if !self.is_needed(number) {
                    continue;
                }
                let to = self.without_change(number, point);
                if to != point.progress[number] {
                    point.progress[number] = to;
                    is_settled &= to != OrderProgress::Done;
                }
            }
        }
    }

    /// How far a call gets in this state without a change of the state and without a choice.
    fn without_change(&self, number: usize, point: &SearchPoint) -> OrderProgress {
        let TimedCall { process, ref call, .. } = self.history[number];
        let progress = point.progress[number];
        let Some(told) = self.history[number].known() else { return progress };
        let is_about_contents = call.only_looks()
            || matches!(
                call,
                SharedCall::Write { .. } | SharedCall::Append { .. } | SharedCall::Truncate { .. }
            );
        if let Some(slot) = call.slot().filter(|_| is_about_contents)
            && let Ok(file) = point.state.file((process, slot))
            && point.state.tree.files.get(&file).is_none_or(|file| file.is_vague && call.only_looks())
        {
            return OrderProgress::Done; // Lost, or of unknown contents.
        }
        match (progress, told) {
            (OrderProgress::Begun(file, seen), Ok(answer)) if call.only_looks() => {
                self.pieces_at(number, answer, point, file, seen)
            }
            (OrderProgress::Before, Ok(answer)) if call.only_looks() => {
                let file = match *call {
                    SharedCall::Stat { name } | SharedCall::ReadFile { name } => {
                        point.state.tree.find(name).ok()
                    }
                    SharedCall::List { .. } => Some(NO_FILE),
                    _ => call.slot().and_then(|slot| point.state.file((process, slot)).ok()),
                };
                // To find a file by its name is a choice, if some of the answer is still to come.
                let is_choice = matches!(call, SharedCall::Stat { .. } | SharedCall::ReadFile { .. });
                match file.map(|file| self.pieces_at(number, answer, point, file, 0)) {
                    Some(OrderProgress::Done) => OrderProgress::Done,
                    Some(to) if !is_choice => to,
                    _ => progress,
                }
            }
            // A change that changes nothing now may do so later: it is a choice.
            (_, Ok(_)) if self.rules.losses > 0 || !matches!(call, SharedCall::Fsync { .. }) => progress,
            _ => match self.outcome(number, point) {
                Some((_, is)) if is == *told => OrderProgress::Done,
                _ if self.is_refused_for_a_lock_that_may_be_held(number, point) => OrderProgress::Done,
                _ => progress,
            },
        }
    }

    /// A lock of a program whose server is gone may be held or not.
    fn is_refused_for_a_lock_that_may_be_held(&self, number: usize, point: &SearchPoint) -> bool {
        let is_refused = self.history[number].result == Some(Err(EAGAIN));
        is_refused && point.progress[number] == OrderProgress::Before && self.shaken.contains(&true)
    }

    /// The state after a call and its answer in the model, unless the call is a look whose pieces have instants of their own.
    fn outcome(&self, number: usize, point: &SearchPoint) -> Option<(ModelState, Result<SharedAnswer, i32>)> {
        let TimedCall { process, ref call, .. } = self.history[number];
        let mut after = point.state.clone();
        let is = match (point.progress[number], call) {
            (OrderProgress::Before, SharedCall::Lock { slot, .. }) => {
                let held = after.file((process, *slot));
                let is_lost = |holder: usize| {
                    self.history
                        .iter()
                        .zip(&self.shaken)
                        .any(|(call, shaken)| call.process == holder && *shaken)
                };
                if self.history[number].is_ok() {
                    after.locks.retain(|(holder, _), lock| {
                        *holder == process || Ok(lock.file) != held || !is_lost(*holder)
                    });
                }
                after.perform(process, number, call)
            }
            (OrderProgress::Before, _) => after.perform(process, number, call),
            (OrderProgress::Begun(file, _), SharedCall::Link { new, .. }) => after.link_found(file, *new),
            (OrderProgress::Begun(file, _), SharedCall::Rename { new, .. }) => {
                after.rename_found(file, None, *new)
            }
            _ => return None,
        };
        (is != Err(NO_DESCRIPTOR)).then_some((after, is))
    }

    /// The point after a call that changes something.
    fn performed(&self, number: usize, point: &SearchPoint) -> Option<SearchPoint> {
        let TimedCall { process, ref call, .. } = self.history[number];
        let told = self.history[number].known();
        if told.is_some() && call.only_looks() {
            return None;
        }
        let (mut after, is) = self.outcome(number, point)?;
        match told {
            Some(told) if *told == is => {}
            None if is == Err(EIO) && self.history[number].ended.is_some() => {} // An fsync says that something is lost.
            // Nobody was told. An open that failed gives no descriptor.
            None if is.is_ok() && !matches!(call, SharedCall::Open { .. }) => {
                if let SharedCall::Create { slot, .. } = call {
                    after.open.remove(&(process, *slot));
                }
                if after == point.state {
                    return None;
                }
            }
            _ => return None,
        }
        let mut next = point.clone();
        next.progress[number] = OrderProgress::Done;
        if self.rules.losses > 0 {
            if told.is_some() && matches!(call, SharedCall::Fsync { .. }) {
                next.since = vec![(number, after.tree.clone())];
            } else if after.tree != point.state.tree {
                next.since.push((number, after.tree.clone()));
            }
        }
        next.state = after;
        Some(next)
    }

    /// The point at which a call has found the file of its name, and goes on with that.
    fn begun(&self, number: usize, point: &SearchPoint) -> Option<SearchPoint> {
        if point.progress[number] != OrderProgress::Before || self.history[number].known().is_none() {
            return None;
        }
        let name = match self.history[number].call {
            SharedCall::Stat { name } | SharedCall::ReadFile { name } if self.history[number].is_ok() => name,
            SharedCall::Link { old, .. } | SharedCall::Rename { old, .. } => old,
            _ => return None,
        };
        let file = point.state.tree.find(name).ok()?;
        let mut next = point.clone();
        next.progress[number] = OrderProgress::Begun(file, 0);
        Some(next)
    }

    /// The points after a loss.
    fn after_losses(&self, point: &SearchPoint) -> Vec<SearchPoint> {
        let Some(losses) = point.losses.checked_sub(1) else { return Vec::new() };
        let is_done = |number: &usize| point.progress[*number] == OrderProgress::Done;
        // All that is done has begun by the time of the loss.
        let now = (0..self.history.len()).filter(is_done).map(|number| self.history[number].begun).max();
        let now = now.unwrap_or(0);
        let earlier = 0..point.since.len().saturating_sub(1);
        let after = |at: usize| {
            let mut next = point.clone();
            next.losses = losses;
            for pair in point.since[at..].windows(2) {
                let (before, (number, after)) = (&pair[0].1, &pair[1]);
                let TimedCall { process, ref call, ended, .. } = self.history[*number];
                if ended.is_none_or(|ended| ended > now) {
                    next.progress[*number] = OrderProgress::Before;
                } else if let Some(descriptor) = call.slot().map(|slot| (process, slot))
                    && let Ok(file) = point.state.file(descriptor)
                    && before.files.get(&file) != after.files.get(&file)
                {
                    next.state.owed.insert(descriptor);
                }
            }
            next.state.go_back(&point.since[at].1);
            next.since = vec![(usize::MAX, next.state.tree.clone())];
            next
        };
        earlier.rev().map(after).collect()
    }
}

impl OrderSearch<'_> {
    /// Takes the pieces of the answer of a call that fit `file` now. `seen`: those that were taken before.
    fn pieces_at(
        &self,
        number: usize,
        answer: &SharedAnswer,
        point: &SearchPoint,
        file: ModelFileId,
        seen: u128,
    ) -> OrderProgress {
        let tree = &point.state.tree;
        let fits: Vec<bool> = match (answer, &self.history[number].call) {
            (SharedAnswer::Names(listed), SharedCall::List { dir }) => {
                let names = SharedName::in_dir(*dir % DIRS.len() as u8);
                let is_as_listed =
                    |(name, is_listed): (SharedName, &bool)| tree.find(name).is_ok() == *is_listed;
                names.into_iter().zip(listed).map(is_as_listed).collect()
            }
            (SharedAnswer::Attr { size, links, is_dir }, _) => {
                let Some(model) = tree.files.get(&file) else { return OrderProgress::Done };
                let has_size = || {
                    let now = model.bytes.len() as u64;
                    model.is_vague
                        || now == *size
                        || self.sizes_to_come(number, point, file, now).contains(size)
                };
                if model.is_dir || *is_dir {
                    vec![model.is_dir == *is_dir]
                } else {
                    vec![has_size(), tree.links(file) == *links]
                }
            }
            (SharedAnswer::Bytes(bytes), _) => {
                let Some(model) = tree.files.get(&file) else { return OrderProgress::Done };
                let changes = self.sizes_change_during(number, point);
                let is_there = |(number, word): (usize, &[u8])| {
                    let rest = model.bytes.get(number * WORD..).unwrap_or_default();
                    let may_be_zero = (rest.is_empty() || changes) && word.iter().all(|byte| *byte == 0);
                    model.is_vague || rest.starts_with(word) || may_be_zero
                };
                let length = model.is_vague || model.bytes.len() == bytes.len() || changes;
                let words = bytes.chunks(WORD).enumerate().map(is_there);
                std::iter::once(length && !model.is_dir).chain(words).collect()
            }
            _ => return OrderProgress::Begun(file, seen),
        };
        // A history of ours has no file of more words.
        let bits = fits.iter().enumerate().take(128);
        let seen = bits.fold(seen, |seen, (bit, fits)| seen | u128::from(*fits) << bit);
        if fits.len() <= 128 && seen.count_ones() as usize == fits.len() {
            OrderProgress::Done
        } else {
            OrderProgress::Begun(file, seen)
        }
    }

    /// Whether another program may change a size while the call `number` runs.
    fn sizes_change_during(&self, number: usize, point: &SearchPoint) -> bool {
        let this = &self.history[number];
        let end = |call: &TimedCall| call.ended.filter(|_| call.known().is_some());
        let changes = |call: &TimedCall| {
            matches!(
                call.call,
                SharedCall::Write { .. } | SharedCall::Append { .. } | SharedCall::Truncate { .. }
            )
        };
        self.history.iter().zip(&point.progress).any(|(call, progress)| {
            // A call without an end runs until it has taken place.
            let runs_still = end(call).map_or(*progress != OrderProgress::Done, |end| this.begun <= end);
            let has_begun = end(this).is_none_or(|end| call.begun <= end);
            call.process != this.process && runs_still && has_begun && changes(call)
        })
    }

    /// The sizes that `file` can have after calls that are still to be done, and that begin before the call `number` ends.
    fn sizes_to_come(&self, number: usize, point: &SearchPoint, file: ModelFileId, now: u64) -> HashSet<u64> {
        let end = self.history[number].ended.unwrap_or(u64::MAX);
        let is_running = |(call, progress): &(&TimedCall, &OrderProgress)| {
            let slot = call.call.slot().map(|slot| (call.process, slot));
            **progress == OrderProgress::Before
                && call.begun <= end
                && slot.is_some_and(|descriptor| point.state.file(descriptor) == Ok(file))
        };
        let mut reached = HashSet::from([now]);
        for (call, _) in self.history.iter().zip(&point.progress).filter(is_running) {
            let after = |size: &u64| match call.call {
                SharedCall::Append { .. } => size + WORD as u64,
                SharedCall::Write { offset, .. } => (*size).max(offset + WORD as u64),
                SharedCall::Truncate { size, .. } => size,
                _ => *size,
            };
            let more: Vec<u64> = reached.iter().map(after).collect();
            reached.extend(more);
        }
        reached
    }
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
