//! The rules between keys, and those of one key that its type does not carry.
//!
//! A broken rule is reported at the place of a key that was set, so that the line shown is one
//! that can be corrected; keys at their defaults have no place.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use redis::{ConnectionAddr, IntoConnectionInfo};
use sqlx::postgres::PgConnectOptions;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};

use super::duration::format_duration as show;
use super::environment::Environment;
use super::handlers::{ExecSettings, HandlerAction, HandlerSettings, HttpSettings};
use super::leaf::Refusal;
use super::reader::{Findings, Origin};
use super::server_url::ServerUrl;
use super::size::ByteSize;
use super::tree::{Config, QueueSettings};
use crate::domain::SentinelUrl;

/// Half a second until a handler that does not end is dropped, one for what is then recorded and
/// handed over, and half a second for the parts of the process that end after that.
const LEAST_MARGIN: Duration = Duration::from_secs(2);

/// What the dynamic linker and the C library take, some, and a little for the program.
const LEAST_MEMORY: ByteSize = ByteSize::mib(1);

/// The most processes and threads of a machine (PID_MAX_LIMIT of Linux).
const MAX_PIDS: usize = 4_194_304;

/// The largest `cpu.weight` of cgroup v2.
const MAX_WEIGHT: usize = 10_000;

/// What the Redis client takes.
const REDIS_SCHEMES: [&str; 9] = [
    "redis",
    "rediss",
    "redis+unix",
    "unix",
    "valkey",
    "valkeys",
    "valkey+unix",
    "redis+sentinel",
    "rediss+sentinel",
];

/// Whether this build follows Sentinels.
const WITH_SENTINEL: bool = cfg!(feature = "sentinel");

/// Where execvp(3) looks without PATH.
pub(super) const DEFAULT_PATH: &str = "/usr/local/bin:/bin:/usr/bin";

/// What is wrong with a URL of Sentinels, and the remedy.
fn sentinel_problem(url: &ServerUrl, supported: bool) -> Option<(&'static str, &'static str)> {
    if !supported {
        let message = "names sentinels, and this program was built without the feature `sentinel`";
        return Some((message, "build it with `cargo build --features sentinel`"));
    }
    let remedy = "write redis+sentinel://host:port,host:port/name, and /database where it is not 0";
    SentinelUrl::parse(&url.without_password()).err().map(|message| (message, remedy))
}

