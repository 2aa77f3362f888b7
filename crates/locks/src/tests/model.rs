//! The model test: random calls, compared step by step with arrays of bytes and a brute-force wait-for graph.

use super::{Event, Log, seeded};
use crate::{
    Detection, DomainOptions, FileLocks, Kind, LEASE_BREAK, LockClass, LockDomain, LockError, Owner, Range,
    RangeLock, RangeRequest, Submitted, Ticket,
};
use sluice_sync::Arc;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a model file. The last one stands for all bytes up to the end of the file.
const CELLS: usize = 12;
const FILES: usize = 3;
/// Tickets kept at a time.
const MAX_TICKETS: usize = 10;
const PROCESSES: usize = 5;
const OWNERS: [Owner; PROCESSES + 2] = [
    Owner::Process(0),
    Owner::Process(1),
    Owner::Process(2),
    Owner::Process(3),
    Owner::Process(4),
    Owner::Description(0),
    Owner::Description(1),
];

type Cells = [Option<Kind>; CELLS];
/// A request as the model knows it; flocks cover all cells and have a `Description`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Want {
    owner: Owner,
    kind: Kind,
    from: usize,
    to: usize,
    detection: Detection,
}

impl Want {
    /// The process that waits, if the request takes part in deadlock detection.
    fn process(&self) -> Option<u64> {
        match (self.owner, self.detection) {
            (Owner::Process(process), Detection::ByOwner) => Some(process),
            _ => None,
        }
    }

    /// True if the two exclude each other.
    fn meets(&self, other: &Want) -> bool {
        let exclusive = self.kind == Kind::Exclusive || other.kind == Kind::Exclusive;
        self.owner != other.owner && exclusive && self.from <= other.to && other.from <= self.to
    }
}

/// One lock space of one file.
#[derive(Clone, Default)]
struct Space {
    /// By age of the owner's first lock.
    holders: Vec<(Owner, Cells)>,
    /// Oldest first, with the key of the request.
    waiters: Vec<(usize, Want)>,
}

impl Space {
    fn cells(&mut self, owner: Owner) -> &mut Cells {
        let at = self.holders.iter().position(|(other, _)| *other == owner).unwrap_or_else(|| {
            self.holders.push((owner, [None; CELLS]));
            self.holders.len() - 1
        });
        &mut self.holders[at].1
    }

    fn fill(&mut self, want: Want, kind: Option<Kind>) {
        self.cells(want.owner)[want.from..=want.to].fill(kind);
        self.holders.retain(|(_, cells)| cells.iter().any(Option::is_some));
    }

    /// The maximal runs of one kind, in search order.
    fn runs(&self) -> Vec<Want> {
        let mut runs: Vec<Want> = Vec::new();
        for &(owner, cells) in &self.holders {
            let mut open = false;
            for (at, cell) in cells.into_iter().enumerate() {
                match (cell, runs.last_mut()) {
                    (Some(kind), Some(run)) if open && run.kind == kind => run.to = at,
                    (Some(kind), _) => {
                        runs.push(Want { owner, kind, from: at, to: at, detection: Detection::ByOwner })
                    }
                    (None, _) => {}
                }
                open = cell.is_some();
            }
        }
        runs
    }

    fn conflicts(&self, want: &Want) -> Vec<Want> {
        let mut runs = self.runs();
        runs.retain(|run| run.meets(want));
        runs
    }

    /// The edges of the wait-for graph that `want` has while it waits.
    fn edges(&self, want: &Want) -> BTreeSet<(u64, u64)> {
        let Some(from) = want.process() else { return BTreeSet::new() };
        let to = |run: &Want| match run.owner {
            Owner::Process(to) => Some((from, to)),
            Owner::Description(_) => None,
        };
        self.conflicts(want).iter().filter_map(to).collect()
    }

    fn records(&self) -> usize {
        self.runs().len() + self.waiters.len()
    }
}

/// The pairs of processes of which the first waits for the second by some way (Floyd and Warshall).
fn closure(edges: &BTreeSet<(u64, u64)>) -> [[bool; PROCESSES]; PROCESSES] {
    let mut reach = [[false; PROCESSES]; PROCESSES];
    for &(from, to) in edges {
        reach[from as usize][to as usize] = true;
    }
    for middle in 0..PROCESSES {
        for from in 0..PROCESSES {
            for to in 0..PROCESSES {
                reach[from][to] |= reach[from][middle] && reach[middle][to];
            }
        }
    }
    reach
}

fn cyclic(edges: &BTreeSet<(u64, u64)>) -> bool {
    let reach = closure(edges);
    (0..PROCESSES).any(|process| reach[process][process])
}

