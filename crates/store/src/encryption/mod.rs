//! Encryption: stores whose files nobody can read without a key.
//!
//! # Theory
//! A disk carries the [`Cipher`] of its store ([`Disk::cipher`](crate::disk::Disk::cipher)). The code that writes the log, the tree or a segment
//! asks the disk, so a store is opened, checked, repaired and copied in memory by the same calls, on a disk that was
//! [unlocked](crate::Store::unlock). `super` and `keys` alone are not encrypted: `super` has the number of the key, so that a store and
//! its keys belong together.
//!
//! A store whose records another engine keeps has the same two elsewhere. Its records are encrypted by the object ([`Cipher::seal_object`]).

#[cfg_attr(any(feature = "sim", not(feature = "encryption")), path = "no_cipher.rs")]
mod cipher;
mod keyed;
mod piece;
mod slot;
#[cfg_attr(any(feature = "sim", not(feature = "encryption")), path = "no_slots.rs")]
mod slots;

pub use cipher::Cipher;
pub(crate) use cipher::random;
pub(crate) use keyed::{keys_of, make, replace, unlocked};
pub use piece::{ID, TAG};
pub(crate) use piece::{KEY_ID, NONCE, SEAL, StorePart};
pub use slot::{KeyKind, KeySlot};
pub use slots::{KeyFile, StoreKey};
