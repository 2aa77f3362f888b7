//! No slots: stands for `slots.rs` in a build without encryption, and refuses each key.

pub use NoKey as StoreKey;
pub use NoKeyFile as KeyFile;

use super::cipher::Cipher;
use super::piece::KEY_ID;
use super::slot::KeySlot;
use crate::StoreError;
use crate::format::KEYS_SIZE;

/// A key that opens an encrypted store, of which this build has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoKey {}

/// The content of the file `keys`, which this build does not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoKeyFile {}

impl NoKey {
    /// Refused.
    ///
    /// # Errors
    /// That this build has no encryption.
    pub fn passphrase(_words: Vec<u8>) -> Result<NoKey, StoreError> {
        Err(absent())
    }

    /// Refused.
    ///
    /// # Errors
    /// That this build has no encryption.
    pub fn file(_bytes: Vec<u8>) -> Result<NoKey, StoreError> {
        Err(absent())
    }
}

impl NoKeyFile {
    /// Nobody has a key.
    pub fn new(key: &NoKey) -> Result<(NoKeyFile, Cipher), StoreError> {
        match *key {}
    }

    pub(super) fn decode(_bytes: &[u8]) -> Result<NoKeyFile, StoreError> {
        Err(absent())
    }

    /// Nobody has a key.
    pub fn encode(&self) -> [u8; KEYS_SIZE] {
        match *self {}
    }

    /// Nobody has a key.
    pub fn id(&self) -> [u8; KEY_ID] {
        match *self {}
    }

    /// Nobody has a key.
    pub fn unlock(&self, _: &NoKey) -> Result<Cipher, StoreError> {
        match *self {}
    }

    /// Nobody has a key.
    pub fn slots(&self) -> Vec<KeySlot> {
        match *self {}
    }

    /// Nobody has a key.
    pub fn add(&mut self, _: &NoKey, _: &NoKey) -> Result<usize, StoreError> {
        match *self {}
    }

    /// Nobody has a key.
    pub fn remove(&mut self, _: &NoKey, _: usize) -> Result<(), StoreError> {
        match *self {}
    }
}

fn absent() -> StoreError {
    let text =
        "this build of sluice has no encryption; `make build` in the source of sluicefs makes one that has";
    StoreError::BadKey(text.into())
}
