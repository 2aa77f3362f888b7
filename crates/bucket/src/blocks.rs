//! Blocks: parts of objects with records that were read lately, in memory, so that a look at neighbours asks the object store once.

use slatedb::Error;
use slatedb::db_cache::{CachedEntry, CachedKey, DbCache};
use sluice_sync::{LockClass, Mutex};
use std::collections::{HashMap, VecDeque};

static BLOCKS: LockClass = LockClass::new("bucket.blocks");

/// Bytes that are kept.
const BYTES: usize = 32 << 20;

/// Blocks that were read lately. *protected by its mutex, a leaf*
pub(crate) struct BlockCache(Mutex<BlocksKept>);

#[derive(Default)]
struct BlocksKept {
    entries: HashMap<CachedKey, CachedEntry>,
    /// The oldest first.
    order: VecDeque<CachedKey>,
    bytes: usize,
}

impl Default for BlockCache {
    fn default() -> Self {
        BlockCache(Mutex::with_class(&BLOCKS, BlocksKept::default()))
    }
}

impl BlockCache {
    fn find(&self, key: &CachedKey) -> Option<CachedEntry> {
        self.0.lock().entries.get(key).cloned()
    }
}

impl BlocksKept {
    fn remove(&mut self, key: &CachedKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= entry.size();
        }
    }
}

#[async_trait::async_trait]
impl DbCache for BlockCache {
    async fn get_block(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.find(key))
    }

    async fn get_index(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.find(key))
    }

    async fn get_filter(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.find(key))
    }

    async fn get_stats(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.find(key))
    }

    async fn insert(&self, key: CachedKey, value: CachedEntry) {
        let mut kept = self.0.lock();
        kept.bytes += value.size();
        match kept.entries.insert(key.clone(), value) {
            Some(before) => kept.bytes -= before.size(),
            None => kept.order.push_back(key),
        }
        while kept.bytes > BYTES
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.remove(&oldest);
        }
    }

    async fn remove(&self, key: &CachedKey) {
        let mut kept = self.0.lock();
        kept.remove(key);
        kept.order.retain(|one| one != key);
    }

    fn entry_count(&self) -> u64 {
        self.0.lock().entries.len() as u64
    }
}
