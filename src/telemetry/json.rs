//! JSON lines: one flat object an event; the fields of the spans around it are at the top too.
//!
//! `time`, `level`, `target` and `message` come first; a field of the event wins over one of the
//! same name of a span, and an inner span over an outer.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// Keeps the fields of a span as one JSON object.
#[derive(Debug, Clone, Copy)]
pub(super) struct JsonFields;

impl<'writer> FormatFields<'writer> for JsonFields {
    fn format_fields<R: RecordFields>(
        &self,
        mut writer: Writer<'writer>,
        fields: R,
    ) -> fmt::Result {
        let mut object = Object::default();
        fields.record(&mut object);
        writer.write_str(&Value::Object(object.0).to_string())
    }

    fn add_fields(
        &self,
        current: &'writer mut FormattedFields<Self>,
        fields: &span::Record<'_>,
    ) -> fmt::Result {
        let mut object = Object(parsed(&current.fields));
        fields.record(&mut object);
        current.fields = Value::Object(object.0).to_string();
        Ok(())
    }
}

fn parsed(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}

/// Collects fields with their types.
#[derive(Default)]
struct Object(Map<String, Value>);

impl Object {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Object {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}"));
    }
}

/// Formats one event as one object.
#[derive(Debug, Clone, Copy)]
pub(super) struct JsonEvent;

impl<S> FormatEvent<S, JsonFields> for JsonEvent
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut object = Object::default();
        let scope = context.event_scope().into_iter();
        for span in scope.flat_map(tracing_subscriber::registry::Scope::from_root) {
            if let Some(fields) = span.extensions().get::<FormattedFields<JsonFields>>() {
                object.0.extend(parsed(&fields.fields));
            }
        }
        event.record(&mut object);
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let metadata = event.metadata();
        let message = object.0.remove("message").unwrap_or_default();
        let head = [
            ("time", Value::from(time.trim())),
            ("level", Value::from(metadata.level().as_str().to_ascii_lowercase())),
            ("target", Value::from(metadata.target())),
            ("message", message),
        ];
        writer.write_str("{")?;
        for (index, (name, value)) in head.iter().enumerate() {
            object.0.remove(*name);
            let comma = if index > 0 { "," } else { "" };
            write!(writer, "{comma}\"{name}\":{value}")?;
        }
        for (name, value) in &object.0 {
            write!(writer, ",{}:{value}", Value::from(name.as_str()))?;
        }
        writeln!(writer, "}}")
    }
}
