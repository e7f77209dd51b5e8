//! Loading: the file, the environment over it, the sections out of both, then the rules.
//!
//! Every problem of a stage is collected before the next begins, and no stage reads a secret.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::environment::{Environment, MAX_QUEUES};
use super::error::ConfigError;
use super::file;
use super::handlers::{HandlerAction, HandlerSettings};
use super::leaf::Refusal;
use super::reader::{Content, Findings, Node, Origin, Reader};
use super::section::Section;
use super::tree::{Config, QueueSettings};
use super::validate;
use crate::domain::Kind;

impl Config {
    /// Reads the file at `path`, lays the overrides of `environment` over it and checks all rules.
    ///
    /// Secret files are not read here: see [`super::RedisSettings::password`]. The error lists
    /// every problem of the first stage that had any; the caller exits with 78.
    pub fn load(path: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        let mut findings = Findings { file: path.to_owned(), ..Findings::default() };
        let text = file::read(path, &mut findings);
        let config = text.and_then(|text| from_text(&text, environment, &mut findings));
        finish(config, findings)
    }

    /// The same for a text in memory; `name` stands for the file in errors.
    pub fn parse(text: &str, name: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        let mut findings = Findings { file: name.to_owned(), ..Findings::default() };
        let config = from_text(text, environment, &mut findings);
        finish(config, findings)
    }

    /// Checks the rules once more, for a configuration that was put together of two; `name` stands
    /// for the file in errors.
    pub fn check(&self, name: &Path, environment: &Environment) -> Result<(), ConfigError> {
        let mut findings = Findings { file: name.to_owned(), ..Findings::default() };
        validate::check(self, environment, &mut findings);
        let Findings { problems, .. } = findings;
        if problems.is_empty() { Ok(()) } else { Err(ConfigError { problems }) }
    }
}

fn finish(config: Option<Config>, findings: Findings) -> Result<Config, ConfigError> {
    match config {
        Some(config) if findings.problems.is_empty() => Ok(config),
        _ => Err(ConfigError { problems: findings.problems }),
    }
}

fn from_text(text: &str, environment: &Environment, findings: &mut Findings) -> Option<Config> {
    let mut root = file::parse(text, findings)?;
    default_state_dir(&mut root, environment);
    environment.overlay(&mut root, findings);
    let mut config = read_root(root, findings).filter(|_| findings.problems.is_empty())?;
    if let Some(directory) = environment.get("CREDENTIALS_DIRECTORY") {
        resolve_credentials(&mut config, Path::new(directory));
    }
    validate::check(&config, environment, findings);
    Some(config)
}

/// systemd's $STATE_DIRECTORY is the default of `worker.state_dir`; of several, the first.
fn default_state_dir(root: &mut Node, environment: &Environment) {
    const VARIABLE: &str = "STATE_DIRECTORY";
    let Some(text) = environment.get(VARIABLE).and_then(|text| text.to_str()) else { return };
    let Some(first) = text.split(':').find(|part| !part.is_empty()) else { return };
    let origin = Origin::Variable(VARIABLE.to_owned());
    let Content::Table(table) = &mut root.content else { return };
    let worker = table.entry("worker".to_owned()).or_insert_with(|| Node {
        origin: origin.clone(),
        content: Content::Table(BTreeMap::new()),
    });
    if let Content::Table(worker) = &mut worker.content {
        let node = Node { origin, content: Content::Text(first.to_owned()) };
        worker.entry("state_dir".to_owned()).or_insert(node);
    }
}

fn read_root(root: Node, findings: &mut Findings) -> Option<Config> {
    let mut top = Reader::new("", Some(root), findings);
    let worker = top.section("worker");
    let redis = top.section("redis");
    let postgres = top.section("postgres");
    let lease = top.section("lease");
    let drain = top.section("drain");
    let queues = top.node("queue");
    let queues = read_queues(queues, top.findings());
    let handlers = top.node("handler");
    let handlers = read_handlers(handlers, top.findings());
    let unknown_kind = top.section("unknown_kind");
    let retention = top.section("retention");
    let web = top.section("web");
    let log = top.section("log");
    top.finish();
    Some(Config {
        worker: worker?,
        redis: redis?,
        postgres: postgres?,
        lease: lease?,
        drain: drain?,
        queues: queues?,
        handlers: handlers?,
        unknown_kind: unknown_kind?,
        retention: retention?,
        web: web?,
        log: log?,
    })
}

