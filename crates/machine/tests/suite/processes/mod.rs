//! Processes: a test that looks whether other processes, whose addresses are others, count the same.

use std::fmt::Debug;
use std::process::Command;

/// Set for child processes: print the counts and nothing else matters.
const CHILD: &str = "SLUICE_MACHINE_CHILD";

/// Asserts that `counts` gives the same in four processes. `test` is the name of the calling test, which these run alone: other
/// tests of this process would share its caches.
pub(crate) fn agree<T: Debug>(test: &str, counts: impl Fn() -> T) {
    if std::env::var_os(CHILD).is_some() {
        let on_stack = 0u8;
        println!("layout {:p} {:p}", &raw const on_stack, Box::new(0u8));
        println!("counts {:?}", counts());
        return;
    }
    let program = std::env::current_exe().expect("the test's own path");
    let mut first = None;
    for _ in 0..4 {
        let mut child = Command::new(&program);
        child.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
        let text = String::from_utf8(child.output().expect("a child").stdout).expect("text");
        let after = |word: &str| text.lines().find_map(|line| Some(line.split_once(word)?.1.to_owned()));
        let counted = after("counts ").expect("a child counts");
        assert_eq!(&counted, first.get_or_insert(counted.clone()), "with layout {:?}", after("layout "));
    }
}