/// All files. Space `2 * file` has its ranges, space `2 * file + 1` its flocks.
struct Model {
    spaces: Vec<Space>,
    options: DomainOptions,
}

impl Model {
    fn new(options: DomainOptions) -> Self {
        Model { spaces: vec![Space::default(); 2 * FILES], options }
    }

    fn records(&self) -> usize {
        self.spaces.iter().map(Space::records).sum()
    }

    fn over_limit(&self, before: usize) -> bool {
        let now = self.records();
        now > before && self.options.max_locks.is_some_and(|limit| now as u64 > limit)
    }

    fn all_edges(&self) -> BTreeSet<(u64, u64)> {
        self.spaces
            .iter()
            .flat_map(|space| space.waiters.iter().flat_map(|(_, want)| space.edges(want)))
            .collect()
    }

    fn waits(&self, owner: Owner) -> bool {
        let mut ranges = self.spaces.iter().step_by(2).flat_map(|space| &space.waiters);
        matches!(owner, Owner::Process(_))
            && ranges.any(|(_, want)| want.owner == owner && want.process().is_some())
    }

    fn waits_for_itself(&self, at: usize, want: &Want, process: u64) -> bool {
        let reach = closure(&self.all_edges());
        let edges = self.spaces[at].edges(want);
        edges.iter().any(|&(_, to)| to == process || reach[to as usize][process as usize])
    }

    /// Changes a space, or leaves it alone if that would pass the limit.
    fn try_change(&mut self, at: usize, change: impl FnOnce(&mut Space)) -> Result<(), LockError> {
        let before = self.records();
        let old = self.spaces[at].clone();
        change(&mut self.spaces[at]);
        if self.over_limit(before) {
            self.spaces[at] = old;
            return Err(LockError::NoLocks);
        }
        Ok(())
    }

    /// A request; `key` if it may wait. `Ok(true)`: granted.
    fn request(&mut self, at: usize, want: Want, key: Option<usize>) -> Result<bool, LockError> {
        if self.spaces[at].conflicts(&want).is_empty() {
            return self.try_change(at, |space| space.fill(want, Some(want.kind))).map(|()| true);
        }
        let key = key.ok_or(LockError::WouldBlock)?;
        self.try_change(at, |space| space.waiters.push((key, want)))?;
        if self.options.deadlock_detection && cyclic(&self.all_edges()) {
            self.spaces[at].waiters.pop();
            return Err(LockError::Deadlock);
        }
        Ok(false)
    }

    /// The events of waiters after a change of their space, by granting `first` if anything.
    fn settle(&mut self, at: usize, first: Option<Want>) -> Vec<Event> {
        let mut events = Vec::new();
        // Grants that may have closed a cycle: to processes that wait for something else.
        let mut grants: Vec<_> = first.into_iter().filter(|want| self.waits(want.owner)).collect();
        while let Some(next) = {
            let space = &self.spaces[at];
            space.waiters.iter().position(|(_, want)| space.conflicts(want).is_empty())
        } {
            let (key, want) = self.spaces[at].waiters.remove(next);
            let outcome = self.try_change(at, |space| space.fill(want, Some(want.kind)));
            events.push((key, outcome));
            grants.extend((outcome.is_ok() && self.waits(want.owner)).then_some(want));
        }
        if !self.options.deadlock_detection {
            return events;
        }
        // A request that waits for another's new lock is a victim if it so waits for itself, oldest first.
        for grant in grants {
            for (key, want) in self.spaces[at].waiters.clone() {
                if want.meets(&grant)
                    && let Some(process) = want.process()
                    && self.waits_for_itself(at, &want, process)
                {
                    self.spaces[at].waiters.retain(|(other, _)| *other != key);
                    events.push((key, Err(LockError::Deadlock)));
                }
            }
        }
        assert!(!cyclic(&self.all_edges()), "the model itself left a cycle");
        events
    }
}

fn real_range(from: usize, to: usize) -> Range {
    let end = if to == CELLS - 1 { Range::WHOLE.end() } else { to as u64 };
    Range::new(from as u64, end).expect("a range")
}

fn real_request(want: &Want) -> RangeRequest {
    let Want { owner, kind, from, to, .. } = *want;
    RangeRequest { owner, pid: pid(owner), kind, range: real_range(from, to) }
}

fn real_lock(want: &Want) -> RangeLock {
    let RangeRequest { owner, pid, kind, range } = real_request(want);
    RangeLock { owner, pid, kind, range }
}

fn pid(owner: Owner) -> i32 {
    match owner {
        Owner::Process(process) => 100 + process as i32,
        Owner::Description(description) => -1 - description as i32,
    }
}

