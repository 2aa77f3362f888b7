//! Asking: the one reserve of the process. Under loom and on simulated machines there is always enough.

/// The requested memory is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short;

#[cfg(any(feature = "loom", feature = "sim"))]
pub use self::endless::*;
#[cfg(not(any(feature = "loom", feature = "sim")))]
pub use self::native::*;

#[cfg(any(feature = "loom", feature = "sim"))]
mod endless {
    use super::Short;

    /// Whether even the smallest use should be asked for.
    #[inline]
    pub fn is_short() -> bool {
        false
    }

    /// Takes `bytes`.
    ///
    /// # Errors
    /// None, here.
    #[inline]
    pub fn take(_bytes: u64) -> Result<(), Short> {
        Ok(())
    }

    /// Gives free memory back to the system.
    pub fn make_room() {}

    /// How much could be taken now.
    pub fn left() -> u64 {
        u64::MAX
    }

    /// The least of all memory that any bound allows, if the system tells.
    pub fn total_bytes() -> Option<u64> {
        None
    }
}

#[cfg(not(any(feature = "loom", feature = "sim")))]
mod native {
    use super::Short;
    use crate::memory::machine::{self, Bound};
    use crate::memory::reserve::Reserve;
    use crate::{OnceLock, drain};

    static RESERVE: OnceLock<Reserve> = OnceLock::new();

    fn reserve() -> &'static Reserve {
        RESERVE.get_or_init(|| Reserve::new(machine::bounds))
    }

    /// Lets `look` say what bounds the process, and not the machine: for tests, before anything is asked. False if it is too
    /// late.
    pub fn bound_by(look: fn() -> Vec<Bound>) -> bool {
        RESERVE.set(Reserve::new(look)).is_ok()
    }

    /// Whether so little is left that even the smallest use should be asked for.
    #[inline]
    pub fn is_short() -> bool {
        RESERVE.get().is_some_and(Reserve::is_short)
    }

    /// Takes `bytes` of what the machine, the control groups around the process and its limits have left, all or none.
    ///
    /// # Errors
    /// [`Short`] when they are not there.
    pub fn take(bytes: u64) -> Result<(), Short> {
        reserve().take(bytes)
    }

    /// Gives what is kept to be used again, and the allocator's free memory, back to the system, if it is worth the time: for a
    /// caller that was refused memory.
    pub fn make_room() {
        drain::give_back();
    }

    /// How much could be taken now, in bytes, as far as can be seen.
    pub fn left() -> u64 {
        reserve().left()
    }

    /// The least of all memory that any bound allows, in bytes; `None` where the system does not tell.
    pub fn total_bytes() -> Option<u64> {
        reserve().total()
    }
}
