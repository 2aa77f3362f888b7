//! Losses: which of the changes that are not durable a crash takes away.

use super::journal::{Edit, Journal, JournalStep};
use sluice_sync::random::Random;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A change that is not durable: where it stands in the order of all changes; for a change of contents, the file too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Item {
    pub(super) at: u64,
    /// None for a step: a change of names and attributes.
    ino: Option<u64>,
}

impl Item {
    /// The items of the change at `place`.
    pub(super) fn of_change(at: u64, step: &JournalStep, edits: &[(u64, Edit)]) -> Vec<Item> {
        let has_step = !step.names.is_empty() || !step.attributes.is_empty();
        let step = has_step.then_some(Item { at, ino: None });
        step.into_iter().chain(edits.iter().map(|(ino, _)| Item { at, ino: Some(*ino) })).collect()
    }

    fn step(step: &JournalStep) -> Item {
        Item { at: step.at, ino: None }
    }

    fn edit(ino: u64, edit: &Edit) -> Item {
        Item { at: edit.at, ino: Some(ino) }
    }
}

/// The part of a change that a crash takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Loss {
    Whole,
    /// Of a write, the sectors that this seed chooses.
    Torn(u64),
}

/// The changes that a power failure takes away, out of those that were not synchronised. Changes that depend on a lost one are lost
/// with it. See [`CrashPoint`](crate::CrashPoint).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Losses(BTreeMap<Item, Loss>);

impl Losses {
    /// What a crash with `seed` takes away of the changes in `journal`: everything with seed 0, nothing with seed 1.
    pub(super) fn chosen(journal: &Journal, seed: u64) -> Losses {
        let mut random = Random::new(seed);
        // Of four changes so many are kept.
        let kept = match seed {
            0 => 0,
            1 => 4,
            _ => random.below(5),
        };
        let mut losses = BTreeMap::new();
        for step in &journal.steps {
            if random.below(4) >= kept {
                losses.insert(Item::step(step), Loss::Whole);
            }
        }
        for (ino, edits) in &journal.edits {
            for edit in edits {
                let loss = match () {
                    () if random.below(4) >= kept => Loss::Whole,
                    () if kept < 4 && !edit.is_barrier() && random.below(3) == 0 => Loss::Torn(random.bits()),
                    () => continue,
                };
                losses.insert(Item::edit(*ino, edit), loss);
            }
        }
        Losses(losses)
    }

    /// For each change in `journal`, the oldest first, the loss of that change alone.
    pub(super) fn singles(journal: &Journal) -> Vec<Losses> {
        let steps = journal.steps.iter().map(Item::step);
        let edits =
            journal.edits.iter().flat_map(|(ino, edits)| edits.iter().map(|edit| Item::edit(*ino, edit)));
        let mut items: Vec<Item> = steps.chain(edits).collect();
        items.sort_unstable();
        items.into_iter().map(|item| Losses(BTreeMap::from([(item, Loss::Whole)]))).collect()
    }

    pub(super) fn of_step(&self, step: &JournalStep) -> bool {
        self.0.contains_key(&Item::step(step))
    }

    pub(super) fn of_edit(&self, ino: u64, edit: &Edit) -> Option<Loss> {
        self.0.get(&Item::edit(ino, edit)).copied()
    }

    /// The changes, by their places in the order of all changes, and whether a part of each is left.
    pub(super) fn places(&self) -> BTreeMap<u64, bool> {
        self.0.iter().map(|(item, loss)| (item.at, matches!(loss, Loss::Torn(_)))).collect()
    }

    /// A number for what is left of `items`.
    pub(super) fn fingerprint_of(&self, items: &[Item]) -> u64 {
        let mut hasher = DefaultHasher::new();
        for item in items {
            match self.0.get(item) {
                None => item.hash(&mut hasher),
                Some(Loss::Torn(seed)) => (item, seed).hash(&mut hasher),
                Some(Loss::Whole) => {}
            }
        }
        hasher.finish()
    }

    /// Number of changes that are lost, in part or whole.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether everything is kept.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These losses without those from `range` of them, oldest first: a smaller set, to find which of them matter.
    #[must_use]
    pub fn without(&self, range: std::ops::Range<usize>) -> Losses {
        let kept = self.0.iter().enumerate().filter(|(at, _)| !range.contains(at));
        Losses(kept.map(|(_, (item, loss))| (*item, *loss)).collect())
    }
}
