//! What a task that asked for a range or a whole repository leaves as its result, as JSON:
//! `{"commits", "known", "tasks", "profile", "newest", "ids"}`.
//!
//! Whoever waits for its commits waits for the tasks of that list. A list that is too long is left
//! out, for it would be a result of many megabytes.

use serde_json::{Value, json};

use crate::domain::EntryId;

/// The most ids that a result lists: at a hundred bytes each.
const MAX_IDS: usize = 65_536;

/// What was made of a range or of a whole repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Commits that were listed.
    pub commits: usize,
    /// Those of them that were done or refused before.
    pub known: usize,
    /// Tasks that were added.
    pub tasks: usize,
    /// The digest of the rules of the results.
    pub profile: String,
    /// The newest of their entries.
    pub newest: Option<EntryId>,
    /// The tasks' ids; none if there are too many to list.
    pub ids: Vec<String>,
}

impl Made {
    /// As the result of a task.
    pub(super) fn to_json(&self) -> Value {
        let ids = (self.ids.len() <= MAX_IDS).then_some(&self.ids);
        json!({
            "commits": self.commits,
            "known": self.known,
            "tasks": self.tasks,
            "profile": self.profile,
            "newest": self.newest.map(|entry| entry.to_string()),
            "ids": ids,
        })
    }

    /// Reads the result of a task; `None` if it is another's.
    pub fn from_json(result: &[u8]) -> Option<Self> {
        let said: Value = serde_json::from_slice(result).ok()?;
        let count = |name: &str| said[name].as_u64().and_then(|count| count.try_into().ok());
        let id = |id: &Value| id.as_str().map(str::to_owned);
        Some(Self {
            commits: count("commits")?,
            known: count("known").unwrap_or(0),
            tasks: count("tasks")?,
            profile: said["profile"].as_str()?.to_owned(),
            newest: said["newest"].as_str().and_then(|entry| entry.parse().ok()),
            ids: said["ids"].as_array().into_iter().flatten().filter_map(id).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_was_unless_it_is_too_long() {
        let made = Made {
            commits: 7,
            known: 3,
            tasks: 2,
            profile: "p".to_owned(),
            newest: Some(EntryId { ms: 5, seq: 1 }),
            ids: vec!["a".to_owned(), "b".to_owned()],
        };
        let read = |made: &Made| Made::from_json(made.to_json().to_string().as_bytes());
        assert_eq!(read(&made), Some(made.clone()));
        let ids = vec![String::new(); MAX_IDS + 1];
        assert_eq!(read(&Made { ids, ..made.clone() }), Some(Made { ids: Vec::new(), ..made }));
        assert_eq!(Made::from_json(br#"{"commits": 1, "analysed": 1}"#), None);
        assert_eq!(Made::from_json(b""), None);
    }
}
