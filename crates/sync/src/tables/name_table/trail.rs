//! Trails: the entries along a path through several tables, to be followed again without looking any name up.
//!
//! # Theory
//! A thread that looks the same path up again finds the same entries. The thread must know two facts about each
//! remembered entry: its memory is not freed, and it still stands for its name. Both can be seen without a store:
//!
//! ```text
//!   trail of "usr/lib/x"   | era 7 | usr: array, entry | lib: array, entry | x: array, entry |
//!
//!   is it era 7 still?               then whatever stood in it is not freed yet: look at it
//!   does the entry stand?            an entry says so before it leaves, and none ever comes back
//!   is the table's array that array? then it is an entry of this table
//! ```
//!
//! The era ([`Guard::era`]) ends whenever a thread starts a grace period, so where names are removed all trails end now and then, and
//! are found anew by lookups. A trail holds no reference, delays nothing, and is told of no change. Following one writes nothing.
//!
//! Each thread remembers on lines of its own, in a place that the path's hash chooses. A path gets its place when it is missed
//! there twice running, so a thread that looks at each of many files once drives out nothing.
//!
//! # Clients must
//! check at each step of a trail whatever else they would check at a lookup: it knows the names alone.
//!
//! # Then
//! a step leads where a lookup of the name in that table would have, at a moment during the step.
//!
//! # Invariants
//! - T1: an entry that a place has steps to stood, in an array that was its table's, in the era of the place or later;
//!   All tables are of the domain of the thread's places: the recorder's section was one of both;
//! - T2: an array of a [`REMEMBERED`](crate::chains::Node::REMEMBERED) kind is freed, and its memory used again, a grace period
//!   after it was some table's, also if the table's destructor frees it: in a later era, and after all sections that began before.
//!
//! # Cost
//! To find a trail: a hash of the path and its comparison. A step: four loads, two of them of the thread's own lines. A thread that
//! remembers anything: 12 KiB.
//!
//! # Sources
//! To keep whole paths, and to let versions say whether they hold: Tsai et al., "How to Get More Value From Your File System
//! Directory Cache" (SOSP 2015), where a change of a directory visits all that is below it.

use super::key::{FREE_BITS, Key, WORDS};
use super::node::NameNode;
use super::{NameTable, after};
use crate::chains::Array;
use crate::face::atomic::{AtomicPtr, AtomicU64, Ordering};
use crate::face::{NearTable, SHRUNK, const_new, name_value, near_table, thread};
use crate::rcu::{Era, Guard};
use std::marker::PhantomData;
use std::ptr;
use std::sync::OnceLock;

/// The longest trail.
const STEPS_MAX: usize = 8;
/// How many paths a thread remembers: a power of two.
const PLACES: usize = if SHRUNK { 2 } else { 64 };
/// The part of a tag that counts steps.
const STEPS: u64 = (1 << FREE_BITS) - 1;

/// The trails that threads remember. Each thread remembers those through tables of the first domain in which it was asked.
pub struct Trails<V: Clone + Send + Sync + 'static> {
    /// By thread slot. *owner only*
    own: NearTable<OnceLock<Box<ThreadTrails<V>>>>,
}

/// The trails of one thread. Its atomics are plain memory: nobody else looks.
struct ThreadTrails<V: Clone + Send + Sync + 'static> {
    /// The address of the domain of the eras; tables use only one domain. *immutable*
    domain: usize,
    places: [TrailPlace<V>; PLACES],
    /// By place, the tag of what was looked for there in vain.
    missed: [AtomicU64; PLACES],
}

/// One path and its trail: a line, and two for the steps.
#[repr(C, align(64))]
struct TrailPlace<V: Clone + Send + Sync + 'static> {
    /// The era of the steps; 0 while there are none. *owner only*
    era: AtomicU64,
    /// The path's tag; its lowest bits count the steps. *owner only*
    tag: AtomicU64,
    /// The path. *owner only*
    words: [AtomicU64; WORDS],
    /// *owner only*
    steps: [TrailStep<V>; STEPS_MAX],
}

/// An entry, and the array of the table in which it stood.
struct TrailStep<V: Clone + Send + Sync + 'static> {
    array: AtomicPtr<Array<NameNode<V>>>,
    entry: AtomicPtr<NameNode<V>>,
}

