//! NamedStore: a store with two names: the address by which it is opened, and that of a person.

use std::path::Path;

/// A store, as this process reaches it and as a person has named it.
#[derive(Clone, Copy)]
pub(crate) struct NamedStore<'s> {
    pub(crate) address: &'s Path,
    pub(crate) name: &'s Path,
}

impl<'s> From<&'s Path> for NamedStore<'s> {
    fn from(store: &'s Path) -> NamedStore<'s> {
        NamedStore { address: store, name: store }
    }
}
