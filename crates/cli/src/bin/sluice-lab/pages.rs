//! `sluice compare` and `sluice report`: results in, verdicts and pages out.

use crate::bench::Reporter;
use sluice_console::failure::{Context, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::output::Output;
use sluice_lab::{compare as comparison, experiment, report as page};
use std::path::Path;

/// Exit status when something became slower by more than was allowed.
const SLOWER: u8 = 1;

pub(crate) fn compare(
    before: &Path,
    after: &Path,
    output: Option<&Path>,
    fail_over: Option<&str>,
) -> Result<u8> {
    let allowed = fail_over.map(comparison::parse_percent).transpose()?;
    let compared = comparison::compare(&comparison::read(before)?, &comparison::read(after)?)?;
    Output::plain().give(compared.text().as_bytes())?;
    if let Some(path) = output {
        write(path, &page::of_comparison(&compared)?)?;
    }
    let slower = |share| compared.pairs.iter().any(|pair| pair.is_slower_by(share));
    Ok(if allowed.is_some_and(slower) { SLOWER } else { 0 })
}

pub(crate) fn report(result: &Path, output: &Path) -> Result<()> {
    let name = result.file_stem().unwrap_or_default().to_string_lossy();
    write(output, &page::of_result(&format!("sluice: {name}"), &comparison::read(result)?)?)
}

pub(crate) fn sources(output: &Path) -> Result<()> {
    let interrupt = Interrupt::on_signals()?;
    let mut reporter = Reporter::new(experiment::total_steps(), None);
    let outcome = page::of_sources(&mut reporter, &interrupt);
    reporter.bar.finish_and_clear();
    write(output, &outcome?)
}

fn write(path: &Path, html: &str) -> Result<()> {
    std::fs::write(path, html).context(|| path.display().to_string())
}
