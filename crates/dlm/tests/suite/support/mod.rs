//! Support: what the simulation and the model share.

pub(crate) mod check;
pub(crate) mod nodes;
pub(crate) mod wishes;

use sluice_dlm::Mutant;

/// The faults that a test plants, and finds.
pub(crate) const MUTANTS: [Mutant; 6] = [
    Mutant::GrantBeforeDowngrade,
    Mutant::OldEpochAccepted,
    Mutant::FreedBeforeFence,
    Mutant::WakeUpLost,
    Mutant::LeaseIgnored,
    Mutant::ServesUnregistered,
];
