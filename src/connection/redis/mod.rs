//! The Redis client of this house: where to connect, a connection with deadlines, scripts.
//!
//! A [`RedisLink`] is made without a reachable server and connects at its first call. Each call has
//! one deadline that covers connecting too. A link that stops answering is replaced; while nothing
//! can be reached, calls fail at once and the rate of attempts is bounded. This layer knows neither
//! streams nor locks, and repeats a command only where the caller says that it may.

mod connect;
mod connection;
mod fault;
mod inquiry;
mod link;
mod script;
#[cfg_attr(not(feature = "sentinel"), path = "no_sentinel.rs")]
mod sentinel;
mod target;

pub use connection::RedisConnection;
pub use inquiry::inquire;
pub use link::RedisLink;
pub use script::LuaScript;
pub use target::{RedisTarget, TargetError};
