//! History: calls that the programs of a cluster made, what they answered, and the search for an order that explains it.
//!
//! Two tests use it: `seeds`, whose kernels are played, and `cluster_histories` of the command, which makes the calls through mounts.

pub(crate) mod call;
pub(crate) mod model;
pub(crate) mod order;
