//! Lock class: the name of the locks that play one part, under which they are watched together.

use super::services::ClassId;

/// A class of locks, a static beside the type whose lock it names:
/// `static NAMES: LockClass = LockClass::new("vfs.directory.names")`. Two of one name are one class.
#[derive(Debug)]
pub struct LockClass {
    /// *immutable*
    name: &'static str,
    /// Its number, given at first use.
    #[allow(dead_code)] // compiled out, nobody asks for it
    pub(super) id: ClassId,
}

impl LockClass {
    /// The class called `name`: crate, object and lock, joined by dots.
    pub const fn new(name: &'static str) -> Self {
        LockClass { name, id: ClassId::new() }
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}
