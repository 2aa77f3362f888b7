//! Slots: the file `keys` of an encrypted store: its master key, encrypted once for each key that opens the store.
//!
//! # Theory
//! A store is encrypted under a random master key that never changes. Each *slot* has the master key once more, encrypted under a key that
//! derives from a passphrase (Argon2id) or from the bytes of a key file (HKDF-SHA256). So a key comes and goes without a
//! change of anything else:
//! ```text
//!   byte 0          8         12    16       32        64       192
//!        | sluickey | version | crc | key id | zeros   | slot 0 | slot 1 | ... slot 7
//!
//!   slot 0      4        8        12      16     48      72    88
//!        | kind | memory | passes | lanes | salt | nonce | tag | master key, encrypted | 120: zeros to 128
//! ```
//! Numbers have 4 bytes and are little endian; `crc` is CRC32C of the file, itself taken as zero. Kind 0 is an empty slot, 1 is a passphrase,
//! 2 a key file, whose slot has zeros for the costs of Argon2. `key id` is that of `super`. The bytes of a slot before
//! its nonce, and the key id, are authenticated with the master key.

use super::cipher::{self, Cipher, KEY, aead, derived, random};
use super::piece::{KEY_ID, NONCE, TAG};
use super::slot::{KeyKind, KeySlot};
use crate::StoreError;
use crate::format::KEYS_SIZE;
use argon2::{Algorithm, Argon2, Params, Version};
use std::fmt;
use zeroize::Zeroizing;

/// The most keys that open a store.
const SLOTS: usize = 8;
const SLOT: usize = 128;
const HEAD: usize = KEYS_SIZE - SLOTS * SLOT;
const MAGIC: &[u8; 8] = b"sluickey";
const VERSION: u32 = 1;
/// The bytes of a slot before its nonce.
const COSTS: usize = 48;
const SALT: usize = 32;
/// The bytes of a slot that are used.
const USED: usize = COSTS + NONCE + TAG + KEY;
/// The bytes of a key file, at least: as many as a key has.
const FILE_MIN: usize = KEY;
/// The costs of Argon2id for a new slot, beyond those that RFC 9106 recommends where memory is scarce: KiB, passes, lanes.
const COST: [u32; 3] = [64 << 10, 4, 1];
/// No costs of a slot are higher: a forged file must not take all memory.
const COST_MAX: [u32; 3] = [1 << 20, 100, 16];

/// A key that opens an encrypted store.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreKey {
    kind: KeyKind,
    secret: Zeroizing<Vec<u8>>,
}

impl StoreKey {
    /// The key of a person that knows these words.
    ///
    /// # Errors
    /// [`StoreError::BadKey`] without words.
    pub fn passphrase(words: Vec<u8>) -> Result<StoreKey, StoreError> {
        let secret = Zeroizing::new(words);
        if secret.is_empty() {
            return Err(StoreError::BadKey("the passphrase is empty".into()));
        }
        Ok(StoreKey { kind: KeyKind::Passphrase, secret })
    }

    /// The key in a file with these `bytes`, which must be random.
    ///
    /// # Errors
    /// [`StoreError::BadKey`] for a file that is too short.
    pub fn file(bytes: Vec<u8>) -> Result<StoreKey, StoreError> {
        let secret = Zeroizing::new(bytes);
        if secret.len() < FILE_MIN {
            let text = format!("the key file has {} bytes, and needs {FILE_MIN} random ones", secret.len());
            return Err(StoreError::BadKey(text));
        }
        Ok(StoreKey { kind: KeyKind::File, secret })
    }

    /// The key under which a slot with these costs and this salt has the master key.
    fn stretched(&self, costs: &[u8; COSTS]) -> Result<Zeroizing<[u8; KEY]>, StoreError> {
        let salt = &costs[COSTS - SALT..];
        if self.kind == KeyKind::File {
            return Ok(derived(Some(salt), &self.secret, "sluicefs key file"));
        }
        let [memory, passes, lanes] = [4, 8, 12].map(|at| number(costs, at));
        let mut key = Zeroizing::new([0; KEY]);
        let params = Params::new(memory, passes, lanes, Some(KEY));
        let stretched = params.and_then(|params| {
            let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
            argon.hash_password_into(&self.secret, salt, &mut *key)
        });
        stretched.map_err(|_| damaged("a slot has costs that cannot be"))?;
        Ok(key)
    }
}

