//! The rules about `lease.nodes`: a majority that means something.

use super::Rules;
use crate::config::duration::format_duration as show;
use crate::config::server_url::ServerUrl;
use crate::config::tree::Config;

/// Redis' own port.
const REDIS_PORT: u16 = 6379;

/// Every lock asks every node: more of them cost more than they save.
const MAX_LOCK_NODES: usize = 15;

impl Rules<'_> {
    /// Notes what is wrong with the lock nodes and their times.
    pub(super) fn lock_nodes(&mut self, config: &Config) {
        const KEY: &str = "lease.nodes";
        let lease = &config.lease;
        let count = lease.nodes.len();
        if count > 0 && (count < 3 || count.is_multiple_of(2) || count > MAX_LOCK_NODES) {
            let message = format!("{count} nodes are no sound majority");
            let remedy = format!(
                "name an odd number of independent servers from 3 to {MAX_LOCK_NODES}, or none"
            );
            self.broken(&[KEY], message, remedy);
        }
        self.one_password("lease", None, lease.password.is_some(), lease.password_file.is_some());
        for (at, node) in lease.nodes.iter().enumerate() {
            self.redis_url(KEY, node);
            let same = |other: &ServerUrl| other.is_same_server(node, REDIS_PORT);
            if lease.nodes[..at].iter().any(same) {
                let remedy = "name each server once: one server with two votes protects nothing";
                self.broken(&[KEY], format!("names {} twice", node.without_password()), remedy);
            }
        }
        if lease.node_timeout > config.redis.call_timeout {
            self.broken(
                &["lease.node_timeout", "redis.call_timeout"],
                format!(
                    "the node timeout {} is longer than the call timeout {}",
                    show(lease.node_timeout),
                    show(config.redis.call_timeout)
                ),
                format!("lower it to \"{}\" or less", show(config.redis.call_timeout)),
            );
        }
        let retries = usize::try_from(lease.retry_count).unwrap_or(usize::MAX);
        self.range("lease.retry_count", retries, 0, 100);
    }
}
