//! Snapshots: sent, received, and compared.

mod changes;
mod moved;
mod random_tree;
mod resumed;
mod streams;
mod tree_facts;
