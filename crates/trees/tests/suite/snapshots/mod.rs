//! Snapshots: sent, received, and compared.

mod changes;
mod random_tree;
mod streams;
mod tree_facts;
