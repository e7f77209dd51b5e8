//! Reads sections out of the merged tree of file and environment, and collects every problem.
//!
//! A node knows where it came from, so that a problem names the file's line or the variable. The
//! reader notes which keys a section asked for; what is left over is unknown.

use std::collections::BTreeMap;

use toml::Value;

use super::error::Problem;
use super::leaf::{Leaf, Refusal};

/// Where a value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// Line and column of the file, from 1.
    File(usize, usize),
    /// An environment variable.
    Variable(String),
}

/// A value with its place.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) origin: Origin,
    pub(super) content: Content,
}

/// What a node holds.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// A scalar, or a list of scalars, of the file.
    Value(Value),
    /// The text of a variable, whose type the key decides.
    Text(String),
    /// A table.
    Table(BTreeMap<String, Node>),
    /// A list with tables in it.
    List(Vec<Node>),
}

impl Node {
    /// The node as TOML has it.
    fn to_value(&self) -> Value {
        match &self.content {
            Content::Value(value) => value.clone(),
            Content::Text(text) => Value::String(text.clone()),
            Content::Table(table) => Value::Table(
                table.iter().map(|(name, node)| (name.clone(), node.to_value())).collect(),
            ),
            Content::List(items) => Value::Array(items.iter().map(Self::to_value).collect()),
        }
    }

    /// The text of a child, where there is one.
    pub(super) fn child_text(&self, name: &str) -> Option<&str> {
        let Content::Table(table) = &self.content else { return None };
        match &table.get(name)?.content {
            Content::Value(Value::String(text)) | Content::Text(text) => Some(text),
            Content::Value(_) | Content::Table(_) | Content::List(_) => None,
        }
    }

    fn read<T: Leaf>(&self) -> Result<T, Refusal> {
        match &self.content {
            Content::Text(text) => T::from_env(text),
            _ => T::from_value(&self.to_value()),
        }
    }
}

/// Problems, and where each key that was read stands.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// In the order of the reading.
    pub(super) problems: Vec<Problem>,
    /// By full key; absent for a key at its default.
    pub(super) origins: BTreeMap<String, Origin>,
    /// The file that the origins are in.
    pub(super) file: std::path::PathBuf,
}

impl Findings {
    /// Notes a problem at a place.
    pub(super) fn push(&mut self, origin: Option<&Origin>, key: &str, refusal: Refusal) {
        let (line, column, variable) = match origin {
            Some(Origin::File(line, column)) => (Some(*line), Some(*column), None),
            Some(Origin::Variable(name)) => (None, None, Some(name.clone())),
            None => (None, None, None),
        };
        self.problems.push(Problem {
            file: variable.is_none().then(|| self.file.clone()),
            line,
            column,
            variable,
            key: key.to_owned(),
            message: refusal.message,
            remedy: refusal.remedy,
        });
    }
}

/// One table while it is read.
pub(super) struct Reader<'a> {
    /// The table's own key, empty at the top.
    prefix: String,
    origin: Option<Origin>,
    table: BTreeMap<String, Node>,
    known: Vec<&'static str>,
    findings: &'a mut Findings,
}

impl<'a> Reader<'a> {
    /// Reads `node`, which is the table `prefix`; anything else than a table is a problem.
    pub(super) fn new(prefix: &str, node: Option<Node>, findings: &'a mut Findings) -> Self {
        let origin = node.as_ref().map(|node| node.origin.clone());
        let table = match node.map(|node| node.content) {
            None => BTreeMap::new(),
            Some(Content::Table(table)) => table,
            Some(Content::Value(_) | Content::Text(_) | Content::List(_)) => {
                let remedy = format!("write it as a table, [{prefix}]");
                findings.push(origin.as_ref(), prefix, Refusal::new("is not a table", remedy));
                BTreeMap::new()
            }
        };
        if let Some(origin) = &origin {
            findings.origins.insert(prefix.to_owned(), origin.clone());
        }
        Self { prefix: prefix.to_owned(), origin, table, known: Vec::new(), findings }
    }

    fn key(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}.{name}", self.prefix) }
    }

    /// Takes a node out, for a table or a list of tables.
    pub(super) fn node(&mut self, name: &'static str) -> Option<Node> {
        self.known.push(name);
        self.table.remove(name)
    }

    /// Whether a key that was not read yet is there.
    pub(super) fn has(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    /// Where problems go.
    pub(super) fn findings(&mut self) -> &mut Findings {
        self.findings
    }

    /// Reads a key that may be absent.
    pub(super) fn optional<T: Leaf>(&mut self, name: &'static str, default: T) -> Option<T> {
        match self.node(name) {
            None => Some(default),
            Some(node) => self.leaf(name, &node),
        }
    }

    /// Reads a key that must be there.
    pub(super) fn required<T: Leaf>(&mut self, name: &'static str) -> Option<T> {
        if let Some(node) = self.node(name) {
            return self.leaf(name, &node);
        }
        let remedy = format!("add {name} = {}", T::EXAMPLE);
        let origin = self.origin.clone();
        self.findings.push(origin.as_ref(), &self.key(name), Refusal::new("is missing", remedy));
        None
    }

    fn leaf<T: Leaf>(&mut self, name: &str, node: &Node) -> Option<T> {
        let key = self.key(name);
        self.findings.origins.insert(key.clone(), node.origin.clone());
        match node.read() {
            Ok(value) => Some(value),
            Err(refusal) => {
                self.findings.push(Some(&node.origin), &key, refusal);
                None
            }
        }
    }

    /// Ends the table: what nobody asked for is unknown.
    pub(super) fn finish(self) {
        for (name, node) in &self.table {
            let key = self.key(name);
            let remedy = unknown_key_remedy(name, &self.known);
            self.findings.push(
                Some(&node.origin),
                &key,
                Refusal::new("is not a known key", remedy),
            );
        }
    }
}

/// "did you mean" for the nearest known name, else all of them.
pub(super) fn unknown_key_remedy(name: &str, known: &[&str]) -> String {
    let near = known.iter().map(|candidate| (edit_distance(name, candidate), candidate)).min();
    match near {
        Some((distance, candidate)) if distance <= 2.max(candidate.len() / 3) => {
            format!("did you mean {candidate:?}?")
        }
        _ => format!("remove it, or use one of: {}", known.join(", ")),
    }
}

/// Insertions, deletions and substitutions between two names, ignoring case (Levenshtein).
fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().flat_map(char::to_lowercase).collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().flat_map(char::to_lowercase).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}
