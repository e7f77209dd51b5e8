//! The pages of the real binary: alive, ready, and what was counted.

#[path = "web/client.rs"]
mod client;
mod common;
#[path = "web/text_format.rs"]
mod text_format;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use client::{get, request, send};
use common::{Scene, Worker, wait_for};
use queue_worker::telemetry::metrics;
use rustix::process::Signal;
use text_format::Page;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("bound").port()
}

/// A scene whose workers listen on the port.
async fn scene() -> (Scene, u16) {
    let scene = Scene::start().await;
    let port = free_port();
    scene.write_config(&web(port));
    (scene, port)
}

fn web(port: u16) -> String {
    format!("[web]\nlisten = \"127.0.0.1:{port}\"")
}

async fn worker(scene: &Scene, name: &str, port: u16) -> Worker {
    let worker = scene.worker(name).await;
    until(port, "/readyz", 200, "ready").await;
    worker
}

async fn until(port: u16, path: &str, status: u16, text: &str) {
    wait_for(&format!("{path} to be {status}, {text:?}"), async || {
        let (found, body) = get(port, path).await;
        found == status && body.contains(text)
    })
    .await;
}

async fn page(port: u16) -> Page {
    let (status, body) = get(port, "/metrics").await;
    assert_eq!(status, 200, "{body}");
    Page::parse(&body).unwrap_or_else(|problem| panic!("{problem}\n{body}"))
}

async fn until_counted(port: u16, series: &str, value: f64) {
    wait_for(&format!("{series} to be {value}"), async || {
        page(port).await.value(series) == Some(value)
    })
    .await;
}

fn outcome(kind: &str, outcome: &str) -> String {
    format!("queue_worker_tasks_total{{kind=\"{kind}\",outcome=\"{outcome}\",queue=\"q\"}}")
}

#[tokio::test]
async fn ready_means_that_tasks_are_pulled() {
    let (mut scene, port) = scene().await;
    scene.redis.stop().await;
    scene.postgres.stop().await;
    let mut worker = scene.spawn_worker("a", &[]);
    until(port, "/readyz", 503, "waiting for postgres: ").await;
    assert_eq!(get(port, "/livez").await, (200, "alive\n".to_owned()));
    scene.postgres.restart().await.expect("start postgres");
    until(port, "/readyz", 503, "waiting for redis: ").await;
    scene.redis.restart().await.expect("start redis");
    until(port, "/readyz", 200, "ready").await;

    worker.signal(Signal::TSTP);
    until(port, "/readyz", 503, "quiet").await;
    until_counted(port, "queue_worker_phase{phase=\"quiet\"}", 1.0).await;
    worker.signal(Signal::CONT);
    until(port, "/readyz", 200, "ready").await;

    scene.redis.kill();
    until(port, "/readyz", 503, "waiting for redis: ").await;
    let down = page(port).await;
    assert_eq!(down.value("queue_worker_store_up{store=\"redis\"}"), Some(0.0));
    assert_eq!(down.value("queue_worker_store_up{store=\"postgres\"}"), Some(1.0));
    assert!(down.value("queue_worker_store_errors_total{store=\"redis\"}") > Some(0.0));
    assert!(down.value("queue_worker_store_probes_total{store=\"redis\"}") > Some(1.0));
    scene.redis.restart().await.expect("start redis again");
    until(port, "/readyz", 200, "ready").await;
    assert_eq!(get(port, "/livez").await.0, 200);

    scene.task("t", "gate", "").await;
    scene.until_journal("t", "start").await;
    worker.signal(Signal::TERM);
    until(port, "/readyz", 503, "draining").await;
    assert_eq!(get(port, "/livez").await.0, 200, "a drain is no illness");
    scene.open_gate();
    let (status, _) = worker.exit(Duration::from_secs(30)).await;
    assert!(status.success(), "{}", worker.log());
    assert_eq!(get(port, "/livez").await.0, 0);
}

