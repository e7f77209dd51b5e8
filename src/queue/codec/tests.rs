//! Examples for every field, and properties over arbitrary entries.

use proptest::prelude::*;

use super::*;
use crate::domain::{EntryId, Origin, QueueName};

const LIMIT: usize = 1024;

fn delivery(fields: &[(&[u8], &[u8])]) -> Delivery {
    let own = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
    Delivery {
        queue: QueueName::new("q").expect("a queue name"),
        entry: EntryId { ms: 1, seq: 0 },
        origin: Origin::Fresh,
        raw: RawEntry {
            fields: fields.iter().map(|(name, value)| (own(name), own(value))).collect(),
        },
    }
}

/// The minimal task plus these fields.
fn with(extra: &[(&[u8], &[u8])]) -> Result<Task, Malformed> {
    let mut fields: Vec<(&[u8], &[u8])> =
        vec![(b"task_id", b"t1"), (b"kind", b"mail"), (b"payload", b"\x00\xff")];
    fields.extend(extra);
    decode(&delivery(&fields), LIMIT)
}

fn message(result: Result<Task, Malformed>) -> String {
    result.expect_err("must be refused").message
}

#[test]
fn the_minimal_task() {
    let task = with(&[]).expect("well-formed");
    assert_eq!((task.id.as_str(), task.kind.as_str()), ("t1", "mail"));
    assert_eq!(&task.payload[..], b"\x00\xff");
    assert_eq!((task.lock_key, task.max_attempts, task.timeout), (None, None, None));
    assert_eq!((task.not_before_ms, task.traceparent), (None, None));
}

#[test]
fn required_fields_are_named() {
    for missing in ["task_id", "kind", "payload"] {
        let fields: Vec<(&[u8], &[u8])> =
            [(&b"task_id"[..], &b"t"[..]), (b"kind", b"k"), (b"payload", b"")]
                .into_iter()
                .filter(|(name, _)| *name != missing.as_bytes())
                .collect();
        assert_eq!(message(decode(&delivery(&fields), LIMIT)), format!("{missing} is missing"));
    }
}

#[test]
fn an_empty_payload_is_a_payload_and_an_empty_option_is_none() {
    let task = decode(
        &delivery(&[
            (b"task_id", b"t"),
            (b"kind", b"k"),
            (b"payload", b""),
            (b"lock_key", b""),
            (b"max_attempts", b""),
            (b"timeout_ms", b""),
            (b"not_before_ms", b""),
            (b"traceparent", b""),
            (b"version", b""),
        ]),
        0,
    )
    .expect("well-formed");
    assert!(task.payload.is_empty() && task.lock_key.is_none() && task.max_attempts.is_none());
}

#[test]
fn numbers_have_limits() {
    assert_eq!(with(&[(b"max_attempts", b"1000")]).expect("ok").max_attempts, Some(1000));
    let week = with(&[(b"timeout_ms", b"604800000")]).expect("ok");
    assert_eq!(week.timeout, Some(MAX_TIMEOUT));
    assert_eq!(with(&[(b"not_before_ms", b"0")]).expect("ok").not_before_ms, Some(0));
    for (name, value) in [
        ("max_attempts", "0"),
        ("max_attempts", "1001"),
        ("max_attempts", "+1"),
        ("max_attempts", " 1"),
        ("max_attempts", "1.0"),
        ("timeout_ms", "0"),
        ("timeout_ms", "604800001"),
        ("not_before_ms", "-1"),
        ("not_before_ms", "253402300800000"),
        ("not_before_ms", "99999999999999999999999"),
    ] {
        let told = message(with(&[(name.as_bytes(), value.as_bytes())]));
        assert!(told.starts_with(name), "{told}");
    }
}

#[test]
fn only_version_one_is_known() {
    assert!(with(&[(b"version", b"1")]).is_ok());
    let told = message(with(&[(b"version", b"2")]));
    assert_eq!(told, "version \"2\" is not supported, only 1 is");
}

