//! The house rules that a compiler does not check: who may import whom, and how a file begins.
//!
//! The ranks are read from the table in `src/lib.rs`. A module may name only modules of a lower
//! rank; modules of the same rank never meet. Comments, strings and `#[cfg(test)]` items do not
//! count. The checker is tested against sources that break the rule.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Rank of the modules that everybody may use, the row `base` of the table.
const BASE: i32 = -1;
/// What the pure modules must not know.
const OUTSIDE: [&str; 3] = ["tokio", "redis", "sqlx"];

type Ranks = BTreeMap<String, i32>;

#[test]
fn modules_import_only_downward() {
    let ranks = ranks(&read(Path::new("src/lib.rs")));
    let found: Vec<String> = sources()
        .iter()
        .filter(|file| module_path(file).is_some())
        .flat_map(|file| violations(&ranks, file, &read(file)))
        .collect();
    assert!(found.is_empty(), "imports that the ranks forbid:\n{}", found.join("\n"));
}

#[test]
fn every_module_has_a_rank() {
    let text = read(Path::new("src/lib.rs"));
    let ranks = ranks(&text);
    let code = code_only(&text);
    let modules: Vec<&str> = code
        .lines()
        .filter_map(|line| line.trim().trim_start_matches("pub ").strip_prefix("mod "))
        .filter_map(|rest| rest.strip_suffix(';'))
        .collect();
    assert!(!modules.is_empty(), "src/lib.rs declares no modules");
    for module in &modules {
        assert!(ranks.contains_key(*module), "{module} is not in the table of src/lib.rs");
    }
    for module in ranks.keys() {
        assert!(modules.contains(&module.as_str()), "{module} is ranked but does not exist");
    }
}

#[test]
fn the_pure_modules_know_no_stores_and_no_runtime() {
    for file in sources() {
        let Some(path) = module_path(&file) else { continue };
        if path[0] == "domain" || path[0] == "protocol" {
            let named = outside_names(&read(&file));
            assert!(named.is_empty(), "{} names {named:?}", file.display());
        }
    }
}

#[test]
fn every_file_says_what_it_is() {
    for file in sources() {
        assert!(
            read(&file).starts_with("//! "),
            "{} does not begin with `//!` and what it is",
            file.display()
        );
    }
}

#[test]
fn the_checker_bites() {
    let ranks: Ranks = [("clock", BASE), ("domain", 0), ("queue", 2), ("lease", 2), ("worker", 4)]
        .map(|(name, rank)| (name.to_owned(), rank))
        .into();
    let verdict = |file: &str, text: &str| violations(&ranks, Path::new(file), text).join("; ");
    let down = "use crate::domain::Task;\nfn f() { crate::clock::now() }";
    assert_eq!(verdict("src/queue/mod.rs", down), "");
    assert_eq!(verdict("src/queue/mod.rs", "use crate::queue::codec;"), "");

    let upward = verdict("src/queue/redis/mod.rs", "use crate::worker::Executor;");
    assert!(upward.contains("queue (rank 2) names worker (rank 4)"), "{upward}");
    let sibling = verdict("src/queue/mod.rs", "fn f() { crate::lease::f() }");
    assert!(sibling.contains("queue (rank 2) names lease (rank 2)"), "{sibling}");
    let group = verdict("src/domain/ids.rs", "use crate::{clock, queue::{self, codec}, lease};");
    assert!(group.contains("names queue") && group.contains("names lease"), "{group}");
    let base = verdict("src/clock.rs", "use crate::domain::Task;");
    assert!(base.contains("clock (rank base) names domain"), "{base}");
    let climbing = verdict("src/queue/redis/mod.rs", "use super::super::lease::Lease;");
    assert!(climbing.contains("names lease"), "{climbing}");
    assert_eq!(verdict("src/queue/redis/mod.rs", "use super::lease::Lease;"), "");
    let split = verdict("src/queue/mod.rs", "use crate::\n    worker::Executor;");
    assert!(split.contains("names worker"), "{split}");
    let unranked = verdict("src/queue/mod.rs", "use crate::novel::X;");
    assert!(unranked.contains("names novel"), "{unranked}");
}

