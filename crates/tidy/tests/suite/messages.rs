//! Messages: each message that reaches a person has a test that makes it, or a reason in `untested_messages.txt`.
//!
//! A message is a string of three words or more in the source of the program. Its fixed parts are those between its placeholders. A
//! test makes it if a string of a test stands in a fixed part, or the other way round. Phrases, such as `open the log` in
//! `could not open the log: ...`, are parts of a message whose form is tested.

use sluice_tidy::files_below;
use std::fs;
use std::path::Path;

/// The crates of the program. The lab's messages about a measurement are not for everybody.
const CRATES: [&str; 10] =
    ["cli", "console", "fuse", "store", "bucket", "membership", "dlm", "cluster", "vfs", "trees"];
/// The tours, whose messages say that the file system failed a check of theirs, and what they start; the help, the corpus of
/// measurements, and checks of tests; the meanings of figures, each of which a test of `metrics.rs` finds.
const OTHERS: [&str; 10] = [
    "cli/src/demo",
    "cli/src/cluster_demo.rs",
    "cli/src/network.rs",
    "cli/src/args",
    "cli/src/figures.rs",
    "cli/src/bin/",
    "console/src/servers.rs",
    "console/src/corpus.rs",
    "store/src/disk/crash.rs",
    "vfs/src/durable/audit.rs",
];
/// Tests that stand beside the source under another name.
const TESTS: [&str; 2] = ["vfs/src/data/model.rs", "vfs/src/data/threads.rs"];
/// Calls that take a string which is no message: a panic, which is a fault of the program; the system's log; a lint's reason.
const NO_MESSAGES: &[&str] = &[
    "expect(",
    "panic!(",
    "assert!(",
    "assert_eq!(",
    "assert_ne!(",
    "unreachable!(",
    "log::",
    "reason =",
    "must_use =",
    "compile_error!(",
];
/// Calls that take a phrase.
const PHRASES: &[&str] = &[
    "StoreError::Io(",
    "StoreError::io(",
    "of_objects(",
    "of_records(",
    "MountError::System(",
    "guarded(",
    "self.with(",
    "part(&*disk, TREE,",
    "tried(",
    "io::Error::other(\"etcd at",
];
/// The part of a message that a test must contain, in bytes.
const MATCH_MIN: usize = 8;

const REASONS: &str = include_str!("../untested_messages.txt");

/// The strings of `text` with their places, as the compiler has them but for escapes of single characters. Comments have none.
fn strings(text: &str) -> Vec<(usize, String)> {
    let bytes = text.as_bytes();
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at += text[at..].find('\n').unwrap_or(text.len() - at);
            }
            b'r' if text[at..].starts_with("r#\"") => {
                let len = text[at + 3..].find("\"#").expect("it ends");
                found.push((at, text[at + 3..at + 3 + len].to_owned()));
                at += len + 5;
            }
            // A character, and not a lifetime.
            b'\'' if bytes.get(at + 1) == Some(&b'\\') => {
                at += 3 + text[at + 3..].find('\'').unwrap_or(0) + 1
            }
            b'\'' if bytes.get(at + 2) == Some(&b'\'') => at += 3,
            b'"' => {
                let (from, mut string) = (at, String::new());
                at += 1;
                while bytes[at] != b'"' {
                    if bytes[at] != b'\\' {
                        let char = text[at..].chars().next().expect("a character");
                        string.push(char);
                        at += char.len_utf8();
                        continue;
                    }
                    match bytes[at + 1] {
                        b'\n' => {
                            at += text[at + 1..].find(|c: char| !c.is_whitespace()).expect("it ends") + 1
                        }
                        b'n' => (string.push('\n'), at += 2).1,
                        other => (string.push(char::from(other)), at += 2).1,
                    }
                }
                found.push((from, string));
                at += 1;
            }
            _ => at += 1,
        }
    }
    found
}

/// The text between the placeholders of `message`.
fn fixed_parts(message: &str) -> Vec<&str> {
    let parts = message.split('{').enumerate();
    parts
        .map(|(at, part)| if at == 0 { part } else { part.split_once('}').map_or(part, |(_, rest)| rest) })
        .collect()
}

/// The statement, or the part of one, that ends where `before` does.
fn statement(before: &str) -> &str {
    let from = [";\n", "{\n", "\n\n", "=> "].iter().filter_map(|end| before.rfind(end)).max().unwrap_or(0);
    &before[from..]
}

