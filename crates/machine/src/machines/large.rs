//! Machines of four and eight sockets: `opteron-32`, `power7-64`, `westmere-160`.

use crate::spec::{Costs, Spec, Transfer};

/// Transfer costs from David, Guerraoui and Trigonakis, "Everything you always wanted to know about
/// synchronization but were afraid to ask" (SOSP 2013), tables 2 and 3, column Opteron (four 6172, 2.1 GHz):
/// same die, one hop, two hops \[R\]. That machine has 8 dies of 6 cores; this one 4 nodes of 8 in a ring. The
/// tables have no store or atomic on an uncached line: the load's figure is used \[A\]; exclusive is charged as
/// modified for store and atomic \[A\].
pub(super) static OPTERON_32: Spec = Spec {
    name: "opteron-32",
    title: "4 nodes of 8 cores, AMD Opteron 6172, 2.1 GHz",
    cpus: 32,
    mhz: 2100,
    cpus_per_node: 8,
    distances: &["same node", "1 hop", "2 hops"],
    distance: |a, b| match (a / 8).abs_diff(b / 8) {
        0 => 0,
        2 => 2,
        _ => 1,
    },
    transfer: Transfer {
        load_modified: &[81, 172, 252],
        load_exclusive: &[83, 175, 253],
        load_shared: &[83, 176, 254],
        load_memory: &[136, 247, 327],
        store_modified: &[83, 191, 273],
        store_exclusive: &[83, 191, 273],
        store_shared: &[246, 286, 296],
        store_memory: &[136, 247, 327],
        rmw_modified: &[110, 216, 296],
        rmw_exclusive: &[110, 216, 296],
        rmw_shared: &[272, 312, 332],
        rmw_memory: &[136, 247, 327],
    },
    costs: Costs {
        hit: 3,               // L1, same source [R]
        rmw_hit: 20,          // [A], 17 cycles uncontended at 1.6 GHz in Goncharenko and Paznikov, 2019 [V]
        fence: 30,            // [A], 20 to 40
        pause: 10,            // [A]
        clock_read: 25,       // [A]
        shared_load_busy: 40, // [A]: the probe filter's lookup and answer
        syscall: 300,         // [A], 150 ns
        sleep: 2_100,         // [A], 1 us
        wake: 2_100,          // [A], 1 us
        wake_latency: 6_300,  // [A], 3 us: a futex wake-up takes 2 to 5 us in all
        ipi: 200,             // [A]
        interrupt: 2_000,     // [A]
        kick: 4_000,          // [A]
        halt: 4_000,          // [A]
        kick_latency: 10_000, // [A]
    },
    vcpus: None,
    sources: &[
        "transfers, hit: David, Guerraoui, Trigonakis, SOSP 2013, tables 2 and 3, Opteron [R]",
        "read-modify-write hit: Goncharenko and Paznikov 2019 (17 cycles) [V], rounded up",
        "fence, pause, system calls, wake-ups: assumed; a futex wake-up is 2 to 5 us [A]",
    ],
};

/// SOSP 2013, tables 2 and 3, column Xeon (eight E7-8867L, 2.13 GHz): same die, one hop, two hops \[R\].
const XEON_2013: Transfer = Transfer {
    load_modified: &[109, 289, 400],
    load_exclusive: &[92, 273, 383],
    load_shared: &[44, 223, 334],
    load_memory: &[355, 492, 601],
    store_modified: &[115, 320, 431],
    store_exclusive: &[115, 320, 431],
    store_shared: &[116, 318, 428],
    store_memory: &[355, 492, 601],
    rmw_modified: &[120, 324, 430],
    rmw_exclusive: &[120, 324, 430],
    rmw_shared: &[113, 312, 423],
    rmw_memory: &[355, 492, 601],
};

/// No table by coherence state has been found for this machine: the Xeon column of the SOSP 2013 tables
/// stands in for it \[A\]. Its shape is what counts: 8 chips of 8 cores (64 CPUs in Piggin's runs of 2009 and
/// 2010), two tiers of distance.
pub(super) static POWER7_64: Spec = Spec {
    name: "power7-64",
    title: "8 chips of 8 cores, IBM POWER7, 3.5 GHz",
    cpus: 64,
    mhz: 3500,
    cpus_per_node: 8,
    distances: &["same chip", "same drawer", "other drawer"],
    distance: |a, b| match (a / 8 == b / 8, a / 32 == b / 32) {
        (true, _) => 0,
        (_, true) => 1,
        _ => 2,
    },
    transfer: XEON_2013,
    costs: Costs {
        hit: 3,               // [R]
        rmw_hit: 40,          // [A]: load-reserve, store-conditional
        fence: 60,            // [A]: hwsync
        pause: 10,            // [A]
        clock_read: 25,       // [A]
        shared_load_busy: 30, // [A]
        syscall: 500,         // [A], 150 ns
        sleep: 3_500,         // [A], 1 us
        wake: 3_500,          // [A], 1 us
        wake_latency: 10_500, // [A], 3 us
        ipi: 300,             // [A]
        interrupt: 3_500,     // [A]
        kick: 7_000,          // [A]
        halt: 7_000,          // [A]
        kick_latency: 17_500, // [A]
    },
    vcpus: None,
    sources: &[
        "shape: Piggin 2009 and 2010, runs on 64 CPUs [V]; drawers [A]",
        "transfers: SOSP 2013, column Xeon, for want of a table of this machine's own [A]",
        "everything else: assumed [A]",
    ],
};

/// The machine of `XEON_2013`. Each socket reaches four others directly (a cube with its long diagonals), the
/// other three in two hops \[A\].
pub(super) static WESTMERE_160: Spec = Spec {
    name: "westmere-160",
    title: "8 sockets of 10 cores with 2 threads, Intel Westmere-EX, 2.13 GHz",
    cpus: 160,
    mhz: 2130,
    cpus_per_node: 20,
    distances: &["same socket", "1 hop", "2 hops"],
    distance: |a, b| match (a / 20) ^ (b / 20) {
        0 => 0,
        1 | 2 | 4 | 7 => 1,
        _ => 2,
    },
    transfer: XEON_2013,
    costs: Costs {
        hit: 5,               // L1, same source [R]
        rmw_hit: 20,          // [A]
        fence: 30,            // [A]
        pause: 10,            // [A]: before Skylake
        clock_read: 25,       // [A]
        shared_load_busy: 30, // [A]
        syscall: 300,         // [A], 150 ns
        sleep: 2_130,         // [A], 1 us
        wake: 2_130,          // [A], 1 us
        wake_latency: 6_390,  // [A], 3 us
        ipi: 200,             // [A]
        interrupt: 2_000,     // [A]
        kick: 4_000,          // [A]
        halt: 4_000,          // [A]
        kick_latency: 10_000, // [A]
    },
    vcpus: None,
    sources: &[
        "transfers, hit: David, Guerraoui, Trigonakis, SOSP 2013, tables 2 and 3, Xeon [R]",
        "which sockets are neighbours, everything else: assumed [A]",
    ],
};
