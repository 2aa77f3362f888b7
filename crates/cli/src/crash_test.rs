//! Crash test: `sluice crash-test`: shows a check every tree that a power failure may leave of a workload's files.
//!
//! # Theory
//! ```text
//!   workload on a mount ──> history: each change and fsync, with its process and the output so far
//!   for each moment of it: for each choice of losses: a mount of what is left ──> check
//!   first failure ──> fewest losses that fail, earliest moment ──> the fsync that would have kept them
//! ```
//! The mount of every tree has the path of the workload's mount, so that files that name each other by absolute paths are right. The
//! model of losses is that of [`Fs::crash_clone`].

mod report;
mod stage;

use crate::args::{CrashMoments, CrashTest};
use report::{CrashReport, Failing};
use sluice_console::failure::{Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::output::Output;
use sluice_console::program::complain;
use sluice_vfs::{CrashPoint, Fs, Losses};
use stage::{CheckVerdict, CrashStage, RecordedRun};
use std::collections::HashSet;

/// The exit status if a tree fails; other failures have [`UNTESTED`].
const FOUND: u8 = 1;
const UNTESTED: u8 = 2;
/// At most so many non-durable changes of a moment are lost alone: the newest.
const SINGLES_MAX: usize = 64;
/// To find the earliest moment at which the same losses fail, at most so many are tried.
const EARLIER_MAX: usize = 256;

/// Tests a program; the exit status of the command.
pub(crate) fn crash_test(args: &CrashTest) -> u8 {
    match test(args) {
        Ok(status) => status,
        Err(Failure::Interrupted) => UNTESTED,
        Err(failure) => {
            let _ = complain(&failure.to_string(), UNTESTED);
            UNTESTED
        }
    }
}

fn test(args: &CrashTest) -> Result<u8> {
    let interrupt = Interrupt::on_signals()?;
    let stage = CrashStage::new(args.timeout, &interrupt)?;
    let recorded = stage.record(args.setup.as_deref(), &args.workload)?;
    let mut tester = Tester {
        args,
        stage: &stage,
        recorded: &recorded,
        seen: HashSet::new(),
        report: CrashReport::default(),
    };
    tester.refuse_a_check_that_always_fails()?;
    let failing = tester.first_failure()?;
    let mut report = tester.report;
    report.failure = failing;
    Output::plain().give(if args.json { report.json()? } else { report.text() }.as_bytes())?;
    Ok(if report.failure.is_some() { FOUND } else { 0 })
}

struct Tester<'t> {
    args: &'t CrashTest,
    stage: &'t CrashStage<'t>,
    recorded: &'t RecordedRun,
    /// Trees that were checked, each with the output that the check read.
    seen: HashSet<(u64, usize)>,
    report: CrashReport,
}

