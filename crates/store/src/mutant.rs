//! Mutants: faults that tests plant, to see that the crash tests find them. Without tests there are none.

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A batch counts as durable when it is written.
    NoFlush,
    /// A batch's body is not checked.
    NoBodyChecksum,
    /// A batch of an earlier run may follow one of a later.
    NoChain,
    /// Space of the log is used again without a checkpoint.
    FreedEarly,
    /// The engine's position moves without what it stands for.
    PositionWithoutRecords,
    /// A batch counts as durable before its predecessors.
    DoneOutOfOrder,
    /// A batch keeps the older of two versions of a key.
    OldestVersion,
    /// A push takes the CPUs' buffers one by one, without excluding transactions.
    CutInParts,
    /// Recovery begins at the start of the log instead of the engine's position.
    ReplayFromStart,
    /// A failed flush is tried again, and counts if that succeeds.
    FlushAgain,
    /// Data is not flushed before the batch that names it.
    DataNotFlushed,
    /// Data is read without a look at its checksums.
    DataNotChecked,
    /// Data that decompress to another length than their record says are taken as they are.
    LengthNotChecked,
    /// Freed data is given back to the disk at the push that frees it.
    PunchedEarly,
    /// A segment is written from its beginning although data lives in it.
    EndForgotten,
    /// A full segment counts as free although something in it has no name yet.
    PendingForgotten,
}

/// Which fault is planted, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planted {
    #[cfg(test)]
    pub(crate) mutant: Option<Mutant>,
}

impl Planted {
    /// Whether it is `mutant`.
    #[inline]
    pub(crate) fn has(self, mutant: Mutant) -> bool {
        #[cfg(test)]
        return self.mutant == Some(mutant);
        #[cfg(not(test))]
        {
            let _ = mutant;
            false
        }
    }
}