/// A line that the listing of a file must contain: (flock?, kind, pid, range, range of the blocker), in order.
type Line = (bool, Kind, i32, Range, Option<(i32, Range)>);

fn model_lines(model: &Model, file: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    for is_flock in [false, true] {
        let space = &model.spaces[2 * file + usize::from(is_flock)];
        let line = |want: &Want, blocker| {
            (is_flock, want.kind, pid(want.owner), real_range(want.from, want.to), blocker)
        };
        for run in space.runs() {
            lines.push(line(&run, None));
            for (_, want) in &space.waiters {
                if space.conflicts(want)[0] == run {
                    lines.push(line(want, Some((pid(run.owner), real_range(run.from, run.to)))));
                }
            }
        }
    }
    lines
}

fn real_lines(domain: &LockDomain, file: usize) -> Vec<Line> {
    let entries = domain.list();
    let by_id: BTreeMap<_, _> = entries.iter().map(|entry| (entry.id, entry)).collect();
    assert_eq!(by_id.len(), entries.len(), "ids are unique");
    let of_file = entries.iter().filter(|entry| entry.ino == file as u64);
    of_file
        .map(|entry| {
            let blocker = entry.waits_for.map(|id| (by_id[&id].pid, by_id[&id].range));
            (entry.class == LockClass::Flock, entry.kind, entry.pid, entry.range, blocker)
        })
        .collect()
}

/// Runs `steps` random calls on both, and compares after each.
fn run(name: &str, options: DomainOptions, steps: usize) {
    let mut random = seeded(name);
    let domain = LockDomain::new(options);
    let files: Vec<_> = (0..FILES).map(|ino| FileLocks::new(&domain, 0x802, ino as u64)).collect();
    let mut model = Model::new(options);
    let log = Log::default();
    let mut tickets: Vec<(usize, Ticket, usize)> = Vec::new();
    let mut seen = BTreeMap::new();

    for step in 0..steps {
        let file = random.below(FILES);
        let real = &files[file];
        let from = random.below(CELLS);
        let to = from + random.below(CELLS - from);
        let kind = random.pick(&[Kind::Shared, Kind::Exclusive]);
        let detection = if random.below(4) == 0 { Detection::Off } else { Detection::ByOwner };
        let range_want = Want { owner: random.pick(&OWNERS), kind, from, to, detection };
        let owner = random.below(4);
        let flock_want = Want { owner: Owner::Description(owner), kind, from: 0, to: CELLS - 1, detection };
        // Waiters are kept few: more of them make the model slow, not the test sharper.
        let call = if tickets.len() < MAX_TICKETS { random.below(100) } else { 99 };
        let is_flock = (80..98).contains(&call);
        let at = 2 * file + usize::from(is_flock);

        // Each arm makes the call on both and compares what it returns.
        let mut events = None;
        let mut first = None;
        let mut touched = file;
        let what = match call {
            0..15 => {
                let expected = model.request(at, range_want, None).map(drop);
                assert_eq!(real.set_range(&real_request(&range_want)), expected, "step {step}");
                first = expected.is_ok().then_some(range_want);
                format!("set {expected:?}")
            }
            15..40 => {
                let expected = model.request(at, range_want, Some(step));
                let request = real_request(&range_want);
                let result = real.submit_range_with(&request, detection, log.done(step));
                compare_submitted(result, expected, step, file, &mut tickets);
                first = (expected == Ok(true)).then_some(range_want);
                format!("submit {expected:?}")
            }
            40..60 => {
                let expected = model.try_change(at, |space| space.fill(range_want, None));
                let result = real.unlock_range(range_want.owner, real_range(from, to));
                assert_eq!(result, expected, "step {step}");
                format!("unlock {expected:?}")
            }
            60..66 => {
                model.spaces[at].holders.retain(|(owner, _)| *owner != range_want.owner);
                real.release_owner(range_want.owner);
                "release".to_string()
            }
            66..76 => {
                let expected = model.spaces[at].conflicts(&range_want).first().map(real_lock);
                assert_eq!(real.test_range(&real_request(&range_want)), expected, "step {step}");
                format!("test {}", expected.is_some())
            }
            76..80 => {
                let own = Want { owner: Owner::Process(u64::MAX), kind: Kind::Exclusive, ..range_want };
                let mut conflicts = model.spaces[at].conflicts(&own);
                conflicts.retain(|run| run.owner == range_want.owner);
                let found = real.test_own_range(range_want.owner, real_range(from, to));
                assert_eq!(found, conflicts.first().map(real_lock), "step {step}");
                format!("test own {}", found.is_some())
            }
            80..92 => {
                let has = model.spaces[at]
                    .runs()
                    .iter()
                    .any(|run| (run.owner, run.kind) == (flock_want.owner, kind));
                let may_wait = call >= 85;
                let expected = if has {
                    Ok(true)
                } else {
                    model.spaces[at].fill(flock_want, None);
                    model.request(at, flock_want, may_wait.then_some(step))
                };
                let pid = pid(flock_want.owner);
                if may_wait {
                    let result = real.submit_flock(owner, pid, kind, log.done(step));
                    compare_submitted(result, expected, step, file, &mut tickets);
                } else {
                    assert_eq!(real.set_flock(owner, pid, kind), expected.map(drop), "step {step}");
                }
                format!("flock {expected:?}")
            }
            92..98 => {
                model.spaces[at].fill(flock_want, None);
                real.unlock_flock(owner);
                "unflock".to_string()
            }
            _ if !tickets.is_empty() => {
                let (key, ticket, file) = tickets.swap_remove(random.below(tickets.len()));
                touched = file;
                let mut waits = false;
                for space in &mut model.spaces[2 * file..2 * file + 2] {
                    waits |= space.waiters.iter().any(|(other, _)| *other == key);
                    space.waiters.retain(|(other, _)| *other != key);
                }
                assert_eq!(files[file].cancel(&ticket), waits, "step {step}");
                events = Some(Vec::new());
                format!("cancel {waits}")
            }
            _ => "nothing".to_string(),
        };
        let events = events.unwrap_or_else(|| model.settle(at, first));
        for (_, outcome) in &events {
            *seen.entry(format!("waiter {outcome:?}")).or_insert(0) += 1;
        }
        assert_eq!(log.take(), events, "step {step}: {what}: completions");
        *seen.entry(what.clone()).or_insert(0) += 1;
        // One file is enough to compare, a call touches no other; now and then look whether that is so.
        let compared = if step % 32 == 0 { 0..FILES } else { touched..touched + 1 };
        for file in compared {
            let lines = model_lines(&model, file);
            assert_eq!(real_lines(&domain, file), lines, "step {step}: {what}: file {file}");
            assert_eq!(files[file].has_locks(), !lines.is_empty(), "step {step}: {what}");
        }
        // Some tickets of decided requests stay, to be cancelled too late.
        tickets.retain(|(key, ..)| events.iter().all(|(other, _)| other != key) || random.below(2) == 0);
    }
    println!("{name}: {seen:#?}");
    let mut wanted =
        vec!["waiter Ok(())", "set Ok(())", "set Err(WouldBlock)", "submit Ok(false)", "cancel true"];
    // Near the limit deadlocks are too rare to be counted on.
    if options.deadlock_detection && options.max_locks.is_none() {
        wanted.extend(["submit Err(Deadlock)", "waiter Err(Deadlock)"]);
    }
    if options.max_locks.is_some() {
        wanted.extend(["set Err(NoLocks)", "unlock Err(NoLocks)"]);
    }
    for what in wanted {
        assert!(seen.get(what).is_some_and(|&count| count > 0), "the run never saw: {what}");
    }

    drop(files);
    assert!(log.take().iter().all(|(_, outcome)| *outcome == Err(LockError::Interrupted)));
    assert!(domain.is_idle() && domain.list().is_empty(), "something is left behind");
    assert_eq!(Arc::strong_count(&domain), 1);
}

