//! Check of coherence: `sluice check-coherence`: programs on several mounts of one tree make calls at once, and their answers must
//! have an order.
//!
//! # Theory
//! ```text
//!   this process ──plan──> a program for each DIR ──calls──> mounts
//!        ^                        |
//!        └── begin, end, answer ──┘     round after round, each in directories of its own; then the search of `sluice-coherence`
//! ```
//! This process itself makes no call on the mounts, which may hang: programs do, and are given up after `--timeout`. The programs are
//! processes, since fcntl locks belong to a process.

mod crew;
mod nemesis;
mod outcome;
mod worker;

pub(crate) use worker::work;

use crate::args::CheckCoherence;
use crew::MountCrew;
use nemesis::Nemesis;
use outcome::{CoherenceReport, Counterexample};
use sluice_coherence::{
    Offered, RoundRules, RoundVerdict, SharedDir, TimedCall, find_order, monotonic_ns, plan_round, shrink,
    what_is_wrong,
};
use sluice_console::failure::{Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::output::Output;
use sluice_console::program::complain;
use sluice_sync::random::{Random, fresh_seed};
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant};
use std::path::{Path, PathBuf};
use worker::{WorkerOrder, WorkerReply};

/// The exit status if there is no order; other failures have [`UNCHECKED`].
const INCOHERENT: u8 = 1;
const UNCHECKED: u8 = 2;
/// States after which the search for the order of a round is given up.
const STATES_MAX: usize = 100_000;
/// States after which a step of making a counterexample smaller is given up.
const SHRINK_STATES_MAX: usize = 20_000;
/// How often a round beside a nemesis may lose changes: two servers may die in one.
const LOSSES: u8 = 2;
/// The other directories must show the new one in this time. Some file systems remember for a minute that a name is absent, but
/// nobody has asked for this one.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);
/// The programs of a round begin together, so long after they were asked.
const HEAD_START_NS: u64 = 500_000;

/// Checks the directories; the exit status of the command.
///
/// # Errors
/// [`Failure::Interrupted`].
pub(crate) fn check_coherence(args: &CheckCoherence) -> Result<u8> {
    match check(args) {
        Err(Failure::Interrupted) => Err(Failure::Interrupted),
        Err(failure) => {
            let _ = complain(&failure.to_string(), UNCHECKED);
            Ok(UNCHECKED)
        }
        status => status,
    }
}

fn check(args: &CheckCoherence) -> Result<u8> {
    let interrupt = Interrupt::on_signals()?;
    let mut crew = MountCrew::start(&args.dirs, Duration::from_secs(args.timeout), &interrupt)?;
    let base = make_base(&mut crew)?;
    let outcome = check_below(args, &mut crew, &base, &interrupt);
    let is_left = !crew.remove(&base);
    if is_left {
        let text = format!("{}: cannot be removed: remove it by hand", args.dirs[0].join(&base).display());
        let _ = complain(&text, 0);
    }
    let mut report = outcome?;
    Output::plain().give(if args.json { report.json()? } else { report.text() }.as_bytes())?;
    report.require_a_result()?;
    Ok(if report.counterexample.is_some() { INCOHERENT } else { 0 })
}

/// Makes a directory of a new name in the first directory, and gives the name.
///
/// # Errors
/// It cannot be made there.
fn make_base(crew: &mut MountCrew<'_>) -> Result<PathBuf> {
    let name = PathBuf::from(format!("sluice-coherence-{}-{:08x}", std::process::id(), fresh_seed() as u32));
    match crew.ask_one(0, &WorkerOrder::MakeDir(name.clone()))? {
        WorkerReply::Done => Ok(name),
        reply => Err(refusal(crew, 0, "cannot make a directory there", &reply)),
    }
}

fn refusal(crew: &MountCrew<'_>, member: usize, what: &str, reply: &WorkerReply) -> Failure {
    let why = match reply {
        WorkerReply::Failed(why) => format!(": {why}"),
        _ => String::new(),
    };
    Failure::Usage(format!("{}: {what}{why}", crew.dir(member).display()))
}

