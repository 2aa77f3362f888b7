//! Membership: who is a member of the cluster, and who is master of which shard.

mod registry;

pub use registry::Registry;