fn compare_submitted(
    result: Result<Submitted, LockError>,
    expected: Result<bool, LockError>,
    step: usize,
    file: usize,
    tickets: &mut Vec<(usize, Ticket, usize)>,
) {
    if let Ok(Submitted::Waiting(ticket)) = result {
        tickets.push((step, ticket, file));
    }
    assert_eq!(result.map(|submitted| submitted == Submitted::Granted), expected, "step {step}");
}

/// Newcomers pass waiters as often as they like; the bound is tested in `fairness`.
const LINUX: DomainOptions = DomainOptions {
    deadlock_detection: true,
    max_locks: None,
    max_locks_of_owner: None,
    bypass_max: None,
    lease_break: LEASE_BREAK,
};

/// `SLUICE_STEPS` if set.
fn steps(usual: usize) -> usize {
    std::env::var("SLUICE_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(usual)
}

#[test]
fn random_calls_agree_with_byte_arrays_and_a_brute_force_wait_for_graph() {
    run("deadlock detection on", LINUX, steps(100_000));
}

#[test]
fn random_calls_agree_with_the_model_near_the_limit_of_locks() {
    run("limit", DomainOptions { max_locks: Some(16), ..LINUX }, steps(30_000));
}

#[test]
fn random_calls_agree_with_the_model_without_deadlock_detection() {
    run("detection off", DomainOptions { deadlock_detection: false, ..LINUX }, steps(30_000));
}
