//! Output: standard output whose reader may leave (`sluice demo | head`), which is the reader's right and no error.

use crate::closed_output;
use crate::failure::{Context, Result};
use crate::interrupt::Interrupt;
use std::io::{self, ErrorKind, Stdout, StdoutLock, Write};

/// Standard output. Once the reader is gone, writing does nothing.
pub struct Output {
    stdout: Stdout,
    gone: bool,
    /// Raised when the reader is gone, so that work for it ends.
    interrupt: Option<Interrupt>,
}

impl Output {
    /// Nothing happens when the reader leaves.
    pub fn plain() -> Output {
        Output { stdout: io::stdout(), gone: false, interrupt: None }
    }

    /// Raises `interrupt` when nobody reads any more.
    pub fn stopping(interrupt: &Interrupt) -> Output {
        Output { interrupt: Some(interrupt.clone()), ..Output::plain() }
    }

    /// Writes all of `bytes`.
    pub fn give(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes).and_then(|()| self.flush()).context(|| "cannot write to standard output")
    }

    /// The value of `outcome`, except that a run is successful if it ended because its reader had gone.
    pub fn forgive(&self, outcome: Result<()>) -> Result<()> {
        if self.gone { Ok(()) } else { outcome }
    }

    fn settle<T>(&mut self, outcome: io::Result<T>, instead: T) -> io::Result<T> {
        match outcome {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.gone = true;
                if let Some(interrupt) = &self.interrupt {
                    interrupt.raise();
                }
                Ok(instead)
            }
            other => other,
        }
    }
}

/// Standard output for bytes that are no text, all of which the reader must take.
///
/// # Errors
/// `EBADF` if it was closed when the program began.
pub fn locked() -> io::Result<StdoutLock<'static>> {
    closed_output::check().map(|()| io::stdout().lock())
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        closed_output::check()?;
        let outcome = if self.gone { Ok(bytes.len()) } else { self.stdout.write(bytes) };
        self.settle(outcome, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let outcome = if self.gone { Ok(()) } else { self.stdout.flush() };
        self.settle(outcome, ())
    }
}
