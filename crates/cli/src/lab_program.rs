//! Lab program: the commands that `sluice-lab` carries out, which is installed beside this program.

use crate::args::LabCommand;
use clap::Subcommand;
use sluice_console::failure::{Failure, Result};
use sluice_console::program::companion;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Whether `arguments` begin with a command of the lab, or ask for help about one.
pub(crate) fn is_meant(mut arguments: impl Iterator<Item = OsString>) -> bool {
    let first = arguments.next();
    let name = if first.as_deref() == Some(OsStr::new("help")) { arguments.next() } else { first };
    name.and_then(|name| name.into_string().ok()).is_some_and(|name| LabCommand::has_subcommand(&name))
}

/// Becomes `sluice-lab`, with the arguments of this program.
///
/// # Errors
/// If the program is missing or cannot be executed.
pub(crate) fn run() -> Result<u8> {
    let Some(program) = companion("sluice-lab") else {
        let text = "the program sluice-lab does the measuring, and is neither beside sluice nor in PATH: `make build` in the \
                    source of sluicefs makes both";
        return Err(Failure::Usage(text.into()));
    };
    let mut arguments = std::env::args_os();
    // A result names the command that was given.
    let name = arguments.next().unwrap_or_else(|| "sluice".into());
    let error = Command::new(&program).arg0(name).args(arguments).exec();
    Err(Failure::Failed(format!("{}: {error}", program.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_the_lab_are_told_from_the_others() {
        let is_lab = |line: &str| is_meant(line.split(' ').map(OsString::from));
        let lab = [
            "bench stat",
            "compare a b",
            "report a -o b",
            "lab spin",
            "commute",
            "help bench",
            "bench --help",
        ];
        assert!(lab.iter().all(|line| is_lab(line)));
        assert!(
            ["mount bench", "help", "help mount", "--help", "run -- bench"].iter().all(|line| !is_lab(line))
        );
    }
}