/// A thread's memory of a path.
pub enum Remembered<'g, V: Clone + Send + Sync + 'static> {
    /// Where it led, in this era.
    Trail(Trail<'g, V>),
    /// No trail, but the path is wanted so often that a trail should be [noted](Trails::note).
    Wanted,
    /// Nothing.
    Unknown,
}

/// A trail that is being gone.
pub struct Trail<'g, V: Clone + Send + Sync + 'static> {
    place: &'g TrailPlace<V>,
    /// The era when the section had begun.
    era: Era,
    section: PhantomData<&'g Guard<'g>>,
    /// The remaining steps.
    steps: std::slice::Iter<'g, TrailStep<V>>,
}

/// A trail that is being made, by lookups.
pub struct Recorder<'g, V: Clone + Send + Sync + 'static> {
    /// The era before the first lookup.
    era: Era,
    guard: &'g Guard<'g>,
    steps: [(*mut Array<NameNode<V>>, *const NameNode<V>); STEPS_MAX],
    /// The number of steps; above the maximum if some are not recorded.
    len: usize,
}

impl<V: Clone + Send + Sync + 'static> Trails<V> {
    const_new! {
        /// Nothing is remembered.
        pub fn new() -> Self {
            Trails { own: near_table!(OnceLock::new()) }
        }
    }

    /// The calling thread's memory of the path `key`.
    #[inline]
    pub fn find<'g>(&'g self, key: &Key<'_>, guard: &'g Guard<'_>) -> Remembered<'g, V> {
        let own = self.own(guard);
        if own.domain != guard.domain_addr() {
            return Remembered::Unknown;
        }
        let at = key.choose(PLACES);
        let (place, missed) = (&own.places[at], &own.missed[at]);
        if place.is_of(key) {
            let era = guard.era();
            // Relaxed, here and below: the thread's own.
            if place.era.load(Ordering::Relaxed) == era.word() {
                let steps = (place.tag.load(Ordering::Relaxed) & STEPS) as usize;
                let steps = place.steps[..steps.min(STEPS_MAX)].iter();
                return Remembered::Trail(Trail { place, era, section: PhantomData, steps });
            }
            return Remembered::Wanted;
        }
        if missed.load(Ordering::Relaxed) == key.tag {
            return Remembered::Wanted;
        }
        missed.store(key.tag, Ordering::Relaxed);
        Remembered::Unknown
    }

    /// The trails of the calling thread, which is in the section `guard`.
    #[inline]
    fn own(&self, guard: &Guard<'_>) -> &ThreadTrails<V> {
        match self.own.peek(thread::ready_slot()).and_then(|own| own.get()) {
            Some(own) => own,
            None => self.own_slowly(guard),
        }
    }

    /// [`own`](Self::own), of a thread that remembers nothing yet, and of all where membarrier(2) does not work.
    #[cold]
    fn own_slowly(&self, guard: &Guard<'_>) -> &ThreadTrails<V> {
        self.own.get(thread::slot()).get_or_init(|| {
            let own = Box::new(ThreadTrails::new(guard.domain_addr()));
            name_value(&*own, std::any::type_name::<ThreadTrails<V>>(), "");
            own
        })
    }

    /// Remembers where the path `key` led, if all of its steps were recorded.
    pub fn note(&self, key: &Key<'_>, recorder: &Recorder<'_, V>) {
        let own = self.own(recorder.guard);
        let Some(steps) = recorder.steps.get(..recorder.len) else { return };
        if own.domain != recorder.guard.domain_addr() {
            return;
        }
        let place = &own.places[key.choose(PLACES)];
        // Relaxed throughout: the thread's own.
        place.era.store(recorder.era.word(), Ordering::Relaxed);
        place.tag.store(key.tag | steps.len() as u64, Ordering::Relaxed);
        place.words.iter().zip(key.words()).for_each(|(kept, word)| kept.store(word, Ordering::Relaxed));
        for (kept, (array, entry)) in place.steps.iter().zip(steps) {
            kept.array.store(*array, Ordering::Relaxed);
            kept.entry.store(entry.cast_mut(), Ordering::Relaxed);
        }
    }
}

