//! `sluice-machine`: a simulated multiprocessor on which real lock code runs, in deterministic virtual time.
//!
//! Write a lock against [`atomic`] instead of `std::sync::atomic`, run it on 2 to 256 CPUs of a named
//! machine, and see its throughput, its fairness, and which line it stands still for:
//!
//! ```
//! use sluice_machine::atomic::{AtomicU32, Ordering};
//! use sluice_machine::{Machine, label, spin_until};
//!
//! let (next, serving) = (Box::new(AtomicU32::new(0)), Box::new(AtomicU32::new(0)));
//! label(&*next, "Ticket", "next");
//! label(&*serving, "Ticket", "serving");
//! let report = Machine::named("icelake-2s").seed(7).run(128, |cpu| {
//!     for _ in 0..10 {
//!         let mine = next.fetch_add(1, Ordering::Relaxed);
//!         spin_until(&*serving, |now| now == mine);
//!         cpu.work(100); // the critical section, in cycles
//!         serving.store(mine + 1, Ordering::Release);
//!         cpu.count_op();
//!     }
//! });
//! assert_eq!(report.ops(), 1280);
//! println!("{report}");
//! ```
//!
//! # The API at a glance
//! ```text
//! Machine     named("opteron-32") / find(name) / custom(Spec)
//!               uma-2 skylake-4 vm-16 opteron-32 power7-64 icelake-2s westmere-160 milan-2s
//!               .seed(n) .vcpus(VcpuOptions) .bare_metal() .jitter(bool)
//!               .trace(entries) .cycles_max(n) .stack_bytes(n)
//!               .cpus_max() .spec() .prepare(cpus, setup)
//! Heap        the allocator under which objects of a run never share a line
//!               .run(cpus, |cpu: Cpu| ..) -> Report      .try_run(..) -> Result<Report, RunError>
//!               .conflicts(|| a(), || b()) -> Result<Conflicts, RunError>
//! Scales      to(cpus).at_least(share).on(machine).inside(cycles).outside(cycles)
//!               .mutex::<RawMutex>() .readers::<RawRwLock>() .operation(name, make) -> Result<Scaling, DoesNotScale>
//! Cpu         id() node() cpus() now() work(cycles) count_op() count_ops(n) random(bound) watch(|| ..)
//! atomic      AtomicBool, AtomicU8 .. AtomicIsize, AtomicPtr, Ordering, fence, compiler_fence, Watchable
//! cell        Tracked<T>, touch_read(ptr, bytes), touch_write(ptr, bytes), OwnLine<T>
//! spinning    spin_until(&word, |v| ..) -> v     spin_until_for(&word, cycles, |v| ..) -> Option<v>
//!             spin_loop() pause(n)
//! sleeping    park(&AtomicU32, expected, timeout in cycles) -> Parked::{Woken, Changed, TimedOut}
//!             unpark(&AtomicU32, n) -> how many      halt() kick(cpu)
//! anywhere    on_machine() run_id() cpu() cpus() node() node_of(cpu) is_running(cpu)
//!             now() cycles_per_us() work(cycles) random() membarrier()
//!             label(&object, "Type", "field") label!(object, Type { field, .. }) clear_labels()
//!             name_objects(on) name_object(ptr, bytes, "path::Type", "field")
//! Report      cycles cpus[] hottest[] places[] conflicts trace[]
//!             accesses() misses() ops() ops_per_s() fairness() idle() spinning() preempted()
//! ```
//!
//! # Theory
//! Each simulated CPU is a coroutine with a clock in cycles; all run on one host thread. Each access to a
//! tracked type is charged to a model of coherent caches, then done for real. The CPU with the least clock
//! goes on; chance comes from the seed. So a run is an ordinary, debuggable execution of the program's own
//! code, sequentially consistent, and **the same seed gives the same cycle counts** on any host.
//!
//! - *Lines.* MESI per line of 64 bytes. A miss costs what the machine's table says for the kind of access,
//!   the state in which the line is found and the distance to the CPU that has it. A line serves one miss at a
//!   time, first come, first served: contention is queueing. A CPU that receives a line keeps it for a moment,
//!   however many wait: what it does next still hits.
//! - *Spinning* on an unchanged line costs the host nothing: the CPU sleeps until the line is written, then
//!   pays one refetch. Its time is accounted as spinning.
//! - *Parking* and waking cost what the system calls cost; parked time is idle time. Halting and kicking are
//!   their paravirtual counterparts, and a layer of virtual CPUs can take a CPU away at any access.
//! - *Layout* is real: tracked types are as large as those of `std`, so false sharing shows.
//!
//! # Clients must
//! - Share only tracked objects, or objects that tracked objects protect. CPUs switch only inside the functions of this
//!   crate, so plain data cannot race, but its movement is charged only where [`cell::touch_read`] and
//!   [`cell::touch_write`] say so.
//! - Not block the host thread (a `std` mutex held by a suspended CPU would hang the run).
//! - Keep what the CPUs share in statics, boxes of their own lines ([`cell::OwnLine`]) or page-aligned
//!   memory, or take [`Heap`] for the allocator, if the counts are to be the same in every process. Where the allocator or the main thread's
//!   stack puts a smaller object within its line can differ between processes; that changes what shares a
//!   line, as on a real machine.
//!
//! # Off the machine
//! Before and after a run, and on other threads, the tracked types are plain memory, [`cpu()`] is 0, time
//! stands still, [`park()`] returns at once.
//!
//! # What is not modelled
//! Weak memory orderings (that is a model checker's work), store buffers and out-of-order execution, cache
//! capacity and associativity, bandwidth, hyper-threads' sharing of a core, prefetching, the heap allocator's
//! own locks, the kernel's own locks. Every figure is *simulated*: compare it with simulated figures of the
//! same machine, never with a measured one.
//!
//! # Cost
//! On one core of a 2.1 GHz server some 50 to 100 million hits and some 10 million contended misses a second:
//! `cargo run --release -p sluice-machine --example speed`.
//!
//! # Sources
//! PROTEUS (Brewer and others, MIT 1991) ran programs on clocked caches in this way; conservative look-ahead
//! is Chandy and Misra's (1979). The machines' figures have theirs in [`machines`].

#![deny(unsafe_code)]

mod access;
mod conflict;
mod cpu;
mod cpu_set;
mod engine;
#[allow(unsafe_code)]
mod fiber;
#[allow(unsafe_code)]
mod heap;
mod label;
mod machine;
mod park;
mod random;
mod report;
mod spec;
mod spin;
mod stuck;
mod trace;
mod watch;

pub mod atomic;
pub mod cell;
pub mod machines;
pub mod scales;

pub use conflict::{Conflict, Conflicts, Toucher};
pub use cpu::{
    Cpu, cpu, cpus, cycles_per_us, is_running, membarrier, node, node_of, now, on_machine, random, run_id,
    work,
};
pub use cpu_set::{CPUS_MAX, CpuSet};
pub use heap::Heap;
pub use label::{Name, clear_labels, label, name_object, name_objects};
pub use machine::{Machine, UnknownMachine};
pub use park::{Parked, halt, kick, park, unpark};
pub use report::{CpuReport, HotLine, HotPlace, HotSite, Report};
pub use scales::Scales;
pub use spec::{Costs, Kind, Spec, Transfer, VcpuOptions};
pub use spin::{pause, spin_loop, spin_until, spin_until_for};
pub use stuck::{RunError, Stuck, Wait, WaitLine, Waiting};
pub use trace::TraceEntry;
