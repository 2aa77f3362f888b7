//! Mappings: a C program with shared and private mappings of files on the mount.

use super::stage::Stage;

/// Runs one case of the program.
fn case(test: &str, name: &str) {
    let Some(stage) = Stage::new(test, "", &["cc"]) else { return };
    let program = stage.compile("mappings", include_str!("mappings.c"));
    assert_eq!(stage.sh(&format!("{} {name} file", program.display())), format!("{name} done\n"));
}

#[test]
fn two_processes_see_each_others_writes_in_a_shared_mapping() {
    case("two_processes_see_each_others_writes_in_a_shared_mapping", "shared");
}

#[test]
fn reads_and_writes_agree_with_a_shared_mapping() {
    case("reads_and_writes_agree_with_a_shared_mapping", "coherent");
}

#[test]
fn a_private_mapping_is_not_seen_by_others() {
    case("a_private_mapping_is_not_seen_by_others", "private");
}

#[test]
fn truncation_under_a_mapping_gives_sigbus_and_zeros_not_old_data() {
    case("truncation_under_a_mapping_gives_sigbus_and_zeros_not_old_data", "truncated");
}

#[test]
fn a_mapping_outlives_its_descriptor_and_its_name() {
    case("a_mapping_outlives_its_descriptor_and_its_name", "unlinked");
}

#[test]
fn what_was_mapped_and_synchronised_is_in_the_file_and_its_times() {
    case("what_was_mapped_and_synchronised_is_in_the_file_and_its_times", "synchronised");
}

#[test]
fn holes_punched_under_a_mapping_read_as_zeros() {
    case("holes_punched_under_a_mapping_read_as_zeros", "punched");
}
