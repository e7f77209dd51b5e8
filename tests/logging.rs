//! What the worker says, byte by byte: text, JSON, and the journal's protocol.

use std::io::Write;
use std::process::Command;
use std::sync::{Arc, Mutex};

use queue_worker::clock::Clock;
use queue_worker::domain::{Fence, Kind, QueueName, TaskId};
use queue_worker::telemetry::fields::{record_claim, task_span};
use queue_worker::telemetry::{Health, LogError, LogHandle, Sink, init, subscriber};

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs `act` with a subscriber of its own, and returns what was written.
fn logged(sink: Sink, level: &str, act: impl FnOnce(&LogHandle)) -> String {
    let memory = Memory::default();
    let writer = memory.clone();
    let (subscriber, handle) =
        subscriber(sink, level, move || writer.clone()).expect("a subscriber");
    tracing::subscriber::with_default(subscriber, || act(&handle));
    let bytes = memory.0.lock().expect("no panic").clone();
    String::from_utf8(bytes).expect("UTF-8")
}

const TEXT: Sink = Sink::Text { colours: false };

fn in_a_task(act: impl FnOnce()) {
    let id: TaskId = "mail-42".parse().expect("an id");
    let queue: QueueName = "mail".parse().expect("a name");
    let kind: Kind = "send welcome".parse().expect("a kind");
    let span = task_span(&id, &queue, &kind);
    record_claim(&span, Fence(7), 2);
    span.in_scope(act);
}

#[test]
fn text_is_one_line_with_all_fields() {
    let text = logged(TEXT, "info", |_| {
        in_a_task(|| tracing::info!(bytes = 12, note = "two words", "task done"));
        tracing::debug!("not at this level");
    });
    let (time, rest) = text.split_once(' ').expect("a time");
    assert!(time.ends_with('Z') && time.len() > 20, "{time}");
    assert_eq!(
        rest,
        " INFO task done bytes=12 note=\"two words\" \
         task_id=mail-42 queue=mail kind=\"send welcome\" fence=7 attempt=2\n"
    );
}

#[test]
fn colours_are_for_terminals_only() {
    let act = |_: &LogHandle| tracing::warn!(a = 1, "hot");
    assert!(!logged(TEXT, "info", act).contains('\u{1b}'));
    let coloured = logged(Sink::Text { colours: true }, "info", act);
    assert!(coloured.contains("\u{1b}[33m WARN\u{1b}[0m hot"), "{coloured:?}");
}

#[test]
fn nobody_forges_a_line_or_a_colour() {
    let evil = "x\n2026-01-01T00:00:00Z ERROR all is lost\r\u{1b}[2J\u{9b}31m\u{202e}";
    let text = logged(TEXT, "info", |_| {
        tracing::info!(stderr = evil, shown = %evil, debugged = ?evil, "said: {evil}");
        tracing::info_span!("s", stderr = evil).in_scope(|| tracing::info!("in the span"));
    });
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(!text.contains(['\u{1b}', '\r', '\u{9b}', '\u{202e}']), "{text:?}");
    assert!(text.contains(r"said: x\n2026"), "{text}");
}

#[test]
fn long_values_are_cut() {
    let text = logged(TEXT, "info", |_| tracing::info!(stderr = "y".repeat(1 << 20), "big"));
    assert!(text.len() < 5_000, "{}", text.len());
}

#[test]
fn json_is_flat_and_typed() {
    let text = logged(Sink::Json, "info", |_| {
        in_a_task(|| tracing::error!(bytes = 12_u64, ok = false, line = "a\nb", "task failed"));
        tracing::info!(message = "plain", time = "forged");
    });
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2);
    let first = &lines[0];
    assert_eq!(first["level"], "error");
    assert_eq!(first["message"], "task failed");
    assert_eq!((&first["bytes"], &first["ok"]), (&12.into(), &false.into()));
    assert_eq!((&first["task_id"], &first["attempt"]), (&"mail-42".into(), &2.into()));
    assert_eq!(first["line"], "a\nb");
    assert_eq!(lines[1]["message"], "plain");
    assert_ne!(lines[1]["time"], "forged");
}

#[test]
fn the_level_changes_while_it_runs() {
    let text = logged(TEXT, "warn", |handle| {
        tracing::info!("one");
        handle.set_level("info").expect("a level");
        tracing::info!("two");
        let error = handle.set_level("logging=loud").expect_err("no level");
        assert!(error.to_string().contains("logging=loud"), "{error}");
        tracing::info!("three");
        handle.set_level("error,logging=debug").expect("directives");
        tracing::debug!("four");
        handle.set_level("off").expect("a level");
        tracing::error!("five");
    });
    let words: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next_back()).collect();
    assert_eq!(words, ["two", "three", "four"]);
}

