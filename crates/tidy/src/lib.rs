//! `sluice-tidy`: the rules of ARCHITECTURE.md that a program can check, as tests. Nothing else.

#![forbid(unsafe_code)]
