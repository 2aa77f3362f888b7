//! Compare: two results side by side, and for each row whether it became faster, slower, or shows no difference.
//!
//! # Theory
//! Rows belong together when workload, target, variant, CPUs and tasks are the same. Two builds are best measured in
//! turn, A B A B, each one's lines appended to a file of its own: then the drift of the machine is in the noise and not
//! in the difference. The runs of one process share where its memory happened to lie, which by itself makes two
//! processes of one build differ; so of rows that are the same in all these, each counts as one run, its median.
//! [`stats`](crate::stats) defines a difference.
//!
//! A row `dir:PATH` measures a file system of the host. Beside rows of this program it is a *control*: the program does not change
//! it. If it moved in the direction of a row, and as far as the row's interval reaches, the machine explains the row, and no
//! verdict is given. Simulated rows have no control. Among several controls the least moved one counts. A control itself fails no comparison.

use crate::disturbance::warnings_of;
use crate::row::Row;
use crate::stats::{Interval, differ, ratio, ratio_interval};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::table::{Table, grouped};
use std::fmt;
use std::io::Read;
use std::path::Path;

/// Confidence of the intervals that are shown.
const CONFIDENCE: f64 = 0.99;

/// The longest result that is read, in bytes.
const RESULT_MAX: u64 = 64 << 20;

/// The verdict on a pair of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// More operations a second, beyond random.
    Faster,
    /// Fewer.
    Slower,
    /// Neither can be told.
    NoDifference,
    /// The control moved as much.
    MachineMoved,
}

impl Verdict {
    /// Its name in results.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifference => "no-difference",
            Verdict::MachineMoved => "machine-moved",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifference => "no difference shown",
            Verdict::MachineMoved => "none: the control moved as much",
        })
    }
}

/// Two rows that belong together.
#[derive(Clone, Debug)]
pub struct RowPair {
    /// The row of the first result.
    pub before: Row,
    /// The row of the second.
    pub after: Row,
    /// After over before.
    pub ratio: f64,
    /// Where that ratio lies, with 99% confidence; `None` below two runs a side.
    pub interval: Option<Interval>,
    /// The verdict on the pair.
    pub verdict: Verdict,
    /// It is a control: of a file system of the host, beside rows of this program.
    pub is_control: bool,
}

impl RowPair {
    fn of(before: &Row, after: &Row) -> Option<RowPair> {
        let ratio = ratio(&before.rates, &after.rates).or_else(|| Some(after.ops_per_s? / before.ops_per_s?));
        let ratio = ratio.filter(|ratio| ratio.is_finite())?;
        let verdict = match differ(&before.rates, &after.rates) {
            true if ratio > 1.0 => Verdict::Faster,
            true if ratio < 1.0 => Verdict::Slower,
            _ => Verdict::NoDifference,
        };
        let interval = ratio_interval(&before.rates, &after.rates, CONFIDENCE);
        let (before, after) = (before.clone(), after.clone());
        Some(RowPair { before, after, ratio, interval, verdict, is_control: false })
    }

    /// True when it became slower by more than `share` (0.05: 5%).
    pub fn is_slower_by(&self, share: f64) -> bool {
        self.verdict == Verdict::Slower && self.ratio < 1.0 - share && !self.is_control
    }

    /// Whether the control `ratios` explain what this shows: even the one that moved least lies within the interval, or beyond it.
    fn is_explained_by(&self, ratios: &[f64]) -> bool {
        let least = ratios.iter().copied().min_by(|a, b| a.ln().abs().total_cmp(&b.ln().abs()));
        let (Some(least), Some(interval)) = (least, self.interval) else { return false };
        match self.verdict {
            Verdict::Slower => least <= interval.high,
            Verdict::Faster => least >= interval.low,
            _ => false,
        }
    }
}

