//! How far the CPUs of a machine are from each other, prepared for quick questions about sets.

use crate::cpu_set::CpuSet;
use crate::spec::{CLASSES_MAX, Spec};

pub(crate) struct Topology {
    /// `[cpu][class]`: the other CPUs at that distance. Immutable.
    at: Vec<[CpuSet; CLASSES_MAX]>,
    /// `[cpu][cpu]`: the distance. Immutable.
    distance: Vec<Vec<u8>>,
    /// How many classes there are. Immutable.
    classes: usize,
    /// Immutable.
    pub(crate) cpus_per_node: usize,
}

impl Topology {
    pub(crate) fn new(spec: &Spec) -> Topology {
        let mut at = vec![[CpuSet::default(); CLASSES_MAX]; spec.cpus];
        for (from, at) in at.iter_mut().enumerate() {
            (0..spec.cpus).filter(|&to| to != from).for_each(|to| at[(spec.distance)(from, to)].insert(to));
        }
        let row = |from| (0..spec.cpus).map(|to| (spec.distance)(from, to) as u8).collect();
        let distance = (0..spec.cpus).map(row).collect();
        Topology { at, distance, classes: spec.distances.len(), cpus_per_node: spec.cpus_per_node }
    }

    #[inline]
    pub(crate) fn distance(&self, from: usize, to: usize) -> usize {
        usize::from(self.distance[from][to])
    }

    /// The distance from `cpu` to the memory of `node`.
    pub(crate) fn to_memory(&self, cpu: usize, node: usize) -> usize {
        self.distance(cpu, node * self.cpus_per_node)
    }

    pub(crate) fn node(&self, cpu: usize) -> usize {
        cpu / self.cpus_per_node
    }

    /// The distance from `cpu` to the nearest other member of `set`.
    #[inline]
    pub(crate) fn nearest(&self, cpu: usize, set: &CpuSet) -> Option<usize> {
        (0..self.classes).find(|&class| self.at[cpu][class].intersects(set))
    }

    /// The distance from `cpu` to the farthest other member of `set`.
    #[inline]
    pub(crate) fn farthest(&self, cpu: usize, set: &CpuSet) -> Option<usize> {
        (0..self.classes).rev().find(|&class| self.at[cpu][class].intersects(set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines;

    #[test]
    fn nearest_and_farthest_leave_out_the_cpu_itself() {
        let spec = machines::find("opteron-32").expect("a named machine");
        let topology = Topology::new(&spec);
        let mut set = CpuSet::only(0);
        assert_eq!((topology.nearest(0, &set), topology.farthest(0, &set)), (None, None));
        set.insert(7);
        set.insert(8);
        set.insert(31);
        assert_eq!(topology.nearest(0, &set), Some(0));
        assert_eq!(topology.farthest(0, &set), Some(topology.distance(0, 31).max(1)));
        assert_eq!(topology.node(31), 3);
    }
}
