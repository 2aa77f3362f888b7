//! The named machines. Every figure has its source beside it.
//!
//! Three marks say how far to trust a figure: **\[V\]** was checked against the source,
//! **\[R\]** is recalled from the source without having it at hand, **\[A\]** is an assumption of this project,
//! chosen within the range that the sources give. Ratios between machines and between locks are what the
//! figures are for; absolute values are not.
//!
//! Hyper-threads are CPUs of their own at the distance of their socket's cores: that two of them
//! share a first-level cache and execution units is not modelled.

mod large;
mod small;
mod two_socket;

use crate::spec::Spec;

/// All named machines, smallest first.
pub fn all() -> [&'static Spec; 8] {
    [
        &small::UMA_2,
        &small::SKYLAKE_4,
        &small::VM_16,
        &large::OPTERON_32,
        &large::POWER7_64,
        &two_socket::ICELAKE_2S,
        &large::WESTMERE_160,
        &two_socket::MILAN_2S,
    ]
}

/// The machine of that name.
pub fn find(name: &str) -> Option<Spec> {
    all().into_iter().find(|spec| spec.name == name).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_machine_is_sound_and_symmetric() {
        for spec in all() {
            assert_eq!(spec.fault(), None, "{}", spec.name);
            assert!(!spec.sources.is_empty(), "{}", spec.name);
            for a in 0..spec.cpus {
                assert!((0..a).all(|b| (spec.distance)(a, b) == (spec.distance)(b, a)), "{}", spec.name);
            }
        }
    }

    #[test]
    fn farther_is_never_cheaper() {
        for spec in all() {
            for row in spec.transfer.rows().as_flattened() {
                assert!(row.is_sorted(), "{}: {row:?}", spec.name);
            }
        }
    }

    #[test]
    fn a_machine_without_a_name_is_not_found() {
        assert!(find("opteron-33").is_none());
    }
}
