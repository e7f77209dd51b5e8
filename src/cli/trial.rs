//! What the commands share that try the worker as a process on private servers.
//!
//! Nothing here knows what is tried; the servers come from `private_servers`.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::bail;
use tokio::process::Command;
use tokio::time::Instant;
use uuid::Uuid;

/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(20);

/// Brings the database of a configuration up to date, in a process of its own.
pub(super) async fn migrate(config: &Path) -> anyhow::Result<()> {
    let status = Command::new(super::own_program()?)
        .args(["migrate", "--config"])
        .arg(config)
        .stdout(Stdio::null())
        .status()
        .await?;
    if !status.success() {
        bail!("queue-worker migrate ended with {status}");
    }
    Ok(())
}

/// The worker that has left its note in a state directory, with its process id.
pub(super) fn noted_worker(state_dir: &Path) -> Option<(u32, Uuid)> {
    let text = std::fs::read_to_string(state_dir.join("running.json")).ok()?;
    let note = serde_json::from_str::<serde_json::Value>(&text).ok()?;
    let pid = u32::try_from(note.get("pid")?.as_u64()?).ok()?;
    Some((pid, note.get("worker")?.as_str()?.parse().ok()?))
}

/// Asks again and again until there is an answer, for `limit` at most.
pub(super) async fn until<T>(
    what: &str,
    limit: Duration,
    mut ask: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        if start.elapsed() > limit {
            bail!("gave up waiting for {what} after {limit:?}");
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The lock keys of tasks that exist in a Redis.
pub(super) async fn task_locks(redis_url: &str) -> anyhow::Result<Vec<String>> {
    let client = redis::Client::open(redis_url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    Ok(redis::cmd("KEYS").arg("lock:*").query_async(&mut connection).await?)
}