#[test]
fn bad_text_names_its_field() {
    for (name, value) in [
        ("lock_key", &b"\xff\xfe"[..]),
        ("lock_key", b"a\0b"),
        ("lock_key", b"a\nb"),
        ("lock_key", &[b'x'; 256]),
        ("lock_key", b"qw:{mail}:tasks"),
        ("lock_key", b"lock:task:17"),
        ("traceparent", b"00-\x1b"),
        ("traceparent", &[b'x'; 129]),
    ] {
        let told = message(with(&[(name.as_bytes(), value)]));
        assert!(told.starts_with(name), "{told}");
    }
    for (id, kind, field) in [
        (&b"\xff"[..], &b"k"[..], "task_id"),
        (b"a\0", b"k", "task_id"),
        (b"", b"k", "task_id"),
        (b"t", b"\x07", "kind"),
        (b"t", b"", "kind"),
    ] {
        let told =
            message(decode(&delivery(&[(b"task_id", id), (b"kind", kind), (b"payload", b"")]), 0));
        assert!(told.starts_with(field), "{told}");
    }
}

#[test]
fn a_lock_key_is_none_of_the_queue_s_own_keys() {
    for key in ["qw", "locks:git:repo:x", "lock", "repo:lock:task:17", "QW:x"] {
        assert!(with(&[(b"lock_key", key.as_bytes())]).is_ok(), "{key}");
    }
    let task = with(&[]).expect("a task");
    let lock = LockKey::new(&task.lock_name()).expect("text");
    assert_eq!(lock.reserved(), Some("lock:"), "the lock of a single task is reserved");
}

#[test]
fn a_known_field_twice_is_refused_and_an_unknown_one_ignored() {
    assert_eq!(message(with(&[(b"kind", b"mail")])), "kind is there twice");
    assert!(with(&[(b"colour", b"red"), (b"colour", b"\0")]).is_ok());
}

#[test]
fn the_payload_has_a_limit() {
    let big = vec![0; LIMIT + 1];
    let fields: [(&[u8], &[u8]); 3] = [(b"task_id", b"t"), (b"kind", b"k"), (b"payload", &big)];
    let refusal = decode(&delivery(&fields), LIMIT).expect_err("too big");
    assert_eq!(refusal.reason, MalformedReason::Oversized);
    assert!(decode(&delivery(&fields), LIMIT + 1).is_ok());
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{1,40}"
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        (id, kind, key) in (text(), text(), proptest::option::of(text())),
        payload in proptest::collection::vec(any::<u8>(), 0..LIMIT),
        attempts in proptest::option::of(1u32..=1000),
        timeout in proptest::option::of(1u64..=604_800_000),
        not_before in proptest::option::of(0i64..=253_402_300_799_999),
    ) {
        let mut new = NewTask::new(Kind::new(&kind).expect("text"), payload.clone())
            .with_id(TaskId::new(&id).expect("text"));
        new.lock_key = key.map(|key| LockKey::new(&key).expect("text"));
        new.max_attempts = attempts;
        new.timeout = timeout.map(Duration::from_millis);
        new.not_before_ms = not_before;
        let mut incoming = delivery(&[]);
        incoming.raw = new.encode();
        let task = decode(&incoming, LIMIT).expect("what we encode is well-formed");
        prop_assert_eq!(&task.hash, &PayloadHash::of(&new.kind, &payload, new.lock_key.as_ref()));
        let back = NewTask {
            id: task.id,
            kind: task.kind,
            payload: task.payload,
            lock_key: task.lock_key,
            max_attempts: task.max_attempts,
            timeout: task.timeout,
            not_before_ms: task.not_before_ms,
            traceparent: task.traceparent,
        };
        prop_assert_eq!(back, new);
    }

    /// Whatever arrives, decoding answers; a refusal is one printable line.
    #[test]
    fn nothing_panics(fields in proptest::collection::vec((
        prop_oneof![
            proptest::sample::select(&NAMES[..]).prop_map(|name| name.as_bytes().to_vec()),
            proptest::collection::vec(any::<u8>(), 0..12),
        ],
        proptest::collection::vec(any::<u8>(), 0..300),
    ), 0..12)) {
        let borrowed: Vec<_> = fields.iter().map(|(n, v)| (&n[..], &v[..])).collect();
        if let Err(refusal) = decode(&delivery(&borrowed), 64) {
            prop_assert!(!refusal.message.chars().any(char::is_control));
        }
    }
}
