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

/// A letter is for people, who look after hours.
const LEAST_LETTERS: Duration = Duration::from_secs(3_600);

/// An entry that idles for so many leases is not taken over, it is forgotten.
const MOST_IDLE_LEASES: u32 = 100;

/// A statement that goes on for so many leases writes for a task that others have long taken over.
const MOST_CALL_LEASES: u32 = 10;

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

    /// Notes times that no store can keep up with.
    pub(super) fn floors(&mut self, config: &Config) {
        const ASKS: &str = "the stores would be asked without a pause";
        const GIVES_UP: &str = "it is given up before a server can answer";
        const UNSEEN: &str = "it is gone before anybody has seen it";
        let ms = Duration::from_millis;
        let Config { lease, redis, postgres, retention, .. } = config;
        for (key, time, least, why) in [
            ("lease.heartbeat", lease.heartbeat, ms(100), ASKS),
            ("lease.sweep", lease.sweep, ms(50), ASKS),
            ("lease.node_timeout", lease.node_timeout, ms(5), GIVES_UP),
            ("redis.call_timeout", redis.call_timeout, ms(50), GIVES_UP),
            ("redis.connect_timeout", redis.connect_timeout, ms(50), GIVES_UP),
            ("postgres.call_timeout", postgres.call_timeout, ms(100), GIVES_UP),
            ("retention.every", retention.every, ms(100), ASKS),
            ("retention.dead_letters", retention.dead_letters, LEAST_LETTERS, UNSEEN),
        ] {
            if time < least {
                let message = format!("{} is too short: {why}", show(time));
                self.broken(&[key], message, format!("raise it to at least \"{}\"", show(least)));
            }
        }
    }

    /// Notes times that are so long beside a lease that it means nothing.
    fn beside_the_lease(&mut self, config: &Config) {
        let ttl = config.lease.ttl;
        for (key, time, most) in [
            ("lease.min_idle", config.lease.min_idle, MOST_IDLE_LEASES),
            ("postgres.call_timeout", config.postgres.call_timeout, MOST_CALL_LEASES),
        ] {
            if time > ttl.saturating_mul(most) {
                self.broken(
                    &[key, "lease.ttl"],
                    format!("{} is more than {most} times lease.ttl = {}", show(time), show(ttl)),
                    format!(
                        "lower {key} to \"{}\" or less, or raise lease.ttl",
                        show(ttl.saturating_mul(most))
                    ),
                );
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
        self.beside_the_lease(config);
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
        if retention.failed < retention.dead_letters {
            self.broken(
                &["retention.failed", "retention.dead_letters"],
                format!(
                    "rows of failed tasks are kept for {}, and their dead letters for {}: without \
                     its row a letter cannot be requeued",
                    show(retention.failed),
                    show(retention.dead_letters)
                ),
                format!(
                    "raise retention.failed to \"{}\", or lower retention.dead_letters",
                    show(retention.dead_letters)
                ),
            );
        }
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