impl fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreKey").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// The content of the file `keys`, or of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFile {
    id: [u8; KEY_ID],
    slots: [Option<[u8; USED]>; SLOTS],
}

impl KeyFile {
    /// The file of a new store, with a master key that `key` alone opens.
    ///
    /// # Errors
    /// The system's, without random numbers.
    pub fn new(key: &StoreKey) -> Result<(KeyFile, Cipher), StoreError> {
        let master = Zeroizing::new(random().map_err(StoreError::io("make a key"))?);
        let cipher = Cipher::of(&master);
        let mut file = KeyFile { id: cipher.id(), slots: [None; SLOTS] };
        file.slots[0] = Some(file.slot_of(key, &master)?);
        Ok((file, cipher))
    }

    /// The number of the master key.
    pub fn id(&self) -> [u8; KEY_ID] {
        self.id
    }

    /// A slot that has `master` under `key`.
    fn slot_of(&self, key: &StoreKey, master: &[u8; KEY]) -> Result<[u8; USED], StoreError> {
        let made = StoreError::io("make a key");
        let (salt, nonce) = match random::<SALT>().and_then(|salt| Ok((salt, random::<NONCE>()?))) {
            Ok(drawn) => drawn,
            Err(error) => return Err(made(error)),
        };
        let mut slot = [0; USED];
        slot[0] = code(key.kind);
        if key.kind == KeyKind::Passphrase {
            for (at, cost) in [4, 8, 12].into_iter().zip(COST) {
                slot[at..at + 4].copy_from_slice(&cost.to_le_bytes());
            }
        }
        slot[COSTS - SALT..COSTS].copy_from_slice(&salt);
        let costs = costs_of(&slot);
        let mut wrapped = Zeroizing::new(*master);
        let under = aead(&*key.stretched(&costs)?);
        let tag = cipher::sealed(&under, &nonce, &self.about(&costs), &mut *wrapped).map_err(made)?;
        slot[COSTS..].copy_from_slice(&[&nonce[..], &tag, &*wrapped].concat());
        Ok(slot)
    }

    /// The bytes that are authenticated with the master key of a slot with these costs.
    fn about(&self, costs: &[u8; COSTS]) -> [u8; COSTS + KEY_ID] {
        let mut about = [0; COSTS + KEY_ID];
        about[..COSTS].copy_from_slice(costs);
        about[COSTS..].copy_from_slice(&self.id);
        about
    }

    /// The slots that are used.
    pub fn slots(&self) -> Vec<KeySlot> {
        let used = (0..).zip(&self.slots).filter_map(|(number, slot)| Some((number, slot.as_ref()?)));
        used.filter_map(|(number, slot)| Some(KeySlot { number, kind: kind_of(slot[0])? })).collect()
    }

    /// The slot that `key` opens, and the master key.
    fn opened_by(&self, key: &StoreKey) -> Result<(usize, Zeroizing<[u8; KEY]>), StoreError> {
        for KeySlot { number, .. } in self.slots().into_iter().filter(|slot| slot.kind == key.kind) {
            let Some(slot) = &self.slots[number] else { continue };
            let costs = costs_of(slot);
            let (sealed, wrapped) = slot[COSTS..].split_at(NONCE + TAG);
            let mut master = Zeroizing::new([0; KEY]);
            master.copy_from_slice(wrapped);
            let under = aead(&*key.stretched(&costs)?);
            let is_right = sealed.first_chunk().zip(sealed.last_chunk()).is_some_and(|(nonce, tag)| {
                cipher::opened(&under, nonce, &self.about(&costs), &mut *master, tag)
            });
            if is_right {
                return Ok((number, master));
            }
        }
        Err(StoreError::WrongKey)
    }

    /// The cipher of the store, with `key`.
    ///
    /// # Errors
    /// [`StoreError::WrongKey`].
    pub fn unlock(&self, key: &StoreKey) -> Result<Cipher, StoreError> {
        self.opened_by(key).map(|(_, master)| Cipher::of(&master))
    }

