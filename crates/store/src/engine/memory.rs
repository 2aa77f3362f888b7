//! MemoryEngine: an engine that forgets, for measurements of what stands above it and as a model in tests.

use super::{Engine, Visit};
use crate::StoreError;
use crate::record::Batch;
use sluice_sync::{LockClass, Mutex};
use std::collections::BTreeMap;
use std::ops::Bound;

static TREE: LockClass = LockClass::new("store.engine.memory");

/// A map in memory.
#[derive(Debug)]
pub struct MemoryEngine {
    tree: Mutex<RecordTree>,
}

#[derive(Debug, Default)]
struct RecordTree {
    objects: BTreeMap<Vec<u8>, Vec<u8>>,
    position: Option<Vec<u8>>,
}

impl MemoryEngine {
    /// An empty engine.
    pub fn new() -> MemoryEngine {
        MemoryEngine { tree: Mutex::with_class(&TREE, RecordTree::default()) }
    }
}

impl Default for MemoryEngine {
    fn default() -> Self {
        MemoryEngine::new()
    }
}

impl Engine for MemoryEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.tree.lock().objects.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError> {
        if from < to {
            let tree = self.tree.lock();
            let range = (Bound::Included(from), Bound::Excluded(to));
            for (key, value) in tree.objects.range::<[u8], _>(range) {
                if !visit(key, value) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn position(&self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.tree.lock().position.clone())
    }

    fn apply(&self, batch: &Batch, position: &[u8]) -> Result<(), StoreError> {
        let mut tree = self.tree.lock();
        for (key, value) in batch.iter() {
            match value {
                Some(value) => drop(tree.objects.insert(key.to_vec(), value.to_vec())),
                None => drop(tree.objects.remove(key)),
            }
        }
        tree.position = Some(position.to_vec());
        Ok(())
    }
}
