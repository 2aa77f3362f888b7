//! Screens: what `sluice top` shows every second: one over the other on a terminal, below each other in a pipe, or as lines of JSON.

use crate::args::Watched;
use serde_json::{Map, Value, json};
use sluice_console::failure::Result;
use sluice_console::interrupt::Interrupt;
use sluice_console::output::Output;
use sluice_fuse::control::MountStat;
use sluice_sync::thread;
use sluice_sync::time::Duration;
use std::io::{IsTerminal, stdout};

/// Between two screens.
const EVERY: Duration = Duration::from_secs(1);
/// Moves the cursor to the upper left and clears what is below: ECMA-48.
const CLEAR: &str = "\x1b[H\x1b[J";

/// How a screen is shown.
#[derive(Clone, Copy, Debug)]
enum ScreenForm {
    /// In place of the one before.
    Terminal,
    /// Below the one before.
    Text,
    /// As a line of JSON.
    Json,
}

/// The screens of one run of `sluice top`.
pub(crate) struct Screens {
    form: ScreenForm,
    once: bool,
    shown: u64,
    interrupt: Interrupt,
    output: Output,
}

impl Screens {
    /// Nothing is shown yet.
    pub(crate) fn begin(watched: &Watched) -> Result<Screens> {
        let interrupt = Interrupt::on_signals()?;
        let output = Output::stopping(&interrupt);
        let form = match watched {
            Watched { json: true, .. } => ScreenForm::Json,
            Watched { once: false, .. } if stdout().is_terminal() => ScreenForm::Terminal,
            _ => ScreenForm::Text,
        };
        Ok(Screens { form, once: watched.once, shown: 0, interrupt, output })
    }

    /// Waits for the time of the next screen; false if there is none.
    pub(crate) fn wait(&self) -> bool {
        if self.shown == 1 && self.once || self.interrupt.is_raised() {
            return false;
        }
        thread::sleep(EVERY);
        !self.interrupt.is_raised()
    }

    /// Shows the next one.
    pub(crate) fn show(
        &mut self,
        title: &str,
        screen: impl FnOnce() -> String,
        line: impl FnOnce() -> Value,
    ) -> Result<()> {
        let text = text(self.form, self.shown == 0, title, screen, line);
        self.shown += 1;
        self.output.give(text.as_bytes())
    }
}

/// A screen in its form.
fn text(
    form: ScreenForm,
    is_first: bool,
    title: &str,
    screen: impl FnOnce() -> String,
    line: impl FnOnce() -> Value,
) -> String {
    match form {
        ScreenForm::Terminal => format!("{CLEAR}{title}   (Ctrl-C ends)\n{}", screen()),
        ScreenForm::Text if is_first => format!("{title}\n{}", screen()),
        ScreenForm::Text => format!("\n{title}\n{}", screen()),
        ScreenForm::Json => format!("{}\n", line()),
    }
}

/// The fields of a line of JSON for a server: its counts, and its requests a second by kind since `earlier`, `seconds` ago.
pub(crate) fn fields(now: &MountStat, earlier: Option<&MountStat>, seconds: f64) -> Map<String, Value> {
    let rate = |(kind, count): (&String, &u64)| {
        let before = earlier?.requests.get(kind).copied().unwrap_or(0);
        Some((kind.clone(), json!(count.saturating_sub(before) as f64 / seconds.max(1e-3))))
    };
    let rates: Map<String, Value> = now.requests.iter().filter_map(rate).collect();
    let mut fields = Map::new();
    fields.insert("seconds".into(), json!(seconds));
    fields.insert("per_second".into(), Value::Object(rates));
    fields.insert("stat".into(), json!(now));
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_cleared_on_a_terminal_alone() {
        let shown =
            |form, is_first| text(form, is_first, "DIR", || "rows\n".into(), || json!({ "seconds": 1 }));
        assert_eq!(shown(ScreenForm::Terminal, true), "\x1b[H\x1b[JDIR   (Ctrl-C ends)\nrows\n");
        assert_eq!(
            shown(ScreenForm::Text, true) + &shown(ScreenForm::Text, false),
            "DIR\nrows\n\nDIR\nrows\n"
        );
        assert_eq!(shown(ScreenForm::Json, false), "{\"seconds\":1}\n");
    }

    #[test]
    fn rates_of_a_line_are_since_the_line_before() {
        let mut earlier = MountStat { requests: [("READ".into(), 10)].into(), ..MountStat::default() };
        let mut now = earlier.clone();
        now.requests = [("READ".to_owned(), 30), ("WRITE".to_owned(), 5)].into();
        let line = fields(&now, Some(&earlier), 2.0);
        assert_eq!(line["per_second"], json!({ "READ": 10.0, "WRITE": 2.5 }));
        assert_eq!(line["stat"]["requests"]["READ"], 30);
        earlier.requests.insert("READ".into(), 90);
        assert_eq!(fields(&now, Some(&earlier), 2.0)["per_second"]["READ"], 0.0, "a server that began anew");
        assert_eq!(fields(&now, None, 2.0)["per_second"], json!({}));
    }
}
