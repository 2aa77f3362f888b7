//! Spare: memory that a push has used, for the next push: fresh memory would be cleared by the kernel, page by page.

use sluice_sync::{LockClass, Mutex};

static SPARE: LockClass = LockClass::new("store.spare");

/// A larger piece goes back to the allocator.
const LARGEST: usize = 1 << 20;
/// So many pieces are kept.
const MOST: usize = 4;

/// Pieces of memory without content. *Protected by its mutex.*
#[derive(Debug)]
pub(crate) struct SpareMemory(Mutex<Vec<Vec<u8>>>);

impl SpareMemory {
    pub(crate) fn new() -> SpareMemory {
        SpareMemory(Mutex::with_class(&SPARE, Vec::new()))
    }

    /// An empty vector, with memory if there is some.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.0.lock().pop().unwrap_or_default()
    }

    /// Keeps the memory of `used`.
    pub(crate) fn keep(&self, mut used: Vec<u8>) {
        used.clear();
        let mut pieces = self.0.lock();
        if used.capacity() <= LARGEST && pieces.len() < MOST {
            pieces.push(used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_unless_it_is_much() {
        let spare = SpareMemory::new();
        assert_eq!(spare.take().capacity(), 0);
        let used = vec![7; 4096];
        let at = used.as_ptr();
        spare.keep(used);
        let again = spare.take();
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
        spare.keep(vec![0; LARGEST + 1]);
        assert_eq!(spare.take().capacity(), 0);
        (0..9).for_each(|_| spare.keep(vec![1]));
        assert_eq!((0..9).filter(|_| spare.take().capacity() > 0).count(), MOST);
    }
}
