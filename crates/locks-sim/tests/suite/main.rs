//! Locks on the simulated multiprocessor, as one program.

mod read_modify_writes;
mod schedules;

#[global_allocator]
static HEAP: sluice_machine::Heap = sluice_machine::Heap;
