//! The differential tests and what stands beside them, as one program.

mod differential;
mod mounted;
mod peers;
mod planted;
mod stress;
