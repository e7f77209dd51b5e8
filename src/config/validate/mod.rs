//! The rules between keys, and those of one key that its type does not carry.
//!
//! A broken rule is reported at the place of a key that was set, so that the line shown is one
//! that can be corrected; keys at their defaults have no place.

mod handlers;
mod lock_nodes;
mod servers;
mod times;

use tracing_subscriber::filter::{EnvFilter, LevelFilter};

use super::environment::Environment;
use super::leaf::Refusal;
use super::reader::{Findings, Origin};
use super::server_url::ServerUrl;
use super::size::ByteSize;
use super::tree::{Config, QueueSettings};

pub(super) use handlers::{DEFAULT_PATH, is_program, on_path};

/// The most handlers of one queue.
const MOST_CONCURRENCY: usize = 10_000;

/// Notes every rule that does not hold.
pub(super) fn check(config: &Config, environment: &Environment, findings: &mut Findings) {
    let mut rules = Rules { findings };
    rules.worker(config);
    rules.redis(config);
    rules.postgres(config);
    rules.calls(config);
    rules.lease(config);
    rules.drain(config);
    rules.floors(config);
    for queue in &config.queues {
        rules.queue(config, queue);
    }
    for (kind, handler) in &config.handlers {
        rules.handler(&format!("handler.{kind}"), handler, environment);
    }
    rules.retention(config);
    rules.web(config);
    rules.log_level(&config.log.level);
}

pub(super) struct Rules<'a> {
    findings: &'a mut Findings,
}

impl Rules<'_> {
    /// Notes a broken rule at the first of the keys that was set.
    pub(super) fn broken(
        &mut self,
        keys: &[&str],
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let origins = &self.findings.origins;
        let placed = |key: &str| origins.get(key).cloned();
        let found: Option<(&str, Origin)> = keys.iter().find_map(|key| Some((*key, placed(key)?)));
        let (key, origin) = match found {
            Some((key, origin)) => (key, Some(origin)),
            None => (keys.first().copied().unwrap_or_default(), None),
        };
        self.findings.push(origin.as_ref(), key, Refusal::new(message, remedy));
    }

    pub(super) fn range(&mut self, key: &str, value: usize, min: usize, max: usize) {
        if !(min..=max).contains(&value) {
            let remedy = format!("write a whole number from {min} to {max}");
            self.broken(&[key], format!("{value} is out of range"), remedy);
        }
    }

    fn scheme(&mut self, key: &str, url: &ServerUrl, allowed: &[&str]) {
        if !allowed.contains(&url.scheme()) {
            let message = format!("the scheme {:?} does not fit", url.scheme());
            self.broken(&[key], message, format!("use one of: {}", allowed.join(", ")));
        }
    }

    fn worker(&mut self, config: &Config) {
        self.range("worker.threads", config.worker.threads, 0, 1_024);
        self.range("worker.max_in_flight", config.worker.max_in_flight, 1, 100_000);
        if !config.worker.state_dir.is_absolute() {
            let message = format!("{} is not an absolute path", config.worker.state_dir.display());
            self.broken(&["worker.state_dir"], message, "write it from the root: \"/var/lib/…\"");
        }
    }

    fn queue(&mut self, config: &Config, queue: &QueueSettings) {
        let concurrency = format!("queue.{}.concurrency", queue.name);
        self.range(&concurrency, queue.concurrency, 1, MOST_CONCURRENCY);
        let most = config.worker.max_in_flight;
        // A default is no claim: with few places in all, fewer run.
        let is_too_much = queue.concurrency > most && queue.concurrency <= MOST_CONCURRENCY;
        if is_too_much && self.findings.origins.contains_key(&concurrency) {
            self.broken(
                &[&concurrency, "worker.max_in_flight"],
                format!("{} do not fit into worker.max_in_flight = {most}", queue.concurrency),
                "raise worker.max_in_flight, or lower concurrency",
            );
        }
        let key = format!("queue.{}.max_payload", queue.name);
        self.not_empty(&key, queue.max_payload);
        if queue.max_payload > config.worker.payload_budget {
            self.broken(
                &[&key, "worker.payload_budget"],
                format!(
                    "a payload of {} does not fit into the budget of {}",
                    queue.max_payload, config.worker.payload_budget
                ),
                "raise worker.payload_budget, or lower max_payload",
            );
        }
    }

    fn not_empty(&mut self, key: &str, size: ByteSize) {
        if size.bytes() == 0 {
            self.broken(&[key], "is zero", "write it like \"256KiB\" or \"64MiB\"");
        }
    }

    fn web(&mut self, config: &Config) {
        let Some(listen) = config.web.listen else { return };
        if listen.port() == 0 {
            let message = format!("{listen} is any free port, another one at each start");
            self.broken(&["web.listen"], message, "name a port, such as 9464");
        }
        if !listen.ip().to_canonical().is_loopback() && !config.web.allow_remote {
            self.broken(
                &["web.listen"],
                format!("other machines can reach {listen}, and the pages ask for no password"),
                format!(
                    "listen on \"127.0.0.1:{}\", or set web.allow_remote = true behind a firewall",
                    listen.port()
                ),
            );
        }
    }

    fn log_level(&mut self, level: &str) {
        const REMEDY: &str = r#"write "info", "debug", or directives like "info,sqlx=warn""#;
        // A bare word that is no level would be taken for a target, and silence everything else.
        if level.split(',').all(|part| part.trim().is_empty()) {
            // The filter would take it for "error".
            return self.broken(&["log.level"], "is empty", REMEDY);
        }
        let unknown = level
            .split(',')
            .map(str::trim)
            .find(|part| !part.contains(['=', '[']) && part.parse::<LevelFilter>().is_err());
        if let Some(word) = unknown {
            self.broken(&["log.level"], format!("{word:?} is not a log level"), REMEDY);
        } else if let Err(error) = EnvFilter::try_new(level) {
            self.broken(&["log.level"], format!("{level:?} is no filter: {error}"), REMEDY);
        }
    }
}