/// Two results, row by row.
pub struct Comparison {
    /// How the results are called, the one that counts as *before* first.
    pub sides: [&'static str; 2],
    /// Rows that are in both, in the order of the first.
    pub pairs: Vec<RowPair>,
    /// Rows in one result only, or without a rate, or with a rate of 0.
    pub alone: usize,
}

/// Compares two results.
///
/// # Errors
/// When they have no row in common.
pub fn compare(before: &[Row], after: &[Row]) -> Result<Comparison> {
    let (before, after) = (together(before), together(after));
    let partner = |row: &Row| after.iter().find(|other| key(other) == key(row));
    let mut pairs: Vec<RowPair> = before.iter().filter_map(|row| RowPair::of(row, partner(row)?)).collect();
    if pairs.is_empty() {
        let text = "the two results have no workload, target, variant, CPUs and tasks in common";
        return Err(Failure::Failed(text.into()));
    }
    judge_by_controls(&mut pairs);
    let alone = before.len() + after.len() - 2 * pairs.len();
    Ok(Comparison { sides: ["before", "after"], pairs, alone })
}

/// Marks the controls of `pairs`, and takes back the verdicts that they explain.
fn judge_by_controls(pairs: &mut [RowPair]) {
    let is_of_host = |pair: &RowPair| pair.before.target.starts_with("dir:");
    for at in 0..pairs.len() {
        let beside = |other: &&RowPair| {
            // A simulated row hangs on no machine that could move.
            let of_this_machine = !other.before.simulated && !pairs[at].before.simulated;
            without_target(&other.before) == without_target(&pairs[at].before)
                && of_this_machine
                && is_of_host(other) != is_of_host(&pairs[at])
        };
        let ratios: Vec<f64> = pairs.iter().filter(beside).map(|pair| pair.ratio).collect();
        let pair = &mut pairs[at];
        if is_of_host(pair) {
            pair.is_control = !ratios.is_empty();
        } else if pair.is_explained_by(&ratios) {
            pair.verdict = Verdict::MachineMoved;
        }
    }
}

impl Comparison {
    /// The comparison for a person.
    pub fn text(&self) -> String {
        let mut table = Table::with_left_columns(3);
        table.line([
            "workload",
            "target",
            "variant",
            "cpus",
            self.sides[0],
            self.sides[1],
            "ratio",
            "99% interval",
            "verdict",
        ]);
        for pair in &self.pairs {
            let row = &pair.before;
            table.line([
                row.workload.clone(),
                row.target.clone(),
                row.variant.clone().unwrap_or_default(),
                row.cpus.to_string(),
                row.ops_per_s.map_or_else(String::new, grouped),
                pair.after.ops_per_s.map_or_else(String::new, grouped),
                format!("{:.3}", pair.ratio),
                self::interval(pair.interval),
                pair.verdict.to_string(),
            ]);
        }
        let mut text = table.render();
        if self.alone > 0 {
            text.push_str(&format!("{} rows are in one of the results only, or have no rate.\n", self.alone));
        }
        if self.pairs.iter().any(|pair| pair.before.simulated) {
            text.push_str("Rows on sim:MACHINE are simulated: their ratios hold for that machine.\n");
        }
        for (side, warning) in self.warnings() {
            text.push_str(&format!("{side}: {warning}\n"));
        }
        text
    }
}

impl Comparison {
    /// The warnings of each side's rows, a line for each kind.
    pub(crate) fn warnings(&self) -> Vec<(&'static str, String)> {
        let before = warnings_of(self.pairs.iter().map(|pair| &pair.before.warnings));
        let after = warnings_of(self.pairs.iter().map(|pair| &pair.after.warnings));
        let named = |side, warnings: Vec<String>| warnings.into_iter().map(move |warning| (side, warning));
        named(self.sides[0], before).chain(named(self.sides[1], after)).collect()
    }
}

/// An interval for a person.
pub(crate) fn interval(interval: Option<Interval>) -> String {
    interval
        .map_or_else(|| "one run".into(), |interval| format!("{:.3} - {:.3}", interval.low, interval.high))
}

/// Reads a result, one JSON object per line.
///
/// # Errors
/// When the file cannot be read, is empty, or a line is no row that can have been measured.
pub fn read(path: &Path) -> Result<Vec<Row>> {
    let name = || path.display().to_string();
    let mut text = String::new();
    let length = std::fs::File::open(path).and_then(|file| file.take(RESULT_MAX).read_to_string(&mut text));
    if length.context(name)? as u64 == RESULT_MAX {
        return Err(Failure::Failed(format!(
            "{}: too long for a result; give what bench --json wrote",
            name()
        )));
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let rows = lines.map(|(number, line)| {
        let row = serde_json::from_str(line).map_err(|_| "no row of a result".to_owned());
        row.and_then(|row| flaw(&row).map_or(Ok(row), |flaw| Err(flaw.to_owned()))).map_err(|what| {
            Failure::Failed(format!("{}, line {}: {what}; give what bench --json wrote", name(), number + 1))
        })
    });
    let rows = rows.collect::<Result<Vec<Row>>>()?;
    if rows.is_empty() {
        return Err(Failure::Failed(format!("{}: no results in it", name())));
    }
    Ok(rows)
}

/// The reason why a row cannot be a measurement: figures computed from it would make no sense.
fn flaw(row: &Row) -> Option<&'static str> {
    let mut rates = row.rates.iter().chain(&row.ops_per_s);
    let mut names = [&row.workload, &row.target, &row.machine, &row.kernel].into_iter().chain(&row.variant);
    if rates.any(|&rate| rate < 0.0) {
        Some("a rate below 0")
    } else if names.any(|name| name.contains(char::is_control)) {
        Some("a name with control characters")
    } else {
        None
    }
}

/// A share as it is written on the command line: `5%` or `5`, in percent.
///
/// # Errors
/// [`Failure::Usage`] for anything else.
pub fn parse_percent(text: &str) -> Result<f64> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>();
    match number {
        Ok(percent) if (0.0..100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(Failure::Usage(format!("--fail-over {text}: give a percentage, such as 5%"))),
    }
}

fn key(row: &Row) -> (&str, &str, Option<&str>, usize, usize, bool, bool) {
    (&row.workload, &row.target, row.variant.as_deref(), row.cpus, row.tasks, row.processes, row.unpinned)
}

/// The key of a row and of its controls.
fn without_target(row: &Row) -> impl PartialEq + '_ {
    let (workload, _, variant, cpus, tasks, processes, unpinned) = key(row);
    (workload, variant, cpus, tasks, processes, unpinned)
}

