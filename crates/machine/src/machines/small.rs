//! Machines of one socket: `uma-2`, `skylake-4`, and the guest `vm-16`.
//!
//! "Derived" rows: the price of a compare-and-swap ping-pong gives read-modify-write of a modified line; the
//! other rows follow in the ratios of the Xeon column of the SOSP 2013 tables (load of modified 0.91, of
//! shared 0.37 within a socket and 0.69 across, and so on) \[A\]. Memory: 85 to 100 ns local, 145 to 200 ns
//! remote \[R\]. System calls are 150 ns, sleeping and waking 1 us each, a wake-up arrives after 3 us (2 to 5
//! us in all) \[A\]; an exit to the hypervisor is 2 us, a kicked virtual CPU runs after 5 us \[A\].

use crate::spec::{Costs, Spec, Transfer, VcpuOptions};

/// The machine that this project is tested on: two cores of one server.
pub(super) static UMA_2: Spec = Spec {
    name: "uma-2",
    title: "2 cores of one Intel server socket, 2.1 GHz",
    cpus: 2,
    mhz: 2100,
    cpus_per_node: 2,
    distances: &["same socket"],
    distance: |_, _| 0,
    // 51 ns, Xeon 8375C same socket [V].
    transfer: Transfer {
        load_modified: &[97],
        load_exclusive: &[82],
        load_shared: &[39],
        load_memory: &[190],
        store_modified: &[103],
        store_exclusive: &[103],
        store_shared: &[103],
        store_memory: &[190],
        rmw_modified: &[107],
        rmw_exclusive: &[107],
        rmw_shared: &[101],
        rmw_memory: &[190],
    },
    costs: Costs {
        hit: 5,
        rmw_hit: 20,
        fence: 30,
        pause: 70,
        clock_read: 25,
        shared_load_busy: 30,
        syscall: 315,
        sleep: 2100,
        wake: 2100,
        wake_latency: 6300,
        ipi: 200,
        interrupt: 2100,
        kick: 4200,
        halt: 4200,
        kick_latency: 10500,
    },
    vcpus: None,
    sources: &[
        "read-modify-write of modified: 51 ns, core-to-core-latency, Xeon 8375C, same socket [V]",
        "other rows of transfer: derived [A]",
        "everything else: assumed [A]",
    ],
};

/// A desktop: four cores on one ring.
pub(super) static SKYLAKE_4: Spec = Spec {
    name: "skylake-4",
    title: "4 cores, Intel Skylake client, 3.4 GHz",
    cpus: 4,
    mhz: 3400,
    cpus_per_node: 4,
    distances: &["same ring"],
    distance: |_, _| 0,
    // 25 ns [R].
    transfer: Transfer {
        load_modified: &[77],
        load_exclusive: &[65],
        load_shared: &[31],
        load_memory: &[220],
        store_modified: &[81],
        store_exclusive: &[81],
        store_shared: &[82],
        store_memory: &[220],
        rmw_modified: &[85],
        rmw_exclusive: &[85],
        rmw_shared: &[80],
        rmw_memory: &[220],
    },
    costs: Costs {
        hit: 5,
        rmw_hit: 18,
        fence: 30,
        pause: 140,
        clock_read: 25,
        shared_load_busy: 25,
        syscall: 510,
        sleep: 3400,
        wake: 3400,
        wake_latency: 10200,
        ipi: 200,
        interrupt: 3400,
        kick: 6800,
        halt: 6800,
        kick_latency: 17000,
    },
    vcpus: None,
    sources: &[
        "read-modify-write of modified: about 25 ns on client rings [R]; other rows derived [A]",
        "pause: about 140 cycles from Skylake on, Intel optimisation manual [R]",
        "everything else: assumed [A]",
    ],
};

/// The guest of the 2015 report "Queued spinlocks cause major XFS performance regression": 16 virtual CPUs,
/// here with 12 physical ones to run on, and a hypervisor that switches every 3 ms.
pub(super) static VM_16: Spec = Spec {
    name: "vm-16",
    title: "guest with 16 virtual CPUs on 12 physical ones, 2.2 GHz",
    cpus: 16,
    mhz: 2200,
    cpus_per_node: 16,
    distances: &["same socket"],
    distance: |_, _| 0,
    // 44 ns, Broadwell E5-2695v4 same socket [V].
    transfer: Transfer {
        load_modified: &[88],
        load_exclusive: &[74],
        load_shared: &[36],
        load_memory: &[200],
        store_modified: &[93],
        store_exclusive: &[93],
        store_shared: &[94],
        store_memory: &[200],
        rmw_modified: &[97],
        rmw_exclusive: &[97],
        rmw_shared: &[91],
        rmw_memory: &[200],
    },
    costs: Costs {
        hit: 5,
        rmw_hit: 20,
        fence: 30,
        pause: 45,
        clock_read: 25,
        shared_load_busy: 30,
        syscall: 330,
        sleep: 2200,
        wake: 2200,
        wake_latency: 6600,
        ipi: 200,
        interrupt: 2200,
        kick: 4400,
        halt: 4400,
        kick_latency: 11000,
    },
    vcpus: Some(VcpuOptions {
        physical: 12,
        quantum: 6_600_000, // 3 ms
        switch: 4_400,      // 2 us
        wakeup_granularity: 2_200_000,
        steal_per_mille: 0,
        steal: 0,
    }),
    sources: &[
        "shape: Chinner 2015, 16 virtual CPUs [V]; physical CPUs, quantum [A]",
        "read-modify-write of modified: 44 ns, core-to-core-latency, E5-2695v4, same socket [V]",
        "other rows of transfer: derived [A]",
        "everything else: assumed [A]",
    ],
};
