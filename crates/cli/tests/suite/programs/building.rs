//! Building: compilers, build scripts and `make` on the mount, and running what they have made.

use super::stage::Stage;
use std::fs;

#[test]
fn cargo_builds_a_crate_with_a_build_script_and_runs_its_tests() {
    let name = "cargo_builds_a_crate_with_a_build_script_and_runs_its_tests";
    let Some(stage) = Stage::new(name, "", &["cargo", "cc"]) else { return };
    let root = stage.mount().join("small");
    fs::create_dir_all(root.join("src")).unwrap();
    let write = |path: &str, text: &str| fs::write(root.join(path), text).unwrap();
    write(
        "Cargo.toml",
        "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\nbuild = \"build.rs\"\n[workspace]\n",
    );
    write(
        "build.rs",
        "fn main() {
            let out = std::path::PathBuf::from(std::env::var_os(\"OUT_DIR\").unwrap());
            std::fs::write(out.join(\"answer.rs\"), \"pub const ANSWER: u32 = 42;\").unwrap();
            println!(\"cargo:rerun-if-changed=build.rs\");
        }",
    );
    write(
        "src/lib.rs",
        "include!(concat!(env!(\"OUT_DIR\"), \"/answer.rs\"));
         #[test] fn the_answer_is_known() { assert_eq!(ANSWER, 42); }",
    );
    write("src/main.rs", "fn main() { println!(\"{}\", small::ANSWER); }");
    // HOME is the host directory of the test: Cargo and its proxies are found by the variables they know.
    let user = std::env::var("HOME").unwrap_or_default();
    let home =
        |variable: &str, place: &str| std::env::var(variable).unwrap_or_else(|_| format!("{user}/{place}"));
    let cargo = |arguments: &str| {
        stage.sh(&format!(
            "export CARGO_HOME='{}' RUSTUP_HOME='{}'; cd small; cargo {arguments} 2>&1",
            home("CARGO_HOME", ".cargo"),
            home("RUSTUP_HOME", ".rustup"),
        ))
    };
    cargo("build --offline");
    assert_eq!(stage.sh("small/target/debug/small"), "42\n");
    assert!(cargo("test --offline").contains("the_answer_is_known ... ok"));
    // Without a change nothing is compiled again; with one the changed part is.
    assert!(!cargo("build --offline").contains("Compiling"));
    write("src/main.rs", "fn main() { println!(\"{}\", small::ANSWER + 1); }");
    assert!(cargo("build --offline").contains("Compiling"));
    assert_eq!(stage.sh("small/target/debug/small"), "43\n");
}

#[test]
fn make_builds_what_is_older_than_its_sources() {
    let name = "make_builds_what_is_older_than_its_sources";
    let Some(stage) = Stage::new(name, "", &["make", "cc"]) else { return };
    stage.sh(
        "mkdir src; for n in 1 2 3 4 5 6 7 8; do echo \"int f$n(void) { return $n; }\" >src/f$n.c; done
         echo 'int f8(void); int main(void) { return f8(); }' >src/main.c
         printf 'all: prog\\nOBJ = $(patsubst %%.c,%%.o,$(wildcard src/*.c))\\nprog: $(OBJ)\\n\\tcc -o $@ $^\\n' >Makefile",
    );
    stage.sh("make -j2");
    assert_eq!(stage.outcome("./prog").status.code(), Some(8));
    assert!(stage.sh("make").contains("Nothing to be done"));
    // The smallest step in time counts.
    stage.sh("touch -d '2020-01-01 00:00:00.000000001' src/f1.o; touch -d '2020-01-01 00:00:00.000000002' src/f1.c");
    assert_eq!(stage.sh("make -n | grep -c 'f1.o.*f1.c'").trim(), "1");
    stage.sh("touch -r src/f1.c src/f1.o");
    assert!(!stage.sh("make -n").contains("-c -o src/f1.o"), "equally old is not older");
}

#[test]
fn scripts_and_binaries_run_from_the_mount_and_are_busy_meanwhile() {
    let name = "scripts_and_binaries_run_from_the_mount_and_are_busy_meanwhile";
    let Some(stage) = Stage::new(name, "", &[]) else { return };
    assert_eq!(stage.sh("printf '#!/bin/sh\\necho script $1\\n' >s; chmod +x s; ./s one"), "script one\n");
    let refused = stage.outcome("chmod -x s; ./s");
    assert_eq!(refused.status.code(), Some(126), "{}", String::from_utf8_lossy(&refused.stderr));
    stage.sh("cp \"$(command -v sleep)\" nap; cp \"$(command -v cat)\" copycat; echo text | ./copycat >out; grep -q text out");
    // A running program cannot be written to, but it can be replaced.
    let busy = stage.outcome("./nap 1000 & nap=$!; trap 'kill $nap' EXIT; while [ \"$(readlink /proc/$nap/exe)\" != \"$PWD/nap\" ]; do :; done; echo x >>nap");
    assert!(String::from_utf8_lossy(&busy.stderr).contains("Text file busy"), "{busy:?}");
    stage.sh(
        "./nap 1000 & nap=$!; while [ \"$(readlink /proc/$nap/exe)\" != \"$PWD/nap\" ]; do :; done
              cp --remove-destination copycat nap; echo new | ./nap | grep -q new; kill $nap; wait $nap || :",
    );
}

#[test]
fn noexec_is_kept() {
    let Some(stage) = Stage::new("noexec_is_kept", "noexec", &[]) else { return };
    let refused = stage.outcome("printf '#!/bin/sh\\n' >s; chmod +x s; ./s");
    assert_eq!(refused.status.code(), Some(126));
}
