//! Tests whose stores run on a played clock. It is the clock of all stores of the process, so this is a program of its own.

mod troubled;
mod troubles;
