//! Programs in C and Go, compiled with the header and linked with the library.

use crate::{library, package};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

/// Makes a command's output text, after success.
fn success(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

/// A directory for the test `name`, empty, below the target directory.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a directory below target");
    dir
}

/// Compiles the program `source` with `compiler`, each warning being an error, and runs it in a directory of its own.
fn run(compiler: &[&str], source: &str) -> String {
    let dir = scratch(&format!("{}-{}", compiler[0], source.replace('/', "-")));
    let program = dir.join("program");
    success(
        Command::new(compiler[0])
            .args(&compiler[1..])
            .args(["-Wall", "-Wextra", "-Werror", "-pthread"])
            .arg(format!("-I{}", package().join("include").display()))
            .arg(package().join(source))
            .arg("-L")
            .arg(library())
            .args(["-lsluice", "-o"])
            .arg(&program),
    );
    // The library's name for the dynamic linker has a number, which `make install` gives the file, too.
    std::os::unix::fs::symlink(library().join("libsluice.so"), dir.join("libsluice.so.0")).expect("a link");
    success(Command::new(&program).current_dir(&dir).env("LD_LIBRARY_PATH", &dir))
}

#[test]
fn every_call_does_in_c_what_its_name_says() {
    assert_eq!(run(&["cc", "-std=gnu11"], "tests/suite/calls.c"), "all calls\n");
}

#[test]
fn the_example_in_c_finds_the_missing_fsync() {
    let said = run(&["cc", "-std=gnu11"], "examples/settings.c");
    assert_eq!(said, "without fsync: a power failure loses the settings\nwith fsync: nothing is lost\n");
}

#[test]
fn the_example_in_go_runs() {
    let tools = env::var_os("TOOLS").map_or_else(|| package().join("../../target/tools"), PathBuf::from);
    let ours = tools.join("go/bin/go");
    let go = if ours.exists() { ours } else { PathBuf::from("go") };
    if Command::new(&go).arg("version").output().is_err() {
        eprintln!(
            "SKIPPED: the example in Go, for want of: go (cure: make s3-server, or install Go 1.22 or newer)"
        );
        return;
    }
    let dir = scratch("go");
    let library = library();
    std::os::unix::fs::symlink(library.join("libsluice.so"), dir.join("libsluice.so.0")).expect("a link");
    success(
        Command::new(&go)
            .args(["build", "-o"])
            .arg(dir.join("program"))
            .current_dir(package().join("examples/go"))
            .env("CGO_ENABLED", "1")
            .env("CGO_CFLAGS", format!("-I{}", package().join("include").display()))
            .env("CGO_LDFLAGS", format!("-L{} -lsluice", library.display()))
            .env("GOFLAGS", "-mod=mod")
            .env("GOCACHE", dir.join("cache"))
            .env("GOPATH", dir.join("path")),
    );
    let said = success(Command::new(dir.join("program")).env("LD_LIBRARY_PATH", &dir));
    assert_eq!(said, "inconsistencies: 0\nwrite to a full disk: no space left on device\n");
}
