//! `queue-worker enqueue`: tasks from arguments, from standard input, or from a file of JSON lines.

mod batch;
mod line;
mod sink;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, stdin};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::builder::NonEmptyStringValueParser;
use futures_util::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};

use self::batch::Batch;
use self::line::Line;
use self::sink::{Sink, may_be_added, note, print};
use super::GlobalOptions;
use crate::clock::Clock;
use crate::config::{Config, Environment, format_duration, parse_duration};
use crate::domain::{EntryId, Kind, LockKey, QueueName, TaskId};
use crate::queue::QueueError;
use crate::queue::codec::NewTask;

/// Entries on their way to Redis at once.
const IN_FLIGHT: usize = 1_000;

/// Whoever waits longer than this for one entry may soon interrupt us, and has to know the id.
const SOON: Duration = Duration::from_secs(2);

/// Kinds named in one warning.
const MOST_NAMED: usize = 5;

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
    /// The idempotency key; a new UUID if not given. The same id again is the same task.
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
    /// What the ids of lines without task_id follow from, with their content; a new one if not
    /// given. The same file with the same batch again is the same tasks.
    #[arg(long, value_name = "NAME", requires = "file",
        value_parser = NonEmptyStringValueParser::new())]
    batch: Option<String>,
    /// Print one JSON object per task: task_id and entry.
    #[arg(long)]
    json: bool,
}

impl Enqueue {
    pub(super) async fn run(self, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
        let config = Config::load(&global.config, &Environment::of_process())?;
        let sink = Sink::new(&config, &self.queue)?;
        if let Some(path) = &self.file {
            let mut batch = Batch::new(self.batch.as_deref());
            let tasks = self.read(path, &sink, &mut batch)?;
            self.doubt(&config, &tasks);
            self.many(tasks, &sink, &batch).await?;
        } else {
            let task = self.one()?;
            sink.check(&task)?;
            self.doubt(&config, std::slice::from_ref(&task));
            self.single(task, &sink).await?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Warns of names that the configuration does not know: whoever mistypes one hears of it.
    /// Another worker may have another configuration, so they are added all the same.
    fn doubt(&self, config: &Config, tasks: &[NewTask]) {
        if !config.queues.iter().any(|queue| queue.name == self.queue) {
            note(format_args!(
                "warning: the configuration has no queue {}; its tasks wait for a worker that has",
                self.queue
            ));
        }
        // Without any handler this is a producer's configuration, or handlers are made in code.
        if config.handlers.is_empty() {
            return;
        }
        let unknown: BTreeSet<&Kind> = tasks
            .iter()
            .map(|task| &task.kind)
            .filter(|kind| !config.handlers.contains_key(*kind))
            .collect();
        for kind in unknown.into_iter().take(MOST_NAMED) {
            let give_up = format_duration(config.unknown_kind.give_up);
            note(format_args!(
                "warning: the configuration has no handler for the kind {kind}; after {give_up} \
                 without one such a task is dead"
            ));
        }
    }

    async fn single(&self, task: NewTask, sink: &Sink) -> anyhow::Result<()> {
        sink.knock().await?;
        let id = task.id.clone();
        let again = format!("the same command with --id {id} is the same task");
        let mut adding = pin!(sink.add(task));
        let soon = tokio::time::timeout(SOON, &mut adding).await;
        if soon.is_err() {
            note(format_args!("no answer yet; if this is interrupted, {again}"));
        }
        let added = match soon {
            Ok(added) => added,
            Err(_) => adding.await,
        };
        match added {
            Ok(entry) if self.json => print(&added_json(&id, entry)),
            Ok(_) => print(&id),
            Err(error) if may_be_added(&error) => {
                Err(error).with_context(|| format!("task {id} may have been added; {again}"))
            }
            Err(error) => Err(error.into()),
        }
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

    /// All lines are read before the first is sent: a mistake in line 9,000 adds nothing.
    fn read(&self, path: &Path, sink: &Sink, batch: &mut Batch) -> anyhow::Result<Vec<NewTask>> {
        let mut tasks = Vec::new();
        for (number, line) in lines(path)?.enumerate() {
            let place = || format!("{}, line {}", path.display(), number + 1);
            let line = line.with_context(place)?;
            if line.trim().is_empty() {
                continue;
            }
            let line: Line = serde_json::from_str(&line).with_context(place)?;
            let is_named = line.task_id.is_some();
            let mut task = line.task(self.kind.as_ref()).with_context(place)?;
            if !is_named {
                task.id = batch.id(&self.queue, &task);
            }
            sink.check(&task).with_context(place)?;
            tasks.push(task);
        }
        Ok(tasks)
    }

    async fn many(&self, tasks: Vec<NewTask>, sink: &Sink, batch: &Batch) -> anyhow::Result<()> {
        sink.knock().await?;
        let again = if batch.is_used() {
            format!("the same command with --batch {} adds the rest", batch.name)
        } else {
            "the same command adds the rest".to_owned()
        };
        if batch.is_used() {
            note(format_args!("batch {}: if this is interrupted, {again}", batch.name));
        }
        let all = tasks.len();
        let bar = progress(all);
        let add = async |task: NewTask| {
            let id = task.id.clone();
            Ok::<_, QueueError>((id, sink.add(task).await?))
        };
        let mut added = futures_util::stream::iter(tasks.into_iter().map(add)).buffered(IN_FLIGHT);
        let mut count = 0;
        while let Some(answer) = added.next().await {
            let (id, entry) = answer.with_context(|| {
                bar.finish_and_clear();
                format!("at least {count} of {all} tasks were added; {again}")
            })?;
            if self.json {
                print(&added_json(&id, entry))?;
            }
            count += 1;
            bar.inc(1);
        }
        bar.finish_and_clear();
        note(format_args!("{count} tasks added to {}", self.queue));
        Ok(())
    }
}

fn added_json(id: &TaskId, entry: EntryId) -> serde_json::Value {
    serde_json::json!({"task_id": id.as_str(), "entry": entry.to_string()})
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