impl<V: Clone + Send + Sync + 'static> Default for Trails<V> {
    fn default() -> Self {
        Trails::new()
    }
}

impl<V: Clone + Send + Sync + 'static> ThreadTrails<V> {
    fn new(domain: usize) -> Self {
        let place = |_| TrailPlace {
            era: AtomicU64::new(0),
            tag: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            steps: std::array::from_fn(|_| TrailStep {
                array: AtomicPtr::new(ptr::null_mut()),
                entry: AtomicPtr::new(ptr::null_mut()),
            }),
        };
        let places = std::array::from_fn(place);
        ThreadTrails { domain, places, missed: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl<V: Clone + Send + Sync + 'static> TrailPlace<V> {
    #[inline]
    fn is_of(&self, key: &Key<'_>) -> bool {
        // Relaxed: the thread's own.
        self.tag.load(Ordering::Relaxed) & !STEPS == key.tag && key.is_kept_in(&self.words)
    }
}

impl<'g, V: Clone + Send + Sync + 'static> Trail<'g, V> {
    /// Whether all steps are gone.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.steps.as_slice().is_empty()
    }

    /// The next step, which begins at `table`: what the name there stands for, if the trail knows.
    #[inline]
    pub fn step(&mut self, table: &'g NameTable<V>) -> Option<&'g V> {
        let step = self.steps.next()?;
        // Relaxed, all: the thread's own. Only this thread can have noted another path in this place meanwhile.
        let is_known = self.place.era.load(Ordering::Relaxed) == self.era.word()
            && ptr::eq(step.array.load(Ordering::Relaxed), table.chains.identity());
        if !is_known {
            return None;
        }
        // SAFETY: the array is this table's now, so it is not null and was so when the step was recorded (T2: not freed since, in
        // that era nor in our section, which began in it), with an entry of this table (T1). Since then the entry was
        // unlinked and deferred, if anything: not freed before our section ends (`era`). The table's destructor, which frees
        // the others, waits for the borrow `'g`.
        let entry = unsafe { &*step.entry.load(Ordering::Relaxed) };
        entry.stands().then_some(&entry.value)
    }
}

