//! Report: what the cases showed, as a matrix of pairs, as lines in conflict, and as JSON.

use super::cases::Case;
use super::reasons::reason;
use super::run::{Finding, LineName};
use serde::Serialize;
use sluice_console::table::Table;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// At most so many wrong answers are printed; one is enough to fail.
const DIFFERENCES_SHOWN: usize = 20;

/// The cases of one pair of calls.
#[derive(Default)]
struct PairCounts {
    cases: usize,
    conflict_free: usize,
    /// Lines in conflict, with the number of cases.
    lines: BTreeMap<LineName, usize>,
}

/// A line in conflict, over all pairs.
struct LineInConflict {
    cases: usize,
    /// Cases in which it has no reason.
    unexplained: usize,
    example: String,
    reason: Option<&'static str>,
}

/// The findings of all cases. All of it is *simulated*.
#[derive(Default)]
pub struct Report {
    pairs: BTreeMap<[&'static str; 2], PairCounts>,
    lines: BTreeMap<LineName, LineInConflict>,
    differences: Vec<String>,
}

#[derive(Serialize)]
struct JsonPair<'a> {
    pair: [&'a str; 2],
    cases: usize,
    conflict_free: usize,
    conflicts: Vec<JsonLine<'a>>,
}

#[derive(Serialize)]
struct JsonLine<'a> {
    line: &'a str,
    r#type: &'a str,
    field: &'a str,
    count: usize,
    reason: Option<&'static str>,
}

impl Report {
    pub(super) fn add(&mut self, case: &Case, finding: Finding) {
        let names = case.names();
        let pair = self.pairs.entry(names).or_default();
        pair.cases += 1;
        pair.conflict_free += usize::from(finding.conflicts.is_empty());
        for name in finding.conflicts {
            *pair.lines.entry(name.clone()).or_insert(0) += 1;
            let reason = reason(names, &name);
            let example = || case.to_string();
            let new = || LineInConflict { cases: 0, unexplained: 0, example: example(), reason };
            let line = self.lines.entry(name).or_insert_with(new);
            line.cases += 1;
            if reason.is_none() && line.unexplained == 0 {
                (line.example, line.reason) = (example(), None);
            }
            line.unexplained += usize::from(reason.is_none());
        }
        self.differences.extend(finding.differences.iter().map(|what| format!("{case}: {what}")));
    }

    /// The conflicts, a line each: two calls and what they share.
    #[cfg(test)]
    pub(super) fn found(&self) -> std::collections::BTreeSet<String> {
        let of_pair = |([a, b], pair): (&[&str; 2], &PairCounts)| {
            pair.lines.keys().map(|line| format!("{a} | {b}: {}", line.in_lists())).collect::<Vec<_>>()
        };
        self.pairs.iter().flat_map(of_pair).collect()
    }

    /// How many cases there were.
    pub fn cases(&self) -> usize {
        self.pairs.values().map(|pair| pair.cases).sum()
    }

    /// How many of them were free of conflict.
    pub fn conflict_free(&self) -> usize {
        self.pairs.values().map(|pair| pair.conflict_free).sum()
    }

    /// Answers and states that are not the model's.
    pub fn differences(&self) -> &[String] {
        &self.differences
    }

    /// The findings to examine, in one line: conflicts without a reason, wrong answers. `None`: nothing.
    pub fn finding(&self) -> Option<String> {
        let unexplained = self.lines.values().filter(|line| line.unexplained > 0).count();
        match (unexplained, self.differences.len()) {
            (0, 0) => None,
            (lines, 0) => Some(format!("{lines} lines in conflict have no explanation; see the list above")),
            (_, wrong) => Some(format!("{wrong} cases do not do what the model says; see the list above")),
        }
    }

    /// One line of JSON for each pair of calls.
    pub fn to_json(&self) -> String {
        let mut text = String::new();
        for (names, pair) in &self.pairs {
            let conflicts = pair.lines.iter().map(|(name, &count)| JsonLine {
                line: &name.line,
                r#type: &name.owner,
                field: &name.field,
                count,
                reason: reason(*names, name),
            });
            let row = JsonPair {
                pair: *names,
                cases: pair.cases,
                conflict_free: pair.conflict_free,
                conflicts: conflicts.collect(),
            };
            text.push_str(&serde_json::to_string(&row).expect("plain data"));
            text.push('\n');
        }
        text
    }

    /// For a person.
    pub fn to_text(&self) -> String {
        let mut text = self.matrix();
        text.push_str(&self.conflicts());
        for difference in self.differences.iter().take(DIFFERENCES_SHOWN) {
            let _ = writeln!(text, "not as the model: {difference}");
        }
        let (cases, free) = (self.cases(), self.conflict_free());
        let share = 100.0 * free as f64 / cases.max(1) as f64;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "simulated: {free} of {cases} commuting cases are conflict-free: {share:.1}%\n\
             (the Commuter study, of its own 13,664 cases: sv6 99.0%, Linux 3.8 68.7%)"
        );
        text
    }

    /// Calls against calls: how many commuting cases conflict.
    fn matrix(&self) -> String {
        let mut calls: Vec<&str> = super::cases::names();
        calls.retain(|call| self.pairs.keys().any(|pair| pair.contains(call)));
        let mut table = Table::with_left_columns(1);
        let numbers = (1..=calls.len()).map(|number| number.to_string());
        table.line(std::iter::once(String::new()).chain(numbers));
        for (row, a) in calls.iter().enumerate() {
            let mut cells = vec![format!("{:>2} {a}", row + 1)];
            for b in &calls[..=row] {
                cells.push(match self.pairs.get(&[*a, *b]).or_else(|| self.pairs.get(&[*b, *a])) {
                    None => String::new(),
                    Some(pair) if pair.conflict_free == pair.cases => ".".to_owned(),
                    Some(pair) => (pair.cases - pair.conflict_free).to_string(),
                });
            }
            table.line(cells);
        }
        format!(
            "Commuting cases that conflict, by pair of calls (. none, blank: nothing commutes)\n{}\n",
            table.render()
        )
    }

    fn conflicts(&self) -> String {
        if self.lines.is_empty() {
            return String::new();
        }
        let mut lines: Vec<(&LineName, &LineInConflict)> = self.lines.iter().collect();
        lines.sort_by_key(|(name, line)| (std::cmp::Reverse(line.cases), *name));
        let mut table = Table::with_left_columns(5);
        table.line(["cases", "line", "field", "for example", "why"]);
        for (name, line) in lines {
            let why = match (line.reason, line.unexplained) {
                (Some(reason), 0) => reason.to_owned(),
                (_, unexplained) => format!("unexplained in {unexplained}"),
            };
            table.line([
                line.cases.to_string(),
                name.line.clone(),
                name.field.clone(),
                line.example.clone(),
                why,
            ]);
        }
        format!("Lines in conflict\n{}\n", table.render())
    }
}
