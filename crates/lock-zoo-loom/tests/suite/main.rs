//! The models of the lock zoo, as one program.

mod combining;
#[path = "../../../sync-loom/tests/suite/model/mod.rs"]
mod model;
mod mutants;
mod percpu_ref;
mod range_lock;
mod spin;

use sluice_sync::face;
