//! Modules: the files of a crate, and the names that each takes from others. Tests are left out.
//!
//! A name counts for the file that defines it, also when another file passes it on (`pub use`). A type counts where its name
//! stands, a method nowhere. A module's own submodules are parts of it: names of the module in them (`super`) do not count.

use crate::rust_words::{without_tests, words};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The names that one file takes from another, by both files.
pub type Ties = BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>;

/// A module's place below the root of its crate.
type ModulePath = Vec<String>;

/// One module: a file, or a part of one in braces.
#[derive(Default)]
struct Module {
    file: PathBuf,
    /// Paths that `use` brings in, by the name that they have here.
    imports: BTreeMap<String, ModulePath>,
    /// Names of `imports` that the module hands on, maybe without a use of its own.
    exports: BTreeSet<String>,
    /// Modules of which `use` brings in all names.
    globs: Vec<ModulePath>,
    /// Paths of two names or more in the code.
    paths: BTreeSet<ModulePath>,
    /// Names behind `fn`, `struct` and the like.
    defined: BTreeSet<String>,
    /// All words but those of `use`.
    words: BTreeSet<String>,
}

/// The modules of one crate.
#[derive(Default)]
pub struct Modules(BTreeMap<ModulePath, Module>);

/// Gives the text of a file, if there is one.
type ReadFile<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// The words of a file, and the place of the next.
struct WordReader<'a> {
    words: Vec<&'a str>,
    at: usize,
}

impl WordReader<'_> {
    /// The next word; at the end an empty one.
    fn next(&mut self) -> &str {
        self.at += 1;
        self.words.get(self.at - 1).copied().unwrap_or_default()
    }

    /// Goes past `word` if it is the next.
    fn eat(&mut self, word: &str) -> bool {
        let is_next = self.words.get(self.at) == Some(&word);
        self.at += usize::from(is_next);
        is_next
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

impl Modules {
    /// The modules of the crate whose root is the file `root`.
    ///
    /// # Panics
    /// If a module has no file.
    pub fn read(root: &Path, read: ReadFile<'_>) -> Self {
        let mut modules = Modules::default();
        modules.read_file(root, Vec::new(), read);
        modules
    }

    fn read_file(&mut self, file: &Path, place: ModulePath, read: ReadFile<'_>) {
        let text = read(file).unwrap_or_else(|| panic!("{}: no such file", file.display()));
        let mut reader = WordReader { words: without_tests(&words(&text)), at: 0 };
        self.read_module(file, place, &mut reader, read);
    }

    /// Reads a module up to its closing brace, or the end of its file.
    fn read_module(
        &mut self,
        file: &Path,
        place: ModulePath,
        reader: &mut WordReader<'_>,
        read: ReadFile<'_>,
    ) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        let (mut depth, mut is_public, mut at_path) = (0, false, None);
        while reader.at < reader.words.len() {
            let begin = reader.at;
            let word = reader.next().to_owned();
            match &*word {
                "{" => depth += 1,
                "}" if depth == 0 => break,
                "}" => depth -= 1,
                "pub" => is_public = true,
                ";" | "fn" => (is_public, at_path) = (false, None),
                "path" if reader.eat("=") => at_path = Some(reader.next().trim_matches('"').to_owned()),
                // Not the `use<'a>` of a type.
                "use" if reader.words.get(reader.at) != Some(&"<") => {
                    module.read_use(&mut Vec::new(), is_public, reader);
                    continue;
                }
                "mod" => {
                    let name = reader.next().to_owned();
                    let below = below(&place, &name);
                    if reader.eat("{") {
                        self.read_module(file, below, reader, read);
                    } else {
                        let file = file_of(file, place.is_empty(), &name, at_path.take(), read);
                        self.read_file(&file, below, read);
                    }
                }
                _ if is_name(&word) => {
                    let mut path = vec![word.clone()];
                    while reader.eat("::") && reader.words.get(reader.at).is_some_and(|word| is_name(word)) {
                        path.push(reader.next().to_owned());
                    }
                    let before = begin.checked_sub(1).map_or("", |at| reader.words[at]);
                    let defines =
                        ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];
                    if defines.contains(&before) || before == "!" {
                        module.defined.insert(word);
                    }
                    module.words.extend(path.iter().cloned());
                    if path.len() > 1 && before != "::" {
                        module.paths.insert(path);
                    }
                }
                _ => {}
            }
        }
        self.0.insert(place, module);
    }

    /// The module that a path leads to as seen from `from`, and the name there, if the path is of this crate.
    fn resolve(
        &self,
        from: &[String],
        path: &[String],
        depth: usize,
    ) -> Option<(ModulePath, Option<String>)> {
        let mut place = from.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            _ if depth > 16 => return None,
            "crate" => (place, rest) = (Vec::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {
                while let Some(("super", behind)) =
                    rest.split_first().map(|(name, rest)| (name.as_str(), rest))
                {
                    place.pop();
                    rest = behind;
                }
            }
            _ if self.0.contains_key(&below(&place, &path[0])) => {}
            first => {
                let import = self.0.get(&place)?.imports.get(first)?;
                return self.resolve(from, &[import, &rest[1..]].concat(), depth + 1);
            }
        }
        while let Some((name, behind)) = rest.split_first() {
            let inner = below(&place, name);
            let module = &self.0[&place];
            if self.0.contains_key(&inner) {
                (place, rest) = (inner, behind);
            } else if let Some(import) = module.imports.get(name) {
                return self.resolve(&place, &[import, behind].concat(), depth + 1);
            } else {
                let mut of_globs = module.globs.iter().filter_map(|glob| {
                    let found = self.resolve(&place, &[&glob[..], rest].concat(), depth + 1)?;
                    self.0[&found.0].defined.contains(found.1.as_deref()?).then_some(found)
                });
                let elsewhere = if module.defined.contains(name) { None } else { of_globs.next() };
                return Some(elsewhere.unwrap_or_else(|| (place.clone(), Some(name.clone()))));
            }
        }
        Some((place, None))
    }

    /// The names that files take from each other.
    pub fn ties(&self) -> Ties {
        let mut ties = Ties::new();
        for (from, module) in &self.0 {
            let imports = module
                .imports
                .iter()
                .filter(|(name, _)| !module.exports.contains(*name) || module.words.contains(*name));
            for path in imports.map(|(_, path)| path).chain(&module.paths) {
                let Some((place, Some(name))) = self.resolve(from, path, 0) else { continue };
                let file = &self.0[&place].file;
                if *file != module.file && !from.starts_with(&place) {
                    ties.entry((module.file.clone(), file.clone())).or_default().insert(name);
                }
            }
        }
        ties
    }
}

