//! Cipher: the bytes of a store as its files have them, which nobody reads or changes unseen without the key.
//!
//! # Theory
//! The cipher is XChaCha20-Poly1305. Each piece of a store (a batch of the log, a page of the tree, a block of a segment) is encrypted by
//! itself, and gets a *tag* of 16 bytes that only a holder of the key can make. A piece with another tag is not decrypted.
//!
//! Two pieces must never be encrypted under the same key and nonce. So a nonce is drawn at random for each write, and stored with the
//! tag. Counters would not do: after a crash the log writes other bytes under the same number, a block is written again once it
//! is free, and two copies of a store's directory both go on from the same counts. A nonce has 24 bytes; an extent draws 16 of
//! them, and its blocks count in the other 8. Among 2^48 extents two have the same 16 bytes with a probability of 2^-33.
//!
//! The log, the tree, the segments and the records in objects have a key each, derived from the *master key* by HKDF-SHA256. So a page of the tree
//! cannot stand for a block of a segment. The master key itself is in the file `keys` (`slots.rs`).
//!
//! # Sources
//! Bernstein, "Extending the Salsa20 nonce" (2011); RFC 8439; draft-irtf-cfrg-xchacha-03; RFC 5869 (HKDF).

use super::piece::{ID, KEY_ID, NONCE, SEAL, StorePart, TAG};
use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use hkdf::Hkdf;
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;
use sluice_sync::Arc;
use std::{fmt, io};
use zeroize::Zeroizing;

/// Bytes of a key.
pub(super) const KEY: usize = 32;

/// The keys of an encrypted store.
pub struct Cipher {
    log: XChaCha20Poly1305,
    tree: XChaCha20Poly1305,
    segments: XChaCha20Poly1305,
    objects: XChaCha20Poly1305,
    id: [u8; KEY_ID],
}

impl Cipher {
    /// The cipher of a store with this master key.
    pub(crate) fn of(master: &[u8; KEY]) -> Cipher {
        let part = |name: &str| aead(&derived(None, master, name));
        let mut id = [0; KEY_ID];
        id.copy_from_slice(&derived(None, master, "sluicefs key id")[..KEY_ID]);
        Cipher {
            log: part("sluicefs log"),
            tree: part("sluicefs tree"),
            segments: part("sluicefs segments"),
            objects: part("sluicefs objects"),
            id,
        }
    }

    /// The cipher of stores on disks that are for tests alone.
    pub(crate) fn for_tests() -> Option<Arc<Cipher>> {
        Some(Arc::new(Cipher::of(&[7; KEY])))
    }

    /// The number of the key, which tells nothing else of it.
    pub fn id(&self) -> [u8; KEY_ID] {
        self.id
    }

    /// Encrypts `bytes` in place under a nonce of their own. Decryption takes the same `about`, or fails.
    ///
    /// # Errors
    /// The system's, without random numbers.
    pub(crate) fn encrypt(&self, part: StorePart, about: &[u8], bytes: &mut [u8]) -> io::Result<[u8; SEAL]> {
        let nonce: [u8; NONCE] = random()?;
        let mut seal = [0; SEAL];
        seal[..NONCE].copy_from_slice(&nonce);
        seal[NONCE..].copy_from_slice(&self.encrypt_under(&nonce, part, about, bytes)?);
        Ok(seal)
    }

    /// Decrypts `bytes` in place: false if they, or `about`, are not what was encrypted.
    #[must_use]
    pub(crate) fn decrypt(&self, part: StorePart, about: &[u8], bytes: &mut [u8], seal: &[u8; SEAL]) -> bool {
        let (nonce, tag) = (seal.first_chunk(), seal.last_chunk());
        nonce.zip(tag).is_some_and(|(nonce, tag)| self.decrypt_under(nonce, part, about, bytes, tag))
    }

    /// Encrypts `bytes` in place under `nonce`, under which nothing else is encrypted: their tag.
    ///
    /// # Errors
    /// `FileTooLarge`, beyond 256 GiB.
    pub(crate) fn encrypt_under(
        &self,
        nonce: &[u8; NONCE],
        part: StorePart,
        about: &[u8],
        bytes: &mut [u8],
    ) -> io::Result<[u8; TAG]> {
        sealed(self.of_part(part), nonce, about, bytes)
    }

    /// Decrypts `bytes` in place: false if they, or `about`, are not what was encrypted.
    #[must_use]
    pub(crate) fn decrypt_under(
        &self,
        nonce: &[u8; NONCE],
        part: StorePart,
        about: &[u8],
        bytes: &mut [u8],
        tag: &[u8; TAG],
    ) -> bool {
        opened(self.of_part(part), nonce, about, bytes, tag)
    }

    /// A number for an object that is written, which no other has.
    ///
    /// # Errors
    /// The system's, without random numbers.
    pub fn draw_id() -> io::Result<[u8; ID]> {
        random()
    }

    /// Encrypts in place the piece `number` of the object that has drawn `id`: its tag.
    ///
    /// # Errors
    /// `FileTooLarge`, beyond 256 GiB.
    pub fn seal_object(
        &self,
        id: &[u8; ID],
        number: u64,
        about: &[u8],
        bytes: &mut [u8],
    ) -> io::Result<[u8; TAG]> {
        self.encrypt_under(&nonce_of(id, number), StorePart::Objects, about, bytes)
    }

