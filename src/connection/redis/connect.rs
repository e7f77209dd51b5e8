//! One attempt to connect: find the server, log in, and see whether it is fit for tasks.
//!
//! A Redis that evicts loses tasks, so its eviction policy is checked. A replica takes no writes,
//! and what it has may be replaced at any time, so it counts as not available: it may become a
//! master, or the next attempt may lead to another server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Value};

use super::super::RedisError;
use super::connection::RedisConnection;
use super::fault::Fault;
use super::target::RedisTarget;

/// Bytes gathered for one write to the socket: a group of locks or settlements fits.
const WRITE_BUFFER: usize = 256 * 1024;

/// Connects to where `target` leads now. The caller keeps to `limit` too.
pub(super) async fn connect(
    target: &RedisTarget,
    limit: Duration,
) -> Result<RedisConnection, RedisError> {
    let (client, address) = target.client(limit).await?;
    let broken = Arc::new(AtomicBool::new(false));
    let on_close = Arc::clone(&broken);
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_write_backpressure_boundary(WRITE_BUFFER)
        .set_push_sender(move |push: PushInfo| -> Result<(), redis::aio::SendError> {
            if push.kind == PushKind::Disconnection {
                on_close.store(true, Ordering::Release);
            }
            Ok(())
        });
    let mut multiplexed = client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .map_err(|error| Fault::judge(&error, &address, "connect").error)?;
    let client_id = check(&mut multiplexed, &address).await?;
    Ok(RedisConnection::new(multiplexed, address, client_id, broken))
}

/// Refuses a server that evicts keys or is a replica, and answers the id of this connection.
///
/// `INFO` and `CONFIG` may each be forbidden by an ACL or renamed; one of them suffices.
/// `CONFIG` is tried second: where it is forbidden, each try leaves a line in `ACL LOG`.
async fn check(multiplexed: &mut MultiplexedConnection, address: &str) -> Result<i64, RedisError> {
    let mut pipeline = redis::pipe();
    pipeline.cmd("CLIENT").arg("ID");
    pipeline.cmd("INFO").arg("memory");
    pipeline.cmd("INFO").arg("replication");
    let fault = |error| Fault::judge(&error, address, "INFO").error;
    let answers =
        multiplexed.req_packed_commands(&pipeline, 0, pipeline.len()).await.map_err(fault)?;
    let [id, memory, replication] = answers.try_into().unwrap_or_default();
    if field_of_info(&replication, "role").is_some_and(|role| role != "master") {
        return Err(RedisError::Replica { address: address.to_owned() });
    }
    let mut policy = field_of_info(&memory, "maxmemory_policy");
    if policy.is_none() {
        let mut cmd = redis::cmd("CONFIG");
        cmd.arg("GET").arg("maxmemory-policy");
        policy = policy_of_config(&multiplexed.send_packed_command(&cmd).await.map_err(fault)?);
    }
    match policy {
        Some(policy) if policy != "noeviction" => Err(RedisError::Misconfigured {
            address: address.to_owned(),
            message: format!(
                "may evict tasks and locks (its maxmemory-policy is {policy}): set \
                 `maxmemory-policy noeviction`"
            ),
        }),
        Some(_) => Ok(client_id(&id)),
        None => {
            // LOADING and NOAUTH show here first; a mere NOPERM must not stop anybody.
            if let Err(error) = memory.extract_error() {
                let fault = Fault::judge(&error, address, "INFO");
                if fault.broken {
                    return Err(fault.error);
                }
            }
            tracing::warn!(
                address,
                "cannot see the eviction policy of redis: allow INFO, and make sure that \
                 maxmemory-policy is noeviction"
            );
            Ok(client_id(&id))
        }
    }
}

fn client_id(answer: &Value) -> i64 {
    if let Value::Int(id) = answer { *id } else { 0 }
}

/// A field of an answer to `INFO`.
pub(super) fn field_of_info(answer: &Value, name: &str) -> Option<String> {
    let text = match answer {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::VerbatimString { text, .. } => text,
        _ => return None,
    };
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

fn policy_of_config(answer: &Value) -> Option<String> {
    redis::from_redis_value_ref::<std::collections::HashMap<String, String>>(answer)
        .ok()?
        .remove("maxmemory-policy")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_found_in_either_answer() {
        let info = Value::BulkString(
            b"# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n".to_vec(),
        );
        assert_eq!(field_of_info(&info, "maxmemory_policy").as_deref(), Some("allkeys-lru"));
        let text = |s: &str| Value::BulkString(s.as_bytes().to_vec());
        let config = Value::Map(vec![(text("maxmemory-policy"), text("noeviction"))]);
        assert_eq!(policy_of_config(&config).as_deref(), Some("noeviction"));
        assert_eq!(field_of_info(&Value::Nil, "role"), None);
    }
}