#[test]
fn comments_strings_and_tests_do_not_count() {
    let text = r##"
        //! [`crate::worker`]
        /* crate::worker /* nested */ crate::worker */
        const A: &str = "crate::worker \" crate::worker";
        const B: &str = r#"" crate::worker "#;
        const C: [char; 3] = ['"', '\'', '\u{2f}'];
        fn f<'a>(x: &'a str) -> &'a str { x }
        #[cfg(test)]
        mod tests { use crate::worker::X; fn g() { "}" } }
        #[cfg(test)]
        use crate::worker::Y;
        use crate::lease::Z;
    "##;
    let code = code_only(text);
    assert!(!code.contains("worker"), "{code}");
    assert!(code.contains("crate::lease::Z"), "{code}");
    assert_eq!(outside_names("// tokio::spawn\nfn redis() {}"), Vec::<&str>::new());
    assert_eq!(outside_names("use sqlx::Row; fn f() { tokio :: spawn() }"), ["tokio", "sqlx"]);
}

/// Every edge of a file that the ranks forbid, said in words.
fn violations(ranks: &Ranks, file: &Path, text: &str) -> Vec<String> {
    let path = module_path(file).expect("a file of a module");
    let name = &path[0];
    let Some(own) = ranks.get(name) else {
        return vec![format!("{}: {name} has no rank in src/lib.rs", file.display())];
    };
    let say = |rank: i32| if rank == BASE { "base".to_owned() } else { rank.to_string() };
    let mut found: Vec<String> = root_names(&code_only(text), path.len())
        .into_iter()
        .filter(|other| other != name)
        .filter_map(|other| match ranks.get(&other) {
            Some(rank) if rank < own => None,
            Some(rank) => Some(format!("{other} (rank {})", say(*rank))),
            None => Some(format!("{other}, which is no module with a rank")),
        })
        .map(|other| format!("{}: {name} (rank {}) names {other}", file.display(), say(*own)))
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The names that follow `crate::`, or as many `super::` as lead from `depth` to the root.
fn root_names(code: &str, depth: usize) -> Vec<String> {
    let tokens = tokens(code);
    let mut names = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let start = at;
        let mut supers = 0;
        while tokens[at..].starts_with(&["super", "::"]) {
            supers += 1;
            at += 2;
        }
        let at_root = if supers > 0 {
            supers == depth
        } else if tokens[at..].starts_with(&["crate", "::"]) {
            at += 2;
            true
        } else {
            at += 1;
            false
        };
        // `$crate::` in a macro is still this crate; `pub(in crate::x)` too.
        if at_root && at < tokens.len() {
            names.extend(first_names(&tokens[at..]));
        }
        at = at.max(start + 1);
    }
    names
}

/// The first name of each path in `name…` or `{name…, name…}`.
fn first_names(tokens: &[&str]) -> Vec<String> {
    if tokens[0] != "{" {
        return vec![tokens[0].to_owned()];
    }
    let mut names = Vec::new();
    let mut open = 0;
    let mut expects = false;
    for token in tokens {
        match *token {
            "{" => {
                open += 1;
                expects = open == 1;
            }
            "}" => open -= 1,
            "," if open == 1 => expects = true,
            name if expects => {
                names.push(name.to_owned());
                expects = false;
            }
            _ => {}
        }
        if open == 0 {
            break;
        }
    }
    names
}

/// Which of [`OUTSIDE`] are used as the beginning of a path.
fn outside_names(text: &str) -> Vec<&'static str> {
    let code = code_only(text);
    let tokens = tokens(&code);
    OUTSIDE
        .into_iter()
        .filter(|name| {
            tokens.windows(2).any(|pair| pair == [*name, "::"] || pair == ["use", *name])
        })
        .collect()
}