    /// Decrypts in place the piece `number` of the object `id`: false if it, or `about`, is not what was encrypted.
    #[must_use]
    pub fn open_object(
        &self,
        id: &[u8; ID],
        number: u64,
        about: &[u8],
        bytes: &mut [u8],
        tag: &[u8; TAG],
    ) -> bool {
        self.decrypt_under(&nonce_of(id, number), StorePart::Objects, about, bytes, tag)
    }

    fn of_part(&self, part: StorePart) -> &XChaCha20Poly1305 {
        match part {
            StorePart::Log => &self.log,
            StorePart::Tree => &self.tree,
            StorePart::Segments => &self.segments,
            StorePart::Objects => &self.objects,
        }
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cipher").finish_non_exhaustive()
    }
}

fn nonce_of(id: &[u8; ID], number: u64) -> [u8; NONCE] {
    let mut nonce = [0; NONCE];
    nonce[..ID].copy_from_slice(id);
    nonce[ID..].copy_from_slice(&number.to_le_bytes());
    nonce
}

/// The cipher under one `key`.
pub(super) fn aead(key: &[u8; KEY]) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(key.into())
}

/// Encrypts `bytes` in place: their tag.
///
/// # Errors
/// `FileTooLarge`, beyond 256 GiB.
pub(super) fn sealed(
    aead: &XChaCha20Poly1305,
    nonce: &[u8; NONCE],
    about: &[u8],
    bytes: &mut [u8],
) -> io::Result<[u8; TAG]> {
    let tag = aead.encrypt_inout_detached(nonce.into(), about, bytes.into());
    tag.map(Into::into).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

/// Decrypts `bytes` in place: false if they are not what was encrypted.
pub(super) fn opened(
    aead: &XChaCha20Poly1305,
    nonce: &[u8; NONCE],
    about: &[u8],
    bytes: &mut [u8],
    tag: &[u8; TAG],
) -> bool {
    aead.decrypt_inout_detached(nonce.into(), about, bytes.into(), tag.into()).is_ok()
}

/// The key for `purpose` that derives from `secret`.
pub(super) fn derived(salt: Option<&[u8]>, secret: &[u8], purpose: &str) -> Zeroizing<[u8; KEY]> {
    let mut key = Zeroizing::new([0; KEY]);
    let expanded = Hkdf::<Sha256>::new(salt, secret).expand(purpose.as_bytes(), &mut *key);
    expanded.expect("HKDF gives up to 8160 bytes");
    key
}

/// Random bytes of the system.
///
/// # Errors
/// The system's.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_a_key_and_each_write_a_nonce_of_its_own() {
        let cipher = Cipher::of(&[7; KEY]);
        let mut seen = Vec::new();
        for part in [StorePart::Log, StorePart::Tree, StorePart::Segments, StorePart::Objects, StorePart::Log]
        {
            let mut bytes = *b"some bytes that are written twice";
            let seal = cipher.encrypt(part, b"about", &mut bytes).expect("random bytes");
            assert!(!seen.contains(&bytes) && &bytes != b"some bytes that are written twice");
            seen.push(bytes);
            for other in [StorePart::Log, StorePart::Tree, StorePart::Segments, StorePart::Objects]
                .into_iter()
                .filter(|other| *other != part)
            {
                assert!(!cipher.decrypt(other, b"about", &mut bytes.clone(), &seal));
            }
            assert!(!cipher.decrypt(part, b"abouT", &mut bytes.clone(), &seal));
            assert!(!Cipher::of(&[8; KEY]).decrypt(part, b"about", &mut bytes.clone(), &seal));
            assert!(cipher.decrypt(part, b"about", &mut bytes, &seal));
            assert_eq!(&bytes, b"some bytes that are written twice");
        }
        assert_ne!(cipher.id(), Cipher::of(&[8; KEY]).id());
    }

    /// draft-irtf-cfrg-xchacha-03, A.3.1, and RFC 5869, A.3: what is written here is read by others.
    #[test]
    fn the_ciphers_are_those_of_their_sources() {
        let key: [u8; KEY] = std::array::from_fn(|at| 0x80 + at as u8);
        let nonce: [u8; NONCE] = std::array::from_fn(|at| 0x40 + at as u8);
        let about = [0x50, 0x51, 0x52, 0x53, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7];
        let mut bytes = *b"Ladies and Gentlemen of the class of '99: If I could offer you only one \
                           tip for the future, sunscreen would be it.";
        let tag = sealed(&aead(&key), &nonce, &about, &mut bytes).expect("short");
        assert_eq!(bytes[..8], [0xbd, 0x6d, 0x17, 0x9d, 0x3e, 0x83, 0xd4, 0x3b]);
        assert_eq!(tag[..8], [0xc0, 0x87, 0x59, 0x24, 0xc1, 0xc7, 0x98, 0x79]);
        let expanded = derived(None, &[0x0b; 22], "");
        assert_eq!(expanded[..8], [0x8d, 0xa4, 0xe7, 0x75, 0xa5, 0x63, 0xc1, 0x8f]);
    }
}
