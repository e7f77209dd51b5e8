//! The reference: the default file and the page about the configuration, made from the tree.
//!
//! Both are committed, and a test fails when they differ from what this module says.

use std::fmt::Write;

use super::duration::format_duration;
use super::environment::VARIABLE_PREFIX;
use super::git::{GitSettings, TIMEOUT as GIT_TIMEOUT};
use super::handlers::{ExecSettings, HandlerCommon, HttpSettings, SqlSettings};
use super::leaf::Leaf;
use super::secret::Secret;
use super::section::{Field, Section};
use super::tree::{
    DrainSettings, LeaseSettings, LogSettings, PostgresSettings, QueueSettings, RedisSettings,
    RetentionSettings, UnknownKindSettings, WebSettings, WorkerSettings,
};

/// One key, for those who list them all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyReference {
    /// With dots, `NAME` and `KIND` standing for a queue's name and a kind: `lease.ttl`,
    /// `queue.NAME.concurrency`, `handler.KIND.timeout`.
    pub key: String,
    /// The type of handler that has the key, where only one has.
    pub handler_type: Option<&'static str>,
    /// The variable that overrides it.
    pub variable: String,
    /// What kind of value it takes: `a duration`.
    pub kind: &'static str,
    /// The default as TOML writes it; `None` for a key that is required or unset.
    pub default: Option<String>,
    /// Whether it must be there.
    pub required: bool,
    /// What it means.
    pub docs: String,
}

/// A table of the reference.
struct Part {
    /// How the file opens it.
    header: &'static str,
    /// What stands before the key in a full name.
    prefix: &'static str,
    handler_type: Option<&'static str>,
    docs: &'static [&'static str],
    fields: &'static [Field],
}

const fn part<T: Section>(header: &'static str, prefix: &'static str) -> Part {
    Part { header, prefix, handler_type: None, docs: T::DOCS, fields: T::FIELDS }
}

const fn handler<T: Section>(handler_type: &'static str) -> Part {
    Part {
        header: "[handler.KIND]",
        prefix: "handler.KIND",
        handler_type: Some(handler_type),
        docs: T::DOCS,
        fields: T::FIELDS,
    }
}

const BEFORE_HANDLERS: [Part; 6] = [
    part::<WorkerSettings>("[worker]", "worker"),
    part::<RedisSettings>("[redis]", "redis"),
    part::<PostgresSettings>("[postgres]", "postgres"),
    part::<LeaseSettings>("[lease]", "lease"),
    part::<DrainSettings>("[drain]", "drain"),
    part::<QueueSettings>("[[queue]]", "queue.NAME"),
];
const COMMON: Part = part::<HandlerCommon>("[handler.KIND]", "handler.KIND");
const HANDLERS: [Part; 4] = [
    handler::<ExecSettings>("exec"),
    handler::<SqlSettings>("sql"),
    handler::<HttpSettings>("http"),
    handler::<GitSettings>("git-analysis"),
];
const AFTER_HANDLERS: [Part; 4] = [
    part::<UnknownKindSettings>("[unknown_kind]", "unknown_kind"),
    part::<RetentionSettings>("[retention]", "retention"),
    part::<WebSettings>("[web]", "web"),
    part::<LogSettings>("[log]", "log"),
];

impl Part {
    fn keys(&self) -> impl Iterator<Item = KeyReference> + '_ {
        self.fields.iter().map(|field| {
            let key = format!("{}.{}", self.prefix, field.name);
            // NAME and KIND are upper case already, and stay as the reader's placeholders.
            let variable = key.to_ascii_uppercase().replace('.', "__");
            KeyReference {
                key,
                handler_type: self.handler_type,
                variable: format!("{VARIABLE_PREFIX}{variable}"),
                kind: field.kind,
                default: (field.default)().map(|value| value.to_string()),
                required: field.required,
                docs: joined(field.docs),
            }
        })
    }
}

