//! A description of a simulated machine: its CPUs, their distances, and the costs of operations.

/// The most classes of distance that a machine can have.
pub(crate) const CLASSES_MAX: usize = 8;

/// The kinds of access that the cache model tells apart.
///
/// All read-modify-writes are one class, successful or not: compare-and-swap, fetch-and-add and swap have
/// comparable latency whatever they compute (Schweizer, Besta and Hoefler, PACT 2015).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Reads the line; needs a copy of it.
    Load,
    /// Writes the line; needs it exclusively.
    Store,
    /// Reads and writes the line in one step; needs it exclusively.
    Rmw,
}

impl Kind {
    /// Whether the access needs the line exclusively.
    pub fn writes(self) -> bool {
        self != Kind::Load
    }
}

/// Cycles to bring a line to a CPU that has no sufficient copy, by the state in which it is found and, within
/// a row, by distance (index into [`Spec::distances`], nearest first).
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Load of a line that another CPU has modified.
    pub load_modified: &'static [u32],
    /// Load of a line that another CPU has alone and clean.
    pub load_exclusive: &'static [u32],
    /// Load of a line that others share; the distance is that of the nearest.
    pub load_shared: &'static [u32],
    /// Load of a line that no cache has; the distance is that of its memory.
    pub load_memory: &'static [u32],
    /// Store to a line that another CPU has modified.
    pub store_modified: &'static [u32],
    /// Store to a line that another CPU has alone and clean.
    pub store_exclusive: &'static [u32],
    /// Store to a line that others share; the distance is that of the farthest.
    pub store_shared: &'static [u32],
    /// Store to a line that no cache has.
    pub store_memory: &'static [u32],
    /// Read-modify-write of a line that another CPU has modified.
    pub rmw_modified: &'static [u32],
    /// Read-modify-write of a line that another CPU has alone and clean.
    pub rmw_exclusive: &'static [u32],
    /// Read-modify-write of a line that others share; the distance is that of the farthest.
    pub rmw_shared: &'static [u32],
    /// Read-modify-write of a line that no cache has.
    pub rmw_memory: &'static [u32],
}

impl Transfer {
    /// The rows in the order `[kind][state]`, states as in [`LineState`](crate::engine::line::LineState).
    pub(crate) fn rows(&self) -> [[&'static [u32]; 4]; 3] {
        [
            [self.load_modified, self.load_exclusive, self.load_shared, self.load_memory],
            [self.store_modified, self.store_exclusive, self.store_shared, self.store_memory],
            [self.rmw_modified, self.rmw_exclusive, self.rmw_shared, self.rmw_memory],
        ]
    }
}

/// Costs of a CPU by itself, and of services of the operating system. All in cycles.
#[derive(Clone, Debug)]
pub struct Costs {
    /// A load or store that hits in the CPU's own cache.
    pub hit: u32,
    /// A read-modify-write that hits in the CPU's own cache (it still drains the pipeline).
    pub rmw_hit: u32,
    /// A full fence; also paid by a sequentially consistent store.
    pub fence: u32,
    /// One spin-wait hint.
    pub pause: u32,
    /// Reading the cycle counter.
    pub clock_read: u32,
    /// For how long a load of a shared line keeps the line's directory entry busy: loads of one line from
    /// many CPUs follow each other at this distance (never more than the load itself takes).
    pub shared_load_busy: u32,
    /// Entering and leaving the kernel for a futex call that finds nothing to do.
    pub syscall: u32,
    /// Going to sleep: queueing, and switching to the idle task.
    pub sleep: u32,
    /// The waker's cost for each CPU that it wakes.
    pub wake: u32,
    /// From the wake-up call to the first instruction of the woken task, when its CPU was idle.
    pub wake_latency: u32,
    /// Sending an inter-processor interrupt to all others and gathering their answers, per CPU reached.
    pub ipi: u32,
    /// The cost of an inter-processor interrupt for the interrupted CPU.
    pub interrupt: u32,
    /// A guest's kick of a halted virtual CPU: exit to the hypervisor and interrupt.
    pub kick: u32,
    /// A guest's halt: exit to the hypervisor and switching away.
    pub halt: u32,
    /// From the kick to the first instruction of the kicked virtual CPU, when a physical CPU is free.
    pub kick_latency: u32,
}

/// More virtual CPUs than physical ones: the hypervisor's scheduler.
///
/// Runnable virtual CPUs queue for the physical ones, first in first out; one that has used up its quantum while others
/// wait is preempted, wherever it is: holding a lock, or next in line for one. A halted or parked one frees its
/// physical CPU. A CPU that wakes goes to the head of the queue. Migration between physical CPUs keeps its cached
/// lines, which is kinder than a real machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuOptions {
    /// How many physical CPUs there are.
    pub physical: usize,
    /// How long one runs while others wait, in cycles.
    pub quantum: u64,
    /// Switching a physical CPU to another virtual one, in cycles.
    pub switch: u64,
    /// A virtual CPU that wakes and finds no free physical CPU preempts after this many cycles.
    pub wakeup_granularity: u64,
    /// Other guests of the host: at the end of a quantum, how often in 1,000 times the physical CPU is taken
    /// away ...
    pub steal_per_mille: u32,
    /// ... and for how many cycles.
    pub steal: u64,
}

