//! Who has the entries of which tasks in the pending list.
//!
//! A worker that has taken over a dead one's entry and is killed before its claim leaves no trace in
//! the ledger; Redis knows. Entries never change, so each is read once.

use std::collections::HashMap;

use redis::aio::MultiplexedConnection;
use uuid::Uuid;

use super::ground::{Ground, QUEUE};

/// More pending entries are not looked at: some four times of what the workers have in flight.
const MOST: usize = 1_000;

/// A line of the pending list: entry, consumer, idle time, deliveries.
type Line = (String, String, u64, u64);

/// An entry of the stream: its id and its fields.
type Entry = (String, HashMap<String, redis::Value>);

/// Looks into the pending list.
#[derive(Default)]
pub(super) struct Owners {
    connection: Option<MultiplexedConnection>,
    /// The tasks of entries.
    tasks: HashMap<String, Option<String>>,
}

impl Owners {
    /// The owners of the entries of each task; nil for those that were given back.
    pub(super) async fn look(
        &mut self,
        ground: &Ground,
    ) -> anyhow::Result<HashMap<String, Vec<Uuid>>> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => ground.redis().await?,
        };
        // A connection that fails is not kept.
        let mut used = connection.clone();
        let owners = self.ask(&mut used).await?;
        self.connection = Some(connection);
        Ok(owners)
    }

    async fn ask(
        &mut self,
        connection: &mut MultiplexedConnection,
    ) -> anyhow::Result<HashMap<String, Vec<Uuid>>> {
        let key = format!("qw:{{{QUEUE}}}:tasks");
        let mut pending = redis::cmd("XPENDING");
        pending.arg(&key).arg("qw").arg("-").arg("+").arg(MOST);
        let lines: Vec<Line> = pending.query_async(connection).await?;
        let unknown: Vec<&String> =
            lines.iter().map(|line| &line.0).filter(|id| !self.tasks.contains_key(*id)).collect();
        if !unknown.is_empty() {
            let mut read = redis::pipe();
            for id in &unknown {
                read.cmd("XRANGE").arg(&key).arg(id).arg(id);
            }
            let found: Vec<Vec<Entry>> = read.query_async(connection).await?;
            let tasks: Vec<_> = unknown
                .into_iter()
                .cloned()
                .zip(found.iter().map(|found| task_of(found)))
                .collect();
            self.tasks.extend(tasks);
        }
        let mut owners: HashMap<String, Vec<Uuid>> = HashMap::new();
        for (id, consumer, ..) in lines {
            if let Some(Some(task)) = self.tasks.get(&id) {
                let owner = Uuid::parse_str(&consumer).unwrap_or_default();
                owners.entry(task.clone()).or_default().push(owner);
            }
        }
        Ok(owners)
    }
}

/// The id of the task that an entry describes; `None` if the entry is gone.
fn task_of(found: &[Entry]) -> Option<String> {
    let (_, fields) = found.first()?;
    redis::from_redis_value_ref(fields.get("task_id")?).ok()
}
