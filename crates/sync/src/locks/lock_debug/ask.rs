//! Ask: in what way a lock is being taken.

/// With whom a holder shares the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// With others of this mode.
    Shared,
    /// With nobody.
    Exclusive,
}

/// How a lock is taken.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code)] // compiled out, nobody looks at it
pub(crate) struct Ask {
    pub(crate) mode: Mode,
    /// The taker spins for it, and its owner must not sleep.
    pub(crate) spins: bool,
    /// A thread that reads may read again without waiting.
    pub(crate) reenters: bool,
    /// Different parts of one lock may be held at once.
    pub(crate) in_parts: bool,
    /// The taker may hold any number of the class: one order of theirs, or a common outer lock, rules them.
    pub(crate) any_number: bool,
    /// Tells apart locks of one class that one thread holds at a time.
    pub(crate) level: u8,
}

impl Ask {
    const PLAIN: Ask = Ask {
        mode: Mode::Exclusive,
        spins: false,
        reenters: false,
        in_parts: false,
        any_number: false,
        level: 0,
    };
    /// A sleeping lock, alone.
    pub(crate) const WRITE: Ask = Ask::PLAIN;
    /// A sleeping lock, with other readers.
    pub(crate) const READ: Ask = Ask { mode: Mode::Shared, ..Ask::PLAIN };
    /// A big-reader lock, for reading.
    pub(crate) const READ_AGAIN: Ask = Ask { reenters: true, ..Ask::READ };
    /// A spin lock.
    pub(crate) const SPIN: Ask = Ask { spins: true, ..Ask::PLAIN };

    /// A bucket of a table, whose taker spins but gives up its CPU when that lasts: its owner may sleep.
    pub(crate) const BUCKET: Ask = Ask { in_parts: true, ..Ask::PLAIN };

    /// This request for one of many locks of a class, which one order of theirs or a common outer lock rules.
    pub(crate) const fn any_number(self) -> Ask {
        Ask { any_number: true, ..self }
    }

    /// This request at `level` of the lock's class: 0 to 7, higher ones count as 7.
    pub(crate) const fn at(self, level: u8) -> Ask {
        Ask { level: if level < 8 { level } else { 7 }, ..self }
    }
}
