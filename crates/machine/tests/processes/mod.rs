//! Processes: a test that looks whether other processes, whose addresses are others, count the same.

use std::fmt::Debug;
use std::process::Command;

/// Set for child processes: print the counts and nothing else matters.
const CHILD: &str = "SLUICE_MACHINE_CHILD";

/// Asserts that `counts` gives the same here and in three other processes. `test` is the name of the calling test,
/// which these run, too.
pub(crate) fn agree<T: Debug>(test: &str, counts: impl Fn() -> T) {
    let here = format!("{:?}", counts());
    if std::env::var_os(CHILD).is_some() {
        let on_stack = 0u8;
        println!("layout {:p} {:p}", &raw const on_stack, Box::new(0u8));
        println!("counts {here}");
        return;
    }
    let program = std::env::current_exe().expect("the test's own path");
    for _ in 0..3 {
        let mut child = Command::new(&program);
        child.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
        let text = String::from_utf8(child.output().expect("a child").stdout).expect("text");
        let after = |word: &str| text.lines().find_map(|line| Some(line.split_once(word)?.1.to_owned()));
        assert_eq!(after("counts "), Some(here.clone()), "with layout {:?}", after("layout "));
    }
}
