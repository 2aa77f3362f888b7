//! `sluice-trees`: trees of files into and out of a file system of [`sluice_vfs`].
//!
//! [`import`] and [`export`] copy directories of the host, [`import_tar`] and [`export_tar`] read and write tar archives. Both
//! tell how much they moved ([`Transfer`]). [`send`] and [`receive`] carry snapshots from one file system to another, and [`changes()`] says
//! how two trees differ. All of it uses the public interface of the file system alone.
//!
//! ```
//! use sluice_vfs::Fs;
//!
//! let fs = Fs::new();
//! fs.create_dir("/src")?;
//! fs.write("/src/main.c", "int main() {}\n")?;
//! let mut archive = Vec::new();
//! sluice_trees::export_tar(&fs, "/src", &mut archive)?;
//! let copied = sluice_trees::import_tar(&fs, archive.as_slice(), "/copy")?;
//! assert_eq!(copied.files, 1);
//! assert_eq!(fs.read("/copy/main.c")?, fs.read("/src/main.c")?);
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]

mod archive;
mod changes;
mod host;
mod moves;
mod stream;

pub use archive::{export_tar, import_tar};
pub use changes::{ChangeKind, NameChange, changes};
pub use host::{Transfer, export, import};
pub use stream::{is_resume_token, receive, send};