fn read_queues(node: Option<Node>, findings: &mut Findings) -> Option<Vec<QueueSettings>> {
    const REMEDY: &str = r#"add [[queue]] with name = "default""#;
    let (origin, items) = match node {
        None => (None, Vec::new()),
        Some(Node { origin, content: Content::List(items) }) => (Some(origin), items),
        Some(Node { origin, .. }) => {
            let refusal = Refusal::new("is not a list of tables", REMEDY);
            findings.push(Some(&origin), "queue", refusal);
            return None;
        }
    };
    if items.is_empty() {
        let refusal = Refusal::new("is missing: a worker needs at least one queue", REMEDY);
        findings.push(origin.as_ref(), "queue", refusal);
        return None;
    }
    if items.len() > MAX_QUEUES {
        let remedy = format!("leave at most {MAX_QUEUES}, and start further workers for the rest");
        findings.push(origin.as_ref(), "queue", Refusal::new("has too many tables", remedy));
        return None;
    }
    let mut queues: Vec<QueueSettings> = Vec::with_capacity(items.len());
    let mut complete = true;
    for (index, node) in items.into_iter().enumerate() {
        let label = node.child_text("name").map_or_else(|| index.to_string(), str::to_owned);
        let prefix = format!("queue.{label}");
        let origin = node.origin.clone();
        let mut reader = Reader::new(&prefix, Some(node), findings);
        let queue = QueueSettings::read(&mut reader);
        reader.finish();
        match queue {
            Some(queue) if queues.iter().any(|other| other.name == queue.name) => {
                let message = format!("there are two queues named {:?}", queue.name);
                let remedy = "remove one, or give it another name";
                findings.push(Some(&origin), &prefix, Refusal::new(message, remedy));
            }
            Some(queue) => queues.push(queue),
            None => complete = false,
        }
    }
    complete.then_some(queues)
}

fn read_handlers(
    node: Option<Node>,
    findings: &mut Findings,
) -> Option<BTreeMap<Kind, HandlerSettings>> {
    let table = match node {
        None => return Some(BTreeMap::new()),
        Some(Node { content: Content::Table(table), .. }) => table,
        Some(Node { origin, .. }) => {
            let refusal = Refusal::new("is not a table", "write [handler.KIND] for each kind");
            findings.push(Some(&origin), "handler", refusal);
            return None;
        }
    };
    let mut handlers = BTreeMap::new();
    let mut complete = true;
    for (name, node) in table {
        let prefix = format!("handler.{name}");
        let kind = Kind::new(&name).map_err(|error| {
            let remedy = format!(
                "name a kind of at most {} bytes without control characters",
                Kind::MAX_BYTES
            );
            let message = format!("is not a kind of task: {error}");
            findings.push(Some(&node.origin), &prefix, Refusal::new(message, remedy));
        });
        let settings = HandlerSettings::read(Reader::new(&prefix, Some(node), findings));
        match (kind, settings) {
            (Ok(kind), Some(settings)) => {
                handlers.insert(kind, settings);
            }
            _ => complete = false,
        }
    }
    complete.then_some(handlers)
}

/// Looks up relative paths of secrets in the unit's credentials.
fn resolve_credentials(config: &mut Config, directory: &Path) {
    let resolve = |path: &mut PathBuf| *path = directory.join(&*path);
    config.redis.password_file.as_mut().map(resolve);
    config.postgres.password_file.as_mut().map(resolve);
    config.lease.password_file.as_mut().map(resolve);
    for handler in config.handlers.values_mut() {
        let files = match &mut handler.action {
            HandlerAction::Http(http) => {
                http.bearer_file.as_mut().map(resolve);
                &mut http.header_files
            }
            HandlerAction::Git(git) => &mut git.credential_files,
            HandlerAction::Exec(_) | HandlerAction::Sql(_) => continue,
        };
        for path in files.values_mut() {
            *path = directory.join(&*path).to_string_lossy().into_owned();
        }
    }
}

/// A section at the top.
impl Reader<'_> {
    fn section<T: Section>(&mut self, name: &'static str) -> Option<T> {
        let node = self.node(name);
        let mut reader = Reader::new(name, node, self.findings());
        let section = T::read(&mut reader);
        reader.finish();
        section
    }
}
