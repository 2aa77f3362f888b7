//! No cipher: stands for `cipher.rs` in a build without encryption.

pub use NoCipher as Cipher;

use super::piece::{ID, KEY_ID, NONCE, SEAL, StorePart, TAG};
use sluice_sync::Arc;
use std::io;

/// The keys of an encrypted store, of which this build opens none.
#[derive(Debug)]
pub enum NoCipher {}

impl NoCipher {
    pub(crate) fn for_tests() -> Option<Arc<NoCipher>> {
        None
    }

    /// Nobody has such a cipher.
    pub fn id(&self) -> [u8; KEY_ID] {
        match *self {}
    }

    pub(crate) fn encrypt(&self, _: StorePart, _: &[u8], _: &mut [u8]) -> io::Result<[u8; SEAL]> {
        match *self {}
    }

    pub(crate) fn decrypt(&self, _: StorePart, _: &[u8], _: &mut [u8], _: &[u8; SEAL]) -> bool {
        match *self {}
    }

    pub(crate) fn encrypt_under(
        &self,
        _: &[u8; NONCE],
        _: StorePart,
        _: &[u8],
        _: &mut [u8],
    ) -> io::Result<[u8; TAG]> {
        match *self {}
    }

    pub(crate) fn decrypt_under(
        &self,
        _: &[u8; NONCE],
        _: StorePart,
        _: &[u8],
        _: &mut [u8],
        _: &[u8; TAG],
    ) -> bool {
        match *self {}
    }

    /// Refused.
    ///
    /// # Errors
    /// That this build has no encryption.
    pub fn draw_id() -> io::Result<[u8; ID]> {
        random()
    }

    /// Nobody has such a cipher.
    ///
    /// # Errors
    /// None.
    pub fn seal_object(&self, _: &[u8; ID], _: u64, about: &[u8], bytes: &mut [u8]) -> io::Result<[u8; TAG]> {
        self.encrypt_under(&[0; NONCE], StorePart::Objects, about, bytes)
    }

    /// Nobody has such a cipher.
    #[must_use]
    pub fn open_object(&self, _: &[u8; ID], _: u64, _: &[u8], _: &mut [u8], _: &[u8; TAG]) -> bool {
        match *self {}
    }
}

pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    Err(io::ErrorKind::Unsupported.into())
}
