//! Linearize: is there an order of a history's calls in which the model answers, and ends, as the file system did?
//!
//! # Theory
//! A history is linearizable (Herlihy and Wing, TOPLAS 1990) when each call can be given one instant between its call
//! and its return, such that the calls, done one after another at these instants, answer what they answered. The
//! search is that of Wing and Gong (JPDC 1993): take any call that no call which is still to be done precedes, do it
//! in the model, go on; step back when the answer is another. A set of calls done and a state that were reached before
//! need not be looked at again (Lowe, 2017), and a call that cannot change anything is taken as soon as it fits.
//!
//! Reading a directory sees each name at an instant of its own, as POSIX has it. Other calls have one instant each, or
//! [`Instants::Several`]: walks take no locks, so between a walk and what is done where it led the tree may change.
//! These are the exceptions, as in other systems whose walks take no locks; each is a call in two steps:
//! - `stat` finds a file, then reads its attributes: the file may have lost its last name by then, and show a link
//!   count of 0.
//! - A directory is closed to new names, then loses its own: `stat` may tell that it has none a little earlier.
//! - `link` finds a file, then makes the name: the old name may be gone.
//!
//! That a directory is walked through, and moved or removed before the call does its work there, is not drawn.

use super::call::Call;
use super::history::{PATHS, Recorded};
use super::model::Value;
use super::stage::{CallAnswer, agrees};
use super::world::{Id, MountedFile, ROOT_MOUNT, World};
use sluice_vfs_sim::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// How many instants a call may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Instants {
    One,
    /// Two, where the theory above has an exception.
    Several,
}

/// Whether `history`, from the state `before`, is linearizable, so that `is_left` holds of the state after it.
pub(super) fn is_linearizable(
    history: &[Recorded],
    before: &World,
    instants: Instants,
    is_left: &dyn Fn(&World) -> bool,
) -> bool {
    let steps: Vec<Step<'_>> = history
        .iter()
        .enumerate()
        .flat_map(|(number, recorded)| steps_of(number, recorded, before))
        .collect();
    let progress = vec![CallProgress::Before; steps.len()];
    Search { steps, instants, is_left, seen: BTreeMap::new() }.succeeds(&progress, before)
}

/// An event at one instant.
struct Step<'h> {
    /// Which call of the history it belongs to.
    number: usize,
    recorded: &'h Recorded,
    what: What<'h>,
}

enum What<'h> {
    Call,
    /// Reading a directory shows this name, or does not.
    Shows(&'h str, bool),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CallProgress {
    Before,
    /// `stat` or `link` has found this file; whether it is a directory.
    Found(Id, bool),
    Done,
}

fn steps_of<'h>(number: usize, recorded: &'h Recorded, before: &World) -> Vec<Step<'h>> {
    let step = |what| Step { number, recorded, what };
    let (Call::Readdir(fd, _), Ok(CallAnswer::Names(shown))) = (recorded.call, &recorded.answer) else {
        return vec![step(What::Call)];
    };
    let shown: BTreeSet<&str> =
        shown.iter().map(String::as_str).filter(|name| !matches!(*name, "." | "..")).collect();
    let mut names = shown.clone();
    names.extend(PATHS.iter().map(|path| last_name(path)));
    names.extend(listed(before, recorded.process, fd).keys());
    names.into_iter().map(|name| step(What::Shows(name, shown.contains(name)))).collect()
}

/// The names in the directory that is open as `fd`.
fn listed(world: &World, process: usize, fd: i32) -> &BTreeMap<&'static str, Id> {
    let open = &world.opens[&world.processes[process][&fd]];
    world.names(open.place).expect("directories are open as 4 and 5")
}

struct Search<'h> {
    steps: Vec<Step<'h>>,
    instants: Instants,
    is_left: &'h dyn Fn(&World) -> bool,
    /// From where no order was found.
    seen: BTreeMap<Vec<CallProgress>, Vec<World>>,
}

