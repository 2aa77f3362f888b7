//! Check: what must hold, seen from outside of all nodes.

use super::wishes::Wishes;
use sluice_dlm::{Key, Mode, Name, Node, Token};
use sluice_membership::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// A holder: the node, and its client's number.
pub(crate) type Holder = (NodeId, usize);

/// The true holders of each lock, and the store that all write to.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    /// Ends with the unlock, or when the store has fenced the node.
    held: BTreeMap<Holder, (Key, Mode)>,
    /// Nodes whose writes the store refuses.
    fenced: BTreeSet<NodeId>,
    /// The greatest token of the writes to a resource.
    tokens: BTreeMap<Name, Token>,
    /// The value that was set last, and how often.
    values: BTreeMap<Name, Vec<u8>>,
    pub(crate) grants: u64,
    pub(crate) writes: u64,
    pub(crate) refused: u64,
}

impl Truth {
    /// Which party holds what.
    #[allow(dead_code)] // The model has no parties.
    pub(crate) fn held(&self) -> impl Iterator<Item = (Holder, &Key, Mode)> {
        self.held.iter().map(|(holder, (key, mode))| (*holder, key, *mode))
    }

    /// A client says that it has a lock.
    pub(crate) fn granted(&mut self, holder: Holder, key: &Key, mode: Mode) -> Result<(), String> {
        self.grants += 1;
        for (&other, (theirs, their_mode)) in &self.held {
            let overlaps = theirs.name == key.name && theirs.range.overlaps(key.range);
            if other != holder && overlaps && !mode.compatible(*their_mode) && !self.fenced.contains(&other.0)
            {
                return Err(format!(
                    "{holder:?} got {key} {mode:?}, but {other:?} has {theirs} {their_mode:?}"
                ));
            }
        }
        self.held.insert(holder, (key.clone(), mode));
        Ok(())
    }

    /// A client has unlocked, or knows that it has lost its lock.
    pub(crate) fn unlocked(&mut self, holder: Holder) {
        self.held.remove(&holder);
    }

    /// A write under an exclusive lock reaches the store, which knows of fences, but not of tokens.
    pub(crate) fn write(&mut self, node: NodeId, name: &Name, token: Token) -> Result<(), String> {
        if self.fenced.contains(&node) {
            self.refused += 1;
            return Ok(());
        }
        self.writes += 1;
        let last = self.tokens.entry(name.clone()).or_insert(token);
        if token < *last {
            return Err(format!("{node} wrote to {name} with {token:?} after {last:?}"));
        }
        *last = token;
        Ok(())
    }

    /// The store refuses the node from here on.
    pub(crate) fn fence(&mut self, node: NodeId) {
        self.fenced.insert(node);
        self.held.retain(|(other, _), _| *other != node);
    }

    /// A client under a lock that excludes writers sees a value that is said to be certain.
    pub(crate) fn saw(&self, name: &Name, value: &[u8]) -> Result<(), String> {
        match self.values.get(name) {
            Some(last) if last != value => Err(format!("{name} has the value {last:?}, not {value:?}")),
            _ => Ok(()),
        }
    }

    pub(crate) fn set(&mut self, name: &Name, value: Vec<u8>) {
        self.values.insert(name.clone(), value);
    }
}

/// When nobody waits: what a master says that a node has, the node has.
pub(crate) fn leaked<'n>(living: impl Iterator<Item = &'n Node<Wishes>>) -> Result<(), String> {
    let living: BTreeMap<NodeId, _> = living.map(|node| (node.id(), node.status())).collect();
    for resource in living.values().flat_map(|status| &status.resources) {
        for (node, range, _, token) in &resource.grants {
            let has = living.get(node).is_some_and(|holder| {
                holder.locks.iter().any(|lock| {
                    lock.key.name == resource.name && lock.key.range == *range && lock.token == Some(*token)
                })
            });
            if !has {
                return Err(format!("{node} has no more what it was granted: {resource:?}"));
            }
        }
        if !resource.waiters.is_empty() {
            return Err(format!("nobody waits, but {resource:?}"));
        }
    }
    Ok(())
}
