//! Deadlock: finds cycles of processes that wait for each other's locks, and ends them.
//!
//! # Theory
//! Nodes are processes. While a request of process P waits, P has an edge to every process that holds a lock in its
//! way; it needs *all* of them to let go, so a cycle through any edge is a deadlock. A process with several blocked
//! threads has the edges of all their requests. OFD locks and flock take no part, as on Linux; nor does a request whose
//! [`Detection`](crate::Detection) is off.
//!
//! No graph is kept: edges are read off the files when they are needed. An edge comes into being in three ways, and
//! each makes a *suspect*, the waiting request whose process may now be on a cycle:
//! - a request begins to wait. It notes this in the wait table, then looks whether an owner in its way waits too;
//! - a lock is granted although others wait for it, to a process that waits elsewhere;
//! - a waiting request begins to starve, and is then in the way of other waiting requests.
//!
//! For a suspect, one [`search`] at a time goes from request to process to request, with one file locked at a time. Its
//! view of different files is not of one moment, so a found cycle is only a *charge*; the proof locks all its files and
//! checks every edge again.
//!
//! # Why it is exact
//! No false one: when the proof succeeds all edges are there at one moment. None missed: consider the event that
//! completed the cycle. It made a suspect of a request on the cycle (the one that began to wait, or one that waits
//! for the new lock), and the search for that suspect began afterwards. The other edges stay while their owners
//! wait, so the search finds each when it comes to its file. The suspect is made, too: of several requests that begin
//! to wait at once, the last to enter the wait table finds all others there.
//!
//! # Starving requests
//! A request may also wait for a starving one, which is an edge like others but none that POSIX knows. A cycle with
//! such an edge is broken by forgiving: the starving request lets others pass again. That of an OFD lock is passed
//! through: a request that waits for it waits for the processes that it waits for. A cycle that leads on through locks
//! of descriptions is not followed. Linux does the same: it does not know which process such a request waits for.
//!
//! # Lock order
//! `WaitTable::searching`, then one file, or the files of one charge in the order of their numbers, then shards of
//! the wait table. No other code takes `searching`, or a second file, with a file locked.
//!
//! # Cost
//! A request that waits for a process that does not wait: one look into the wait table. Otherwise each process
//! reachable is visited once, and each of its waiting requests once.

use crate::LockError;
use crate::domain::LockDomain;
use crate::file_state::{FileState, Wait};
use crate::outcomes::Outcomes;
use crate::space::{Around, Edge};
use crate::wait::Then;
use crate::wait_table::WaitTable;
use sluice_sync::{Arc, MutexGuard};
use std::collections::{BTreeMap, VecDeque};

impl Outcomes {
    /// Tells and calls, looks into the suspects, and ends deadlocks. `own` is a request of the
    /// caller's that is told by the result. No lock of this crate may be held.
    ///
    /// # Errors
    /// [`LockError::Deadlock`]: `own` had to be refused.
    #[inline]
    pub(crate) fn carry_out(self, domain: &LockDomain, own: Option<Wait>) -> Result<(), LockError> {
        if self.is_empty() { Ok(()) } else { self.carry_out_all(domain, own) }
    }

    fn carry_out_all(mut self, domain: &LockDomain, own: Option<Wait>) -> Result<(), LockError> {
        let mut result = Ok(());
        loop {
            self.deliver();
            let (Some(suspect), Some(waits)) = (self.next_suspect(), &domain.waits) else {
                return result;
            };
            match search(domain, waits, &suspect, &mut self) {
                // Not called, and dropped here, with everything unlocked.
                Some(_) if own.as_ref().is_some_and(|own| own.is(&suspect)) => {
                    result = Err(LockError::Deadlock)
                }
                Some(then) => self.tell(then, Err(LockError::Deadlock)),
                None => {}
            }
        }
    }
}

/// One step on the way around: the request waits for a lock of process `to`.
#[derive(Clone)]
struct SearchStep {
    wait: Wait,
    to: u64,
}