impl Search<'_> {
    /// Whether the remaining steps can succeed from this state.
    fn succeeds(&mut self, progress: &[CallProgress], world: &World) -> bool {
        if progress.iter().all(|step| *step == CallProgress::Done) {
            return (self.is_left)(world);
        }
        let seen = self.seen.entry(progress.to_vec()).or_default();
        if seen.contains(world) {
            return false;
        }
        seen.push(world.clone());
        let ready = (0..self.steps.len()).filter(|step| self.is_ready(*step, progress));
        let mut choices = Vec::new();
        for step in ready {
            for (after, to) in self.step(step, progress, world) {
                let mut progress = progress.to_vec();
                progress[step] = to;
                if to == CallProgress::Done && self.steps[step].recorded.only_looks() {
                    return self.succeeds(&progress, &after);
                }
                choices.push((progress, after));
            }
        }
        choices.into_iter().any(|(progress, after)| self.succeeds(&progress, &after))
    }

    /// Whether no pending step returned before the call of `step` began.
    fn is_ready(&self, step: usize, progress: &[CallProgress]) -> bool {
        let mut left =
            self.steps.iter().zip(progress).filter(|(_, progress)| **progress != CallProgress::Done);
        let this = self.steps[step].recorded;
        progress[step] != CallProgress::Done && left.all(|(other, _)| !other.recorded.precedes(this))
    }

    /// Whether a call that removes a directory may have begun.
    fn is_removing(&self, progress: &[CallProgress]) -> bool {
        let mut begun = (0..self.steps.len()).filter(|step| self.is_ready(*step, progress));
        begun.any(|step| {
            let Recorded { call, answer, .. } = self.steps[step].recorded;
            answer.is_ok() && matches!(call, Call::Rmdir(_) | Call::Rename(..))
        })
    }

    /// The states to which a step can lead.
    fn step(&self, step: usize, progress: &[CallProgress], world: &World) -> Vec<(World, CallProgress)> {
        let Step { number, recorded, ref what } = self.steps[step];
        let mut after = world.clone();
        match (what, progress[step], recorded.call) {
            (What::Shows(name, shown), _, Call::Readdir(fd, _)) => {
                let is_so = listed(world, recorded.process, fd).contains_key(name) == *shown;
                return if is_so { vec![(after, CallProgress::Done)] } else { Vec::new() };
            }
            (_, CallProgress::Found(inode, is_dir), Call::Link(_, new)) => {
                let outcome = after.link_found(at(inode), is_dir, new);
                let is_so = agrees(&recorded.answer, &outcome);
                return if is_so { vec![(after, CallProgress::Done)] } else { Vec::new() };
            }
            (_, CallProgress::Found(inode, is_dir), _) => {
                let has_no_name =
                    matches!(&recorded.answer, Ok(CallAnswer::Stat(told)) if told.has_no_name());
                let is_so = if world.inodes.contains_key(&inode) {
                    agrees(&recorded.answer, &Ok(Value::Stat(world.stat(at(inode)))))
                        || is_dir && has_no_name && self.is_removing(progress)
                } else {
                    has_no_name
                };
                return if is_so { vec![(after, CallProgress::Done)] } else { Vec::new() };
            }
            _ => {}
        }
        // The number of an object comes from the call that makes it, so each order gives the same numbers.
        let outcome = after.perform(number + 1, recorded.process, &recorded.call);
        let mut reached = Vec::new();
        if self.instants == Instants::Several {
            reached.extend(found_by(recorded, world).map(|found| (world.clone(), found)));
        }
        if agrees(&recorded.answer, &outcome) {
            reached.insert(0, (after, CallProgress::Done));
        }
        reached
    }
}

/// Where a call's walk leads now, if what happens there later may explain its answer.
fn found_by(recorded: &Recorded, world: &World) -> Option<CallProgress> {
    let file = |follow| {
        move |path| {
            world.resolve(path, follow).map(|place| CallProgress::Found(place.inode, world.is_dir(place)))
        }
    };
    let led = match (recorded.call, &recorded.answer) {
        (Call::Stat(path), Ok(_)) => file(true)(path),
        (Call::Lstat(path), Ok(_)) => file(false)(path),
        (Call::Link(old, _), _) => file(false)(old),
        _ => return None,
    };
    led.ok()
}

/// The file with this number, where nothing is mounted.
fn at(inode: Id) -> MountedFile {
    MountedFile { mount: ROOT_MOUNT, inode }
}

