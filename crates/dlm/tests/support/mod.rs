//! Support: what the simulation and the model share.

pub(crate) mod check;
pub(crate) mod wishes;
