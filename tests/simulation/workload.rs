//! The tasks of a simulation, from its seed: what they are, when they come, and what they do.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use queue_worker::domain::{Kind, LockKey, PayloadHash, QueueName, RawEntry, Task, TaskId};

use super::chance::Chance;

/// How a kind is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// A handler outside of the ledger.
    External,
    /// An effect whose claim is committed first.
    Native,
    /// An effect that may take one commit.
    Sql,
    /// A kind that only some workers know, late.
    Late,
    /// A kind that nobody ever knows.
    Unknown,
}

impl Way {
    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Self::External => "external",
            Self::Native => "native",
            Self::Sql => "sql",
            Self::Late => "late",
            Self::Unknown => "unknown",
        }
    }

    pub(crate) const fn is_transactional(self) -> bool {
        matches!(self, Self::Native | Self::Sql)
    }
}

/// How an attempt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Succeed,
    Fail,
    FailForGood,
    Panic,
    /// Runs into its time limit.
    Hang,
}

/// What a task does.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) way: Way,
    pub(crate) task: Task,
    /// How long an attempt takes.
    pub(crate) takes: Duration,
    /// By attempt; the last one for all that follow.
    pub(crate) ends: Vec<End>,
    /// How many runs bring their worker down.
    pub(crate) crashes: u32,
    /// Whether it stops when it is told to.
    pub(crate) listens: bool,
}

impl Spec {
    pub(crate) fn end(&self, attempt: u32) -> End {
        let at = usize::try_from(attempt.saturating_sub(1)).unwrap().min(self.ends.len() - 1);
        self.ends[at]
    }
}

/// What producers add, and when.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) at: Duration,
    pub(crate) raw: RawEntry,
}

#[derive(Debug, Clone)]
pub(crate) struct Workload {
    pub(crate) specs: BTreeMap<TaskId, Spec>,
    /// In the order of time.
    pub(crate) arrivals: Vec<Arrival>,
}

/// All tasks come within this time.
const ARRIVALS_MS: u64 = 12_000;

impl Workload {
    pub(crate) fn new(seed: u64, queue: &QueueName) -> Self {
        let mut chance = Chance::new(seed, 2);
        let mut specs = BTreeMap::new();
        let mut arrivals = Vec::new();
        let strangers = chance.hit(0.25);
        for number in 0..chance.number(20, 60) {
            let spec = spec(&mut chance, queue, number, strangers);
            let mut at = chance.ms(0, ARRIVALS_MS);
            let raw = spec.task.to_raw();
            arrivals.push(Arrival { at, raw: raw.clone() });
            while chance.hit(0.1) {
                at += chance.ms(0, 6_000);
                arrivals.push(Arrival { at, raw: raw.clone() });
            }
            if chance.hit(0.03) {
                let other = with_payload(&spec.task, Bytes::from_static(b"another"));
                let at = chance.ms(0, ARRIVALS_MS);
                arrivals.push(Arrival { at, raw: other.to_raw() });
            }
            specs.insert(spec.task.id.clone(), spec);
        }
        for _ in 0..chance.number(0, 3) {
            arrivals.push(Arrival { at: chance.ms(0, ARRIVALS_MS), raw: malformed(&mut chance) });
        }
        arrivals.sort_by_key(|arrival| arrival.at);
        Self { specs, arrivals }
    }
}

fn spec(chance: &mut Chance, queue: &QueueName, number: u64, strangers: bool) -> Spec {
    let way = match chance.number(0, 99) {
        0..40 => Way::External,
        40..65 => Way::Native,
        65..95 => Way::Sql,
        _ if !strangers => Way::External,
        95..98 => Way::Late,
        _ => Way::Unknown,
    };
    let takes = match chance.number(0, 9) {
        0..4 => chance.ms(1, 50),
        4..8 => chance.ms(50, 2_000),
        _ => chance.ms(2_000, 9_000),
    };
    let mut ends: Vec<End> = Vec::new();
    while chance.hit(0.25) && ends.len() < 4 {
        ends.push(chance.pick(&[End::Fail, End::Fail, End::Panic, End::Hang]));
    }
    ends.push(if chance.hit(0.05) { End::FailForGood } else { End::Succeed });
    let crashes = if matches!(way, Way::External | Way::Native) && chance.hit(0.06) {
        chance.pick(&[1, 2, 3, 100])
    } else {
        0
    };
    let kind = Kind::new(way.kind()).unwrap();
    let payload = Bytes::from(format!("payload {number}"));
    let lock_key = chance
        .hit(0.25)
        .then(|| LockKey::new(&format!("resource{}", chance.number(0, 2))).unwrap());
    let hash = PayloadHash::of(&kind, &payload, lock_key.as_ref());
    let task = Task {
        id: TaskId::new(&format!("t{number:02}")).unwrap(),
        queue: queue.clone(),
        kind,
        payload,
        lock_key,
        max_attempts: chance.hit(0.2).then(|| u32::try_from(chance.number(1, 4)).unwrap()),
        timeout: None,
        not_before_ms: chance.hit(0.1).then(|| i64::try_from(chance.number(1, 15_000)).unwrap()),
        traceparent: None,
        hash,
    };
    Spec { way, task, takes, ends, crashes, listens: chance.hit(0.8) }
}

fn with_payload(task: &Task, payload: Bytes) -> Task {
    let hash = PayloadHash::of(&task.kind, &payload, task.lock_key.as_ref());
    Task { payload, hash, ..task.clone() }
}

fn malformed(chance: &mut Chance) -> RawEntry {
    let field = |name: &'static str, value: Bytes| (Bytes::from_static(name.as_bytes()), value);
    let fields = match chance.number(0, 2) {
        0 => vec![field("kind", Bytes::from_static(b"external"))],
        1 => vec![],
        _ => vec![
            field("task_id", Bytes::from_static(b"huge")),
            field("kind", Bytes::from_static(b"external")),
            field("payload", Bytes::from(vec![0; super::world::MAX_PAYLOAD + 1])),
        ],
    };
    RawEntry { fields }
}
