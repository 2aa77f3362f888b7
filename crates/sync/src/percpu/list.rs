//! Per-CPU list: adding takes the own CPU's lock, removing the lock of the CPU that added, reading all of them.
//!
//! # Theory
//! For lists that everybody adds to and hardly anybody reads as a whole (the inodes of a superblock, all file
//! locks). One list with one lock is a line that every CPU writes; here each CPU has its own. An element stays
//! on the CPU that added it, and its [`Handle`] says which.
//!
//! # Then
//! - an element that is listed during the whole of [`PerCpuList::for_each`] is visited exactly once;
//! - the order is that of the CPUs, within one CPU arbitrary.
//!
//! # Cost
//! `add`: the own CPU's mutex (uncontended unless a thread was moved, or another removes or reads). `remove`: the
//! adder's mutex. Both O(1).
//!
//! # Sources
//! Long, "vfs: Use dlock list for superblock's inode list" (kernel mailing list, 2016).

use super::PerCpu;
use crate::Mutex;
use crate::lock_debug::{LockClass, Watch};

/// Where a listed element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    cpu: u32,
    at: u32,
    generation: u32,
}

#[derive(Debug)]
struct ListPlace<T> {
    /// Moves on when the place is emptied, so that an old handle finds nothing.
    generation: u32,
    value: Option<T>,
}

#[derive(Debug)]
struct ListShard<T> {
    places: Vec<ListPlace<T>>,
    /// The empty ones.
    free: Vec<u32>,
}

/// A list with one part for each CPU.
#[derive(Debug)]
pub struct PerCpuList<T> {
    shards: PerCpu<Mutex<ListShard<T>>>,
}

impl<T> PerCpuList<T> {
    /// An empty list. The class of its shards' mutexes is the place of this call.
    #[track_caller]
    pub fn new() -> Self {
        Self::watched(Watch::here())
    }

    /// An empty list whose locks are of class `class`.
    pub fn with_class(class: &'static LockClass) -> Self {
        Self::watched(Watch::class(class))
    }

    fn watched(watch: Watch) -> Self {
        let shard = |_| Mutex::watched(watch, ListShard { places: Vec::new(), free: Vec::new() });
        PerCpuList { shards: PerCpu::new(shard) }
    }

    /// Adds `value` to the calling thread's CPU.
    ///
    /// # Panics
    /// With more than 2^32 elements on one CPU.
    pub fn add(&self, value: T) -> Handle {
        let cpu = self.shards.here_at();
        let mut shard = self.shards.get(cpu).expect("here_at() is in range").lock();
        let at = shard.free.pop().unwrap_or_else(|| {
            shard.places.push(ListPlace { generation: 0, value: None });
            u32::try_from(shard.places.len() - 1).expect("fewer than 2^32 elements on one CPU")
        });
        let place = &mut shard.places[at as usize];
        place.value = Some(value);
        let generation = place.generation;
        Handle { cpu: u32::try_from(cpu).expect("CPU numbers are small"), at, generation }
    }

    /// Removes what `handle` stands for, from any CPU. `None` if it was removed before.
    pub fn remove(&self, handle: Handle) -> Option<T> {
        let mut shard = self.shards.get(handle.cpu as usize)?.lock();
        let place = shard.places.get_mut(handle.at as usize)?;
        if place.generation != handle.generation {
            return None;
        }
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        shard.free.push(handle.at);
        Some(value)
    }

    /// Calls `visit` for each element, one CPU after the other, each under that CPU's lock: `visit` must not
    /// add or remove.
    pub fn for_each(&self, mut visit: impl FnMut(&T)) {
        for shard in self.shards.iter() {
            shard.lock().places.iter().filter_map(|place| place.value.as_ref()).for_each(&mut visit);
        }
    }

    /// How many elements there are; exact when nobody adds or removes meanwhile.
    pub fn len(&self) -> usize {
        let of_shard = |shard: &ListShard<T>| shard.places.len() - shard.free.len();
        self.shards.iter().map(|shard| of_shard(&shard.lock())).sum()
    }

    /// Whether the list is empty; exact when nobody adds or removes meanwhile.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Default for PerCpuList<T> {
    #[track_caller]
    fn default() -> Self {
        PerCpuList::new()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::thread;

    #[test]
    fn elements_are_removed_from_any_thread_exactly_once() {
        let list = PerCpuList::new();
        let count = if crate::face::SHRUNK { 20 } else { 1_000 };
        let handles: Vec<_> = thread::scope(|scope| {
            let adders: Vec<_> = (0..4)
                .map(|thread| {
                    let list = &list;
                    scope.spawn(move || (0..count).map(|n| list.add((thread, n))).collect::<Vec<_>>())
                })
                .collect();
            adders.into_iter().flat_map(|adder| adder.join().expect("ends")).collect()
        });
        let mut seen = Vec::new();
        list.for_each(|element| seen.push(*element));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!((seen.len(), list.len()), (4 * count, 4 * count));
        let removed: usize = thread::scope(|scope| {
            let remove = || handles.iter().filter(|handle| list.remove(**handle).is_some()).count();
            let threads = [scope.spawn(remove), scope.spawn(remove)];
            threads.into_iter().map(|thread| thread.join().expect("ends")).sum()
        });
        assert_eq!((removed, list.is_empty()), (4 * count, true));
    }

    #[test]
    fn an_old_handle_does_not_remove_the_place_s_next_element() {
        let list = PerCpuList::new();
        let old = list.add(1);
        assert_eq!(list.remove(old), Some(1));
        let new = (0..64).map(|_| list.add(2)).find(|handle| handle.cpu == old.cpu && handle.at == old.at);
        assert_eq!(list.remove(old), None);
        if let Some(new) = new {
            assert_eq!(list.remove(new), Some(2));
        }
    }
}
