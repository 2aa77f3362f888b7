//! The machine's rules and ends, as one program.

mod conflicts;
mod determinism;
mod ends;
mod locks;
mod measuring;
mod processes;
mod rules;
mod scales;
mod shapes;
mod vcpus;