/// Searches for cycles through the request `suspect` until none is left, or until the request had to be withdrawn: then
/// returns its continuation.
fn search(
    domain: &LockDomain,
    waits: &WaitTable<Wait>,
    suspect: &Wait,
    outcomes: &mut Outcomes,
) -> Option<Then> {
    let searching = waits.searching.lock();
    loop {
        // After a charge that was not proved, somebody got on meanwhile, and the next search sees that.
        let charge = charge(waits, suspect)?;
        if let Proof::Deadlock(then) = prove(domain, &searching, &charge, outcomes) {
            return then;
        }
    }
}

/// A way from the request `suspect` back to its own process: the first step is that request.
fn charge(waits: &WaitTable<Wait>, suspect: &Wait) -> Option<Vec<SearchStep>> {
    let origin = suspect.process()?;
    // By the process that it leads to.
    let mut steps: BTreeMap<u64, (SearchStep, Option<u64>)> = BTreeMap::new();
    let mut open = VecDeque::from([(None, vec![suspect.clone()])]);
    while let Some((from, blocked)) = open.pop_front() {
        for wait in blocked {
            let processes = wait.file.of(wait.ticket).lock().processes_in_the_way(wait.ticket.place);
            for to in processes {
                if steps.contains_key(&to) {
                    continue;
                }
                steps.insert(to, (SearchStep { wait: wait.clone(), to }, from));
                if to == origin {
                    return Some(way_to(origin, &steps));
                }
                open.push_back((Some(to), waits.of(to)));
            }
        }
    }
    None
}

/// The steps that lead to `process`, in order.
fn way_to(process: u64, steps: &BTreeMap<u64, (SearchStep, Option<u64>)>) -> Vec<SearchStep> {
    let mut way = Vec::new();
    let mut at = Some(process);
    while let Some((step, from)) = at.and_then(|process| steps.get(&process)) {
        way.push(step.clone());
        at = *from;
    }
    way.reverse();
    way
}

/// The result of a charge.
enum Proof {
    /// A deadlock, and the first request on the way was withdrawn (as it always is).
    Deadlock(Option<Then>),
    /// No deadlock, or no more.
    None,
}

/// Looks at all steps of `charge` at one moment. If they are there the cycle is broken.
fn prove(
    domain: &LockDomain,
    searching: &MutexGuard<'_, ()>,
    charge: &[SearchStep],
    outcomes: &mut Outcomes,
) -> Proof {
    let mut files: Vec<&Arc<FileState>> = charge.iter().map(|step| &step.wait.file).collect();
    // By number; the address only tells apart files that a client gave the same numbers.
    files.sort_by_key(|file| (file.dev, file.ino, Arc::as_ptr(file)));
    files.dedup_by(|a, b| Arc::ptr_eq(a, b));
    // All suspects wait for ranges: flock takes no part.
    let mut locked: Vec<_> = files.iter().map(|file| file.ranges.lock_under(searching)).collect();
    let position = |wait: &Wait| files.iter().position(|file| Arc::ptr_eq(file, &wait.file)).unwrap_or(0);

    let mut starving = None;
    for SearchStep { wait, to } in charge {
        match locked[position(wait)].edge(wait.ticket.place, *to) {
            None => return Proof::None,
            Some(Edge::Starving(place)) => starving = Some((wait, place)),
            Some(Edge::Lock) => {}
        }
    }
    let (wait, place) = starving.unwrap_or((&charge[0].wait, charge[0].wait.ticket.place));
    let around = Around { file: &wait.file, domain };
    let space = &mut locked[position(wait)];
    if starving.is_some() {
        space.forgive(around, place, outcomes);
        return Proof::None;
    }
    Proof::Deadlock(space.withdraw(around, place, outcomes))
}

impl Wait {
    fn is(&self, other: &Wait) -> bool {
        self.ticket == other.ticket && Arc::ptr_eq(&self.file, &other.file)
    }

    /// The process whose request it is, while it waits.
    fn process(&self) -> Option<u64> {
        self.file.of(self.ticket).lock().waiting_process(self.ticket.place)
    }
}
