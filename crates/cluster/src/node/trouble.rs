//! Trouble: an attempt that fails again and again.

use sluice_sync::time::Duration;

/// An attempt that fails again and again: it is told when its reason changes, and made less and less often.
#[derive(Default)]
pub(super) struct Trouble {
    pub(super) reason: Option<String>,
    attempts: u32,
}

impl Trouble {
    /// Whether this `reason` differs from that of the attempt before.
    pub(super) fn is_new(&mut self, reason: &str) -> bool {
        self.reason.replace(reason.to_owned()).as_deref() != Some(reason)
    }

    /// The pause before the next attempt: `first`, then twice as long each time, up to `most`.
    pub(super) fn pause(&mut self, first: Duration, most: Duration) -> Duration {
        self.attempts += 1;
        first.saturating_mul(1 << (self.attempts - 1).min(16)).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(20);
    const SEEK_PAUSE_MAX: Duration = Duration::from_millis(100);

    #[test]
    fn what_fails_again_is_told_once_and_tried_less_and_less_often() {
        let mut trouble = Trouble::default();
        let told: Vec<_> = ["gone", "gone", "full", "gone"].map(|reason| trouble.is_new(reason)).into();
        assert_eq!(told, [true, false, true, true]);
        let pauses: Vec<_> = (0..4).map(|_| trouble.pause(TICK, SEEK_PAUSE_MAX).as_millis()).collect();
        assert_eq!(pauses, [20, 40, 80, 100]);
        for _ in 0..100 {
            trouble.pause(TICK, SEEK_PAUSE_MAX);
        }
        assert_eq!(trouble.pause(TICK, SEEK_PAUSE_MAX), SEEK_PAUSE_MAX);
    }
}
