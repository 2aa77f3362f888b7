//! Sleep places: where in the kernel tasks sleep while a benchmark runs, on any file system and without privileges.
//!
//! # Theory
//! `/proc/TID/wchan` names the function of the kernel in which a thread, of this process or another, sleeps, past the
//! scheduler and the lock's own functions: the caller of the lock. Looked up every few milliseconds, these names say
//! what a foreign file system's tasks wait for, as the hottest lines do on a simulated machine. A task that runs or is
//! runnable is in no such function. A look costs microseconds, so only a few tasks are looked at each time, in turn.

use std::collections::BTreeMap;
use std::fs;

/// Tasks looked at each time.
const AT_ONCE: usize = 4;

/// Looks at tasks in turn, and counts.
#[derive(Default)]
pub struct SleepPlaces {
    tasks: Vec<u32>,
    next: usize,
    /// Looks at a task.
    pub looks: u64,
    /// How many of them found it asleep, by function of the kernel.
    pub asleep: BTreeMap<String, u64>,
}

impl SleepPlaces {
    /// Sleep places of the threads with these numbers.
    pub fn of(tasks: Vec<u32>) -> SleepPlaces {
        SleepPlaces { tasks, ..SleepPlaces::default() }
    }

    /// Looks at some of the tasks.
    pub fn look(&mut self) {
        for _ in 0..AT_ONCE.min(self.tasks.len()) {
            self.next = (self.next + 1) % self.tasks.len();
            // A task that has ended has no file in `/proc`.
            let path = format!("/proc/{}/wchan", self.tasks[self.next]);
            if let Ok(place) = fs::read_to_string(path) {
                self.count(&place);
            }
        }
    }

    fn count(&mut self, place: &str) {
        self.looks += 1;
        // A part that the compiler split off is called `name.part.0`.
        let name = place.trim().split('.').next().unwrap_or_default();
        if !name.is_empty() && name != "0" {
            *self.asleep.entry(name.to_owned()).or_default() += 1;
        }
    }

    /// Adds what another has counted.
    pub fn add(&mut self, other: &SleepPlaces) {
        self.looks += other.looks;
        for (place, count) in &other.asleep {
            *self.asleep.entry(place.clone()).or_default() += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sync::thread;
    use sluice_sync::time::Duration;

    #[test]
    fn a_task_that_sleeps_is_seen_where_it_does() {
        let (said, hear) = sluice_sync::mpsc::channel();
        let sleeper = thread::spawn(move || {
            said.send(sluice_console::machine::task_number()).unwrap();
            thread::sleep(Duration::from_millis(300));
        });
        let mut places = SleepPlaces::of(vec![hear.recv().unwrap()]);
        thread::sleep(Duration::from_millis(50));
        places.look();
        sleeper.join().unwrap();
        // A kernel without the names of its functions says 0 or nothing.
        assert!(places.looks <= 1 && places.asleep.values().sum::<u64>() <= 1);
    }

    #[test]
    fn running_tasks_are_in_no_place() {
        let mut places = SleepPlaces::of(vec![1]);
        for place in ["0", "", "rwsem_wait.part.0", "rwsem_wait", "do_lock_file_wait\n"] {
            places.count(place);
        }
        let mut all = SleepPlaces::default();
        all.add(&places);
        assert_eq!(all.looks, 5);
        assert_eq!(
            all.asleep.into_iter().collect::<Vec<_>>(),
            [("do_lock_file_wait".to_owned(), 1), ("rwsem_wait".to_owned(), 2)]
        );
    }
}
