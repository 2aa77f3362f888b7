//! Archive: trees that come from, or go to, tar archives.
//!
//! # Theory
//! An archive is a sequence of members: a header block of 512 bytes, then the contents, padded to whole blocks.
//! Metadata that does not fit a header stands in records before the header:
//! ```text
//!   'x' header | records "27 mtime=1700000000.123456789\n"... | header | contents | ... | two zero blocks
//! ```
//! Read are the formats v7, ustar, pax and GNU (long names and sparse files of both kinds). Written is pax.
//! The layout of headers comes from the `tar` crate. Records are taken apart here, because values of
//! extended attributes are binary: they may hold line ends, and only the lengths tell where a record stops.
//!
//! # Sources
//! POSIX `pax`, "ustar Interchange Format" and "pax Extended Header"; the GNU tar manual, "Storing Sparse
//! Files"; `star(5)` for `SCHILY.xattr`.

mod extract;
mod pack;
mod read;
mod records;

pub use extract::import_tar;
pub use pack::export_tar;

/// The unit of an archive, in bytes.
const BLOCK: usize = 512;
/// Names of extended attributes stand behind this in records.
const XATTR_KEY: &[u8] = b"SCHILY.xattr.";
