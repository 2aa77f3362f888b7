//! The file system on the simulated multiprocessor, as one program.

mod conflict_free;
mod descriptors;
mod file_data;
mod leases;
mod lock_notes;
mod open_files;
mod simulated;

/// Each object has lines of its own: the host's heap would decide otherwise which of them share one.
#[global_allocator]
static HEAP: sluice_machine::Heap = sluice_machine::Heap;