/// The description of a machine. The named ones are in [`machines`](crate::machines); make your own and hand
/// it to [`Machine::custom`](crate::Machine::custom).
#[derive(Clone, Debug)]
pub struct Spec {
    /// Short name, as users type it.
    pub name: &'static str,
    /// The hardware that the machine is modelled on.
    pub title: &'static str,
    /// How many CPUs it has, 1 to 256.
    pub cpus: usize,
    /// Cycles in a microsecond.
    pub mhz: u32,
    /// How many CPUs make a node; consecutive numbers belong together.
    pub cpus_per_node: usize,
    /// The names of the distances, nearest first. At least one, at most eight.
    pub distances: &'static [&'static str],
    /// The distance (index into `distances`) between two CPUs; also asked for a CPU and itself, for its
    /// memory.
    pub distance: fn(usize, usize) -> usize,
    /// The cost of moving a line.
    pub transfer: Transfer,
    /// The cost of everything else.
    pub costs: Costs,
    /// The layer of virtual CPUs, when the machine is a guest.
    pub vcpus: Option<VcpuOptions>,
    /// Where the figures are from.
    pub sources: &'static [&'static str],
}

/// Options of a run besides the machine.
#[derive(Clone, Debug)]
pub(crate) struct RunOptions {
    pub(crate) jitter: bool,
    pub(crate) cycles_max: u64,
    pub(crate) trace: usize,
}

impl Spec {
    /// The fault in this description, if any.
    pub fn fault(&self) -> Option<String> {
        let classes = self.distances.len();
        if !(1..=crate::CPUS_MAX).contains(&self.cpus) {
            return Some(format!("cpus must be 1 to {}, not {}", crate::CPUS_MAX, self.cpus));
        }
        if self.mhz == 0 || self.cpus_per_node == 0 {
            return Some("mhz and cpus_per_node must not be 0".into());
        }
        if !(1..=CLASSES_MAX).contains(&classes) {
            return Some(format!("a machine has 1 to 8 distances, not {classes}"));
        }
        if self.transfer.rows().as_flattened().iter().any(|row| row.len() != classes || row.contains(&0)) {
            return Some(format!("each row of transfer needs {classes} figures, none of them 0"));
        }
        if self.costs.hit == 0 || self.costs.pause == 0 {
            return Some("hit and pause must not be 0, or a loop takes no time".into());
        }
        let far = |a: usize| (0..self.cpus).any(|b| (self.distance)(a, b) >= classes);
        if (0..self.cpus).any(far) {
            return Some("distance() gives an index beyond distances".into());
        }
        match &self.vcpus {
            Some(vcpus) if vcpus.physical == 0 || vcpus.quantum == 0 => {
                Some("vcpus need a physical CPU and a quantum".into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::machines;
    use crate::{Machine, Spec};

    fn faulty(change: impl FnOnce(&mut Spec)) -> String {
        let mut spec = machines::find("opteron-32").expect("a named machine");
        change(&mut spec);
        spec.fault().expect("a fault")
    }

    #[test]
    fn a_faulty_description_is_explained() {
        assert!(faulty(|spec| spec.cpus = 257).contains("256"));
        assert!(faulty(|spec| spec.mhz = 0).contains("mhz"));
        assert!(faulty(|spec| spec.distances = &[]).contains("distances"));
        assert!(faulty(|spec| spec.transfer.load_shared = &[1, 2]).contains("3 figures"));
        assert!(faulty(|spec| spec.transfer.rmw_memory = &[1, 0, 2]).contains("none of them 0"));
        assert!(faulty(|spec| spec.costs.pause = 0).contains("pause"));
        assert!(faulty(|spec| spec.distance = |_, _| 3).contains("beyond"));
        assert!(
            faulty(|spec| spec.vcpus.insert(machines::find("vm-16").unwrap().vcpus.unwrap()).physical = 0)
                .contains("physical")
        );
    }

    #[test]
    fn a_machine_of_ones_own_runs() {
        let spec = Spec { cpus: 3, ..machines::find("uma-2").expect("a named machine") };
        assert_eq!(Machine::custom(spec).run(3, |cpu| cpu.count_op()).ops(), 3);
    }
}
