//! `libsluice`: sluicefs for C, and for each language that calls C.
//!
//! `include/sluice.h` is made of these files, and a test compares both. A function takes handles as references, and other pointers
//! as the types of [`arguments`], which turn them into slices. It runs inside [`results::call`], so that no panic reaches C.
//!
//! # What callers owe
//! Each pointer is NULL or valid for the whole call, buffers for as many bytes as the call is told. A handle comes from this library,
//! and is not freed while a call uses it.

mod arguments;
mod dirs;
mod faults;
mod files;
mod fs;
mod locks;
mod names;
mod options;
mod process;
mod results;
mod stat;
mod trees;
mod xattrs;

pub use arguments::{BytesIn, EntriesOut, NumbersIn, RoomOut, TextIn};
pub use dirs::*;
pub use faults::*;
pub use files::*;
pub use fs::*;
pub use locks::*;
pub use names::*;
pub use options::{OptionsIn, SluiceOptions};
pub use process::*;
pub use results::sluice_error_text;
pub use stat::*;
pub use trees::*;
pub use xattrs::*;