/// Checks that all directories show a file of the first directory, and finds the calls that all mounts offer.
fn require_one_tree(crew: &mut MountCrew<'_>, base: &Path) -> Result<Offered> {
    let token = format!("{:016x}", fresh_seed());
    let marker = base.join("tree");
    let made = crew.ask_one(0, &WorkerOrder::MakeMarker(marker.clone(), token.clone()))?;
    if !matches!(made, WorkerReply::Done) {
        return Err(refusal(crew, 0, "cannot make a file there", &made));
    }
    let mut offered = Offered { links: true, flock: true, posix: true };
    for member in 0..crew.len() {
        let begun = Instant::now();
        while !matches!(
            crew.ask_one(member, &WorkerOrder::SeeMarker(marker.clone(), token.clone()))?,
            WorkerReply::Done
        ) {
            if begun.elapsed() > SHOWN_WITHIN {
                let (first, other) = (crew.dir(0).display(), crew.dir(member).display());
                return Err(Failure::Usage(format!(
                    "{other} does not show the directory {} that was made in {first}: give directories of one tree",
                    base.display()
                )));
            }
            thread::sleep(Duration::from_millis(50));
        }
        match crew.ask_one(member, &WorkerOrder::Probe(base.to_owned(), format!("probe-{member}")))? {
            WorkerReply::Offered(here) => {
                offered = Offered {
                    links: offered.links && here.links,
                    flock: offered.flock && here.flock,
                    posix: offered.posix && here.posix,
                };
            }
            reply => return Err(refusal(crew, member, "cannot make a file there", &reply)),
        }
    }
    Ok(offered)
}

fn check_below(
    args: &CheckCoherence,
    crew: &mut MountCrew<'_>,
    base: &Path,
    interrupt: &Interrupt,
) -> Result<CoherenceReport> {
    let offered = require_one_tree(crew, base)?;
    let mut report = CoherenceReport::new(args, offered);
    let begun = Instant::now();
    let mut random = Random::new(fresh_seed());
    let mut nemesis = None;
    for number in 0_usize.. {
        interrupt.check()?;
        if begun.elapsed() >= Duration::from_secs(args.seconds) {
            break;
        }
        // After the first round: a check that cannot work at all says so before anything is killed.
        if number == 1
            && let Some(script) = &args.nemesis
        {
            nemesis = Some(Nemesis::start(script)?);
        }
        nemesis.as_mut().map_or(Ok(()), Nemesis::look)?;
        let Some(history) = round(crew, base, number, &mut random, (offered, nemesis.is_some()))? else {
            report.blocked += 1;
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        report.count(&history);
        if let Some(counterexample) = judge(&history, nemesis.is_some(), &mut report) {
            report.counterexample = Some(counterexample);
            break;
        }
    }
    report.seconds = begun.elapsed().as_secs_f64();
    report.nemesis = nemesis.map(Nemesis::stop).transpose()?;
    Ok(report)
}

/// Looks for the order of a round.
fn judge(history: &[TimedCall], has_nemesis: bool, report: &mut CoherenceReport) -> Option<Counterexample> {
    let mut rules = RoundRules { losses: 0, states_max: STATES_MAX };
    let mut verdict = find_order(history, rules);
    if verdict == RoundVerdict::Missing && has_nemesis {
        rules.losses = LOSSES;
        verdict = find_order(history, rules);
        report.lossy += u64::from(verdict == RoundVerdict::Found);
    }
    report.undecided += u64::from(verdict == RoundVerdict::Undecided);
    (verdict == RoundVerdict::Missing).then(|| {
        let fewest = shrink(history, RoundRules { states_max: SHRINK_STATES_MAX, ..rules });
        Counterexample::new(what_is_wrong(&fewest), &fewest, history)
    })
}

/// Has the programs make the calls of a round. None if the mounts refuse its directories.
fn round(
    crew: &mut MountCrew<'_>,
    base: &Path,
    number: usize,
    random: &mut Random,
    (offered, has_nemesis): (Offered, bool),
) -> Result<Option<Vec<TimedCall>>> {
    let root = base.join(format!("r{number}"));
    let members = crew.len();
    let mut maker = None;
    for member in (0..members).map(|turn| (number + turn) % members) {
        if matches!(
            crew.ask_one(member, &WorkerOrder::MakeRound(root.clone(), has_nemesis))?,
            WorkerReply::Done
        ) {
            maker = Some(member);
            break;
        }
    }
    let Some(maker) = maker else { return Ok(None) };
    let plan = plan_round(random, members, offered);
    let mut history = Vec::new();
    let order =
        |calls, begin_ns| WorkerOrder::Calls { root: root.clone(), calls, begin_ns, may_vanish: has_nemesis };
    crew.make_calls(vec![(maker, order(plan.first, 0))], &mut history)?;
    let begin_ns = monotonic_ns() + HEAD_START_NS;
    let body = plan.body.into_iter().map(|calls| order(calls, begin_ns)).enumerate();
    crew.make_calls(body.collect(), &mut history)?;
    let looks: Vec<_> = SharedDir::last_looks().into_iter().map(|call| (0, call)).collect();
    crew.make_calls((0..members).map(|member| (member, order(looks.clone(), 0))).collect(), &mut history)?;
    // Another program's server may be gone by now.
    let _ = crew.ask_one(maker, &WorkerOrder::Remove(root))?;
    Ok(Some(history))
}
