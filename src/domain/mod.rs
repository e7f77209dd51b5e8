//! Rank 0: the values that everything else speaks of. No tokio, no redis, no sqlx.
//!
//! Ids are checked where they enter, so that a value of these types can be written to either
//! store: valid UTF-8, no NUL, bounded length. A *failure* (the task went wrong) is a value and is
//! stored; an *error* (the infrastructure went wrong) belongs to the module that met it.

mod fence;
mod ids;
mod outcome;
mod retry;
mod sentinel_url;
mod task;

pub use fence::{Fence, Held, LockToken};
pub use ids::{EntryId, IdError, Kind, LockKey, QueueName, TaskId, WorkerId};
pub use outcome::{Failure, FailureClass, Interruption, Verdict};
pub use retry::RetryPolicy;
pub use sentinel_url::{SentinelUrl, percent_decode};
pub use task::{Delivery, Malformed, MalformedReason, Origin, PayloadHash, RawEntry, Task};