fn joined(docs: &[&str]) -> String {
    docs.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// Every key, in the order of the reference; `handler.KIND.type` is not among them.
pub fn reference_keys() -> Vec<KeyReference> {
    let parts = BEFORE_HANDLERS.iter().chain([&COMMON]).chain(&HANDLERS).chain(&AFTER_HANDLERS);
    parts.flat_map(Part::keys).collect()
}

const TOML_INTRODUCTION: &str = "\
# The configuration of queue-worker: every key at its default.
#
# Generated from the program; docs/configuration.md says more. A key that is commented out has no
# default, and shows an example. The environment overrides each key: QUEUE_WORKER_LEASE__TTL=10s.
";

/// A file with every key at its default, which loads as it is.
pub fn default_toml() -> String {
    let mut text = TOML_INTRODUCTION.to_owned();
    for part in &BEFORE_HANDLERS {
        let _ = write!(text, "\n{}{}\n", comment(part.docs, "# "), part.header);
        push_fields(&mut text, part, "");
    }
    for (part, kind) in HANDLERS.iter().zip(["resize", "account", "notify", "commits"]) {
        let name = part.handler_type.unwrap_or_default();
        let _ =
            write!(text, "\n{}# [handler.{kind}]\n# type = \"{name}\"\n", comment(part.docs, "# "));
        push_fields(&mut text, part, "# ");
        let mut common = String::new();
        push_fields(&mut common, &COMMON, "# ");
        if name == "git-analysis" {
            let timeout = |time| format!("timeout = \"{}\"", format_duration(time));
            common = common.replace(&timeout(HandlerCommon::new().timeout), &timeout(GIT_TIMEOUT));
        }
        text.push_str(&common);
    }
    for part in &AFTER_HANDLERS {
        let _ = write!(text, "\n{}{}\n", comment(part.docs, "# "), part.header);
        push_fields(&mut text, part, "");
    }
    text
}

fn comment(docs: &[&str], mark: &str) -> String {
    docs.iter().flat_map(|line| [mark, line.trim(), "\n"]).collect()
}

/// Writes the keys of a table; `off` comments them out.
fn push_fields(text: &mut String, part: &Part, off: &str) {
    for field in part.fields {
        text.push_str(&comment(field.docs, if off.is_empty() { "# " } else { "#   # " }));
        let default = (field.default)().map(|value| value.to_string());
        let line = match default {
            Some(value) => format!("{off}{} = {value}\n", field.name),
            // The comment says where it goes; a line for it here would only be refused.
            None if field.kind == Secret::KIND => "\n".to_owned(),
            None if field.required => format!("{off}{} = {}\n", field.name, example(field)),
            None => format!("{off}# {} = {}\n", field.name, example(field)),
        };
        text.push_str(&line);
    }
}

/// What stands for a key without a default: its type's example, or a better one.
fn example(field: &Field) -> &'static str {
    match field.name {
        "name" => "\"default\"",
        "username" => "\"queue-worker\"",
        "password_file" => "\"/run/secrets/queue-worker-password\"",
        "bearer_file" => "\"/run/secrets/queue-worker-token\"",
        "working_dir" => "\"/var/lib/queue-worker/resize\"",
        "statement" => "\"INSERT INTO inbox (id, body) VALUES ($2, $1)\"",
        "url" => "\"https://example.org/hook\"",
        "stop_timeout" => "\"90s\"",
        "memory_max" => "\"512MiB\"",
        "pids_max" => "64",
        "cpu_weight" => "50",
        "mirrors" => "\"/var/lib/queue-worker/git\"",
        "hosts" => "[\"example.org\", \".internal\"]",
        "ssh_command" => "\"ssh -i /run/secrets/deploy-key\"",
        _ => field.example,
    }
}

const PAGE_INTRODUCTION: &str = "\
# Configuration

<!-- Generated from the program: change the comments in src/config, not this page. -->

`queue-worker` reads one TOML file. Every key has a default except where it says *required*; the
file needs at least one `[[queue]]`. `config/queue-worker.toml` lists every key at its default. A
key that does not exist is an error, and so is a value that breaks a rule: the message names the
file, the line, the key and what to do, and the exit code is 78.

Durations are a whole number with a unit, `\"1500ms\"`, `\"45s\"`, `\"2m\"`, `\"1h\"`, `\"7d\"`; sizes
likewise, `\"256KiB\"`, `\"64MiB\"`. Bare numbers are refused, since nobody can see their unit.

## The environment

A variable overrides each key: `QUEUE_WORKER_SECTION__KEY`, such as `QUEUE_WORKER_LEASE__TTL=10s`.
Lists and tables are written as in TOML. An empty variable unsets a key that has no default.

- A queue is named by its name in the file or by its place, from 0:
  `QUEUE_WORKER_QUEUE__mail__CONCURRENCY=4`, `QUEUE_WORKER_QUEUE__0__CONCURRENCY=4`. The place after
  the last adds a queue.
- A handler is named by its kind: `QUEUE_WORKER_HANDLER__resize__TIMEOUT=5m`. A kind that the file
  does not have adds a handler.
- In both, case does not matter, and `_` stands for each character that a variable cannot have.