#[tokio::test]
async fn stores_that_answer_and_refuse_the_work_are_not_ready() {
    let (scene, port) = scene().await;
    let mut worker = worker(&scene, "a", port).await;
    let mut redis = scene.redis_connection().await;
    let mut ask = async |words: &str| {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().expect("a command"));
        command.arg(words.collect::<Vec<_>>());
        let _: redis::Value = command.query_async(&mut redis).await.expect("an answer");
    };
    ask("REPLICAOF 127.0.0.1 1").await;
    until(port, "/readyz", 503, "it is a replica and takes no writes; name the master").await;
    ask("REPLICAOF NO ONE").await;
    until(port, "/readyz", 200, "ready").await;

    // Of another type: every read is refused, and that is no accident after ten seconds.
    ask("DEL qw:{q}:tasks").await;
    ask("SET qw:{q}:tasks x").await;
    until(port, "/readyz", 503, "work fails: redis").await;
    ask("DEL qw:{q}:tasks").await;
    until(port, "/readyz", 200, "ready").await;

    for (read_only, status, text) in [("on", 503, "is read-only"), ("off", 200, "ready")] {
        let set = format!("ALTER SYSTEM SET default_transaction_read_only = {read_only}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(&scene.pool).await.expect("ALTER SYSTEM");
        sqlx::query("SELECT pg_reload_conf()").execute(&scene.pool).await.expect("reload");
        until(port, "/readyz", status, text).await;
    }
    scene.task("t", "effect", "").await;
    scene.until_status("t", "succeeded").await;
    worker.terminate().await;
}

#[tokio::test]
async fn the_counts_are_what_ran() {
    let (scene, port) = scene().await;
    let mut worker = worker(&scene, "a", port).await;
    for n in 0..10 {
        scene.task(&format!("e{n}"), "effect", "").await;
    }
    for n in 0..3 {
        scene.task(&format!("x{n}"), "exit", "7").await;
    }
    scene.task("unknown", "nobody knows \"me\"", "").await;
    scene.xadd(&[("task_id", b"malformed")]).await;
    let later = [("task_id", &b"later"[..]), ("kind", b"effect"), ("payload", b"")];
    scene.xadd(&[&later[..], &[("not_before_ms", b"99999999999999")]].concat()).await;
    scene.task("e0", "effect", "").await;
    scene.task("busy", "sleep", "60").await;
    scene.until_journal("busy", "start").await;

    until_counted(port, &outcome("effect", "succeeded"), 10.0).await;
    until_counted(port, &outcome("exit", "failed"), 3.0).await;
    until_counted(port, &outcome("effect", "duplicate"), 1.0).await;
    until_counted(port, &outcome("effect", "delayed"), 1.0).await;
    until_counted(port, &outcome("other", "refused"), 1.0).await;
    // The task that nobody knows comes back now and then, and is in flight for that moment.
    until_counted(port, "queue_worker_in_flight_tasks{queue=\"q\"}", 1.0).await;
    let page = page(port).await;
    assert_eq!(page.value(&outcome("exit", "retried")), Some(6.0));
    assert!(page.value(&outcome("other", "delayed")) >= Some(1.0));
    assert_eq!(page.sum("queue_worker_tasks_total", "succeeded"), Some(10.0));
    assert_eq!(page.sum("queue_worker_tasks_total", "nobody"), Some(0.0), "users make no labels");
    assert_eq!(page.sum("queue_worker_dead_letters_total", "failed"), Some(3.0));
    assert_eq!(page.sum("queue_worker_dead_letters_total", "malformed"), Some(1.0));
    assert_eq!(page.sum("queue_worker_delays_total", "not_before"), Some(1.0));
    assert_eq!(page.value("queue_worker_run_duration_seconds_count{kind=\"effect\"}"), Some(10.0));
    assert_eq!(page.value("queue_worker_run_duration_seconds_count{kind=\"exit\"}"), Some(9.0));
    // Each run was claimed once, and so was the task that still runs.
    assert_eq!(page.value("queue_worker_wait_duration_seconds_count{queue=\"q\"}"), Some(20.0));
    assert!(page.value("queue_worker_promoted_rows_total") >= Some(6.0));
    assert_eq!(page.value("queue_worker_running_tasks{queue=\"q\"}"), Some(1.0));
    assert!(page.value("queue_worker_oldest_task_age_seconds") > Some(0.0));
    assert_eq!(page.sum("queue_worker_build_info", env!("CARGO_PKG_VERSION")), Some(1.0));
    worker.kill().await;
}

