//! Where tasks go: the stream, and a line for each on standard output.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::config::Config;
use crate::domain::{Delivery, EntryId, Origin, QueueName, WorkerId};
use crate::queue::codec::{self, NewTask};
use crate::queue::{Queue as _, QueueError, RedisQueue, RedisQueueOptions};
use crate::supervisor::redis_target;

/// A broker that is slow to take many entries is no reason to give up.
const PATIENCE: Duration = Duration::from_secs(30);

/// The stream of one queue.
pub(super) struct Sink {
    /// The same broker with less patience.
    door: RedisQueue,
    stream: RedisQueue,
    queue: QueueName,
    most: usize,
}

/// Whether the entry may be in the stream although this was the answer.
pub(super) const fn may_be_added(error: &QueueError) -> bool {
    match error {
        QueueError::Unavailable { .. } | QueueError::Timeout { .. } | QueueError::Unsure { .. } => {
            true
        }
        QueueError::Refused { .. }
        | QueueError::Replica { .. }
        | QueueError::Misconfigured { .. } => false,
    }
}

impl Sink {
    /// The stream of that queue.
    pub(super) fn new(config: &Config, queue: &QueueName) -> anyhow::Result<Self> {
        let stream = |call_timeout| -> anyhow::Result<RedisQueue> {
            let options = RedisQueueOptions::new(redis_target(&config.redis)?, WorkerId::random());
            Ok(RedisQueue::new(RedisQueueOptions { call_timeout, ..options }))
        };
        let configured = config.queues.iter().find(|known| known.name == *queue);
        Ok(Self {
            door: stream(config.redis.connect_timeout)?,
            stream: stream(PATIENCE)?,
            queue: queue.clone(),
            most: configured.map_or(usize::MAX, |queue| queue.max_payload.bytes()),
        })
    }

    /// The worker's own rules, before anything is sent.
    pub(super) fn check(&self, task: &NewTask) -> anyhow::Result<()> {
        let delivery = Delivery {
            queue: self.queue.clone(),
            entry: EntryId { ms: 0, seq: 0 },
            origin: Origin::Fresh,
            raw: task.encode(),
        };
        match codec::decode(&delivery, self.most) {
            Ok(_) => Ok(()),
            Err(malformed) => bail!("{}", malformed.message),
        }
    }

    /// A broker that does not answer at all is told of soon, whatever patience there is for work.
    pub(super) async fn knock(&self) -> anyhow::Result<()> {
        Ok(self.door.check().await?)
    }

    /// Adds the entry.
    pub(super) async fn add(&self, task: NewTask) -> Result<EntryId, QueueError> {
        self.stream.append(&self.queue, &task.encode()).await
    }
}

/// Writes a line to standard output. A reader that has gone away stops nothing: the tasks go on.
pub(super) fn print(line: &impl Display) -> anyhow::Result<()> {
    match writeln!(io::stdout().lock(), "{line}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        answer => answer.context("failed to write to standard output"),
    }
}

/// Writes a line to standard error, if anybody reads it.
pub(super) fn note(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
