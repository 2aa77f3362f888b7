//! Links: what a document links to, or names by its path, is there. A heading that a link names is a heading.

use sluice_tidy::files_below;
use std::fs;
use std::path::{Path, PathBuf};

/// Documents that tell of earlier versions, whose files may have moved since.
const OF_THE_PAST: [&str; 3] = ["CHANGELOG.md", "RACES.md", "measurements.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// `text` without its fenced blocks of code.
fn without_blocks(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The name by which a link leads to `heading`, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Where each link of `text` leads: `[...](here)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
}

/// The path of a file that a piece of code names, as seen from the root of the workspace.
fn named(code: &str) -> Option<String> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    let mut parts = code.split('/');
    let (first, second) = (parts.next()?, parts.next()?);
    match (first, second) {
        _ if !code.chars().all(is_path) => None,
        ("bindings" | "crates" | "contrib" | "docs", _) => Some(code.to_owned()),
        (_, "src") if !first.is_empty() => Some(format!("crates/{code}")),
        _ => None,
    }
}

#[test]
fn documents_lead_to_files_and_headings_that_exist() {
    let root = root();
    let all = files_below(&root, &["target", ".git", "node_modules"]);
    let (mut count, mut missing) = (0, Vec::new());
    for path in all.iter().filter(|path| path.extension().is_some_and(|kind| kind == "md")) {
        let text = without_blocks(&fs::read_to_string(path).expect("a text"));
        let place = path.strip_prefix(&root).expect("below it").display();
        // Even parts are prose, odd ones pieces of code.
        let prose: String = text.split('`').step_by(2).collect();
        for link in links(&prose).filter(|link| !link.contains("://")) {
            count += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { path.clone() } else { path.parent().expect("a directory").join(file) };
            let has_heading = || {
                let target = without_blocks(&fs::read_to_string(&target).unwrap_or_default());
                target.lines().filter(|line| line.starts_with('#')).any(|line| {
                    let line = line.trim_start_matches('#');
                    anchor(line) == heading
                })
            };
            if !target.exists() || (!heading.is_empty() && !has_heading()) {
                missing.push(format!("{place}: {link}"));
            }
        }
        if OF_THE_PAST.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        for file in text.split('`').skip(1).step_by(2).filter_map(named) {
            count += 1;
            if !root.join(&file).exists() {
                missing.push(format!("{place}: {file}"));
            }
        }
    }
    assert!(count > 200, "{count} links and paths: most are not seen");
    assert!(missing.is_empty(), "these lead nowhere:\n{}", missing.join("\n"));
}

#[test]
fn anchors_are_those_of_the_host() {
    assert_eq!(
        anchor("9. The worked example of measuring.md (*simulated*)"),
        "9-the-worked-example-of-measuringmd-simulated"
    );
    assert_eq!(named("store/src/log.rs").as_deref(), Some("crates/store/src/log.rs"));
    assert_eq!(named("crates/{store,vfs}/src"), None);
}
