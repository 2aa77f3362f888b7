//! Commute: do calls that commute share a written cache line? The file system on the simulated machine.
//!
//! # Theory
//! The one rule of this project is that operations which commute write no shared line. `cases` asks a small
//! `model` which pairs of calls commute in which small states; `run` lets each pair go on two simulated CPUs and
//! looks for lines that one wrote and the other touched; `report` says what was found. That the answers and the
//! final state are the model's too is checked on the way.

mod call;
mod cases;
#[cfg(test)]
mod history;
#[cfg(test)]
mod linearize;
mod model;
mod reasons;
mod report;
mod run;
mod stage;
mod world;

pub use report::Report;

pub use crate::simulated_fs::On;
use sluice_console::failure::{Failure, Result};
use sluice_console::interrupt::Interrupt;

/// The cases to run.
pub struct Plan {
    worlds: cases::Worlds,
    cases: Vec<cases::Case>,
    on: On,
}

impl Plan {
    /// All cases, or the cases of one pair of calls.
    ///
    /// # Errors
    /// [`Failure::Usage`] for a call that there is not.
    pub fn new(pair: Option<[&str; 2]>) -> Result<Plan> {
        let names = cases::names();
        if let Some(unknown) = pair.iter().flatten().find(|name| !names.contains(name)) {
            let there = names.join(", ");
            return Err(Failure::Usage(format!("no call is named {unknown}; there are {there}")));
        }
        let worlds = cases::Worlds::new();
        Ok(Plan { cases: worlds.cases(pair), worlds, on: On::Ram })
    }

    /// On file systems of this kind.
    pub fn on(self, on: On) -> Plan {
        Plan { on, ..self }
    }

    /// Only each `step`th case.
    pub fn sample(mut self, step: usize) -> Plan {
        self.cases = self.cases.into_iter().step_by(step.max(1)).collect();
        self
    }

    /// How many cases there are.
    pub fn cases(&self) -> usize {
        self.cases.len()
    }

    /// Runs them all; `done` is called after each.
    ///
    /// # Errors
    /// [`Failure::Interrupted`].
    pub fn run(&self, interrupt: &Interrupt, mut done: impl FnMut()) -> Result<Report> {
        let machine = run::machine();
        let mut report = Report::default();
        for case in &self.cases {
            interrupt.check()?;
            report.add(case, run::run(&machine, self.on, case, &self.worlds.expected(case)));
            done();
        }
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each so many of the whole, so that the test ends in seconds. `SLUICE_COMMUTE_STEP=1` runs all.
    const STEP: usize = 29;
    /// The conflicts of the sample that are known. It only ever gets shorter.
    const KNOWN: &str = include_str!("commute/known.txt");
    /// The further known conflicts over a store; this list only gets shorter, too.
    const KNOWN_OVER_A_STORE: &str = include_str!("commute/known_over_a_store.txt");

    #[test]
    fn each_state_is_what_the_model_says() {
        for state in cases::CaseState::ALL {
            for on in [On::Ram, On::Store] {
                assert_eq!(run::check_state(state, on), Vec::<String>::new(), "{state:?} {on:?}");
            }
        }
    }

    /// A sample of the cases does what the model says, and each conflict is explained and in `known`.
    fn sample_is_as_known(on: On, known: &str) {
        let step =
            std::env::var("SLUICE_COMMUTE_STEP").ok().and_then(|step| step.parse().ok()).unwrap_or(STEP);
        let plan = Plan::new(None).unwrap().on(on).sample(step);
        let report = plan.run(&Interrupt::new(), || ()).unwrap();
        assert_eq!(report.differences(), [] as [String; 0]);
        let known: Vec<&str> = known.lines().collect();
        // Which objects share a place in a cache of references depends on where the tests beside this one allocate.
        let by_chance = |found: &str| found.ends_with("sync/src/epoch/refcache/object.rs");
        let is_new = |found: &String| !known.contains(&found.as_str()) && !by_chance(found);
        let new: Vec<String> = report.found().into_iter().filter(is_new).collect();
        assert!(new.is_empty(), "{}\nnew conflicts:\n{}", report.to_text(), new.join("\n"));
        assert_eq!(report.finding(), None, "each has an explanation");
    }

    #[test]
    fn a_sample_of_the_cases_does_what_the_model_says_with_no_conflict_that_is_not_known() {
        sample_is_as_known(On::Ram, KNOWN);
    }

    #[test]
    fn a_sample_of_the_cases_over_a_store_does_what_the_model_says_with_no_conflict_that_is_not_known() {
        sample_is_as_known(On::Store, &format!("{KNOWN}{KNOWN_OVER_A_STORE}"));
    }

    #[test]
    fn results_are_one_object_for_each_pair_of_calls() {
        let plan = Plan::new(Some(["lseek", "dup"])).unwrap().sample(5);
        let report = plan.run(&Interrupt::new(), || ()).unwrap();
        let lines: Vec<serde_json::Value> =
            report.to_json().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0]["pair"], serde_json::json!(["dup", "lseek"]));
        assert_eq!(lines[0]["cases"], plan.cases());
        assert!(lines[0]["conflict_free"].as_u64().unwrap() as usize <= plan.cases());
        for conflict in lines[0]["conflicts"].as_array().unwrap() {
            let there = |field: &str| conflict[field].is_string();
            assert!(there("line") && there("type") && there("field") && conflict["count"].is_u64());
        }
        assert!(
            matches!(Plan::new(Some(["lseek", "frob"])), Err(Failure::Usage(text)) if text.contains("frob"))
        );
    }
}
