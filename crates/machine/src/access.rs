//! An access to memory, for the parts that count, watch and keep accesses.

use std::panic::Location;

use crate::spec::Kind;

/// One access, as observers see it.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub(crate) cpu: usize,
    pub(crate) kind: Kind,
    pub(crate) site: &'static Location<'static>,
    /// Where in the line it begins.
    pub(crate) offset: u8,
    pub(crate) length: u8,
}
