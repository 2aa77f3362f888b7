//! Verdict: what a source says, what is seen, and whether the two agree.

use std::fmt::Write as _;

/// One claim, checked.
pub struct Verdict {
    /// The claim of the source, with its figures.
    pub source: String,
    /// The observation here, and the kind of its figures.
    pub seen: String,
    /// Whether that agrees.
    pub met: bool,
}

impl Verdict {
    pub(crate) fn new(source: impl Into<String>, seen: impl Into<String>, met: bool) -> Verdict {
        Verdict { source: source.into(), seen: seen.into(), met }
    }
}

/// The verdicts as text, one paragraph each.
pub(crate) fn text(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    for Verdict { source, seen, met } in verdicts {
        let word = if *met { "met" } else { "MISSED" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "Source:  {source}\nSeen:    {seen}\nVerdict: {word}\n");
    }
    let met = verdicts.iter().filter(|verdict| verdict.met).count();
    let _ = writeln!(text, "{met} of {} verdicts are met.", verdicts.len());
    text
}