    /// Lets `new` open the store, too: its slot.
    ///
    /// # Errors
    /// [`StoreError::WrongKey`] if `key` opens no slot; [`StoreError::BadKey`] when all slots are used.
    pub fn add(&mut self, key: &StoreKey, new: &StoreKey) -> Result<usize, StoreError> {
        let (_, master) = self.opened_by(key)?;
        let free = self.slots.iter().position(Option::is_none);
        let full = || StoreError::BadKey(format!("all {SLOTS} slots are used: remove a key first"));
        let number = free.ok_or_else(full)?;
        self.slots[number] = Some(self.slot_of(new, &master)?);
        Ok(number)
    }

    /// Empties slot `number`.
    ///
    /// # Errors
    /// [`StoreError::BadKey`] if `key` opens that slot, or none is there: whoever removes a key can open the store afterwards;
    /// [`StoreError::WrongKey`].
    pub fn remove(&mut self, key: &StoreKey, number: usize) -> Result<(), StoreError> {
        let (own, _) = self.opened_by(key)?;
        if own == number {
            return Err(StoreError::BadKey(format!(
                "slot {number} is that of the given key: give a key that stays"
            )));
        }
        let slot = self.slots.get_mut(number).and_then(Option::take);
        slot.map(drop).ok_or_else(|| StoreError::BadKey(format!("slot {number} is empty")))
    }

