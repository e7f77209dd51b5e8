//! What a reload (SIGHUP) can apply, and what waits for a restart.
//!
//! Pure: it compares two checked configurations and names keys. Connections, leases and the set of
//! queues are built once at the start; limits, budgets and handlers can change under way.
//!
//! What is in force after a reload is a mixture of both, which [`in_force`] makes: whatever is built
//! of it, and the next comparison, has to see that, and not a file of which a part is still to come.

use super::section::Section;
use super::tree::{Config, LogSettings, QueueSettings};

/// The keys whose values differ, by what a reload can do about them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReloadPlan {
    /// Applied by the reload.
    pub apply: Vec<String>,
    /// Kept as they were until the next start.
    pub needs_restart: Vec<String>,
}

impl ReloadPlan {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.apply.is_empty() && self.needs_restart.is_empty()
    }
}

/// Compares the running configuration with a new one.
pub fn reloadable(old: &Config, new: &Config) -> ReloadPlan {
    let mut plan = ReloadPlan::default();
    let ReloadPlan { apply, needs_restart } = &mut plan;
    section(needs_restart, "worker", &old.worker, &new.worker);
    section(needs_restart, "redis", &old.redis, &new.redis);
    section(needs_restart, "postgres", &old.postgres, &new.postgres);
    section(needs_restart, "lease", &old.lease, &new.lease);
    section(apply, "drain", &old.drain, &new.drain);
    queues(&mut plan, old, new);
    handlers(&mut plan.apply, old, new);
    let ReloadPlan { apply, needs_restart } = &mut plan;
    section(needs_restart, "retention", &old.retention, &new.retention);
    section(needs_restart, "unknown_kind", &old.unknown_kind, &new.unknown_kind);
    section(needs_restart, "web", &old.web, &new.web);
    for name in old.log.changed(&new.log) {
        let keys = if name == "level" { &mut *apply } else { &mut *needs_restart };
        keys.push(format!("log.{name}"));
    }
    plan
}

/// The configuration that a reload leads to: of `new` what it applies, and of `old` all the rest.
#[must_use]
pub fn in_force(old: &Config, new: Config) -> Config {
    let queue = |queue: &QueueSettings| {
        let other = new.queues.iter().find(|other| other.name == queue.name);
        let concurrency = other.map_or(queue.concurrency, |other| other.concurrency);
        QueueSettings { concurrency, ..queue.clone() }
    };
    Config {
        worker: old.worker.clone(),
        redis: old.redis.clone(),
        postgres: old.postgres.clone(),
        lease: old.lease.clone(),
        queues: old.queues.iter().map(queue).collect(),
        drain: new.drain,
        handlers: new.handlers,
        unknown_kind: old.unknown_kind.clone(),
        retention: old.retention.clone(),
        web: old.web.clone(),
        log: LogSettings { level: new.log.level, ..old.log.clone() },
    }
}

fn section<T: Section>(keys: &mut Vec<String>, name: &str, old: &T, new: &T) {
    keys.extend(old.changed(new).into_iter().map(|key| format!("{name}.{key}")));
}

fn queues(plan: &mut ReloadPlan, old: &Config, new: &Config) {
    for queue in &old.queues {
        let key = format!("queue.{}", queue.name);
        match new.queues.iter().find(|other| other.name == queue.name) {
            Some(other) => {
                for name in queue.changed(other) {
                    let applies = name == "concurrency";
                    let keys = if applies { &mut plan.apply } else { &mut plan.needs_restart };
                    keys.push(format!("{key}.{name}"));
                }
            }
            None => plan.needs_restart.push(key),
        }
    }
    let added = |queue: &&super::QueueSettings| old.queues.iter().all(|o| o.name != queue.name);
    let added = new.queues.iter().filter(added).map(|queue| format!("queue.{}", queue.name));
    plan.needs_restart.extend(added);
}

fn handlers(apply: &mut Vec<String>, old: &Config, new: &Config) {
    for (kind, handler) in &old.handlers {
        let key = format!("handler.{kind}");
        match new.handlers.get(kind) {
            Some(other) => {
                apply
                    .extend(handler.changed(other).into_iter().map(|name| format!("{key}.{name}")));
            }
            None => apply.push(key),
        }
    }
    let added = new.handlers.keys().filter(|kind| !old.handlers.contains_key(kind));
    apply.extend(added.map(|kind| format!("handler.{kind}")));
}