#[tokio::test]
async fn a_takeover_and_a_stolen_fence_are_counted() {
    let (scene, port) = scene().await;
    let mut first = worker(&scene, "a", port).await;
    scene.task("t", "sleep", "60").await;
    scene.until_journal("t", "start").await;
    first.kill().await;
    let mut second = worker(&scene, "b", port).await;
    until_counted(port, "queue_worker_takeovers_total{kind=\"sleep\",queue=\"q\"}", 1.0).await;
    assert!(
        page(port).await.value("queue_worker_reclaimed_entries_total{queue=\"q\"}") >= Some(1.0)
    );
    // Somebody else's fence: the heartbeat finds the lease gone, and the outcome is refused.
    wait_for("the fence to be stolen", async || {
        scene.journal_count("t", "start") == 2
            && scene
                .count(
                    "WITH t AS (UPDATE queue_worker.processed_tasks SET fence = fence + 1 \
                     RETURNING 1) SELECT count(*) FROM t",
                )
                .await
                == 1
    })
    .await;
    until_counted(port, "queue_worker_leases_lost_total", 1.0).await;
    until_counted(port, &outcome("sleep", "stale"), 1.0).await;
    second.kill().await;
}

#[tokio::test]
async fn the_documented_metrics_are_the_exported_ones() {
    let (scene, port) = scene().await;
    let mut worker = worker(&scene, "a", port).await;
    let both = async || {
        let page = page(port).await;
        ["stream_entries", "delayed_tasks"]
            .iter()
            .all(|name| page.0.contains_key(&format!("queue_worker_{name}")))
    };
    wait_for("the stores to be measured", both).await;
    let page = page(port).await;
    let exported: BTreeSet<&str> = page.0.keys().map(String::as_str).collect();
    let named: BTreeSet<&str> = metrics::ALL.iter().map(|metric| metric.name).collect();
    assert_eq!(exported, named);
    for metric in metrics::ALL {
        let family = &page.0[metric.name];
        assert_eq!(
            (family.sort.as_str(), family.help.as_str()),
            (metric.sort.as_str(), metric.help)
        );
    }
    worker.terminate().await;
}

#[tokio::test]
async fn what_waits_in_the_stores_is_told() {
    let (scene, port) = scene().await;
    let config = std::fs::read_to_string(scene.config_path()).expect("read the configuration");
    let one_at_a_time = config.replace("concurrency = 8", "concurrency = 1");
    assert_ne!(one_at_a_time, config);
    std::fs::write(scene.config_path(), one_at_a_time).expect("write the configuration");
    let mut worker = worker(&scene, "a", port).await;
    until_counted(port, "queue_worker_stream_entries{queue=\"q\"}", 0.0).await;
    scene.task("fails", "exit", "65").await;
    scene.until_status("fails", "failed").await;
    let later = [("not_before_ms", "253402300799999")];
    scene.task_with("later", "exit", b"0", &later).await;
    scene.until_status("later", "delayed").await;
    scene.task("runs", "gate", "").await;
    scene.until_journal("runs", "start").await;
    // Else it might be fetched ahead.
    worker.signal(Signal::TSTP);
    until(port, "/readyz", 503, "quiet").await;
    scene.task("waits", "exit", "0").await;
    let of_q = |name: &str| format!("queue_worker_{name}{{queue=\"q\"}}");
    until_counted(port, &of_q("waiting_entries"), 1.0).await;
    until_counted(port, &of_q("delayed_tasks"), 1.0).await;
    until_counted(port, &of_q("open_dead_letters"), 1.0).await;
    let page = page(port).await;
    assert_eq!(page.value(&of_q("stream_entries")), Some(2.0));
    let age = page.value(&of_q("oldest_waiting_entry_age_seconds")).expect("an age");
    assert!(age > 0.0 && age < 60.0, "{age}");
    scene.open_gate();
    worker.terminate().await;
}

