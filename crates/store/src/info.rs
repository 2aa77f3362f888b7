//! Info: what a store says of itself, without being changed.

use crate::disk::{Disk, OverlayDisk};
use crate::encryption::KEY_ID;
use crate::engine::{Engine, RedbEngine, Visit};
use crate::format::{BLOCK, LOG, Super, TREE, VERSION};
use crate::log::Log;
use crate::mutant::Planted;
use crate::open::{LOG_MIN, random_uuid, read_any_super, read_super};
use crate::recovery::Behind;
use crate::segments::blocks_of;
use crate::{Options, Store, StoreError, compression};
use sluice_sync::Arc;
use std::ops::Range;

/// A store's description of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The store's UUID.
    pub uuid: [u8; 16],
    /// The version of its format.
    pub version: u32,
    /// Bytes of the log.
    pub log_size: u64,
    /// Bytes of each data file; 0 for a store without data files.
    pub segment_size: u64,
    /// The store is or was in use without flushes ([`Options::volatile`]), and did not end cleanly: then its content is
    /// lost.
    pub is_volatile: bool,
    /// The number of the key under which it is encrypted, if it is.
    pub key_id: Option<[u8; KEY_ID]>,
    /// Its data are compressed where that saves room.
    pub is_compressed: bool,
}

/// The content of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Bytes of the log whose batches the tree does not hold: what the next start replays.
    pub log_used: u64,
    /// The number of these batches.
    pub batches: u64,
    /// Bytes of segments that records name, as of the tree.
    pub data_bytes: u64,
}

impl Info {
    /// The info of a new store that is made with `options` and whose records an engine keeps, encrypted under the key with the
    /// number `key_id`.
    ///
    /// # Errors
    /// [`StoreError::NoCompression`]; the system's, without random numbers.
    pub fn of_new(options: &Options, key_id: Option<[u8; KEY_ID]>) -> Result<Info, StoreError> {
        if options.compress && !compression::IS_BUILT_IN {
            return Err(StoreError::NoCompression);
        }
        let uuid = random_uuid().map_err(StoreError::io("make a UUID"))?;
        let log_size = options.log_size.max(LOG_MIN);
        let segment_size = options.segment_size.max(BLOCK).next_multiple_of(BLOCK);
        let (is_volatile, is_compressed) = (false, options.compress);
        let version = VERSION;
        Ok(Info::of(Super { version, uuid, log_size, segment_size, is_volatile, key_id, is_compressed }))
    }

    /// As `super` says it.
    pub fn encode(&self) -> Vec<u8> {
        let Info { uuid, version, log_size, segment_size, is_volatile, key_id, is_compressed } = *self;
        Super { version, uuid, log_size, segment_size, is_volatile, key_id, is_compressed }.encode().to_vec()
    }

    /// Decodes the bytes that [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], [`StoreError::NewerFormat`], [`StoreError::Damaged`].
    pub fn decode(bytes: &[u8]) -> Result<Info, StoreError> {
        let bytes = bytes.try_into().map_err(|_| StoreError::NotAStore)?;
        Super::decode(bytes).map(Info::of)
    }

    fn of(found: Super) -> Info {
        let Super { version, uuid, log_size, segment_size, is_volatile, key_id, is_compressed } = found;
        Info { uuid, version, log_size, segment_size, is_volatile, key_id, is_compressed }
    }
}

impl Store {
    /// The description of the store on `disk`. The store may be in use.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], [`StoreError::NewerFormat`], [`StoreError::Damaged`]; the disk's.
    pub fn info(disk: &dyn Disk) -> Result<Info, StoreError> {
        read_any_super(disk).map(Info::of)
    }

    /// The content of the store on `disk`, which is only read and which no other process writes meanwhile. Visits the
    /// records of the tree with these `keys`.
    ///
    /// # Errors
    /// Errors of [`info`](Self::info).
    pub fn content(
        disk: Arc<dyn Disk>,
        keys: Range<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<Content, StoreError> {
        let disk = OverlayDisk::new(disk);
        let found = read_super(&disk)?;
        let open = |name| disk.open(name).map_err(StoreError::io("open the store"));
        let log = Log::new(open(LOG)?, found.log_size, found.uuid, Planted::default())?.with(disk.cipher());
        let engine = RedbEngine::open(open(TREE)?, disk.cipher(), 1 << 20)?;
        let behind = Behind::of(&engine, log.size(), blocks_of(found.segment_size))?;
        let (mut position, mut log_used, mut batches) = (behind.position, 0, 0);
        while let Some((_, next)) = log.read(position)? {
            log_used += log.distance(position, next);
            batches += 1;
            position = next;
        }
        engine.scan(keys.start, keys.end, visit)?;
        Ok(Content { log_used, batches, data_bytes: behind.table.live_bytes() })
    }

    /// The version of its format. A program that knows no later one may use the store.
    pub fn format(&self) -> u32 {
        self.core.options.format
    }

    /// Whether its data are compressed where that saves room.
    pub fn is_compressed(&self) -> bool {
        self.core.segments.compresses()
    }

    /// Whether it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.core.segments.encrypts()
    }

    /// The variant of [`content`](Self::content) for this store while in use: the log as of the call, and data and
    /// records as of all durable batches, if the tree can be brought there.
    ///
    /// # Errors
    /// Errors of [`get`](Self::get).
    pub fn content_in_use(&self, keys: Range<&[u8]>, visit: &mut Visit<'_>) -> Result<Content, StoreError> {
        let (log_used, batches) = {
            let state = self.core.state.lock();
            (state.used, state.unapplied.len() as u64)
        };
        // A store that failed has its tree still.
        let _ = self.checkpoint();
        self.scan(keys.start, keys.end, visit)?;
        Ok(Content { log_used, batches, data_bytes: self.stats().data_bytes })
    }
}