impl Tester<'_> {
    /// Runs the check on what a crash at `point` leaves, with the output that the workload had printed before its next call.
    fn check(&mut self, point: &CrashPoint<'_>, losses: &Losses) -> Result<CheckVerdict> {
        self.report.states += 1;
        let fs = point.crash(losses).map_err(std::io::Error::from)?;
        self.stage.check(&fs, &self.args.check, self.recorded.output_before(point.next()))
    }

    /// The check must accept the tree before the workload, and the whole tree after it: else its verdicts say nothing of crashes.
    ///
    /// # Errors
    /// The check does not; it cannot be run.
    fn refuse_a_check_that_always_fails(&mut self) -> Result<()> {
        let recorded = self.recorded;
        let mut point = recorded.history.begin();
        let nothing = Losses::default();
        let fs = point.crash(&nothing).map_err(std::io::Error::from)?;
        if let Some(why) = self.stage.check(&fs, &self.args.check, &[])?.failure() {
            let text = "the check fails before the workload has done anything: have it accept that tree, or make one with --setup";
            return Err(Failure::Failed(format!("{text} ({why})")));
        }
        while point.advance() {}
        if let Some(why) = self.check(&point, &nothing)?.failure() {
            let text =
                "the check fails after the workload, although nothing is lost: one of the two is wrong";
            return Err(Failure::Failed(format!("{text} ({why})")));
        }
        Ok(())
    }

    /// Shows all trees of all moments to the check, until it fails.
    fn first_failure(&mut self) -> Result<Option<Failing>> {
        let recorded = self.recorded;
        let mut point = recorded.history.begin();
        loop {
            if self.is_moment(&point) {
                self.report.moments += 1;
                let output = recorded.output_before(point.next()).len();
                for losses in self.choices(&point) {
                    if !self.seen.insert((point.fingerprint(&losses), output)) {
                        continue;
                    }
                    if let Some(why) = self.check(&point, &losses)?.failure() {
                        let (losses, why) = self.fewest(&point, losses, why)?;
                        return self.earliest(&point, losses, why).map(Some);
                    }
                }
            }
            if !point.advance() {
                return Ok(None);
            }
        }
    }

    /// Whether the power may fail here.
    fn is_moment(&self, point: &CrashPoint<'_>) -> bool {
        let is_sync = |change: Option<&sluice_vfs::PastChange>| change.is_none_or(|change| change.is_sync);
        let has_printed = || {
            self.recorded.output_before(point.next()).len() > self.recorded.output_before(point.last()).len()
        };
        match self.args.points {
            CrashMoments::All => true,
            CrashMoments::Fsync => is_sync(point.last()) || is_sync(point.next()) || has_printed(),
        }
    }

    /// The losses to try at `point`, those first that are easiest to explain.
    fn choices(&self, point: &CrashPoint<'_>) -> Vec<Losses> {
        let mut choices = vec![Losses::default()];
        let singles = point.single_losses();
        let newest = singles.len().saturating_sub(SINGLES_MAX);
        // The newest first: fewest other changes depend on them.
        choices.extend(singles.into_iter().skip(newest).rev());
        choices.push(point.losses(0));
        choices.extend((2..2 + self.args.seeds).map(|seed| point.losses(seed)));
        choices
    }

    /// The fewest of `losses` with which the check still fails, so that none of them can be left out.
    fn fewest(
        &mut self,
        point: &CrashPoint<'_>,
        mut losses: Losses,
        mut why: String,
    ) -> Result<(Losses, String)> {
        let mut size = losses.len();
        while size > 0 {
            let mut begin = 0;
            while begin < losses.len() {
                let fewer = losses.without(begin..begin + size);
                match self.check(point, &fewer)?.failure() {
                    Some(reason) => (losses, why) = (fewer, reason),
                    None => begin += size,
                }
            }
            size /= 2;
        }
        Ok((losses, why))
    }

    /// The earliest moment at which these losses fail, told; or that before them, if the tree fails there without any loss.
    fn earliest(&mut self, failed: &CrashPoint<'_>, losses: Losses, why: String) -> Result<Failing> {
        let recorded = self.recorded;
        let mut point = recorded.history.begin();
        if let Some((first, _)) = failed.lost(&losses).first() {
            while point.next().is_some_and(|next| !std::ptr::eq(next, *first)) && point.advance() {}
            let nothing = Losses::default();
            if let Some(why) = self.check(&point, &nothing)?.failure() {
                return Ok(Failing::new(&point, &nothing, why, recorded));
            }
        }
        while point.lost(&losses).len() < failed.lost(&losses).len() && point.advance() {}
        for _ in 0..EARLIER_MAX {
            if point.events() >= failed.events() {
                break;
            }
            if let Some(why) = self.check(&point, &losses)?.failure() {
                return Ok(Failing::new(&point, &losses, why, recorded));
            }
            point.advance();
        }
        Ok(Failing::new(failed, &losses, why, recorded))
    }
}

/// A file system with nothing in it, whose root belongs to the caller.
fn empty() -> Fs {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Fs::with_superblock(sluice_vfs::Superblock::new(sluice_vfs::Options::default().root_owner(uid, gid)))
}
