//! Tables: values by key, by name and by number, read without a lock.

#[allow(unsafe_code)]
pub(crate) mod chains;
mod fibonacci;
#[allow(unsafe_code)]
pub mod hash_table;
#[allow(unsafe_code)]
pub mod name_table;
#[allow(unsafe_code)]
pub mod radix;

pub use fibonacci::fibonacci;
pub use hash_table::HashTable;
pub use name_table::NameTable;
pub use radix::RadixTree;