#[test]
fn an_outage_is_two_lines() {
    let text = logged(TEXT, "info", |_| {
        let health = Health::new("redis", Clock::System);
        for _ in 0..1_000 {
            health.down(&"connection refused\n(os error 111)");
        }
        assert!(health.is_down());
        health.up();
        health.up();
    });
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].contains(r" WARN redis: unavailable: connection refused\n(os"), "{text}");
    assert!(
        lines[1].contains(" INFO redis: back after 0.0 s, 1000 attempts store=redis"),
        "{text}"
    );
}

#[test]
fn a_process_sets_logging_up_once() {
    let error = init("xml", "info").expect_err("no such format");
    assert!(error.to_string().contains("\"xml\" is not a log format"), "{error}");
    let error = init("text", "a=b=c").expect_err("no level");
    assert!(error.to_string().contains("write \"info\""), "{error}");
    assert!(matches!(init("text", "off").expect("set up").sink(), Sink::Text { .. }));
    assert!(matches!(init("text", "off"), Err(LogError::Taken(_))));
}

/// The journal's socket has a fixed path, so this test listens there in a mount namespace of its
/// own, where the system allows one.
#[test]
fn the_journal_gets_fields_without_a_prefix() {
    let script = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && exec \"$0\" \
                  --exact journal_in_a_namespace --nocapture";
    let namespace = ["--user", "--map-root-user", "--mount"];
    let possible = Command::new("unshare")
        .args(namespace)
        .args(["mount", "-t", "tmpfs", "none", "/run"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !possible {
        eprintln!("skipped: no mount namespaces here");
        return;
    }
    let binary = std::env::current_exe().expect("this test");
    let output = Command::new("unshare")
        .args(namespace)
        .args(["sh", "-c", script])
        .arg(binary)
        .env(IN_A_NAMESPACE, "1")
        .output()
        .expect("started");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("1 passed"), "{stdout}\n{stderr}");
}

/// Set where `/run` is the test's own.
const IN_A_NAMESPACE: &str = "TEST_IN_A_NAMESPACE";

/// The other half of the test above, which runs it; by itself it does nothing.
#[test]
fn journal_in_a_namespace() {
    if std::env::var_os(IN_A_NAMESPACE).is_none() {
        return;
    }
    let socket = std::os::unix::net::UnixDatagram::bind("/run/systemd/journal/socket")
        .expect("a /run of our own");
    socket.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("a timeout");
    logged(Sink::Journald, "info", |_| {
        in_a_task(|| tracing::info!(exit_status = 75, evil = "a\nFENCE=9", "task done"));
    });
    let mut buffer = vec![0; 64 << 10];
    // The first datagram is the layer's own probe, which is empty.
    let record = loop {
        let size = socket.recv(&mut buffer).expect("a record in time");
        if size > 0 {
            break parse_journal(&buffer[..size]);
        }
    };
    let value = |name: &str| {
        let mut found = record.iter().filter(|(field, _)| field == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} twice: {record:?}");
        value
    };
    for (name, expected) in [
        ("MESSAGE", "task done"),
        ("PRIORITY", "6"),
        ("SYSLOG_IDENTIFIER", "queue-worker"),
        ("TASK_ID", "mail-42"),
        ("QUEUE", "mail"),
        ("KIND", "send welcome"),
        ("FENCE", "7"),
        ("ATTEMPT", "2"),
        ("EXIT_STATUS", "75"),
        ("EVIL", "a\nFENCE=9"),
    ] {
        assert_eq!(value(name), Some(expected), "{name} in {record:?}");
    }
}

/// Fields as `NAME=value\n`, or as `NAME\n<length, 8 bytes, little endian><value>\n` where the value
/// may hold anything (systemd's native protocol).
fn parse_journal(mut rest: &[u8]) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (head, after) = (text(&rest[..end]), &rest[end + 1..]);
        if let Some((name, value)) = head.split_once('=') {
            fields.push((name.to_owned(), value.to_owned()));
            rest = after;
            continue;
        }
        let (size, after) = after.split_at(8);
        let size = u64::from_le_bytes(size.try_into().expect("eight bytes"));
        let (value, after) = after.split_at(usize::try_from(size).expect("a size"));
        fields.push((head, text(value)));
        rest = after.strip_prefix(b"\n").expect("an end");
    }
    fields
}
