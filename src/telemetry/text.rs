//! Text lines: time, level, message, `name=value` of the event and of the spans around it.
//!
//! One event is one line, whatever its values hold. Colours and the short time are for terminals.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use super::escape::{Escaped, cut, write_value};

const DIM: &str = "\u{1b}[2m";
const RESET: &str = "\u{1b}[0m";

/// The longest value, in bytes before escaping: a log is no place for payloads.
const MAX_VALUE_BYTES: usize = 4 << 10;

/// Formats `name=value` pairs, the message apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextFields;

impl<'writer> FormatFields<'writer> for TextFields {
    fn format_fields<R: RecordFields>(
        &self,
        mut writer: Writer<'writer>,
        fields: R,
    ) -> fmt::Result {
        let mut pairs = Pairs::default();
        fields.record(&mut pairs);
        writer.write_str(&pairs.pairs)
    }
}

/// Collects the fields of an event or a span.
#[derive(Default)]
struct Pairs {
    message: String,
    pairs: String,
}

impl Pairs {
    fn push(&mut self, name: &str, value: &str) {
        let value = cut(value, MAX_VALUE_BYTES);
        // Writing into a String does not fail.
        if name == "message" {
            let _ = Escaped(&mut self.message).write_str(value);
            return;
        }
        if !self.pairs.is_empty() {
            self.pairs.push(' ');
        }
        self.pairs.push_str(name);
        self.pairs.push('=');
        let _ = write_value(&mut self.pairs, value);
    }
}

impl Visit for Pairs {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push(field.name(), &format!("{value:?}"));
    }
}

/// Formats one event as one line.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextEvent;

impl<S> FormatEvent<S, TextFields> for TextEvent
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, TextFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let colours = writer.has_ansi_escapes();
        write_time(&mut writer, colours)?;
        write_level(&mut writer, *event.metadata().level(), colours)?;
        let mut pairs = Pairs::default();
        event.record(&mut pairs);
        writer.write_str(&pairs.message)?;
        if colours {
            writer.write_str(DIM)?;
        }
        if !pairs.pairs.is_empty() {
            write!(writer, " {}", pairs.pairs)?;
        }
        for span in context.event_scope().into_iter().flatten() {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<TextFields>>();
            if let Some(fields) = fields.filter(|fields| !fields.is_empty()) {
                write!(writer, " {fields}")?;
            }
        }
        if colours {
            writer.write_str(RESET)?;
        }
        writeln!(writer)
    }
}

/// UTC: the time of day for somebody who watches, the whole for a file.
fn write_time(writer: &mut Writer<'_>, short: bool) -> fmt::Result {
    let mut time = String::new();
    SystemTime.format_time(&mut Writer::new(&mut time))?;
    match time.get(11..23).filter(|_| short) {
        Some(clock) => write!(writer, "{DIM}{clock}{RESET} "),
        None => write!(writer, "{} ", time.trim()),
    }
}

fn write_level(writer: &mut Writer<'_>, level: Level, colours: bool) -> fmt::Result {
    let colour = match level {
        Level::ERROR => "\u{1b}[31m",
        Level::WARN => "\u{1b}[33m",
        Level::INFO => "\u{1b}[32m",
        Level::DEBUG => "\u{1b}[34m",
        Level::TRACE => "\u{1b}[35m",
    };
    if colours {
        write!(writer, "{colour}{level:>5}{RESET} ")
    } else {
        write!(writer, "{level:>5} ")
    }
}
