//! From XADD to acknowledged, at a steady and modest rate.
//!
//! Both ends are read from the server's own `MONITOR`, whose lines carry a timestamp in
//! microseconds: the same clock for both, and no polling that would disturb what it measures.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::servers::{STREAM, Servers};
use super::throughput::{self, Load};

/// Between two tasks: 100 a second.
const EVERY: Duration = Duration::from_millis(10);

/// The median and the 99th percentile, in milliseconds.
pub(super) async fn percentiles(servers: &Servers, time: Duration) -> anyhow::Result<(f64, f64)> {
    let worker = throughput::start(servers, Load::External)?;
    let mut redis = servers.redis().await?;
    let mut monitor = servers.bare_redis().await?;
    let count = u32::try_from(time.as_millis() / EVERY.as_millis())?;
    let run = uuid::Uuid::new_v4().to_string();
    monitor.get_mut().write_all(b"MONITOR\r\n").await?;
    let producing = async {
        let mut ticks = tokio::time::interval(EVERY);
        let mut entries = HashMap::new();
        for n in 0..count {
            ticks.tick().await;
            let id = format!("{run}-{n}");
            let entry: String = redis::cmd("XADD")
                .arg(STREAM)
                .arg("*")
                .arg(&["task_id", &id, "kind", "noop", "payload", "x"])
                .query_async(&mut redis)
                .await?;
            entries.insert(entry, id);
        }
        anyhow::Ok(entries)
    };
    let watching = watch(&mut monitor, &run, count as usize);
    let (entries, seen) = tokio::try_join!(producing, watching)?;
    throughput::stop(worker).await?;
    let mut latencies: Vec<f64> = entries
        .iter()
        .filter_map(|(entry, id)| Some((seen.gone.get(entry)? - seen.added.get(id)?) * 1000.0))
        .collect();
    if latencies.len() * 100 < entries.len() * 99 {
        bail!("only {} of {} tasks were seen to end", latencies.len(), entries.len());
    }
    latencies.sort_by(f64::total_cmp);
    let at = |share: usize| latencies[(latencies.len() - 1) * share / 100];
    Ok((at(50), at(99)))
}

#[derive(Default)]
struct Seen {
    /// By task id: when it was added, in seconds.
    added: HashMap<String, f64>,
    /// By entry id: when it was deleted.
    gone: HashMap<String, f64>,
}

/// Reads the monitor until as many entries were deleted as will be added.
async fn watch(
    monitor: &mut BufReader<TcpStream>,
    run: &str,
    count: usize,
) -> anyhow::Result<Seen> {
    let mut seen = Seen::default();
    let mut line = String::new();
    while seen.gone.len() < count {
        line.clear();
        let read = monitor.read_line(&mut line);
        if tokio::time::timeout(Duration::from_secs(20), read)
            .await
            .context("redis went silent")??
            == 0
        {
            bail!("redis closed the monitor");
        }
        // +1700000000.123456 [0 127.0.0.1:5000] "XADD" "key" …
        let Some(time) = line.get(1..).and_then(|rest| rest.split(' ').next()) else { continue };
        let Ok(time) = time.parse::<f64>() else { continue };
        let words: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
        match words.first().map(|word| word.to_ascii_uppercase()).as_deref() {
            Some("XADD") => {
                if let Some(id) = words.iter().find(|word| word.starts_with(run)) {
                    seen.added.insert((*id).to_owned(), time);
                }
            }
            Some("XDEL") => {
                for entry in &words[2..] {
                    seen.gone.insert((*entry).to_owned(), time);
                }
            }
            _ => {}
        }
    }
    Ok(seen)
}