#[tokio::test]
async fn http_is_spoken_well_and_within_limits() {
    let (scene, port) = scene().await;
    let mut worker = worker(&scene, "a", port).await;
    let metrics = request(port, "GET", "/metrics").await.expect("an answer");
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let livez = request(port, "GET", "/livez?verbose").await.expect("an answer");
    assert_eq!((livez.status, livez.body.as_str()), (200, "alive\n"));
    assert_eq!(livez.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(livez.header("cache-control"), Some("no-store"));

    let head = request(port, "HEAD", "/livez").await.expect("an answer");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(head.header("content-length"), Some("6"));
    assert!(get(port, "/").await.1.contains("/metrics"));
    assert_eq!(get(port, "/nothing").await.0, 404);
    assert_eq!(get(port, "/livez/").await.0, 404);
    let refused = request(port, "POST", "/livez").await.expect("an answer");
    assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")));

    let body = b"GET /livez HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\n\r\nhello";
    assert_eq!(send(port, body).await.expect("an answer").status, 413);
    let long = format!("GET /livez HTTP/1.1\r\nhost: t\r\nx: {}\r\n\r\n", "x".repeat(100_000));
    assert!(send(port, long.as_bytes()).await.is_none_or(|answer| answer.status == 431));
    let many = format!("GET /livez HTTP/1.1\r\nhost: t\r\n{}\r\n", "x: y\r\n".repeat(200));
    assert!(send(port, many.as_bytes()).await.is_none_or(|answer| answer.status == 431));
    // Half a head: the server closes, and answers others meanwhile.
    let slow = send(port, b"GET /livez HTTP/1.1\r\nho");
    let (closed, other) = tokio::join!(slow, get(port, "/livez"));
    assert_eq!(other.0, 200);
    assert!(closed.is_none_or(|answer| answer.status == 408), "closed at its time limit");
    worker.terminate().await;
}

#[tokio::test]
async fn connections_that_say_nothing_keep_nobody_out() {
    let (scene, port) = scene().await;
    let mut worker = worker(&scene, "a", port).await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(("127.0.0.1", port)).await.expect("connect"));
    }
    // A probe of an orchestrator has a second.
    let probe = tokio::time::timeout(Duration::from_secs(1), get(port, "/livez")).await;
    assert_eq!(probe.expect("an answer in time").0, 200);
    // Most had to go, and the youngest may still ask.
    let youngest = silent.last_mut().expect("there are some");
    youngest.write_all(b"GET /livez HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("ask");
    let mut answer = String::new();
    youngest.read_to_string(&mut answer).await.expect("read the answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let mut oldest = silent.swap_remove(0);
    assert_eq!(oldest.read(&mut [0]).await.unwrap_or(0), 0, "the oldest was closed");
    worker.terminate().await;
}

#[tokio::test]
async fn a_taken_port_costs_a_warning_and_is_tried_again() {
    let (scene, port) = scene().await;
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("take the port");
    let mut worker = scene.worker("a").await;
    worker.until_logged("failed to listen on 127.0.0.1").await;
    scene.task("t", "effect", "").await;
    scene.until_status("t", "succeeded").await;
    drop(taken);
    until(port, "/readyz", 200, "ready").await;
    worker.until_logged("health and metrics on http://127.0.0.1").await;
    let log = worker.log();
    assert_eq!(log.matches("failed to listen").count(), 1, "{log}");
    worker.terminate().await;
}

#[tokio::test]
async fn without_an_address_nobody_listens() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    let threads = format!("/proc/{}/task", worker.child.id().expect("it runs"));
    let names = std::fs::read_dir(threads).expect("its threads").flatten().map(|thread| {
        std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default().trim().to_owned()
    });
    let names: Vec<String> = names.collect();
    assert!(names.contains(&"heartbeat".to_owned()), "{names:?}");
    assert!(!names.contains(&"web".to_owned()), "{names:?}");
    worker.terminate().await;
}

#[test]
fn the_page_about_metrics_is_current() {
    const COMMAND: &str = "UPDATE_GENERATED=1 cargo test --test web current";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let text = metrics::metrics_md();
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(&path, &text).expect("written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == text, "docs/metrics.md is out of date; run: {COMMAND}");
}
