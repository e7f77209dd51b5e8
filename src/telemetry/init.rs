//! Choosing where records go, and the handle that changes the level while the worker runs.

use std::io::IsTerminal;

use tracing::Subscriber;
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

use super::json::{JsonEvent, JsonFields};
use super::text::{TextEvent, TextFields};
use super::{journal, stderr_is_journal};

/// Where records go, and how they look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sink {
    /// The journal's own protocol.
    Journald,
    /// Lines; in colours where the flag says so.
    Text {
        /// Whether the reader is a terminal.
        colours: bool,
    },
    /// One JSON object a line.
    Json,
}

impl Sink {
    /// The sink for a word of the configuration: `auto`, `journald`, `text` or `json`.
    fn choose(format: &str) -> Result<Self, LogError> {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|text| !text.is_empty());
        let text = Self::Text { colours: !no_colour && std::io::stderr().is_terminal() };
        let under_systemd = || stderr_is_journal(std::env::var_os("JOURNAL_STREAM").as_deref());
        match format {
            "auto" if under_systemd() => Ok(Self::Journald),
            "auto" | "text" => Ok(text),
            "journald" => Ok(Self::Journald),
            "json" => Ok(Self::Json),
            other => Err(LogError::Format(other.to_owned())),
        }
    }
}

/// Why logging could not be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// No such format.
    #[error("{0:?} is not a log format; write \"auto\", \"journald\", \"text\" or \"json\"")]
    Format(String),
    /// The level or a directive does not parse.
    #[error("{text:?} is not a log level: {source}; write \"info\" or \"info,sqlx=warn\"")]
    Level {
        /// What was given.
        text: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// No journal listens.
    #[error("reach the journal: {0}; is /run/systemd/journal/socket there?")]
    Journal(std::io::Error),
    /// Logging was set up before in this process.
    #[error("set up logging: {0}; it can be done once in a process")]
    Taken(#[from] tracing_subscriber::util::TryInitError),
    /// The subscriber of this handle is gone.
    #[error("change the log level: {0}; restart the worker")]
    Gone(#[from] reload::Error),
}

/// Changes what is logged while the worker runs.
#[derive(Debug, Clone)]
pub struct LogHandle {
    filter: reload::Handle<EnvFilter, Registry>,
    sink: Sink,
}

impl LogHandle {
    /// Sets the level or the directives from now on; after an error the old ones stay.
    pub fn set_level(&self, level: &str) -> Result<(), LogError> {
        Ok(self.filter.reload(parse_level(level)?)?)
    }

    /// Where records go.
    pub fn sink(&self) -> Sink {
        self.sink
    }
}

fn parse_level(level: &str) -> Result<EnvFilter, LogError> {
    EnvFilter::builder()
        .parse(level)
        .map_err(|source| LogError::Level { text: level.to_owned(), source })
}

/// Sets up logging for the process: `format` is `auto`, `journald`, `text` or `json`, `level` a
/// level or directives as the configuration has them.
///
/// Where the journal cannot be reached, records go to standard error as text, and the first one
/// says so.
pub fn init(format: &str, level: &str) -> Result<LogHandle, LogError> {
    let sink = Sink::choose(format)?;
    match subscriber(sink, level, std::io::stderr) {
        Err(LogError::Journal(error)) => {
            let text = Sink::Text { colours: false };
            let (subscriber, handle) = subscriber(text, level, std::io::stderr)?;
            subscriber.try_init()?;
            tracing::warn!(error = %error, "the journal cannot be reached: logging as text");
            Ok(handle)
        }
        Err(error) => Err(error),
        Ok((subscriber, handle)) => {
            subscriber.try_init()?;
            Ok(handle)
        }
    }
}

/// A subscriber for one sink, which [`init`] makes the process' own and a test uses for a scope.
/// The journal takes no writer.
pub fn subscriber<W>(
    sink: Sink,
    level: &str,
    writer: W,
) -> Result<(Box<dyn Subscriber + Send + Sync>, LogHandle), LogError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, reload) = reload::Layer::new(parse_level(level)?);
    let filtered = tracing_subscriber::registry().with(filter);
    let subscriber: Box<dyn Subscriber + Send + Sync> = match sink {
        Sink::Journald => Box::new(filtered.with(journal::layer().map_err(LogError::Journal)?)),
        Sink::Text { colours } => Box::new(
            filtered.with(
                // The formatter escapes by itself, line breaks included.
                tracing_subscriber::fmt::layer()
                    .fmt_fields(TextFields)
                    .event_format(TextEvent)
                    .with_ansi(colours)
                    .with_ansi_sanitization(false)
                    .with_writer(writer)
                    .boxed(),
            ),
        ),
        Sink::Json => Box::new(
            filtered.with(
                tracing_subscriber::fmt::layer()
                    .fmt_fields(JsonFields)
                    .event_format(JsonEvent)
                    .with_ansi(false)
                    .with_writer(writer)
                    .boxed(),
            ),
        ),
    };
    Ok((subscriber, LogHandle { filter: reload, sink }))
}
