//! `queue-worker enqueue`: tasks from arguments, from standard input, or from a file of JSON lines.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use futures_util::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;

use super::GlobalOptions;
use crate::clock::Clock;
use crate::config::{Config, Environment, parse_duration};
use crate::domain::{Delivery, EntryId, Kind, LockKey, Origin, QueueName, TaskId, WorkerId};
use crate::queue::codec::{self, NewTask};
use crate::queue::{Queue, RedisQueue, RedisQueueOptions};
use crate::supervisor::redis_target;

/// Entries on their way to Redis at once.
const IN_FLIGHT: usize = 1_000;

/// A broker that is slow to take many entries is no reason to give up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Add tasks to a queue
///
/// One task from arguments, its payload from --payload, --payload-file or standard input:
///   queue-worker enqueue mail --kind welcome --payload '{"to":"a@example.org"}'
/// Or many, from a file of JSON lines with the fields of the producer contract ("payload" is a
/// string or any JSON value; "payload_hex" holds bytes):
///   queue-worker enqueue mail --file tasks.jsonl
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Enqueue {
    /// The queue.
    queue: QueueName,
    /// Which handler runs the task.
    #[arg(long, required_unless_present = "file")]
    kind: Option<Kind>,
    /// The idempotency key; a new UUID if not given.
    #[arg(long, visible_alias = "task-id", conflicts_with = "file")]
    id: Option<TaskId>,
    /// The payload as text.
    #[arg(long, conflicts_with_all = ["payload_file", "file"])]
    payload: Option<String>,
    /// A file whose bytes are the payload.
    #[arg(long, value_name = "PATH", conflicts_with = "file")]
    payload_file: Option<PathBuf>,
    /// The shared resource that the task works on.
    #[arg(long, conflicts_with = "file")]
    lock_key: Option<LockKey>,
    /// How many attempts it has, instead of its handler's number.
    #[arg(long, value_name = "NUMBER", conflicts_with = "file")]
    max_attempts: Option<u32>,
    /// How long one attempt may take ("45s"), instead of its handler's limit.
    #[arg(long, value_name = "DURATION", conflicts_with = "file", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Not to be run before this much time has passed ("10m").
    #[arg(long, value_name = "DURATION", conflicts_with = "file", value_parser = parse_duration)]
    delay: Option<Duration>,
    /// A W3C traceparent that is handed to the handler.
    #[arg(long, conflicts_with = "file")]
    traceparent: Option<String>,
    /// A file of JSON lines, one task each; "-" is standard input.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Print one JSON object per task: task_id and entry.
    #[arg(long)]
    json: bool,
}

/// One line of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    task_id: Option<String>,
    kind: Option<String>,
    payload: Option<serde_json::Value>,
    payload_hex: Option<String>,
    lock_key: Option<String>,
    max_attempts: Option<u32>,
    timeout_ms: Option<u64>,
    not_before_ms: Option<i64>,
    traceparent: Option<String>,
}

impl Enqueue {
    pub(super) async fn run(self, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
        let config = Config::load(&global.config, &Environment::of_process())?;
        let stream = |call_timeout| -> anyhow::Result<RedisQueue> {
            let options = RedisQueueOptions::new(redis_target(&config.redis)?, WorkerId::random());
            Ok(RedisQueue::new(RedisQueueOptions { call_timeout, ..options }))
        };
        let sink = Sink {
            door: stream(config.redis.connect_timeout)?,
            stream: stream(PATIENCE)?,
            queue: self.queue.clone(),
            most: config
                .queues
                .iter()
                .find(|queue| queue.name == self.queue)
                .map_or(usize::MAX, |queue| queue.max_payload.bytes()),
            json: self.json,
        };
        match &self.file {
            Some(path) => self.many(path, &sink).await?,
            None => self.single(&sink).await?,
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn single(&self, sink: &Sink) -> anyhow::Result<()> {
        let task = self.one()?;
        sink.check(&task)?;
        sink.knock().await?;
        let id = task.id.clone();
        sink.add(task).await?;
        if !self.json {
            println!("{id}");
        }
        Ok(())
    }

    fn one(&self) -> anyhow::Result<NewTask> {
        let kind = self.kind.clone().context("--kind is missing")?;
        let payload = match (&self.payload, &self.payload_file) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(path)) => {
                std::fs::read(path).with_context(|| format!("read {}", path.display()))?
            }
            (None, None) if stdin().is_terminal() => {
                bail!("no payload: give --payload, --payload-file, or pipe it in")
            }
            (None, None) => {
                let mut bytes = Vec::new();
                stdin().read_to_end(&mut bytes).context("read the payload from standard input")?;
                bytes
            }
        };
        let mut task = NewTask::new(kind, payload);
        if let Some(id) = &self.id {
            task = task.with_id(id.clone());
        }
        task.lock_key.clone_from(&self.lock_key);
        task.max_attempts = self.max_attempts;
        task.timeout = self.timeout;
        task.not_before_ms = self.delay.map(|delay| {
            Clock::System
                .wall_ms()
                .saturating_add(i64::try_from(delay.as_millis()).unwrap_or(i64::MAX))
        });
        task.traceparent.clone_from(&self.traceparent);
        Ok(task)
    }

