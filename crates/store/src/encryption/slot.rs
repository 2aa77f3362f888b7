//! KeySlot: a slot of an encrypted store that is used, and the kind of its key.

/// The kind of a key that opens a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// Words that a person knows.
    Passphrase,
    /// A file of random bytes.
    File,
}

/// A slot that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySlot {
    /// Its number.
    pub number: usize,
    /// The kind of its key.
    pub kind: KeyKind,
}
