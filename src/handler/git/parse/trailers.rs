//! Finds the trailers of a message, as git does for `%(trailers:only,unfold)`.
//!
//! They are the last paragraph, but not the first, if all of its lines are trailers, or if at least a
//! quarter are and one of them is git's own (git-interpret-trailers(1)).

use super::ident::name_and_email;
use crate::handler::git::analysis::Trailer;

/// Trailers that are kept of one message.
const MAX_TRAILERS: usize = 1000;
/// Lines that git writes itself.
const OWN: [&str; 2] = ["Signed-off-by: ", "(cherry picked from commit "];
/// What heads the list of conflicts.
const CONFLICTS: &str = "Conflicts:";
/// What ends a message.
const SCISSORS: &str = "# ------------------------ >8 ------------------------";
/// What begins a line that does not count.
const COMMENT: char = '#';

/// The trailers of a message, in their order.
pub(in crate::handler::git) fn trailers(message: &str) -> Vec<Trailer> {
    let mut found: Vec<(String, String)> = Vec::new();
    // A continuation belongs to the trailer above it, or to the line above it that is none.
    let mut continues = false;
    for line in block(message).filter(|line| !line.starts_with(COMMENT)) {
        if let Some((_, value)) = found.last_mut().filter(|_| continues && is_indented(line)) {
            value.push(' ');
            value.push_str(line.trim());
            continue;
        }
        let trailer = split(line);
        continues = trailer.is_some();
        if let Some((key, value)) = trailer {
            if found.len() == MAX_TRAILERS {
                break;
            }
            found.push((key.to_owned(), value.to_owned()));
        }
    }
    found.into_iter().map(|(key, value)| described(key, value.trim())).collect()
}

fn described(key: String, value: &str) -> Trailer {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let parts = name_and_email(value.as_bytes());
    let (name, email) = parts.map(|(name, email)| (text(name), text(email))).unzip();
    Trailer { key, value: value.to_owned(), name, email }
}

/// The lines of the block of trailers; none if there is no such block.
fn block(message: &str) -> impl Iterator<Item = &str> {
    let mut lines: Vec<&str> = message.lines().collect();
    lines.truncate(end(&lines));
    let title = lines
        .iter()
        .position(|line| !line.starts_with(COMMENT) && is_blank(line))
        .unwrap_or(lines.len());
    let count = start(&lines, title).map_or(0, |start| lines.len() - start);
    let skip = lines.len() - count;
    lines.into_iter().skip(skip)
}

/// How many lines there are without those that git ignores at the end: blank ones, comments, what
/// follows a scissors line, and the list of conflicts that old versions wrote.
fn end(lines: &[&str]) -> usize {
    let lines = lines.split(|line| *line == SCISSORS).next().unwrap_or(lines);
    let mut end = 0;
    let mut conflicts = false;
    for (at, line) in lines.iter().enumerate() {
        if line.is_empty() || line.starts_with(COMMENT) {
            continue;
        }
        if *line == CONFLICTS {
            conflicts = true;
        } else if !(conflicts && line.starts_with('\t')) {
            conflicts = false;
            end = at + 1;
        }
    }
    end
}

/// The place of the block's first line, looking upward to the blank line before it.
fn start(lines: &[&str], title: usize) -> Option<usize> {
    let (mut trailers, mut others, mut indented) = (0_usize, 0_usize, 0_usize);
    let (mut own, mut only_blank) = (false, true);
    for (at, line) in lines.iter().enumerate().skip(title).rev() {
        if line.starts_with(COMMENT) {
            others += std::mem::take(&mut indented);
        } else if is_blank(line) {
            if only_blank {
                continue;
            }
            others += indented;
            let enough = (own && trailers * 3 >= others) || (trailers > 0 && others == 0);
            return enough.then_some(at + 1);
        } else {
            only_blank = false;
            if OWN.iter().any(|own| line.starts_with(own)) {
                own = true;
                trailers += 1;
                indented = 0;
            } else if split(line).is_some() {
                trailers += 1;
                indented = 0;
            } else if is_indented(line) {
                indented += 1;
            } else {
                others += 1 + std::mem::take(&mut indented);
            }
        }
    }
    None
}

/// `Key: value`, where the key is made of letters, digits and dashes, perhaps with blanks after it.
fn split(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(':')?;
    let token = key.trim_end_matches([' ', '\t']);
    let fits = !token.is_empty() && token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    fits.then(|| (token, value.trim()))
}

fn is_blank(line: &str) -> bool {
    line.chars().all(|c| c.is_ascii_whitespace())
}

fn is_indented(line: &str) -> bool {
    line.starts_with(|c: char| c.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(message: &str) -> Vec<(String, String)> {
        trailers(message).into_iter().map(|trailer| (trailer.key, trailer.value)).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_last_paragraph_counts() {
        let message = "s\n\nFixes: 1\n\nbody\n\nReviewed-by: A <a@x>\nSigned-off-by: B <b@x>\n\n";
        let expected = pairs(&[("Reviewed-by", "A <a@x>"), ("Signed-off-by", "B <b@x>")]);
        assert_eq!(read(message), expected);
        let first = &trailers(message)[0];
        assert_eq!((first.name.as_deref(), first.email.as_deref()), (Some("A"), Some("a@x")));
    }

    #[test]
    fn the_first_paragraph_never_does() {
        assert_eq!(read("Fixes: 1\n"), []);
        assert_eq!(read("Fixes: 1"), []);
        assert_eq!(read(""), []);
    }

    #[test]
    fn continuations_are_unfolded() {
        let expected = pairs(&[("Note", "one two three"), ("Fixes", "7")]);
        assert_eq!(read("s\n\nNote: one\n  two\n\tthree\nFixes : 7\n"), expected);
    }

    #[test]
    fn text_among_trailers_needs_one_of_gits_own() {
        assert_eq!(read("s\n\nsome text\nFixes: 1\n"), []);
        let expected = pairs(&[("Signed-off-by", "B <b@x>")]);
        assert_eq!(read("s\n\ntext\ntext\ntext\nSigned-off-by: B <b@x>\n"), expected);
        assert_eq!(read("s\n\nt\nt\nt\nt\nSigned-off-by: B <b@x>\n"), []);
        let picked = "s\n\n(cherry picked from commit 1234)\nFixes: 1\n";
        assert_eq!(read(picked), pairs(&[("Fixes", "1")]));
    }

    #[test]
    fn what_git_ignores_at_the_end_is_ignored() {
        let expected = pairs(&[("Fixes", "1")]);
        assert_eq!(read("s\n\nFixes: 1\n\nConflicts:\n\ta\n\tb\n# c\n\n"), expected);
        assert_eq!(read(&format!("s\n\nFixes: 1\n{SCISSORS}\ndiff\n")), expected);
        assert_eq!(read("s\n\nConflicts:\n\ta\n"), []);
        let later = pairs(&[("Conflicts", "a"), ("Fixes", "1")]);
        assert_eq!(read("s\n\nConflicts:\n\ta\nFixes: 1\n"), later);
    }

    #[test]
    fn keys_have_a_form() {
        assert_eq!(read("s\n\nhttp://x\n"), pairs(&[("http", "//x")]));
        assert_eq!(read("s\n\nSee this: x\n"), []);
        assert_eq!(read("s\n\n: x\n"), []);
        assert_eq!(read("s\n\nKey:\n"), pairs(&[("Key", "")]));
    }

    proptest! {
        #[test]
        fn any_text_is_taken(message in "([A-Za-z:#( \n\t-]|\r|é|\u{2400}){0,80}") {
            trailers(&message);
        }
    }
}
