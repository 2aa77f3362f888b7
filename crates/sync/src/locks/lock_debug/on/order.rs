//! Lock order: the graph of what was taken while what was held, and the cycles that would be deadlocks.
//!
//! # Theory
//! A node is a class at one level. When a lock is about to be taken, there must be edges to it from all that the thread
//! holds; edges from the youngest lock are enough, as its own acquisition made edges from the older ones. (A lock
//! that was tried for has no edges to it, so the walk goes on below.) Almost always the edge is known: a bit of a
//! table that is only read then. A new edge is added under a mutex, and a breadth-first search from its end looks for
//! its beginning; the path found and the new edge are the cycle.
//!
//! # Sources
//! lockdep's chain of held locks and its breadth-first search; the strong paths of its readers are not needed, because
//! all readers here wait behind writers.

use super::held::{HeldLock, Stack};
use super::registry::{self, CLASSES_MAX};
use super::{Ask, Dependency, Mode, RECORD};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

/// A class at a level: the class's number times 8, plus the level.
type Node = u32;

const NODES: usize = CLASSES_MAX * 8;

/// The verdict of the check.
pub(super) enum OrderVerdict {
    /// No deadlock by this.
    Fine,
    /// The thread reads already, and does not wait to read again.
    Again,
    /// The fault, in words.
    Wrong(String),
}

/// A lock of a stack, as it is remembered.
#[derive(Clone, Copy)]
struct StackedLock {
    node: Node,
    mode: Mode,
    site: &'static Location<'static>,
}

/// How an edge was seen first.
struct FirstSight {
    /// The locks that the thread held, oldest first.
    stack: Vec<StackedLock>,
    /// The lock that it took then.
    taken: StackedLock,
    thread: String,
    backtrace: Backtrace,
}

/// Edges by the node that was held. *protected by itself*
static GRAPH: LazyLock<Mutex<HashMap<Node, BTreeMap<Node, FirstSight>>>> = LazyLock::new(Mutex::default);

/// Known edges: bit `from * NODES + to`, half a megabyte. *atomic, read-mostly*
static KNOWN: LazyLock<Box<[AtomicU64]>> =
    LazyLock::new(|| (0..NODES * NODES / 64).map(|_| AtomicU64::new(0)).collect());

fn bit(from: Node, to: Node) -> (&'static AtomicU64, u64) {
    let at = from as usize * NODES + to as usize;
    (&KNOWN[at / 64], 1 << (at % 64))
}

fn node(class: u32, ask: Ask) -> Node {
    class * 8 + u32::from(ask.level)
}

fn line(entry: &HeldLock) -> StackedLock {
    StackedLock { node: node(entry.class, entry.ask), mode: entry.ask.mode, site: entry.site }
}

/// Looks whether a thread that holds `stack` may wait for `next`, and remembers that it did.
pub(super) fn check(stack: &Stack, next: &HeldLock) -> OrderVerdict {
    let held = || stack.iter().flatten();
    if held().next().is_none() {
        return OrderVerdict::Fine;
    }
    let again = |entry: &&HeldLock| entry.lock == next.lock && !next.ask.in_parts;
    if let Some(entry) = held().find(again) {
        if next.ask.reenters && entry.ask.mode == Mode::Shared {
            return OrderVerdict::Again;
        }
        return OrderVerdict::Wrong(nested(
            stack,
            next,
            "which this thread holds already: it may wait for itself",
        ));
    }
    if !next.ask.spins && held().any(|entry| entry.ask.spins) {
        return OrderVerdict::Wrong(nested(stack, next, "which may sleep, under a spin lock"));
    }
    let to = node(next.class, next.ask);
    if !next.ask.any_number && held().any(|entry| node(entry.class, entry.ask) == to) {
        return OrderVerdict::Wrong(nested(
            stack,
            next,
            "of a class and level that this thread holds already",
        ));
    }
    for entry in stack.iter().rev().flatten() {
        let from = node(entry.class, entry.ask);
        if from == to {
            continue;
        }
        let (word, bit) = bit(from, to);
        // Relaxed: a bit that says only that the edge need not be looked at again.
        if word.load(Ordering::Relaxed) & bit == 0
            && let Some(finding) = add(stack, from, next)
        {
            return OrderVerdict::Wrong(finding);
        }
        if entry.waits {
            break;
        }
    }
    OrderVerdict::Fine
}

