//! Table: results for a person, in columns.

use std::fmt::Write as _;

/// Lines of cells, printed in columns as wide as they need: the first to the left, the others to the right.
#[derive(Default)]
pub struct Table {
    lines: Vec<Vec<String>>,
    left: usize,
}

impl Table {
    /// An empty table whose first `left` columns are words.
    pub fn with_left_columns(left: usize) -> Table {
        Table { lines: Vec::new(), left }
    }

    /// Adds a line.
    pub fn line<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.lines.push(cells.into_iter().map(Into::into).collect());
    }

    /// The text, a newline after each line.
    pub fn render(&self) -> String {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.lines
                .iter()
                .filter_map(|line| line.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for line in &self.lines {
            let mut row = String::new();
            for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                // Writing to a String cannot fail.
                let _ = if column < self.left {
                    write!(row, "{gap}{cell:<width$}")
                } else {
                    write!(row, "{gap}{cell:>width$}")
                };
            }
            text.push_str(row.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A whole number with commas: `1,234,567`.
pub fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0.0 { format!("-{text}") } else { text }
}

/// Nanoseconds in a unit that keeps the number short: `870 ns`, `12.3 us`, `4.6 ms`, `2.0 s`.
pub fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_times_get_a_unit() {
        assert_eq!(
            [0.0, 999.0, 1000.0, 1_234_567.4, -1500.0].map(grouped),
            ["0", "999", "1,000", "1,234,567", "-1,500"]
        );
        assert_eq!([870.0, 12_340.0, 4.6e6, 2e9].map(duration), ["870 ns", "12.3 us", "4.6 ms", "2.0 s"]);
    }
}
