//! The lock manager, on a played network and on a real one, as one program.

mod cluster;
mod deadlock;
mod locks;
mod model;
mod processes;
mod simulation;
mod support;