/// The source before the tests of a file.
fn source_of(text: &str) -> &str {
    let is_module = |at: &usize| {
        let mut lines = text[*at..].lines().skip_while(|line| line.starts_with("#[") || line.is_empty());
        lines.next().is_some_and(|line| line.contains("mod ") && line.ends_with('{'))
    };
    let mut conditions = text
        .match_indices("\n#[cfg(")
        .map(|(at, _)| at)
        .filter(|at| text[at + 1..].lines().next().is_some_and(|line| line.contains("test")));
    &text[..conditions.find(is_module).unwrap_or(text.len())]
}

/// Whether `maker` takes the string that follows `before`: there is none between.
fn takes(maker: &str, before: &str) -> bool {
    before.rfind(maker).is_some_and(|at| !before[at..].contains('"'))
}

/// The messages of the program, and all strings of its tests.
fn messages_and_tests() -> (Vec<(String, String)>, Vec<String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the crates are there");
    let (mut messages, mut tests) = (Vec::new(), Vec::new());
    for name in CRATES {
        let mut files = Vec::new();
        for part in ["src", "tests"].map(|part| root.join(name).join(part)) {
            if part.is_dir() {
                let below = files_below(&part, &[]).into_iter();
                files
                    .extend(below.filter(|path| path.extension().is_some_and(|extension| extension == "rs")));
            }
        }
        for file in files {
            let text = fs::read_to_string(&file).expect("source is text");
            let path = file.strip_prefix(&root).expect("below it").display().to_string();
            let is_test = path.contains("/tests/") || path.ends_with("tests.rs") || TESTS.contains(&&*path);
            let product = if is_test { "" } else { source_of(&text) };
            tests.extend(strings(&text[product.len()..]).into_iter().map(|(_, string)| string));
            for (at, message) in strings(product) {
                let made = statement(&product[..at]).trim_end();
                let is_phrase = PHRASES.iter().any(|maker| made.ends_with(maker.trim_end()));
                let words =
                    message.split_whitespace().filter(|word| word.contains(char::is_alphabetic)).count();
                let is_other = OTHERS.iter().any(|other| path.starts_with(other))
                    || NO_MESSAGES.iter().any(|maker| takes(maker, made));
                if words >= 3 && !is_phrase && !is_other {
                    messages.push((path.clone(), message));
                }
            }
        }
    }
    tests.retain(|test| test.len() >= MATCH_MIN);
    (messages, tests)
}

fn is_made(message: &str, tests: &[String]) -> bool {
    let parts = fixed_parts(message);
    let longest = parts.iter().max_by_key(|part| part.len()).map_or("", |part| part.trim());
    tests.iter().any(|test| parts.iter().any(|part| part.contains(test.as_str())) || test.contains(longest))
}

#[test]
fn each_message_has_a_test_that_makes_it_or_a_reason() {
    let (messages, tests) = messages_and_tests();
    assert!(messages.len() > 400, "found only {} messages", messages.len());
    let excused: Vec<&str> = REASONS.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    let first_line = |message: &str| message.lines().next().unwrap_or_default().trim_end().to_owned();
    let is_excused = |message: &str| excused.contains(&first_line(message).as_str());
    let untested: Vec<_> = (messages.iter())
        .filter(|(_, message)| !is_made(message, &tests) && !is_excused(message))
        .map(|(path, message)| format!("{path}: {message}"))
        .collect();
    assert!(untested.is_empty(), "no test makes these messages:\n{}", untested.join("\n"));
    let needless: Vec<_> = (excused.iter())
        .filter(|one| {
            !messages.iter().any(|(_, message)| first_line(message) == **one && !is_made(message, &tests))
        })
        .collect();
    assert!(needless.is_empty(), "these are gone, or a test makes them: {needless:#?}");
}

#[test]
fn strings_and_their_fixed_parts_are_found() {
    let source = "// \"no\"\nlet a = 'x'; let b = '\\''; f(\"one {two} three\", \"a \\\n     b\\\"\")";
    let found: Vec<String> = strings(source).into_iter().map(|(_, string)| string).collect();
    assert_eq!(found, ["one {two} three", "a b\""]);
    assert_eq!(fixed_parts(&found[0]), ["one ", " three"]);
    assert!(is_made("one {two} threefold", &["ne threefold".into(), "threefold".into()]));
    assert!(!is_made("one {two} threefold", &["another".into()]));
}
