//! Modes: the six strengths in which a resource is locked, and which of them may be held together.

/// How strongly a resource is locked.
///
/// | | NL | CR | CW | PR | PW | EX |
/// |---|---|---|---|---|---|---|
/// | NL | + | + | + | + | + | + |
/// | CR | + | + | + | + | + | |
/// | CW | + | + | + | | | |
/// | PR | + | + | | + | | |
/// | PW | + | + | | | | |
/// | EX | + | | | | | |
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mode {
    /// Null: keeps the resource and its value, and excludes nobody.
    Nl,
    /// Concurrent read.
    Cr,
    /// Concurrent write.
    Cw,
    /// Protected read: others may read.
    Pr,
    /// Protected write: others may read concurrently.
    Pw,
    /// Exclusive.
    Ex,
}

/// For each mode a bit mask of compatible modes.
const COMPATIBLE: [u8; 6] = [0b11_1111, 0b01_1111, 0b00_0111, 0b00_1011, 0b00_0011, 0b00_0001];

impl Mode {
    /// All modes. A mode that covers another one comes after it.
    pub const ALL: [Mode; 6] = [Mode::Nl, Mode::Cr, Mode::Cw, Mode::Pr, Mode::Pw, Mode::Ex];

    /// Whether both may be held at once.
    #[inline]
    pub const fn compatible(self, other: Mode) -> bool {
        COMPATIBLE[self as usize] & (1 << other as u8) != 0
    }

    /// Whether this mode excludes all that `other` excludes: a node that has it may give out `other` by itself.
    #[inline]
    pub const fn covers(self, other: Mode) -> bool {
        COMPATIBLE[self as usize] & !COMPATIBLE[other as usize] == 0
    }

    /// The weakest mode that covers both.
    pub fn join(self, other: Mode) -> Mode {
        Mode::ALL.into_iter().find(|mode| mode.covers(self) && mode.covers(other)).unwrap_or(Mode::Ex)
    }

    /// The strongest mode that both cover.
    pub fn meet(self, other: Mode) -> Mode {
        let both = |mode: &Mode| self.covers(*mode) && other.covers(*mode);
        Mode::ALL.into_iter().rev().find(both).unwrap_or(Mode::Nl)
    }

    /// The remaining mode when this mode makes room for `wanted`: the strongest mode that this one covers and that is
    /// compatible.
    pub fn yielding_to(self, wanted: Mode) -> Mode {
        let left = |mode: &Mode| self.covers(*mode) && mode.compatible(wanted);
        Mode::ALL.into_iter().rev().find(left).unwrap_or(Mode::Nl)
    }

    /// Whether a holder may change what the lock protects.
    pub const fn writes(self) -> bool {
        matches!(self, Mode::Cw | Mode::Pw | Mode::Ex)
    }

    /// The name in two letters.
    pub const fn name(self) -> &'static str {
        ["NL", "CR", "CW", "PR", "PW", "EX"][self as usize]
    }

    /// The mode with this number.
    pub(crate) fn from_number(number: u8) -> Option<Mode> {
        Mode::ALL.get(usize::from(number)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compatibility_is_symmetric() {
        for a in Mode::ALL {
            for b in Mode::ALL {
                assert_eq!(a.compatible(b), b.compatible(a), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn a_join_covers_both_and_what_yields_is_covered_and_compatible() {
        for a in Mode::ALL {
            for b in Mode::ALL {
                let join = a.join(b);
                assert!(join.covers(a) && join.covers(b), "{a:?} {b:?}");
                let left = a.yielding_to(b);
                assert!(a.covers(left) && left.compatible(b), "{a:?} {b:?} {left:?}");
            }
        }
        assert_eq!(Mode::Cw.join(Mode::Pr), Mode::Pw);
        assert_eq!(Mode::Ex.yielding_to(Mode::Pr), Mode::Pr);
        assert_eq!(Mode::Ex.yielding_to(Mode::Ex), Mode::Nl);
    }
}
