//! Rank 1: the configuration: one TOML file, the environment over it, and secrets read apart.
//!
//! `tree` says which keys there are, what they mean and what they default to; everything else
//! (reading, the environment's overrides, the suggestions in errors, the reference) follows from
//! that list. [`Config::load`] either returns a configuration whose rules all hold or every error
//! that it found, each with its place and its remedy. It never reads a secret's file: a missing
//! secret leaves a worker waiting and not ready, while a broken file ends it.

mod duration;
mod environment;
mod error;
mod file;
mod git;
mod handlers;
mod leaf;
mod load;
mod programs;
mod reader;
mod reference;
mod reload;
mod secret;
mod section;
mod server_url;
mod size;
mod tree;
mod validate;

pub use duration::{format_duration, parse_duration};
pub use environment::{Environment, VARIABLE_PREFIX};
pub use error::{ConfigError, Problem};
pub use git::GitSettings;
pub use handlers::{
    ExecSettings, HandlerAction, HandlerCommon, HandlerSettings, HttpSettings, SqlSettings,
};
pub use programs::AbsentProgram;
pub use reference::{KeyReference, default_toml, reference_keys, reference_md};
pub use reload::{ReloadPlan, in_force, reloadable};
pub use secret::{Secret, SecretError};
pub use server_url::ServerUrl;
pub use size::ByteSize;
pub use tree::{
    Config, DrainSettings, LeaseSettings, LogFormat, LogSettings, PostgresSettings, QueueSettings,
    RedisSettings, RetentionSettings, UnknownKindSettings, WebSettings, WorkerSettings,
};
