//! From the address of a line to its dense number.
//!
//! # Theory
//! Numbers are given in the order of first touch, and everything that is decided or printed goes by number:
//! where the loader or the allocator put an object (address-space randomisation) cannot change a result.
//! The table itself is open addressing with linear probing; only its host speed depends on addresses.

const EMPTY: u64 = u64::MAX;

/// Bytes in a line, on every machine here.
pub(crate) const LINE_BYTES: usize = 64;

pub(crate) struct LineTable {
    slots: Vec<(u64, u32)>,
    shift: u32,
    used: usize,
}

impl LineTable {
    pub(crate) fn new() -> LineTable {
        LineTable { slots: vec![(EMPTY, 0); 1024], shift: 64 - 10, used: 0 }
    }

    #[inline]
    fn first_slot(&self, tag: u64) -> usize {
        (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// The number of the line with this tag (its address / 64).
    #[inline]
    pub(crate) fn get(&self, tag: u64) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut slot = self.first_slot(tag);
        loop {
            let (found, id) = self.slots[slot & mask];
            if found == tag {
                return Some(id);
            }
            if found == EMPTY {
                return None;
            }
            slot += 1;
        }
    }

    /// Gives the line with this tag, which has no number yet, the number `id`.
    pub(crate) fn insert(&mut self, tag: u64, id: u32) {
        if (self.used + 1) * 2 > self.slots.len() {
            self.grow();
        }
        self.used += 1;
        self.place(tag, id);
    }

    fn place(&mut self, tag: u64, id: u32) {
        let mask = self.slots.len() - 1;
        let mut slot = self.first_slot(tag);
        while self.slots[slot & mask].0 != EMPTY {
            slot += 1;
        }
        self.slots[slot & mask] = (tag, id);
    }

    #[cold]
    fn grow(&mut self) {
        let doubled = vec![(EMPTY, 0); self.slots.len() * 2];
        self.shift -= 1;
        for (tag, id) in std::mem::replace(&mut self.slots, doubled) {
            if tag != EMPTY {
                self.place(tag, id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_keeps_its_number_while_the_table_grows() {
        let mut table = LineTable::new();
        for id in 0..10_000 {
            assert_eq!(table.get(u64::from(id) * 3), None);
            table.insert(u64::from(id) * 3, id);
        }
        assert!((0..10_000).all(|id| table.get(u64::from(id) * 3) == Some(id)));
        assert_eq!(table.get(1), None);
    }
}
