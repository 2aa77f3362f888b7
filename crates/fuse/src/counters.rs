//! Counters: how many requests of each opcode a mount received.

use crate::abi::opcode;
use sluice_sync::atomic::{AtomicU64, Ordering};
use std::fmt::Write;

/// Counts since the mount began.
#[derive(Debug)]
pub(crate) struct Counters([AtomicU64; opcode::COUNT]);

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters([const { AtomicU64::new(0) }; opcode::COUNT])
    }

    /// Counts one request. Opcodes that this crate does not know count as 0.
    pub(crate) fn count(&self, opcode: u32) {
        // Relaxed: a statistic, read on its own.
        self.slot(opcode).fetch_add(1, Ordering::Relaxed);
    }

    /// How many requests of `opcode` came.
    pub(crate) fn get(&self, opcode: u32) -> u64 {
        self.slot(opcode).load(Ordering::Relaxed)
    }

    /// How many requests came.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|slot| slot.load(Ordering::Relaxed)).sum()
    }

    /// The counts that are not 0 as a JSON object.
    pub(crate) fn to_json(&self) -> String {
        let mut json = String::from("{");
        for (number, name) in opcode::ALL {
            let count = self.get(*number);
            if count > 0 {
                let comma = if json.len() > 1 { "," } else { "" };
                // Writing to a String cannot fail.
                let _ = write!(json, "{comma}\"{name}\":{count}");
            }
        }
        json.push('}');
        json
    }

    fn slot(&self, opcode: u32) -> &AtomicU64 {
        self.0.get(opcode as usize).unwrap_or(&self.0[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_by_opcode() {
        let counters = Counters::new();
        counters.count(opcode::LOOKUP);
        counters.count(opcode::READ);
        counters.count(opcode::READ);
        counters.count(u32::MAX);
        assert_eq!((counters.get(opcode::READ), counters.total()), (2, 4));
        assert_eq!(counters.to_json(), r#"{"LOOKUP":1,"READ":2}"#);
    }
}
