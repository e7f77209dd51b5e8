//! The rules about times that have to fit each other: leases, drains, and how long rows are kept.

use std::time::Duration;

use super::Rules;
use crate::config::duration::format_duration as show;
use crate::config::tree::Config;

/// Half a second until a handler that does not end is dropped, one for what is then recorded and
/// handed over, and half a second for the parts of the process that end after that.
const LEAST_MARGIN: Duration = Duration::from_secs(2);

/// Whoever waits longer for an answer will not get one. Postgres counts such times in 32-bit
/// milliseconds, and would refuse every session with a limit of some weeks.
const LONGEST_CALL: Duration = Duration::from_secs(24 * 3_600);

impl Rules<'_> {
    pub(super) fn calls(&mut self, config: &Config) {
        for (key, limit) in [
            ("postgres.call_timeout", config.postgres.call_timeout),
            ("redis.call_timeout", config.redis.call_timeout),
            ("redis.connect_timeout", config.redis.connect_timeout),
        ] {
            if limit > LONGEST_CALL {
                let remedy = format!("lower it to \"{}\" or less", show(LONGEST_CALL));
                self.broken(&[key], format!("{} is no deadline for a call", show(limit)), remedy);
            }
        }
    }

    pub(super) fn lease(&mut self, config: &Config) {
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

    pub(super) fn drain(&mut self, config: &Config) {
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

    /// A row that is forgotten while its task may still come again would let it run twice.
    pub(super) fn retention(&mut self, config: &Config) {
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
}