/// Words, `::`, and every other character on its own.
fn tokens(code: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

/// The source without comments, the contents of strings, and `#[cfg(test)]` items.
fn code_only(text: &str) -> String {
    let mut code = without_comments_and_strings(text);
    while let Some(start) = code.find("#[cfg(test)]") {
        let rest = &code[start..];
        let mut open = 0_usize;
        let end = rest.char_indices().find_map(|(at, c)| {
            match c {
                '{' => open += 1,
                '}' => open = open.saturating_sub(1),
                _ => {}
            }
            (open == 0 && matches!(c, '}' | ';')).then_some(at + 1)
        });
        code.replace_range(start..start + end.unwrap_or(rest.len()), "");
    }
    code
}

fn without_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => string(rest),
            '\'' => character(rest),
            'r' if !ends_in_word(&code) || code.ends_with('b') => raw_string(rest),
            _ => 0,
        };
        let length = if skipped == 0 { first.len_utf8() } else { skipped };
        code.push_str(if skipped == 0 { &rest[..length] } else { " " });
        rest = &rest[length..];
    }
    code
}

fn ends_in_word(code: &str) -> bool {
    code.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Length of the block comment, which may hold others, at the start of `rest`.
fn block_comment(rest: &str) -> usize {
    let mut open = 0;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            open += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            open -= 1;
            at += 2;
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
        if open == 0 {
            return at;
        }
    }
    rest.len()
}

/// Length of the string literal at the start of `rest`.
fn string(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Length of the raw string at the start of `rest`; zero if it is some word that begins with `r`.
fn raw_string(rest: &str) -> usize {
    let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
    if !rest[1 + hashes..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let body = 2 + hashes;
    rest[body..].find(&end).map_or(rest.len(), |at| body + at + end.len())
}

/// Length of the character literal at the start of `rest`; zero if it is a lifetime.
fn character(rest: &str) -> usize {
    let mut inner = rest[1..].chars();
    match inner.next() {
        // The character after the backslash may itself be a quote.
        Some('\\') => rest.get(3..).and_then(|tail| tail.find('\'')).map_or(0, |at| at + 4),
        Some(c) if inner.next() == Some('\'') => 2 + c.len_utf8(),
        _ => 0,
    }
}

/// The ranks in the table of `src/lib.rs`: rows such as ``//! | 2 | [`queue`], [`lease`] |``.
fn ranks(lib: &str) -> Ranks {
    let mut ranks = Ranks::new();
    for row in lib.lines().filter_map(|line| line.strip_prefix("//! |")) {
        let mut cells = row.split('|').map(str::trim);
        let rank = match cells.next() {
            Some("base") => BASE,
            Some(number) => match number.parse() {
                Ok(rank) => rank,
                Err(_) => continue,
            },
            None => continue,
        };
        // Between backticks is every second piece.
        for name in cells.next().unwrap_or_default().split('`').skip(1).step_by(2) {
            ranks.insert(name.to_owned(), rank);
        }
    }
    assert!(!ranks.is_empty(), "src/lib.rs has no table of ranks");
    ranks
}

/// `src/queue/redis/mod.rs` is `[queue, redis]`; the roots `lib.rs` and `main.rs` are nothing.
fn module_path(file: &Path) -> Option<Vec<String>> {
    let inner = file.strip_prefix("src").ok()?.with_extension("");
    let mut path: Vec<String> =
        inner.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if path.len() == 1 && (path[0] == "lib" || path[0] == "main") {
        return None;
    }
    if path.last().is_some_and(|name| name == "mod") {
        path.pop();
    }
    Some(path)
}

/// Every Rust file below `src`, relative to the package, where cargo runs the tests.
fn sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("read {}: {error}", file.display()))
}
