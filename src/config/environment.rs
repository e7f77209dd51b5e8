//! The environment: overrides of keys, and what systemd tells about directories.
//!
//! `QUEUE_WORKER_SECTION__KEY` overrides one key. A variable of ours that has `__` and fits no key
//! is a problem, since a misspelt override that is ignored is worse than none; so is one that would
//! fit if one `_` were two. Any other without `__` belongs to somebody else (the command line's
//! options, what a task is told of its run).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use super::leaf::Refusal;
use super::reader::{Content, Findings, Node, Origin};
use super::reference::reference_keys;

/// What every override starts with.
pub const VARIABLE_PREFIX: &str = "QUEUE_WORKER_";

/// What stands between section and key.
const SEPARATOR: &str = "__";

/// The most queues that a configuration may have.
pub(super) const MAX_QUEUES: usize = 1_000;

/// The variables of a process.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// The variables of this process.
    pub fn of_process() -> Self {
        Self(std::env::vars_os().collect())
    }

    /// The value of one variable.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Lays the overrides over the tree of the file.
    pub(super) fn overlay(&self, root: &mut Node, findings: &mut Findings) {
        for (name, text) in &self.0 {
            let Some(name) = name.to_str() else { continue };
            let Some(path) = name.strip_prefix(VARIABLE_PREFIX) else { continue };
            let origin = Origin::Variable(name.to_owned());
            let Some((section, rest)) = path.split_once(SEPARATOR) else {
                if let Some(meant) = doubled(name) {
                    let remedy = format!("write {meant}");
                    let refusal = Refusal::new("overrides nothing: one `_` is missing", remedy);
                    findings.push(Some(&origin), "", refusal);
                }
                continue;
            };
            let placed = match text.to_str() {
                None => Err(Refusal::new("is not UTF-8", "give it a value that is text")),
                Some(text) => place(root, &section.to_ascii_lowercase(), rest, &origin, text),
            };
            if let Err(refusal) = placed {
                findings.push(Some(&origin), "", refusal);
            }
        }
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, text)| (name.into(), text.into())).collect())
    }
}

/// The variable that was meant, where a name without the separator would be one with it.
fn doubled(name: &str) -> Option<String> {
    let name = name.to_ascii_uppercase();
    reference_keys().into_iter().find_map(|key| {
        for place in ["__NAME__", "__KIND__"] {
            let Some((before, after)) = key.variable.split_once(place) else { continue };
            let selector = name.strip_prefix(before)?.strip_suffix(after)?;
            let selector = selector.strip_prefix('_')?.strip_suffix('_')?;
            return (!selector.is_empty())
                .then(|| [before, SEPARATOR, selector, SEPARATOR, after].concat());
        }
        (key.variable.replace(SEPARATOR, "_") == name).then_some(key.variable)
    })
}

/// Puts one override where it belongs.
fn place(
    root: &mut Node,
    section: &str,
    rest: &str,
    origin: &Origin,
    text: &str,
) -> Result<(), Refusal> {
    let (selector, key) = match rest.rsplit_once(SEPARATOR) {
        Some((selector, key)) => (Some(selector), key),
        None => (None, rest),
    };
    let table = match (section, selector) {
        ("queue", Some(selector)) => queue_table(root, selector, origin)?,
        ("handler", Some(selector)) => handler_table(root, selector, origin),
        ("queue" | "handler", None) => return Err(no_selector(section)),
        (_, Some(_)) => {
            let remedy = format!("write {VARIABLE_PREFIX}SECTION{SEPARATOR}KEY");
            return Err(Refusal::new("names no key: it has one part too many", remedy));
        }
        (_, None) => child_table(root, section, origin),
    };
    // A node of the file that is no table is reported when it is read.
    if let Some(table) = table {
        let node = Node { origin: origin.clone(), content: Content::Text(text.to_owned()) };
        table.insert(key.to_ascii_lowercase(), node);
    }
    Ok(())
}

fn no_selector(section: &str) -> Refusal {
    let remedy = match section {
        "queue" => "write QUEUE_WORKER_QUEUE__NAME__KEY, or QUEUE_WORKER_QUEUE__0__KEY",
        _ => "write QUEUE_WORKER_HANDLER__KIND__KEY",
    };
    Refusal::new(format!("does not say which {section}"), remedy)
}

type Table = BTreeMap<String, Node>;

fn new_table(origin: &Origin) -> Node {
    Node { origin: origin.clone(), content: Content::Table(BTreeMap::new()) }
}

/// The table called `name`, made if it is not there; `None` if something else is there.
fn child_table<'a>(node: &'a mut Node, name: &str, origin: &Origin) -> Option<&'a mut Table> {
    let Content::Table(table) = &mut node.content else { return None };
    let child = table.entry(name.to_owned()).or_insert_with(|| new_table(origin));
    match &mut child.content {
        Content::Table(table) => Some(table),
        Content::Value(_) | Content::Text(_) | Content::List(_) => None,
    }
}

/// A name as a variable can spell it: upper or lower case, and `_` for all else.
fn folded(name: &str) -> String {
    let fold = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    name.chars().map(fold).collect()
}

/// A handler by its kind, in the variable's spelling; one that the file does not have is new.
fn handler_table<'a>(root: &'a mut Node, selector: &str, origin: &Origin) -> Option<&'a mut Table> {
    let handlers = child_table(root, "handler", origin)?;
    let same = |kind: &&String| folded(kind) == folded(selector);
    let known = handlers.get_key_value(selector).map(|(kind, _)| kind);
    let kind = known.or_else(|| handlers.keys().find(same)).cloned();
    let kind = kind.unwrap_or_else(|| selector.to_owned());
    let handler = handlers.entry(kind).or_insert_with(|| new_table(origin));
    match &mut handler.content {
        Content::Table(table) => Some(table),
        Content::Value(_) | Content::Text(_) | Content::List(_) => None,
    }
}

/// A queue by its name in the file, or by its place; the place after the last makes a new one.
fn queue_table<'a>(
    root: &'a mut Node,
    selector: &str,
    origin: &Origin,
) -> Result<Option<&'a mut Table>, Refusal> {
    let Content::Table(table) = &mut root.content else { return Ok(None) };
    let list = table
        .entry("queue".to_owned())
        .or_insert_with(|| Node { origin: origin.clone(), content: Content::List(Vec::new()) });
    let Content::List(queues) = &mut list.content else { return Ok(None) };
    let by_name = queues.iter().position(|queue| {
        queue.child_text("name").is_some_and(|name| folded(name) == folded(selector))
    });
    let index = by_name.or_else(|| selector.parse::<usize>().ok());
    let count = queues.len();
    let Some(index) = index.filter(|index| *index <= count && *index < MAX_QUEUES) else {
        let remedy = format!("name a queue of the file, or its place from 0 to {count}");
        return Err(Refusal::new("names no queue", remedy));
    };
    if index == count {
        queues.push(new_table(origin));
    }
    match &mut queues[index].content {
        Content::Table(table) => Ok(Some(table)),
        Content::Value(_) | Content::Text(_) | Content::List(_) => Ok(None),
    }
}
