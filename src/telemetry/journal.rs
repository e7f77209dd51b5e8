//! The journal: whether standard error leads there, and the layer that speaks its protocol.
//!
//! Field names go out in upper case and without a prefix (systemd.journal-fields(7)); values are
//! sent with their length, so that no value can forge a field.

use std::ffi::OsStr;

use tracing_journald::{Layer, Priority, PriorityMappings};

/// What `journalctl -t` finds the worker by.
const IDENTIFIER: &str = "queue-worker";

/// Whether standard error is the stream that systemd connected to the journal: `$JOURNAL_STREAM`
/// is its device and inode (systemd.exec(5)). A redirected standard error is not.
pub fn stderr_is_journal(journal_stream: Option<&OsStr>) -> bool {
    let Some(text) = journal_stream.and_then(OsStr::to_str) else { return false };
    rustix::fs::fstat(std::io::stderr())
        .is_ok_and(|found| names_stream(text, found.st_dev, found.st_ino))
}

fn names_stream(text: &str, device: u64, inode: u64) -> bool {
    text.split_once(':')
        .is_some_and(|(left, right)| left.parse() == Ok(device) && right.parse() == Ok(inode))
}

/// The layer; fails where no journal listens.
pub(super) fn layer() -> std::io::Result<Layer> {
    let priorities = PriorityMappings {
        error: Priority::Error,
        warn: Priority::Warning,
        info: Priority::Informational,
        debug: Priority::Debug,
        trace: Priority::Debug,
    };
    Ok(Layer::new()?
        .with_field_prefix(None)
        .with_syslog_identifier(IDENTIFIER.to_owned())
        .with_priority_mappings(priorities))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_compared_by_device_and_inode() {
        assert!(names_stream("8:4242", 8, 4_242));
        for text in ["8:4243", "9:4242", "8", "", "8:4242:1", "x:4242"] {
            assert!(!names_stream(text, 8, 4_242), "{text}");
        }
        assert!(!stderr_is_journal(None));
        assert!(!stderr_is_journal(Some(OsStr::new("0:0"))));
    }
}
