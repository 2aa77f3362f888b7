//! The example that finds a missing fsync finds it.

#[path = "../../examples/missing_fsync.rs"]
#[allow(dead_code)]
mod example;

use example::{Loss, hunt};

#[test]
fn the_example_finds_the_missing_fsync_and_none_where_there_is_none() {
    let Loss { puts, unsynced, .. } = hunt(false).expect("memory").expect("one put is lost");
    assert!(puts > 1, "the first segment is known from the beginning");
    let names: Vec<_> =
        unsynced.iter().filter(|one| one.name).map(|one| one.path.display().to_string()).collect();
    assert_eq!(names, ["/db/CURRENT", "/db/CURRENT.new"]);
    assert!(hunt(true).expect("memory").is_none());
}
