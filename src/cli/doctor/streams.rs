//! Streams that nobody reads: a producer that mistypes a queue hears nothing of it.

use super::finding::Findings;
use super::{PATIENCE, one};
use crate::cli::stores;
use crate::config::Config;
use crate::domain::QueueName;
use crate::queue::{QueueDepth, RedisQueue};

/// Looks for streams of queues that the configuration does not have. A Redis that is away is told of
/// elsewhere.
pub(super) async fn look(config: &Config) -> Vec<Findings> {
    let Ok(queues) = stores::queues(config) else { return Vec::new() };
    let Ok(Some(foreign)) = tokio::time::timeout(PATIENCE, foreign(config, &queues)).await else {
        return Vec::new();
    };
    let mut findings = Findings::about("redis");
    judge(&mut findings, &foreign);
    one(findings)
}

/// The queues with a stream that the configuration does not have; `None` if Redis does not say.
async fn foreign(config: &Config, queues: &RedisQueue) -> Option<Vec<(QueueName, QueueDepth)>> {
    let mut foreign = Vec::new();
    for name in queues.streams().await.ok()? {
        if !config.queues.iter().any(|queue| queue.name == name) {
            let depth = queues.depth(&name).await.ok()?;
            foreign.push((name, depth));
        }
    }
    Some(foreign)
}

fn judge(findings: &mut Findings, foreign: &[(QueueName, QueueDepth)]) {
    const CHECK: &str = "redis.streams";
    let unread = |(_, depth): &&(QueueName, QueueDepth)| depth.length > 0 && depth.consumers == 0;
    for (name, depth) in foreign.iter().filter(unread) {
        findings.warning(
            CHECK,
            format!("the stream of the queue {name} has {} entries and no worker", depth.length),
            "its name may be mistyped: these tasks never run, and only Redis has them",
            format!("add the queue to a worker, or DEL qw:{{{name}}}:tasks once nobody needs them"),
        );
    }
    if !foreign.iter().any(|one| unread(&one)) {
        findings.ok(CHECK, "each stream of tasks has a worker");
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn only_a_stream_with_entries_and_without_a_worker_is_told() {
        let judged = |length, consumers| {
            let depth = QueueDepth { length, consumers, ..QueueDepth::default() };
            let mut findings = Findings::about("redis");
            judge(&mut findings, &[(QueueName::new("mial").expect("a name"), depth)]);
            findings.level("redis.streams")
        };
        assert_eq!(judged(1, 0), Some(Level::Warning));
        assert_eq!(judged(1, 1), Some(Level::Ok));
        assert_eq!(judged(0, 0), Some(Level::Ok));
    }
}
