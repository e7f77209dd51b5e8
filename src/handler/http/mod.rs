//! Runs a task as an HTTP request: POST with the payload, the response's body is the result.
//!
//! The effect lies with the server, which sees the task at least once: it can tell repetitions by
//! `Idempotency-Key` (the task's id; bytes other than visible ASCII and `%` itself are
//! percent-encoded) and refuse stale ones by `Queue-Worker-Fence`. 2xx is success; 408, 425, 429
//! and 5xx are worth another attempt, not before `Retry-After`; so is everything that went wrong on
//! the way. Other statuses fail for good, redirects too: they are not followed.

mod handler;
mod headers;
mod options;
mod retry_after;

pub use handler::HttpHandler;
pub use options::{HeaderSource, HttpError, HttpOptions};
