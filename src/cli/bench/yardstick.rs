//! What the machine can do without a protocol: bare commits, bare spawns.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::servers::{EXEC_CONCURRENCY, Servers};
use crate::private_servers::program_on_path;

/// Numbers of connections that are tried; the best counts.
const CONNECTIONS: [u32; 4] = [8, 16, 32, 64];

/// How long each is tried.
const TRIAL: Duration = Duration::from_millis(1_500);

/// Single-row transactions per second at the best number of connections.
pub(super) async fn commits_per_second(servers: &Servers) -> anyhow::Result<f64> {
    let mut best = 0.0_f64;
    for connections in CONNECTIONS {
        let pool = PgPoolOptions::new()
            .min_connections(connections)
            .max_connections(connections)
            .connect(&servers.database)
            .await?;
        let mut loops = JoinSet::new();
        let start = Instant::now();
        for _ in 0..connections {
            loops.spawn(commit_until(pool.clone(), start + TRIAL));
        }
        let mut commits = 0;
        while let Some(done) = loops.join_next().await {
            commits += done??;
        }
        best = best.max(f64::from(commits) / start.elapsed().as_secs_f64());
        pool.close().await;
    }
    Ok(best)
}

async fn commit_until(pool: PgPool, end: Instant) -> anyhow::Result<u32> {
    let mut connection = pool.acquire().await?;
    let mut commits = 0;
    while Instant::now() < end {
        let id = uuid::Uuid::new_v4().to_string();
        sqlx::query("BEGIN").execute(&mut *connection).await?;
        sqlx::query(
            "INSERT INTO yardstick (id, done) VALUES ($1, true) \
             ON CONFLICT (id) DO UPDATE SET done = true",
        )
        .bind(id)
        .execute(&mut *connection)
        .await?;
        sqlx::query("COMMIT").execute(&mut *connection).await?;
        commits += 1;
    }
    Ok(commits)
}

/// The program `true` per second, with the pipes, the process group and the concurrency of the worker.
pub(super) async fn spawns_per_second(count: u32) -> anyhow::Result<f64> {
    let program = program_on_path("true").context("no program named true on PATH")?;
    let left = Arc::new(AtomicU32::new(count));
    let start = Instant::now();
    let mut loops = JoinSet::new();
    for _ in 0..EXEC_CONCURRENCY {
        let left = Arc::clone(&left);
        let program = program.clone();
        loops.spawn(async move {
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok()
            {
                spawn_once(&program).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = loops.join_next().await {
        done??;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

async fn spawn_once(program: &Path) -> anyhow::Result<()> {
    let mut command = std::process::Command::new(program);
    command
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = Command::from(command).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that is gone already does not read.
        let _ = stdin.write_all(b"a payload of some forty bytes, as many do").await;
    }
    let (mut out, mut err) = (Vec::new(), Vec::new());
    if let (Some(mut stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) {
        tokio::try_join!(stdout.read_to_end(&mut out), stderr.read_to_end(&mut err))?;
    }
    child.wait().await?;
    Ok(())
}
