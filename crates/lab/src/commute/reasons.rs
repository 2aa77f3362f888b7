//! Reasons: why a conflict that is left has to be, or is worth it.

use super::run::LineName;

/// One kind of conflict that is known and accepted.
struct Known {
    /// The calls of which one at least takes part; empty: any.
    calls: &'static [&'static str],
    /// The type that the line belongs to.
    owner: &'static str,
    /// What the name of the field contains.
    field: &'static str,
    /// The reason, for a person.
    why: &'static str,
}

/// Accepted conflicts. What is not listed is a finding.
const KNOWN: &[Known] = &[Known {
    calls: &["mount", "umount", "bind"],
    owner: "MountTable",
    field: "",
    why: "mounting changes the table that walks across mount points read",
}];

/// Why `line` is in conflict between the calls of `pair`, if that is accepted.
pub(super) fn reason(pair: [&str; 2], line: &LineName) -> Option<&'static str> {
    let known = KNOWN.iter().find(|known| {
        let calls = known.calls.is_empty() || pair.iter().any(|call| known.calls.contains(call));
        calls && known.owner == line.owner && line.field.contains(known.field)
    });
    known.map(|known| known.why)
}