/// Adds an edge; returns what is wrong if it closes a cycle. Each edge is reported once.
#[cold]
fn add(stack: &Stack, from: Node, next: &HeldLock) -> Option<String> {
    let mut graph = GRAPH.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = line(next);
    let seen = FirstSight {
        stack: stack.iter().flatten().map(line).collect(),
        taken,
        thread: std::thread::current().name().unwrap_or("without a name").to_owned(),
        backtrace: Backtrace::capture(),
    };
    let (word, bit) = bit(from, taken.node);
    // Relaxed: as in check().
    if word.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
        return None;
    }
    append_to_record(from, taken.node);
    let finding = path(&graph, taken.node, from).map(|path| cycle(&graph, &path, from, &seen));
    graph.entry(from).or_default().insert(taken.node, seen);
    finding
}

/// Appends a new edge to the record of all processes, if there is one; one write, so that processes do not mix.
fn append_to_record(from: Node, to: Node) {
    let Some(path) = std::env::var_os(RECORD) else { return };
    let names = registry::names();
    let edge = format!("{}\n", dependency(&names, from, to));
    let record = OpenOptions::new().append(true).create(true).open(path);
    if let Err(error) = record.and_then(|mut record| record.write_all(edge.as_bytes())) {
        eprintln!("{RECORD}: {error}");
    }
}

fn dependency(names: &[String], before: Node, after: Node) -> Dependency {
    let name = |node: Node| names.get(node as usize / 8).cloned().unwrap_or_default();
    Dependency {
        before: name(before),
        before_level: (before % 8) as u8,
        after: name(after),
        after_level: (after % 8) as u8,
    }
}

/// The shortest way from one node to another along the edges.
fn path(graph: &HashMap<Node, BTreeMap<Node, FirstSight>>, from: Node, to: Node) -> Option<Vec<Node>> {
    let mut came_from = BTreeMap::from([(from, from)]);
    let mut pending = VecDeque::from([from]);
    while let Some(at) = pending.pop_front() {
        if at == to {
            let mut path = vec![to];
            while path.last() != Some(&from) {
                path.push(came_from[&path[path.len() - 1]]);
            }
            path.reverse();
            return Some(path);
        }
        for next in graph.get(&at).into_iter().flat_map(BTreeMap::keys) {
            came_from.entry(*next).or_insert_with(|| {
                pending.push_back(*next);
                at
            });
        }
    }
    None
}

/// Names nodes in reports.
struct Names(Vec<String>);

impl Names {
    fn of(&self, node: Node) -> String {
        let class = self.0.get(node as usize / 8).map_or("?", String::as_str);
        match node % 8 {
            0 => class.to_owned(),
            level => format!("{class}/{level}"),
        }
    }

    fn line(&self, line: &StackedLock) -> String {
        let mode = if line.mode == Mode::Shared { "for reading" } else { "exclusively" };
        format!("{} {mode} at {}", self.of(line.node), line.site)
    }

    fn stack(&self, text: &mut String, stack: &[StackedLock]) {
        for (n, line) in stack.iter().enumerate() {
            let _ = writeln!(text, "    {}. {}", n + 1, self.line(line));
        }
    }
}

fn nested(stack: &Stack, next: &HeldLock, what: &str) -> String {
    let names = Names(registry::names());
    let mut text = format!("lock order: taking {}, {what}; held:\n", names.line(&line(next)));
    let held: Vec<_> = stack.iter().flatten().map(line).collect();
    names.stack(&mut text, &held);
    text
}

fn cycle(
    graph: &HashMap<Node, BTreeMap<Node, FirstSight>>,
    path: &[Node],
    from: Node,
    now: &FirstSight,
) -> String {
    let names = Names(registry::names());
    let mut text = format!(
        "lock order: {} is taken under {}, but also the other way round: a deadlock when threads meet\n",
        names.of(now.taken.node),
        names.of(from)
    );
    let edges = path.windows(2).filter_map(|edge| graph.get(&edge[0])?.get(&edge[1]));
    for (seen, when) in std::iter::once((now, "now")).chain(edges.map(|seen| (seen, "before"))) {
        let _ =
            writeln!(text, "  {when}, thread {:?} took {}, holding:", seen.thread, names.line(&seen.taken));
        names.stack(&mut text, &seen.stack);
        // The backtrace of now comes with the panic.
        if when == "before" && seen.backtrace.status() == BacktraceStatus::Captured {
            let _ = writeln!(text, "{}", seen.backtrace);
        }
    }
    text
}

/// Every order of two classes that was seen so far, sorted.
pub fn observed_order() -> Vec<Dependency> {
    let names = registry::names();
    let graph = GRAPH.lock().unwrap_or_else(PoisonError::into_inner);
    let edges = graph.iter().flat_map(|(before, after)| after.keys().map(|after| (*before, *after)));
    let mut all: Vec<_> = edges.map(|(before, after)| dependency(&names, before, after)).collect();
    all.sort();
    all
}
