//! Recent machines of two sockets: `icelake-2s`, `milan-2s`.
//!
//! "Derived" rows: the price of a compare-and-swap ping-pong gives read-modify-write of a modified line; the
//! other rows follow in the ratios of the Xeon column of the SOSP 2013 tables (load of modified 0.91, of
//! shared 0.37 within a socket and 0.69 across, and so on) \[A\]. Memory: 85 to 100 ns local, 145 to 200 ns
//! remote \[R\]. Operating-system costs as in `small`.

use crate::spec::{Costs, Spec, Transfer};

/// Two sockets of 32 cores with two threads.
pub(super) static ICELAKE_2S: Spec = Spec {
    name: "icelake-2s",
    title: "2 sockets of 32 cores with 2 threads, Intel Ice Lake, 2.9 GHz",
    cpus: 128,
    mhz: 2900,
    cpus_per_node: 64,
    distances: &["same socket", "other socket"],
    distance: |a, b| usize::from(a / 64 != b / 64),
    // 51 ns and 108 ns, Xeon 8375C [V].
    transfer: Transfer {
        load_modified: &[134, 279],
        load_exclusive: &[113, 264],
        load_shared: &[54, 215],
        load_memory: &[247, 420],
        store_modified: &[142, 309],
        store_exclusive: &[142, 309],
        store_shared: &[143, 307],
        store_memory: &[247, 420],
        rmw_modified: &[148, 313],
        rmw_exclusive: &[148, 313],
        rmw_shared: &[139, 301],
        rmw_memory: &[247, 420],
    },
    costs: Costs {
        hit: 5,
        rmw_hit: 20,
        fence: 30,
        pause: 140,
        clock_read: 25,
        shared_load_busy: 40,
        syscall: 435,
        sleep: 2900,
        wake: 2900,
        wake_latency: 8700,
        ipi: 200,
        interrupt: 2900,
        kick: 5800,
        halt: 5800,
        kick_latency: 14500,
    },
    vcpus: None,
    sources: &[
        "read-modify-write of modified: 51 and 108 ns, core-to-core-latency, Xeon 8375C [V]",
        "other rows of transfer: derived [A]",
        "memory: 85 and 145 ns [R]; everything else: assumed [A]",
    ],
};

/// Two sockets of eight core complexes of eight cores with two threads; the measured part (7R13) has six
/// complexes a socket.
pub(super) static MILAN_2S: Spec = Spec {
    name: "milan-2s",
    title: "2 sockets of 64 cores with 2 threads, AMD Milan, 2.65 GHz",
    cpus: 256,
    mhz: 2650,
    cpus_per_node: 128,
    distances: &["same complex", "same socket", "other socket"],
    distance: |a, b| match (a / 16 == b / 16, a / 128 == b / 128) {
        (true, _) => 0,
        (_, true) => 1,
        _ => 2,
    },
    // 23 ns, 107 ns and 197 ns, EPYC 7R13 [V].
    transfer: Transfer {
        load_modified: &[55, 253, 466],
        load_exclusive: &[47, 239, 440],
        load_shared: &[22, 195, 359],
        load_memory: &[265, 265, 530],
        store_modified: &[58, 280, 516],
        store_exclusive: &[58, 280, 516],
        store_shared: &[59, 279, 512],
        store_memory: &[265, 265, 530],
        rmw_modified: &[61, 284, 522],
        rmw_exclusive: &[61, 284, 522],
        rmw_shared: &[57, 273, 503],
        rmw_memory: &[265, 265, 530],
    },
    costs: Costs {
        hit: 4,
        rmw_hit: 20,
        fence: 30,
        pause: 65,
        clock_read: 25,
        shared_load_busy: 30,
        syscall: 398,
        sleep: 2650,
        wake: 2650,
        wake_latency: 7950,
        ipi: 200,
        interrupt: 2650,
        kick: 5300,
        halt: 5300,
        kick_latency: 13250,
    },
    vcpus: None,
    sources: &[
        "read-modify-write of modified: 23, 107 and 197 ns, core-to-core-latency, EPYC 7R13 [V]",
        "other rows of transfer: derived [A]",
        "memory: 100 and 200 ns [R]; everything else: assumed [A]",
    ],
};
