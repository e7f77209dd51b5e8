//! The Redis of the streams: whether it forgets, evicts, or is none that a worker can work on.

use std::collections::HashMap;

use redis::{Pipeline, Value};

use super::clocks::Reading;
use super::finding::Findings;
use super::{PATIENCE, one};
use crate::clock::Clock;
use crate::config::{ByteSize, Config};
use crate::connection::{RedisTarget, inquire};
use crate::supervisor::redis_target;

/// The oldest version with what the queue needs.
const OLDEST: (u32, u32) = (6, 2);

/// A memory that is fuller than this, in hundredths, will soon refuse tasks.
const FULL: u64 = 80;

/// What a server says of itself. What it does not tell (an ACL may forbid it) is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Facts {
    info: HashMap<String, String>,
    settings: HashMap<String, String>,
}

impl Facts {
    /// A line of INFO.
    pub(super) fn info(&self, name: &str) -> Option<&str> {
        self.info.get(name).map(String::as_str)
    }

    /// A server that says only this.
    #[cfg(test)]
    pub(super) fn of_info(lines: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self { info: lines.iter().map(own).collect(), ..Self::default() }
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.info(name)?.parse().ok()
    }

    /// A setting: by CONFIG GET, else as INFO tells it.
    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }
}

/// Settings that INFO does not tell.
const SETTINGS: [&str; 3] = ["appendfsync", "save", "maxmemory-policy"];

/// Asks a server what it says of itself, and what time it has there.
pub(super) async fn ask(target: &RedisTarget) -> Result<(Facts, Option<Reading>), String> {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("INFO");
    for name in SETTINGS {
        pipeline.cmd("CONFIG").arg("GET").arg(name);
    }
    let answers = inquire(target, &pipeline, PATIENCE).await.map_err(|error| error.to_string())?;
    let mut answers = answers.into_iter();
    let facts = Facts {
        info: answers.next().map(lines).unwrap_or_default(),
        settings: answers.filter_map(pair).collect(),
    };
    Ok((facts, time(target).await))
}

/// A connection of its own, so that the round trip is short.
async fn time(target: &RedisTarget) -> Option<Reading> {
    let mut pipeline = Pipeline::new();
    // The first one pays for the connection.
    pipeline.cmd("PING").cmd("TIME");
    let before = Clock::System.wall_ms();
    let answers = inquire(target, &pipeline, PATIENCE).await.ok()?;
    let after = Clock::System.wall_ms();
    let (seconds, micros): (i64, i64) = redis::from_redis_value_ref(answers.get(1)?).ok()?;
    Some(Reading { before, theirs: seconds * 1_000 + micros / 1_000, after })
}

