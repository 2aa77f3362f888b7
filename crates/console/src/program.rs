//! Program: the file of the running program, and those of the programs that are installed with it.

use crate::failure::{Context, Failure, Result, in_words};
use rustix::fs::{Access, access};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit status after Ctrl-C, as of a shell.
const INTERRUPTED: u8 = 130;

/// The file of this program, to be run again.
///
/// # Errors
/// When the system does not tell.
pub fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context(|| "cannot find this program's file")
}

/// The program `name` that was installed with this one: in the same directory, or else in `PATH`.
pub fn companion(name: &str) -> Option<PathBuf> {
    let beside = this_program().ok().and_then(|program| program.parent().map(Path::to_owned));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = beside.into_iter().chain(std::env::split_paths(&path)).map(|dir| dir.join(name));
    files.find(|file| file.is_file() && access(file, Access::EXEC_OK).is_ok())
}

/// The exit status of a program that ended with `outcome`. A failure is one line on standard error.
pub fn exit_status(outcome: Result<u8>) -> ExitCode {
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(Failure::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(Failure::Usage(text)) => complain(&text, 2),
        Err(Failure::Failed(text) | Failure::Unsupported(text)) => complain(&text, 1),
    }
}

/// Writes one line to standard error, and gives the exit status.
pub fn complain(text: &str, status: u8) -> ExitCode {
    use std::io::Write;
    // If standard error is gone, the exit status still tells.
    let _ = writeln!(std::io::stderr(), "sluice: {}", printable(text));
    ExitCode::from(status)
}

/// `text` on one line of a terminal, whatever the names in it are.
pub fn printable(text: &str) -> String {
    let escaped = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    in_words(text).chars().map(escaped).collect()
}

/// The message of a usage error of `clap` on one line, without its usage text.
pub fn one_line(message: &str) -> String {
    let paragraphs =
        message.split("\n\n").filter(|part| !part.starts_with("Usage:") && !part.starts_with("For more"));
    let parts: Vec<String> = paragraphs
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|part| !part.is_empty())
        .collect();
    let line = parts.join("; ");
    format!(
        "{}; `sluice help` and `sluice COMMAND --help` show how",
        line.strip_prefix("error: ").unwrap_or(&line)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_without_numbers_of_errors() {
        let full = std::io::Error::from_raw_os_error(28);
        assert_eq!(
            printable(&format!("a\nb\u{1b}: {full} ({full}): x")),
            "a\\nb\\u{1b}: No space left on device (No space left on device): x"
        );
        assert_eq!(printable("the (os error is) it"), "the (os error is) it");
    }

    #[test]
    fn a_companion_is_an_executable_file_beside_the_program_or_in_the_path() {
        let this = this_program().unwrap();
        let name = this.file_name().unwrap().to_str().unwrap();
        assert_eq!(companion(name).as_deref(), Some(&*this));
        assert!(companion("sh").is_some_and(|file| file.ends_with("sh")));
        assert_eq!(companion("no-such-program-of-sluicefs"), None);
    }
}