/// Notes every rule that does not hold.
pub(super) fn check(config: &Config, environment: &Environment, findings: &mut Findings) {
    let mut rules = Rules { findings };
    rules.worker(config);
    rules.redis(config);
    rules.postgres(config);
    rules.lease(config);
    rules.drain(config);
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

    fn one_password(&mut self, section: &str, url: &ServerUrl, has_file: bool) {
        if has_file && url.password().is_some() {
            let (file, url) = (format!("{section}.password_file"), format!("{section}.url"));
            let message = "is set, and the URL has a password too";
            self.broken(&[&file, &url], message, "remove the password from the URL");
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

    fn redis(&mut self, config: &Config) {
        let redis = &config.redis;
        self.redis_url("redis.url", &redis.url);
        self.one_password("redis", &redis.url, redis.password_file.is_some());
        self.redis_client(&redis.url);
    }

    /// What the client itself does not take must not wait for the start of a worker.
    fn redis_client(&mut self, url: &ServerUrl) {
        let known = self.findings.problems.iter().any(|problem| problem.key == "redis.url");
        if known || SentinelUrl::is_scheme(url.scheme()) {
            return;
        }
        let remedy = "write redis://host:port/database, rediss:// for TLS, or redis+unix:///path";
        let text = url.without_password();
        match text.as_str().into_connection_info().map(|info| info.addr().clone()) {
            Ok(ConnectionAddr::TcpTls { insecure: true, .. }) => {
                let message = "asks for #insecure, and TLS is always verified here";
                self.broken(&["redis.url"], message, remedy);
            }
            Ok(_) => {}
            Err(error) => {
                self.broken(&["redis.url"], format!("cannot be used: {error}"), remedy);
            }
        }
    }

    pub(super) fn redis_url(&mut self, key: &str, url: &ServerUrl) {
        self.scheme(key, url, &REDIS_SCHEMES);
        if SentinelUrl::is_scheme(url.scheme()) {
            if let Some((message, remedy)) = sentinel_problem(url, WITH_SENTINEL) {
                self.broken(&[key], message, remedy);
            }
            return;
        }
        if !url.has_host() && !url.scheme().contains("unix") {
            let remedy = "write redis://host:port/database, or redis+unix:///path for a socket";
            self.broken(&[key], "names no host", remedy);
        }
    }

    fn postgres(&mut self, config: &Config) {
        let postgres = &config.postgres;
        self.scheme("postgres.url", &postgres.url, &["postgres", "postgresql"]);
        self.one_password("postgres", &postgres.url, postgres.password_file.is_some());
        if let Err(error) = postgres.url.without_password().as_str().parse::<PgConnectOptions>() {
            let remedy = "write postgres://user@host:port/database";
            self.broken(&["postgres.url"], format!("cannot be used: {error}"), remedy);
        }
        let pool_size = usize::try_from(postgres.pool_size).unwrap_or(usize::MAX);
        self.range("postgres.pool_size", pool_size, 2, 1_000);
        self.range("postgres.committers", postgres.committers, 1, 64);
        if postgres.committers > pool_size {
            self.broken(
                &["postgres.committers", "postgres.pool_size"],
                format!("{} committers share {pool_size} connections", postgres.committers),
                "raise postgres.pool_size, or lower postgres.committers",
            );
        }
        if postgres.lock_timeout > postgres.call_timeout {
            self.broken(
                &["postgres.lock_timeout", "postgres.call_timeout"],
                format!(
                    "the lock timeout {} is longer than the call timeout {}",
                    show(postgres.lock_timeout),
                    show(postgres.call_timeout)
                ),
                "lower postgres.lock_timeout, or raise postgres.call_timeout",
            );
        }
    }

    fn lease(&mut self, config: &Config) {
        let lease = &config.lease;
        let minimum = lease.heartbeat * 3 + config.redis.call_timeout;
        if lease.ttl < minimum {
            self.broken(
                &["lease.ttl", "lease.heartbeat", "redis.call_timeout"],
                format!(
                    "the ttl {} is shorter than three heartbeats of {} and a call of {}",
                    show(lease.ttl),
                    show(lease.heartbeat),
                    show(config.redis.call_timeout)
                ),
                format!("raise lease.ttl to \"{}\", or lower lease.heartbeat", show(minimum)),
            );
        }
        if lease.min_idle < lease.ttl {
            self.broken(
                &["lease.min_idle", "lease.ttl"],
                format!(
                    "the minimum idle time {} is shorter than the ttl {}",
                    show(lease.min_idle),
                    show(lease.ttl)
                ),
                format!("raise lease.min_idle to \"{}\"", show(lease.ttl)),
            );
        }
        if lease.sweep > lease.ttl {
            self.broken(
                &["lease.sweep", "lease.ttl"],
                format!(
                    "the sweep {} is rarer than the ttl {}",
                    show(lease.sweep),
                    show(lease.ttl)
                ),
                format!("lower lease.sweep to \"{}\" or less", show(lease.ttl)),
            );
        }
        let max_crashes = usize::try_from(lease.max_crashes).unwrap_or(usize::MAX);
        self.range("lease.max_crashes", max_crashes, 0, 100);
        self.lock_nodes(config);
    }

    fn drain(&mut self, config: &Config) {
        if config.drain.margin < LEAST_MARGIN {
            self.broken(
                &["drain.margin"],
                format!(
                    "{} is too short to give tasks and locks back in",
                    show(config.drain.margin)
                ),
                format!("raise drain.margin to at least \"{}\"", show(LEAST_MARGIN)),
            );
        }
        let drain = &config.drain;
        let needed = drain.timeout + drain.kill_after + drain.margin;
        let Some(allowed) = drain.stop_timeout.filter(|allowed| needed > *allowed) else { return };
        self.broken(
            &["drain.timeout", "drain.kill_after", "drain.margin", "drain.stop_timeout"],
            format!(
                "timeout + kill_after + margin are {}, more than the {} of drain.stop_timeout",
                show(needed),
                show(allowed)
            ),
            format!(
                "lower drain.timeout, or raise the unit's TimeoutStopSec and drain.stop_timeout to \
                 \"{}\"",
                show(needed)
            ),
        );
    }

    fn queue(&mut self, config: &Config, queue: &QueueSettings) {
        self.range(&format!("queue.{}.concurrency", queue.name), queue.concurrency, 1, 10_000);
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

    /// A row that is forgotten while its task may still come again would let it run twice.
    fn retention(&mut self, config: &Config) {
        let retention = &config.retention;
        let batch = usize::try_from(retention.batch).unwrap_or(usize::MAX);
        self.range("retention.batch", batch, 1, 10_000);
        let handlers = config.handlers.iter().flat_map(|(kind, handler)| {
            let common = &handler.common;
            [
                (format!("handler.{kind}.backoff_max"), common.backoff_max),
                (format!("handler.{kind}.timeout"), common.timeout),
            ]
        });
        let give_up = ("unknown_kind.give_up".to_owned(), config.unknown_kind.give_up);
        let Some((longest, wait)) = handlers.chain([give_up]).max_by_key(|(_, wait)| *wait) else {
            return;
        };
        for (key, kept) in
            [("retention.succeeded", retention.succeeded), ("retention.failed", retention.failed)]
        {
            if kept < wait {
                self.broken(
                    &[key, &longest],
                    format!(
                        "rows are kept for {}, less than {longest} = {}",
                        show(kept),
                        show(wait)
                    ),
                    format!("raise {key} to at least \"{}\"", show(wait)),
                );
            }
        }
    }

    fn handler(&mut self, key: &str, handler: &HandlerSettings, environment: &Environment) {
        let common = &handler.common;
        let max_attempts = usize::try_from(common.max_attempts).unwrap_or(usize::MAX);
        self.range(&format!("{key}.max_attempts"), max_attempts, 1, 1_000);
        if common.backoff_base > common.backoff_max {
            self.broken(
                &[&format!("{key}.backoff_base"), &format!("{key}.backoff_max")],
                format!(
                    "the first delay {} is longer than the longest {}",
                    show(common.backoff_base),
                    show(common.backoff_max)
                ),
                "lower backoff_base, or raise backoff_max",
            );
        }
        match &handler.action {
            HandlerAction::Exec(exec) => self.exec(key, exec, environment.get("PATH")),
            HandlerAction::Sql(sql) => {
                self.range(&format!("{key}.batch"), sql.batch, 1, 256);
                if sql.statement.trim().is_empty() {
                    self.broken(&[&format!("{key}.statement")], "is empty", "write a statement");
                }
            }
            HandlerAction::Http(http) => self.http(key, http),
            HandlerAction::Git(git) => self.git(key, common, git, environment.get("PATH")),
        }
    }

    fn exec(&mut self, key: &str, exec: &ExecSettings, path: Option<&OsStr>) {
        self.limits(key, exec);
        let command = format!("{key}.command");
        // The program is looked for with the PATH that it gets.
        let given = exec.environment.get("PATH").map(OsStr::new);
        let path = given.or(path).unwrap_or(OsStr::new(DEFAULT_PATH));
        if exec.working_dir.as_ref().is_some_and(|directory| directory.is_relative()) {
            let remedy = "write it from the root: \"/var/lib/…\"";
            self.broken(&[&format!("{key}.working_dir")], "is a relative path", remedy);
        }
        let Some(program) = exec.command.first().filter(|program| !program.is_empty()) else {
            let remedy = r#"write the program and its arguments: ["/usr/bin/env", "true"]"#;
            self.broken(&[&command], "names no program", remedy);
            return;
        };
        if program.contains('/') {
            if !Path::new(program).is_absolute() {
                let remedy = "write it from the root, or only its name if it is on PATH";
                self.broken(&[&command], format!("{program:?} is a relative path"), remedy);
            }
        } else if !on_path(program, path) {
            let hint = if program.contains(char::is_whitespace) {
                r#"; there is no shell: write ["program", "argument"]"#
            } else {
                ""
            };
            let remedy = format!("install it, or write its absolute path{hint}");
            self.broken(&[&command], format!("{program:?} is not on PATH"), remedy);
        }
        if exec.command.iter().any(|argument| argument.contains('\0')) {
            self.broken(&[&command], "contains a NUL character", "remove it");
        }
        let bad_name = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
        if let Some(name) = exec.environment.keys().find(bad_name) {
            let message = format!("{name:?} is not the name of a variable");
            self.broken(&[&format!("{key}.environment")], message, "write NAME = \"value\"");
        }
    }

    fn limits(&mut self, key: &str, exec: &ExecSettings) {
        if let Some(size) = exec.memory_max.filter(|size| *size < LEAST_MEMORY) {
            let remedy = format!("raise it to at least \"{LEAST_MEMORY}\"");
            let message = format!("in {size} no program can even start");
            self.broken(&[&format!("{key}.memory_max")], message, remedy);
        }
        for (name, value, max) in
            [("pids_max", exec.pids_max, MAX_PIDS), ("cpu_weight", exec.cpu_weight, MAX_WEIGHT)]
        {
            let value = value.map(|value| usize::try_from(value).unwrap_or(usize::MAX));
            self.range(&format!("{key}.{name}"), value.unwrap_or(1), 1, max);
        }
    }

    fn http(&mut self, key: &str, http: &HttpSettings) {
        self.scheme(&format!("{key}.url"), &http.url, &["http", "https"]);
        let headers = format!("{key}.headers");
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        let bad = |name: &&String| name.is_empty() || !name.chars().all(token);
        if let Some(name) = http.headers.keys().chain(http.header_files.keys()).find(bad) {
            let message = format!("{name:?} is not the name of a header");
            self.broken(&[&headers, &format!("{key}.header_files")], message, "correct the name");
        }
        let secret = |name: &&String| {
            ["authorization", "proxy-authorization", "cookie"]
                .contains(&name.to_ascii_lowercase().as_str())
        };
        if let Some(name) = http.headers.keys().find(secret) {
            let message = format!("{name:?} is a secret, and secrets do not belong in this file");
            self.broken(&[&headers], message, "use bearer_file or header_files");
        }
        if http.headers.values().any(|value| value.contains(['\r', '\n', '\0'])) {
            self.broken(&[&headers], "a value has a line break", "remove it");
        }
    }

    fn web(&mut self, config: &Config) {
        let Some(listen) = config.web.listen else { return };
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

/// Whether an executable file of that name is in one of the directories.
pub(super) fn on_path(program: &str, path: &OsStr) -> bool {
    std::env::split_paths(path).filter(|directory| directory.is_absolute()).any(|directory| {
        let found = std::fs::metadata(directory.join(program));
        found.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_need_their_feature_and_a_name() {
        let url = |text| ServerUrl::parse(text).expect("a URL");
        let good = url("redis+sentinel://a:1,b:2/main");
        assert_eq!(sentinel_problem(&good, true), None);
        let (message, remedy) = sentinel_problem(&good, false).expect("refused");
        assert!(message.contains("`sentinel`") && remedy.contains("--features sentinel"));
        let (message, _) = sentinel_problem(&url("redis+sentinel://a:1"), true).expect("refused");
        assert!(message.contains("what the sentinels call"), "{message}");
    }
}
