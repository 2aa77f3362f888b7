//! Outcome: the result of a check of coherence, for a person and for programs.

use super::nemesis::NemesisRun;
use crate::args::CheckCoherence;
use serde::Serialize;
use sluice_coherence::{Offered, TimedCall};
use sluice_console::failure::{Failure, Result};
use sluice_console::program::printable;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

/// The result of a check.
#[derive(Serialize)]
pub(super) struct CoherenceReport {
    directories: Vec<PathBuf>,
    pub(super) seconds: f64,
    /// Rounds whose calls have an order, or none.
    rounds: u64,
    calls: u64,
    /// Rounds with an order only if changes were lost that no fsync had confirmed.
    pub(super) lossy: u64,
    /// Rounds whose search was given up.
    pub(super) undecided: u64,
    /// Rounds that no directory could be made for.
    pub(super) blocked: u64,
    /// Calls that not all directories have.
    not_tried: Vec<&'static str>,
    errors: Vec<UnknownAnswers>,
    pub(super) nemesis: Option<NemesisRun>,
    pub(super) counterexample: Option<Counterexample>,
    /// For `errors`: by directory and error.
    #[serde(skip)]
    unknown: BTreeMap<(usize, String), u64>,
}

/// Answers that say nothing of the work of their calls.
#[derive(Serialize)]
struct UnknownAnswers {
    directory: PathBuf,
    error: String,
    calls: u64,
}

/// Calls that have no order.
#[derive(Serialize)]
pub(super) struct Counterexample {
    wrong: String,
    calls: Vec<CounterexampleCall>,
    /// Number of the other calls of the round.
    others: usize,
    /// All calls of the round.
    round: Vec<CounterexampleCall>,
    #[serde(skip)]
    from_ns: u64,
}

#[derive(Serialize)]
struct CounterexampleCall {
    process: usize,
    directory: PathBuf,
    call: String,
    result: String,
    begun_ns: u64,
    ended_ns: Option<u64>,
}

impl Counterexample {
    pub(super) fn new(wrong: String, fewest: &[TimedCall], history: &[TimedCall]) -> Counterexample {
        let told = |call: &TimedCall| CounterexampleCall {
            process: call.process,
            directory: PathBuf::new(),
            call: call.call.to_string(),
            result: call.result_in_words(),
            begun_ns: call.begun,
            ended_ns: call.ended,
        };
        let in_order = |calls: &[TimedCall]| {
            let mut calls: Vec<_> = calls.iter().map(told).collect();
            calls.sort_by_key(|call| call.begun_ns);
            calls
        };
        let (calls, round) = (in_order(fewest), in_order(history));
        let from_ns = calls.first().map_or(0, |call| call.begun_ns);
        Counterexample { wrong, others: round.len().saturating_sub(calls.len()), calls, round, from_ns }
    }
}

impl CoherenceReport {
    pub(super) fn new(args: &CheckCoherence, offered: Offered) -> CoherenceReport {
        let calls = [("hard links", offered.links), ("flock", offered.flock), ("fcntl locks", offered.posix)];
        CoherenceReport {
            directories: args.dirs.clone(),
            seconds: 0.0,
            rounds: 0,
            calls: 0,
            lossy: 0,
            undecided: 0,
            blocked: 0,
            not_tried: calls.into_iter().filter(|(_, is_there)| !is_there).map(|(name, _)| name).collect(),
            errors: Vec::new(),
            nemesis: None,
            counterexample: None,
            unknown: BTreeMap::new(),
        }
    }

    /// Counts a round.
    pub(super) fn count(&mut self, history: &[TimedCall]) {
        self.rounds += 1;
        self.calls += history.len() as u64;
        for call in history.iter().filter(|call| call.known().is_none()) {
            *self.unknown.entry((call.process, call.result_in_words())).or_default() += 1;
        }
    }

    /// The tables that are made of the counts.
    fn finish(&mut self) {
        let told = |((process, error), calls): (&(usize, String), &u64)| UnknownAnswers {
            directory: self.directories[*process].clone(),
            error: error.clone(),
            calls: *calls,
        };
        self.errors = self.unknown.iter().map(told).collect();
        for call in
            self.counterexample.iter_mut().flat_map(|found| found.calls.iter_mut().chain(&mut found.round))
        {
            call.directory.clone_from(&self.directories[call.process]);
        }
    }

