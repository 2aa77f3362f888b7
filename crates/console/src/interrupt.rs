//! Interrupt: Ctrl-C and SIGTERM as a flag, so that mounts and directories are cleaned up on the way out.

use crate::failure::{Failure, Result};
use sluice_sync::Arc;
use sluice_sync::atomic::{AtomicBool, Ordering};

/// Lets writes beyond a limit of the size of files (`RLIMIT_FSIZE`) fail with `EFBIG`, where the system would end the program.
///
/// # Errors
/// The operating system's, if it refuses the handler.
pub fn outlive_file_size_limit() -> Result<()> {
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default())?;
    Ok(())
}

/// Set once a person or a supervisor has asked the program to stop. Clones share the flag.
#[derive(Clone, Default)]
pub struct Interrupt {
    raised: Arc<AtomicBool>, // atomic (stop): set once, never cleared
}

impl Interrupt {
    /// A flag that only [`raise`](Self::raise) sets.
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// A flag that SIGINT, SIGTERM and SIGHUP set. A second such signal ends the program at once.
    ///
    /// # Errors
    /// The operating system's, if it refuses the handlers.
    pub fn on_signals() -> Result<Interrupt> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let interrupt = Interrupt::new();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Order matters: the first signal finds the flag clear, passes here and sets it below.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, interrupt.raised.clone())?;
            signal_hook::flag::register(signal, interrupt.raised.clone())?;
        }
        Ok(interrupt)
    }

    /// Asks to stop.
    pub fn raise(&self) {
        // Relaxed: the flag publishes no data.
        self.raised.store(true, Ordering::Relaxed);
    }

    /// True once somebody asked to stop.
    pub fn is_raised(&self) -> bool {
        // Relaxed: as above.
        self.raised.load(Ordering::Relaxed)
    }

    /// An error once somebody asked to stop.
    ///
    /// # Errors
    /// [`Failure::Interrupted`].
    pub fn check(&self) -> Result<()> {
        if self.is_raised() { Err(Failure::Interrupted) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_interrupt_is_seen_through_every_clone() {
        let interrupt = Interrupt::new();
        let other = interrupt.clone();
        assert_eq!(other.check(), Ok(()));
        interrupt.raise();
        assert_eq!(other.check(), Err(Failure::Interrupted));
    }
}
