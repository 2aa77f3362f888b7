//! `sluice lab`: one experiment, its rows to the file that was asked for, its tables to the terminal.

use crate::args::Lab;
use crate::bench::{Reporter, json_writer};
use sluice_console::failure::Result;
use sluice_console::interrupt::Interrupt;
use sluice_console::output::Output;
use sluice_lab::bench::Listener;
use sluice_lab::disturbance::warnings_of;
use sluice_lab::experiment;

pub(crate) fn lab(options: Lab) -> Result<()> {
    let experiment = experiment::find(&options.experiment)?;
    let interrupt = Interrupt::on_signals()?;
    let (json, to_stdout) = json_writer(options.json, &interrupt)?;
    let mut reporter = Reporter::new(experiment.steps(), json);
    let outcome = experiment.run(&mut reporter, &interrupt);
    reporter.bar.finish_and_clear();
    warnings_of(reporter.rows().iter().map(|row| &row.warnings)).iter().for_each(|text| reporter.note(text));
    let text = outcome?.text();
    if !to_stdout {
        Output::plain().give(text.as_bytes())?;
    }
    Ok(())
}
