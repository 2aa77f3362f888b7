//! Stores in an object store as others use them, as one program.

mod claims;
mod counts;
mod data;
mod encryption;
mod faults;
mod quotas;
mod repair;
mod store;