fn lines(answer: Value) -> HashMap<String, String> {
    let text: String = redis::from_redis_value(answer).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The one pair in an answer of CONFIG GET.
fn pair(answer: Value) -> Option<(String, String)> {
    redis::from_redis_value::<HashMap<String, String>>(answer).ok()?.into_iter().next()
}

/// Looks at the Redis of the configuration. Also reads its clock.
pub(super) async fn look(config: &Config) -> (Vec<Findings>, Option<Reading>) {
    const CHECK: &str = "redis.reach";
    let (address, answer) = match redis_target(&config.redis) {
        Ok(target) => (target.address().to_owned(), ask(&target).await),
        Err(error) => ("redis.url".to_owned(), Err(error.to_string())),
    };
    let mut findings = Findings::about(format!("redis {address}"));
    match answer {
        Ok((facts, reading)) => {
            findings.ok(CHECK, "answers");
            judge(&mut findings, &facts);
            (one(findings), reading)
        }
        Err(error) => {
            findings.error(
                CHECK,
                error,
                "without it no task is pulled",
                "start it, or mend the [redis] section; queue-worker check-config shows what is read",
            );
            (one(findings), None)
        }
    }
}

fn judge(findings: &mut Findings, facts: &Facts) {
    version(findings, facts);
    role(findings, facts);
    policy(findings, facts);
    memory(findings, facts);
    persistence(findings, facts);
}

/// Whether the server is new enough; also for lock nodes.
pub(super) fn version(findings: &mut Findings, facts: &Facts) {
    const CHECK: &str = "redis.version";
    const REMEDY: &str = "upgrade to Redis 6.2 or later, or to Valkey";
    if let Some(version) = facts.info("valkey_version") {
        return findings.ok(CHECK, format!("Valkey {version}"));
    }
    let Some(text) = facts.info("redis_version") else {
        return findings.warning(
            CHECK,
            "the server does not tell its version",
            "commands that it lacks are noticed only when they are needed",
            "allow the user INFO",
        );
    };
    let mut parts = text.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version < OLDEST {
        findings.error(
            CHECK,
            format!("Redis {text}"),
            "it lacks XAUTOCLAIM and other commands that the queue uses",
            REMEDY,
        );
    } else {
        findings.ok(CHECK, format!("Redis {text}"));
    }
}

/// Whether the server takes writes, and all keys; also for lock nodes.
pub(super) fn role(findings: &mut Findings, facts: &Facts) {
    const CHECK: &str = "redis.role";
    if facts.info("role") == Some("slave") {
        findings.error(
            CHECK,
            "is a replica",
            "it takes no writes, and what it knows may be old",
            "name the master",
        );
    } else if facts.info("cluster_enabled") == Some("1") {
        findings.error(
            CHECK,
            "is a node of a Redis Cluster",
            "locks and queues lie in several slots, and a node serves only some",
            "use a single server",
        );
    } else {
        findings.ok(CHECK, "is a master");
    }
}

fn policy(findings: &mut Findings, facts: &Facts) {
    const CHECK: &str = "redis.policy";
    let policy = facts.setting("maxmemory-policy").or_else(|| facts.info("maxmemory_policy"));
    match policy {
        Some("noeviction") => findings.ok(CHECK, "maxmemory-policy is noeviction"),
        Some(policy) => findings.error(
            CHECK,
            format!("maxmemory-policy is {policy}"),
            "when the memory is full, tasks and locks are thrown away; no worker starts on it",
            "set maxmemory-policy noeviction in redis.conf, and CONFIG SET it",
        ),
        None => findings.warning(
            CHECK,
            "the server does not tell maxmemory-policy",
            "a server that evicts throws tasks and locks away",
            "allow the user INFO, and make sure that it is noeviction",
        ),
    }
    if let Some(evicted @ 1..) = facts.number("evicted_keys") {
        findings.warning(
            "redis.evicted",
            format!("{evicted} keys have been evicted since it started"),
            "tasks that were waiting may be among them",
            "compare what producers have sent with queue-worker tasks list",
        );
    }
}

fn memory(findings: &mut Findings, facts: &Facts) {
    const CHECK: &str = "redis.memory";
    let (Some(used), Some(most)) = (facts.number("used_memory"), facts.number("maxmemory")) else {
        return;
    };
    let size = |bytes: u64| ByteSize::mib(bytes.div_ceil(1 << 20)).to_string();
    if most == 0 {
        findings.ok(CHECK, format!("{} used, no limit", size(used)));
    } else if used.saturating_mul(100) / most >= FULL {
        findings.warning(
            CHECK,
            format!("{} of {} are used", size(used), size(most)),
            "when it is full, producers are refused and nothing can be enqueued or locked",
            "raise maxmemory, or find out why entries pile up (queue-worker status)",
        );
    } else {
        findings.ok(CHECK, format!("{} of {} are used", size(used), size(most)));
    }
}

fn persistence(findings: &mut Findings, facts: &Facts) {
    const CHECK: &str = "redis.persistence";
    const REMEDY: &str = "set appendonly yes and appendfsync everysec, or always, in redis.conf";
    let Some(aof) = facts.info("aof_enabled") else {
        return findings.warning(
            CHECK,
            "the server does not tell whether it writes an append-only file",
            "tasks that no worker has claimed yet exist only in Redis",
            "allow the user INFO, and make sure that appendonly is yes",
        );
    };
    if aof != "1" {
        let snapshots = facts.setting("save").is_none_or(|save| !save.is_empty());
        let (found, why) = if snapshots {
            (
                "appendonly is no, there are snapshots only",
                "a crash loses every task that was enqueued since the last snapshot and that no \
                 worker has claimed",
            )
        } else {
            (
                "nothing is written to the disk",
                "a restart loses every task that no worker has claimed yet",
            )
        };
        return findings.error(CHECK, found, why, REMEDY);
    }
    match facts.setting("appendfsync") {
        Some("no") => findings.warning(
            CHECK,
            "appendonly is yes, and appendfsync is no",
            "a power cut loses what the kernel has not written yet, half a minute of tasks perhaps",
            REMEDY,
        ),
        Some("everysec") => findings.ok(
            CHECK,
            "appendonly is yes, appendfsync is everysec (a power cut may cost the last second)",
        ),
        Some(other) => {
            findings.ok(CHECK, format!("appendonly is yes, appendfsync is {other}"));
        }
        None => findings.ok(CHECK, "appendonly is yes"),
    }
    if facts.info("aof_last_write_status") == Some("err") {
        findings.error(
            "redis.disk",
            "the last write to the append-only file failed",
            "Redis refuses writes until it works again: nothing can be enqueued or locked",
            "look at the disk and the log of Redis",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn facts(info: &[(&str, &str)], settings: &[(&str, &str)]) -> Facts {
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let mut facts = Facts {
            info: map(&[
                ("redis_version", "7.0.15"),
                ("role", "master"),
                ("cluster_enabled", "0"),
                ("maxmemory_policy", "noeviction"),
                ("maxmemory", "1000"),
                ("used_memory", "500"),
                ("evicted_keys", "0"),
                ("aof_enabled", "1"),
                ("aof_last_write_status", "ok"),
            ]),
            settings: map(&[("appendfsync", "everysec"), ("save", "")]),
        };
        facts.info.extend(map(info));
        facts.settings.extend(map(settings));
        facts
    }

    fn judged(facts: &Facts) -> Findings {
        let mut findings = Findings::about("redis");
        judge(&mut findings, facts);
        findings
    }

    #[test]
    fn a_good_server_has_no_trouble() {
        assert_eq!(judged(&facts(&[], &[])).trouble(), []);
        let valkey = facts(&[("redis_version", "5.0"), ("valkey_version", "8.1")], &[]);
        assert_eq!(judged(&valkey).trouble(), []);
    }

    #[test]
    fn each_wrong_fact_is_found_and_nothing_else() {
        type Pairs = &'static [(&'static str, &'static str)];
        let wrong: [(&str, Level, Pairs, Pairs); 11] = [
            ("redis.version", Level::Error, &[("redis_version", "6.0.16")], &[]),
            ("redis.role", Level::Error, &[("role", "slave")], &[]),
            ("redis.role", Level::Error, &[("cluster_enabled", "1")], &[]),
            ("redis.policy", Level::Error, &[("maxmemory_policy", "allkeys-lru")], &[]),
            ("redis.policy", Level::Error, &[], &[("maxmemory-policy", "volatile-ttl")]),
            ("redis.evicted", Level::Warning, &[("evicted_keys", "3")], &[]),
            ("redis.memory", Level::Warning, &[("used_memory", "800")], &[]),
            ("redis.persistence", Level::Error, &[("aof_enabled", "0")], &[]),
            ("redis.persistence", Level::Error, &[("aof_enabled", "0")], &[("save", "60 1")]),
            ("redis.persistence", Level::Warning, &[], &[("appendfsync", "no")]),
            ("redis.disk", Level::Error, &[("aof_last_write_status", "err")], &[]),
        ];
        for (check, level, info, settings) in wrong {
            let findings = judged(&facts(info, settings));
            assert_eq!(findings.trouble(), [(check, level)], "{findings:#?}");
        }
    }

    #[test]
    fn what_an_acl_hides_is_a_warning() {
        let findings = judged(&Facts::default());
        let hidden = ["redis.version", "redis.policy", "redis.persistence"];
        assert_eq!(findings.trouble(), hidden.map(|check| (check, Level::Warning)));
    }
}
