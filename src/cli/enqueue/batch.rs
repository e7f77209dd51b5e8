//! The ids of lines that name none: they follow from the batch and the line's content, so that the
//! same file under the same batch is the same tasks, wherever the first time ended.
//!
//! A batch is new unless it is given: who adds the same file on another day means other tasks.

use std::collections::HashMap;

use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid};

use crate::domain::{PayloadHash, QueueName, TaskId};
use crate::queue::codec::NewTask;

/// Gives ids to the lines of one file.
pub(super) struct Batch {
    /// What a repetition has to give.
    pub(super) name: String,
    /// How often each content came so far: lines that are equal are several tasks.
    seen: HashMap<[u8; 32], u64>,
}

impl Batch {
    /// The batch of that name, or a new one.
    pub(super) fn new(name: Option<&str>) -> Self {
        let name = name.map_or_else(|| Uuid::now_v7().to_string(), str::to_owned);
        Self { name, seen: HashMap::new() }
    }

    /// Whether a line was given an id.
    pub(super) fn is_used(&self) -> bool {
        !self.seen.is_empty()
    }

    /// The id of the next line with this content: a UUID v8 made of a SHA-256.
    pub(super) fn id(&mut self, queue: &QueueName, task: &NewTask) -> TaskId {
        let content = PayloadHash::of(&task.kind, &task.payload, task.lock_key.as_ref()).0;
        let count = self.seen.entry(content).or_default();
        *count += 1;
        let mut hasher = Sha256::new();
        for part in [self.name.as_bytes(), queue.as_str().as_bytes()] {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        hasher.update(content);
        hasher.update(count.to_be_bytes());
        let digest = hasher.finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        let uuid = Builder::from_custom_bytes(bytes).into_uuid();
        TaskId::new(&uuid.to_string()).expect("a UUID is a valid task id")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Kind;

    fn ids(batch: &str, queue: &str, payloads: &[&str]) -> Vec<TaskId> {
        let queue = QueueName::new(queue).expect("a name");
        let kind = Kind::new("k").expect("a kind");
        let mut batch = Batch::new(Some(batch));
        let task = |payload: &&str| NewTask::new(kind.clone(), payload.as_bytes().to_vec());
        payloads.iter().map(|payload| batch.id(&queue, &task(payload))).collect()
    }

    #[test]
    fn the_same_batch_is_the_same_tasks_in_any_order() {
        let first = ids("b", "q", &["x", "y", "x"]);
        assert_eq!(first, ids("b", "q", &["x", "y", "x"]));
        assert_ne!(first[0], first[2], "equal lines are several tasks");
        let moved = ids("b", "q", &["new", "y", "x", "x"]);
        assert_eq!([&moved[1], &moved[2], &moved[3]], [&first[1], &first[0], &first[2]]);
    }

    #[test]
    fn another_batch_or_queue_is_other_tasks() {
        let first = ids("b", "q", &["x"]);
        assert_ne!(first, ids("c", "q", &["x"]));
        assert_ne!(first, ids("b", "r", &["x"]));
        assert_ne!(ids("bq", "r", &["x"]), ids("b", "qr", &["x"]));
    }
}
