//! A mailmap as gitmailmap(5) defines it: who is who.
//!
//! Read once for each version of the file and kept as entries; the views apply it. Names and addresses
//! compare without regard to case, in ASCII. As in git, what a later line says of the same name and
//! address replaces what an earlier one said, part by part.

use std::collections::BTreeMap;

/// Lines that are read.
const MAX_LINES: usize = 100_000;
/// Bytes of a name or an address; what is longer is left out, since an index could not hold it.
const MAX_BYTES: usize = 512;

/// A mailmap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mailmap {
    entries: BTreeMap<(String, String), Proper>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Proper {
    name: Option<String>,
    email: Option<String>,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The address in commits, in lower case.
    pub email: String,
    /// The name in commits, in lower case; empty for any.
    pub name: String,
    /// What to show in place of the name.
    pub proper_name: Option<String>,
    /// What to show in place of the address.
    pub proper_email: Option<String>,
}

impl Mailmap {
    /// Reads a file's bytes; what is no entry is passed over.
    pub fn parse(content: &[u8]) -> Self {
        let mut mailmap = Self::default();
        for line in content.split(|byte| *byte == b'\n').take(MAX_LINES) {
            mailmap.line(&String::from_utf8_lossy(line));
        }
        mailmap
    }

    /// Its entries.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.entries.iter().map(|((email, name), proper)| Entry {
            email: email.clone(),
            name: name.clone(),
            proper_name: proper.name.clone(),
            proper_email: proper.email.clone(),
        })
    }

    /// `Proper Name <proper@email> Commit Name <commit@email>`, where all but one address may be
    /// missing.
    fn line(&mut self, line: &str) {
        if line.starts_with('#') {
            return;
        }
        let Some((first_name, first_email, rest)) = person(line) else { return };
        let second = person(rest);
        let (proper, email, name) = match second {
            None => (Proper { name: first_name, email: None }, first_email, String::new()),
            Some((name, email, _)) => {
                let proper = Proper { name: first_name, email: Some(first_email) };
                (proper, email, name.unwrap_or_default())
            }
        };
        let texts = [Some(&email), Some(&name), proper.name.as_ref(), proper.email.as_ref()];
        if texts.into_iter().flatten().any(|text| text.len() > MAX_BYTES || text.contains('\0')) {
            return;
        }
        let key = (email.to_ascii_lowercase(), name.to_ascii_lowercase());
        let entry = self.entries.entry(key).or_default();
        entry.name = proper.name.or(entry.name.take());
        entry.email = proper.email.or(entry.email.take());
    }
}

/// `name <address>` at the start of a line, and what follows it.
fn person(text: &str) -> Option<(Option<String>, String, &str)> {
    let (name, rest) = text.split_once('<')?;
    let (email, rest) = rest.split_once('>')?;
    let name = name.trim_matches(|c: char| c.is_ascii_whitespace());
    Some(((!name.is_empty()).then(|| name.to_owned()), email.to_owned(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(email: &str, name: &str, to_name: Option<&str>, to_email: Option<&str>) -> Entry {
        Entry {
            email: email.to_owned(),
            name: name.to_owned(),
            proper_name: to_name.map(str::to_owned),
            proper_email: to_email.map(str::to_owned),
        }
    }

    #[test]
    fn all_four_forms_are_read() {
        let mailmap = Mailmap::parse(
            b"# comment <x@y>\nProper <Commit@Email.xx>\n<proper@email.xx> <other@email.xx>\n\
              Proper Name <proper@email.xx> <third@email.xx>\n\
              Proper Name <proper@email.xx> Commit Name <fourth@email.xx> # why\n\nno entry\n<open",
        );
        let found: Vec<Entry> = mailmap.entries().collect();
        assert_eq!(
            found,
            [
                entry("commit@email.xx", "", Some("Proper"), None),
                entry(
                    "fourth@email.xx",
                    "commit name",
                    Some("Proper Name"),
                    Some("proper@email.xx")
                ),
                entry("other@email.xx", "", None, Some("proper@email.xx")),
                entry("third@email.xx", "", Some("Proper Name"), Some("proper@email.xx")),
            ]
        );
    }

    #[test]
    fn a_later_line_replaces_part_by_part() {
        let mailmap = Mailmap::parse(b"A <a@x>\n<b@x> <A@x>\nC <a@x>\n");
        let found: Vec<Entry> = mailmap.entries().collect();
        assert_eq!(found, [entry("a@x", "", Some("C"), Some("b@x"))]);
    }

    #[test]
    fn what_is_too_long_is_left_out() {
        let line = format!("A <{}@x>\nB <b@x>\n", "a".repeat(MAX_BYTES));
        assert_eq!(Mailmap::parse(line.as_bytes()).entries().count(), 1);
    }
}