impl Module {
    /// Reads what stands behind `use`, or behind `path` in it.
    fn read_use(&mut self, path: &mut ModulePath, is_public: bool, reader: &mut WordReader<'_>) {
        let length = path.len();
        loop {
            match reader.next() {
                "{" => {
                    while !reader.eat("}") && reader.at < reader.words.len() {
                        self.read_use(path, is_public, reader);
                        reader.eat(",");
                    }
                    break;
                }
                "*" => {
                    self.globs.push(path.clone());
                    break;
                }
                word if is_name(word) => {
                    let word = word.to_owned();
                    // `a::{self}` brings in `a`.
                    if word != "self" || path.is_empty() {
                        path.push(word);
                    }
                    if reader.eat("::") {
                        continue;
                    }
                    let mut name = path.last().cloned().unwrap_or_default();
                    if reader.eat("as") {
                        name = reader.next().to_owned();
                    }
                    if is_public {
                        self.exports.insert(name.clone());
                    }
                    self.imports.insert(name, path.clone());
                    break;
                }
                "" => break,
                _ => {}
            }
        }
        path.truncate(length);
    }
}

/// The module `name` in that at `place`.
fn below(place: &[String], name: &str) -> ModulePath {
    [place, &[name.to_owned()]].concat()
}

/// The file of the module `name` that the file `parent` declares.
fn file_of(parent: &Path, is_root: bool, name: &str, at_path: Option<String>, read: ReadFile<'_>) -> PathBuf {
    let dir = parent.parent().expect("a directory");
    if let Some(path) = at_path {
        return dir.join(path);
    }
    let is_folder = is_root || parent.ends_with("mod.rs");
    let dir = if is_folder { dir.to_owned() } else { parent.with_extension("") };
    let file = dir.join(name).with_extension("rs");
    if read(&file).is_some() { file } else { dir.join(name).join("mod.rs") }
}