A variable with that prefix and `__` that fits no key is an error, and so is one that lacks a `_`, such
as `QUEUE_WORKER_LEASE_TTL`. Under systemd `worker.state_dir`
defaults to `$STATE_DIRECTORY`.

## Secrets

A password belongs neither in the file nor in the Nix store. Put it into a file of its own and name
that in `password_file`, or set `QUEUE_WORKER_REDIS__PASSWORD`. One newline at the end of the file
is ignored; every other character counts. A relative path is looked up in `$CREDENTIALS_DIRECTORY`,
so that with `LoadCredential=redis:/run/secrets/redis` it is `password_file = \"redis\"`. The file
is read at each connect: while it is missing, the worker is alive, not ready, and tries again. A
password inside a URL must be percent-encoded.

## Rules between keys

- `lease.ttl` ≥ 3 × `lease.heartbeat` + `redis.call_timeout`
- `lease.ttl` ≤ `lease.min_idle` ≤ 100 × `lease.ttl`, and `lease.sweep` ≤ `lease.ttl`
- `lease.nodes`: none, or an odd number of different servers from 3 to 15; `lease.node_timeout` ≤
  `redis.call_timeout`
- `drain.timeout` + `drain.kill_after` + `drain.margin` ≤ `drain.stop_timeout`, if that is set;
  without it the unit's own limit shortens a longer drain while the worker runs (docs/systemd.md)
- `postgres.lock_timeout` ≤ `postgres.call_timeout` ≤ 10 × `lease.ttl`, `postgres.committers` ≤ `postgres.pool_size`
- `postgres.call_timeout`, `redis.call_timeout` and `redis.connect_timeout` ≤ one day
- `queue.NAME.max_payload` ≤ `worker.payload_budget`; `queue.NAME.concurrency`, where it is written, ≤
  `worker.max_in_flight`
- `backoff_base` ≤ `backoff_max`
- `retention.succeeded` and `retention.failed` ≥ every handler's `backoff_max` and `timeout`, and
  `unknown_kind.give_up`
- `retention.failed` ≥ `retention.dead_letters`: a letter is requeued into its task's row
- `web.listen` is a loopback address, unless `web.allow_remote`, and names its port
- of `password_file`, `password` in the environment and a password in the URL, one
- at least: `lease.heartbeat` 100ms, `lease.sweep` 50ms, `lease.node_timeout` 5ms, `redis.call_timeout` and
  `redis.connect_timeout` 50ms, `postgres.call_timeout` and `retention.every` 100ms,
  `retention.dead_letters` 1h

A program with an absolute path that is not there is a warning at the start, and in
`queue-worker doctor`: it may be installed later, and a file is often checked on another machine.

## Reload

On SIGHUP the worker reads the file again. `log.level`, `[drain]`, the handlers and the queues'
`concurrency` are applied; everything else is named in the log, and in the status line, and waits for the
next start. A file with an error changes nothing, nor does one of which the part that is applied breaks a
rule together with what waits.
";

/// The page about every key, in Markdown.
pub fn reference_md() -> String {
    let mut page = PAGE_INTRODUCTION.to_owned();
    for part in &BEFORE_HANDLERS {
        push_table(&mut page, &format!("`{}`", part.header), part);
    }
    push_table(&mut page, "`[handler.KIND]`", &COMMON);
    page.push_str(
        "\nThe key `type` is required: `\"exec\"`, `\"sql\"`, `\"http\"` or `\"git-analysis\"`. It \
         decides which of the following keys there are.\n",
    );
    for part in &HANDLERS {
        let name = part.handler_type.unwrap_or_default();
        push_table(&mut page, &format!("`[handler.KIND]` with `type = \"{name}\"`"), part);
    }
    for part in &AFTER_HANDLERS {
        push_table(&mut page, &format!("`{}`", part.header), part);
    }
    page
}

fn push_table(page: &mut String, title: &str, part: &Part) {
    let _ = write!(page, "\n## {title}\n\n{}\n\n", joined(part.docs));
    page.push_str("| key | value | default | meaning |\n| --- | --- | --- | --- |\n");
    for (field, key) in part.fields.iter().zip(part.keys()) {
        let default = match (&key.default, key.required) {
            (Some(value), _) => format!("`{value}`"),
            (None, true) => "*required*".to_owned(),
            (None, false) => "not set".to_owned(),
        };
        let meaning = key.docs.replace('|', "\\|");
        let kind = key.kind.trim_start_matches("a ");
        let _ = writeln!(page, "| `{}` | {kind} | {default} | {meaning} |", field.name);
    }
}