    /// The file's bytes.
    pub fn encode(&self) -> [u8; KEYS_SIZE] {
        let mut bytes = [0; KEYS_SIZE];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..16 + KEY_ID].copy_from_slice(&self.id);
        for (place, slot) in bytes[HEAD..].chunks_exact_mut(SLOT).zip(&self.slots) {
            place[..USED].copy_from_slice(slot.as_ref().unwrap_or(&[0; USED]));
        }
        let crc = crc32c::crc32c(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes `bytes`.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::NewerFormat`].
    pub(super) fn decode(bytes: &[u8]) -> Result<KeyFile, StoreError> {
        let bytes: &[u8; KEYS_SIZE] = bytes.try_into().map_err(|_| damaged("it has another length"))?;
        let mut zeroed = *bytes;
        zeroed[12..16].fill(0);
        if &bytes[..8] != MAGIC || crc32c::crc32c(&zeroed) != number(bytes, 12) || number(bytes, 8) != VERSION
        {
            return Err(damaged("its checksum is wrong"));
        }
        let mut file = KeyFile { id: [0; KEY_ID], slots: [None; SLOTS] };
        file.id.copy_from_slice(&bytes[16..16 + KEY_ID]);
        for (place, slot) in bytes[HEAD..].chunks_exact(SLOT).zip(&mut file.slots) {
            let is_cheap = (0..3).all(|at| number(place, 4 + 4 * at) <= COST_MAX[at]);
            match place.first_chunk().filter(|_| is_cheap) {
                Some(used) if kind_of(place[0]).is_some() => *slot = Some(*used),
                Some(_) if place.iter().all(|byte| *byte == 0) => {}
                _ => return Err(damaged("a slot has costs that cannot be")),
            }
        }
        Ok(file)
    }
}

/// The number of a kind in a slot.
fn code(kind: KeyKind) -> u8 {
    match kind {
        KeyKind::Passphrase => 1,
        KeyKind::File => 2,
    }
}

/// The kind with this number.
fn kind_of(number: u8) -> Option<KeyKind> {
    [KeyKind::Passphrase, KeyKind::File].into_iter().find(|kind| code(*kind) == number)
}

fn costs_of(slot: &[u8; USED]) -> [u8; COSTS] {
    let mut costs = [0; COSTS];
    costs.copy_from_slice(&slot[..COSTS]);
    costs
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn damaged(how: &str) -> StoreError {
    StoreError::Damaged(format!("`keys`: {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(byte: u8) -> StoreKey {
        StoreKey::file(vec![byte; 40]).expect("long enough")
    }

    #[test]
    fn each_key_of_a_slot_opens_the_store_and_no_other_does() {
        let words = StoreKey::passphrase(b"correct horse".to_vec()).expect("words");
        let (mut keys, cipher) = KeyFile::new(&file(1)).expect("random bytes");
        assert_eq!(keys.add(&file(1), &words).expect("room"), 1);
        let mut keys = KeyFile::decode(&keys.encode()).expect("as written");
        for key in [&file(1), &words] {
            assert_eq!(keys.unlock(key).expect("it is in a slot").id(), cipher.id());
        }
        let others = [file(2), StoreKey::passphrase(b"correct horsf".to_vec()).expect("words")];
        // The bytes of a key file are no passphrase.
        let same = StoreKey::passphrase(vec![1; 40]).expect("words");
        for key in others.iter().chain([&same]) {
            assert!(matches!(keys.unlock(key), Err(StoreError::WrongKey)), "{key:?}");
            assert!(matches!(keys.add(key, &file(3)), Err(StoreError::WrongKey)));
            assert!(matches!(keys.remove(key, 1), Err(StoreError::WrongKey)));
        }
        let told = |kept: Result<(), StoreError>| kept.expect_err("refused").to_string();
        assert!(told(keys.remove(&words, 1)).contains("slot 1 is that of the given key"));
        assert!(told(keys.remove(&words, 7)).contains("slot 7 is empty"));
        assert!(told(keys.remove(&words, 99)).contains("slot 99 is empty"));
        keys.remove(&words, 0).expect("another");
        assert_eq!(keys.slots(), [KeySlot { number: 1, kind: KeyKind::Passphrase }]);
        assert!(matches!(keys.unlock(&file(1)), Err(StoreError::WrongKey)));
        for byte in 10..17 {
            keys.add(&words, &file(byte)).expect("room");
        }
        let full = keys.add(&words, &file(30)).expect_err("eight").to_string();
        assert!(full.contains("all 8 slots are used: remove a key first"), "{full}");
    }

    #[test]
    fn any_flipped_bit_of_the_file_is_found_and_so_is_a_slot_of_another() {
        let (keys, _) = KeyFile::new(&file(1)).expect("random bytes");
        let bytes = keys.encode();
        for bit in 0..KEYS_SIZE * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = KeyFile::decode(&flipped).expect_err("it is found").to_string();
            assert!(error.contains("`keys`: its checksum is wrong"), "bit {bit}: {error}");
        }
        let short = KeyFile::decode(&bytes[1..]).expect_err("short").to_string();
        assert!(short.contains("it has another length"), "{short}");
        // With a right checksum, a flipped bit of a slot opens nothing.
        let slot = keys.slots[0].expect("used");
        for at in 0..USED {
            let mut forged = keys.clone();
            let mut changed = slot;
            changed[at] ^= 0x40;
            forged.slots[0] = Some(changed);
            assert!(matches!(forged.unlock(&file(1)), Err(StoreError::WrongKey)), "byte {at}");
        }
        let (other, _) = KeyFile::new(&file(1)).expect("random bytes");
        let forged = KeyFile { slots: other.slots, ..keys };
        assert!(matches!(forged.unlock(&file(1)), Err(StoreError::WrongKey)));
    }

    #[test]
    fn a_forged_file_asks_for_no_more_memory_than_it_may() {
        let (mut keys, _) = KeyFile::new(&file(1)).expect("random bytes");
        let mut slot = keys.slots[0].expect("used");
        slot[0] = code(KeyKind::Passphrase);
        for costs in [[COST_MAX[0] + 1, 4, 1], [8, COST_MAX[1] + 1, 1], [8, 1, COST_MAX[2] + 1]] {
            for (at, cost) in [4, 8, 12].into_iter().zip(costs) {
                slot[at..at + 4].copy_from_slice(&cost.to_le_bytes());
            }
            keys.slots[0] = Some(slot);
            let error = KeyFile::decode(&keys.encode()).expect_err("too much").to_string();
            assert!(error.contains("a slot has costs that cannot be"), "{error}");
        }
    }

    #[test]
    fn a_key_without_a_secret_is_refused_and_none_is_shown() {
        let told = |key: Result<StoreKey, StoreError>| key.expect_err("refused").to_string();
        assert!(told(StoreKey::passphrase(Vec::new())).contains("the passphrase is empty"));
        assert!(told(StoreKey::file(vec![1; 31])).contains("the key file has 31 bytes, and needs 32"));
        assert_eq!(format!("{:?}", file(3)), "StoreKey { kind: File, .. }");
    }
}
