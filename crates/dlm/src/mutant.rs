//! Mutants: faults that tests plant, to prove that they would find them.

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Mutant {
    /// The master grants a lock when it asks the holder for it, and does not wait for the answer.
    GrantBeforeDowngrade,
    /// A message of an old epoch counts.
    OldEpochAccepted,
    /// The locks of a dead node are free before it is fenced.
    FreedBeforeFence,
    /// The last unlock does not look whether another node waits for the lock.
    WakeUpLost,
    /// A node uses its locks past the end of its lease.
    LeaseIgnored,
    /// A new master grants before all nodes have told what they hold.
    ServesUnregistered,
    /// A deadlock is told when a probe has gone round once, and is not proved.
    UnprovedDeadlock,
}
