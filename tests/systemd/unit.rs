//! The unit under test: the committed text, with the places of this test instead of its own.

const TEXT: &str = include_str!("queue-worker.service");

/// The name of an instance's unit.
pub(crate) fn name(instance: &str) -> String {
    format!("queue-worker-{instance}.service")
}

/// The unit of an instance.
pub(crate) fn text(instance: &str) -> String {
    TEXT.replace("NAME", instance)
}

/// The committed units: instance, text, and the exposure that they may have at most.
pub(crate) fn committed() -> Vec<(&'static str, String, f64)> {
    vec![("exec", text("exec"), 10.0)]
}
