//! A question to a server of any setup, also one that no worker would work on.
//!
//! One connection, one pipeline, and nothing is checked or repeated: for a person who wants to know
//! what is wrong with it.

use std::time::Duration;

use redis::aio::ConnectionLike as _;
use redis::{AsyncConnectionConfig, Pipeline, Value};

use super::super::RedisError;
use super::fault::Fault;
use super::target::RedisTarget;

/// Sends the commands in one write and gives their answers in order, each of which may be an error
/// of its own ([`Value::ServerError`]).
///
/// # Errors
/// If the server cannot be reached, refuses the login, or does not answer within `patience`,
/// connecting included.
pub async fn inquire(
    target: &RedisTarget,
    pipeline: &Pipeline,
    patience: Duration,
) -> Result<Vec<Value>, RedisError> {
    let (client, address) = target.client(patience).await?;
    let fault = |error| Fault::judge(&error, &address, "INFO").error;
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let asking = async {
        let mut connection =
            client.get_multiplexed_async_connection_with_config(&config).await.map_err(fault)?;
        connection.req_packed_commands(pipeline, 0, pipeline.len()).await.map_err(fault)
    };
    tokio::time::timeout(patience, asking).await.unwrap_or_else(|_| {
        Err(RedisError::Timeout {
            address: target.address().to_owned(),
            command: "INFO",
            after: patience,
        })
    })
}