    /// Two passes: a mistake in line 9,000 is found before line 1 is sent.
    async fn many(&self, path: &Path, sink: &Sink) -> anyhow::Result<()> {
        let mut tasks = Vec::new();
        for (number, line) in lines(path)?.enumerate() {
            let place = || format!("{}, line {}", path.display(), number + 1);
            let line = line.with_context(place)?;
            if line.trim().is_empty() {
                continue;
            }
            let line: Line = serde_json::from_str(&line).with_context(place)?;
            let task = line.task(self.kind.as_ref()).with_context(place)?;
            sink.check(&task).with_context(place)?;
            tasks.push(task);
        }
        sink.knock().await?;
        let bar = progress(tasks.len());
        let mut added = futures_util::stream::iter(tasks.into_iter().map(|task| sink.add(task)))
            .buffered(IN_FLIGHT);
        let mut count = 0;
        while let Some(answer) = added.next().await {
            answer.with_context(|| format!("{count} tasks were added before this"))?;
            count += 1;
            bar.inc(1);
        }
        bar.finish_and_clear();
        eprintln!("{count} tasks added to {}", self.queue);
        Ok(())
    }
}

fn lines(path: &Path) -> anyhow::Result<Box<dyn Iterator<Item = std::io::Result<String>>>> {
    if path == Path::new("-") {
        return Ok(Box::new(stdin().lines()));
    }
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    Ok(Box::new(BufReader::new(file).lines()))
}

fn progress(tasks: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {per_sec} {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(tasks as u64).with_style(style)
}

impl Line {
    fn task(self, default_kind: Option<&Kind>) -> anyhow::Result<NewTask> {
        let kind = match (self.kind, default_kind) {
            (Some(kind), _) => Kind::new(&kind)?,
            (None, Some(kind)) => kind.clone(),
            (None, None) => bail!("`kind` is missing; add it, or give --kind for all"),
        };
        let payload = match (self.payload, self.payload_hex) {
            (Some(_), Some(_)) => bail!("both `payload` and `payload_hex`; keep one"),
            (Some(serde_json::Value::String(text)), None) => Bytes::from(text),
            (Some(value), None) => Bytes::from(serde_json::to_vec(&value)?),
            (None, Some(hex)) => unhex(&hex)?,
            (None, None) => bail!("`payload` is missing; an empty one is \"\""),
        };
        let mut task = NewTask::new(kind, payload);
        if let Some(id) = self.task_id {
            task.id = TaskId::new(&id)?;
        }
        task.lock_key = self.lock_key.map(|key| LockKey::new(&key)).transpose()?;
        task.max_attempts = self.max_attempts;
        task.timeout = self.timeout_ms.map(Duration::from_millis);
        task.not_before_ms = self.not_before_ms;
        task.traceparent = self.traceparent;
        Ok(task)
    }
}

fn unhex(text: &str) -> anyhow::Result<Bytes> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    match digits {
        Some(digits) if digits.len() % 2 == 0 => {
            Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
        }
        _ => bail!("`payload_hex` is not an even number of hexadecimal digits"),
    }
}

/// Where tasks go.
struct Sink {
    /// The same broker with less patience.
    door: RedisQueue,
    stream: RedisQueue,
    queue: QueueName,
    most: usize,
    json: bool,
}

impl Sink {
    /// The worker's own rules, before anything is sent.
    fn check(&self, task: &NewTask) -> anyhow::Result<()> {
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
    async fn knock(&self) -> anyhow::Result<()> {
        Ok(self.door.check().await?)
    }

    async fn add(&self, task: NewTask) -> anyhow::Result<()> {
        let entry = self.stream.append(&self.queue, &task.encode()).await?;
        if self.json {
            let line = serde_json::json!({"task_id": task.id.as_str(), "entry": entry.to_string()});
            println!("{line}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(line: &str) -> anyhow::Result<NewTask> {
        serde_json::from_str::<Line>(line)?.task(None)
    }

    #[test]
    fn payloads_are_text_json_or_bytes() {
        let payload = |line: &str| task(line).expect("a good line").payload;
        assert_eq!(payload(r#"{"kind":"k","payload":"é"}"#), "é".as_bytes());
        assert_eq!(payload(r#"{"kind":"k","payload":{"a":[1]}}"#), r#"{"a":[1]}"#.as_bytes());
        assert_eq!(payload(r#"{"kind":"k","payload_hex":"00fF"}"#), [0, 255].as_slice());
    }

    #[test]
    fn bad_lines_name_the_field() {
        for (line, named) in [
            (r#"{"payload":""}"#, "kind"),
            (r#"{"kind":"k"}"#, "payload"),
            (r#"{"kind":"k","payload":"","payload_hex":""}"#, "payload_hex"),
            (r#"{"kind":"k","payload_hex":"0"}"#, "payload_hex"),
            (r#"{"kind":"k","payload":"","task_id":""}"#, "task_id"),
            (r#"{"kind":"k","payload":"","atempts":3}"#, "atempts"),
        ] {
            let error = format!("{:#}", task(line).expect_err(line));
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
