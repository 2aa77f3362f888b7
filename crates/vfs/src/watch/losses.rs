//! Losses: which of the changes that are not durable a crash takes away.

use super::journal::{Edit, Journal, JournalStep};
use sluice_sync::random::Random;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A change that is not durable: where it stands in the order of all changes; for a change of contents, the file too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LostItem {
    pub(super) at: u64,
    /// None for a step: a change of names and attributes.
    ino: Option<u64>,
}

impl LostItem {
    /// The items of the change at `place`.
    pub(super) fn of_change(at: u64, step: &JournalStep, edits: &[(u64, Edit)]) -> Vec<LostItem> {
        let has_step = !step.names.is_empty() || !step.attributes.is_empty();
        let step = has_step.then_some(LostItem { at, ino: None });
        step.into_iter().chain(edits.iter().map(|(ino, _)| LostItem { at, ino: Some(*ino) })).collect()
    }

    fn step(step: &JournalStep) -> LostItem {
        LostItem { at: step.at, ino: None }
    }

    fn edit(ino: u64, edit: &Edit) -> LostItem {
        LostItem { at: edit.at, ino: Some(ino) }
    }
}

/// The part of a change that a crash takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum LossKind {
    Whole,
    /// The sectors of a write that this seed chooses.
    Torn(u64),
}

/// The changes that a power failure takes away, out of those that were not synchronised. Changes that depend on a lost one are lost
/// with it. See [`CrashPoint`](crate::CrashPoint).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Losses(BTreeMap<LostItem, LossKind>);

impl Losses {
    /// The changes in `journal` that a crash with `seed` takes away: everything with seed 0, nothing with seed 1.
    pub(super) fn chosen(journal: &Journal, seed: u64) -> Losses {
        let mut random = Random::new(seed);
        // So many of four changes are kept.
        let kept = match seed {
            0 => 0,
            1 => 4,
            _ => random.below(5),
        };
        let mut losses = BTreeMap::new();
        for step in &journal.steps {
            if random.below(4) >= kept {
                losses.insert(LostItem::step(step), LossKind::Whole);
            }
        }
        for (ino, edits) in &journal.edits {
            for edit in edits {
                let loss = match () {
                    () if random.below(4) >= kept => LossKind::Whole,
                    () if kept < 4 && !edit.is_barrier() && random.below(3) == 0 => {
                        LossKind::Torn(random.bits())
                    }
                    () => continue,
                };
                losses.insert(LostItem::edit(*ino, edit), loss);
            }
        }
        Losses(losses)
    }

    /// For each change in `journal`, the oldest first, the loss of that change alone.
    pub(super) fn singles(journal: &Journal) -> Vec<Losses> {
        let steps = journal.steps.iter().map(LostItem::step);
        let edits =
            journal.edits.iter().flat_map(|(ino, edits)| edits.iter().map(|edit| LostItem::edit(*ino, edit)));
        let mut items: Vec<LostItem> = steps.chain(edits).collect();
        items.sort_unstable();
        items.into_iter().map(|item| Losses(BTreeMap::from([(item, LossKind::Whole)]))).collect()
    }

    pub(super) fn of_step(&self, step: &JournalStep) -> bool {
        self.0.contains_key(&LostItem::step(step))
    }

    pub(super) fn of_edit(&self, ino: u64, edit: &Edit) -> Option<LossKind> {
        self.0.get(&LostItem::edit(ino, edit)).copied()
    }

    /// The changes, by their places in the order of all changes, and whether a part of each is left.
    pub(super) fn places(&self) -> BTreeMap<u64, bool> {
        self.0.iter().map(|(item, loss)| (item.at, matches!(loss, LossKind::Torn(_)))).collect()
    }

    /// A number for what is left of `items`.
    pub(super) fn fingerprint_of(&self, items: &[LostItem]) -> u64 {
        let mut hasher = DefaultHasher::new();
        for item in items {
            match self.0.get(item) {
                None => item.hash(&mut hasher),
                Some(LossKind::Torn(seed)) => (item, seed).hash(&mut hasher),
                Some(LossKind::Whole) => {}
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
