//! Mounts as programs meet them, as one program.

mod coherence;
mod files;
mod flags;
mod harness;
mod holes;
mod lifecycle;
mod lock_owners;
mod locks;
mod messages;
mod names;
mod past_the_cache;
mod privileges;
