//! Words of Rust source, as far as rules of `tidy` need them.

/// The words and signs of `text`, without comments, characters and lifetimes. A string is one word.
pub(crate) fn words(text: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let (word, behind) = rest.split_at(first_length(rest));
        if !word.starts_with(['\'', ' ', '\n']) && !word.starts_with("//") && !word.starts_with("/*") {
            found.push(word);
        }
        rest = behind;
    }
    found
}

/// The length of the first word of `text`.
fn first_length(text: &str) -> usize {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let up_to =
        |from: usize, end: &str| text[from..].find(end).map_or(text.len(), |at| from + at + end.len());
    let first = text.chars().next().map_or(0, char::len_utf8);
    let raw = text.strip_prefix("br").or_else(|| text.strip_prefix('r'));
    let hashes = raw.map_or("", |raw| &raw[..raw.len() - raw.trim_start_matches('#').len()]);
    if raw.is_some_and(|raw| raw[hashes.len()..].starts_with('"')) {
        return up_to(3 + hashes.len(), &format!("\"{hashes}"));
    }
    match &text[..first] {
        "/" if text.starts_with("//") => up_to(0, "\n"),
        "/" if text.starts_with("/*") => up_to(0, "*/"),
        ":" if text.starts_with("::") => 2,
        "\"" => {
            let mut is_escaped = true;
            let end = text.find(|c| {
                let is_end = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                is_end
            });
            end.map_or(text.len(), |at| at + 1)
        }
        "'" if text.starts_with("'\\") => up_to(3, "'"),
        "'" => {
            let length = text[1..].chars().next().map_or(1, |c| 1 + c.len_utf8());
            let is_character = text[length..].starts_with('\'');
            let lifetime = text[1..].find(|c| !is_part(c)).map_or(text.len(), |at| 1 + at);
            if is_character { length + 1 } else { lifetime }
        }
        word if word.starts_with(is_part) => text.find(|c| !is_part(c)).unwrap_or(text.len()),
        _ => first,
    }
}

/// `words` without items that only tests have.
pub(crate) fn without_tests<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let (mut kept, mut rest) = (Vec::new(), words);
    while let [first, behind @ ..] = rest {
        let is_of_tests = [&["#", "[", "cfg", "(", "test"][..], &["#", "[", "cfg", "(", "all", "(", "test"]]
            .iter()
            .any(|begin| rest.starts_with(begin));
        if is_of_tests {
            rest = &rest[item_length(rest)..];
        } else {
            kept.push(*first);
            rest = behind;
        }
    }
    kept
}

/// The number of words of the item, field or statement that `words` begin with, and of its attributes.
fn item_length(words: &[&str]) -> usize {
    let (mut depth, mut keyword) = (0_i32, None);
    for (at, word) in words.iter().enumerate() {
        let is_item = keyword.is_some_and(|word| {
            ["fn", "impl", "struct", "enum", "mod", "use", "const", "static", "trait", "type", "let"]
                .contains(&word)
        });
        match *word {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" if depth == 0 => return at,
            ")" | "]" => depth -= 1,
            "}" => {
                depth -= 1;
                if depth == 0 && keyword != Some("use") && keyword != Some("let") {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            "," if depth == 0 && !is_item => return at + 1,
            "#" | "pub" => {}
            word if depth == 0 && keyword.is_none() => keyword = Some(word),
            _ => {}
        }
    }
    words.len()
}