/// Puts rows of one key together: each is a run of the whole.
fn together(rows: &[Row]) -> Vec<Row> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| key(group[0]) == key(row)) {
            None => groups.push(vec![row]),
            Some(group) => group.push(row),
        }
    }
    let one = |group: &Vec<&Row>| if let [row] = group[..] { row.clone() } else { Row::of_runs(group) };
    groups.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Origin;
    use sluice_sync::random::Random;

    fn row(workload: &str, rates: &[f64]) -> Row {
        let origin = Origin { machine: "m".into(), kernel: "k".into(), command: None };
        let mut row = Row::new(&origin, workload, "lib".into(), 2, 2);
        row.set_rates(1, rates);
        row
    }

    fn verdicts(before: &[Row], after: &[Row]) -> Vec<Verdict> {
        compare(before, after).unwrap().pairs.iter().map(|pair| pair.verdict).collect()
    }

    #[test]
    fn a_row_is_faster_slower_or_neither() {
        let before = [100.0, 101.0, 99.0, 100.5, 99.5];
        let scaled = |by: f64| before.map(|rate| rate * by);
        let after = [row("a", &scaled(1.3)), row("b", &scaled(0.7)), row("c", &scaled(1.004))];
        let all = [row("a", &before), row("b", &before), row("c", &before)];
        assert_eq!(verdicts(&all, &after), [Verdict::Faster, Verdict::Slower, Verdict::NoDifference]);
        let comparison = compare(&all, &after).unwrap();
        assert!(comparison.pairs[1].is_slower_by(0.05) && !comparison.pairs[1].is_slower_by(0.35));
        assert!(!comparison.pairs[0].is_slower_by(0.0));
        assert!(comparison.text().contains("no difference shown"), "{}", comparison.text());
    }

    #[test]
    fn a_row_has_no_verdict_where_its_control_moved_as_much() {
        let rates = [100.0, 101.0, 99.0, 100.5, 99.5];
        let on =
            |target: &str, by: f64| Row { target: target.into(), ..row("a", &rates.map(|rate| rate * by)) };
        let before = [on("lib", 1.0), on("dir:/dev/shm", 1.0), on("dir:/var/tmp", 1.0)];
        let after = |lib, shm, disk| [on("lib", lib), on("dir:/dev/shm", shm), on("dir:/var/tmp", disk)];
        let of_lib = |lib, shm, disk| verdicts(&before, &after(lib, shm, disk))[0];
        assert_eq!(of_lib(0.7, 0.7, 0.6), Verdict::MachineMoved);
        assert_eq!(of_lib(1.3, 1.5, 1.31), Verdict::MachineMoved);
        // Further than the machine, against it, or where one control stands still.
        assert_eq!(of_lib(0.7, 0.8, 0.8), Verdict::Slower);
        assert_eq!(of_lib(0.7, 1.3, 1.3), Verdict::Slower);
        assert_eq!(of_lib(0.7, 1.0, 0.5), Verdict::Slower);
        assert_eq!(of_lib(1.3, 1.1, 1.1), Verdict::Faster);
        assert_eq!(of_lib(1.0, 0.5, 0.5), Verdict::NoDifference);
        let comparison = compare(&before, &after(0.7, 0.7, 0.6)).unwrap();
        assert!(!comparison.pairs.iter().any(|pair| pair.is_slower_by(0.05)), "{}", comparison.text());
        assert!(comparison.text().contains("the control moved as much"), "{}", comparison.text());
        // Alone it is what is compared.
        let alone = compare(&before[1..2], &after(1.0, 0.5, 1.0)[1..2]).unwrap();
        assert!(alone.pairs[0].is_slower_by(0.05) && !alone.pairs[0].is_control);
    }

    #[test]
    fn a_simulated_row_has_no_control() {
        let rates = [100.0, 101.0, 99.0, 100.5, 99.5];
        let on = |target: &str, by: f64, simulated| Row {
            target: target.into(),
            simulated,
            ..row("a", &rates.map(|rate| rate * by))
        };
        let before = [on("sim:uma-2", 1.0, true), on("dir:/dev/shm", 1.0, false)];
        let after = [on("sim:uma-2", 0.7, true), on("dir:/dev/shm", 0.7, false)];
        let comparison = compare(&before, &after).unwrap();
        assert!(comparison.pairs.iter().all(|pair| pair.verdict == Verdict::Slower && !pair.is_control));
    }

    #[test]
    fn warnings_of_either_side_stand_below_the_table() {
        let warned = |text: &str| Row { warnings: vec![text.into()], ..row("a", &[1.0]) };
        let before = [warned("busy machine: another task"), warned("busy machine: 2 other tasks")];
        let comparison = compare(&before, &[warned("the CPUs were moved: far")]).unwrap();
        let text = comparison.text();
        assert!(text.contains("before: busy machine: 2 other tasks (in"), "{text}");
        assert!(text.contains("after: the CPUs were moved: far (in 1 of 1 rows)"), "{text}");
        assert_eq!(comparison.warnings().len(), 2);
    }

    #[test]
    fn results_without_a_difference_give_no_verdict_in_twenty_of_twenty_repetitions() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let mut runs = || {
                let noise = |random: &mut Random| 1.0 + 0.06 * ((random.below(1000)) as f64 / 1000.0 - 0.5);
                (0..5).map(|_| 1e6 * noise(&mut random)).collect::<Vec<f64>>()
            };
            let before: Vec<Row> = ["a", "b", "c", "d", "e"].map(|name| row(name, &runs())).into();
            let after: Vec<Row> = ["a", "b", "c", "d", "e"].map(|name| row(name, &runs())).into();
            assert_eq!(verdicts(&before, &after), [Verdict::NoDifference; 5], "seed {seed}");
        }
    }

    #[test]
    fn each_line_of_one_thing_is_a_run_of_it() {
        let before = [row("a", &[1.0, 3.0, 9.0]), row("a", &[5.0]), row("a", &[4.0])];
        let comparison = compare(&before, &[row("a", &[2.0]), row("z", &[1.0])]).unwrap();
        assert_eq!(comparison.pairs[0].before.rates, [3.0, 5.0, 4.0]);
        assert_eq!((comparison.pairs[0].ratio, comparison.alone), (0.5, 1));
        assert!(compare(&before, &[row("z", &[1.0])]).is_err());
    }

    #[test]
    fn processes_that_differ_by_chance_are_no_difference() {
        // Each line is a process with a speed of its own, in which five runs hardly differ.
        for seed in 0..20 {
            let mut random = Random::new(seed * 77 + 1);
            let mut uniform = |width: f64| 1.0 + width * ((random.below(1000)) as f64 / 1000.0 - 0.5);
            let mut side = || {
                let mut lines = Vec::new();
                for _ in 0..5 {
                    let process = 1e6 * uniform(0.2);
                    let runs: Vec<f64> = (0..5).map(|_| process * uniform(0.002)).collect();
                    lines.push(row("a", &runs));
                }
                lines
            };
            assert_eq!(verdicts(&side(), &side()), [Verdict::NoDifference], "seed {seed}");
        }
    }

    #[test]
    fn what_nobody_measured_is_refused_or_has_no_verdict() {
        let scratch = sluice_console::private_dir::PrivateDir::below(&std::env::temp_dir()).unwrap();
        let read_back = |row: &Row| {
            let path = scratch.path().join("result.json");
            std::fs::write(&path, row.to_json()).unwrap();
            read(&path)
        };
        assert!(read_back(&row("a", &[1.0])).is_ok());
        for bad in [row("a", &[-1.0]), row("\u{1b}[31m", &[1.0])] {
            let Err(Failure::Failed(text)) = read_back(&bad) else { panic!("{bad:?} is taken") };
            assert!(text.contains("line 1") && !text.contains(char::is_control), "{text}");
        }
        assert!(compare(&[row("a", &[0.0])], &[row("a", &[0.0])]).is_err(), "no ratio");
        let Err(endless) = read(Path::new("/dev/zero")) else { panic!("it has no end") };
        assert!(endless.to_string().contains("too long for a result"), "{endless}");
        let many = Row { ops: u64::MAX, ..row("a", &[1.0]) };
        assert_eq!(verdicts(&[many.clone(), many.clone()], &[many]), [Verdict::NoDifference]);
    }

    #[test]
    fn a_percentage_is_read_with_and_without_its_sign() {
        assert_eq!((parse_percent("5%"), parse_percent("2.5")), (Ok(0.05), Ok(0.025)));
        assert!(["", "x", "-1", "100"].into_iter().all(|text| parse_percent(text).is_err()));
    }
}
