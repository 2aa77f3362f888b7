//! Words: sentences of comments and documents name their subject.
//!
//! A sentence is hard to read when most of its words are function words, or when it begins with "What", "Of" or "One that". In
//! well-read code bases at most one sentence of a hundred is. Sentences of 9 to 60 words count; a piece of code is one word.
//! Tests, the list of changes and the list of figures are left out.

use sluice_tidy::files_below;
use std::fs;
use std::path::Path;

/// Hard sentences among a thousand: at most so many. Both numbers only fall.
const HARD_MAX: usize = 5;
/// Sentences with a hard start among ten thousand: at most so many.
const STARTS_MAX: usize = 10;

const FUNCTION_WORDS: &str = "it its that those these them they this one ones what which who whom whose of in to by for with as is \
    was are be has had have there then so and or but not no none nobody somebody nothing something all any more each other others \
    another than from on at if when where how also too only same such do does did done made make makes may must will would until \
    before after now still here out up";
const HARD_STARTS: [&str; 7] =
    ["What ", "Of ", "One that ", "One which ", "Those ", "Whoever ", "That which "];

/// Whether the sentences of the file at `path` count.
fn counts(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    (name.ends_with(".rs") && !name.contains("test"))
        || (name.ends_with(".md") && !matches!(&*name, "CHANGELOG.md" | "measurements.md"))
}

/// The prose of a file, a paragraph or an item of a list each.
fn paragraphs(text: &str, is_markdown: bool) -> Vec<String> {
    let (mut found, mut current, mut is_code) = (Vec::new(), String::new(), false);
    for line in text.lines() {
        let prose = if is_markdown {
            Some(line)
        } else {
            let comment = line.trim_start().strip_prefix("//");
            comment.map(|rest| rest.strip_prefix(['/', '!']).unwrap_or(rest))
        };
        let prose = prose.map_or("", str::trim);
        is_code ^= prose.starts_with("```");
        let is_item = prose.starts_with("- ")
            || prose.starts_with("* ")
            || prose.starts_with(|c: char| c.is_ascii_digit());
        if is_code || prose.is_empty() || is_item || prose.starts_with(['|', '#', '`']) {
            found.push(std::mem::take(&mut current));
        }
        if !is_code && !prose.starts_with(['|', '#']) {
            current.push_str(prose.trim_start_matches(['-', '*', ' ']));
            current.push(' ');
        }
    }
    found.push(current);
    found
}

/// `text` with each piece of code and each link as one word.
fn without_code(text: &str) -> String {
    let mut plain = String::new();
    for (number, part) in text.split('`').enumerate() {
        plain.push_str(if number % 2 == 0 { part } else { "CODE" });
    }
    plain
}

fn sentences(paragraph: &str) -> Vec<&str> {
    let ends = paragraph.match_indices(['.', '!', '?']).filter(|(at, _)| {
        let mut rest = paragraph[at + 1..].chars();
        rest.next() == Some(' ')
            && rest.next().is_some_and(|next| next.is_uppercase() || next == '*' || next == '[')
    });
    let mut begin = 0;
    let mut found: Vec<&str> = ends
        .map(|(end, _)| {
            let sentence = &paragraph[begin..=end];
            begin = end + 1;
            sentence.trim()
        })
        .collect();
    found.push(paragraph[begin..].trim());
    found
}

/// The share of function words in percent; none if this is not a sentence that counts.
fn function_words(sentence: &str) -> Option<usize> {
    let words: Vec<_> = sentence
        .split(|c: char| !c.is_ascii_alphabetic() && c != '\'')
        .filter(|word| !word.is_empty())
        .collect();
    let is_code = ["->", "let ", "pub fn", "{}", "};", "=="].iter().any(|code| sentence.contains(code));
    if is_code || !(9..=60).contains(&words.len()) {
        return None;
    }
    let is_function = |word: &&&str| FUNCTION_WORDS.split(' ').any(|other| other.eq_ignore_ascii_case(word));
    Some(100 * words.iter().filter(is_function).count() / words.len())
}

#[test]
fn sentences_name_their_subjects() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let all = files_below(&root, &["target", ".git", "node_modules", "tests"]);
    let (mut count, mut hard, mut starts) = (0, Vec::new(), Vec::new());
    for path in all.into_iter().filter(|path| counts(path)) {
        let text = fs::read_to_string(&path).expect("a text");
        let place = path.strip_prefix(&root).expect("below it").display().to_string();
        for paragraph in paragraphs(&text, place.ends_with(".md")) {
            let plain = without_code(&paragraph);
            for sentence in sentences(&plain) {
                let Some(share) = function_words(sentence) else { continue };
                count += 1;
                if share >= 60 {
                    hard.push(format!("{place}: {sentence}"));
                }
                if HARD_STARTS.iter().any(|start| sentence.trim_start_matches(['*', '_']).starts_with(start))
                {
                    starts.push(format!("{place}: {sentence}"));
                }
            }
        }
    }
    assert!(count > 5_000, "{count} sentences: most are not seen");
    let (hard_max, starts_max) = (count * HARD_MAX / 1_000, count * STARTS_MAX / 10_000);
    assert!(hard.len() <= hard_max, "{} of {count} sentences lack nouns:\n{}", hard.len(), hard.join("\n"));
    assert!(
        starts.len() <= starts_max,
        "{} sentences begin without a noun:\n{}",
        starts.len(),
        starts.join("\n")
    );
}

#[test]
fn a_sentence_of_function_words_is_found() {
    let hard = "What was not named before it was freed would be somebody else's";
    assert!(function_words(hard).is_some_and(|share| share >= 60));
    let plain = "A read-only reader drops parts that the owner of the store has deleted";
    assert!(function_words(plain).is_some_and(|share| share < 60));
    assert_eq!(function_words("Too short to count."), None);
}
