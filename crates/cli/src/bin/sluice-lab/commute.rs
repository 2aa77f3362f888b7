//! `sluice commute`: the conflict-freedom test, its table to the terminal and its pairs to a file.

use crate::args::Commute;
use crate::bench::{json_writer, progress_bar};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::output::Output;
use sluice_lab::commute::Plan;

pub(crate) fn commute(options: Commute) -> Result<()> {
    let pair = match &options.pair {
        None => None,
        Some(text) => Some(text.split_once(',').map(|(a, b)| [a, b]).ok_or_else(|| {
            Failure::Usage(format!("--pair {text}: give two calls, as in --pair open,unlink"))
        })?),
    };
    let plan = Plan::new(pair)?.on(options.on.into());
    let interrupt = Interrupt::on_signals()?;
    let (json, to_stdout) = json_writer(options.json, &interrupt)?;
    let bar = progress_bar(plan.cases());
    let outcome = plan.run(&interrupt, || bar.inc(1));
    bar.finish_and_clear();
    let report = outcome?;
    if let Some(mut json) = json {
        let text = report.to_json();
        json.write_all(text.as_bytes()).and_then(|()| json.flush()).context(|| "cannot write the results")?;
    }
    if !to_stdout {
        Output::plain().give(report.to_text().as_bytes())?;
    }
    report.finding().map_or(Ok(()), |finding| Err(Failure::Failed(finding)))
}
