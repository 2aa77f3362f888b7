//! Work: a call to be made once, kept without an allocation when what it captures fits into a word.

use std::mem::MaybeUninit;

/// Room for what most deferred calls capture: the address of what they free.
type WorkWord = MaybeUninit<*mut ()>;

/// A call to be made once. Dropping it without the call leaks the captured values.
pub(super) struct Work {
    captured: WorkWord,
    /// Makes the call of the type whose value is in the word.
    run: unsafe fn(WorkWord),
}

// SAFETY: it owns what the call captured, which is `Send` (the bound of `new`).
unsafe impl Send for Work {}

impl Work {
    pub(super) fn new<F: FnOnce() + Send + 'static>(call: F) -> Work {
        if fits::<F>() { Work::in_a_word(call) } else { Work::in_a_word(Box::new(call)) }
    }

    fn in_a_word<F: FnOnce() + Send + 'static>(call: F) -> Work {
        assert!(fits::<F>(), "a box is one word");
        let mut captured = WorkWord::uninit();
        // SAFETY: the word is as long and as aligned as `F` needs: asserted.
        unsafe { captured.as_mut_ptr().cast::<F>().write(call) };
        Work { captured, run: run::<F> }
    }

    pub(super) fn run(self) {
        // SAFETY: `run` is of the type that was written, and this is the only time.
        unsafe { (self.run)(self.captured) }
    }
}

const fn fits<F>() -> bool {
    size_of::<F>() <= size_of::<WorkWord>() && align_of::<F>() <= align_of::<WorkWord>()
}

/// # Safety
/// `captured` holds an `F`, which nobody takes again.
unsafe fn run<F: FnOnce()>(captured: WorkWord) {
    // SAFETY: by contract.
    let call = unsafe { captured.as_ptr().cast::<F>().read() };
    call();
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::Arc;

    #[test]
    fn calls_take_along_what_they_capture_however_much_it_is() {
        let counted = Arc::new(());
        let (one, two, three) = (counted.clone(), counted.clone(), counted.clone());
        let array = [7_u64; 9];
        let works = [
            Work::new(|| ()),
            Work::new(move || drop(one)),
            Work::new(move || assert_eq!(array.iter().sum::<u64>(), 63)),
            Work::new(move || drop((two, three))),
        ];
        assert_eq!(Arc::strong_count(&counted), 4);
        works.into_iter().for_each(Work::run);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