fn last_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::super::cases::{CaseState, world};
    use super::super::history::History;
    use super::*;

    /// Few where the code is not optimized, so that the test ends in seconds.
    const HISTORIES: u64 = if cfg!(debug_assertions) { 300 } else { 5000 };

    #[test]
    fn histories_of_calls_that_overlap_are_linearizable() {
        let before = world(CaseState::Apart);
        for seed in 0..HISTORIES {
            let history = History::record(seed).unwrap();
            let is_left = |world: &World| history.stage.differences(world).is_empty();
            let under = |instants| is_linearizable(&history.calls, &before, instants, &is_left);
            let is_right = under(Instants::One) || under(Instants::Several);
            assert!(is_right, "not linearizable: seed {seed}\n{history}");
        }
    }

    fn recorded(
        cpu: usize,
        (called, returned): (u64, u64),
        call: Call,
        answer: Result<CallAnswer, Errno>,
    ) -> Recorded {
        Recorded { cpu, process: cpu, call, called, returned, answer }
    }

    fn is_accepted(history: &[Recorded], instants: Instants) -> bool {
        is_linearizable(history, &world(CaseState::Apart), instants, &|_| true)
    }

    #[test]
    fn a_name_is_not_made_twice() {
        let make = |cpu, answer| recorded(cpu, (0, 9), Call::Mkdir("/d/x"), answer);
        assert!(is_accepted(&[make(0, Ok(CallAnswer::Done)), make(1, Err(Errno::EEXIST))], Instants::One));
        assert!(is_accepted(&[make(0, Err(Errno::EEXIST)), make(1, Ok(CallAnswer::Done))], Instants::One));
        assert!(!is_accepted(&[make(0, Ok(CallAnswer::Done)), make(1, Ok(CallAnswer::Done))], Instants::One));
    }

    #[test]
    fn what_returned_before_is_seen_after() {
        let history = |called| {
            [
                recorded(0, (0, 900), Call::Unlink("/d/g"), Ok(CallAnswer::Done)),
                recorded(1, (called, 3000), Call::Rmdir("/d/g"), Err(Errno::ENOTDIR)),
            ]
        };
        assert!(is_accepted(&history(500), Instants::One), "they overlap");
        assert!(!is_accepted(&history(2000), Instants::One), "there is no such name any more");
    }

    #[test]
    fn what_is_left_behind_counts() {
        let history = [recorded(0, (0, 9), Call::Unlink("/d/g"), Ok(CallAnswer::Done))];
        let before = world(CaseState::Apart);
        let is_left =
            |expected: &World| is_linearizable(&history, &before, Instants::One, &|left| left == expected);
        let mut after = before.clone();
        assert!(after.perform(1, 0, &history[0].call).is_ok());
        assert!(is_left(&after) && !is_left(&before));
    }

    #[test]
    fn a_rename_shows_one_of_the_names() {
        let history = |looks: [(&'static str, Result<CallAnswer, Errno>); 2]| {
            let [first, second] = looks;
            let look =
                |called, (path, answer)| recorded(1, (called, called + 2), Call::Readlink(path), answer);
            [
                recorded(0, (0, 9), Call::Rename("/d/g", "/d/x"), Ok(CallAnswer::Done)),
                look(1, first),
                look(5, second),
            ]
        };
        let (there, gone) = (|| Err(Errno::EINVAL), || Err(Errno::ENOENT));
        let both = history([("/d/x", there()), ("/d/g", there())]);
        assert!(!is_accepted(&both, Instants::One) && !is_accepted(&both, Instants::Several));
        let neither = history([("/d/g", gone()), ("/d/x", gone())]);
        assert!(!is_accepted(&neither, Instants::One) && !is_accepted(&neither, Instants::Several));
    }

    #[test]
    fn a_directory_that_is_read_shows_what_stays() {
        let names =
            |names: &[&str]| Ok(CallAnswer::Names(names.iter().map(|name| name.to_string()).collect()));
        let read = |answer| [recorded(0, (0, 9), Call::Readdir(5, 64), answer)];
        assert!(is_accepted(&read(names(&[".", "..", "o", "p", "q", "u", "v"])), Instants::One));
        assert!(
            !is_accepted(&read(names(&[".", "..", "o", "p", "q", "u"])), Instants::One),
            "v is not shown"
        );
        assert!(
            !is_accepted(&read(names(&[".", "..", "o", "p", "q", "u", "v", "y"])), Instants::One),
            "y is"
        );
    }
}