    pub(super) fn json(&mut self) -> Result<String> {
        self.finish();
        #[derive(Serialize)]
        struct Whole<'r> {
            coherent: Option<bool>,
            #[serde(flatten)]
            report: &'r CoherenceReport,
        }
        let coherent = self.is_judged().then_some(self.counterexample.is_none());
        let mut json =
            serde_json::to_string(&Whole { coherent, report: self }).map_err(std::io::Error::from)?;
        json.push('\n');
        Ok(json)
    }

    /// At least one half of the calls was answered, and one half of the rounds made and decided: else there is no verdict.
    fn is_judged(&self) -> bool {
        let unknown: u64 = self.unknown.values().sum();
        self.counterexample.is_some()
            || self.has_rounds() && unknown * 2 <= self.calls && self.undecided * 2 <= self.rounds
    }

    fn has_rounds(&self) -> bool {
        self.rounds > self.blocked
    }

    pub(super) fn text(&mut self) -> String {
        self.finish();
        let mut text = String::new();
        let verdict = match &self.counterexample {
            Some(found) => format!("incoherent: {}", found.wrong),
            None if self.is_judged() => "coherent".to_owned(),
            None => "no verdict".to_owned(),
        };
        let (rounds, calls, dirs) = (self.rounds, self.calls, self.directories.len());
        let seconds = self.seconds;
        // Writing to a string cannot fail.
        let mut line = |line: String| {
            let _ = writeln!(text, "{line}");
        };
        line(verdict);
        line(format!("checked    {rounds} rounds, {calls} calls on {dirs} directories in {seconds:.1} s"));
        if !self.not_tried.is_empty() {
            line(format!("not tried  {}", self.not_tried.join(", ")));
        }
        for UnknownAnswers { directory, error, calls } in &self.errors {
            line(format!("errors     {calls} calls in {}: {error}", printable(&directory.to_string_lossy())));
        }
        for (rounds, what) in [
            (self.lossy, "lost changes that no fsync had confirmed"),
            (self.undecided, "were not decided: too many orders"),
            (self.blocked, "could not begin: no directory can be made"),
        ] {
            if rounds > 0 {
                line(format!("rounds     {rounds} {what}"));
            }
        }
        if let Some(nemesis) = &self.nemesis {
            let end =
                nemesis.status.map_or("was ended".to_owned(), |status| format!("ended with status {status}"));
            line(format!("nemesis    {} {end}", printable(&nemesis.command)));
        }
        if let Some(found) = &self.counterexample {
            for (process, directory) in self.directories.iter().enumerate() {
                line(format!("process {process}  {}", printable(&directory.to_string_lossy())));
            }
            line("process  begin us  end us    call".to_owned());
            let microseconds = |ns: u64| format!("{:.1}", ns.saturating_sub(found.from_ns) as f64 / 1000.0);
            for call in &found.calls {
                let end = call.ended_ns.map_or("-".to_owned(), microseconds);
                let begin = microseconds(call.begun_ns);
                line(format!("{:<7}  {begin:<8}  {end:<8}  {}: {}", call.process, call.call, call.result));
            }
            line(format!(
                "no order explains these answers, whatever the other {} calls of the round did",
                found.others
            ));
        }
        text
    }

    /// # Errors
    /// There is no verdict, or the nemesis has failed.
    pub(super) fn require_a_result(&self) -> Result<()> {
        if self.counterexample.is_some() {
            return Ok(());
        }
        if !self.is_judged() {
            let text = match self.errors.iter().max_by_key(|errors| errors.calls) {
                _ if !self.has_rounds() => {
                    "most rounds could not begin: give more --seconds, or cure the mounts".to_owned()
                }
                Some(UnknownAnswers { directory, error, .. }) => {
                    format!("{}: most calls fail ({error}): cure that and check again", directory.display())
                }
                None => "too few rounds were decided: give fewer directories".to_owned(),
            };
            return Err(Failure::Failed(text));
        }
        match self.nemesis.as_ref().and_then(|nemesis| nemesis.status) {
            Some(status) if status != 0 => Err(Failure::Failed(format!(
                "--nemesis ended with status {status}: it may have broken nothing"
            ))),
            _ => Ok(()),
        }
    }
}
