//! The source's own rules, as one program.

mod circles;
mod links;
mod messages;
mod public_api;
mod tidy;
mod words;