impl<'g, V: Clone + Send + Sync + 'static> Recorder<'g, V> {
    /// A trail without steps.
    #[inline]
    pub fn new(guard: &'g Guard<'_>) -> Self {
        Recorder { era: guard.era(), guard, steps: [(ptr::null_mut(), ptr::null()); STEPS_MAX], len: 0 }
    }

    /// The next step: what `name` stands for in `table`, as [`NameTable::get`].
    ///
    /// # Panics
    /// In the cases of [`NameTable::get`].
    pub fn step(&mut self, table: &'g NameTable<V>, hash: u64, name: &[u8]) -> Option<&'g V> {
        // Before the entry: if the table gets another array meanwhile, no step leads there.
        let array = table.chains.identity();
        let entry = after::find(table, hash, name, self.guard)?;
        match self.steps.get_mut(self.len) {
            Some(step) if entry.stands() && !array.is_null() => {
                *step = (array, entry);
                self.len += 1;
            }
            // The following steps do not continue from here: the trail will not be noted.
            _ => self.len = STEPS_MAX + 1,
        }
        Some(&entry.value)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::rcu::tests::kept_domain;

    const HASH: u64 = 7;
    const NAME: &[u8] = b"name";

    fn table(domain: &'static crate::rcu::Domain, value: u64) -> NameTable<u64> {
        let table = NameTable::new(domain);
        let mut entry = table.lock(HASH, NAME).expect("alive");
        entry.insert(value, 0).expect("a fresh name");
        drop(entry);
        table
    }

    fn key() -> Key<'static> {
        Key::new(0, NAME).expect("short")
    }

    /// Looks the name up and remembers it, as a trail of one step.
    fn remember(trails: &Trails<u64>, table: &NameTable<u64>) {
        let section = table.read();
        let mut recorder = Recorder::new(&section);
        assert!(recorder.step(table, HASH, NAME).is_some());
        trails.note(&key(), &recorder);
    }

    /// Where the thread remembers that the name leads from `table`.
    fn recall(trails: &Trails<u64>, table: &NameTable<u64>) -> Option<u64> {
        let section = table.read();
        let Remembered::Trail(mut trail) = trails.find(&key(), &section) else { return None };
        let value = trail.step(table).copied();
        assert!(trail.is_at_end() && trail.step(table).is_none());
        value
    }

    #[test]
    fn a_trail_is_there_as_long_as_its_era_and_its_names() {
        let (trails, domain) = (Trails::new(), kept_domain());
        let table = table(domain, 1);
        assert_eq!(recall(&trails, &table), None);
        remember(&trails, &table);
        assert_eq!(recall(&trails, &table), Some(1));
        domain.synchronize();
        assert_eq!(recall(&trails, &table), None, "another era");
        assert!(matches!(trails.find(&key(), &table.read()), Remembered::Wanted));
        remember(&trails, &table);
        assert_eq!(table.lock(HASH, NAME).expect("alive").remove(), Some(1));
        assert_eq!(recall(&trails, &table), None, "it is gone");
    }

    #[test]
    fn a_path_is_wanted_when_it_is_missed_twice_running() {
        let (trails, domain) = (Trails::<u64>::new(), kept_domain());
        let section = domain.read();
        let is_wanted = |path: &[u8]| {
            let key = Key::new(0, path).expect("short");
            matches!(trails.find(&key, &section), Remembered::Wanted)
        };
        let places = 20 * PLACES;
        assert!(!(0..places).any(|number| is_wanted(format!("once-{number}").as_bytes())));
        assert!(!is_wanted(NAME));
        assert!(is_wanted(NAME));
    }

    #[test]
    fn a_table_that_comes_to_lie_where_another_was_is_not_taken_for_it() {
        let (trails, domain) = (Trails::new(), kept_domain());
        for value in 0..if SHRUNK { 4 } else { 100 } {
            let table = table(domain, value);
            assert!(recall(&trails, &table).is_none());
            remember(&trails, &table);
            assert_eq!(recall(&trails, &table), Some(value));
        }
    }

    #[test]
    fn a_table_that_dies_in_a_section_leaves_its_place_to_no_other_until_that_ends() {
        let (trails, domain) = (Trails::new(), kept_domain());
        let one = table(domain, 0);
        remember(&trails, &one);
        let section = domain.read();
        let Remembered::Trail(mut trail) = trails.find(&key(), &section) else { panic!("it is remembered") };
        let array = one.chains.identity();
        drop(one);
        let others: Vec<_> = (0..if SHRUNK { 4 } else { 100 }).map(|value| table(domain, value)).collect();
        assert!(others.iter().all(|other| other.chains.identity() != array), "it lies where the other was");
        assert_eq!(trail.step(&others[0]), None);
    }

    #[test]
    fn a_table_that_dies_while_a_trail_is_recorded_is_not_in_it() {
        let (trails, domain) = (Trails::new(), kept_domain());
        let section = domain.read();
        let one = Box::new(table(domain, 0));
        {
            let mut recorder = Recorder::new(&section);
            assert!(recorder.step(&one, HASH, NAME).is_some());
            trails.note(&key(), &recorder);
        }
        drop(one);
        let others: Vec<_> = (0..if SHRUNK { 4 } else { 100 }).map(|value| table(domain, value)).collect();
        for other in &others {
            if let Remembered::Trail(mut trail) = trails.find(&key(), &section) {
                assert_eq!(trail.step(other), None);
            }
        }
    }

    #[test]
    fn a_table_that_is_moved_takes_its_trails_along() {
        let (trails, domain) = (Trails::new(), kept_domain());
        let (mut one, mut other) = (table(domain, 1), table(domain, 2));
        remember(&trails, &one);
        std::mem::swap(&mut one, &mut other);
        assert_eq!((recall(&trails, &one), recall(&trails, &other)), (None, Some(1)));
        drop(other);
        assert_eq!(recall(&trails, &one), None);
    }

    #[test]
    fn a_thread_remembers_for_one_domain() {
        let trails = Trails::new();
        let (one, other) = (table(kept_domain(), 1), table(kept_domain(), 2));
        remember(&trails, &one);
        remember(&trails, &other);
        assert_eq!((recall(&trails, &one), recall(&trails, &other)), (Some(1), None));
    }
}
