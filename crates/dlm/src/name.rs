//! Names: what a lock is on: a resource of a shard, and the part of it that is locked.

use crate::NAME_MAX;
use sluice_membership::ShardId;
use sluice_sync::Arc;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Names of up to this many bytes are stored inline. More would make each name longer.
const SHORT_MAX: usize = 20;

/// A resource.
#[derive(Clone)]
pub struct Name(Text);

/// The shard of a resource, and what it is called.
#[derive(Clone)]
enum Text {
    Short(ShardId, u8, [u8; SHORT_MAX]),
    Long(ShardId, Arc<[u8]>),
}

impl Name {
    /// The resource called `bytes` in a shard that its caller chooses. None if the name is longer than [`NAME_MAX`].
    pub fn in_shard(shard: ShardId, bytes: &[u8]) -> Option<Name> {
        let mut short = [0; SHORT_MAX];
        let text = match (short.get_mut(..bytes.len()), u8::try_from(bytes.len())) {
            (Some(start), Ok(length)) => {
                start.copy_from_slice(bytes);
                Text::Short(shard, length, short)
            }
            _ => Text::Long(shard, bytes.into()),
        };
        (bytes.len() <= NAME_MAX).then_some(Name(text))
    }

    /// The resource called `bytes`, in a shard that its hash chooses of `shards`. None if the name is longer than
    /// [`NAME_MAX`].
    pub fn hashed(bytes: &[u8], shards: u16) -> Option<Name> {
        // FNV-1a, since all nodes must agree, whatever their build; then mixed, since its low bits are weak.
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let shard = sluice_sync::fibonacci(hash) >> 32;
        Name::in_shard(u16::try_from(shard % u64::from(shards.max(1))).unwrap_or(0), bytes)
    }

    /// Its shard.
    pub fn shard(&self) -> ShardId {
        match self.0 {
            Text::Short(shard, ..) | Text::Long(shard, _) => shard,
        }
    }

    /// The name's bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Short(_, length, bytes) => &bytes[..usize::from(*length)],
            Text::Long(_, bytes) => bytes,
        }
    }

    /// Bytes of the heap that the name takes.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.0 {
            Text::Short(..) => 0,
            Text::Long(_, bytes) => bytes.len(),
        }
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        self.shard() == other.shard() && self.bytes() == other.bytes()
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Name) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Name) -> Ordering {
        (self.shard(), self.bytes()).cmp(&(other.shard(), other.bytes()))
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.shard(), self.bytes()).hash(state);
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.shard(), self.bytes().escape_ascii())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}

/// A part of a resource, by its first and its last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    start: u64,
    end: u64,
}

impl Range {
    /// The whole resource.
    pub const WHOLE: Range = Range { start: 0, end: u64::MAX };

    /// From `start` to `end`, both included. None if the range is empty.
    pub fn new(start: u64, end: u64) -> Option<Range> {
        (start <= end).then_some(Range { start, end })
    }

    /// The first byte.
    pub fn start(self) -> u64 {
        self.start
    }

    /// The last byte.
    pub fn end(self) -> u64 {
        self.end
    }

    /// Whether a byte is in both.
    pub fn overlaps(self, other: Range) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// The unit of locking and caching on a node: a range of a resource. Locks on ranges that overlap exclude each other by
/// their modes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The resource.
    pub name: Name,
    /// The part of it.
    pub range: Range,
}

impl Key {
    /// The whole resource.
    pub fn whole(name: Name) -> Key {
        Key { name, range: Range::WHOLE }
    }

    /// Its shard.
    pub fn shard(&self) -> ShardId {
        self.name.shard()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.name, self.range.start)?;
        if self.range.end == u64::MAX { f.write_str("EOF") } else { write!(f, "{}", self.range.end) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_spread_over_the_shards_and_always_the_same_way() {
        let mut counts = [0; 16];
        for n in 0..1_600_u32 {
            let name = Name::hashed(format!("file-{n}").as_bytes(), 16).expect("short");
            counts[usize::from(name.shard())] += 1;
        }
        assert!(counts.iter().all(|count| (50..200).contains(count)), "{counts:?}");
        assert_eq!(
            Name::hashed(b"a", 64).expect("short").shard(),
            Name::hashed(b"a", 64).expect("short").shard()
        );
        assert_eq!(Name::hashed(&[0; NAME_MAX + 1], 64), None);
    }

    #[test]
    fn names_of_each_length_keep_their_bytes_and_short_ones_take_nothing_of_the_heap() {
        assert_eq!(size_of::<Name>(), 24);
        let bytes = [7; NAME_MAX];
        let name = |length: usize| Name::in_shard(1, &bytes[..length]).expect("short");
        for length in 0..=NAME_MAX {
            assert_eq!(name(length).bytes(), &bytes[..length]);
            assert_eq!(name(length).heap_bytes(), if length <= SHORT_MAX { 0 } else { length });
        }
        let mut names: Vec<_> = (0..=NAME_MAX).rev().map(name).collect();
        names.sort();
        assert!(names.iter().map(|name| name.bytes().len()).eq(0..=NAME_MAX), "in the order of their bytes");
    }

    #[test]
    fn ranges_overlap_where_they_share_a_byte() {
        let range = |start, end| Range::new(start, end).expect("not empty");
        assert!(range(0, 5).overlaps(range(5, 9)));
        assert!(!range(0, 4).overlaps(range(5, 9)));
        assert_eq!(Range::new(2, 1), None);
    }
}
