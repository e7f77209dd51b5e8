//! The file: its text, parsed to a tree whose nodes know their line and column.

use std::io::Read;
use std::path::Path;

use toml::Value;
use toml::de::{DeTable, DeValue};

use super::leaf::Refusal;
use super::reader::{Content, Findings, Node, Origin};

/// The largest file that is read, in bytes: nobody writes more by hand.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// No more entries of a folder are looked at for a hint.
const MOST_BESIDE: usize = 100;

/// Reads the file's text; a problem is noted, and `None` says so.
pub(super) fn read(path: &Path, findings: &mut Findings) -> Option<String> {
    let mut bytes = Vec::new();
    let result = std::fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    let refusal = match result {
        Err(error) => {
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            let beside = missing.then(|| beside(path)).flatten();
            let remedy = beside.unwrap_or_else(|| {
                "create it, readable for this user, or name another file".to_owned()
            });
            Refusal::new(format!("cannot be read: {error}"), remedy)
        }
        Ok(_) if bytes.len() as u64 > MAX_FILE_BYTES => Refusal::new(
            format!("is larger than {MAX_FILE_BYTES} bytes"),
            "name a configuration file",
        ),
        Ok(_) => match String::from_utf8(bytes) {
            Ok(text) => return Some(text),
            Err(_) => Refusal::new("is not UTF-8", "save it as UTF-8"),
        },
    };
    findings.push(None, "", refusal);
    None
}

/// The remedy where the folder has other files: each is the configuration of one instance.
fn beside(path: &Path) -> Option<String> {
    let entries = std::fs::read_dir(path.parent()?).ok()?.take(MOST_BESIDE).flatten();
    let mut files: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|file| file.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    let file = files.first()?;
    let name = file.file_stem()?.to_string_lossy();
    Some(format!(
        "name one that is there: --config {} (on NixOS the command queue-worker-{name} does)",
        file.display()
    ))
}

/// Parses the text; a problem is noted, and `None` says so.
pub(super) fn parse(text: &str, findings: &mut Findings) -> Option<Node> {
    match DeTable::parse(text) {
        Ok(table) => {
            let origin = origin(text, table.span().start);
            Some(Node { origin, content: table_content(text, table.get_ref()) })
        }
        Err(error) => {
            let origin = error.span().map(|span| origin(text, span.start));
            let message = format!("is not TOML: {}", error.message());
            let refusal = Refusal::new(message, "correct it; https://toml.io shows the syntax");
            findings.push(origin.as_ref(), "", refusal);
            None
        }
    }
}

/// Line and column of a byte, both from 1.
fn origin(text: &str, at: usize) -> Origin {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    Origin::File(line, column)
}

fn table_content(text: &str, table: &DeTable<'_>) -> Content {
    let entry = |(name, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        // The key's place: a table's own span may be a header further down.
        let origin = origin(text, name.span().start);
        let name: &std::borrow::Cow<'_, str> = name.get_ref();
        (name.to_string(), Node { origin, content: content(text, value.get_ref()) })
    };
    Content::Table(table.iter().map(entry).collect())
}

fn content(text: &str, value: &DeValue<'_>) -> Content {
    match value {
        DeValue::Table(table) => table_content(text, table),
        DeValue::Array(items) if items.iter().any(|item| item.get_ref().is_table()) => {
            let node = |item: &toml::Spanned<DeValue<'_>>| Node {
                origin: origin(text, item.span().start),
                content: content(text, item.get_ref()),
            };
            Content::List(items.iter().map(node).collect())
        }
        scalar => Content::Value(plain(scalar)),
    }
}

/// A value without places. A number that TOML allows and no integer holds stays a text, so that
/// the key refuses it.
fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Value::String(number.as_str().to_owned()), Value::Integer),
        DeValue::Float(number) => number
            .as_str()
            .parse()
            .map_or_else(|_| Value::String(number.as_str().to_owned()), Value::Float),
        DeValue::Boolean(flag) => Value::Boolean(*flag),
        DeValue::Datetime(date) => Value::Datetime(*date),
        DeValue::Array(items) => {
            Value::Array(items.iter().map(|item| plain(item.get_ref())).collect())
        }
        DeValue::Table(table) => Value::Table(
            table
                .iter()
                .map(|(name, value)| (name.get_ref().to_string(), plain(value.get_ref())))
                .collect(),
        ),
    }
}
