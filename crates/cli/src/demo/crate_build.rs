//! Crate build: a small program without dependencies, and `cargo build` of it.

use sluice_console::failure::{Context, Failure, Result};
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// The output of the program.
const ANSWER: &str = "sum of squares: 385";
const MODULES: usize = 8;

/// Writes the crate into the new directory `dir`.
pub(super) fn generate(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir.join("src"))?;
    let manifest = "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[workspace]\n";
    std::fs::write(dir.join("Cargo.toml"), manifest)?;
    let mut main = String::new();
    for number in 0..MODULES {
        let _ = writeln!(main, "mod part{number};");
        std::fs::write(dir.join(format!("src/part{number}.rs")), module(number))?;
    }
    main.push_str(
        "\nfn main() {\n    let mut sum: u64 = 0;\n    for n in 1..=10u64 {\n        sum += n * n;\n    }\n",
    );
    for number in 0..MODULES {
        let _ = writeln!(main, "    assert_eq!(part{number}::twice(21).get(), 42);");
    }
    main.push_str("    println!(\"sum of squares: {sum}\");\n}\n");
    std::fs::write(dir.join("src/main.rs"), main)?;
    Ok(())
}

fn module(number: usize) -> String {
    let mut text = String::from(
        "#[derive(Clone, Debug, PartialEq)]\npub struct Value(Vec<u64>);\n\n\
         impl Value {\n    pub fn get(&self) -> u64 {\n        self.0.iter().sum()\n    }\n}\n\n",
    );
    let _ = write!(text, "pub fn twice(value: u64) -> Value {{\n    Value(vec![value; 2])\n}}\n\n");
    for function in 0..12 {
        let _ = write!(
            text,
            "#[allow(dead_code)]\npub fn step{function}(input: &[Value]) -> Vec<String> {{\n    \
             input.iter().map(|value| format!(\"{number}-{function}: {{value:?}}\")).collect()\n}}\n\n"
        );
    }
    text
}

/// Builds the crate in `dir`, target directory included, and runs the program.
pub(super) fn build_and_run(dir: &Path) -> Result<()> {
    let target = dir.join("target");
    let built = cargo()
        .args(["build", "--offline", "--quiet", "--target-dir"])
        .arg(&target)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .context(|| "cargo")?;
    if !built.status.success() {
        let complaint = String::from_utf8_lossy(&built.stderr);
        let line = complaint.lines().find(|line| line.starts_with("error")).unwrap_or("no reason given");
        return Err(Failure::Failed(format!("cargo build: {line}")));
    }
    let ran = Command::new(target.join("debug/small")).output().context(|| "the program just built")?;
    let printed = String::from_utf8_lossy(&ran.stdout);
    if printed.trim_end() == ANSWER {
        Ok(())
    } else {
        Err(Failure::Failed(format!("the program just built printed \"{}\"", printed.trim_end())))
    }
}

/// Why no crate can be built on this machine, tried out in `scratch`; `None` when it works. Warms the compiler up.
pub(super) fn why_not(scratch: &Path) -> Option<String> {
    let dir = scratch.join("trial");
    let outcome = generate(&dir).and_then(|()| build_and_run(&dir));
    let _ = std::fs::remove_dir_all(&dir);
    let failure = outcome.err()?;
    Some(if cargo().arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        "there is no cargo here; https://rustup.rs installs it".to_owned()
    } else if failure.to_string().contains("linker") {
        format!("{failure}; `apt install gcc` installs a linker")
    } else {
        failure.to_string()
    })
}

/// Cargo without what an outer Cargo or the user's settings would make it do differently.
fn cargo() -> Command {
    let mut command = Command::new("cargo");
    for variable in
        ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER"]
    {
        command.env_remove(variable);
    }
    command
}
